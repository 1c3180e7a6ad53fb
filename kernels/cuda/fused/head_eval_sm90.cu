/* head_eval: the loss alone, from a running maximum and sum over the columns. Nothing as wide as the
 * vocabulary is stored: the parts of d and q carry each tile's sum and maximum. */
#include "kernels/cuda/fused/anchor.h"
#include "kernels/cuda/fused/launch_sm90.cuh"

struct HeadEval : Epilogue {
    static constexpr int COLUMNS = 64, BUFFER = 0;
    static constexpr bool LONG_K = false;
    struct Params {
        RowNorm norm;
        const int32_t *targets;
        RowSums most, sum;
        int vocab;
    };

    struct Row {
        float r;
        int target;
    };

    float r[2];
    int target[2];
    RowRunningSum running;

    static __device__ Row ahead(const Params &p, int row)
    {
        const int target = p.targets[row];      /* loaded beside the sum's parts */
        return Row{rstd_of_row(p.norm, row), target};
    }

    __device__ void begin(const Row (&row)[2])
    {
#pragma unroll
        for (int h = 0; h < 2; h++) r[h] = row[h].r, target[h] = row[h].target;
        running.clear();
    }

    /* The target stays out of the sum, so that a tiny loss keeps its digits. */
    __device__ void chunk(const Params &p, float (&acc)[32], uint32_t, Rows, int col)
    {
#pragma unroll
        for (int slice = 0; slice < 4; slice++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float logit[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {   /* pairs h and h + 2 are this row's */
                    int pair = h + i / 2 * 2, at = col + pair_column(slice, pair) + i % 2;
                    bool counts = at < p.vocab && at != target[h];
                    logit[i] = counts ? r[h] * acc[8 * slice + 2 * pair + i % 2] : -INFINITY;
                }
                running.add(h, logit);
            }
    }

    __device__ void end(const Params &p, Rows rows, ColumnTile tile)
    {
        running.put(p.most, p.sum, rows, tile);
    }
};

/* loss from the parts of each row; on entry it holds the target's logit. One warp a row. A kernel of its own because a
 * row's parts come from all tiles of the vocabulary, and no op behind it could take them up. */
__global__ void head_eval_rows(float *loss, RowSums most, RowSums sum, int64_t rows)
{
    after_previous_kernel();
    int64_t row = blockIdx.x * (int64_t)(blockDim.x / 32) + threadIdx.x / 32;
    if (row >= rows) return;
    RunningSum total = {-INFINITY, 0};
    for (int i = threadIdx.x % 32; i < sum.parts; i += 32)
        total =
            running_merge(total, RunningSum{most.data[row * sum.parts + i], sum.data[row * sum.parts + i]});
    for (int mask = 1; mask < 32; mask *= 2)
        total = running_merge(total, RunningSum{__shfl_xor_sync(~0u, total.most, mask),
                                                __shfl_xor_sync(~0u, total.sum, mask)});
    if (threadIdx.x % 32 == 0) loss[row] = running_loss(total, loss[row]);
}

void fused_head_eval(const FusedCall &call, const HeadChunk *h)
{
    target_logits(call.ctx, call.op, h->loss, h);
    HeadEval::Params p = {};
    p.norm = h->norm;
    p.targets = h->targets;
    p.most = h->q, p.sum = h->d;
    p.vocab = (int)h->vocab;
    launch_program<HeadEval, false, false>(call, h->xg, h->table, h->xg.rows, h->table.rows, h->xg.cols, p);
    launch(call.ctx, call.op, head_eval_rows, (unsigned)((h->xg.rows + 7) / 8), 256, h->loss, h->q, h->d,
           h->xg.rows);
}
