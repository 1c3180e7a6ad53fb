/* The weight pass: norm of the gradient, clipping, AdamW and the fold of gamma (docs/MATH.md, section 1). */
#include "kernels/cpu/cpu.h"
#include "kernels/rounding.h"
#include <string.h>

/* working = master * gamma, gamma NULL: 1. */
static void fold_row(float *restrict working, const float *restrict master, const float *restrict gamma,
                     int64_t n)
{
    if (gamma)
        for (int64_t k = 0; k < n; k++) working[k] = master[k] * gamma[k];
    else
        memcpy(working, master, (size_t)n * sizeof(float));
}

void cpu_fold(const OpContext *ctx, const Weight *w)
{
    (void)ctx;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < w->working.rows; row++) {
        float *to = row_at(w->working, row);
        if (row < w->master.rows)
            fold_row(to, row_at(w->master, master_row(w->rows, row)), w->gamma, w->master.cols);
        else
            memset(to, 0, (size_t)w->working.cols * sizeof(float));
    }
}

/* Scratch: per block of rows one sum of squares, on its own cache line, then one row of dgamma. */
enum { SUM_BYTES = 64 };

static size_t block_scratch(int64_t cols)
{
    return SUM_BYTES + (size_t)padded_floats(cols) * sizeof(float);
}

size_t grad_norm_scratch(int64_t rows, int64_t cols)
{
    return (size_t)most_blocks(rows, MAX_BLOCK_ROWS) * block_scratch(cols);
}

/* Adds w * g to dgamma and returns sum (g * gamma)^2. */
static float folded_row(float *restrict dgamma, const float *restrict g, const float *restrict w,
                        const float *restrict gamma, int64_t n)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t k = 0; k < n; k++) {
        float dw = g[k] * gamma[k];
        sum += dw * dw;
        dgamma[k] += w[k] * g[k];
    }
    return sum;
}

void cpu_grad_norm(const OpContext *ctx, const Weight *w, double *sumsq)
{
    int64_t rows = w->master.rows, cols = w->master.cols, block = block_rows(rows, MAX_BLOCK_ROWS);
#pragma omp parallel for schedule(static) if (worth_sharing(rows))
    for (int64_t first = 0; first < rows; first += block) {
        char *scratch = (char *)ctx->workspace + (size_t)(first / block) * block_scratch(cols);
        double sum = 0.0;
        float *dgamma = (float *)(scratch + SUM_BYTES);
        int64_t end = min_i64(first + block, rows);
        if (w->gamma) memset(dgamma, 0, (size_t)cols * sizeof(float));
        for (int64_t row = first; row < end; row++) {
            const float *g = row_at(w->grad, row), *p = row_at(w->master, master_row(w->rows, row));
            sum += w->gamma ? folded_row(dgamma, g, p, w->gamma, cols) : sum_squares(g, cols);
        }
        *(double *)scratch = sum;
    }
    *sumsq = 0.0;
    if (w->gamma) memset(w->dgamma, 0, (size_t)cols * sizeof(float));
    for (int64_t b = 0; b * block < rows; b++) {
        const char *scratch = (const char *)ctx->workspace + (size_t)b * block_scratch(cols);
        *sumsq += *(const double *)scratch;
        if (!w->gamma) continue;
        const float *dgamma = (const float *)(scratch + SUM_BYTES);
        for (int64_t k = 0; k < cols; k++) w->dgamma[k] += dgamma[k];
    }
}

void cpu_clip(const OpContext *ctx, const double *sumsq, int count, const Hyper *hyper, StepStats *stats)
{
    (void)ctx;
    double sum = 0.0;
    for (int i = 0; i < count; i++) sum += sumsq[i];
    stats->grad_norm = sqrt(sum);
    double clip = (double)hyper->clip;
    stats->clip_factor = clip > 0.0 && stats->grad_norm > clip ? clip / stats->grad_norm : 1.0;
    stats->skipped = !isfinite(stats->grad_norm) || !isfinite(stats->loss);
}

/* Factors of one update. */
typedef struct AdamFactors {
    float beta1, beta2, eps, clip;
    float inverse_bias1, inverse_bias2;
    float lr, decay;            /* decay: lr * weight decay */
} AdamFactors;

/* The new parameter; m and v are updated (Loshchilov and Hutter, AdamW, arXiv 1711.05101). */
static inline float adam_element(float p, float g, float *m, float *v, const AdamFactors *f)
{
    *m = f->beta1 * *m + (1.0f - f->beta1) * g;
    *v = f->beta2 * *v + (1.0f - f->beta2) * g * g;
    float step = *m * f->inverse_bias1 / (sqrtf(*v * f->inverse_bias2) + f->eps);
    return p - f->lr * step - f->decay * p;
}

/* Element k of the clipped dW = G diag gamma; gamma NULL: 1. */
static inline float clipped(const float *g, const float *gamma, int64_t k, float clip)
{
    return (gamma ? g[k] * gamma[k] : g[k]) * clip;
}

static void adam_row(float *restrict p, float *restrict m, float *restrict v, const float *restrict g,
                     const float *restrict gamma, int64_t n, const AdamFactors *factors)
{
    AdamFactors f = *factors;
#pragma omp simd
    for (int64_t k = 0; k < n; k++) p[k] = adam_element(p[k], clipped(g, gamma, k, f.clip), &m[k], &v[k], &f);
}

/* The same with moments in BF16: the update uses them before they are rounded. index: of p[0]. */
static void adam_row_bf16(float *restrict p, uint16_t *restrict m, uint16_t *restrict v,
                          const float *restrict g, const float *restrict gamma, int64_t n,
                          const AdamFactors *factors, uint32_t key, int64_t index)
{
    for (int64_t k = 0; k < n; k++) {
        float new_m = bf16_to_float(m[k]), new_v = bf16_to_float(v[k]);
        uint32_t random = rounding_bits(key, index + k);
        p[k] = adam_element(p[k], clipped(g, gamma, k, factors->clip), &new_m, &new_v, factors);
        m[k] = bf16_round_stochastic(new_m, random);
        v[k] = bf16_round_stochastic(new_v, random >> 16);
    }
}

void cpu_adamw(const OpContext *ctx, const Weight *w, const Hyper *hyper, const StepStats *stats)
{
    (void)ctx;
    if (stats->skipped) return;
    int64_t rows = w->master.rows, cols = w->master.cols;
    AdamFactors factors = {
        .beta1 = hyper->beta1, .beta2 = hyper->beta2, .eps = hyper->eps, .clip = (float)stats->clip_factor,
        .inverse_bias1 = 1.0f / hyper->bias1, .inverse_bias2 = 1.0f / hyper->bias2,
        .lr = hyper->lr, .decay = w->decay ? hyper->lr * hyper->weight_decay : 0.0f,
    };
    uint32_t key = rounding_key(hyper->seed, hyper->step);
    if (w->keep_before) memcpy(w->keep_before, w->master.data, (size_t)cols * sizeof(float));
#pragma omp parallel for schedule(static) if (worth_sharing(rows))
    for (int64_t row = 0; row < rows; row++) {
        int64_t from = master_row(w->rows, row);
        float *p = row_at(w->master, from);
        const float *g = row_at(w->grad, row);
        if (w->m.dtype == DTYPE_BF16) {
            uint16_t *m = (uint16_t *)w->m.data + from * w->m.stride;
            uint16_t *v = (uint16_t *)w->v.data + from * w->v.stride;
            adam_row_bf16(p, m, v, g, w->gamma_before, cols, &factors, key, from * cols);
        } else {
            adam_row(p, row_at(w->m, from), row_at(w->v, from), g, w->gamma_before, cols, &factors);
        }
        if (w->working.data) fold_row(row_at(w->working, row), p, w->gamma, cols);
    }
}
