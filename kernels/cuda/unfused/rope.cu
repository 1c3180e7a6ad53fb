/* QKV projection: the norm's row scale and the rotation, behind the GEMM forward and before it backward. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/vec.cuh"

/* Turns V/2 neighbouring pairs that start at column c of their row by their angle, or back. */
template <int V> static __device__ __forceinline__ void
rotate(float (&v)[V], const float *cos_sin, int64_t c, int head_dim, bool back)
{
    float angle[V];
    load(cos_sin + c % head_dim, angle);    /* a pair of columns has one (cosine, sine) pair */
#pragma unroll
    for (int i = 0; i < V; i += 2) {
        RotatedPair turned = rotate_pair(v[i], v[i + 1], angle[i], back ? -angle[i + 1] : angle[i + 1]);
        v[i] = turned.a, v[i + 1] = turned.b;
    }
}

/* qkv = rotate(r * qkv), in place. One warp a row. */
template <int V>
__global__ void __launch_bounds__(ROW_THREADS)
qkv_rope_fwd(bf16 *qkv, int64_t stride, int64_t rows, int64_t cols, RowNorm norm, Rope rope)
{
    after_previous_kernel();
    int64_t row = warp_row();
    if (row >= rows) return;
    bf16 *to = qkv + row * stride;
    const float *cos_sin = rope.cos_sin + (int64_t)rope.pos[row] * rope.head_dim;
    float r;
    walk_row<V>(
        to, cols, [&] { r = row_rstd(norm, row); },
        [&](int64_t c, float(&v)[V]) {
#pragma unroll
            for (int i = 0; i < V; i++) v[i] *= r;
            if (c < rope.rotated) rotate(v, cos_sin, c, rope.head_dim, false);
            store(to + c, v);
        });
}

/* zdz = sum qkv * dqkv;  dqkv = r * rotate back(dqkv), in place. One warp a row. A kernel of its own for fused runs,
 * too: dqkv comes from attention, not from a GEMM whose epilogue could do it, and two GEMMs read it. */
template <int V> __global__ void __launch_bounds__(ROW_THREADS)
    qkv_rope_bwd(bf16 *dqkv, int64_t stride, RowSums zdz, const bf16 *qkv, int64_t qkv_stride, int64_t rows,
                 int64_t cols, RowNorm norm, Rope rope)
{
    after_previous_kernel();
    int64_t row = warp_row();
    if (row >= rows) return;
    bf16 *to = dqkv + row * stride;
    float r = row_rstd(norm, row), sum = 0;
    const float *cos_sin = rope.cos_sin + (int64_t)rope.pos[row] * rope.head_dim;
    for (int64_t c = lane_id() * V; c < cols; c += 32 * V * BATCH) {
        Vectors<V, BATCH> in(to, c, cols), saved(qkv + row * qkv_stride, c, cols);
#pragma unroll
        for (int u = 0; u < BATCH; u++) {
            int64_t at = c + u * 32 * V;
            if (at >= cols) break;
            float d[V], v[V];
            unpack(in.raw[u], d);
            unpack(saved.raw[u], v);
#pragma unroll
            for (int i = 0; i < V; i++) {
                sum += d[i] * v[i];
                d[i] *= r;
            }
            if (at < rope.rotated) rotate(d, cos_sin, at, rope.head_dim, true);
            store(to + at, d);
        }
    }
    put_warp_sum(zdz, row, sum);
}

/* A vector of 8 columns must not cross the edge of a head. */
static bool wide_rope(Tensor t, Rope rope) { return vectorised(t) && rope.head_dim % 8 == 0; }

void cuda_qkv(const OpContext *ctx, Tensor qkv, Tensor x, Tensor w, RowNorm norm, Rope rope)
{
    OpRange range(ctx, OP_QKV);
    gemm(ctx, OP_QKV, GEMM_NT, qkv, x, w);
    auto kernel = wide_rope(qkv, rope) ? qkv_rope_fwd<8> : qkv_rope_fwd<2>;
    launch(ctx, OP_QKV, kernel, row_blocks(qkv.rows), ROW_THREADS, (bf16 *)qkv.data, qkv.stride, qkv.rows,
           qkv.cols, norm, rope);
}

void cuda_qkv_grad(const OpContext *ctx, Tensor dqkv, RowSums zdz, Tensor qkv, RowNorm norm, Rope rope)
{
    OpRange range(ctx, OP_QKV_GRAD);
    auto kernel = wide_rope(dqkv, rope) && vectorised(qkv) ? qkv_rope_bwd<8> : qkv_rope_bwd<2>;
    launch(ctx, OP_QKV_GRAD, kernel, row_blocks(dqkv.rows), ROW_THREADS, (bf16 *)dqkv.data, dqkv.stride, zdz,
           (const bf16 *)qkv.data, qkv.stride, dqkv.rows, dqkv.cols, norm, rope);
}
