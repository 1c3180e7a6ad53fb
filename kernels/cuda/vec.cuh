/* Device helpers: 16-byte loads and stores of bf16 rows, and sums over a warp or a block in a fixed order. */
#pragma once
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/formulas.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/tensor.h"

/* V consecutive values as they lie in memory. V = 8 is one 16-byte access; other V suit rows without that
 * alignment. Kernels load several of them before they use the first: that keeps enough bytes in flight. */
template <int V> struct Raw {
    bf16 value[V];
};
template <> struct Raw<8> {
    uint4 words;
};

template <int V> static __device__ __forceinline__ Raw<V> load_raw(const bf16 *from)
{
    Raw<V> raw;
    if constexpr (V == 8) {
        raw.words = *reinterpret_cast<const uint4 *>(from);
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) raw.value[i] = from[i];
    }
    return raw;
}

template <int V> static __device__ __forceinline__ void unpack(const Raw<V> &raw, float (&x)[V])
{
    if constexpr (V == 8) {
        const uint32_t word[4] = {raw.words.x, raw.words.y, raw.words.z, raw.words.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 pair = unpack(word[i]);
            x[2 * i] = pair.x, x[2 * i + 1] = pair.y;
        }
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) x[i] = __bfloat162float(raw.value[i]);
    }
}

template <int V> static __device__ __forceinline__ void load(const bf16 *from, float (&x)[V])
{
    unpack(load_raw<V>(from), x);
}

static __device__ __forceinline__ void store_words(bf16 *to, const uint32_t (&pair)[4])
{
    *reinterpret_cast<uint4 *>(to) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

template <int V> static __device__ __forceinline__ void store(bf16 *to, const float (&x)[V])
{
    if constexpr (V == 8) {
        const uint32_t pair[4] = {pack(x[0], x[1]), pack(x[2], x[3]), pack(x[4], x[5]), pack(x[6], x[7])};
        store_words(to, pair);
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) to[i] = __float2bfloat16(x[i]);
    }
}

template <int V> static __device__ __forceinline__ void load(const float *from, float (&x)[V])
{
    if constexpr (V % 4 == 0) {
#pragma unroll
        for (int i = 0; i < V; i += 4) {
            float4 raw = *reinterpret_cast<const float4 *>(from + i);
            x[i] = raw.x, x[i + 1] = raw.y, x[i + 2] = raw.z, x[i + 3] = raw.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) x[i] = from[i];
    }
}

template <int V> static __device__ __forceinline__ void store(float *to, const float (&x)[V])
{
    if constexpr (V % 4 == 0) {
#pragma unroll
        for (int i = 0; i < V; i += 4)
            *reinterpret_cast<float4 *>(to + i) = make_float4(x[i], x[i + 1], x[i + 2], x[i + 3]);
    } else {
#pragma unroll
        for (int i = 0; i < V; i++) to[i] = x[i];
    }
}

template <class T> static __device__ __forceinline__ T warp_sum(T x)
{
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) x += __shfl_xor_sync(~0u, x, mask);
    return x;
}

static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
    return x;
}

/* The sum over the block, in every thread. All threads of the block must call it; blockDim.x % 32 == 0. */
template <class T> static __device__ __forceinline__ T block_sum(T x)
{
    __shared__ T part[32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = warp_sum(x);
    __syncthreads();    /* the previous sum has been read */
    if (lane == 0) part[warp] = x;
    __syncthreads();
    return warp_sum(lane < warps ? part[lane] : T(0));
}

/* In every lane; all lanes of a warp ask for the same row. */
static __device__ __forceinline__ float sum_parts(RowSums sums, int64_t row)
{
    const float *part = sums.data + row * sums.parts;
    if (sums.parts == 1) return part[0];
    float total = 0;
    for (int i = threadIdx.x % 32; i < sums.parts; i += 32) total += part[i];
    return warp_sum(total);
}

/* The same by the whole block, all of whose threads must ask. */
static __device__ __forceinline__ float block_sum_parts(RowSums sums, int64_t row)
{
    const float *part = sums.data + row * sums.parts;
    if (sums.parts == 1) return part[0];
    float total = 0;
    for (int i = threadIdx.x; i < sums.parts; i += blockDim.x) total += part[i];
    return block_sum(total);
}

/* r of MATH.md: 1 / sqrt(mean(x^2) + eps). */
static __device__ __forceinline__ float row_rstd(RowNorm norm, int64_t row)
{
    return norm_rstd(sum_parts(norm.sumsq, row), (float)norm.cols, norm.eps);
}

/* This op leaves one part a row; further parts that the consumer expects are zero. */
static __device__ __forceinline__ void put_sum(RowSums sums, int64_t row, float total)
{
    for (int i = threadIdx.x; i < sums.parts; i += blockDim.x)
        sums.data[row * sums.parts + i] = i ? 0.0f : total;
}

/* ---- one warp a row -------------------------------------------------------------------------------- */

enum {
    ROW_WARPS = 8, ROW_THREADS = 32 * ROW_WARPS,
    BATCH = 4,          /* vectors that a lane loads at once */
    LONG_BATCH = 8,     /* ... in kernels that otherwise do little, or wait before they load */
};

static __device__ __forceinline__ int64_t warp_row()
{
    return blockIdx.x * (int64_t)ROW_WARPS + threadIdx.x / 32;
}
static __device__ __forceinline__ int lane_id() { return threadIdx.x % 32; }

/* x as it is after being stored. */
template <int V> static __device__ __forceinline__ void round_to_bf16(float (&x)[V])
{
#pragma unroll
    for (int i = 0; i < V; i++) x[i] = __bfloat162float(__float2bfloat16(x[i]));
}

/* The vectors of a row that this lane loads together, from column c on: one every 32 V columns. */
template <int V, int N> struct Vectors {
    Raw<V> raw[N];
    __device__ __forceinline__ Vectors(const bf16 *row, int64_t c, int64_t cols)
    {
#pragma unroll
        for (int u = 0; u < N; u++)
            if (c + u * 32 * V < cols) raw[u] = load_raw<V>(row + c + u * 32 * V);
    }
};

/* A row by a warp: each(c, v) for every vector v of V columns from c on. first() stands between the loads of
 * the row's first vectors and their use: what it has to load waits beside them. */
template <int V, class First, class Each> static __device__ __forceinline__ void
walk_row(const bf16 *row, int64_t cols, First first, Each each)
{
    constexpr int STRIDE = 32 * V * LONG_BATCH;
    Vectors<V, LONG_BATCH> in(row, lane_id() * V, cols);
    first();
    for (int64_t c = lane_id() * V; c < cols; c += STRIDE) {
        if (c >= STRIDE) in = Vectors<V, LONG_BATCH>(row, c, cols);
#pragma unroll
        for (int u = 0; u < LONG_BATCH; u++) {
            int64_t at = c + u * 32 * V;
            if (at >= cols) break;
            float v[V];
            unpack(in.raw[u], v);
            each(at, v);
        }
    }
}

/* One part a row; further parts that the consumer expects are zero. */
static __device__ __forceinline__ void put_warp_sum(RowSums sums, int64_t row, float lane_sum)
{
    float total = warp_sum(lane_sum);
    for (int i = lane_id(); i < sums.parts; i += 32) sums.data[row * sums.parts + i] = i ? 0.0f : total;
}

/* ---- host side: how a row kernel is launched ------------------------------------------------------ */

/* True where all rows of t can be moved 16 bytes at a time; an unwanted tensor never stands in the way. */
static inline bool vectorised(Tensor t)
{
    return !t.data || (t.cols % 8 == 0 && t.stride % 8 == 0 && ((uintptr_t)t.data & 15) == 0);
}

static inline unsigned row_blocks(int64_t rows) { return (unsigned)((rows + ROW_WARPS - 1) / ROW_WARPS); }

/* One block a row: a thread a vector, as far as that keeps eight blocks on a multiprocessor. */
static inline int row_threads(int64_t cols, int width, int most = 256)
{
    int64_t vectors = (cols + width - 1) / width;
    int64_t threads = (vectors + 31) / 32 * 32;
    return (int)(threads < most ? threads : most);
}
