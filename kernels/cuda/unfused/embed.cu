/* Token lookup with the first norm's sum of squares, and its gradient. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/unfused/runs.cuh"

/* One warp a row. */
template <int V> __global__ void
__launch_bounds__(ROW_THREADS) embed_fwd(bf16 *x, int64_t stride, RowSums sumsq, const int32_t *tokens,
                                         const bf16 *table, int64_t table_stride, int64_t rows, int64_t cols)
{
    int64_t row = warp_row();
    if (row >= rows) return;
    const bf16 *from = table + tokens[row] * table_stride;
    bf16 *to = x + row * stride;
    float sum = 0;
    walk_row<V>(
        from, cols, [] {},
        [&](int64_t c, float(&v)[V]) {
            store(to + c, v);
#pragma unroll
            for (int i = 0; i < V; i++) sum += v[i] * v[i];
        });
    put_warp_sum(sumsq, row, sum);
}

void cuda_embed(const OpContext *ctx, Tensor x, RowSums sumsq, const int32_t *tokens, Tensor table)
{
    OpRange range(ctx, OP_EMBED);
    auto kernel = vectorised(x) && vectorised(table) ? embed_fwd<8> : embed_fwd<1>;
    kernel<<<row_blocks(x.rows), ROW_THREADS, 0, stream_of(ctx)>>>(
        (bf16 *)x.data, x.stride, sumsq, tokens, (const bf16 *)table.data, table.stride, x.rows, x.cols);
    LAUNCH_CHECK(OP_EMBED);
}

/* grad[token] += its rows of dx: added to the gradient one after the other. */
template <int V> __global__ void __launch_bounds__(ROW_THREADS)
embed_bwd(float *grad, int64_t stride, const int32_t *tokens, const int32_t *order, const bf16 *dx,
          int64_t dx_stride, int64_t rows, int64_t cols)
{
    sum_runs<V>(grad, stride, tokens, order, rows, nullptr, dx, dx_stride, cols,
                [](const float *row, auto &sum) { load(row, sum); },
                [](float *row, const auto &sum) { store(row, sum); });
}

void cuda_embed_dw(const OpContext *ctx, Tensor grad, const int32_t *tokens, const int32_t *order, Tensor dx,
                   bool accumulate)
{
    OpRange range(ctx, OP_EMBED_DW);
    if (!accumulate)
        CUDA_CHECK("embed_dw", cudaMemset2DAsync(grad.data, grad.stride * sizeof(float), 0,
                                                 grad.cols * sizeof(float), grad.rows, stream_of(ctx)));
    auto kernel = vectorised(dx) && vectorised(grad) ? embed_bwd<8> : embed_bwd<1>;
    kernel<<<row_blocks(dx.rows), ROW_THREADS, 0, stream_of(ctx)>>>(
        (float *)grad.data, grad.stride, tokens, order, (const bf16 *)dx.data, dx.stride, dx.rows, dx.cols);
    LAUNCH_CHECK(OP_EMBED_DW);
}
