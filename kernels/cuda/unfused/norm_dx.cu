/* Gradient through a folded norm: out = residual_grad + dz W' - s x. The GEMM adds the residual gradient. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/vec.cuh"

/* out -= s x with s = r^2 zdz / d. One warp a row. */
template <int V>
__global__ void __launch_bounds__(ROW_THREADS)
norm_bwd(bf16 *out, int64_t stride, const bf16 *x, int64_t x_stride, int64_t rows, int64_t cols, RowNorm norm,
         RowSums zdz)
{
    int64_t row = warp_row();
    if (row >= rows) return;
    bf16 *to = out + row * stride;
    float r = row_rstd(norm, row), s = r * r * sum_parts(zdz, row) / (float)cols;
    for (int64_t c = lane_id() * V; c < cols; c += 32 * V * BATCH) {
        Vectors<V, BATCH> in(to, c, cols), from(x + row * x_stride, c, cols);
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            int64_t at = c + u * 32 * V;
            if (at >= cols) break;
            float o[V], v[V];
            unpack(in.raw[u], o);
            unpack(from.raw[u], v);
#pragma unroll
            for (int i = 0; i < V; i++) o[i] -= s * v[i];
            store(to + at, o);
        }
    }
}

void cuda_norm_dx(const OpContext *ctx, OpId op, Tensor out, Tensor dz, Tensor w, Tensor residual_grad, Tensor x,
                  RowNorm norm, RowSums zdz)
{
    OpRange range(ctx, op);
    gemm(ctx, op, GEMM_NN, out, dz, w, residual_grad);
    auto kernel = vectorised(out) && vectorised(x) ? norm_bwd<8> : norm_bwd<1>;
    kernel<<<row_blocks(out.rows), ROW_THREADS, 0, stream_of(ctx)>>>(
        (bf16 *)out.data, out.stride, (const bf16 *)x.data, x.stride, out.rows, out.cols, norm, zdz);
    LAUNCH_CHECK(op);
}
