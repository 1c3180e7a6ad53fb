/* out, down: out = residual + a W^T, the next norm's sum of squares, and xg = out gamma for the head. */
#include "kernels/cuda/fused/launch_sm90.cuh"

template <bool XG> struct Residual : Epilogue {
    typedef Tile16<XG ? 32 : 64> Tile; /* two outputs: narrower chunks, so that there are as many buffers */
    static constexpr int COLUMNS = Tile::COLS, BUFFER = Tile::BYTES * (XG ? 2 : 1), LOAD_BYTES = Tile::BYTES;
    struct Params {
        CUtensorMap residual, out, xg;
        RowSums sumsq;
        const float *gamma;
        int cols;
    };

    RowSum sum;

    __device__ void begin(const Row (&)[2]) { sum.clear(); }

    static __device__ void fetch(const Params &p, uint32_t buffer, uint32_t ready, int row, int col)
    {
        tma_load(buffer, &p.residual, ready, col, row);
    }

    __device__ void chunk(const Params &p, float (&acc)[COLUMNS / 2], uint32_t buffer, Rows, int col)
    {
        uint32_t all[COLUMNS / 16][4];
        Tile::load(all, buffer);
#pragma unroll
        for (int slice = 0; slice < COLUMNS / 16; slice++) {
            uint32_t(&v)[4] = all[slice];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float2 residual = unpack(v[i]);
                v[i] = pack(acc[8 * slice + 2 * i] + residual.x, acc[8 * slice + 2 * i + 1] + residual.y);
                float2 out = unpack(v[i]);      /* the sum is of what the next op reads */
                sum.add(i, squares(out.x, out.y));
            }
            Tile::store(buffer, slice, v);
            if constexpr (XG) {
#pragma unroll
                for (int i = 0; i < 4; i += 2) {    /* two rows of the same columns */
                    float2 gamma = column_pair(p.gamma, col + pair_column(slice, i), p.cols);
                    float2 upper = unpack(v[i]), lower = unpack(v[i + 1]);
                    v[i] = pack(upper.x * gamma.x, upper.y * gamma.y);
                    v[i + 1] = pack(lower.x * gamma.x, lower.y * gamma.y);
                }
                Tile::store(buffer + Tile::BYTES, slice, v);
            }
        }
    }

    static __device__ void store(const Params &p, uint32_t buffer, int row, int col)
    {
        tma_store(&p.out, buffer, col, row);
        if (XG) tma_store(&p.xg, buffer + Tile::BYTES, col, row);
    }

    __device__ void end(const Params &p, Rows rows, ColumnTile tile) { sum.put(p.sumsq, rows, tile); }
};

template <bool XG>
static void run(const FusedCall &call, Tensor out, RowSums sumsq, Tensor xg, Tensor a, Tensor w,
                Tensor residual, const float *gamma)
{
    typename Residual<XG>::Params p = {};
    p.residual = tensor_map(op_name(call.op), residual, Residual<XG>::COLUMNS, 64);
    p.out = tensor_map(op_name(call.op), out, Residual<XG>::COLUMNS, 64);
    if (XG) p.xg = tensor_map(op_name(call.op), xg, Residual<XG>::COLUMNS, 64);
    p.sumsq = sumsq;
    p.gamma = gamma;
    p.cols = (int)out.cols;
    launch_program<Residual<XG>, false, false>(call, a, w, out.rows, out.cols, a.cols, p);
}

void fused_residual(const FusedCall &call, Tensor out, RowSums sumsq, Tensor xg, Tensor a, Tensor w,
                    Tensor residual, const float *gamma)
{
    (xg.data ? run<true> : run<false>)(call, out, sumsq, xg, a, w, residual, gamma);
}
