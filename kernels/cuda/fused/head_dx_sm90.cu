/* head_dx: u = alpha (E table) - beta table[target];  dx = u gamma - s x;  dgamma (+)= column sums of u x. K
 * is the vocabulary here, so gathered rows and column sums cost nothing that shows. */
#include "kernels/cuda/fused/launch_sm90.cuh"

struct HeadDx : Epilogue {
    typedef Tile16<32> Tile;    /* narrow chunks: fewer numbers in registers beside a large tile's sums */
    static constexpr int COLUMNS = Tile::COLS, BUFFER = Tile::BYTES, LOAD_BYTES = Tile::BYTES;
    struct Params {
        CUtensorMap x, dx;
        const float *alpha, *beta, *s, *gamma;
        const int32_t *targets;
        const bf16 *table;
        int64_t table_stride;
        float *partial;     /* [m / 16, cols]: sums of u x over a warp's rows */
        int cols;
    };

    struct Row {
        float alpha, beta, s;
        int target;
    };

    float alpha[2], beta[2], s[2];
    int target[2];

    static __device__ Row ahead(const Params &p, int row)
    {
        return Row{p.alpha[row], p.beta[row], p.s[row], p.targets[row]};
    }

    __device__ void begin(const Row (&row)[2])
    {
#pragma unroll
        for (int h = 0; h < 2; h++)
            alpha[h] = row[h].alpha, beta[h] = row[h].beta, s[h] = row[h].s, target[h] = row[h].target;
    }

    static __device__ void fetch(const Params &p, uint32_t buffer, uint32_t ready, int row, int col)
    {
        tma_load(buffer, &p.x, ready, col, row);
    }

    __device__ void chunk(const Params &p, float (&acc)[COLUMNS / 2], uint32_t buffer, Rows rows, int col)
    {
        uint32_t all[COLUMNS / 16][4];
        Tile::load(all, buffer);
#pragma unroll
        for (int slice = 0; slice < COLUMNS / 16; slice++) {
            uint32_t(&v)[4] = all[slice];
#pragma unroll
            for (int left = 0; left < 4; left += 2) {       /* both rows of one pair of columns */
                const int at = col + pair_column(slice, left);
                if (at >= p.cols) continue;
                const float2 gamma = column_pair(p.gamma, at, p.cols);
                float2 sum = make_float2(0, 0);
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int i = left + h;
                    float2 x = unpack(v[i]), w = gathered_pair(p.table, p.table_stride, target[h], at);
                    float ua = head_pull(acc[8 * slice + 2 * i], alpha[h], beta[h], w.x);
                    float ub = head_pull(acc[8 * slice + 2 * i + 1], alpha[h], beta[h], w.y);
                    sum.x += ua * x.x, sum.y += ub * x.y;
                    v[i] = pack(head_grad(ua, gamma.x, s[h], x.x), head_grad(ub, gamma.y, s[h], x.y));
                }
                sum.x = column_sum(sum.x), sum.y = column_sum(sum.y);
                if (lane_of_warp() < 4 && rows.first < rows.count)
                    *reinterpret_cast<float2 *>(p.partial + (int64_t)(rows.first / 16) * p.cols + at) = sum;
            }
            Tile::store(buffer, slice, v);
        }
    }

    static __device__ void store(const Params &p, uint32_t buffer, int row, int col)
    {
        tma_store(&p.dx, buffer, col, row);
    }
};

void fused_head_dx(const FusedCall &call, Tensor dx, float *dgamma, const HeadChunk *h, const float *gamma,
                   bool accumulate)
{
    HeadDx::Params p = {};
    p.x = tensor_map(op_name(call.op), h->x, HeadDx::COLUMNS, 64);
    p.dx = tensor_map(op_name(call.op), dx, HeadDx::COLUMNS, 64);
    p.alpha = h->alpha, p.beta = h->beta, p.s = h->s, p.gamma = gamma;
    p.targets = h->targets;
    p.table = (const bf16 *)h->table.data;
    p.table_stride = h->table.stride;
    p.partial = (float *)op_scratch(call.ctx);
    p.cols = (int)dx.cols;
    launch_program<HeadDx, false, true>(call, h->e, h->table, dx.rows, dx.cols, h->e.cols, p);
    /* rows of other tiles add to the same columns: one light kernel sums them in a fixed order */
    cuda_column_sums(call.ctx, call.op, dgamma, p.partial, (dx.rows + 15) / 16, dx.cols, accumulate);
}
