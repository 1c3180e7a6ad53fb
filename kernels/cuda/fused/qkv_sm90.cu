/* qkv: rotate(r (x W'^T)). Rotary pairs are neighbouring columns. */
#include "kernels/cuda/fused/launch_sm90.cuh"

struct Qkv : Epilogue {
    typedef Tile16<64> Tile;
    static constexpr int COLUMNS = 64, BUFFER = Tile::BYTES;
    struct Params {
        CUtensorMap qkv;
        RowNorm norm;
        Rope rope;
    };

    float r[2];
    const float *angles[2];     /* cosines and sines of the row's position */

    __device__ void begin(const Params &p, Rows rows)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            r[h] = row_rstd(p.norm, rows, h);
            angles[h] = p.rope.cos_sin + (int64_t)row_value(p.rope.pos, rows, h) * p.rope.head_dim;
        }
    }

    __device__ void chunk(const Params &p, float (&acc)[32], uint32_t buffer, Rows, int col)
    {
        const int head_dim = p.rope.head_dim;
        int left = (int)p.rope.rotated - col,
            within = col % head_dim; /* heads are whole blocks of 8 columns */
#pragma unroll
        for (int slice = 0; slice < 4; slice++) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float a = r[i % 2] * acc[8 * slice + 2 * i], b = r[i % 2] * acc[8 * slice + 2 * i + 1];
                if (left > 0) {
                    const float *at = angles[i % 2] + within + pair_column(0, 0);
                    float2 angle = *reinterpret_cast<const float2 *>(at);
                    RotatedPair turned = rotate_pair(a, b, angle.x, angle.y);
                    a = turned.a, b = turned.b;
                }
                v[i] = pack(a, b);
                if (i % 2) {    /* on to the next block of eight */
                    left -= 8, within += 8;
                    if (within >= head_dim) within -= head_dim;
                }
            }
            Tile::store(buffer, slice, v);
        }
    }

    static __device__ void store(const Params &p, uint32_t buffer, int row, int col)
    {
        tma_store(&p.qkv, buffer, col, row);
    }
};

void fused_qkv(const FusedCall &call, Tensor qkv, Tensor x, Tensor w, RowNorm norm, Rope rope)
{
    Qkv::Params p = {};
    p.qkv = tensor_map(op_name(call.op), qkv, 64, 64);
    p.norm = norm;
    p.rope = rope;
    launch_program<Qkv, false, false>(call, x, w, qkv.rows, qkv.cols, x.cols, p);
}
