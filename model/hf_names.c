#include "model/hf_names.h"
#include <stdio.h>
#include <stdlib.h>

HfTensor *hf_tensors(const LlamaShape *s, int *count)
{
    const int64_t d = s->hidden, q = s->q_cols, kv = s->kv_cols, f = s->ffn;
    const struct { const char *name; int weight; int64_t first_row, rows, cols; int dims; } parts[] = {
        {"input_layernorm", LAYER_ATTN_NORM, 0, 1, d, 1},
        {"self_attn.q_proj", LAYER_WQKV, 0, q, d, 2},
        {"self_attn.k_proj", LAYER_WQKV, q, kv, d, 2},
        {"self_attn.v_proj", LAYER_WQKV, q + kv, kv, d, 2},
        {"self_attn.o_proj", LAYER_WO, 0, d, q, 2},
        {"post_attention_layernorm", LAYER_MLP_NORM, 0, 1, d, 1},
        {"mlp.gate_proj", LAYER_W13, 0, f, d, 2},
        {"mlp.up_proj", LAYER_W13, f, f, d, 2},
        {"mlp.down_proj", LAYER_W2, 0, d, f, 2},
    };
    const int n_parts = sizeof parts / sizeof *parts, final_norm = 1 + s->layers * LAYER_WEIGHTS;
    HfTensor *list = calloc((size_t)(3 + s->layers * n_parts), sizeof *list), *t = list;
    if (!list) return NULL;
    *t++ = (HfTensor){"model.embed_tokens.weight", 0, 0, s->vocab, d, 2};
    for (int l = 0; l < s->layers; l++) {
        for (int i = 0; i < n_parts; i++, t++) {
            *t = (HfTensor){.weight = 1 + l * LAYER_WEIGHTS + parts[i].weight,
                            .first_row = parts[i].first_row,
                            .rows = parts[i].rows, .cols = parts[i].cols, .dims = parts[i].dims};
            snprintf(t->name, sizeof t->name, "model.layers.%d.%s.weight", l, parts[i].name);
        }
    }
    *t++ = (HfTensor){"model.norm.weight", final_norm, 0, 1, d, 1};
    if (!s->tied) *t++ = (HfTensor){"lm_head.weight", final_norm + 1, 0, s->vocab, d, 2};
    *count = (int)(t - list);
    return list;
}
