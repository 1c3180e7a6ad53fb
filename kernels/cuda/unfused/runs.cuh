/* Sums over rows that share an id: gradients of table rows. Positions of `order` are sorted by id, so the rows
 * of an id form a run. A warp looks at each position; the warps of a run share out its columns. So every
 * element has one writer and one order of summation, and a run of any length takes as long as its rows. */
#pragma once
#include "kernels/cuda/vec.cuh"

enum {
    RUN_WARPS = 4, RUN_THREADS = 32 * RUN_WARPS,    /* small blocks: many of their warps have nothing to do */
    FEW_ROWS = 4,                                   /* runs of less have wider strips */
    LONG_RUN = 32,                                  /* rows from which a run is long */
    LONG_SHARERS = 64,                              /* warps that share the columns of a long run at most */
    LONG_GROUPS = 4,                                /* rows that a warp adds up side by side in a long run */
};

/* Rows of a run, one a lane; scaled by 0: not in the run, or not wanted. */
struct RunRows {
    int32_t row;
    float scale;
};

/* Lanes from 0 on that say yes without a gap. */
static __device__ __forceinline__ int leading(bool yes)
{
    const unsigned no = ~__ballot_sync(~0u, yes);
    return no ? __ffs(no) - 1 : 32;
}

template <int V> static __device__ __forceinline__ void
add_scaled(float (&sum)[V], float scale, const Raw<V> &raw)
{
    float v[V];
    unpack(raw, v);
#pragma unroll
    for (int i = 0; i < V; i++) sum[i] += scale * v[i];
}

/* to += scale * from: a run of one row, as most are. */
template <int V> static __device__ __forceinline__ void
add_single(float *to, float scale, const bf16 *from, int64_t cols)
{
    constexpr int N = 2;
    for (int64_t c = lane_id() * V; c < cols; c += 32 * V * N) {
        Vectors<V, N> row(from, c, cols);
        float sum[N][V];
#pragma unroll
        for (int u = 0; u < N; u++)
            if (c + u * 32 * V < cols) load(to + c + u * 32 * V, sum[u]);
#pragma unroll
        for (int u = 0; u < N; u++) {
            if (c + u * 32 * V >= cols) break;
            add_scaled(sum[u], scale, row.raw[u]);
            store(to + c + u * 32 * V, sum[u]);
        }
    }
}

/* Columns of a run of less than 32 rows: strips of 32 V N, every `sharers`th from `share` on. ROWS are loaded
 * together. */
template <int V, int N, int ROWS> static __device__ __forceinline__ void
add_short(float *to, RunRows rows, int share, int sharers, const bf16 *src, int64_t stride, int64_t cols)
{
    constexpr int STRIP = 32 * V * N;
    const unsigned wanted = __ballot_sync(~0u, rows.scale != 0.0f);
    for (int64_t first = share * STRIP; first < cols; first += sharers * STRIP) {
        const int64_t c = first + lane_id() * V;
        float sum[N][V];
#pragma unroll
        for (int u = 0; u < N; u++)
            if (c + u * 32 * V < cols) load(to + c + u * 32 * V, sum[u]);
        for (unsigned left = wanted, loading = wanted; left;) {
            Raw<V> raw[ROWS][N];
            float by[ROWS];
#pragma unroll
            for (int j = 0; j < ROWS; j++) {
                if (!loading) break;
                const int lane = __ffs(loading) - 1;
                loading &= loading - 1;
                by[j] = __shfl_sync(~0u, rows.scale, lane);
                const bf16 *from = src + __shfl_sync(~0u, rows.row, lane) * stride + c;
#pragma unroll
                for (int u = 0; u < N; u++)
                    if (c + u * 32 * V < cols) raw[j][u] = load_raw<V>(from + u * 32 * V);
            }
#pragma unroll
            for (int j = 0; j < ROWS; j++) {
                if (!left) break;
                left &= left - 1;
#pragma unroll
                for (int u = 0; u < N; u++) add_scaled(sum[u], by[j], raw[j][u]);
            }
        }
#pragma unroll
        for (int u = 0; u < N; u++)
            if (c + u * 32 * V < cols) store(to + c + u * 32 * V, sum[u]);
    }
}

/* A long run, whose rows are the time it takes: 32 of them are loaded together, each by 32 / LONG_GROUPS
 * lanes, while the next are looked up. Each group of lanes adds up its rows, and at the end one all groups' sums.
 * rows_at(i): rows of 32 positions, from the run's i-th on; any row, scaled by 0, at those behind the run. */
template <int V, class RowsAt> static __device__ __forceinline__ void
add_long(float *to, RowsAt rows_at, int share, int sharers, const bf16 *src, int64_t stride, int64_t cols)
{
    constexpr int LANES = 32 / LONG_GROUPS, STRIP = LANES * V;
    const int group = lane_id() / LANES;
    for (int64_t first = share * STRIP; first < cols; first += sharers * STRIP) {
        const int64_t c = first + lane_id() % LANES * V;
        const bool in = c < cols;
        float sum[V] = {};
        if (in && group == 0) load(to + c, sum);
        bool more = true;
        RunRows rows = rows_at(0, more);
        for (int i = 32;; i += 32) {
            if (!__any_sync(~0u, rows.scale != 0.0f)) {     /* 32 rows that are not wanted, or no more */
                if (!more) break;
                rows = rows_at(i, more);
                continue;
            }
            Raw<V> raw[LANES];
            float by[LANES];
#pragma unroll
            for (int j = 0; j < LANES; j++) {
                by[j] = __shfl_sync(~0u, rows.scale, j * LONG_GROUPS + group);
                const int64_t row = __shfl_sync(~0u, rows.row, j * LONG_GROUPS + group);
                raw[j] = load_raw<V>(src + row * stride + (in ? c : 0));    /* an if would serialise these */
            }
            rows = more ? rows_at(i, more) : RunRows{0, 0};
#pragma unroll
            for (int j = 0; j < LANES; j++)
                if (by[j] != 0.0f) add_scaled(sum, by[j], raw[j]);
        }
#pragma unroll
        for (int mask = LANES; mask < 32; mask *= 2)
#pragma unroll
            for (int k = 0; k < V; k++) sum[k] += __shfl_xor_sync(~0u, sum[k], mask);
        if (in && group == 0) store(to + c, sum);
    }
}

/* grad[id] += sum over the id's rows of scale_of(row) * src[row], for every id in ids[order[...]]. One warp a
 * position, RUN_THREADS a block. V: 8, columns of a 16-byte access, or 1.
 *   grad: [., cols] f32   ids: [.]   order: [count]   src: [., cols] */
template <int V, class ScaleOf> static __device__ __forceinline__ void
sum_runs(float *grad, int64_t grad_stride, const int32_t *ids, const int32_t *order, int64_t count,
         const bf16 *src, int64_t stride, int64_t cols, ScaleOf scale_of)
{
    const int64_t at = blockIdx.x * (int64_t)RUN_WARPS + threadIdx.x / 32;
    const int lane = lane_id();
    if (at >= count) return;
    const int32_t row_on = order[min(at + lane, count - 1)], row_back = order[max(at - 1 - lane, (int64_t)0)];
    const int32_t id_on = ids[row_on], id_back = ids[row_back], id = __shfl_sync(~0u, id_on, 0);
    int place = leading(at - 1 - lane >= 0 && id_back == id);
    const int rows = place + leading(at + lane < count && id_on == id);     /* as far as is seen from here */
    float *to = grad + id * grad_stride;

    if (rows == 1) {
        const int32_t row = __shfl_sync(~0u, row_on, 0);
        const float scale = scale_of(row);
        if (scale != 0.0f) add_single<V>(to, scale, src + row * stride, cols);
        return;
    }
    if (rows < LONG_RUN) {
        RunRows run;
        const int32_t before = __shfl_sync(~0u, row_back, (place - 1 - lane) & 31);
        run.row = __shfl_sync(~0u, row_on, (lane - place) & 31);
        if (lane < place) run.row = before;
        run.scale = lane < rows ? scale_of(run.row) : 0.0f;
        if (rows < FEW_ROWS) add_short<V, 2, FEW_ROWS - 1>(to, run, place, rows, src, stride, cols);
        else add_short<V, 1, 8>(to, run, place, rows, src, stride, cols);
        return;
    }
    const int64_t further = at - 33 - lane;
    if (place == 32) place += leading(further >= 0 && ids[order[further]] == id);
    const int64_t start = at - place, last = start + LONG_SHARERS - 1;
    const int sharers = last < count && ids[order[last]] == id ? LONG_SHARERS : LONG_RUN;
    if (place >= sharers) return;
    auto rows_at = [&](int i, bool &more) {
        RunRows run = {0, 0};
        bool in = start + i + lane < count;
        if (in) {
            run.row = order[start + i + lane];
            in = ids[run.row] == id;
        }
        if (in) run.scale = scale_of(run.row);
        more = __all_sync(~0u, in);
        return run;
    };
    add_long<V>(to, rows_at, place, sharers, src, stride, cols);
}

static inline unsigned run_blocks(int64_t count) { return (unsigned)((count + RUN_WARPS - 1) / RUN_WARPS); }
