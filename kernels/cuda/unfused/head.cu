/* The head's forward pass: anchored exponentials, loss, validation and sampling (docs/MATH.md, section 3). */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/vec.cuh"

enum { HEAD_THREADS = 512, V = 8 };     /* Vp is a multiple of 128, so rows are whole vectors */

/* e: raw products on entry, E on exit; d, q, anchor as HeadChunk says. One block a row. */
__global__ void __launch_bounds__(HEAD_THREADS)
head_softmax(bf16 *e, int64_t stride, int64_t padded, int64_t vocab, RowNorm norm, const int32_t *targets, RowSums d,
             RowSums q, float *anchor)
{
    int64_t row = blockIdx.x;
    bf16 *at = e + row * stride;
    int target = targets[row];
    float r = row_rstd(norm, row), a = r * __bfloat162float(at[target]);
    float sum_d = 0, sum_q = 0;
    __syncthreads();    /* everyone has the anchor before its place is overwritten */
    for (int c = threadIdx.x * V; c < padded; c += HEAD_THREADS * V) {
        float v[V];
        load(at + c, v);
#pragma unroll
        for (int i = 0; i < V; i++) {
            float shifted = fminf(r * v[i] - a, HEAD_CLAMP);
            bool counts = c + i < vocab && c + i != target;
            v[i] = counts ? __expf(shifted) : 0.0f;
            sum_d += v[i];
            sum_q += counts ? v[i] * shifted : 0.0f;
        }
        store(at + c, v);
    }
    sum_d = block_sum(sum_d);
    sum_q = block_sum(sum_q);
    put_sum(d, row, sum_d);
    put_sum(q, row, sum_q);
    if (threadIdx.x == 0) anchor[row] = a;
}

void cuda_head(const OpContext *ctx, const HeadChunk *h)
{
    gemm(ctx, OP_HEAD, GEMM_NT, h->e, h->xg, h->table, Tensor{});
    head_softmax<<<(unsigned)h->e.rows, HEAD_THREADS, 0, stream_of(ctx)>>>(
        (bf16 *)h->e.data, h->e.stride, h->e.cols, h->vocab, h->norm, h->targets, h->d, h->q, h->anchor);
    LAUNCH_CHECK(OP_HEAD);
}

/* loss, alpha, beta, s and axg = alpha xg of each row. One block a row. */
template <int W> __global__ void head_rows(HeadChunk h)
{
    int64_t row = blockIdx.x, cols = h.xg.cols;
    float r = row_rstd(h.norm, row), d = sum_parts(h.d, row), q = sum_parts(h.q, row);
    float alpha = r * h.weights[row] / (1.0f + d);
    if (threadIdx.x == 0) {
        h.loss[row] = log1pf(d);
        h.alpha[row] = alpha;
        h.beta[row] = alpha * d;
        h.s[row] = r * alpha * q / (float)cols;
    }
    const bf16 *xg = (const bf16 *)h.xg.data + row * h.xg.stride;
    bf16 *axg = (bf16 *)h.axg.data + row * h.axg.stride;
    for (int64_t c = threadIdx.x * W; c < cols; c += blockDim.x * W) {
        float v[W];
        load(xg + c, v);
#pragma unroll
        for (int i = 0; i < W; i++) v[i] *= alpha;
        store(axg + c, v);
    }
}

/* Adds sum w loss and the clamped rows to stats, in one fixed order. One block in all. */
__global__ void head_stats(const float *loss, const float *weights, int64_t rows, StepStats *stats)
{
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
    bool wide = vectorised(h->xg) && vectorised(h->axg);
    auto kernel = wide ? head_rows<8> : head_rows<1>;
    kernel<<<(unsigned)h->xg.rows, row_threads(h->xg.cols, wide ? 8 : 1), 0, stream_of(ctx)>>>(*h);
    head_stats<<<1, 1024, 0, stream_of(ctx)>>>(h->loss, h->weights, h->xg.rows, stats);
    LAUNCH_CHECK(OP_HEAD_LOSS);
}

/* loss = log(1 + sum over the others of exp(logit - the target's)) by a running maximum and sum: without the
 * target in the sum it keeps its digits when it is tiny. One block a row. */
__global__ void __launch_bounds__(HEAD_THREADS)
head_logsumexp(const bf16 *e, int64_t stride, int64_t vocab, RowNorm norm, const int32_t *targets, float *loss)
{
    __shared__ float maxima[HEAD_THREADS / 32];
    int64_t row = blockIdx.x;
    const bf16 *at = e + row * stride;
    int target = targets[row];
    float r = row_rstd(norm, row), most = -INFINITY, sum = 0;
    for (int c = threadIdx.x * V; c < vocab; c += HEAD_THREADS * V) {
        float v[V], top = most;
        load(at + c, v);
#pragma unroll
        for (int i = 0; i < V; i++) {
            v[i] = c + i < vocab && c + i != target ? r * v[i] : -INFINITY;
            top = fmaxf(top, v[i]);
        }
        if (top == -INFINITY) continue;
        sum *= __expf(most - top);
        most = top;
#pragma unroll
        for (int i = 0; i < V; i++) sum += __expf(v[i] - most);
    }
    float warp_most = warp_max(most);
    if (threadIdx.x % 32 == 0) maxima[threadIdx.x / 32] = warp_most;
    __syncthreads();
    float block_most = warp_max(threadIdx.x % 32 < HEAD_THREADS / 32 ? maxima[threadIdx.x % 32] : -INFINITY);
    sum = block_sum(most == -INFINITY ? 0.0f : sum * __expf(most - block_most));
    if (threadIdx.x) return;
    float delta = block_most + logf(sum) - r * __bfloat162float(at[target]);
    loss[row] = delta > 0.0f ? delta + log1pf(expf(-delta)) : log1pf(expf(delta));
}

void cuda_head_eval(const OpContext *ctx, const HeadChunk *h)
{
    gemm(ctx, OP_HEAD_EVAL, GEMM_NT, h->e, h->xg, h->table, Tensor{});
    head_logsumexp<<<(unsigned)h->e.rows, HEAD_THREADS, 0, stream_of(ctx)>>>(
        (const bf16 *)h->e.data, h->e.stride, h->vocab, h->norm, h->targets, h->loss);
    LAUNCH_CHECK(OP_HEAD_EVAL);
}

/* logits *= r. blockIdx.x is the row. */
__global__ void logits_scale(float *logits, int64_t stride, int64_t cols, RowNorm norm)
{
    int64_t row = blockIdx.x;
    float r = row_rstd(norm, row);
    for (int64_t c = blockIdx.y * (int64_t)blockDim.x + threadIdx.x; c < cols; c += gridDim.y * (int64_t)blockDim.x)
        logits[row * stride + c] *= r;
}

void cuda_logits(const OpContext *ctx, Tensor logits, const HeadChunk *h)
{
    Tensor table = h->table;
    table.rows = logits.cols;
    gemm(ctx, OP_LOGITS, GEMM_NT, logits, h->xg, table, Tensor{});
    logits_scale<<<dim3((unsigned)logits.rows, 64), 256, 0, stream_of(ctx)>>>((float *)logits.data, logits.stride,
                                                                             logits.cols, h->norm);
    LAUNCH_CHECK(OP_LOGITS);
}
