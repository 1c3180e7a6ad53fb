/* Attention in plain CUDA: causal, grouped heads, document masks, any even head size. It tests cuDNN's, takes
 * what cuDNN does not, and serves generation. Sums run in one fixed order.
 *
 * A block of 8 warps has 32 rows (queries, or keys in the gradient of k and v) and walks over tiles of 32 of
 * the other kind. A warp has 4 of the rows: for scores a lane stands for one row of the tile, for outputs for
 * every 32nd pair of columns. Heads wider than a stretch of columns have a block for each stretch of outputs.
 * Each takes the scores from all stretches, one after the other in shared memory, which so holds a head of
 * any size; its own comes last, and is still there when the outputs are summed. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/vec.cuh"

enum {
    TILE = 32, WARPS = 8, ROWS = TILE / WARPS,  /* rows a warp */
    PAIRS = 4, STRETCH = 2 * 32 * PAIRS,        /* column pairs a lane; columns of a block */
};

/* Rows of q, k, v, o and their gradients; consecutive rows of one sequence are `stride` elements apart. */
struct Attention {
    const bf16 *q, *k, *v, *d_o;
    bf16 *o, *dq, *dk, *dv;
    int64_t q_stride, kv_stride, o_stride, q_batch, kv_batch, o_batch;
    int queries, keys, past;            /* query i stands at key past + i */
    int heads, kv_heads, dim;
    float scale;
    const int32_t *doc_start;           /* [batch, queries] or NULL */
    float *lse, *delta;                 /* [batch, heads, queries]; lse NULL: not wanted */
};

static __device__ __forceinline__ float2 pair(const bf16 *at)
{
    return __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162 *>(at));
}

static __host__ __device__ __forceinline__ int tiles_of(int rows) { return (rows + TILE - 1) / TILE; }
static __host__ __device__ __forceinline__ int stretches_of(int dim) { return (dim + STRETCH - 1) / STRETCH; }

/* Where a block works. grid: batch * row tiles, heads, stretches of output columns */
struct Place {
    int batch, first, head;     /* sequence, first row of the tile, blockIdx.y */
    int stretches, own;         /* of the head's columns; the one whose outputs this block writes */
};

static __device__ __forceinline__ Place place_of(int rows, int dim)
{
    int tiles = tiles_of(rows), tile = blockIdx.x % tiles;
    return {(int)(blockIdx.x / tiles), tile * TILE, (int)blockIdx.y, stretches_of(dim), (int)blockIdx.z};
}

/* Columns [begin, begin + cols) of a head. */
struct Stretch {
    int begin, cols;
};

static __device__ __forceinline__ Stretch stretch_at(int index, int dim)
{
    return {index * STRETCH, min(STRETCH, dim - index * STRETCH)};
}

/* The turn-th of all stretches, turn = 1, 2, ...: own comes last. */
static __device__ __forceinline__ Stretch stretch_in_turn(const Place &at, int turn, int dim)
{
    return stretch_at((at.own + turn) % at.stretches, dim);
}

/* Rows [first, first + TILE) of x into shared memory, rows beyond `rows` as zeros. Columns come in pairs. */
static __device__ void
load_tile(bf16 *tile, int pitch, const bf16 *x, int64_t stride, int first, int rows, int cols)
{
    for (int i = threadIdx.x; i < TILE * (cols / 2); i += blockDim.x) {
        int row = i / (cols / 2), c = i % (cols / 2) * 2;
        uint32_t word = first + row < rows ? *(const uint32_t *)(x + (first + row) * stride + c) : 0u;
        *(uint32_t *)(tile + row * pitch + c) = word;
    }
}

/* The same as f32, packed. */
static __device__ void load_rows(float *tile, const bf16 *x, int64_t stride, int first, int rows, int cols)
{
    for (int i = threadIdx.x; i < TILE * (cols / 2); i += blockDim.x) {
        int row = i / (cols / 2), c = i % (cols / 2) * 2;
        float2 v = first + row < rows ? pair(x + (first + row) * stride + c) : make_float2(0, 0);
        tile[row * cols + c] = v.x;
        tile[row * cols + c + 1] = v.y;
    }
}

/* dot[i] += row of the tile that this lane stands for . the warp's i-th row. */
static __device__ __forceinline__ void
dots(float (&dot)[ROWS], const bf16 *lane_row, const float *rows, int cols)
{
    for (int c = 0; c < cols; c += 2) {
        float2 t = pair(lane_row + c);
#pragma unroll
        for (int i = 0; i < ROWS; i++) dot[i] += t.x * rows[i * cols + c] + t.y * rows[i * cols + c + 1];
    }
}

/* sum[i] += weight[i] of each tile row times that row, over this lane's columns. */
static __device__ __forceinline__ void accumulate(float (&sum)[ROWS][2 * PAIRS], const float (&weight)[ROWS],
                                                  const bf16 *tile, int pitch, int cols)
{
    int lane = threadIdx.x % 32;
    for (int j = 0; j < TILE; j++) {
        float w[ROWS];
#pragma unroll
        for (int i = 0; i < ROWS; i++) w[i] = __shfl_sync(~0u, weight[i], j);
#pragma unroll
        for (int p = 0; p < PAIRS; p++) {
            int c = 2 * (lane + 32 * p);
            if (c >= cols) break;
            float2 t = pair(tile + j * pitch + c);
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                sum[i][2 * p] += w[i] * t.x;
                sum[i][2 * p + 1] += w[i] * t.y;
            }
        }
    }
}

static __device__ __forceinline__ void
put_row(bf16 *to, const float (&sum)[2 * PAIRS], float factor, int cols)
{
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int p = 0; p < PAIRS; p++) {
        int c = 2 * (lane + 32 * p);
        if (c < cols) *(uint32_t *)(to + c) = pack(sum[2 * p] * factor, sum[2 * p + 1] * factor);
    }
}

static __host__ __device__ __forceinline__ int width_of(int dim) { return dim < STRETCH ? dim : STRETCH; }
/* Spreads rows over banks. */
static __host__ __device__ __forceinline__ int pitch_of(int dim) { return width_of(dim) + 2; }

/* First key that query i may attend to. */
static __device__ __forceinline__ int first_key(const Attention &a, int batch, int i)
{
    return a.doc_start ? a.doc_start[(int64_t)batch * a.queries + min(i, a.queries - 1)] : 0;
}

__global__ void __launch_bounds__(32 * WARPS) attention_fwd(Attention a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    int dim = a.dim, pitch = pitch_of(dim), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Place at = place_of(a.queries, dim);
    Stretch own = stretch_at(at.own, dim);
    int batch = at.batch, head = at.head, kv = head / (a.heads / a.kv_heads), first = at.first;
    float *queries = (float *)shared;
    bf16 *keys = (bf16 *)(queries + TILE * width_of(dim)), *values = keys + TILE * pitch;
    const bf16 *q = a.q + batch * a.q_batch + head * dim;
    const bf16 *k = a.k + batch * a.kv_batch + kv * dim, *v = a.v + batch * a.kv_batch + kv * dim;

    float sum[ROWS][2 * PAIRS] = {}, most[ROWS], total[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) most[i] = -1e30f, total[i] = 0;

    int begin = first_key(a, batch, first) / TILE * TILE, end = min(a.past + first + TILE, a.keys);
    for (int tile = begin; tile < end; tile += TILE) {
        float p[ROWS] = {};
        for (int turn = 1; turn <= at.stretches; turn++) {
            Stretch s = stretch_in_turn(at, turn, dim);
            __syncthreads();
            if (at.stretches > 1 || tile == begin)
                load_rows(queries, q + s.begin, a.q_stride, first, a.queries, s.cols);
            load_tile(keys, pitch, k + s.begin, a.kv_stride, tile, a.keys, s.cols);
            if (turn == at.stretches)
                load_tile(values, pitch, v + s.begin, a.kv_stride, tile, a.keys, s.cols);
            __syncthreads();
            dots(p, keys + lane * pitch, queries + warp * ROWS * s.cols, s.cols);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            int query = first + warp * ROWS + i, key = tile + lane;
            bool seen = key <= a.past + query && key >= first_key(a, batch, query);
            float s = seen ? p[i] * a.scale : -INFINITY, top = fmaxf(most[i], warp_max(s));
            float shrink = __expf(most[i] - top);
            p[i] = __expf(s - top);
            total[i] = total[i] * shrink + warp_sum(p[i]);
            most[i] = top;
#pragma unroll
            for (int j = 0; j < 2 * PAIRS; j++) sum[i][j] *= shrink;
        }
        accumulate(sum, p, values, pitch, own.cols);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int query = first + warp * ROWS + i;
        if (query >= a.queries) return;
        put_row(a.o + batch * a.o_batch + query * a.o_stride + head * dim + own.begin, sum[i],
                1.0f / total[i], own.cols);
        if (a.lse && lane == 0 && at.own == 0)
            a.lse[((int64_t)batch * a.heads + head) * a.queries + query] = most[i] + logf(total[i]);
    }
}

/* delta = sum over the head's columns of o * do. One warp a (row, head). */
__global__ void attention_delta(Attention a, int64_t rows)
{
    int64_t at = blockIdx.x * (int64_t)WARPS + threadIdx.x / 32, row = at / a.heads;
    int head = (int)(at % a.heads), lane = threadIdx.x % 32;
    if (row >= rows) return;
    const bf16 *o = a.o + row * a.o_stride + head * a.dim, *d_o = a.d_o + row * a.o_stride + head * a.dim;
    float sum = 0;
    for (int c = lane; c < a.dim; c += 32) sum += __bfloat162float(o[c]) * __bfloat162float(d_o[c]);
    sum = warp_sum(sum);
    if (lane == 0) a.delta[(row / a.queries * a.heads + head) * a.queries + row % a.queries] = sum;
}

/* dq. */
__global__ void __launch_bounds__(32 * WARPS) attention_bwd_q(Attention a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    int dim = a.dim, pitch = pitch_of(dim), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Place at = place_of(a.queries, dim);
    Stretch own = stretch_at(at.own, dim);
    int batch = at.batch, head = at.head, kv = head / (a.heads / a.kv_heads), first = at.first;
    float *queries = (float *)shared, *douts = queries + TILE * width_of(dim);
    bf16 *keys = (bf16 *)(douts + TILE * width_of(dim)), *values = keys + TILE * pitch;
    const bf16 *q = a.q + batch * a.q_batch + head * dim, *d_o = a.d_o + batch * a.o_batch + head * dim;
    const bf16 *k = a.k + batch * a.kv_batch + kv * dim, *v = a.v + batch * a.kv_batch + kv * dim;

    float sum[ROWS][2 * PAIRS] = {}, lse[ROWS], delta[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int query = min(first + warp * ROWS + i, a.queries - 1);
        int64_t row = ((int64_t)batch * a.heads + head) * a.queries + query;
        lse[i] = a.lse[row], delta[i] = a.delta[row];
    }
    int begin = first_key(a, batch, first) / TILE * TILE, end = min(first + TILE, a.keys);
    for (int tile = begin; tile < end; tile += TILE) {
        float p[ROWS] = {}, dp[ROWS] = {};
        for (int turn = 1; turn <= at.stretches; turn++) {
            Stretch s = stretch_in_turn(at, turn, dim);
            __syncthreads();
            if (at.stretches > 1 || tile == begin) {
                load_rows(queries, q + s.begin, a.q_stride, first, a.queries, s.cols);
                load_rows(douts, d_o + s.begin, a.o_stride, first, a.queries, s.cols);
            }
            load_tile(keys, pitch, k + s.begin, a.kv_stride, tile, a.keys, s.cols);
            load_tile(values, pitch, v + s.begin, a.kv_stride, tile, a.keys, s.cols);
            __syncthreads();
            dots(p, keys + lane * pitch, queries + warp * ROWS * s.cols, s.cols);
            dots(dp, values + lane * pitch, douts + warp * ROWS * s.cols, s.cols);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            int query = first + warp * ROWS + i, key = tile + lane;
            bool seen = key <= query && key >= first_key(a, batch, query);
            p[i] = seen ? __expf(p[i] * a.scale - lse[i]) * (dp[i] - delta[i]) * a.scale : 0.0f;
        }
        accumulate(sum, p, keys, pitch, own.cols);
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int query = first + warp * ROWS + i;
        if (query >= a.queries) return;
        put_row(a.dq + batch * a.q_batch + query * a.q_stride + head * dim + own.begin, sum[i], 1.0f,
                own.cols);
    }
}

/* dk and dv, summed over the heads of the group; blockIdx.y is the kv head. */
__global__ void __launch_bounds__(32 * WARPS) attention_bwd_kv(Attention a)
{
    extern __shared__ __align__(16) unsigned char shared[];
    int dim = a.dim, pitch = pitch_of(dim), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    Place at = place_of(a.keys, dim);
    Stretch own = stretch_at(at.own, dim);
    int batch = at.batch, kv = at.head, group = a.heads / a.kv_heads, first = at.first;
    float *keys = (float *)shared, *values = keys + TILE * width_of(dim);
    bf16 *queries = (bf16 *)(values + TILE * width_of(dim)), *douts = queries + TILE * pitch;
    const bf16 *k = a.k + batch * a.kv_batch + kv * dim, *v = a.v + batch * a.kv_batch + kv * dim;

    float sum_k[ROWS][2 * PAIRS] = {}, sum_v[ROWS][2 * PAIRS] = {};
    for (int head = kv * group; head < (kv + 1) * group; head++) {
        const bf16 *q = a.q + batch * a.q_batch + head * dim, *d_o = a.d_o + batch * a.o_batch + head * dim;
        const float *lses = a.lse + ((int64_t)batch * a.heads + head) * a.queries;
        const float *deltas = a.delta + ((int64_t)batch * a.heads + head) * a.queries;
        for (int tile = first; tile < a.queries; tile += TILE) {
            float p[ROWS] = {}, ds[ROWS] = {};
            for (int turn = 1; turn <= at.stretches; turn++) {
                Stretch s = stretch_in_turn(at, turn, dim);
                __syncthreads();
                if (at.stretches > 1 || (head == kv * group && tile == first)) {
                    load_rows(keys, k + s.begin, a.kv_stride, first, a.keys, s.cols);
                    load_rows(values, v + s.begin, a.kv_stride, first, a.keys, s.cols);
                }
                load_tile(queries, pitch, q + s.begin, a.q_stride, tile, a.queries, s.cols);
                load_tile(douts, pitch, d_o + s.begin, a.o_stride, tile, a.queries, s.cols);
                __syncthreads();
                dots(p, queries + lane * pitch, keys + warp * ROWS * s.cols, s.cols);
                dots(ds, douts + lane * pitch, values + warp * ROWS * s.cols, s.cols);
            }
            int query = tile + lane, from = first_key(a, batch, query);
            float lse = query < a.queries ? lses[query] : 0, delta = query < a.queries ? deltas[query] : 0;
#pragma unroll
            for (int i = 0; i < ROWS; i++) {
                int key = first + warp * ROWS + i;
                bool seen = query < a.queries && key <= query && key >= from;
                p[i] = seen ? __expf(p[i] * a.scale - lse) : 0.0f;
                ds[i] = p[i] * (ds[i] - delta) * a.scale;
            }
            accumulate(sum_v, p, douts, pitch, own.cols);
            accumulate(sum_k, ds, queries, pitch, own.cols);
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        int key = first + warp * ROWS + i;
        if (key >= a.keys) return;
        int64_t to = batch * a.kv_batch + key * a.kv_stride + kv * dim + own.begin;
        put_row(a.dk + to, sum_k[i], 1.0f, own.cols);
        put_row(a.dv + to, sum_v[i], 1.0f, own.cols);
    }
}

/* ---- host side ----------------------------------------------------------------------------------------- */

static Attention training_view(Tensor qkv, const float *lse, AttentionShape s)
{
    Attention a = {};
    const bf16 *data = (const bf16 *)qkv.data;
    a.q = data, a.k = data + s.heads * s.head_dim, a.v = data + (s.heads + s.kv_heads) * s.head_dim;
    a.q_stride = a.kv_stride = qkv.stride;
    a.q_batch = a.kv_batch = s.seq * qkv.stride;
    a.queries = a.keys = s.seq;
    a.heads = s.heads, a.kv_heads = s.kv_heads, a.dim = s.head_dim;
    a.scale = 1.0f / sqrtf((float)s.head_dim);
    a.doc_start = s.doc_start;
    a.lse = (float *)lse;
    return a;
}

/* Rows in f32 and tiles in bf16, `rows` and `tiles` of them: at most 98,560 bytes for two of each. Every GPU
 * with BF16 has them. */
static size_t shared_bytes(int dim, int rows, int tiles)
{
    return TILE * ((size_t)rows * width_of(dim) * sizeof(float) +
                   (size_t)tiles * pitch_of(dim) * sizeof(bf16));
}

/* The batch shares x with the tiles: y and z end at 65,535. */
static void launch_attention(void (*kernel)(Attention), OpId op, cudaStream_t stream, const Attention &a, int rows,
                             int heads, int batch, size_t shared)
{
    dim3 grid((unsigned)batch * (unsigned)tiles_of(rows), (unsigned)heads, (unsigned)stretches_of(a.dim));
    CUDA_CHECK(op_name(op),
               cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared));
    kernel<<<grid, 32 * WARPS, shared, stream>>>(a);
    LAUNCH_CHECK(op);
}

size_t reference_attention_scratch(AttentionShape s)
{
    return (size_t)s.batch * s.seq * s.heads * sizeof(float);
}

void reference_attention(const OpContext *ctx, Tensor o, float *lse, Tensor qkv, AttentionShape s)
{
    Attention a = training_view(qkv, lse, s);
    a.o = (bf16 *)o.data, a.o_stride = o.stride, a.o_batch = s.seq * o.stride;
    launch_attention(attention_fwd, OP_ATTENTION, stream_of(ctx), a, s.seq, s.heads, s.batch,
                     shared_bytes(a.dim, 1, 2));
}

void reference_attention_bwd(const OpContext *ctx, Tensor dqkv, Tensor d_o, Tensor qkv, Tensor o,
                             const float *lse, AttentionShape s)
{
    Attention a = training_view(qkv, lse, s);
    a.o = (bf16 *)o.data, a.d_o = (const bf16 *)d_o.data, a.o_stride = o.stride, a.o_batch = s.seq * o.stride;
    a.dq = (bf16 *)dqkv.data;
    a.dk = a.dq + s.heads * s.head_dim, a.dv = a.dk + s.kv_heads * s.head_dim;
    a.delta = (float *)op_scratch(ctx);
    int64_t rows = (int64_t)s.batch * s.seq;
    attention_delta<<<(unsigned)((rows * s.heads + WARPS - 1) / WARPS), 32 * WARPS, 0, stream_of(ctx)>>>(
        a, rows);
    LAUNCH_CHECK(OP_ATTENTION_BWD);
    size_t shared = shared_bytes(a.dim, 2, 2);
    launch_attention(attention_bwd_q, OP_ATTENTION_BWD, stream_of(ctx), a, s.seq, s.heads, s.batch, shared);
    launch_attention(attention_bwd_kv, OP_ATTENTION_BWD, stream_of(ctx), a, s.seq, s.kv_heads, s.batch, shared);
}

void cuda_attention_cached(const OpContext *ctx, Tensor o, Tensor qkv, Tensor k_cache, Tensor v_cache,
                           int64_t past, AttentionShape s)
{
    OpRange range(ctx, OP_ATTENTION);
    Attention a = training_view(qkv, nullptr, s);
    size_t width = (size_t)s.kv_heads * s.head_dim * sizeof(bf16);
    const bf16 *from[2] = {a.k, a.v};
    Tensor caches[2] = {k_cache, v_cache};
    for (int i = 0; i < 2; i++)
        CUDA_CHECK("attention_cached",
                   cudaMemcpy2DAsync((bf16 *)caches[i].data + past * caches[i].stride,
                                     caches[i].stride * sizeof(bf16), from[i], qkv.stride * sizeof(bf16),
                                     width, qkv.rows, cudaMemcpyDeviceToDevice, stream_of(ctx)));
    a.k = (const bf16 *)k_cache.data, a.v = (const bf16 *)v_cache.data, a.kv_stride = k_cache.stride;
    a.queries = (int)qkv.rows, a.past = (int)past, a.keys = (int)(past + qkv.rows);
    a.doc_start = nullptr;
    a.o = (bf16 *)o.data, a.o_stride = o.stride;
    launch_attention(attention_fwd, OP_ATTENTION, stream_of(ctx), a, a.queries, s.heads, 1,
                     shared_bytes(a.dim, 1, 2));
}
