/* Gradient through a folded norm: out = residual_grad + dz W' - s x. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/vec.cuh"

/* out = product (+ residual) - s x with s = r^2 zdz / d. SUM: the residual gradient is still to be added. One
 * warp a row. */
template <int V, bool SUM> __global__ void __launch_bounds__(ROW_THREADS)
    norm_bwd(bf16 *out, int64_t stride, const bf16 *product, const bf16 *residual, const bf16 *x,
             int64_t x_stride, int64_t rows, int64_t cols, RowNorm norm, RowSums zdz)
{
    int64_t row = warp_row();
    if (row >= rows) return;
    float s = norm_pull(row_rstd(norm, row), sum_parts(zdz, row), (float)cols);
    for (int64_t c = lane_id() * V; c < cols; c += 32 * V * BATCH) {
        Vectors<V, BATCH> in(product + row * stride, c, cols), from(x + row * x_stride, c, cols);
        Vectors<V, BATCH> beside(residual + row * stride, c, SUM ? cols : 0);
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            int64_t at = c + u * 32 * V;
            if (at >= cols) break;
            float o[V], v[V], residual_grad[V] = {};
            unpack(in.raw[u], o);
            unpack(from.raw[u], v);
            if (SUM) unpack(beside.raw[u], residual_grad);
#pragma unroll
            for (int i = 0; i < V; i++) o[i] = norm_grad(o[i], residual_grad[i], s, v[i]);
            store(out + row * stride + at, o);
        }
    }
}

void cuda_norm_dx(const OpContext *ctx, OpId op, Tensor out, Tensor dz, Tensor w, Tensor residual_grad,
                  Tensor x, RowNorm norm, RowSums zdz)
{
    OpRange range(ctx, op);
    bool added, wide = vectorised(out) && vectorised(x);
    Tensor product = gemm_add(ctx, op, GEMM_NN, out, dz, w, residual_grad, &added);
    auto kernel = wide ? (added ? norm_bwd<8, false> : norm_bwd<8, true>)
                       : (added ? norm_bwd<1, false> : norm_bwd<1, true>);
    kernel<<<row_blocks(out.rows), ROW_THREADS, 0, stream_of(ctx)>>>(
        (bf16 *)out.data, out.stride, (const bf16 *)product.data, (const bf16 *)residual_grad.data,
        (const bf16 *)x.data, x.stride, out.rows, out.cols, norm, zdz);
    LAUNCH_CHECK(op);
}
