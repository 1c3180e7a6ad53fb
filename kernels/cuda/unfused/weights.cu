/* The weight pass: gradient norm, clipping, AdamW and the fold of gamma (docs/MATH.md, section 1). */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/vec.cuh"
#include "kernels/rounding.h"

enum { WEIGHT_THREADS = 256, NORM_ROWS = 32, NORM_UNROLL = 4 };

/* ---- fold ------------------------------------------------------------------------------------------- */

/* A thread's place: a row, and the first of V columns. `per_row` blocks make up a row. */
static __device__ __forceinline__ int64_t block_row(unsigned per_row) { return blockIdx.x / per_row; }
static __device__ __forceinline__ int64_t block_col(unsigned per_row, int width)
{
    return (int64_t)(blockIdx.x % per_row * blockDim.x + threadIdx.x) * width;
}

static unsigned blocks_per_row(int64_t cols, int width)
{
    return (unsigned)((cols + WEIGHT_THREADS * width - 1) / (WEIGHT_THREADS * width));
}

/* working = master * gamma, rows permuted; zero beyond the master. */
template <int V> __global__ void
weight_fold(bf16 *working, const float *master, const float *gamma, int64_t master_rows, int64_t cols,
            RowLayout layout, unsigned per_row)
{
    after_previous_kernel();
    int64_t row = block_row(per_row), c = block_col(per_row, V);
    if (c >= cols) return;
    float w[V] = {};
    if (row < master_rows) {
        load(master + master_row(layout, row) * cols + c, w);
        if (gamma) {
            float g[V];
            load(gamma + c, g);
#pragma unroll
            for (int i = 0; i < V; i++) w[i] *= g[i];
        }
    }
    store(working + row * cols + c, w);
}

void cuda_fold(const OpContext *ctx, const Weight *w)
{
    OpRange range(ctx, OP_FOLD);
    int V = w->master.cols % 8 == 0 ? 8 : 1;
    unsigned per_row = blocks_per_row(w->master.cols, V);
    auto kernel = V == 8 ? weight_fold<8> : weight_fold<1>;
    launch(ctx, OP_FOLD, kernel, (unsigned)w->working.rows * per_row, WEIGHT_THREADS, (bf16 *)w->working.data,
           (const float *)w->master.data, w->gamma, w->master.rows, w->master.cols, w->rows, per_row);
}

/* ---- norm ------------------------------------------------------------------------------------------- */

/* Each block takes NORM_ROWS rows and a stretch of columns: its sum of (G gamma)^2 goes to squares[block],
 * its column sums of W G to dgamma[row block, column] where a gamma is folded. */
template <int V> __global__ void __launch_bounds__(WEIGHT_THREADS)
    weight_norm(double *squares, float *dgamma, const float *grad, const float *master, const float *gamma,
                int64_t rows, int64_t cols, RowLayout layout, unsigned per_row)
{
    after_previous_kernel();
    int64_t block = block_row(per_row), c = block_col(per_row, V);
    int64_t first = block * NORM_ROWS, end = min(first + NORM_ROWS, rows);
    float sum = 0, column[V] = {}, scale[V];
#pragma unroll
    for (int i = 0; i < V; i++) scale[i] = 1.0f;
    if (c < cols) {
        if (gamma) load(gamma + c, scale);
#pragma unroll NORM_UNROLL
        for (int64_t row = first; row < end; row++) {
            float g[V];
            load(grad + row * cols + c, g);
            if (gamma) {
                float w[V];
                load(master + master_row(layout, row) * cols + c, w);
#pragma unroll
                for (int i = 0; i < V; i++) column[i] += w[i] * g[i];
            }
#pragma unroll
            for (int i = 0; i < V; i++) {
                g[i] *= scale[i];
                sum += g[i] * g[i];
            }
        }
        if (gamma) store(dgamma + block * cols + c, column);
    }
    double total = block_sum((double)sum);
    if (threadIdx.x == 0) squares[blockIdx.x] = total;
}

/* out = the sum of x. One block. */
__global__ void sum_doubles(double *out, const double *x, int64_t count)
{
    after_previous_kernel();
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += x[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *out = sum;
}

/* out (+)= the sum over rows of partial, in their order within each of 8 warps. A warp's lanes are columns. */
__global__ void column_sums(float *out, const float *partial, int64_t rows, int64_t cols, bool accumulate)
{
    after_previous_kernel();
    __shared__ float part[8][32];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int64_t c = blockIdx.x * (int64_t)32 + lane;
    float sum = 0;
    if (c < cols)
        for (int64_t row = warp; row < rows; row += 8) sum += partial[row * cols + c];
    part[warp][lane] = sum;
    __syncthreads();
    if (warp || c >= cols) return;
    for (int w = 1; w < 8; w++) sum += part[w][lane];
    out[c] = accumulate ? out[c] + sum : sum;
}

void cuda_column_sums(const OpContext *ctx, OpId op, float *out, const float *partial, int64_t rows,
                      int64_t cols, bool accumulate)
{
    launch(ctx, op, column_sums, (unsigned)((cols + 31) / 32), 256, out, partial, rows, cols, accumulate);
}

static int64_t norm_blocks(int64_t rows) { return (rows + NORM_ROWS - 1) / NORM_ROWS; }
static int norm_width(int64_t cols) { return cols % 4 == 0 ? 4 : 1; }

/* Column sums first where there are any, so that doubles stay aligned. */
static int64_t column_floats(int64_t blocks, int64_t cols, bool folded)
{
    return folded ? (blocks * cols + 1) / 2 * 2 : 0;
}

size_t cuda_norm_scratch(int64_t rows, int64_t cols, bool folded)
{
    int64_t blocks = norm_blocks(rows);
    return column_floats(blocks, cols, folded) * sizeof(float) +
           blocks * blocks_per_row(cols, norm_width(cols)) * sizeof(double);
}

/* Weight without gamma: the sum of squares alone. */
static void gradient_norm(const OpContext *ctx, OpId op, const Weight *w, double *sumsq)
{
    int64_t rows = w->master.rows, cols = w->master.cols, blocks = norm_blocks(rows);
    int V = norm_width(cols);
    unsigned per_row = blocks_per_row(cols, V);
    float *dgamma = (float *)op_scratch(ctx);
    double *squares = (double *)(dgamma + column_floats(blocks, cols, w->gamma));
    auto kernel = V == 4 ? weight_norm<4> : weight_norm<1>;
    launch(ctx, op, kernel, (unsigned)blocks * per_row, WEIGHT_THREADS, squares, dgamma,
           (const float *)w->grad.data, (const float *)w->master.data, w->gamma, rows, cols, w->rows, per_row);
    launch(ctx, op, sum_doubles, 1, 1024, sumsq, squares, blocks * per_row);
    if (w->gamma) cuda_column_sums(ctx, op, w->dgamma, dgamma, blocks, cols, false);
}

void cuda_grad_norm(const OpContext *ctx, const Weight *w, double *sumsq)
{
    OpRange range(ctx, OP_GRAD_NORM);
    gradient_norm(ctx, OP_GRAD_NORM, w, sumsq);
}

void cuda_sum_squares(const OpContext *ctx, OpId op, Tensor grad, double *sumsq)
{
    Weight w = {};
    w.master = w.grad = grad;
    gradient_norm(ctx, op, &w, sumsq);
}

/* One block. */
__global__ void weight_clip(const double *sumsq, int count, const Hyper *hyper, StepStats *stats)
{
    after_previous_kernel();
    double sum = 0;
    for (int i = threadIdx.x; i < count; i += blockDim.x) sum += sumsq[i];
    sum = block_sum(sum);
    if (threadIdx.x) return;
    double norm = sqrt(sum), clip = hyper->clip;
    stats->grad_norm = norm;
    stats->clip_factor = clip > 0 && norm > clip ? clip / norm : 1;
    stats->skipped = !isfinite(norm) || !isfinite(stats->loss);
}

void cuda_clip(const OpContext *ctx, const double *sumsq, int count, const Hyper *hyper, StepStats *stats)
{
    OpRange range(ctx, OP_CLIP);
    launch(ctx, OP_CLIP, weight_clip, 1, 256, sumsq, count, hyper, stats);
}

/* ---- update ------------------------------------------------------------------------------------------- */

/* Moments as they are kept: f32 as they are, bf16 rounded by chance. bits: rounding_bits of each element. */
template <int V> static __device__ __forceinline__ void
store_moment(float *to, const float (&x)[V], const uint32_t (&)[V], int)
{
    store(to, x);
}

template <int V> static __device__ __forceinline__ void
store_moment(bf16 *to, const float (&x)[V], const uint32_t (&bits)[V], int shift)
{
    float rounded[V];
#pragma unroll
    for (int i = 0; i < V; i++) rounded[i] = bf16_to_float(bf16_round_stochastic(x[i], bits[i] >> shift));
    store(to, rounded);
}

/* One AdamW update with its fold (Loshchilov and Hutter, AdamW, arXiv 1711.05101). M: type of the moments. */
template <int V, class M>
__global__ void __launch_bounds__(WEIGHT_THREADS)
weight_adamw(Weight w, const Hyper *hyper, const StepStats *stats, unsigned per_row)
{
    after_previous_kernel();
    int64_t row = block_row(per_row), c = block_col(per_row, V), cols = w.master.cols;
    if (stats->skipped || c >= cols) return;
    int64_t index = master_row(w.rows, row) * cols + c;
    float *master = (float *)w.master.data + index;
    M *m_at = (M *)w.m.data + index, *v_at = (M *)w.v.data + index;
    float p[V], m[V], v[V], g[V], gamma[V];
    load(master, p);
    load(m_at, m);
    load(v_at, v);
    load((const float *)w.grad.data + row * cols + c, g);

    Hyper h = *hyper;
    float clip = (float)stats->clip_factor, decay = w.decay ? h.lr * h.weight_decay : 0.0f;
    float inverse_bias1 = 1.0f / h.bias1, inverse_bias2 = 1.0f / h.bias2;
    if (w.gamma_before) {
        load(w.gamma_before + c, gamma);
#pragma unroll
        for (int i = 0; i < V; i++) g[i] *= gamma[i];
    }
    if (w.keep_before) store(w.keep_before + c, p);
#pragma unroll
    for (int i = 0; i < V; i++) {
        float grad = g[i] * clip;
        m[i] = h.beta1 * m[i] + (1.0f - h.beta1) * grad;
        v[i] = h.beta2 * v[i] + (1.0f - h.beta2) * grad * grad;
        float step = m[i] * inverse_bias1 / (sqrtf(v[i] * inverse_bias2) + h.eps);
        p[i] = p[i] - h.lr * step - decay * p[i];
    }
    store(master, p);
    uint32_t bits[V];
    if (sizeof(M) == sizeof(bf16)) {
        uint32_t key = rounding_key(h.seed, h.step);
#pragma unroll
        for (int i = 0; i < V; i++) bits[i] = rounding_bits(key, index + i);
    }
    store_moment(m_at, m, bits, 0);
    store_moment(v_at, v, bits, 16);
    if (!w.working.data) return;
    if (w.gamma) {
        load(w.gamma + c, gamma);
#pragma unroll
        for (int i = 0; i < V; i++) p[i] *= gamma[i];
    }
    store((bf16 *)w.working.data + row * cols + c, p);
}

void cuda_adamw(const OpContext *ctx, const Weight *w, const Hyper *hyper, const StepStats *stats)
{
    OpRange range(ctx, OP_ADAMW);
    bool wide = w->master.cols % 8 == 0, half = w->m.dtype == DTYPE_BF16;
    unsigned per_row = blocks_per_row(w->master.cols, wide ? 8 : 1);
    auto kernel = wide ? (half ? weight_adamw<8, bf16> : weight_adamw<8, float>)
                       : (half ? weight_adamw<1, bf16> : weight_adamw<1, float>);
    launch(ctx, OP_ADAMW, kernel, (unsigned)w->master.rows * per_row, WEIGHT_THREADS, *w, hyper, stats,
           per_row);
}

/* ---- diagnosis ----------------------------------------------------------------------------------------- */

template <class T> __global__ void
nonfinite_count(const T *x, int64_t stride, int64_t rows, int64_t cols, unsigned long long *count)
{
    unsigned long long bad = 0;
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x)
        for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) bad += !isfinite((float)x[row * stride + c]);
    bad = block_sum(bad);
    if (threadIdx.x == 0 && bad) atomicAdd(count, bad);
}

int64_t cuda_count_nonfinite(const OpContext *ctx, Tensor t)
{
    unsigned long long *device = (unsigned long long *)op_scratch(ctx), host = 0;
    unsigned blocks = (unsigned)(t.rows < 4096 ? t.rows : 4096);
    CUDA_CHECK("count_nonfinite", cudaMemsetAsync(device, 0, sizeof host, stream_of(ctx)));
    if (t.dtype == DTYPE_BF16)
        nonfinite_count<<<blocks, 256, 0, stream_of(ctx)>>>((const bf16 *)t.data, t.stride, t.rows, t.cols,
                                                            device);
    else
        nonfinite_count<<<blocks, 256, 0, stream_of(ctx)>>>((const float *)t.data, t.stride, t.rows, t.cols,
                                                            device);
    CUDA_CHECK("count_nonfinite",
               cudaMemcpyAsync(&host, device, sizeof host, cudaMemcpyDeviceToHost, stream_of(ctx)));
    CUDA_CHECK("count_nonfinite", cudaStreamSynchronize(stream_of(ctx)));
    return (int64_t)host;
}
