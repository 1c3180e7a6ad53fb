/* qkv: rotate(r (x W'^T)). Rotary pairs are neighbouring columns. */
#include "kernels/cuda/fused/launch_sm90.cuh"

struct Qkv : Epilogue {
    typedef Tile16<64> Tile;
    static constexpr int COLUMNS = 64, BUFFER = Tile::BYTES;
    struct Params {
        CUtensorMap qkv;
        RowNorm norm;
        Rope rope;
        float heads_a_column;
    };

    float r[2];
    uint32_t angles[2];     /* of the row's position, the lane's first column: an index, since two 64-bit
                               addresses more would not stay in registers */

    __device__ void begin(const Params &p, Rows rows)
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            r[h] = row_rstd(p.norm, rows, h);
            angles[h] = (uint32_t)row_value(p.rope.pos, rows, h) * (uint32_t)p.rope.head_dim + pair_column(0, 0);
        }
    }

    __device__ void chunk(const Params &p, float (&acc)[32], uint32_t buffer, Rows, int col)
    {
        /* col % head_dim: exact up to 2^21 columns, and less than half as long as a division */
        const int head = (int)((col + 0.5f) * p.heads_a_column);
        int left = (int)p.rope.rotated - col, within = col - head * p.rope.head_dim;
#pragma unroll
        for (int slice = 0; slice < 4; slice++) {   /* heads are whole slices */
            uint32_t v[4];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                RotatedPair out[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float *pair = &acc[8 * slice + 4 * i + 2 * h];
                    out[i] = RotatedPair{r[h] * pair[0], r[h] * pair[1]};
                }
                if (left > 0) {
                    const float *at = p.rope.cos_sin + (angles[h] + (uint32_t)within);
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        const float2 angle = *reinterpret_cast<const float2 *>(at + 8 * i);
                        out[i] = rotate_pair(out[i].a, out[i].b, angle.x, angle.y);
                    }
                }
#pragma unroll
                for (int i = 0; i < 2; i++) v[2 * i + h] = pack(out[i].a, out[i].b);
            }
            Tile::store(buffer, slice, v);
            left -= 16, within += 16;
            if (within >= p.rope.head_dim) within = 0;
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
    p.heads_a_column = 1.0f / (float)rope.head_dim;
    launch_program<Qkv, false, false>(call, x, w, qkv.rows, qkv.cols, x.cols, p);
}
