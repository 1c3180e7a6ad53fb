/* Sums over rows that share an id: gradients of table rows. Positions of `order` are sorted by id, so the rows
 * of an id form a run. A warp looks at each position. The first of a short run adds up the whole run; the
 * columns of a long one, whose rows must be added one after the other, are shared out among the warps of its
 * first LONG_RUN positions. So every element has one writer and one order of summation. */
#pragma once
#include "kernels/cuda/vec.cuh"

enum {
    LONG_RUN = 32,      /* rows, and as far as a warp looks */
    SHORT_VECTORS = 2, SHORT_ROWS = 4,      /* of a short run, loaded together: rows of 8 columns a lane */
    LONG_ROWS = 16,                         /* of a long run: rows of 4 columns a lane */
};

/* Rows of a run, one a lane. */
struct RunRows {
    int32_t row;
    float scale;
    unsigned lanes;     /* whose rows belong to the run */
};

/* sum[u] += scale * src row, row by row, for the rows in `rows` that are not scaled by 0. src: from the
 * lane's first column on; vector u is 32 V u columns further, where that is below `columns`. */
template <int V, int N, int ROWS> static __device__ __forceinline__ void
add_rows(float (&sum)[N][V], const RunRows &rows, const bf16 *src, int64_t stride, int64_t columns)
{
    unsigned left = rows.lanes & __ballot_sync(~0u, rows.scale != 0.0f);
    while (left) {
        Raw<V> raw[ROWS][N];
        float by[ROWS];
        unsigned loading = left;
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            if (!loading) break;
            int lane = __ffs(loading) - 1;
            loading &= loading - 1;
            by[j] = __shfl_sync(~0u, rows.scale, lane);
            const bf16 *from = src + __shfl_sync(~0u, rows.row, lane) * stride;
#pragma unroll
            for (int u = 0; u < N; u++)
                if (u * 32 * V < columns) raw[j][u] = load_raw<V>(from + u * 32 * V);
        }
#pragma unroll
        for (int j = 0; j < ROWS; j++) {
            if (!left) break;
            left &= left - 1;
#pragma unroll
            for (int u = 0; u < N; u++) {
                float v[V];
                unpack(raw[j][u], v);
#pragma unroll
                for (int i = 0; i < V; i++) sum[u][i] += by[j] * v[i];
            }
        }
    }
}

/* The rows of run `id` among the 32 positions from `at` on, which lie in it or behind it. */
static __device__ __forceinline__ RunRows
run_rows(const int32_t *ids, const int32_t *order, int64_t count, const float *scale, int64_t at, int32_t id)
{
    RunRows rows = {0, 0, 0};
    bool in = at + lane_id() < count;
    if (in) {
        rows.row = order[at + lane_id()];
        in = ids[rows.row] == id;
    }
    if (in) rows.scale = scale ? scale[rows.row] : 1.0f;
    rows.lanes = __ballot_sync(~0u, in);
    return rows;
}

/* For every id in ids[order[...]]: begin(row of grad, sum), the sum over the id's rows of src, end(row, sum).
 * One warp a position: warp_row(). V: 8, columns of a 16-byte access, or 1.
 *   grad: [., cols] f32   ids: [.]   order: [count]   scale: [.] f32 or NULL   src: [., cols] */
template <int V, class Begin, class End> static __device__ __forceinline__ void
sum_runs(float *grad, int64_t stride, const int32_t *ids, const int32_t *order, int64_t count,
         const float *scale, const bf16 *src, int64_t src_stride, int64_t cols, Begin begin, End end)
{
    constexpr int W = V == 8 ? 4 : V;
    const int64_t at = warp_row();
    const int lane = lane_id();
    if (at >= count) return;
    const int64_t before = at - 1 - lane;
    const int32_t id = ids[order[at]];
    const bool same = before >= 0 && ids[order[max(before, (int64_t)0)]] == id;
    const unsigned back = __ballot_sync(~0u, same);
    if (back == ~0u) return;
    const int place = __ffs(~back) - 1;
    RunRows rows = run_rows(ids, order, count, scale, at, id);
    float *to = grad + id * stride;

    if (place + __popc(rows.lanes) < LONG_RUN) {
        if (place) return;
        for (int64_t first = 0; first < cols; first += 32 * V * SHORT_VECTORS) {
            const int64_t c = first + lane * V;
            float sum[SHORT_VECTORS][V];
#pragma unroll
            for (int u = 0; u < SHORT_VECTORS; u++)
                if (c + u * 32 * V < cols) begin(to + c + u * 32 * V, sum[u]);
            add_rows<V, SHORT_VECTORS, SHORT_ROWS>(sum, rows, src + c, src_stride, cols - c);
#pragma unroll
            for (int u = 0; u < SHORT_VECTORS; u++)
                if (c + u * 32 * V < cols) end(to + c + u * 32 * V, sum[u]);
        }
        return;
    }
    for (int64_t first = place * 32 * W; first < cols; first += LONG_RUN * 32 * W) {
        const int64_t c = first + lane * W;
        float sum[1][W];
        if (c < cols) begin(to + c, sum[0]);
        rows = run_rows(ids, order, count, scale, at - place, id);
        for (int64_t next = at - place + 32; rows.lanes; next += 32) {
            const bool more = rows.lanes == ~0u;
            RunRows following = {0, 0, 0};      /* looked up while these rows are loaded */
            if (more) following = run_rows(ids, order, count, scale, next, id);
            add_rows<W, 1, LONG_ROWS>(sum, rows, src + c, src_stride, cols - c);
            rows = following;
        }
        if (c < cols) end(to + c, sum[0]);
    }
}
