/* *_dw: G (+)= dy^T a in FP32, and the sum of squares of the finished accumulator where it is wanted. */
#include "kernels/cuda/fused/launch_sm90.cuh"

template <bool ACCUMULATE> struct Dw : Epilogue {
    typedef Tile32 Tile;
    static constexpr int COLUMNS = 32, BUFFER = Tile::BYTES, LOAD_BYTES = ACCUMULATE ? Tile::BYTES : 0;
    struct Params {
        CUtensorMap grad;
        float *partial;     /* [m / 16, tiles_n]: sum of squares a warp and column tile, or NULL */
        int64_t partials;
        double *sumsq;
        unsigned *finished; /* blocks that are done; 0 again when all are */
    };

    float sum;

    __device__ void begin(const Row (&)[2]) { sum = 0; }

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
            sum += squares(v[i].x, v[i].y);
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

    /* The block that is last to finish adds all parts, in one fixed order. */
    static __device__ void finish(const Params &p, uint32_t memory)
    {
        double *warps = (double *)__cvta_shared_to_generic(memory);
        const int thread = threadIdx.x - 128;
        if (!p.partial) return;
        __threadfence();
        named_barrier_sync(BARRIER_FINISH, 256);
        const bool last = thread == 0 && atomicInc(p.finished, gridDim.x - 1) == gridDim.x - 1;
        if (!named_barrier_any(BARRIER_FINISH, 256, last)) return;
        __threadfence();
        double total = 0;
        for (int64_t i = thread; i < p.partials; i += 256) total += __ldcg(p.partial + i);
        for (int mask = 16; mask; mask /= 2) total += __shfl_xor_sync(~0u, total, mask);
        if (lane_of_warp() == 0) warps[thread / 32] = total;
        named_barrier_sync(BARRIER_FINISH, 256);
        if (thread) return;
        for (int i = 1; i < 8; i++) total += warps[i];
        *p.sumsq = total;
    }
};

template <bool ACCUMULATE>
static void run(const FusedCall &call, Tensor grad, Tensor dy, Tensor a, double *sumsq)
{
    const int64_t width = fused_sum_cols(call.variant.tile);
    typename Dw<ACCUMULATE>::Params p = {};
    p.grad = tensor_map(op_name(call.op), grad, 32, 64);
    if (sumsq) {
        p.partial = (float *)op_scratch(call.ctx);
        p.partials = (grad.rows + 15) / 16 * ((grad.cols + width - 1) / width);
        p.sumsq = sumsq;
        p.finished = backend_of(call.ctx)->finished_blocks;
    }
    launch_program<Dw<ACCUMULATE>, true, true>(call, dy, a, grad.rows, grad.cols, dy.rows, p);
}

void fused_dw(const FusedCall &call, Tensor grad, Tensor dy, Tensor a, bool accumulate, double *sumsq)
{
    (accumulate ? run<true> : run<false>)(call, grad, dy, a, sumsq);
}
