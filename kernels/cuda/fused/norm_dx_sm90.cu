/* gate_up_dx, qkv_dx: out = residual gradient + dz W' - s x, the gradient through a folded norm. */
#include "kernels/cuda/fused/launch_sm90.cuh"

struct NormDx : Epilogue {
    typedef Tile16<32> Tile;
    static constexpr int COLUMNS = 32, BUFFER = 2 * Tile::BYTES, LOAD_BYTES = 2 * Tile::BYTES;
    struct Params {
        CUtensorMap residual_grad, x, out;
        RowNorm norm;
        RowSums zdz;
    };

    struct Row {
        float s;
    };

    float s[2];

    static __device__ Row ahead(const Params &p, int row)
    {
        return Row{norm_pull(rstd_of_row(p.norm, row), sum_of_row(p.zdz, row), (float)p.norm.cols)};
    }

    __device__ void begin(const Row (&row)[2]) { s[0] = row[0].s, s[1] = row[1].s; }

    static __device__ void fetch(const Params &p, uint32_t buffer, uint32_t ready, int row, int col)
    {
        tma_load(buffer, &p.residual_grad, ready, col, row);
        tma_load(buffer + Tile::BYTES, &p.x, ready, col, row);
    }

    __device__ void chunk(const Params &, float (&acc)[16], uint32_t buffer, Rows, int)
    {
        uint32_t v[2][4], x[2][4];
        Tile::load(v, buffer);
        Tile::load(x, buffer + Tile::BYTES);
#pragma unroll
        for (int slice = 0; slice < 2; slice++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float2 grad = unpack(v[slice][i]), in = unpack(x[slice][i]);
                v[slice][i] = pack(norm_grad(acc[8 * slice + 2 * i], grad.x, s[i % 2], in.x),
                                   norm_grad(acc[8 * slice + 2 * i + 1], grad.y, s[i % 2], in.y));
            }
            Tile::store(buffer, slice, v[slice]);
        }
    }

    static __device__ void store(const Params &p, uint32_t buffer, int row, int col)
    {
        tma_store(&p.out, buffer, col, row);
    }

};

void fused_norm_dx(const FusedCall &call, Tensor out, Tensor dz, Tensor w, Tensor residual_grad, Tensor x,
                   RowNorm norm, RowSums zdz)
{
    NormDx::Params p = {};
    p.residual_grad = tensor_map(op_name(call.op), residual_grad, 32, 64);
    p.x = tensor_map(op_name(call.op), x, 32, 64);
    p.out = tensor_map(op_name(call.op), out, 32, 64);
    p.norm = norm;
    p.zdz = zdz;
    launch_program<NormDx, false, true>(call, dz, w, out.rows, out.cols, dz.cols, p);
}
