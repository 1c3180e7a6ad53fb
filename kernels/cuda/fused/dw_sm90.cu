/* *_dw: G (+)= dy^T a in FP32, and the sum of squares of the finished accumulator where it is wanted. */
#include "kernels/cuda/fused/launch_sm90.cuh"

template <bool ACCUMULATE> struct Dw {
    typedef Tile32 Tile;
    static constexpr int COLUMNS = 32, BUFFER = Tile::BYTES, LOAD_BYTES = ACCUMULATE ? Tile::BYTES : 0;
    static constexpr bool LONG_K = true;
    struct Params {
        CUtensorMap grad;
        float *partial;     /* [m / 16, tiles_n]: sum of squares a warp and column tile, or NULL */
    };

    float sum;

    __device__ void begin(const Params &, Rows) { sum = 0; }

    static __device__ void fetch(const Params &p, uint32_t buffer, uint32_t ready, int row, int col)
    {
        if (ACCUMULATE) tma_load(buffer, &p.grad, ready, col, row);
    }

    __device__ void chunk(const Params &, float (&acc)[16], uint32_t buffer, Rows, int)
    {
        float2 v[8];
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] = ACCUMULATE ? load_pair(Tile::address(buffer, i / 4, i % 4)) : make_float2(0, 0);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            v[i].x += acc[2 * i], v[i].y += acc[2 * i + 1];
            store_pair(Tile::address(buffer, i / 4, i % 4), v[i]);
            sum += v[i].x * v[i].x + v[i].y * v[i].y;
        }
    }

    static __device__ void store(const Params &p, uint32_t buffer, int row, int col)
    {
        tma_store(&p.grad, buffer, col, row);
    }

    __device__ void end(const Params &p, Rows rows, ColumnTile tile)
    {
        if (!p.partial) return;
        float total = quad_sum(column_sum(sum));
        if (lane_of_warp() == 0 && rows.first < rows.count)
            p.partial[(int64_t)(rows.first / 16) * tile.count + tile.index] = total;
    }
};

template <bool ACCUMULATE>
static void run(const FusedCall &call, Tensor grad, Tensor dy, Tensor a, float *partial)
{
    typename Dw<ACCUMULATE>::Params p = {};
    p.grad = tensor_map(op_name(call.op), grad, 32, 64);
    p.partial = partial;
    launch_program<Dw<ACCUMULATE>, true, true>(call, dy, a, grad.rows, grad.cols, dy.rows, p);
}

/* *sumsq = the sum of `count` partial sums, in one fixed order. One block. It stands apart because a block of
 * the GEMM cannot know that all others are done. */
__global__ void dw_sum_partials(double *sumsq, const float *partial, int64_t count)
{
    __shared__ double part[32];
    double sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += partial[i];
    for (int mask = 16; mask; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    sum = part[threadIdx.x];
    for (int mask = 16; mask; mask /= 2) sum += __shfl_xor_sync(~0u, sum, mask);
    if (threadIdx.x == 0) *sumsq = sum;
}

void fused_dw(const FusedCall &call, Tensor grad, Tensor dy, Tensor a, bool accumulate, double *sumsq)
{
    float *partial = sumsq ? (float *)op_scratch(call.ctx) : nullptr;
    (accumulate ? run<true> : run<false>)(call, grad, dy, a, partial);
    if (!sumsq) return;
    int64_t width = fused_tile_cols(call.variant.tile);
    int64_t count = (grad.rows + 15) / 16 * ((grad.cols + width - 1) / width);
    dw_sum_partials<<<1, 1024, 0, stream_of(call.ctx)>>>(sumsq, partial, count);
    LAUNCH_CHECK(call.op);
}
