/* Projections back into the residual stream. */
#include "kernels/cpu/cpu.h"
#include <string.h>

void cpu_residual(const OpContext *ctx, OpId op, Tensor out, RowSums sumsq, Tensor xg, Tensor a, Tensor w,
                  Tensor residual, const float *gamma)
{
    (void)ctx, (void)op;
    int64_t rows = out.rows, d = out.cols, block = block_rows(rows, MAX_BLOCK_ROWS);
#pragma omp parallel for schedule(static) if (worth_sharing(rows))
    for (int64_t first = 0; first < rows; first += block) {
        int64_t n = min_i64(block, rows - first);
        if (out.data != residual.data)
            for (int64_t i = first; i < first + n; i++)
                memcpy(row_at(out, i), row_at(residual, i), (size_t)d * sizeof(float));
        gemm_nt(tensor_rows(out, first, n), tensor_rows(a, first, n), w, 1.0f);
        for (int64_t i = first; i < first + n; i++) {
            const float *row = row_at(out, i);
            sumsq.data[i] = sum_squares(row, d);
            if (xg.data) {
                float *restrict to = row_at(xg, i);
                for (int64_t k = 0; k < d; k++) to[k] = row[k] * gamma[k];
            }
        }
    }
}
