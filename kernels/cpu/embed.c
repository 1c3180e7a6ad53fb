/* The lookup and its gradient. */
#include "kernels/cpu/cpu.h"
#include <string.h>

void cpu_embed(const OpContext *ctx, Tensor x, RowSums sumsq, const int32_t *tokens, Tensor table)
{
    (void)ctx;
#pragma omp parallel for schedule(static) if (worth_sharing(x.rows))
    for (int64_t i = 0; i < x.rows; i++) {
        const float *from = row_at(table, tokens[i]);
        memcpy(row_at(x, i), from, (size_t)x.cols * sizeof(float));
        sumsq.data[i] = sum_squares(from, x.cols);
    }
}

/* First position at or after `at` that begins a group of equal ids. */
static int64_t group_start(const int32_t *ids, const int32_t *order, int64_t n, int64_t at)
{
    while (at > 0 && at < n && ids[order[at]] == ids[order[at - 1]]) at++;
    return at;
}

void scatter_add(Tensor grad, const int32_t *ids, const int32_t *order, float factor, const float *scale,
                 Tensor src)
{
    int64_t n = src.rows;
    /* A group is one thread's alone: no two threads write a row, and each row adds up in one order. */
#pragma omp parallel if (worth_sharing(n))
    {
        int64_t threads = omp_get_num_threads(), me = omp_get_thread_num();
        int64_t end = group_start(ids, order, n, n * (me + 1) / threads);
        for (int64_t at = group_start(ids, order, n, n * me / threads); at < end; at++) {
            int64_t i = order[at];
            float *restrict to = row_at(grad, ids[i]);
            const float *restrict from = row_at(src, i);
            float by = scale ? factor * scale[i] : factor;
            for (int64_t k = 0; k < src.cols; k++) to[k] += by * from[k];
        }
    }
}

void cpu_embed_dw(const OpContext *ctx, Tensor grad, const int32_t *tokens, const int32_t *order, Tensor dx,
                  bool accumulate)
{
    (void)ctx;
    if (!accumulate) {
#pragma omp parallel for schedule(static)
        for (int64_t i = 0; i < grad.rows; i++) memset(row_at(grad, i), 0, (size_t)grad.cols * sizeof(float));
    }
    scatter_add(grad, tokens, order, 1.0f, NULL, dx);
}
