/* Weight gradients: contraction over the tokens. */
#include "kernels/cpu/cpu.h"

/* One block a thread: the GEMM does its own blocking. */
size_t dw_scratch(void)
{
    return (size_t)omp_get_max_threads() * sizeof(double);
}

void cpu_dw(const OpContext *ctx, OpId op, Tensor grad, Tensor dy, Tensor a, bool accumulate, double *sumsq)
{
    (void)op;
    int64_t rows = grad.rows, block = block_rows(rows, rows);
    double *partial = ctx->workspace;
#pragma omp parallel for schedule(static) if (worth_sharing(rows))
    for (int64_t first = 0; first < rows; first += block) {
        int64_t n = min_i64(block, rows - first);
        gemm_tn(tensor_rows(grad, first, n), tensor_cols(dy, first, n), a, accumulate ? 1.0f : 0.0f);
        if (!sumsq) continue;
        double sum = 0.0;
        for (int64_t i = first; i < first + n; i++) sum += sum_squares(row_at(grad, i), grad.cols);
        partial[first / block] = sum;
    }
    if (!sumsq) return;
    *sumsq = 0.0;
    for (int64_t b = 0; b * block < rows; b++) *sumsq += partial[b];
}
