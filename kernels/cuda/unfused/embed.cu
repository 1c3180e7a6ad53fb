/* Token lookup with the first norm's sum of squares, and its gradient. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/unfused/runs.cuh"

enum { EMBED_THREADS = 128 };

/* Where ids repeat, as in text, rows of the table shall still be in L2 when they come again: x, which at real
 * sizes is larger than L2, leaves it first. Worth 2 %. */
template <int V> static __device__ __forceinline__ void store_once(bf16 *to, const Raw<V> &raw)
{
    if constexpr (V == 8) __stcs(reinterpret_cast<uint4 *>(to), raw.words);
    else to[0] = raw.value[0];
}

/* One block a row. */
template <int V> __global__ void
__launch_bounds__(EMBED_THREADS) embed_fwd(bf16 *x, int64_t stride, RowSums sumsq, const int32_t *tokens,
                                           const bf16 *table, int64_t table_stride, int64_t cols)
{
    after_previous_kernel();
    constexpr int STEP = EMBED_THREADS * V;
    const int64_t row = blockIdx.x;
    const bf16 *from = table + tokens[row] * table_stride;
    bf16 *to = x + row * stride;
    float sum = 0;
    for (int64_t c = threadIdx.x * V; c < cols; c += STEP * BATCH) {
        Raw<V> raw[BATCH];
#pragma unroll
        for (int u = 0; u < BATCH; u++)
            if (c + u * STEP < cols) raw[u] = load_raw<V>(from + c + u * STEP);
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            if (c + u * STEP >= cols) break;
            float v[V];
            unpack(raw[u], v);
#pragma unroll
            for (int i = 0; i < V; i++) sum += v[i] * v[i];
            store_once(to + c + u * STEP, raw[u]);
        }
    }
    put_sum(sumsq, row, block_sum(sum));
}

void cuda_embed(const OpContext *ctx, Tensor x, RowSums sumsq, const int32_t *tokens, Tensor table)
{
    OpRange range(ctx, OP_EMBED);
    auto kernel = vectorised(x) && vectorised(table) ? embed_fwd<8> : embed_fwd<1>;
    launch(ctx, OP_EMBED, kernel, (unsigned)x.rows, EMBED_THREADS, (bf16 *)x.data, x.stride, sumsq, tokens,
           (const bf16 *)table.data, table.stride, x.cols);
}

/* grad[token] += its rows of dx. */
template <int V> __global__ void __launch_bounds__(RUN_THREADS, 1)
embed_bwd(float *grad, int64_t stride, const int32_t *tokens, const int32_t *order, const bf16 *dx,
          int64_t dx_stride, int64_t rows, int64_t cols)
{
    after_previous_kernel();
    sum_runs<V>(grad, stride, tokens, order, rows, dx, dx_stride, cols, [](int32_t) { return 1.0f; });
}

void cuda_embed_dw(const OpContext *ctx, Tensor grad, const int32_t *tokens, const int32_t *order, Tensor dx,
                   bool accumulate)
{
    OpRange range(ctx, OP_EMBED_DW);
    if (!accumulate)
        CUDA_CHECK("embed_dw", cudaMemset2DAsync(grad.data, grad.stride * sizeof(float), 0,
                                                 grad.cols * sizeof(float), grad.rows, stream_of(ctx)));
    auto kernel = vectorised(dx) && vectorised(grad) ? embed_bwd<8> : embed_bwd<1>;
    launch(ctx, OP_EMBED_DW, kernel, run_blocks(dx.rows), RUN_THREADS, (float *)grad.data, grad.stride, tokens,
           order, (const bf16 *)dx.data, dx.stride, dx.rows, dx.cols);
}
