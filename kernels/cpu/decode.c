/* Attention of new rows over the caches of one sequence. */
#include "kernels/cpu/cpu.h"
#include <string.h>

void cpu_attention_cached(const OpContext *ctx, Tensor o, Tensor qkv, Tensor k_cache, Tensor v_cache,
                          int64_t past, AttentionShape shape)
{
    int64_t n = qkv.rows, dim = shape.head_dim, kv_cols = shape.kv_heads * dim, total = past + n;
    int64_t k_first = shape.heads * dim, blocks = (n + QUERY_BLOCK - 1) / QUERY_BLOCK;
    for (int64_t i = 0; i < n; i++) {
        const float *k = row_at(qkv, i) + k_first, *v = k + kv_cols;
        memcpy(row_at(k_cache, past + i), k, (size_t)kv_cols * sizeof(float));
        memcpy(row_at(v_cache, past + i), v, (size_t)kv_cols * sizeof(float));
    }
    int64_t thread_floats = padded_floats(QUERY_BLOCK * total);
#pragma omp parallel for collapse(2) schedule(static, 1)
    for (int head = 0; head < shape.heads; head++)
        for (int64_t at = 0; at < blocks; at++) {
            int64_t first = at * QUERY_BLOCK, rows = min_i64(QUERY_BLOCK, n - first);
            int64_t keys = past + first + rows;
            int64_t kv = head / (shape.heads / shape.kv_heads) * dim;
            AttentionBlock block = {
                .q = tensor_cols(tensor_rows(qkv, first, rows), head * dim, dim),
                .k = tensor_cols(tensor_rows(k_cache, 0, keys), kv, dim),
                .v = tensor_cols(tensor_rows(v_cache, 0, keys), kv, dim),
                .first_query = past + first,
                .scale = 1.0f / sqrtf((float)dim),
            };
            float *scratch = (float *)ctx->workspace + omp_get_thread_num() * thread_floats;
            Tensor p = tensor(scratch, rows, keys, DTYPE_F32);
            attend_block(&block, p, tensor_cols(tensor_rows(o, first, rows), head * dim, dim), NULL);
        }
}
