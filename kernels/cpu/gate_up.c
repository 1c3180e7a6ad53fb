/* SwiGLU: the projection to gates and ups with its activation, and the way back from the down projection. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"

enum { BLOCK = GATE_UP_BLOCK };

/* z: [2f] in blocks of gates and ups.  y: [f] */
static void swiglu_row(float *restrict y, const float *restrict z, int64_t f)
{
    for (int64_t b = 0; b < f; b += BLOCK)
#pragma omp simd
        for (int64_t i = 0; i < BLOCK; i++) {
            float gate = z[2 * b + i];
            y[b + i] = gate * sigmoid(gate).yes * z[2 * b + BLOCK + i];
        }
}

/* dz = r * dSwiGLU(z, dy), y = swiglu(z) where y is not NULL. Returns sum z * dz / r. */
static float swiglu_row_bwd(float *restrict dz, float *restrict y, const float *restrict dy,
                            const float *restrict z, int64_t f, float r)
{
    float part[BLOCK] = {0};    /* one sum a lane: the additions stay in one order */
    for (int64_t b = 0; b < f; b += BLOCK)
#pragma omp simd
        for (int64_t i = 0; i < BLOCK; i++) {
            float gate = z[2 * b + i], up = z[2 * b + BLOCK + i];
            Sigmoid s = sigmoid(gate);
            float silu = gate * s.yes;
            float d_gate = dy[b + i] * up * s.yes * (1.0f + gate * s.no), d_up = dy[b + i] * silu;
            part[i] += gate * d_gate + up * d_up;
            dz[2 * b + i] = r * d_gate;
            dz[2 * b + BLOCK + i] = r * d_up;
            if (y) y[b + i] = silu * up;
        }
    float sum = 0.0f;
    for (int i = 0; i < BLOCK; i++) sum += part[i];
    return sum;
}

void cpu_gate_up(const OpContext *ctx, Tensor z, Tensor y, Tensor x1, Tensor w, RowNorm norm)
{
    (void)ctx;
    int64_t rows = x1.rows, block = block_rows(rows, MAX_BLOCK_ROWS);
#pragma omp parallel for schedule(static) if (worth_sharing(rows))
    for (int64_t first = 0; first < rows; first += block) {
        int64_t n = min_i64(block, rows - first);
        gemm_nt(tensor_rows(z, first, n), tensor_rows(x1, first, n), w, 0.0f);
        for (int64_t i = first; i < first + n; i++) {
            float *row = row_at(z, i), r = row_rstd(norm, i);
            for (int64_t k = 0; k < z.cols; k++) row[k] *= r;
            swiglu_row(row_at(y, i), row, y.cols);
        }
    }
}

/* Floats of one block's dy. */
static int64_t dy_floats(int64_t rows, int64_t ffn)
{
    return padded_floats(block_rows(rows, MAX_BLOCK_ROWS) * ffn);
}

size_t down_dx_scratch(int64_t rows, int64_t ffn)
{
    return (size_t)(omp_get_max_threads() * dy_floats(rows, ffn)) * sizeof(float);
}

void cpu_down_dx(const OpContext *ctx, Tensor dz, Tensor y, RowSums zdz, Tensor dx, Tensor w, Tensor z,
                 RowNorm norm)
{
    int64_t rows = dx.rows, f = w.cols, block = block_rows(rows, MAX_BLOCK_ROWS);
#pragma omp parallel for schedule(static) if (worth_sharing(rows))
    for (int64_t first = 0; first < rows; first += block) {
        int64_t n = min_i64(block, rows - first);
        float *scratch = (float *)ctx->workspace + omp_get_thread_num() * dy_floats(rows, f);
        Tensor dy = tensor(scratch, n, f, DTYPE_F32);
        gemm_nn(dy, tensor_rows(dx, first, n), w, 0.0f);
        for (int64_t i = first; i < first + n; i++)
            zdz.data[i] = swiglu_row_bwd(row_at(dz, i), y.data ? row_at(y, i) : NULL, row_at(dy, i - first),
                                         row_at(z, i), f, row_rstd(norm, i));
    }
}
