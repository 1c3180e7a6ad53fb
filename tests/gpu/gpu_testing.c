#include "tests/gpu/gpu_testing.h"
#include "kernels/rounding.h"
#include <cuda_runtime.h>
#include <stdio.h>

GpuTest *gpu_test_create(CudaAttention attention, size_t host_bytes)
{
    GpuTest *test = calloc(1, sizeof *test);
    Errors errors = {0};
    CudaOptions options = {.attention = attention, .workspace_limit = (size_t)512 << 20};
    test->gpu.backend = cuda_backend_open(&options, &errors);
    if (!test->gpu.backend) {
        errors_print(&errors, stderr);
        exit(1);
    }
    test->gpu.stream = cuda_backend_stream(test->gpu.backend);
    test->host_size = host_bytes;
    test->host = malloc(test->host_size);
    assert_non_null(test->host);
    return test;
}

static void release_all(GpuTest *test)
{
    while (test->device_count) cuda_device.release(test->device[--test->device_count]);
}

void gpu_test_destroy(GpuTest *test)
{
    release_all(test);
    cuda_backend_close(test->gpu.backend);
    free(test->host);
    free(test);
}

void gpu_test_reset(GpuTest *test)
{
    test->host_used = 0;
    release_all(test);
    test->random = 1;
    test->cpu.workspace_bytes = (size_t)256 << 20;
    test->cpu.workspace = host_take(test, test->cpu.workspace_bytes);
    test->gpu.workspace_bytes = (size_t)512 << 20;
    test->gpu.workspace = device_take(test, test->gpu.workspace_bytes);
}

void *host_take(GpuTest *test, size_t bytes)
{
    void *at = test->host + test->host_used;
    test->host_used += (bytes + 255) / 256 * 256;
    assert_true(test->host_used <= test->host_size);
    return at;
}

void *device_take(GpuTest *test, size_t bytes)
{
    assert_true(test->device_count < GPU_TEST_MOST);
    void *at = test->device[test->device_count++] = cuda_device.alloc(bytes);
    assert_non_null(at);
    assert_int_equal(cudaMemset(at, 0xFF, bytes), cudaSuccess);     /* NaN as f32 and as bf16 */
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);         /* the ops use another stream */
    return at;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/* Sum of four uniform numbers, with standard deviation 1. */
static float roughly_normal(uint64_t bits)
{
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)(bits >> 16 * i & 0xFFFF) - 32767.5f;
    return sum * (1.7320508f / 65536.0f);
}

static uint16_t to_bf16(float x)
{
    uint32_t bits = float_bits(x);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static Both make(GpuTest *test, int64_t rows, int64_t cols, Dtype dtype)
{
    size_t n = (size_t)(rows * cols);
    return (Both){tensor(host_take(test, n * sizeof(float)), rows, cols, DTYPE_F32),
                  tensor(device_take(test, n * dtype_bytes(dtype)), rows, cols, dtype)};
}

void upload(GpuTest *test, Both b)
{
    size_t n = (size_t)(b.cpu.rows * b.cpu.cols), used = test->host_used;
    if (b.gpu.dtype == DTYPE_F32) {
        cuda_device.upload(test->gpu.stream, b.gpu.data, b.cpu.data, n * sizeof(float));
    } else {
        uint16_t *half = host_take(test, n * sizeof *half);
        const float *from = b.cpu.data;
#pragma omp parallel for
        for (size_t i = 0; i < n; i++) half[i] = to_bf16(from[i]);
        cuda_device.upload(test->gpu.stream, b.gpu.data, half, n * sizeof *half);
    }
    cuda_device.wait(test->gpu.stream);
    test->host_used = used;
}

Both input(GpuTest *test, int64_t rows, int64_t cols, Dtype dtype, float scale)
{
    Both b = make(test, rows, cols, dtype);
    uint64_t seed = mix(++test->random);
    float *x = b.cpu.data;
#pragma omp parallel for
    for (int64_t i = 0; i < rows * cols; i++) {
        x[i] = scale * roughly_normal(mix(seed + (uint64_t)i * 0x9E3779B97F4A7C15u));
        if (dtype == DTYPE_BF16) x[i] = bf16_to_float(to_bf16(x[i]));
    }
    upload(test, b);
    return b;
}

Both output(GpuTest *test, int64_t rows, int64_t cols, Dtype dtype)
{
    Both b = make(test, rows, cols, dtype);
    memset(b.cpu.data, 0xFF, (size_t)(rows * cols) * sizeof(float));
    return b;
}

float *download(GpuTest *test, Tensor gpu)
{
    size_t n = (size_t)(gpu.rows * gpu.cols);
    assert_int_equal(gpu.stride, gpu.cols);
    float *out = host_take(test, n * sizeof(float));
    if (gpu.dtype == DTYPE_F32) {
        cuda_device.download(test->gpu.stream, out, gpu.data, n * sizeof(float));
        cuda_device.wait(test->gpu.stream);
        return out;
    }
    uint16_t *half = host_take(test, n * sizeof *half);
    cuda_device.download(test->gpu.stream, half, gpu.data, n * sizeof *half);
    cuda_device.wait(test->gpu.stream);
    for (size_t i = 0; i < n; i++) out[i] = bf16_to_float(half[i]);
    return out;
}

int32_t *device_ints(GpuTest *test, const int32_t *host, int64_t n)
{
    int32_t *device = device_take(test, (size_t)n * sizeof *device);
    cuda_device.upload(test->gpu.stream, device, host, (size_t)n * sizeof *device);
    cuda_device.wait(test->gpu.stream);
    return device;
}

int32_t below(GpuTest *test, int64_t n) { return (int32_t)(mix(++test->random) % (uint64_t)n); }

int32_t *random_ids(GpuTest *test, int64_t n, int64_t limit)
{
    int32_t *ids = host_take(test, (size_t)n * sizeof *ids);
    /* A third repeats a few ids, as frequent tokens do. */
    for (int64_t i = 0; i < n; i++) ids[i] = below(test, i % 3 ? limit : limit < 5 ? limit : 5);
    return ids;
}

int32_t *sorted_order(GpuTest *test, const int32_t *ids, int64_t n)
{
    int32_t *order = host_take(test, (size_t)n * sizeof *order);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = i;
        for (; at > 0 && ids[order[at - 1]] > ids[i]; at--) order[at] = order[at - 1];
        order[at] = (int32_t)i;
    }
    return order;
}

void check_both(GpuTest *test, const char *what, Both b, double tolerance)
{
    size_t used = test->host_used;
    const float *got = download(test, b.gpu), *want = b.cpu.data;
    double error = 0, size = 0;
    int64_t bad = 0;
    for (int64_t i = 0; i < b.cpu.rows * b.cpu.cols; i++) {
        double difference = (double)got[i] - (double)want[i];
        bad += !isfinite(got[i]);
        error += difference * difference;
        size += (double)want[i] * (double)want[i];
    }
    error = sqrt(error / (size > 0 ? size : 1));
    bool good = !bad && error <= tolerance;
    printf("    %-14s error %.1e (at most %.0e)%s\n", what, error, tolerance, good ? "" : "   WRONG");
    test->host_used = used;
    if (!good) fail_msg("%s [%lld, %lld]: error %g, %lld not finite", what, (long long)b.cpu.rows,
                        (long long)b.cpu.cols, error, (long long)bad);
}

static Both sumsq_of(GpuTest *test, Both x)
{
    Both sums = floats(test, x.cpu.rows, 1);
    for (int64_t i = 0; i < x.cpu.rows; i++) {
        double sum = 0;
        for (int64_t k = 0; k < x.cpu.cols; k++) {
            double v = ((float *)x.cpu.data)[i * x.cpu.cols + k];
            sum += v * v;
        }
        ((float *)sums.cpu.data)[i] = (float)sum;
    }
    upload(test, sums);
    return sums;
}

Norms norm_of(GpuTest *test, Both x)
{
    Both sums = sumsq_of(test, x);
    return (Norms){{cpu_sums(sums), 1e-5f, x.cpu.cols}, {gpu_sums(sums), 1e-5f, x.cpu.cols}};
}
