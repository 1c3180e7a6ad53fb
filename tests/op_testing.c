#include "tests/op_testing.h"
#include <omp.h>

enum { WORKSPACE = 1 << 22 };
#define GUARD (-12345.0f)

int op_test_setup(void **state)
{
    OpTest *test = calloc(1, sizeof *test);
    if (!test) return -1;
    test->random = 1;
    test->ctx.workspace = op_test_alloc(test, WORKSPACE);
    test->ctx.workspace_bytes = WORKSPACE;
    *state = test;
    return 0;
}

int op_test_teardown(void **state)
{
    OpTest *test = *state;
    for (int i = 0; i < test->count; i++) free(test->blocks[i]);
    free(test->blocks);
    free(test);
    return 0;
}

void *op_test_alloc(OpTest *test, size_t bytes)
{
    if (test->count == test->capacity) {
        test->capacity = test->capacity ? 2 * test->capacity : 64;
        test->blocks = realloc(test->blocks, (size_t)test->capacity * sizeof *test->blocks);
    }
    void *block = malloc(bytes + 64);
    assert_non_null(block);
    memset(block, 0xFF, bytes + 64);    /* NaN as a float and as a double */
    test->blocks[test->count++] = block;
    return block;
}

double random_uniform(OpTest *test)
{
    test->random = test->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(test->random >> 11) * 0x1p-53;
}

double random_normal(OpTest *test)
{
    double u = 1.0 - random_uniform(test), angle = 2.0 * M_PI * random_uniform(test);
    return sqrt(-2.0 * log(u)) * cos(angle);
}

int32_t random_below(OpTest *test, int64_t n) { return (int32_t)(random_uniform(test) * (double)n); }

Tensor output_tensor(OpTest *test, int64_t rows, int64_t cols, int64_t pad)
{
    void *data = op_test_alloc(test, (size_t)(rows * (cols + pad)) * sizeof(float));
    Tensor t = tensor(data, rows, cols, DTYPE_F32);
    t.stride = cols + pad;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = cols; k < t.stride; k++) ((float *)t.data)[i * t.stride + k] = GUARD;
    return t;
}

Tensor random_tensor(OpTest *test, int64_t rows, int64_t cols, int64_t pad, double scale)
{
    Tensor t = output_tensor(test, rows, cols, pad);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t k = 0; k < cols; k++)
            ((float *)t.data)[i * t.stride + k] = (float)(scale * random_normal(test));
    return t;
}

Tensor copy_tensor(OpTest *test, Tensor t)
{
    Tensor copy = output_tensor(test, t.rows, t.cols, t.stride - t.cols);
    memcpy(copy.data, t.data, (size_t)(t.rows * t.stride) * sizeof(float));
    return copy;
}

float *output_floats(OpTest *test, int64_t n) { return op_test_alloc(test, (size_t)n * sizeof(float)); }

float *random_floats(OpTest *test, int64_t n, double mean, double scale)
{
    float *x = output_floats(test, n);
    for (int64_t i = 0; i < n; i++) x[i] = (float)(mean + scale * random_normal(test));
    return x;
}

double *doubles(OpTest *test, int64_t n)
{
    double *x = op_test_alloc(test, (size_t)n * sizeof(double));
    memset(x, 0, (size_t)n * sizeof(double));
    return x;
}

double *doubles_of(OpTest *test, Tensor t)
{
    double *x = doubles(test, t.rows * t.cols);
    for (int64_t i = 0; i < t.rows; i++)
        for (int64_t k = 0; k < t.cols; k++) x[i * t.cols + k] = at(t, i, k);
    return x;
}

void check_tensor(const char *what, Tensor got, const double *want, double tolerance)
{
    double error = 0.0, norm = 0.0;
    for (int64_t i = 0; i < got.rows; i++) {
        for (int64_t k = 0; k < got.cols; k++) {
            double w = want[i * got.cols + k], e = at(got, i, k) - w;
            if (!isfinite(e))
                fail_msg("%s[%d][%d] is %g, expected %g", what, (int)i, (int)k, at(got, i, k), w);
            error += e * e;
            norm += w * w;
        }
        for (int64_t k = got.cols; k < got.stride; k++)
            if (at(got, i, k) != GUARD)
                fail_msg("%s: written beyond row %d, column %d", what, (int)i, (int)k);
    }
    if (sqrt(error) > tolerance * sqrt(norm))
        fail_msg("%s: relative error %.3g, allowed %.3g", what, sqrt(error / norm), tolerance);
}

void check_floats(const char *what, const float *got, const double *want, int64_t n, double tolerance)
{
    check_tensor(what, tensor((void *)got, 1, n, DTYPE_F32), want, tolerance);
}

void check_number(const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * fabs(want))) fail_msg("%s is %.9g, expected %.9g", what, got, want);
}

void check_same_bits(const char *what, Tensor got, Tensor want)
{
    for (int64_t i = 0; i < got.rows; i++)
        if (memcmp((float *)got.data + i * got.stride, (float *)want.data + i * want.stride,
                   (size_t)got.cols * sizeof(float)))
            fail_msg("%s: row %d differs", what, (int)i);
}

RowNorm row_norm_of(OpTest *test, Tensor x, int parts, float eps)
{
    float *sums = output_floats(test, x.rows * parts);
    for (int64_t i = 0; i < x.rows; i++)
        for (int p = 0; p < parts; p++) {
            double sum = 0.0;
            for (int64_t k = p; k < x.cols; k += parts) sum += at(x, i, k) * at(x, i, k);
            sums[i * parts + p] = (float)sum;
        }
    return (RowNorm){.sumsq = {sums, parts}, .eps = eps, .cols = x.cols};
}

double rstd_of(Tensor x, int64_t row, float eps)
{
    double sum = 0.0;
    for (int64_t k = 0; k < x.cols; k++) sum += at(x, row, k) * at(x, row, k);
    return 1.0 / sqrt(sum / (double)x.cols + (double)eps);
}

RowSums output_sums(OpTest *test, int64_t rows) { return (RowSums){output_floats(test, rows), 1}; }

float *rope_table_of(OpTest *test, int head_dim, int64_t positions)
{
    float *table = output_floats(test, positions * head_dim);
    for (int64_t p = 0; p < positions; p++)
        for (int i = 0; i < head_dim / 2; i++) {
            double angle = (double)p * pow(100.0, -2.0 * i / head_dim);
            table[p * head_dim + 2 * i] = (float)cos(angle);
            table[p * head_dim + 2 * i + 1] = (float)sin(angle);
        }
    return table;
}

int32_t *order_of(OpTest *test, const int32_t *ids, int64_t n)
{
    int32_t *order = op_test_alloc(test, (size_t)n * sizeof *order);
    for (int64_t i = 0; i < n; i++) {       /* insertion keeps equal ids in row order */
        int64_t j = i;
        for (; j > 0 && ids[order[j - 1]] > ids[i]; j--) order[j] = order[j - 1];
        order[j] = (int32_t)i;
    }
    return order;
}

void naive_nt(double *c, const double *a, const double *b, int64_t m, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (int64_t l = 0; l < k; l++) sum += a[i * k + l] * b[j * k + l];
            c[i * n + j] = sum;
        }
}

void central_differences(double (*f)(void *arg), void *arg, double *x, int64_t n, double *grad)
{
    for (int64_t i = 0; i < n; i++) {
        double keep = x[i], h = 1e-5;
        x[i] = keep + h;
        double up = f(arg);
        x[i] = keep - h;
        double down = f(arg);
        x[i] = keep;
        grad[i] = (up - down) / (2.0 * h);
    }
}

void with_threads(OpTest *test, void (*body)(OpTest *test))
{
    int before = omp_get_max_threads();
    for (int threads = 1; threads <= 3; threads++) {
        omp_set_num_threads(threads);
        body(test);
    }
    omp_set_num_threads(before);
}
