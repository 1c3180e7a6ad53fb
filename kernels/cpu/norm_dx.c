/* Gradients that flow back into the residual stream: through a norm and the projection behind it, and
 * through the attention's output projection. */
#include "kernels/cpu/cpu.h"

void cpu_norm_dx(const OpContext *ctx, OpId op, Tensor out, Tensor dz, Tensor w, Tensor residual_grad,
                 Tensor x, RowNorm norm, RowSums zdz)
{
    (void)ctx, (void)op;
    int64_t rows = out.rows, d = out.cols, block = block_rows(rows, MAX_BLOCK_ROWS);
#pragma omp parallel for schedule(static) if (worth_sharing(rows))
    for (int64_t first = 0; first < rows; first += block) {
        int64_t n = min_i64(block, rows - first);
        for (int64_t i = first; i < first + n; i++) {
            float r = row_rstd(norm, i), s = r * r * row_sum(zdz, i) / (float)d;
            float *to = row_at(out, i);
            const float *from = row_at(residual_grad, i), *restrict x_row = row_at(x, i);
#pragma omp simd
            for (int64_t k = 0; k < d; k++) to[k] = from[k] - s * x_row[k];
        }
        gemm_nn(tensor_rows(out, first, n), tensor_rows(dz, first, n), w, 1.0f);
    }
}

void cpu_out_dx(const OpContext *ctx, Tensor d_o, Tensor dx1, Tensor w)
{
    (void)ctx;
    int64_t rows = d_o.rows, block = block_rows(rows, MAX_BLOCK_ROWS);
#pragma omp parallel for schedule(static) if (worth_sharing(rows))
    for (int64_t first = 0; first < rows; first += block) {
        int64_t n = min_i64(block, rows - first);
        gemm_nn(tensor_rows(d_o, first, n), tensor_rows(dx1, first, n), w, 0.0f);
    }
}
