/* What the files of the CPU implementation share. All tensors are f32.
 *
 * Each op splits its rows into blocks and runs GEMM and epilogue block by block, so that the epilogue finds
 * the block in cache and one OpenMP region serves both. A GEMM inside a parallel region runs on its own
 * thread alone (OpenBLAS built for OpenMP); with too few rows to share out, the region has one thread and
 * the GEMM uses them all. Sums over blocks are added in the order of the blocks: results are bitwise the
 * same from run to run with the same number of threads. */
#pragma once
#include "kernels/ops.h"
#include <math.h>
#include <omp.h>

/* ---- rows -------------------------------------------------------------------------------------------- */

static inline float *row_at(Tensor t, int64_t row) { return (float *)t.data + row * t.stride; }

/* Columns [first, first + cols) of t. */
static inline Tensor tensor_cols(Tensor t, int64_t first, int64_t cols)
{
    t.data = (float *)t.data + first;
    t.cols = cols;
    return t;
}

static inline float row_sum(RowSums sums, int64_t row)
{
    float sum = 0.0f;
    for (int i = 0; i < sums.parts; i++) sum += sums.data[row * sums.parts + i];
    return sum;
}

static inline float row_rstd(RowNorm norm, int64_t row)
{
    return 1.0f / sqrtf(row_sum(norm.sumsq, row) / (float)norm.cols + norm.eps);
}

static inline float dot(const float *restrict a, const float *restrict b, int64_t n)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static inline float sum_squares(const float *a, int64_t n)
{
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++) sum += a[i] * a[i];
    return sum;
}

/* ---- blocks of rows ---------------------------------------------------------------------------------- */

/* The more rows in a block, the less the GEMM's packing of the weight costs (128 rows: 5 % of a small model's
 * step); the fewer, the more of the block its epilogue finds in cache. */
#define MAX_BLOCK_ROWS 384

static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

/* Whether `rows` are worth sharing out by rows; fewer are left to one thread (and the GEMM's own threads). */
static inline bool worth_sharing(int64_t rows) { return rows >= 4 * omp_get_max_threads(); }

/* Rows of a block: the same number of blocks for every thread, none above `most`. */
static inline int64_t block_rows(int64_t rows, int64_t most)
{
    int64_t threads = worth_sharing(rows) ? omp_get_max_threads() : 1;
    int64_t per_thread = (rows + threads - 1) / threads;
    int64_t blocks = (per_thread + most - 1) / most;
    return max_i64(1, (per_thread + blocks - 1) / max_i64(1, blocks));
}

/* Upper bound of the number of such blocks; never falls when rows rise, so that scratch planned for many
 * rows is enough for fewer. */
static inline int64_t most_blocks(int64_t rows, int64_t most)
{
    int64_t threads = omp_get_max_threads(), per_thread = (rows + threads - 1) / threads;
    return threads * ((per_thread + most - 1) / most);
}

/* Rounds the scratch of one thread up, so that no two threads write the same cache line. */
static inline int64_t padded_floats(int64_t n) { return (n + 15) / 16 * 16; }

/* ---- GEMM (gemm.c): row-major, c = product + beta * c ------------------------------------------------ */

void gemm_nt(Tensor c, Tensor a, Tensor b, float beta);     /* c: [M, N]  a: [M, K]  b: [N, K] */
void gemm_nn(Tensor c, Tensor a, Tensor b, float beta);     /* c: [M, N]  a: [M, K]  b: [K, N] */
void gemm_tn(Tensor c, Tensor a, Tensor b, float beta);     /* c: [M, N]  a: [K, M]  b: [K, N] */

/* ---- shared by several ops --------------------------------------------------------------------------- */

/* grad[ids[i]] += factor * scale[i] * src[i] for the rows i in `order`, which groups equal ids (embed.c).
 * scale: [src.rows] or NULL for 1. */
void scatter_add(Tensor grad, const int32_t *ids, const int32_t *order, float factor, const float *scale,
                 Tensor src);

/* One block of queries of one head against a range of keys (attention.c). */
typedef struct AttentionBlock {
    Tensor  q, k, v;        /* [n, Dh], [keys, Dh], [keys, Dh]: views, key 0 is the range's first */
    int64_t first_query;    /* row of q[0], counted like the keys from the range's first */
    const int32_t *start;   /* [n] or NULL: first key that each query may attend to */
    int64_t start_offset;   /* subtracted from start[] */
    float   scale;          /* 1 / sqrt(Dh) */
} AttentionBlock;

/* p: [n, keys] scratch.  o: [n, Dh]  lse: [n] or NULL. */
void attend_block(const AttentionBlock *block, Tensor p, Tensor o, float *lse);

#define QUERY_BLOCK 64      /* rows of queries at a time */

/* ---- scratch of the ops that use any, in bytes ------------------------------------------------------- */

size_t attention_scratch(AttentionShape shape);
size_t head_dx_scratch(int64_t chunk, int64_t hidden);
size_t down_dx_scratch(int64_t rows, int64_t ffn);
size_t dw_scratch(void);
size_t grad_norm_scratch(int64_t rows, int64_t cols);

/* ---- the ops, as kernels/ops.h specifies them -------------------------------------------------------- */

void cpu_embed(const OpContext *ctx, Tensor x, RowSums sumsq, const int32_t *tokens, Tensor table);
void cpu_qkv(const OpContext *ctx, Tensor qkv, Tensor x, Tensor w, RowNorm norm, Rope rope);
void cpu_attention(const OpContext *ctx, Tensor o, float *lse, Tensor qkv, AttentionShape shape);
void cpu_residual(const OpContext *ctx, OpId op, Tensor out, RowSums sumsq, Tensor xg, Tensor a, Tensor w,
                  Tensor residual, const float *gamma);
void cpu_gate_up(const OpContext *ctx, Tensor z, Tensor y, Tensor x1, Tensor w, RowNorm norm);

void cpu_head(const OpContext *ctx, const HeadChunk *h);
void cpu_head_loss(const OpContext *ctx, const HeadChunk *h, StepStats *stats);
void cpu_head_dx(const OpContext *ctx, Tensor dx, float *dgamma, const HeadChunk *h, const float *gamma,
                 bool accumulate);
void cpu_head_dw(const OpContext *ctx, Tensor grad, const HeadChunk *h, bool accumulate);
void cpu_head_eval(const OpContext *ctx, const HeadChunk *h);
void cpu_logits(const OpContext *ctx, Tensor logits, const HeadChunk *h);

void cpu_down_dx(const OpContext *ctx, Tensor dz, Tensor y, RowSums zdz, Tensor dx, Tensor w, Tensor z,
                 RowNorm norm);
void cpu_norm_dx(const OpContext *ctx, OpId op, Tensor out, Tensor dz, Tensor w, Tensor residual_grad,
                 Tensor x, RowNorm norm, RowSums zdz);
void cpu_out_dx(const OpContext *ctx, Tensor d_o, Tensor dx1, Tensor w);
void cpu_attention_bwd(const OpContext *ctx, Tensor dqkv, Tensor d_o, Tensor qkv, Tensor o, const float *lse,
                       AttentionShape shape);
void cpu_qkv_grad(const OpContext *ctx, Tensor dqkv, RowSums zdz, Tensor qkv, RowNorm norm, Rope rope);
void cpu_dw(const OpContext *ctx, OpId op, Tensor grad, Tensor dy, Tensor a, bool accumulate, double *sumsq);
void cpu_embed_dw(const OpContext *ctx, Tensor grad, const int32_t *tokens, const int32_t *order, Tensor dx,
                  bool accumulate);

void cpu_fold(const OpContext *ctx, const Weight *w);
void cpu_grad_norm(const OpContext *ctx, const Weight *w, double *sumsq);
void cpu_clip(const OpContext *ctx, const double *sumsq, int count, const Hyper *hyper, StepStats *stats);
void cpu_adamw(const OpContext *ctx, const Weight *w, const Hyper *hyper, const StepStats *stats);

void cpu_attention_cached(const OpContext *ctx, Tensor o, Tensor qkv, Tensor k_cache, Tensor v_cache,
                          int64_t past, AttentionShape shape);
