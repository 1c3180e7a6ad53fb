/* out = residual + a W^T with the next norm's sum of squares. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/vec.cuh"

/* sumsq = sum out^2;  xg = out * gamma where xg is wanted. SUM: out = product + residual first, otherwise out
 * is complete already. One warp a row. */
template <int V, bool SUM> __global__ void __launch_bounds__(ROW_THREADS)
    residual_sumsq(bf16 *out, int64_t stride, int64_t rows, int64_t cols, const bf16 *product,
                   const bf16 *residual, RowSums sumsq, bf16 *xg, int64_t xg_stride, const float *gamma)
{
    after_previous_kernel();
    constexpr int N = SUM ? BATCH : 2 * BATCH;      /* with one operand, two batches go out together */
    int64_t row = warp_row();
    if (row >= rows) return;
    float sum = 0;
    const bf16 *in = (SUM ? product : out) + row * stride, *beside = (SUM ? residual : out) + row * stride;
    for (int64_t c = lane_id() * V; c < cols; c += 32 * V * N) {
        Vectors<V, N> x(in, c, cols), y(beside, c, SUM ? cols : 0);
#pragma unroll
        for (int u = 0; u < N; u++) {
            int64_t at = c + u * 32 * V;
            if (at >= cols) break;
            float v[V];
            unpack(x.raw[u], v);
            if (SUM) {
                float w[V];
                unpack(y.raw[u], w);
#pragma unroll
                for (int i = 0; i < V; i++) v[i] += w[i];
                round_to_bf16(v);
                store(out + row * stride + at, v);
            }
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
    bool added, wide = vectorised(out) && vectorised(xg) && ((uintptr_t)gamma & 15) == 0;
    Tensor product = gemm_add(ctx, op, out, a, w, residual, &added);
    auto kernel = wide ? (added ? residual_sumsq<8, false> : residual_sumsq<8, true>)
                       : (added ? residual_sumsq<1, false> : residual_sumsq<1, true>);
    launch(ctx, op, kernel, row_blocks(out.rows), ROW_THREADS, (bf16 *)out.data, out.stride, out.rows, out.cols,
           (const bf16 *)product.data, (const bf16 *)residual.data, sumsq, (bf16 *)xg.data, xg.stride, gamma);
}
