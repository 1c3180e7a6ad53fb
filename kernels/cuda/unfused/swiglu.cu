/* Gate/up projection and its gradient through y = silu(g) u. z holds blocks of 8 gates and their 8 ups. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/vec.cuh"

/* xhat = r x. One warp a row. */
template <int V>
__global__ void __launch_bounds__(ROW_THREADS)
gate_up_scale(bf16 *xhat, const bf16 *x, int64_t stride, int64_t rows, int64_t cols, RowNorm norm)
{
    int64_t row = warp_row();
    if (row >= rows) return;
    float r;
    walk_row<V>(
        x + row * stride, cols, [&] { r = row_rstd(norm, row); },
        [&](int64_t c, float(&v)[V]) {
#pragma unroll
            for (int i = 0; i < V; i++) v[i] *= r;
            store(xhat + row * cols + c, v);
        });
}

/* y = silu(g) u. One thread a block of 8 gates and 8 ups, `per_row` thread blocks a row. */
__global__ void
swiglu_fwd(bf16 *y, int64_t y_stride, const bf16 *z, int64_t z_stride, int blocks, unsigned per_row)
{
    int64_t row = blockIdx.x / per_row;
    int b = blockIdx.x % per_row * blockDim.x + threadIdx.x;
    if (b >= blocks) return;
    float g[8], u[8];
    load(z + row * z_stride + 16 * b, g);
    load(z + row * z_stride + 16 * b + 8, u);
#pragma unroll
    for (int i = 0; i < 8; i++) u[i] = swiglu(g[i], u[i]);
    store(y + row * y_stride + 8 * b, u);
}

/* The GEMM reads r x, which takes 4 T d bytes to make. Scaling z behind it would move 8 T f instead. */
void cuda_gate_up(const OpContext *ctx, Tensor z, Tensor y, Tensor x1, Tensor w, RowNorm norm)
{
    OpRange range(ctx, OP_GATE_UP);
    auto scale = vectorised(x1) ? gate_up_scale<8> : gate_up_scale<1>;
    Tensor xhat = x1;
    xhat.data = op_scratch(ctx);
    xhat.stride = x1.cols;
    scale<<<row_blocks(x1.rows), ROW_THREADS, 0, stream_of(ctx)>>>((bf16 *)xhat.data, (const bf16 *)x1.data,
                                                                   x1.stride, x1.rows, x1.cols, norm);
    LAUNCH_CHECK(OP_GATE_UP);

    gemm(ctx, OP_GATE_UP, GEMM_NT, z, xhat, w, Tensor{});

    int blocks = (int)(z.cols / 16), threads = row_threads(blocks, 1);
    unsigned per_row = (blocks + threads - 1) / threads;
    swiglu_fwd<<<(unsigned)z.rows * per_row, threads, 0, stream_of(ctx)>>>(
        (bf16 *)y.data, y.stride, (const bf16 *)z.data, z.stride, blocks, per_row);
    LAUNCH_CHECK(OP_GATE_UP);
}

/* dz = r dSwiGLU(z, dy);  zdz = sum z dz / r;  y from z where it is wanted. One block a row.
 * dy stands in the second half of its row of dz. Going upwards, the stores of blocks [0, b] reach only the dy
 * of blocks that have been read: 16 b + 15 < f + 8 (b + 1). One barrier a stretch orders the two. */
__global__ void __launch_bounds__(256, 4)
swiglu_bwd(bf16 *dz, int64_t dz_stride, bf16 *y, int64_t y_stride, RowSums zdz, const bf16 *z,
           int64_t z_stride, int64_t blocks, RowNorm norm)
{
    int64_t row = blockIdx.x;
    bf16 *d = dz + row * dz_stride;
    const bf16 *in = z + row * z_stride;
    float r = row_rstd(norm, row), sum = 0;
    for (int64_t first = 0; first < blocks; first += blockDim.x) {
        int64_t b = first + threadIdx.x;
        float g[8], u[8], dy[8];
        if (b < blocks) {
            load(d + 8 * (blocks + b), dy);
            load(in + 16 * b, g);
            load(in + 16 * b + 8, u);
        }
        __syncthreads();
        if (b >= blocks) continue;
        float again[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            SwigluGrad grad = swiglu_grad(g[i], u[i], r * dy[i]);
            sum += grad.zdz;
            again[i] = grad.y, g[i] = grad.gate, u[i] = grad.up;
        }
        store(d + 16 * b, g);
        store(d + 16 * b + 8, u);
        if (y) store(y + row * y_stride + 8 * b, again);
    }
    put_sum(zdz, row, block_sum(sum) / r);
}

void cuda_down_dx(const OpContext *ctx, Tensor dz, Tensor y, RowSums zdz, Tensor dx, Tensor w, Tensor z,
                  RowNorm norm)
{
    OpRange range(ctx, OP_DOWN_DX);
    int64_t ffn = z.cols / 2;
    Tensor dy = dz;
    dy.cols = ffn;
    dy.data = (bf16 *)dz.data + ffn;
    gemm(ctx, OP_DOWN_DX, GEMM_NN, dy, dx, w, Tensor{});

    swiglu_bwd<<<(unsigned)z.rows, row_threads(ffn, 8), 0, stream_of(ctx)>>>(
        (bf16 *)dz.data, dz.stride, (bf16 *)y.data, y.stride, zdz, (const bf16 *)z.data, z.stride, ffn / 8,
        norm);
    LAUNCH_CHECK(OP_DOWN_DX);
}
