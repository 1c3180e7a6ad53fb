/* The head: softmax anchored at the target with the target left out (docs/MATH.md, section 3). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"
#include <string.h>

enum { TILE_COLS = 1024 };  /* a tile of logits stays in second-level cache between GEMM and exponentials */

/* The target's own logit, from its row alone. */
static float target_logit(const HeadChunk *h, int64_t i, float r)
{
    return r * dot(row_at(h->xg, i), row_at(h->table, h->targets[i]), h->xg.cols);
}

/* Columns [col, col + cols) of x table^T for rows [first, first + rows), without r. */
static void logits_tile(const HeadChunk *h, Tensor out, int64_t first, int64_t rows, int64_t col,
                        int64_t cols)
{
    gemm_nt(out, tensor_rows(h->xg, first, rows), tensor_rows(h->table, col, cols), 0.0f);
}

/* e: [n] raw products, become exponentials; adds to the row's D and Q. */
static void anchored_span(float *e, int64_t n, float r, float anchor, float *d, float *q)
{
    float sum = 0.0f, weighted = 0.0f;
#pragma omp simd reduction(+ : sum, weighted)
    for (int64_t j = 0; j < n; j++) {
        float shifted = r * e[j] - anchor;
        shifted = shifted > HEAD_CLAMP ? HEAD_CLAMP : shifted;
        float value = fast_exp(shifted);
        e[j] = value;
        sum += value;
        weighted += value * shifted;
    }
    *d += sum;
    *q += weighted;
}

void cpu_head(const OpContext *ctx, const HeadChunk *h)
{
    (void)ctx;
    int64_t rows = h->xg.rows, block = block_rows(rows, MAX_BLOCK_ROWS);
#pragma omp parallel for schedule(static) if (worth_sharing(rows))
    for (int64_t first = 0; first < rows; first += block) {
        int64_t n = min_i64(block, rows - first);
        float r[MAX_BLOCK_ROWS];
        for (int64_t i = 0; i < n; i++) {
            r[i] = row_rstd(h->norm, first + i);
            h->anchor[first + i] = target_logit(h, first + i, r[i]);
            h->d.data[first + i] = h->q.data[first + i] = 0.0f;
        }
        for (int64_t col = 0; col < h->vocab; col += TILE_COLS) {
            int64_t cols = min_i64(TILE_COLS, h->vocab - col);
            Tensor tile = tensor_cols(tensor_rows(h->e, first, n), col, cols);
            logits_tile(h, tile, first, n, col, cols);
            for (int64_t i = 0; i < n; i++) {
                float *e = row_at(tile, i), *d = h->d.data + first + i, *q = h->q.data + first + i;
                float anchor = h->anchor[first + i];
                int64_t target = h->targets[first + i] - col;
                if (target < 0 || target >= cols) {
                    anchored_span(e, cols, r[i], anchor, d, q);
                } else {
                    anchored_span(e, target, r[i], anchor, d, q);
                    e[target] = 0.0f;
                    anchored_span(e + target + 1, cols - target - 1, r[i], anchor, d, q);
                }
            }
        }
        for (int64_t i = first; i < first + n; i++)
            memset(row_at(h->e, i) + h->vocab, 0, (size_t)(h->e.cols - h->vocab) * sizeof(float));
    }
}

void cpu_head_loss(const OpContext *ctx, const HeadChunk *h, StepStats *stats)
{
    (void)ctx;
    int64_t rows = h->x.rows, width = h->x.cols;
    float clamped = fast_exp(HEAD_CLAMP);   /* a sum that holds one clamped term is no smaller */
#pragma omp parallel for schedule(static) if (worth_sharing(rows))
    for (int64_t i = 0; i < rows; i++) {
        float r = row_rstd(h->norm, i), d = row_sum(h->d, i), q = row_sum(h->q, i);
        float alpha = r * h->weights[i] / (1.0f + d);
        h->loss[i] = log1pf(d);
        h->alpha[i] = alpha;
        h->beta[i] = alpha * d;
        h->s[i] = r * alpha * q / (float)width;
        float *restrict to = row_at(h->axg, i);
        const float *restrict from = row_at(h->xg, i);
        for (int64_t k = 0; k < width; k++) to[k] = alpha * from[k];
    }
    for (int64_t i = 0; i < rows; i++) {
        if (h->weights[i] == 0.0f) continue;
        stats->loss += (double)h->weights[i] * (double)h->loss[i];
        stats->clamped_rows += row_sum(h->d, i) >= clamped;
    }
}

size_t head_dx_scratch(int64_t chunk, int64_t hidden)
{
    return (size_t)(most_blocks(chunk, MAX_BLOCK_ROWS) * padded_floats(hidden)) * sizeof(float);
}

/* Row i of dx: E table becomes u * gamma - s * x; adds u * x to column_sums. */
static void head_dx_row(float *restrict dx, float *restrict column_sums, const HeadChunk *h, int64_t i,
                        const float *restrict gamma)
{
    float alpha = h->alpha[i], beta = h->beta[i], s = h->s[i];
    const float *restrict target = row_at(h->table, h->targets[i]), *restrict x = row_at(h->x, i);
    for (int64_t k = 0; k < h->x.cols; k++) {
        float u = alpha * dx[k] - beta * target[k];
        column_sums[k] += u * x[k];
        dx[k] = u * gamma[k] - s * x[k];
    }
}

void cpu_head_dx(const OpContext *ctx, Tensor dx, float *dgamma, const HeadChunk *h, const float *gamma,
                 bool accumulate)
{
    int64_t rows = dx.rows, width = dx.cols, block = block_rows(rows, MAX_BLOCK_ROWS);
    int64_t stride = padded_floats(width);
    float *partial = ctx->workspace;
#pragma omp parallel for schedule(static) if (worth_sharing(rows))
    for (int64_t first = 0; first < rows; first += block) {
        int64_t n = min_i64(block, rows - first);
        float *column_sums = partial + first / block * stride;
        gemm_nn(tensor_rows(dx, first, n), tensor_rows(h->e, first, n), h->table, 0.0f);
        memset(column_sums, 0, (size_t)width * sizeof(float));
        for (int64_t i = first; i < first + n; i++) head_dx_row(row_at(dx, i), column_sums, h, i, gamma);
    }
    if (!accumulate) memset(dgamma, 0, (size_t)width * sizeof(float));
    for (int64_t b = 0; b * block < rows; b++)
        for (int64_t k = 0; k < width; k++) dgamma[k] += partial[b * stride + k];
}

void cpu_head_dw(const OpContext *ctx, Tensor grad, const HeadChunk *h, bool accumulate)
{
    cpu_dw(ctx, OP_HEAD_DW, grad, h->e, h->axg, accumulate, NULL);
    scatter_add(grad, h->targets, h->order, -1.0f, h->beta, h->xg);
}

/* Running maximum and sum of exp(logit - maximum) of one row. */
typedef struct RunningSum { float largest, sum; } RunningSum;

static void running_span(RunningSum *state, const float *products, int64_t n, float r)
{
    if (n <= 0) return;
    float largest = -INFINITY, sum = 0.0f;
#pragma omp simd reduction(max : largest)
    for (int64_t j = 0; j < n; j++) largest = products[j] > largest ? products[j] : largest;
    largest *= r;
    largest = largest > state->largest ? largest : state->largest;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = 0; j < n; j++) sum += fast_exp(r * products[j] - largest);
    state->sum = state->sum * fast_exp(state->largest - largest) + sum;
    state->largest = largest;
}

void cpu_head_eval(const OpContext *ctx, const HeadChunk *h)
{
    (void)ctx;
    int64_t rows = h->xg.rows, block = block_rows(rows, MAX_BLOCK_ROWS);
#pragma omp parallel for schedule(static) if (worth_sharing(rows))
    for (int64_t first = 0; first < rows; first += block) {
        int64_t n = min_i64(block, rows - first);
        RunningSum others[MAX_BLOCK_ROWS];
        for (int64_t i = 0; i < n; i++) others[i] = (RunningSum){.largest = -INFINITY, .sum = 0.0f};
        for (int64_t col = 0; col < h->vocab; col += TILE_COLS) {
            int64_t cols = min_i64(TILE_COLS, h->vocab - col);
            Tensor tile = tensor_cols(tensor_rows(h->e, first, n), 0, cols);
            logits_tile(h, tile, first, n, col, cols);
            for (int64_t i = 0; i < n; i++) {
                float r = row_rstd(h->norm, first + i);
                const float *products = row_at(tile, i);
                int64_t target = h->targets[first + i] - col;
                bool inside = target >= 0 && target < cols;
                running_span(&others[i], products, inside ? target : cols, r);
                if (inside) running_span(&others[i], products + target + 1, cols - target - 1, r);
            }
        }
        /* With the target left out of the sum, loss = log(1 + e^delta) keeps its digits when it is tiny. */
        for (int64_t i = 0; i < n; i++) {
            float anchor = target_logit(h, first + i, row_rstd(h->norm, first + i));
            float delta = others[i].largest + logf(others[i].sum) - anchor;
            h->loss[first + i] = delta > 0.0f ? delta + log1pf(expf(-delta)) : log1pf(expf(delta));
        }
    }
}

void cpu_logits(const OpContext *ctx, Tensor logits, const HeadChunk *h)
{
    (void)ctx;
    int64_t rows = h->xg.rows, block = block_rows(rows, MAX_BLOCK_ROWS);
#pragma omp parallel for schedule(static) if (worth_sharing(rows))
    for (int64_t first = 0; first < rows; first += block) {
        int64_t n = min_i64(block, rows - first);
        logits_tile(h, tensor_rows(logits, first, n), first, n, 0, h->vocab);
        for (int64_t i = first; i < first + n; i++) {
            float r = row_rstd(h->norm, i), *restrict row = row_at(logits, i);
            for (int64_t j = 0; j < h->vocab; j++) row[j] *= r;
        }
    }
}
