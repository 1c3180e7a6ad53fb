/* What the GPU tests of single ops share: the same numbers on both sides, poisoned outputs, comparison. */
#pragma once
#include "kernels/cuda/cuda.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

typedef struct OpSizes {
    int     batch, seq, heads, kv_heads, head_dim;
    int64_t hidden, ffn, vocab, chunk;
} OpSizes;

enum { GPU_TEST_MOST = 256 };

/* Two contexts, an arena on the host, and allocations on the device, one each, so that compute-sanitizer sees where a tensor
 * ends. All are free again at every test's start. */
typedef struct GpuTest {
    OpContext cpu, gpu;
    char     *host;
    size_t    host_used, host_size;
    void     *device[GPU_TEST_MOST];
    int       device_count;
    uint64_t  random;
    OpSizes   size;                 /* of the ops under test */
} GpuTest;

/* One tensor on both sides: f32 on the CPU, bf16 (or f32) on the GPU, holding the same numbers. */
typedef struct Both {
    Tensor cpu, gpu;
} Both;

GpuTest *gpu_test_create(CudaAttention attention, size_t host_bytes);
void     gpu_test_destroy(GpuTest *test);
void     gpu_test_reset(GpuTest *test);

void *host_take(GpuTest *test, size_t bytes);
void *device_take(GpuTest *test, size_t bytes);     /* filled with NaN */

/* Normal numbers (nearly) times scale, rounded to dtype. */
Both input(GpuTest *test, int64_t rows, int64_t cols, Dtype dtype, float scale);
/* Filled with NaN on both sides. */
Both output(GpuTest *test, int64_t rows, int64_t cols, Dtype dtype);
/* The GPU's copy follows what was changed in the CPU's. */
void upload(GpuTest *test, Both b);
/* The GPU's tensor as f32, packed, on the host. */
float *download(GpuTest *test, Tensor gpu);

int32_t *device_ints(GpuTest *test, const int32_t *host, int64_t n);
int32_t  below(GpuTest *test, int64_t n);
int32_t *random_ids(GpuTest *test, int64_t n, int64_t limit);
int32_t *sorted_order(GpuTest *test, const int32_t *ids, int64_t n);

/* ||gpu - cpu|| <= tolerance * ||cpu|| and every element is finite. Prints the error it found. */
void check_both(GpuTest *test, const char *what, Both b, double tolerance);

/* Tolerances. Rounding to BF16 once leaves 1.7e-3. */
#define ONE_ROUNDING  2.5e-3
#define TWO_ROUNDINGS 4e-3
#define EXACT         1e-5
#define REORDERED     2e-7     /* FP32 sums of the same numbers in another order */

static inline int64_t rows(GpuTest *test) { return (int64_t)test->size.batch * test->size.seq; }
static inline int64_t qkv_cols(GpuTest *test)
{
    return (int64_t)(test->size.heads + 2 * test->size.kv_heads) * test->size.head_dim;
}
static inline int64_t padded_vocab(GpuTest *test) { return (test->size.vocab + 127) / 128 * 128; }
static inline float fan_in(int64_t n) { return 1.0f / sqrtf((float)n); }
static inline Both activation(GpuTest *test, int64_t r, int64_t cols)
{
    return input(test, r, cols, DTYPE_BF16, 1);
}
static inline Both weight(GpuTest *test, int64_t r, int64_t cols)
{
    return input(test, r, cols, DTYPE_BF16, fan_in(cols));
}
static inline Both result(GpuTest *test, int64_t r, int64_t cols)
{
    return output(test, r, cols, DTYPE_BF16);
}
static inline Both floats(GpuTest *test, int64_t r, int64_t cols)
{
    return output(test, r, cols, DTYPE_F32);
}
static inline RowSums cpu_sums(Both b) { return (RowSums){b.cpu.data, 1}; }
static inline RowSums gpu_sums(Both b) { return (RowSums){b.gpu.data, 1}; }

typedef struct Norms { RowNorm cpu, gpu; } Norms;

/* What the op before x left behind: eps 1e-5. */
Norms norm_of(GpuTest *test, Both x);
