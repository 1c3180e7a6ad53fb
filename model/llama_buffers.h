/* What a Llama holds beside its weights and saved activations. Private to model/llama*.c. */
#pragma once
#include "model/llama.h"

/* The batch travels as one block of BATCH_FIELDS vectors of T 32-bit values. */
typedef enum BatchField {
    BATCH_TOKENS, BATCH_TARGETS, BATCH_POS, BATCH_DOC_START, BATCH_WEIGHTS,
    BATCH_TOKEN_ORDER, BATCH_TARGET_ORDER, BATCH_FIELDS
} BatchField;

struct LlamaBuffers {
    /* device */
    int32_t   *batch;           /* [BATCH_FIELDS, T] */
    float     *cos_sin;         /* [max_position, Dh/2, 2] */
    Tensor     x_final, xg;     /* [T, d] act: residual stream after the last layer, and times gamma_f */
    RowSums    x_final_sumsq;
    Tensor     dx;              /* [T, d] act: the residual gradient, updated in place */
    Tensor     dz, dqkv, d_o;   /* [T, 2f], [T, (H+2KV)Dh], [T, H Dh] act */
    RowSums    zdz;
    HeadChunk  head;            /* buffers of one chunk; inputs are set per chunk */
    float     *loss;            /* [T] */
    Tensor     logits;          /* [1, V] f32 */
    Tensor    *k_cache, *v_cache;   /* per layer [context, KV Dh] act */
    int64_t    context;
    StepStats *stats;
    Hyper     *hyper;
    double    *sumsq;           /* [weight_count] */

    /* host */
    int32_t   *staging;         /* [slots, BATCH_FIELDS, T]: batches of a step on their way to the device */
    int        slots, next_slot;
    int32_t   *counts;          /* [vocab + 1]: for sorting rows by token */
    float     *host_logits;     /* [V] */
    StepStats *host_stats;
    Hyper     *host_hyper;
    Graph     *micro_graph[2][2];   /* by first, last */
    int        micro_runs[2][2];
    Graph     *update_graph;
    int        update_runs;
    bool       issue_directly;  /* no recorded graphs */
    bool       document_mask, deterministic, decay_embeddings;
};

/* Lays out weights, activations and buffers in the plan's order; with plan->base NULL it only measures. */
void llama_layout(Llama *model, Plan *plan);
