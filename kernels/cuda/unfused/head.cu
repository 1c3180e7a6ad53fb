/* The head's forward pass: anchored exponentials, loss, validation and sampling (docs/MATH.md, section 3). */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/vec.cuh"

enum {
    HEAD_THREADS = 512, V = 8,      /* Vp is a multiple of 128, so rows are whole vectors */
    STEP = HEAD_THREADS * V,        /* columns between two vectors of a thread */
};
#define LOG2E 1.44269504f
#define NEVER (-1e30f)              /* a logit whose exponential is zero */
#define VANISHED (-200.0f)          /* 2^x is zero from there on, and zero times it too */

/* x within [low, high]. A NaN stays one: fminf and fmaxf would make a number of it. */
static __device__ __forceinline__ float clamp_or_nan(float x, float low, float high)
{
    float y;
    asm("{ .reg .f32 t; min.NaN.f32 t, %1, %3; max.NaN.f32 %0, t, %2; }"
        : "=f"(y) : "f"(x), "f"(low), "f"(high));
    return y;
}

/* Vector u of a thread's batch, with the target and the padding out of the way. False beyond `end`. */
static __device__ __forceinline__ bool
others(float (&v)[V], const Raw<V> (&batch)[BATCH], int u, int c, int end, int vocab, int target)
{
    if (c >= end) return false;
    unpack(batch[u], v);
    if (c + V > vocab || (unsigned)(target - c) < V)
#pragma unroll
        for (int i = 0; i < V; i++)
            if (c + i >= vocab || c + i == target) v[i] = NEVER;
    return true;
}

static __device__ __forceinline__ void load_batch(Raw<V> (&batch)[BATCH], const bf16 *row, int c, int end)
{
#pragma unroll
    for (int u = 0; u < BATCH; u++)
        if (c + u * STEP < end) batch[u] = load_raw<V>(row + c + u * STEP);
}

/* e: raw products on entry, E on exit; d, q, anchor as HeadChunk says. One block a row. */
__global__ void __launch_bounds__(HEAD_THREADS, 3)
head_softmax(bf16 *e, int64_t stride, int padded, int vocab, RowNorm norm, const int32_t *targets, RowSums d,
             RowSums q, float *anchor)
{
    after_previous_kernel();
    int64_t row = blockIdx.x;
    bf16 *at = e + row * stride;
    int target = targets[row];
    float r = row_rstd(norm, row), a = r * __bfloat162float(at[target]);
    float r2 = r * LOG2E, a2 = a * LOG2E, sum_d = 0, sum_q = 0;
    __syncthreads();    /* everyone has the anchor before its place is overwritten */
    for (int c = threadIdx.x * V; c < padded; c += STEP * BATCH) {
        Raw<V> batch[BATCH];
        load_batch(batch, at, c, padded);
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            float v[V];
            if (!others(v, batch, u, c + u * STEP, padded, vocab, target)) break;
#pragma unroll
            for (int i = 0; i < V; i++) {
                float shifted = clamp_or_nan(r2 * v[i] - a2, VANISHED, HEAD_CLAMP * LOG2E);
                v[i] = exp2_approx(shifted);
                sum_d += v[i];
                sum_q += v[i] * shifted;
            }
            store(at + c + u * STEP, v);
        }
    }
    sum_d = block_sum(sum_d);
    sum_q = block_sum(sum_q) / LOG2E;
    put_sum(d, row, sum_d);
    put_sum(q, row, sum_q);
    if (threadIdx.x == 0) anchor[row] = a;
}

void cuda_head(const OpContext *ctx, const HeadChunk *h)
{
    OpRange range(ctx, OP_HEAD);
    gemm(ctx, OP_HEAD, GEMM_NT, h->e, h->xg, h->table);
    launch(ctx, OP_HEAD, head_softmax, (unsigned)h->e.rows, HEAD_THREADS, (bf16 *)h->e.data, h->e.stride,
           (int)h->e.cols, (int)h->vocab, h->norm, h->targets, h->d, h->q, h->anchor);
}

/* loss, alpha, beta, s and axg = alpha xg of each row. A kernel of its own for fused runs, too: it needs the sums
 * over all tiles of the vocabulary, and the two GEMMs behind it need what it leaves. One block a row, whose threads
 * load ROW_BATCH vectors while the sums are on their way. */
template <int W> __global__ void __launch_bounds__(ROW_THREADS) head_rows(HeadChunk h)
{
    after_previous_kernel();
    enum { ROW_BATCH = 2 };
    const int64_t row = blockIdx.x, cols = h.xg.cols;
    const int step = blockDim.x * W;
    const bf16 *from = (const bf16 *)h.xg.data + row * h.xg.stride;
    bf16 *to = (bf16 *)h.axg.data + row * h.axg.stride;
    Raw<W> raw[ROW_BATCH];
    auto read = [&](int64_t c) {
#pragma unroll
        for (int u = 0; u < ROW_BATCH; u++)
            if (c + u * step < cols) raw[u] = load_raw<W>(from + c + u * step);
    };
    read(threadIdx.x * W);
    const float r = row_rstd(h.norm, row), d = block_sum_parts(h.d, row), q = block_sum_parts(h.q, row);
    const float alpha = r * h.weights[row] / (1.0f + d);
    for (int64_t c = threadIdx.x * W; c < cols;) {
#pragma unroll
        for (int u = 0; u < ROW_BATCH; u++) {
            if (c + u * step >= cols) break;
            float v[W];
            unpack(raw[u], v);
#pragma unroll
            for (int i = 0; i < W; i++) v[i] *= alpha;
            store(to + c + u * step, v);
        }
        read(c += ROW_BATCH * step);
    }
    if (threadIdx.x) return;
    h.loss[row] = log1pf(d);
    h.alpha[row] = alpha;
    h.beta[row] = alpha * d;
    h.s[row] = r * alpha * q / (float)cols;
}

/* Adds sum w loss and the clamped rows to stats, in one fixed order: of all rows, so behind the kernel that has them. One
 * block in all. */
__global__ void head_stats(const float *loss, const float *weights, int64_t rows, StepStats *stats)
{
    after_previous_kernel();
    double sum = 0;
    int clamped = 0;
    for (int64_t i = threadIdx.x; i < rows; i += blockDim.x) {
        if (weights[i] == 0.0f) continue;
        sum += (double)weights[i] * loss[i];
        clamped += loss[i] > HEAD_CLAMP - 1e-3f;    /* a clamped term is exp(60) up to rounding */
    }
    sum = block_sum(sum);
    clamped = block_sum(clamped);
    if (threadIdx.x) return;
    stats->loss += sum;
    stats->clamped_rows += clamped;
}

void cuda_head_loss(const OpContext *ctx, const HeadChunk *h, StepStats *stats)
{
    OpRange range(ctx, OP_HEAD_LOSS);
    const int width = vectorised(h->xg) && vectorised(h->axg) ? 8 : 1;
    auto kernel = width == 8 ? head_rows<8> : head_rows<1>;
    launch(ctx, OP_HEAD_LOSS, kernel, (unsigned)h->xg.rows, row_threads(h->xg.cols, width), *h);
    launch(ctx, OP_HEAD_LOSS, head_stats, 1, 1024, h->loss, h->weights, h->xg.rows, stats);
}

/* loss = log(1 + sum over the others of exp(logit - the target's)) by a running maximum and sum: without the
 * target in the sum it keeps its digits when it is tiny. One block a row. */
__global__ void __launch_bounds__(HEAD_THREADS, 3)
head_logsumexp(const bf16 *e, int64_t stride, int vocab, RowNorm norm, const int32_t *targets, float *loss)
{
    after_previous_kernel();
    __shared__ float maxima[HEAD_THREADS / 32];
    int64_t row = blockIdx.x;
    const bf16 *at = e + row * stride;
    int target = targets[row];
    float r2 = row_rstd(norm, row) * LOG2E, most = NEVER, sum = 0;   /* logits in units of ln 2 */
    for (int c = threadIdx.x * V; c < vocab; c += STEP * BATCH) {
        Raw<V> batch[BATCH];
        load_batch(batch, at, c, vocab);
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            float v[V], top = most;
            if (!others(v, batch, u, c + u * STEP, vocab, vocab, target)) break;
#pragma unroll
            for (int i = 0; i < V; i++) top = fmaxf(top, v[i] *= r2);
            sum *= exp2_approx(most - top);
            most = top;
#pragma unroll
            for (int i = 0; i < V; i++) sum += v[i] < 0.5f * NEVER * r2 ? 0.0f : exp2_approx(v[i] - most);
        }
    }
    float warp_most = warp_max(most);
    if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = warp_most;
    __syncthreads();
    float block_most = warp_max(threadIdx.x % 32 < HEAD_THREADS / 32 ? maxima[threadIdx.x % 32] : NEVER);
    sum = block_sum(sum * exp2_approx(most - block_most));
    if (threadIdx.x) return;
    loss[row] = running_loss(RunningSum{block_most / LOG2E, sum}, r2 / LOG2E * __bfloat162float(at[target]));
}

void cuda_head_eval(const OpContext *ctx, const HeadChunk *h)
{
    OpRange range(ctx, OP_HEAD_EVAL);
    gemm(ctx, OP_HEAD_EVAL, GEMM_NT, h->e, h->xg, h->table);
    launch(ctx, OP_HEAD_EVAL, head_logsumexp, (unsigned)h->e.rows, HEAD_THREADS, (const bf16 *)h->e.data,
           h->e.stride, (int)h->vocab, h->norm, h->targets, h->loss);
}

/* logits *= r. blockIdx.x is the row. */
__global__ void logits_scale(float *logits, int64_t stride, int64_t cols, RowNorm norm)
{
    after_previous_kernel();
    int64_t row = blockIdx.x;
    float r = row_rstd(norm, row);
    for (int64_t c = blockIdx.y * (int64_t)blockDim.x + threadIdx.x; c < cols;
         c += gridDim.y * (int64_t)blockDim.x)
        logits[row * stride + c] *= r;
}

void cuda_logits(const OpContext *ctx, Tensor logits, const HeadChunk *h)
{
    OpRange range(ctx, OP_LOGITS);
    Tensor table = h->table;
    table.rows = logits.cols;
    gemm(ctx, OP_LOGITS, GEMM_NT, logits, h->xg, table);
    launch(ctx, OP_LOGITS, logits_scale, dim3((unsigned)logits.rows, 64), 256, (float *)logits.data,
           logits.stride, logits.cols, h->norm);
}
