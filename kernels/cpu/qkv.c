/* Projection to queries, keys and values with rotary positions, and the way back. */
#include "kernels/cpu/cpu.h"

/* Rotates the pairs of one row of t by sign * angle and scales the whole row. */
static void rotate_row(Tensor t, int64_t index, const Rope *rope, float sign, float scale)
{
    int64_t half = rope->head_dim / 2;
    const float *restrict cos_sin = rope->cos_sin + (int64_t)rope->pos[index] * rope->head_dim;
    float *restrict row = row_at(t, index);
    for (float *head = row; head < row + rope->rotated; head += rope->head_dim) {
#pragma omp simd
        for (int64_t i = 0; i < half; i++) {
            float a = head[2 * i] * scale, b = head[2 * i + 1] * scale;
            float c = cos_sin[2 * i], s = cos_sin[2 * i + 1] * sign;
            head[2 * i] = a * c - b * s;
            head[2 * i + 1] = a * s + b * c;
        }
    }
    for (int64_t i = rope->rotated; i < t.cols; i++) row[i] *= scale;
}

void cpu_qkv(const OpContext *ctx, Tensor qkv, Tensor x, Tensor w, RowNorm norm, Rope rope)
{
    (void)ctx;
    int64_t rows = x.rows, block = block_rows(rows, MAX_BLOCK_ROWS);
#pragma omp parallel for schedule(static) if (worth_sharing(rows))
    for (int64_t first = 0; first < rows; first += block) {
        int64_t n = min_i64(block, rows - first);
        gemm_nt(tensor_rows(qkv, first, n), tensor_rows(x, first, n), w, 0.0f);
        for (int64_t i = first; i < first + n; i++)
            rotate_row(qkv, i, &rope, 1.0f, row_rstd(norm, i));
    }
}

void cpu_qkv_grad(const OpContext *ctx, Tensor dqkv, RowSums zdz, Tensor qkv, RowNorm norm, Rope rope)
{
    (void)ctx;
#pragma omp parallel for schedule(static) if (worth_sharing(dqkv.rows))
    for (int64_t i = 0; i < dqkv.rows; i++) {
        zdz.data[i] = dot(row_at(qkv, i), row_at(dqkv, i), qkv.cols);
        rotate_row(dqkv, i, &rope, -1.0f, row_rstd(norm, i));
    }
}
