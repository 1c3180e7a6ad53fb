/* The ops that have a fused form: each runs fused or as GEMM and separate kernel (CudaOptions.fusion). */
#pragma once
#include "kernels/cuda/backend.h"

/* The table's entries for these ops. */
void dispatch_qkv(const OpContext *ctx, Tensor qkv, Tensor x, Tensor w, RowNorm norm, Rope rope);
void dispatch_residual(const OpContext *ctx, OpId op, Tensor out, RowSums sumsq, Tensor xg, Tensor a,
                       Tensor w, Tensor residual, const float *gamma);
void dispatch_gate_up(const OpContext *ctx, Tensor z, Tensor y, Tensor x1, Tensor w, RowNorm norm);
void dispatch_head(const OpContext *ctx, const HeadChunk *h);
void dispatch_head_eval(const OpContext *ctx, const HeadChunk *h);
void dispatch_head_dx(const OpContext *ctx, Tensor dx, float *dgamma, const HeadChunk *h, const float *gamma,
                      bool accumulate);
void dispatch_down_dx(const OpContext *ctx, Tensor dz, Tensor y, RowSums zdz, Tensor dx, Tensor w, Tensor z,
                      RowNorm norm);
void dispatch_norm_dx(const OpContext *ctx, OpId op, Tensor out, Tensor dz, Tensor w, Tensor residual_grad,
                      Tensor x, RowNorm norm, RowSums zdz);
void dispatch_out_dx(const OpContext *ctx, Tensor d_o, Tensor dx1, Tensor w);
void dispatch_dw(const OpContext *ctx, OpId op, Tensor grad, Tensor dy, Tensor a, bool accumulate,
                 double *sumsq);
void dispatch_head_dw(const OpContext *ctx, Tensor grad, const HeadChunk *h, bool accumulate);

/* Parts per row that op leaves: one where the configuration rules the fused form out, else as many as the
 * fused form may leave, whichever runs (the other clears the rest). Known without a device. */
int dispatch_parts(const OpContext *ctx, OpId op, int64_t cols);

/* "fused 128x192, cluster 2, 1.06 times as fast as cublasLt + separate kernel", or the other way round, or that the
 * fused form does not take the sizes; NULL where op has no fused form, or is not to use it. */
const char *dispatch_choice(const OpContext *ctx, OpId op);
