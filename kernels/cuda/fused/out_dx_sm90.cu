/* out_dx: do = dx1 Wo, the product as it is. */
#include "kernels/cuda/fused/launch_sm90.cuh"

struct OutDx : Epilogue {
    typedef Tile16<64> Tile;
    static constexpr int COLUMNS = 64, BUFFER = Tile::BYTES;
    struct Params {
        CUtensorMap out;
    };

    __device__ void chunk(const Params &, float (&acc)[32], uint32_t buffer, Rows, int)
    {
#pragma unroll
        for (int slice = 0; slice < 4; slice++) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = pack(acc[8 * slice + 2 * i], acc[8 * slice + 2 * i + 1]);
            Tile::store(buffer, slice, v);
        }
    }

    static __device__ void store(const Params &p, uint32_t buffer, int row, int col)
    {
        tma_store(&p.out, buffer, col, row);
    }
};

void fused_out_dx(const FusedCall &call, Tensor d_o, Tensor dx1, Tensor w)
{
    OutDx::Params p = {};
    p.out = tensor_map(op_name(call.op), d_o, 64, 64);
    launch_program<OutDx, false, true>(call, dx1, w, d_o.rows, d_o.cols, dx1.cols, p);
}
