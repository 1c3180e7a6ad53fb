/* qkv: rotate(r (x W'^T)). Rotary pairs are neighbouring columns. */
#include "kernels/cuda/fused/launch_sm90.cuh"

struct Qkv : Epilogue {
    typedef Tile16<64> Tile;
    static constexpr int COLUMNS = 64, BUFFER = Tile::BYTES;
    static constexpr bool LONG_K = false;
    struct Params {
        CUtensorMap qkv;
        RowNorm norm;
        Rope rope;
        float heads_a_column;
    };

    struct Row {
        float r;
        uint32_t angles;    /* where those of the row's position begin */
    };

    float r[2];
    uint32_t angles[2];     /* of the lane's first column: an index, since two 64-bit addresses more would not stay in
                               registers */

    static __device__ Row ahead(const Params &p, int row)
    {
        const uint32_t angles = (uint32_t)p.rope.pos[row] * p.rope.head_dim;    /* loaded beside the sum's parts */
        return Row{rstd_of_row(p.norm, row), angles};
    }

    __device__ void begin(const Row (&row)[2])
    {
#pragma unroll
        for (int h = 0; h < 2; h++) r[h] = row[h].r, angles[h] = row[h].angles + pair_column(0, 0);
    }

    /* Heads are whole chunks, so a chunk is rotated as a whole or not at all. */
    __device__ void chunk(const Params &p, float (&acc)[32], uint32_t buffer, Rows, int col)
    {
        if (col >= (int)p.rope.rotated) {
            rotate_chunk(acc, buffer, [](int, int, RotatedPair in) { return in; });
            return;
        }
        const int within = column_in_head(col, p.rope.head_dim, p.heads_a_column);
        const float *at[2] = {p.rope.cos_sin + (angles[0] + (uint32_t)within),
                              p.rope.cos_sin + (angles[1] + (uint32_t)within)};
        rotate_chunk(acc, buffer, [&](int h, int eighth, RotatedPair in) {
            const float2 angle = *reinterpret_cast<const float2 *>(at[h] + 8 * eighth);
            return rotate_pair(in.a, in.b, angle.x, angle.y);
        });
    }

    /* rotate(half of the rows, eight columns of the chunk, pair) */
    template <class Rotate>
    __device__ __forceinline__ void rotate_chunk(float (&acc)[32], uint32_t buffer, Rotate rotate)
    {
#pragma unroll
        for (int slice = 0; slice < 4; slice++) {
            uint32_t v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int h = i % 2;
                const RotatedPair in = {r[h] * acc[8 * slice + 2 * i], r[h] * acc[8 * slice + 2 * i + 1]};
                const RotatedPair out = rotate(h, 2 * slice + i / 2, in);
                v[i] = pack(out.a, out.b);
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
    if (rope.head_dim % Qkv::COLUMNS)
        cuda_fail(__FILE__, __LINE__, op_name(call.op), "fused_qkv", "heads are not whole chunks of 64 columns");
    Qkv::Params p = {};
    p.qkv = tensor_map(op_name(call.op), qkv, 64, 64);
    p.norm = norm;
    p.rope = rope;
    p.heads_a_column = 1.0f / (float)rope.head_dim;
    launch_program<Qkv, false, false>(call, x, w, qkv.rows, qkv.cols, x.cols, p);
}
