/* down_dx: dy = dx W2 never leaves the multiprocessor: dz = r dSwiGLU(z, dy), sum of z dz / r, y again if
 * wanted. */
#include "kernels/cuda/fused/launch_sm90.cuh"

/* A column of dy belongs to a gate and an up, so a chunk of 32 columns works on 64 of z. */
template <bool WITH_Y> struct DownDx : Epilogue {
    typedef Tile16<64> Z;
    typedef Tile16<32> Y;
    static constexpr int COLUMNS = 32, BUFFER = Z::BYTES + (WITH_Y ? Y::BYTES : 0), LOAD_BYTES = Z::BYTES;
    struct Params {
        CUtensorMap z, dz, y;
        RowNorm norm;
        RowSums zdz;
    };

    struct Row {
        float r;
    };

    float r[2];
    RowSum sum;

    static __device__ Row ahead(const Params &p, int row) { return Row{rstd_of_row(p.norm, row)}; }

    __device__ void begin(const Row (&row)[2])
    {
        r[0] = row[0].r, r[1] = row[1].r;
        sum.clear();
    }

    static __device__ void fetch(const Params &p, uint32_t buffer, uint32_t ready, int row, int col)
    {
        tma_load(buffer, &p.z, ready, 2 * col, row);
    }

    __device__ void chunk(const Params &, float (&acc)[16], uint32_t buffer, Rows, int)
    {
        uint32_t z[4][4], y[2];
        Z::load(z, buffer);
#pragma unroll
        for (int block = 0; block < 4; block++) {   /* eight columns of dy: a slice of z */
#pragma unroll
            for (int h = 0; h < 2; h++) {
                float2 gate = unpack(z[block][h]), up = unpack(z[block][2 + h]);
                SwigluGrad a = swiglu_grad(gate.x, up.x, r[h] * acc[4 * block + 2 * h]);
                SwigluGrad b = swiglu_grad(gate.y, up.y, r[h] * acc[4 * block + 2 * h + 1]);
                sum.add(h, a.zdz + b.zdz);
                z[block][h] = pack(a.gate, b.gate);
                z[block][2 + h] = pack(a.up, b.up);
                y[h] = pack(a.y, b.y);
            }
            Z::store(buffer, block, z[block]);
            if (WITH_Y) Y::store(buffer + Z::BYTES, block, y);
        }
    }

    static __device__ void store(const Params &p, uint32_t buffer, int row, int col)
    {
        tma_store(&p.dz, buffer, 2 * col, row);
        if (WITH_Y) tma_store(&p.y, buffer + Z::BYTES, col, row);
    }

    __device__ void end(const Params &p, Rows rows, ColumnTile tile)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) sum.half[h] *= reciprocal(r[h]);
        sum.put(p.zdz, rows, tile);
    }
};

template <bool WITH_Y>
static void run(const FusedCall &call, Tensor dz, Tensor y, RowSums zdz, Tensor dx, Tensor w, Tensor z,
                RowNorm norm)
{
    typename DownDx<WITH_Y>::Params p = {};
    p.z = tensor_map(op_name(call.op), z, 64, 64);
    p.dz = tensor_map(op_name(call.op), dz, 64, 64);
    if (WITH_Y) p.y = tensor_map(op_name(call.op), y, 32, 64);
    p.norm = norm;
    p.zdz = zdz;
    launch_program<DownDx<WITH_Y>, false, true>(call, dx, w, dx.rows, w.cols, dx.cols, p);
}

void fused_down_dx(const FusedCall &call, Tensor dz, Tensor y, RowSums zdz, Tensor dx, Tensor w, Tensor z,
                   RowNorm norm)
{
    (y.data ? run<true> : run<false>)(call, dz, y, zdz, dx, w, z, norm);
}
