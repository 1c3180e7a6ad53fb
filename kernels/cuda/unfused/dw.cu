/* Products that need nothing beside the GEMM: weight gradients and the gradient of attention's output. */
#include "kernels/cuda/backend.h"

void cuda_dw(const OpContext *ctx, OpId op, Tensor grad, Tensor dy, Tensor a, bool accumulate, double *sumsq)
{
    OpRange range(ctx, op);
    gemm(ctx, op, GEMM_TN, grad, dy, a, accumulate);
    if (sumsq) cuda_sum_squares(ctx, op, grad, sumsq);
}

void cuda_out_dx(const OpContext *ctx, Tensor d_o, Tensor dx1, Tensor w)
{
    OpRange range(ctx, OP_OUT_DX);
    gemm(ctx, OP_OUT_DX, GEMM_NN, d_o, dx1, w);
}
