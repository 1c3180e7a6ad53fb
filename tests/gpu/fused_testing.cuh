/* What the fused ops are tested and timed with besides: the product alone, and products in double precision, a row at a
 * time. */
#pragma once
#include "kernels/cuda/fused/autotune.h"
#include "kernels/cuda/vec.cuh"
#include "tests/gpu/gpu_data.cuh"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

__global__ void sums_of_squares(RowSums out, const bf16 *x, int64_t stride, int64_t cols)
{
    for (int part = threadIdx.x; part < out.parts; part += blockDim.x) {
        float sum = 0;
        for (int64_t c = part; c < cols; c += out.parts) {
            float v = __bfloat162float(x[blockIdx.x * stride + c]);
            sum += v * v;
        }
        out.data[blockIdx.x * (int64_t)out.parts + part] = sum;
    }
}

static RowSums make_sums(int64_t rows, int parts)
{
    return RowSums{(float *)make(rows, parts, 0, DTYPE_F32).data, parts};
}

static RowNorm norm_of(Tensor x)
{
    RowNorm norm = {make_sums(x.rows, fused_parts(x.cols)), 1e-5f, x.cols};
    sums_of_squares<<<(unsigned)x.rows, 32, 0, stream()>>>(norm.sumsq, (const bf16 *)x.data, x.stride,
                                                           x.cols);
    return norm;
}

/* ---- the GEMM alone ------------------------------------------------------------------------------------ */

/* d = op(a) op(b) by the algorithm that cublasLt takes where it is not told one. Its descriptors live as long
 * as the program. */
static std::function<void()> default_product(GemmForm form, Tensor d, Tensor a, Tensor b)
{
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t left, right, out;    /* column-major: operands swap places */
    cublasOperation_t first = form == GEMM_NT ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = form == GEMM_TN ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first);
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second);
    cublasLtMatrixLayoutCreate(&left, CUDA_R_16BF, b.cols, b.rows, b.stride);
    cublasLtMatrixLayoutCreate(&right, CUDA_R_16BF, a.cols, a.rows, a.stride);
    cublasLtMatrixLayoutCreate(&out, d.dtype == DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF, d.cols, d.rows,
                               d.stride);
    return [=] {
        float one = 1, zero = 0;
        cublasStatus_t status =
            cublasLtMatmul(backend_of(&ctx)->lt, desc, &one, b.data, left, a.data, right, &zero, d.data, out,
                           d.data, out, nullptr, ctx.workspace, GEMM_WORKSPACE, stream());
        if (status != CUBLAS_STATUS_SUCCESS)
            cuda_fail(__FILE__, __LINE__, "bench", "cublasLtMatmul", cublasLtGetStatusString(status));
    };
}

/* ---- references in double precision, one row at a time ------------------------------------------------- */

typedef std::vector<double> Row;

__global__ void product_row(double *out, GemmForm form, Tensor a, Tensor b, int64_t row, int64_t n, int64_t k)
{
    int64_t col = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (col >= n) return;
    const bf16 *x = (const bf16 *)a.data, *y = (const bf16 *)b.data;
    double sum = 0;
    for (int64_t i = 0; i < k; i++) {
        double left = __bfloat162float(form == GEMM_TN ? x[i * a.stride + row] : x[row * a.stride + i]);
        sum += left * __bfloat162float(form == GEMM_NT ? y[col * b.stride + i] : y[i * b.stride + col]);
    }
    out[col] = sum;
}

static Row product(GemmForm form, Tensor a, Tensor b, int64_t row)
{
    int64_t k = form == GEMM_TN ? a.rows : a.cols, n = form == GEMM_NT ? b.rows : b.cols;
    static double *to = nullptr;
    if (!to) CUDA_CHECK("bench", cudaMalloc(&to, 1 << 21));
    product_row<<<(unsigned)((n + 127) / 128), 128, 0, stream()>>>(to, form, a, b, row, n, k);
    Row out((size_t)n);
    CUDA_CHECK("bench",
               cudaMemcpyAsync(out.data(), to, (size_t)n * sizeof(double), cudaMemcpyDeviceToHost, stream()));
    wait_device();
    return out;
}

static Row row_of(Tensor t, int64_t row)
{
    std::vector<char> raw((size_t)t.cols * dtype_bytes(t.dtype));
    wait_device();
    CUDA_CHECK("bench", cudaMemcpy(raw.data(), (char *)t.data + row * t.stride * dtype_bytes(t.dtype),
                                   raw.size(), cudaMemcpyDeviceToHost));
    Row out((size_t)t.cols);
    for (int64_t i = 0; i < t.cols; i++)
        out[i] = t.dtype == DTYPE_BF16 ? (double)__bfloat162float(((bf16 *)raw.data())[i])
                                       : (double)((float *)raw.data())[i];
    return out;
}

template <class T> static double value(const T *vector, int64_t i)
{
    T v;
    wait_device();
    CUDA_CHECK("bench", cudaMemcpy(&v, vector + i, sizeof v, cudaMemcpyDeviceToHost));
    return (double)v;
}

static double parts_of(RowSums sums, int64_t row)
{
    double total = 0;
    for (double v : row_of(tensor(sums.data, row + 1, sums.parts, DTYPE_F32), row)) total += v;
    return total;
}

static double rstd(RowNorm norm, int64_t row)
{
    return 1 / sqrt(parts_of(norm.sumsq, row) / (double)norm.cols + norm.eps);
}
