/* The head's backward pass: gradient of the residual stream, of the final norm and of the head's weight. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/unfused/runs.cuh"

enum { ROWS_A_BLOCK = 16, ROW_BATCH = 4 };  /* rows of a block; rows whose loads go out together */

/* dx: E table on entry, the gradient on exit. Each block leaves the sum of u x over its rows in `partial`,
 * [blocks, cols]. A block has ROWS_A_BLOCK rows and a stretch of columns. */
template <int V>
__global__ void head_dx_rows(bf16 *dx, int64_t stride, float *partial, HeadChunk h, const float *gamma)
{
    after_previous_kernel();
    int64_t cols = h.x.cols, c = (blockIdx.y * (int64_t)blockDim.x + threadIdx.x) * V;
    if (c >= cols) return;
    int64_t block = blockIdx.x * (int64_t)ROWS_A_BLOCK, end = min(block + ROWS_A_BLOCK, h.x.rows);
    float g[V], sum[V] = {};
    load(gamma + c, g);
    for (int64_t first = block; first < end; first += ROW_BATCH) {
        Raw<V> us[ROW_BATCH], xs[ROW_BATCH], ws[ROW_BATCH];
#pragma unroll
        for (int j = 0; j < ROW_BATCH; j++) {
            int64_t row = first + j;
            if (row >= end) break;
            us[j] = load_raw<V>(dx + row * stride + c);
            xs[j] = load_raw<V>((const bf16 *)h.x.data + row * h.x.stride + c);
            ws[j] = load_raw<V>((const bf16 *)h.table.data + h.targets[row] * h.table.stride + c);
        }
#pragma unroll
        for (int j = 0; j < ROW_BATCH; j++) {
            int64_t row = first + j;
            if (row >= end) break;
            float u[V], x[V], w[V], alpha = h.alpha[row], beta = h.beta[row], s = h.s[row];
            unpack(us[j], u);
            unpack(xs[j], x);
            unpack(ws[j], w);
#pragma unroll
            for (int i = 0; i < V; i++) {
                float v = head_pull(u[i], alpha, beta, w[i]);
                sum[i] += v * x[i];
                u[i] = head_grad(v, g[i], s, x[i]);
            }
            store(dx + row * stride + c, u);
        }
    }
    store(partial + blockIdx.x * cols + c, sum);
}

size_t cuda_head_dx_scratch(int64_t rows, int64_t cols)
{
    return (size_t)((rows + ROWS_A_BLOCK - 1) / ROWS_A_BLOCK * cols) * sizeof(float);
}

void cuda_head_dx(const OpContext *ctx, Tensor dx, float *dgamma, const HeadChunk *h, const float *gamma,
                  bool accumulate)
{
    OpRange range(ctx, OP_HEAD_DX);
    gemm(ctx, OP_HEAD_DX, GEMM_NN, dx, h->e, h->table);
    float *partial = (float *)op_scratch(ctx);
    bool wide = vectorised(dx) && vectorised(h->x) && vectorised(h->table) && ((uintptr_t)gamma & 15) == 0;
    int V = wide ? 8 : 1, threads = row_threads(dx.cols, V, 128), width = threads * V;
    dim3 grid((unsigned)((dx.rows + ROWS_A_BLOCK - 1) / ROWS_A_BLOCK),
              (unsigned)((dx.cols + width - 1) / width));
    auto kernel = wide ? head_dx_rows<8> : head_dx_rows<1>;
    launch(ctx, OP_HEAD_DX, kernel, grid, threads, (bf16 *)dx.data, dx.stride, partial, *h, gamma);
    cuda_column_sums(ctx, OP_HEAD_DX, dgamma, partial, grid.x, dx.cols, accumulate);
}

/* grad[target] -= sum of beta xg over the target's rows. */
template <int V> __global__ void __launch_bounds__(RUN_THREADS, 1)
head_dw_targets(float *grad, int64_t stride, HeadChunk h)
{
    after_previous_kernel();
    sum_runs<V>(grad, stride, h.targets, h.order, h.xg.rows, (const bf16 *)h.xg.data, h.xg.stride, h.xg.cols,
                [&](int32_t row) { return -h.beta[row]; });
}

void cuda_head_dw_targets(const OpContext *ctx, Tensor grad, const HeadChunk *h)
{
    auto kernel = vectorised(h->xg) && vectorised(grad) ? head_dw_targets<8> : head_dw_targets<1>;
    launch(ctx, OP_HEAD_DW, kernel, run_blocks(h->xg.rows), RUN_THREADS, (float *)grad.data, grad.stride, *h);
}

void cuda_head_dw(const OpContext *ctx, Tensor grad, const HeadChunk *h, bool accumulate)
{
    OpRange range(ctx, OP_HEAD_DW);
    gemm(ctx, OP_HEAD_DW, GEMM_TN, grad, h->e, h->axg, accumulate);
    cuda_head_dw_targets(ctx, grad, h);
}
