/* The LLaMA-3 model: shapes, buffers, and one training step as the list of ops of docs/MATH.md. */
#pragma once
#include "data/batch.h"
#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/config.h"
#include "model/plan.h"

/* What a model instance is for; decides which buffers exist. */
typedef enum LlamaMode { LLAMA_TRAIN, LLAMA_INFER } LlamaMode;

/* Sizes that follow from a Config. Every count is in elements. */
typedef struct LlamaShape {
    int     layers, heads, kv_heads, head_dim;
    int64_t hidden, ffn, vocab, vocab_padded;   /* vocab_padded: a multiple of 128 */
    int64_t q_cols, kv_cols, qkv_cols;          /* H Dh, KV Dh, (H + 2KV) Dh */
    int     sequences, seq;                     /* of a micro-batch */
    int64_t rows;                               /* T = sequences * seq */
    int64_t head_chunk;                         /* rows of a head chunk */
    int64_t max_position;                       /* rows of the rope table */
    bool    tied, keep_y;
    float   norm_eps;
    Dtype   act, moments;
} LlamaShape;

/* The weights of a layer, in the order of Llama.weights. */
typedef enum LayerWeight {
    LAYER_ATTN_NORM, LAYER_WQKV, LAYER_WO, LAYER_MLP_NORM, LAYER_W13, LAYER_W2, LAYER_WEIGHTS
} LayerWeight;

/* Saved tensors of one layer (docs/MATH.md, section 2). */
typedef struct LlamaLayer {
    Tensor  x, qkv, o, x1, z, y;
    float  *lse;
    RowSums x_sumsq, x1_sumsq;
    /* indices into Llama.weights */
    int     attn_norm, wqkv, wo, mlp_norm, w13, w2;
} LlamaLayer;

typedef struct Llama {
    LlamaShape    shape;
    LlamaMode     mode;
    const Ops    *ops;
    const Device *device;
    OpContext     ctx;

    /* All trainable tensors; a norm stands before the weight that folds it. Names, in this order:
     * "embed", then per layer l "layers.l.attn_norm", "layers.l.wqkv" (q rows, k rows, v rows),
     * "layers.l.wo", "layers.l.mlp_norm", "layers.l.w13" (gate rows, up rows), "layers.l.w2", then
     * "final_norm", and "head" when it is not tied. */
    Weight       *weights;
    int           weight_count;
    int           embed, final_norm, head;      /* indices; head == embed when tied */
    LlamaLayer   *layers;

    struct LlamaBuffers *buffers;               /* everything else: gradients, batch, head chunk, caches */
    void         *memory;                       /* the one allocation */
    size_t        memory_bytes;
} Llama;

LlamaShape llama_shape(const Config *config, Dtype act);

/* Measures every buffer of a model without allocating any: --dry-run prints it. context: longest sequence to
 * generate (0 = none). */
Plan llama_plan(const Config *config, Dtype act, LlamaMode mode, const Ops *ops, const OpContext *ctx,
                int64_t context);

/* Allocates and lays out a model; weights are undefined until llama_init or a checkpoint fills them.
 * Returns NULL with an error added when memory is not enough. */
Llama *llama_create(const Config *config, Dtype act, LlamaMode mode, const Ops *ops, const Device *device,
                    const OpContext *ctx, int64_t context, Errors *errors);
void llama_destroy(Llama *model);

/* Random weights (model/init.c): normal, model.init_std (embeddings: embedding_init_std), wo and w2 divided
 * by sqrt(2 layers), norms 1. Counter-based: the same on every backend. Zeroes the moments, folds. Returns
 * false when host memory ran out. */
bool llama_init(Llama *model, const Config *config);

/* Working copies from the masters: after llama_init or after masters were replaced. */
void llama_fold(Llama *model);

/* Whether steps are recorded as graphs where the device can (the default). Without, each op can be timed
 * alone. */
void llama_record_steps(Llama *model, bool record);

/* ---- one step: for each micro-batch forward + backward, then one update -------------------------- */

/* Zeroes the step's statistics. */
void llama_begin_step(Llama *model);
/* scale: 1 / (valid rows of the whole step). */
void llama_micro_step(Llama *model, const Batch *batch, float scale, bool first, bool last);
/* hyper: on the host. Clips, updates, and returns the step's statistics (the step's one wait). */
StepStats llama_update(Llama *model, const Hyper *hyper);

/* Cross entropies in nats, one a row, of a batch: loss[T] on the host. No gradient. */
void llama_eval(Llama *model, const Batch *batch, float *loss);

/* Generation: feeds n tokens at positions past .. past + n - 1 and returns the logits [V] after the last one
 * (host memory, valid until the next call). past + n must not exceed the context of llama_create. */
const float *llama_next_logits(Llama *model, const int32_t *tokens, int64_t n, int64_t past);

/* First tensor with a NaN or infinity, in the order of the forward and backward pass, as a sentence:
 * "layers.3.z has 17 non-finite values of 65536". Static when nothing is found. Caller frees. */
char *llama_find_nonfinite(Llama *model);

/* Parameters of the model; a tied table counts once. */
int64_t llama_parameters(const LlamaShape *shape);

/* FLOPs of one training token: 6 N_matmul + 12 layers H Dh seq. N_matmul excludes the input embedding but
 * counts the head once; no causal halving; recomputation is not counted. */
double llama_flops_per_token(const LlamaShape *shape);
