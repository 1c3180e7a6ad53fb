/* Sizes of real models and odd ones, the backend, and random and poisoned tensors, for what tests and times kernels. */
#pragma once
#include "kernels/cuda/timing.h"
#include <cstdio>
#include <cstdlib>

struct Sizes {
    const char *name;
    int64_t T, d, f, heads, kv_heads, head_dim, vocab, chunk;
    int pad;                /* elements between rows of every bf16 tensor */
    int64_t qkv() const { return (heads + 2 * kv_heads) * head_dim; }
    int64_t padded() const { return (vocab + 127) / 128 * 128; }
};

static const Sizes real_sizes[] = {
    {"1b", 16384, 2048, 8192, 32, 8, 64, 128256, 8192, 0},
    {"8b", 16384, 4096, 14336, 32, 8, 128, 128256, 8192, 0},
    {"70b", 8192, 8192, 28672, 64, 8, 128, 128256, 4096, 0},
};
static const Sizes odd_sizes[] = {
    {"tiny", 8, 8, 8, 1, 1, 64, 5, 8, 0},
    {"odd", 333, 136, 328, 3, 1, 64, 517, 77, 8},
    {"one tile over", 129, 200, 392, 5, 5, 64, 1009, 129, 16},
    {"several waves", 6200, 520, 1096, 7, 1, 128, 3001, 1531, 8},
    {"odd, wide", 333, 1544, 1608, 21, 1, 64, 517, 77, 8},
    {"long K", 4392, 392, 8264, 3, 1, 64, 517, 77, 8},      /* tiles with stops: walk.h */
};

static OpContext ctx;
static std::vector<void *> owned;

static cudaStream_t stream() { return (cudaStream_t)ctx.stream; }

static void wait_device() { CUDA_CHECK("bench", cudaStreamSynchronize(stream())); }

static void *take(size_t bytes)
{
    void *memory = cuda_device.alloc(bytes);
    if (!memory) cuda_fail(__FILE__, __LINE__, "bench", "alloc", "out of device memory");
    owned.push_back(memory);
    return memory;
}

/* Exits where there is no GPU. cache: folder of measured choices, or NULL. */
static void *new_backend(const char *cache)
{
    Errors errors = {};
    CudaOptions options = {};
    options.cache_dir = cache;
    options.workspace_limit = (size_t)GEMM_WORKSPACE;
    void *backend = cuda_backend_open(&options, &errors);
    if (backend) return backend;
    errors_print(&errors, stderr);
    exit(1);
}

/* The backend and its scratch, in which a weight gradient of 70B width can be measured that is added to. */
static void open_backend(const char *cache = nullptr)
{
    ctx.backend = new_backend(cache);
    ctx.stream = cuda_backend_stream(ctx.backend);
    ctx.workspace_bytes = GEMM_WORKSPACE + (2ull << 30);
    ctx.layer = -1;
    CUDA_CHECK("bench", cudaMalloc(&ctx.workspace, ctx.workspace_bytes));
}

static void release_all()
{
    wait_device();
    for (void *memory : owned) cuda_device.release(memory);
    owned.clear();
}

/* ---- data ---------------------------------------------------------------------------------------------- */

__global__ void fill_normal(void *to, Dtype dtype, int64_t rows, int64_t cols, int64_t stride, float scale,
                            uint32_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < rows * cols;
         i += gridDim.x * (int64_t)blockDim.x) {
        uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull ^ seed * 0xD1B54A32D192ED03ull;
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
        x = (x ^ x >> 27) * 0x94D049BB133111EBull;
        float u = ((x >> 40) + 0.5f) * (1.0f / (1 << 24)), w = (uint32_t)x * 2.3283064e-10f;
        float v = scale * sqrtf(-2 * logf(u)) * cosf(6.2831853f * w);
        int64_t at = i / cols * stride + i % cols;
        if (dtype == DTYPE_BF16) ((bf16 *)to)[at] = __float2bfloat16(v);
        else ((float *)to)[at] = v;
    }
}

/* Everything outside the matrix's elements, TAIL bytes behind it included, holds 0xff. */
enum { TAIL = 4096 };

static size_t bytes_of(Tensor t) { return (size_t)(t.rows * t.stride) * dtype_bytes(t.dtype); }

static void poison(Tensor t)
{
    CUDA_CHECK("bench", cudaMemsetAsync(t.data, 0xff, bytes_of(t) + TAIL, stream()));
}

static Tensor make(int64_t rows, int64_t cols, int pad, Dtype dtype = DTYPE_BF16)
{
    Tensor t = tensor(nullptr, rows, cols, dtype);
    t.stride = cols + pad;
    t.data = take(bytes_of(t) + TAIL);
    poison(t);
    return t;
}

static void randomise(Tensor t, float scale)
{
    static uint32_t seed = 0;
    fill_normal<<<2048, 256, 0, stream()>>>(t.data, t.dtype, t.rows, t.cols, t.stride, scale, ++seed);
}

static Tensor normal(int64_t rows, int64_t cols, int pad, float scale, Dtype dtype = DTYPE_BF16)
{
    Tensor t = make(rows, cols, pad, dtype);
    randomise(t, scale);
    return t;
}

template <class T> static T *upload(const std::vector<T> &values)
{
    T *to = (T *)take(values.size() * sizeof(T));
    CUDA_CHECK("bench", cudaMemcpy(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return to;
}
