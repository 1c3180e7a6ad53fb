/* gate_up: z = r (x1 W'^T) in blocks of eight gates and their ups;  y = silu(g) u from the rounded z. */
#include "kernels/cuda/fused/launch_sm90.cuh"

struct GateUp : Epilogue {
    typedef Tile16<64> Z;
    typedef Tile16<32> Y;
    static constexpr int COLUMNS = 64, BUFFER = Z::BYTES + Y::BYTES;
    static constexpr bool LONG_K = false;
    struct Params {
        CUtensorMap z, y;
        RowNorm norm;
    };

    struct Row {
        float r;
    };

    float r[2];

    static __device__ Row ahead(const Params &p, int row) { return Row{rstd_of_row(p.norm, row)}; }

    __device__ void begin(const Row (&row)[2])
    {
        r[0] = row[0].r, r[1] = row[1].r;
    }

    __device__ void chunk(const Params &, float (&acc)[32], uint32_t buffer, Rows, int)
    {
#pragma unroll
        for (int slice = 0; slice < 4; slice++) { /* one block: pairs 0 and 1 are gates, 2 and 3 their ups */
            uint32_t z[4], y[2];
#pragma unroll
            for (int i = 0; i < 4; i++)
                z[i] = pack(r[i % 2] * acc[8 * slice + 2 * i], r[i % 2] * acc[8 * slice + 2 * i + 1]);
            Z::store(buffer, slice, z);
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float2 gate = unpack(z[h]), up = unpack(z[2 + h]);
                y[h] = pack(swiglu(gate.x, up.x), swiglu(gate.y, up.y));
            }
            Y::store(buffer + Z::BYTES, slice, y);
        }
    }

    static __device__ void store(const Params &p, uint32_t buffer, int row, int col)
    {
        tma_store(&p.z, buffer, col, row);
        tma_store(&p.y, buffer + Z::BYTES, col / 2, row);
    }

};

void fused_gate_up(const FusedCall &call, Tensor z, Tensor y, Tensor x1, Tensor w, RowNorm norm)
{
    GateUp::Params p = {};
    p.z = tensor_map(op_name(call.op), z, 64, 64);
    p.y = tensor_map(op_name(call.op), y, 32, 64);
    p.norm = norm;
    launch_program<GateUp, false, false>(call, x1, w, z.rows, z.cols, x1.cols, p);
}
