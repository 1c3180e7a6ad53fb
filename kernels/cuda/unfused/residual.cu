/* out = residual + a W^T with the next norm's sum of squares. The GEMM adds the residual before it rounds. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/vec.cuh"

/* sumsq = sum out^2;  xg = out * gamma where xg is wanted. One warp a row. */
template <int V>
__global__ void __launch_bounds__(ROW_THREADS)
residual_sumsq(const bf16 *out, int64_t stride, int64_t rows, int64_t cols, RowSums sumsq, bf16 *xg, int64_t xg_stride,
               const float *gamma)
{
    int64_t row = warp_row();
    if (row >= rows) return;
    float sum = 0;
    for (int64_t c = lane_id() * V; c < cols; c += 32 * V * BATCH) {
        Vectors<V, BATCH> in(out + row * stride, c, cols);
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            int64_t at = c + u * 32 * V;
            if (at >= cols) break;
            float v[V];
            unpack(in.raw[u], v);
#pragma unroll
            for (int i = 0; i < V; i++) sum += v[i] * v[i];
            if (xg) {
                float g[V];
                load(gamma + at, g);
#pragma unroll
                for (int i = 0; i < V; i++) v[i] *= g[i];
                store(xg + row * xg_stride + at, v);
            }
        }
    }
    put_warp_sum(sumsq, row, sum);
}

void cuda_residual(const OpContext *ctx, OpId op, Tensor out, RowSums sumsq, Tensor xg, Tensor a, Tensor w,
                   Tensor residual, const float *gamma)
{
    OpRange range(ctx, op);
    gemm(ctx, op, GEMM_NT, out, a, w, residual);
    bool wide = vectorised(out) && vectorised(xg) && ((uintptr_t)gamma & 15) == 0;
    auto kernel = wide ? residual_sumsq<8> : residual_sumsq<1>;
    kernel<<<row_blocks(out.rows), ROW_THREADS, 0, stream_of(ctx)>>>(
        (const bf16 *)out.data, out.stride, out.rows, out.cols, sumsq, (bf16 *)xg.data, xg.stride, gamma);
    LAUNCH_CHECK(op);
}
