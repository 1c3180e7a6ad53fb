/* out = residual + a W^T with the next norm's sum of squares. The GEMM adds the residual before it rounds. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/vec.cuh"

/* sumsq = sum out^2;  xg = out * gamma where xg is wanted. One block a row. */
template <int V>
__global__ void residual_sumsq(const bf16 *out, int64_t stride, int64_t cols, RowSums sumsq, bf16 *xg,
                               int64_t xg_stride, const float *gamma)
{
    int64_t row = blockIdx.x;
    float sum = 0;
    for (int64_t c = threadIdx.x * V; c < cols; c += blockDim.x * V) {
        float v[V];
        load(out + row * stride + c, v);
#pragma unroll
        for (int i = 0; i < V; i++) sum += v[i] * v[i];
        if (xg) {
            float g[V];
            load(gamma + c, g);
#pragma unroll
            for (int i = 0; i < V; i++) v[i] *= g[i];
            store(xg + row * xg_stride + c, v);
        }
    }
    put_sum(sumsq, row, block_sum(sum));
}

void cuda_residual(const OpContext *ctx, OpId op, Tensor out, RowSums sumsq, Tensor xg, Tensor a, Tensor w,
                   Tensor residual, const float *gamma)
{
    gemm(ctx, op, GEMM_NT, out, a, w, residual);
    bool wide = vectorised(out) && vectorised(xg) && ((uintptr_t)gamma & 15) == 0;
    auto kernel = wide ? residual_sumsq<8> : residual_sumsq<1>;
    kernel<<<(unsigned)out.rows, row_threads(out.cols, wide ? 8 : 1), 0, stream_of(ctx)>>>(
        (const bf16 *)out.data, out.stride, out.cols, sumsq, (bf16 *)xg.data, xg.stride, gamma);
    LAUNCH_CHECK(op);
}
