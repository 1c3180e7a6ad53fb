/* The weight pass: fold and its permutations, gradient norm, clipping, AdamW against a textbook
 * implementation in double precision over several steps, and moments in BF16. */
#include "kernels/rounding.h"
#include "tests/op_testing.h"

#define TIGHT 2e-6

/* Where each working row comes from, written without master_row: one entry a row. */
static void naive_rows(int64_t *from, int64_t rows, RowLayout l)
{
    int64_t at_row = 0;
    if (l.order == ROWS_QKV) {
        for (int64_t head = 0; head < l.rotated / l.head_dim; head++)
            for (int i = 0; i < l.head_dim / 2; i++) {
                from[at_row++] = head * l.head_dim + i;
                from[at_row++] = head * l.head_dim + i + l.head_dim / 2;
            }
    } else if (l.order == ROWS_GATE_UP) {
        for (int64_t block = 0; block < l.ffn; block += 8)
            for (int up = 0; up < 2; up++)
                for (int i = 0; i < 8; i++) from[at_row++] = up * l.ffn + block + i;
    }
    for (; at_row < rows; at_row++) from[at_row] = at_row;
}

static const struct { int64_t rows, padded; RowLayout layout; } layouts[] = {
    {131, 256, {.order = ROWS_PLAIN}},
    {1001, 1024, {.order = ROWS_PLAIN}},
    {1, 1, {.order = ROWS_PLAIN}},
    {(6 + 2 * 2) * 10, 100, {.order = ROWS_QKV, .head_dim = 10, .rotated = 80}},
    {2 * 40, 80, {.order = ROWS_GATE_UP, .ffn = 40}},
};
enum { LAYOUTS = sizeof layouts / sizeof *layouts, K = 23 };

static Weight random_weight(OpTest *t, int n, bool folded)
{
    int64_t rows = layouts[n].rows, padded = layouts[n].padded;
    Weight w = {.name = "w", .rows = layouts[n].layout, .decay = true};
    w.master = random_tensor(t, rows, K, 0, 1);
    w.grad = random_tensor(t, padded, K, 0, 1);
    w.working = output_tensor(t, padded, K, 0);
    w.m = random_tensor(t, rows, K, 0, 0.1);
    w.v = random_tensor(t, rows, K, 0, 0.1);
    for (int64_t i = 0; i < rows * K; i++) ((float *)w.v.data)[i] = fabsf(((float *)w.v.data)[i]);
    if (folded) {
        w.gamma = random_floats(t, K, 1, 0.3);
        w.gamma_before = random_floats(t, K, 1, 0.3);
        w.dgamma = output_floats(t, K);
    }
    return w;
}

static double factor(const float *gamma, int64_t k) { return gamma ? (double)gamma[k] : 1.0; }

static void check_working(OpTest *t, const Weight *w, int n, const double *master)
{
    double *want = doubles(t, w->working.rows * K);
    int64_t *from = op_test_alloc(t, (size_t)w->master.rows * sizeof *from);
    naive_rows(from, w->master.rows, layouts[n].layout);
    for (int64_t row = 0; row < w->master.rows; row++)
        for (int64_t k = 0; k < K; k++) want[row * K + k] = master[from[row] * K + k] * factor(w->gamma, k);
    check_tensor("working", w->working, want, TIGHT);
}

static void fold_body(OpTest *t)
{
    for (int n = 0; n < LAYOUTS; n++)
        for (int folded = 0; folded < 2; folded++) {
            Weight w = random_weight(t, n, folded);
            cpu_ops.fold(&t->ctx, &w);
            check_working(t, &w, n, doubles_of(t, w.master));
            for (int64_t i = w.master.rows; i < w.working.rows; i++) assert_true(at(w.working, i, 0) == 0);
        }
}

static void grad_norm_body(OpTest *t)
{
    for (int n = 0; n < LAYOUTS; n++)
        for (int folded = 0; folded < 2; folded++) {
            Weight w = random_weight(t, n, folded);
            int64_t *from = op_test_alloc(t, (size_t)w.master.rows * sizeof *from);
            double want = 0, got = NAN, *want_gamma = doubles(t, K);
            naive_rows(from, w.master.rows, w.rows);
            for (int64_t row = 0; row < w.master.rows; row++)
                for (int64_t k = 0; k < K; k++) {
                    double g = at(w.grad, row, k), dw = g * factor(w.gamma, k);
                    want += dw * dw;
                    want_gamma[k] += g * at(w.master, from[row], k);
                }
            cpu_ops.grad_norm(&t->ctx, &w, &got);
            check_number("sum of squares", got, want, TIGHT);
            if (folded) check_floats("dgamma", w.dgamma, want_gamma, K, TIGHT);
        }
}

static void test_clip(void **state)
{
    OpTest *t = *state;
    double sumsq[3] = {4, 12, 9};   /* norm 5 */
    static const struct { float clip; double factor; } cases[] = {
        {0, 1}, {1, 0.2}, {5, 1}, {7, 1}, {2.5f, 0.5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        Hyper hyper = {.clip = cases[i].clip};
        StepStats stats = {.loss = 1, .grad_norm = NAN, .clip_factor = NAN, .skipped = -1};
        cpu_ops.clip(&t->ctx, sumsq, 3, &hyper, &stats);
        check_number("norm", stats.grad_norm, 5, 1e-12);
        check_number("factor", stats.clip_factor, cases[i].factor, 1e-12);
        assert_int_equal(stats.skipped, 0);
    }
    static const double bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) {
        Hyper hyper = {.clip = 1};
        StepStats stats = {.loss = 1};
        sumsq[1] = bad[i];
        cpu_ops.clip(&t->ctx, sumsq, 3, &hyper, &stats);
        assert_int_equal(stats.skipped, 1);
        sumsq[1] = 12;
        stats = (StepStats){.loss = bad[i]};
        cpu_ops.clip(&t->ctx, sumsq, 3, &hyper, &stats);
        assert_int_equal(stats.skipped, 1);
    }
}

/* A norm and the weight that folds it over five steps: clip, bias correction, decay on the matrix only, the
 * gradient scaled by the old gamma and the fold with the new one. */
static void adamw_body(OpTest *t)
{
    const double lr = 0.01, beta1 = 0.9, beta2 = 0.95, small = 1e-8, decay = 0.1;
    for (int n = 0; n < LAYOUTS; n++) {
        Weight w = random_weight(t, n, true), norm = {.name = "norm", .rows = {ROWS_PLAIN}};
        int64_t rows = w.master.rows, count = rows * K, *from = op_test_alloc(t, (size_t)rows * sizeof *from);
        naive_rows(from, rows, w.rows);
        norm.master = random_tensor(t, 1, K, 0, 0.3), norm.grad = output_tensor(t, 1, K, 0);
        norm.m = random_tensor(t, 1, K, 0, 0), norm.v = random_tensor(t, 1, K, 0, 0);
        w.m = random_tensor(t, rows, K, 0, 0), w.v = random_tensor(t, rows, K, 0, 0);
        norm.keep_before = w.gamma_before;
        w.gamma = norm.master.data, w.dgamma = norm.grad.data;
        double *p = doubles_of(t, w.master), *m = doubles(t, count), *v = doubles(t, count);
        double *gamma = doubles_of(t, norm.master), *gm = doubles(t, K), *gv = doubles(t, K);
        cpu_ops.fold(&t->ctx, &w);
        for (int step = 1; step <= 5; step++) {
            w.grad = random_tensor(t, layouts[n].padded, K, 0, 1);
            double sums[2], sumsq = 0, *dw = doubles(t, count), *dgamma = doubles(t, K);
            for (int64_t row = 0; row < rows; row++)
                for (int64_t k = 0; k < K; k++) {
                    dw[from[row] * K + k] = at(w.grad, row, k) * gamma[k];
                    dgamma[k] += at(w.grad, row, k) * p[from[row] * K + k];
                }
            for (int64_t i = 0; i < count; i++) sumsq += dw[i] * dw[i];
            for (int64_t k = 0; k < K; k++) sumsq += dgamma[k] * dgamma[k];
            double clip = fmin(1, 3 / sqrt(sumsq));
            double bias1 = 1 - pow(beta1, step), bias2 = 1 - pow(beta2, step);
            for (int64_t i = 0; i < count + K; i++) {
                bool matrix = i < count;
                int64_t e = matrix ? i : i - count;
                double *param = matrix ? &p[e] : &gamma[e];
                double *m1 = matrix ? &m[e] : &gm[e], *v1 = matrix ? &v[e] : &gv[e];
                double g = clip * (matrix ? dw[e] : dgamma[e]);
                *m1 = beta1 * *m1 + (1 - beta1) * g;
                *v1 = beta2 * *v1 + (1 - beta2) * g * g;
                *param -= lr * (*m1 / bias1 / (sqrt(*v1 / bias2) + small) + (matrix ? decay * *param : 0));
            }

            Hyper hyper = {(float)lr, (float)beta1, (float)beta2, (float)small, (float)decay, (float)bias1,
                           (float)bias2, 3, 1, (uint32_t)step};
            StepStats stats = {.loss = 1};
            cpu_ops.grad_norm(&t->ctx, &w, &sums[0]);
            cpu_ops.grad_norm(&t->ctx, &norm, &sums[1]);
            cpu_ops.clip(&t->ctx, sums, 2, &hyper, &stats);
            check_number("clip factor", stats.clip_factor, clip, TIGHT);
            cpu_ops.adamw(&t->ctx, &norm, &hyper, &stats);
            cpu_ops.adamw(&t->ctx, &w, &hyper, &stats);
            check_tensor("master", w.master, p, TIGHT);
            check_tensor("gamma", norm.master, gamma, TIGHT);
            check_tensor("m", w.m, m, 4 * TIGHT);
            check_tensor("v", w.v, v, 4 * TIGHT);
            check_working(t, &w, n, p);
        }
    }
}

static void test_skip(void **state)
{
    OpTest *t = *state;
    Weight w = random_weight(t, 2, true);
    Tensor master = copy_tensor(t, w.master), m = copy_tensor(t, w.m), v = copy_tensor(t, w.v);
    Hyper hyper = {0.1f, 0.9f, 0.99f, 1e-8f, 0.1f, 0.1f, 0.01f, 1, 1, 1};
    StepStats stats = {.skipped = 1, .clip_factor = NAN};
    float *before = random_floats(t, K, 0, 1), *kept = output_floats(t, K);
    memcpy(kept, before, K * sizeof(float));
    cpu_ops.fold(&t->ctx, &w);
    Tensor working = copy_tensor(t, w.working);
    w.keep_before = before;
    cpu_ops.adamw(&t->ctx, &w, &hyper, &stats);
    check_same_bits("master", w.master, master);
    check_same_bits("m", w.m, m);
    check_same_bits("v", w.v, v);
    check_same_bits("working", w.working, working);
    assert_memory_equal(before, kept, K * sizeof(float));
}

/* ---- BF16 moments ------------------------------------------------------------------------------------ */

static void test_rounding(void **state)
{
    (void)state;
    enum { DRAWS = 1 << 16 };
    static const float values[] = {1.0f, 1.001953125f, -3.14159f, 1e-20f, 0.0f, -2.5e-39f, 3e38f};
    for (size_t n = 0; n < sizeof values / sizeof *values; n++) {
        double x = (double)values[n], sum = 0;
        uint32_t key = rounding_key(7, (uint32_t)n);
        float below = bf16_to_float((uint16_t)(float_bits(values[n]) >> 16));
        float above = bf16_to_float((uint16_t)((float_bits(values[n]) >> 16) + 1));
        double step = fabs((double)above - (double)below);
        for (int64_t i = 0; i < DRAWS; i++) {
            uint32_t random = rounding_bits(key, i + ((int64_t)n << 32));
            float low = bf16_to_float(bf16_round_stochastic(values[n], random));
            float high = bf16_to_float(bf16_round_stochastic(values[n], random >> 16));
            assert_true((low == below || low == above) && (high == below || high == above));
            sum += (double)low / DRAWS;
        }
        /* the mean of DRAWS Bernoulli draws: five standard deviations */
        assert_true(fabs(sum - x) <= 5 * step * 0.5 / sqrt(DRAWS));
    }
    assert_int_equal(bf16_round_stochastic(INFINITY, 0xFFFF), 0x7F80);
    assert_int_equal(bf16_round_stochastic(-INFINITY, 0xFFFF), 0xFF80);
    assert_true(isnan(bf16_to_float(bf16_round_stochastic(float_from_bits(0x7F800001), 0))));
    assert_true(isnan(bf16_to_float(bf16_round_stochastic(float_from_bits(0xFFFFFFFF), 0xFFFF))));

    /* bits of neighbours, of the two halves, and of following steps are uncorrelated */
    double neighbours = 0, halves = 0, steps = 0;
    for (int64_t i = 0; i < DRAWS; i++) {
        uint32_t a = rounding_bits(rounding_key(1, 1), i), b = rounding_bits(rounding_key(1, 1), i + 1);
        uint32_t c = rounding_bits(rounding_key(1, 2), i);
        double low = (a & 0xFFFF) / 65535.0 - 0.5;
        neighbours += low * ((b & 0xFFFF) / 65535.0 - 0.5) * 12 / DRAWS;
        halves += low * ((a >> 16) / 65535.0 - 0.5) * 12 / DRAWS;
        steps += low * ((c & 0xFFFF) / 65535.0 - 0.5) * 12 / DRAWS;
    }
    assert_true(fabs(neighbours) < 0.02 && fabs(halves) < 0.02 && fabs(steps) < 0.02);
}

/* A copy of w whose moments are BF16; w's own moments must be exact in BF16. */
static Weight with_bf16_moments(OpTest *t, const Weight *w)
{
    Weight copy = *w;
    Tensor *moments[] = {&copy.m, &copy.v};
    copy.master = copy_tensor(t, w->master);
    copy.working = copy_tensor(t, w->working);
    for (int n = 0; n < 2; n++) {
        const float *from = moments[n]->data;
        int64_t count = w->master.rows * K;
        uint16_t *to = op_test_alloc(t, (size_t)count * sizeof *to);
        for (int64_t i = 0; i < count; i++) to[i] = (uint16_t)(float_bits(from[i]) >> 16);
        *moments[n] = tensor(to, w->master.rows, K, DTYPE_BF16);
    }
    return copy;
}

/* One step with BF16 moments is a step with FP32 moments of the same values, then a rounding that is at most
 * one step of BF16 away, right on average, and the same again from the same seed. */
static void test_bf16_moments(void **state)
{
    OpTest *t = *state;
    Weight exact = random_weight(t, 0, false);
    int64_t count = exact.master.rows * K;
    float *m = exact.m.data, *v = exact.v.data;
    Hyper hyper = {0.01f, 0.9f, 0.99f, 1e-8f, 0.1f, 0.19f, 0.02f, 0, 5, 2};
    StepStats stats = {.clip_factor = 1};
    for (int64_t i = 0; i < count; i++) {
        m[i] = float_from_bits(float_bits(m[i]) & 0xFFFF0000u);
        v[i] = float_from_bits(float_bits(v[i]) & 0xFFFF0000u);
    }
    Weight w = with_bf16_moments(t, &exact), again = with_bf16_moments(t, &exact);
    cpu_ops.adamw(&t->ctx, &w, &hyper, &stats);
    cpu_ops.adamw(&t->ctx, &again, &hyper, &stats);
    assert_memory_equal(w.m.data, again.m.data, (size_t)count * sizeof(uint16_t));
    assert_memory_equal(w.v.data, again.v.data, (size_t)count * sizeof(uint16_t));

    cpu_ops.adamw(&t->ctx, &exact, &hyper, &stats);
    check_tensor("master", w.master, doubles_of(t, exact.master), 1e-7);
    double bias = 0, scale = 0;
    for (int64_t i = 0; i < count; i++) {
        double got_m = (double)bf16_to_float(((uint16_t *)w.m.data)[i]);
        double got_v = (double)bf16_to_float(((uint16_t *)w.v.data)[i]);
        assert_true(fabs(got_m - (double)m[i]) <= fabs((double)m[i]) / 128);
        assert_true(fabs(got_v - (double)v[i]) <= fabs((double)v[i]) / 128);
        bias += got_v - (double)v[i], scale += (double)v[i];
    }
    assert_true(fabs(bias) <= 5 * scale / 256 / sqrt((double)count));
}

#define BODY(name) \
    static void test_##name(void **state) { with_threads(*state, name##_body); }
BODY(fold)
BODY(grad_norm)
BODY(adamw)

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, op_test_setup, op_test_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_fold), TEST(test_grad_norm), TEST(test_clip), TEST(test_adamw), TEST(test_skip),
        TEST(test_rounding), TEST(test_bf16_moments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
