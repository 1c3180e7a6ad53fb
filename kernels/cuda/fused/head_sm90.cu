/* head: E = exp(min(r acc - anchor, clamp)), 0 at the target and in padded columns; partial sums of E and of
 * E times its exponent. The logits themselves are never stored. */
#include "kernels/cuda/fused/anchor.h"
#include "kernels/cuda/fused/launch_sm90.cuh"

struct Head : Epilogue {
    typedef Tile16<64> Tile;
    static constexpr int COLUMNS = 64, BUFFER = Tile::BYTES;
    static constexpr bool LONG_K = false;
    struct Params {
        CUtensorMap e;
        RowNorm norm;
        const int32_t *targets;
        const float *anchor;
        RowSums d, q;
        int vocab;
    };

    struct Row {
        float r, anchor;
        int target;
    };

    float r[2], anchor[2];
    int target[2];
    RowSum d, q;

    static __device__ Row ahead(const Params &p, int row)
    {
        const float anchor = p.anchor[row];     /* loaded beside the sum's parts */
        const int target = p.targets[row];
        return Row{rstd_of_row(p.norm, row), anchor, target};
    }

    __device__ void begin(const Row (&row)[2])
    {
#pragma unroll
        for (int h = 0; h < 2; h++) r[h] = row[h].r, anchor[h] = row[h].anchor, target[h] = row[h].target;
        d.clear();
        q.clear();
    }

    __device__ void chunk(const Params &p, float (&acc)[32], uint32_t buffer, Rows, int col)
    {
#pragma unroll
        for (int slice = 0; slice < 4; slice++) {
            uint32_t e[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int h = i % 2, at = col + pair_column(slice, i);
                HeadTerm a = head_term(r[h] * acc[8 * slice + 2 * i], anchor[h], HEAD_CLAMP,
                                       at < p.vocab && at != target[h]);
                HeadTerm b = head_term(r[h] * acc[8 * slice + 2 * i + 1], anchor[h], HEAD_CLAMP,
                                       at + 1 < p.vocab && at + 1 != target[h]);
                d.add(i, a.e + b.e);
                q.add(i, a.q + b.q);
                e[i] = pack(a.e, b.e);
            }
            Tile::store(buffer, slice, e);
        }
    }

    static __device__ void store(const Params &p, uint32_t buffer, int row, int col)
    {
        tma_store(&p.e, buffer, col, row);
    }

    __device__ void end(const Params &p, Rows rows, ColumnTile tile)
    {
        d.put(p.d, rows, tile);
        q.put(p.q, rows, tile);
    }
};

void fused_head(const FusedCall &call, const HeadChunk *h)
{
    target_logits(call.ctx, call.op, h->anchor, h);
    Head::Params p = {};
    p.e = tensor_map(op_name(call.op), h->e, 64, 64);
    p.norm = h->norm;
    p.targets = h->targets;
    p.anchor = h->anchor;
    p.d = h->d, p.q = h->q;
    p.vocab = (int)h->vocab;
    launch_program<Head, false, false>(call, h->xg, h->table, h->e.rows, h->e.cols, h->xg.cols, p);
}
