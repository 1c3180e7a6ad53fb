/* Hugging Face's names for the weights of a Llama. The one place that knows how q, k, v and gate, up are cut
 * out of the joined masters: reading and writing both walk this list. */
#pragma once
#include "model/llama.h"

typedef struct HfTensor {
    char    name[80];       /* "model.layers.3.self_attn.k_proj.weight" */
    int     weight;         /* index into Llama.weights */
    int64_t first_row;      /* its rows within that weight's master */
    int64_t rows, cols;     /* a norm: 1 row */
    int     dims;           /* 2, or 1 for a norm ([cols]) */
} HfTensor;

/* Every tensor in the order of Llama.weights; lm_head.weight is left out when tied. Owned by the caller
 * (free); NULL when memory ran out. */
HfTensor *hf_tensors(const LlamaShape *shape, int *count);
