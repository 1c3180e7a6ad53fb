/* QKV projection: the norm's row scale and the rotation, behind the GEMM forward and before it backward. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/vec.cuh"

/* Turns V/2 neighbouring pairs that start at column c of their row by their angle, or back. */
template <int V>
static __device__ __forceinline__ void rotate(float (&v)[V], const float *cos_sin, int64_t c, int head_dim, bool back)
{
    float angle[V];
    load(cos_sin + c % head_dim, angle);    /* a pair of columns has one (cosine, sine) pair */
#pragma unroll
    for (int i = 0; i < V; i += 2) {
        float a = v[i], b = v[i + 1], cosine = angle[i], sine = back ? -angle[i + 1] : angle[i + 1];
        v[i] = a * cosine - b * sine;
        v[i + 1] = a * sine + b * cosine;
    }
}

/* qkv = rotate(r * qkv), in place. One block a row. */
template <int V>
__global__ void qkv_rope_fwd(bf16 *qkv, int64_t stride, int64_t cols, RowNorm norm, Rope rope)
{
    int64_t row = blockIdx.x;
    bf16 *at = qkv + row * stride;
    float r = row_rstd(norm, row);
    const float *cos_sin = rope.cos_sin + (int64_t)rope.pos[row] * rope.head_dim;
    for (int64_t c = threadIdx.x * V; c < cols; c += blockDim.x * V) {
        float v[V];
        load(at + c, v);
#pragma unroll
        for (int i = 0; i < V; i++) v[i] *= r;
        if (c < rope.rotated) rotate(v, cos_sin, c, rope.head_dim, false);
        store(at + c, v);
    }
}

/* zdz = sum qkv * dqkv;  dqkv = r * rotate back(dqkv), in place. One block a row. */
template <int V>
__global__ void qkv_rope_bwd(bf16 *dqkv, int64_t stride, RowSums zdz, const bf16 *qkv, int64_t qkv_stride,
                             int64_t cols, RowNorm norm, Rope rope)
{
    int64_t row = blockIdx.x;
    bf16 *at = dqkv + row * stride;
    const bf16 *z = qkv + row * qkv_stride;
    float r = row_rstd(norm, row), sum = 0;
    const float *cos_sin = rope.cos_sin + (int64_t)rope.pos[row] * rope.head_dim;
    for (int64_t c = threadIdx.x * V; c < cols; c += blockDim.x * V) {
        float d[V], v[V];
        load(at + c, d);
        load(z + c, v);
#pragma unroll
        for (int i = 0; i < V; i++) {
            sum += d[i] * v[i];
            d[i] *= r;
        }
        if (c < rope.rotated) rotate(d, cos_sin, c, rope.head_dim, true);
        store(at + c, d);
    }
    put_sum(zdz, row, block_sum(sum));
}

/* A vector of 8 columns must not cross the edge of a head. */
static bool wide_rope(Tensor t, Rope rope) { return vectorised(t) && rope.head_dim % 8 == 0; }

void cuda_qkv(const OpContext *ctx, Tensor qkv, Tensor x, Tensor w, RowNorm norm, Rope rope)
{
    gemm(ctx, OP_QKV, GEMM_NT, qkv, x, w, Tensor{});
    bool wide = wide_rope(qkv, rope);
    auto kernel = wide ? qkv_rope_fwd<8> : qkv_rope_fwd<2>;
    kernel<<<(unsigned)qkv.rows, row_threads(qkv.cols, wide ? 8 : 2), 0, stream_of(ctx)>>>(
        (bf16 *)qkv.data, qkv.stride, qkv.cols, norm, rope);
    LAUNCH_CHECK(OP_QKV);
}

void cuda_qkv_grad(const OpContext *ctx, Tensor dqkv, RowSums zdz, Tensor qkv, RowNorm norm, Rope rope)
{
    bool wide = wide_rope(dqkv, rope) && vectorised(qkv);
    auto kernel = wide ? qkv_rope_bwd<8> : qkv_rope_bwd<2>;
    kernel<<<(unsigned)dqkv.rows, row_threads(dqkv.cols, wide ? 8 : 2), 0, stream_of(ctx)>>>(
        (bf16 *)dqkv.data, dqkv.stride, zdz, (const bf16 *)qkv.data, qkv.stride, dqkv.cols, norm, rope);
    LAUNCH_CHECK(OP_QKV_GRAD);
}
