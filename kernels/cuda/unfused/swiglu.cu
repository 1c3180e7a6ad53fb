/* Gate/up projection and its gradient through y = silu(g) u. z holds blocks of 8 gates and their 8 ups. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/vec.cuh"

enum { BWD_THREADS = 192 };

/* xhat = r x. One warp a row. */
template <int V>
__global__ void __launch_bounds__(ROW_THREADS)
gate_up_scale(bf16 *xhat, const bf16 *x, int64_t stride, int64_t rows, int64_t cols, RowNorm norm)
{
    after_previous_kernel();
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
    after_previous_kernel();
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
    launch(ctx, OP_GATE_UP, scale, row_blocks(x1.rows), ROW_THREADS, (bf16 *)xhat.data, (const bf16 *)x1.data,
           x1.stride, x1.rows, x1.cols, norm);

    gemm(ctx, OP_GATE_UP, GEMM_NT, z, xhat, w);

    int blocks = (int)(z.cols / 16), threads = row_threads(blocks, 1);
    unsigned per_row = (blocks + threads - 1) / threads;
    launch(ctx, OP_GATE_UP, swiglu_fwd, (unsigned)z.rows * per_row, threads, (bf16 *)y.data, y.stride,
           (const bf16 *)z.data, z.stride, blocks, per_row);
}

/* What a thread reads of 8 gates and their ups. */
struct SwigluIn {
    Raw<8> dy, gate, up;
};

/* dz = r dSwiGLU(z, dy);  zdz = sum z dz / r;  y from z where it is wanted. One block a row; a thread loads
 * its next 8 gates and ups before it works on these. dy stands in the second half of its row of dz. Going
 * upwards, the stores of blocks [0, b] reach only the dy of blocks that have been read:
 * 16 b + 15 < f + 8 (b + 1). One barrier a stretch orders the two. */
__global__ void __launch_bounds__(BWD_THREADS, 4)
swiglu_bwd(bf16 *dz, int64_t dz_stride, bf16 *y, int64_t y_stride, RowSums zdz, const bf16 *z,
           int64_t z_stride, int blocks, RowNorm norm)
{
    after_previous_kernel();
    const int64_t row = blockIdx.x;
    bf16 *d = dz + row * dz_stride;
    const bf16 *in = z + row * z_stride;
    auto read = [&](int b) {
        SwigluIn from = {};
        if (b >= blocks) return from;
        from.dy = load_raw<8>(d + 8 * (blocks + b));
        from.gate = load_raw<8>(in + 16 * b);
        from.up = load_raw<8>(in + 16 * b + 8);
        return from;
    };
    SwigluIn now = read(threadIdx.x);
    const float r = row_rstd(norm, row);
    float sum = 0;
    for (int first = 0; first < blocks; first += BWD_THREADS) {
        const int b = first + threadIdx.x;
        const SwigluIn next = read(b + BWD_THREADS);
        __syncthreads();
        if (b < blocks) {
            const uint4 dys = now.dy.words, gates = now.gate.words, ups = now.up.words;
            const uint32_t dy[4] = {dys.x, dys.y, dys.z, dys.w};
            uint32_t gate[4] = {gates.x, gates.y, gates.z, gates.w}, up[4] = {ups.x, ups.y, ups.z, ups.w};
            uint32_t again[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 g = unpack(gate[i]), u = unpack(up[i]), grad = unpack(dy[i]);
                const SwigluGrad low = swiglu_grad(g.x, u.x, r * grad.x);
                const SwigluGrad high = swiglu_grad(g.y, u.y, r * grad.y);
                sum += low.zdz + high.zdz;
                gate[i] = pack(low.gate, high.gate);
                up[i] = pack(low.up, high.up);
                again[i] = pack(low.y, high.y);
            }
            store_words(d + 16 * b, gate);
            store_words(d + 16 * b + 8, up);
            if (y) store_words(y + row * y_stride + 8 * b, again);
        }
        now = next;
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
    gemm(ctx, OP_DOWN_DX, GEMM_NN, dy, dx, w);

    launch(ctx, OP_DOWN_DX, swiglu_bwd, (unsigned)z.rows, BWD_THREADS, (bf16 *)dz.data, dz.stride,
           (bf16 *)y.data, y.stride, zdz, (const bf16 *)z.data, z.stride, (int)(ffn / 8), norm);
}
