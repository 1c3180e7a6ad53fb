/* Row-major products of tensors by OpenBLAS. */
#include "kernels/cpu/cpu.h"
#include <cblas.h>

static void gemm(CBLAS_TRANSPOSE trans_a, CBLAS_TRANSPOSE trans_b, Tensor c, Tensor a, Tensor b, int64_t k,
                 float beta)
{
    cblas_sgemm(CblasRowMajor, trans_a, trans_b, (int)c.rows, (int)c.cols, (int)k, 1.0f, a.data,
                (int)a.stride, b.data, (int)b.stride, beta, c.data, (int)c.stride);
}

void gemm_nt(Tensor c, Tensor a, Tensor b, float beta)
{
    gemm(CblasNoTrans, CblasTrans, c, a, b, a.cols, beta);
}

void gemm_nn(Tensor c, Tensor a, Tensor b, float beta)
{
    gemm(CblasNoTrans, CblasNoTrans, c, a, b, a.cols, beta);
}

void gemm_tn(Tensor c, Tensor a, Tensor b, float beta)
{
    gemm(CblasTrans, CblasNoTrans, c, a, b, a.rows, beta);
}
