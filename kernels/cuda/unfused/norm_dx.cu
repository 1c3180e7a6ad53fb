/* Gradient through a folded norm: out = residual_grad + dz W' - s x. The GEMM adds the residual gradient. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/vec.cuh"

/* out -= s x with s = r^2 zdz / d. One block a row. */
template <int V>
__global__ void norm_bwd(bf16 *out, int64_t stride, const bf16 *x, int64_t x_stride, int64_t cols, RowNorm norm,
                         RowSums zdz)
{
    int64_t row = blockIdx.x;
    float r = row_rstd(norm, row), s = r * r * sum_parts(zdz, row) / (float)cols;
    for (int64_t c = threadIdx.x * V; c < cols; c += blockDim.x * V) {
        float o[V], v[V];
        load(out + row * stride + c, o);
        load(x + row * x_stride + c, v);
#pragma unroll
        for (int i = 0; i < V; i++) o[i] -= s * v[i];
        store(out + row * stride + c, o);
    }
}

void cuda_norm_dx(const OpContext *ctx, OpId op, Tensor out, Tensor dz, Tensor w, Tensor residual_grad, Tensor x,
                  RowNorm norm, RowSums zdz)
{
    gemm(ctx, op, GEMM_NN, out, dz, w, residual_grad);
    bool wide = vectorised(out) && vectorised(x);
    auto kernel = wide ? norm_bwd<8> : norm_bwd<1>;
    kernel<<<(unsigned)out.rows, row_threads(out.cols, wide ? 8 : 1), 0, stream_of(ctx)>>>(
        (bf16 *)out.data, out.stride, (const bf16 *)x.data, x.stride, out.cols, norm, zdz);
    LAUNCH_CHECK(op);
}
