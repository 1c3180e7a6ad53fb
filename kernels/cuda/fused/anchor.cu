/* The anchor must be known before the first column of the vocabulary, so no epilogue can leave it: C d reads, where the
 * GEMM reads V d. */
#include "kernels/cuda/fused/anchor.h"
#include "kernels/cuda/vec.cuh"

/* One warp a row. */
__global__ void target_logits_rows(float *out, Tensor xg, Tensor table, RowNorm norm, const int32_t *targets)
{
    after_previous_kernel();
    int64_t row = blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (row >= xg.rows) return;
    const bf16 *x = (const bf16 *)xg.data + row * xg.stride;
    const bf16 *w = (const bf16 *)table.data + targets[row] * table.stride;
    float sum = 0, r = row_rstd(norm, row);
    for (int64_t c = lane * 8; c < xg.cols; c += 256) {
        float a[8], b[8];
        load(x + c, a);
        load(w + c, b);
#pragma unroll
        for (int i = 0; i < 8; i++) sum += a[i] * b[i];
    }
    sum = warp_sum(sum);
    if (lane == 0) out[row] = sum * r;
}

void target_logits(const OpContext *ctx, OpId op, float *out, const HeadChunk *h)
{
    launch(ctx, op, target_logits_rows, (unsigned)((h->xg.rows + 7) / 8), 256, out, h->xg, h->table, h->norm,
           h->targets);
}
