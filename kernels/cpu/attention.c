/* Causal attention with grouped heads. Only the logarithms of the row sums are kept for the backward pass,
 * which computes the probabilities again (Dao et al., FlashAttention, arXiv 2205.14135). Queries go block by
 * block, so that most of the keys beyond the diagonal are never touched. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/math.h"
#include <string.h>

/* Head `head` of tensor t: rows of one sequence, columns [first + head * dim, + dim). */
static Tensor head_view(Tensor t, int64_t row, int64_t rows, int64_t first, int head, int dim)
{
    return tensor_cols(tensor_rows(t, row, rows), first + (int64_t)head * dim, dim);
}

/* Keys [*low, return) that query i of the block may attend to, of n keys. */
static int64_t allowed_keys(const AttentionBlock *block, int64_t i, int64_t n, int64_t *low)
{
    *low = block->start ? max_i64(0, block->start[i] - block->start_offset) : 0;
    return min_i64(n, block->first_query + i + 1);
}

/* row: scores of n keys, becomes exp(score * scale - shift) in [low, high), 0 elsewhere. Returns the sum. */
static float exp_row(float *row, int64_t n, int64_t low, int64_t high, float scale, float shift)
{
    float sum = 0.0f;
    for (int64_t j = 0; j < low; j++) row[j] = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t j = low; j < high; j++) {
        float e = fast_exp(row[j] * scale - shift);
        row[j] = e;
        sum += e;
    }
    for (int64_t j = high; j < n; j++) row[j] = 0.0f;
    return sum;
}

void attend_block(const AttentionBlock *block, Tensor p, Tensor o, float *lse)
{
    float inverse[QUERY_BLOCK];
    gemm_nt(p, block->q, block->k, 0.0f);
    for (int64_t i = 0; i < p.rows; i++) {
        float *row = row_at(p, i), largest = -INFINITY;
        int64_t low, high = allowed_keys(block, i, p.cols, &low);
#pragma omp simd reduction(max : largest)
        for (int64_t j = low; j < high; j++) largest = row[j] > largest ? row[j] : largest;
        float shift = largest * block->scale;
        float sum = exp_row(row, p.cols, low, high, block->scale, shift);
        inverse[i] = 1.0f / sum;
        if (lse) lse[i] = shift + logf(sum);
    }
    gemm_nn(o, p, block->v, 0.0f);
    for (int64_t i = 0; i < o.rows; i++)
        for (int64_t c = 0; c < o.cols; c++) row_at(o, i)[c] *= inverse[i];
}

/* Queries [first, first + n) of one head of sequence b, against the keys that any of them may attend to. */
static AttentionBlock query_block(Tensor qkv, const AttentionShape *s, int b, int head, int64_t first,
                                  int64_t n)
{
    int64_t row = (int64_t)b * s->seq, low = 0;
    int kv = head / (s->heads / s->kv_heads);
    int64_t k_first = (int64_t)s->heads * s->head_dim, v_first = k_first + (int64_t)s->kv_heads * s->head_dim;
    if (s->doc_start) {
        low = first;
        for (int64_t i = 0; i < n; i++) low = min_i64(low, s->doc_start[row + first + i]);
    }
    return (AttentionBlock){
        .q = head_view(qkv, row + first, n, 0, head, s->head_dim),
        .k = head_view(qkv, row + low, first + n - low, k_first, kv, s->head_dim),
        .v = head_view(qkv, row + low, first + n - low, v_first, kv, s->head_dim),
        .first_query = first - low,
        .start = s->doc_start ? s->doc_start + row + first : NULL,
        .start_offset = low,
        .scale = 1.0f / sqrtf((float)s->head_dim),
    };
}

/* Floats of one thread: two blocks of scores (probabilities and their gradients) and deltas. */
static int64_t thread_floats(const AttentionShape *s)
{
    return padded_floats(2 * QUERY_BLOCK * (int64_t)s->seq);
}

size_t attention_scratch(AttentionShape shape)
{
    return (size_t)(omp_get_max_threads() * thread_floats(&shape)) * sizeof(float);
}

static float *thread_scratch(const OpContext *ctx, const AttentionShape *s)
{
    return (float *)ctx->workspace + omp_get_thread_num() * thread_floats(s);
}

void cpu_attention(const OpContext *ctx, Tensor o, float *lse, Tensor qkv, AttentionShape shape)
{
    int64_t blocks = (shape.seq + QUERY_BLOCK - 1) / QUERY_BLOCK;
#pragma omp parallel for collapse(3) schedule(static, 1)
    for (int b = 0; b < shape.batch; b++)
        for (int head = 0; head < shape.heads; head++)
            for (int64_t at = 0; at < blocks; at++) {
                int64_t first = at * QUERY_BLOCK, n = min_i64(QUERY_BLOCK, shape.seq - first);
                AttentionBlock block = query_block(qkv, &shape, b, head, first, n);
                Tensor p = tensor(thread_scratch(ctx, &shape), n, block.k.rows, DTYPE_F32);
                Tensor out = head_view(o, (int64_t)b * shape.seq + first, n, 0, head, shape.head_dim);
                attend_block(&block, p, out, lse + ((int64_t)b * shape.heads + head) * shape.seq + first);
            }
}

/* dq, and its part of dk and dv, of one block of queries. do, o: [n, Dh]  lse: [n] */
static void attend_block_bwd(const AttentionBlock *block, Tensor dq, Tensor dk, Tensor dv, Tensor d_o,
                             Tensor o, const float *lse, float *scratch)
{
    Tensor p = tensor(scratch, block->q.rows, block->k.rows, DTYPE_F32);
    Tensor ds = tensor(scratch + p.rows * p.cols, p.rows, p.cols, DTYPE_F32);
    gemm_nt(p, block->q, block->k, 0.0f);
    gemm_nt(ds, d_o, block->v, 0.0f);
    for (int64_t i = 0; i < p.rows; i++) {
        float *p_row = row_at(p, i), *ds_row = row_at(ds, i);
        int64_t low, high = allowed_keys(block, i, p.cols, &low);
        exp_row(p_row, p.cols, low, high, block->scale, lse[i]);
        float delta = dot(row_at(d_o, i), row_at(o, i), o.cols);
#pragma omp simd
        for (int64_t j = 0; j < p.cols; j++) ds_row[j] = p_row[j] * (ds_row[j] - delta) * block->scale;
    }
    gemm_nn(dq, ds, block->k, 0.0f);
    gemm_tn(dk, ds, block->q, 1.0f);
    gemm_tn(dv, p, d_o, 1.0f);
}

static void zero_tensor(Tensor t)
{
    for (int64_t i = 0; i < t.rows; i++) memset(row_at(t, i), 0, (size_t)t.cols * sizeof(float));
}

void cpu_attention_bwd(const OpContext *ctx, Tensor dqkv, Tensor d_o, Tensor qkv, Tensor o, const float *lse,
                       AttentionShape shape)
{
    int group = shape.heads / shape.kv_heads, dim = shape.head_dim;
    int64_t k_first = (int64_t)shape.heads * dim, v_first = k_first + (int64_t)shape.kv_heads * dim;
    /* One thread adds up all that reaches a key, head after head and block after block. */
#pragma omp parallel for collapse(2) schedule(static)
    for (int b = 0; b < shape.batch; b++)
        for (int kv = 0; kv < shape.kv_heads; kv++) {
            int64_t row = (int64_t)b * shape.seq;
            Tensor dk = head_view(dqkv, row, shape.seq, k_first, kv, dim);
            Tensor dv = head_view(dqkv, row, shape.seq, v_first, kv, dim);
            zero_tensor(dk);
            zero_tensor(dv);
            for (int head = kv * group; head < (kv + 1) * group; head++)
                for (int64_t first = 0; first < shape.seq; first += QUERY_BLOCK) {
                    int64_t n = min_i64(QUERY_BLOCK, shape.seq - first);
                    AttentionBlock block = query_block(qkv, &shape, b, head, first, n);
                    int64_t low = first - block.first_query, keys = block.k.rows;
                    attend_block_bwd(&block, head_view(dqkv, row + first, n, 0, head, dim),
                                     tensor_rows(dk, low, keys), tensor_rows(dv, low, keys),
                                     head_view(d_o, row + first, n, 0, head, dim),
                                     head_view(o, row + first, n, 0, head, dim),
                                     lse + ((int64_t)b * shape.heads + head) * shape.seq + first,
                                     thread_scratch(ctx, &shape));
                }
        }
}
