/* THE contract: every operation of the training step, one per row of docs/MATH.md's tables.
 *
 * kernels/cpu, kernels/cuda/unfused and kernels/cuda/fused implement the same ops over the same algebra:
 * same inputs, same saved tensors, same outputs within the tolerance of their dtype. kernels/cpu is the
 * specification. Kernels know tensors, sizes and a stream; they know no config and no model.
 *
 * Notation: T rows (tokens of a micro-batch), d hidden, f ffn, V vocabulary, Vp = V rounded up to 128,
 * H heads, KV kv_heads, Dh head_dim, C rows of a head chunk. r = rstd of the row (RowNorm). "act" is the
 * activation dtype (f32 on the CPU, bf16 or fp8 on a GPU). Every weight operand is a working weight: folded
 * (W' = W diag gamma), rows in the order of its RowLayout. All matrices are row-major [out, in].
 *
 * Errors: the model checks shapes before it calls, so an op has nothing to report; an implementation that
 * meets a device failure prints file, line, op and cause, and ends the process with exit code 1. */
#pragma once
#include "kernels/tensor.h"
#include <stdbool.h>

typedef enum OpId {
    OP_EMBED, OP_QKV, OP_ATTENTION, OP_OUT, OP_GATE_UP, OP_DOWN,
    OP_HEAD, OP_HEAD_LOSS, OP_HEAD_DX, OP_HEAD_DW, OP_HEAD_EVAL, OP_LOGITS,
    OP_DOWN_DX, OP_DOWN_DW, OP_GATE_UP_DX, OP_GATE_UP_DW, OP_OUT_DX, OP_OUT_DW,
    OP_ATTENTION_BWD, OP_QKV_GRAD, OP_QKV_DX, OP_QKV_DW, OP_EMBED_DW,
    OP_FOLD, OP_GRAD_NORM, OP_CLIP, OP_ADAMW,
    OP_COUNT
} OpId;

/* Name of an op as it stands in configs, tables, NVTX ranges and errors: "gate_up", "down_dx", ... */
const char *op_name(OpId op);

/* What every op is given beside its tensors. */
typedef struct OpContext {
    void  *backend;         /* the implementation's state: handles, plans, tuning choices; NULL on the CPU */
    void  *stream;          /* cudaStream_t; NULL on the CPU */
    void  *workspace;       /* scratch, its contents mean nothing between ops */
    size_t workspace_bytes; /* at least ops->workspace_bytes() of the largest op */
    int    layer;           /* 0-based, -1 outside the layers: for ranges and messages only */
    bool   first_micro;     /* first micro-batch of the step: gradients are stored, not accumulated */
    bool   last_micro;      /* last micro-batch of the step: accumulators are complete after it */
} OpContext;

typedef struct Rope {
    const float   *cos_sin; /* [max_pos, Dh/2, 2] f32: cosine and sine of pos * inv_freq[i] */
    const int32_t *pos;     /* [T]: position of each row in its document */
    int            head_dim;
    int64_t        rotated; /* leading columns of qkv that are rotated: (H + KV) * Dh */
} Rope;

typedef struct AttentionShape {
    int batch, seq;         /* T = batch * seq; row b * seq + s */
    int heads, kv_heads, head_dim;
    const int32_t *doc_start; /* [T] or NULL: within its sequence, the first index that row may attend to */
    bool deterministic;     /* backward sums in one fixed order */
} AttentionShape;

/* One chunk of C rows on its way through the head. All row vectors are f32 on the device. */
typedef struct HeadChunk {
    Tensor   xg;            /* [C, d] act: x * gamma_f, the head's operand */
    Tensor   x;             /* [C, d] act: residual stream before the final norm */
    RowNorm  norm;          /* of x, rows of this chunk */
    Tensor   table;         /* [Vp, d] working head weight, rows >= vocab are zero */
    int64_t  vocab;         /* V */
    const int32_t *targets; /* [C]; any valid id where weights is 0 */
    const int32_t *order;   /* [C]: rows of the chunk sorted by target, stable */
    const float   *weights; /* [C]: loss weight w, 0 = ignored; they sum to 1 over the step */
    Tensor   e;             /* [C, Vp] act: E, the anchored exponentials without the target */
    RowSums  d, q;          /* [C, parts]: partial sums of E and of E * shifted logit */
    float   *anchor;        /* [C]: logit of the target */
    float   *loss;          /* [C]: cross entropy in nats, unweighted */
    float   *alpha, *beta;  /* [C]: r w / (1 + D) and alpha D */
    float   *s;             /* [C]: r alpha Q / d */
    Tensor   axg;           /* [C, d] act: alpha * xg, operand of the head's weight gradient */
} HeadChunk;

#define HEAD_CLAMP 60.0f    /* E = exp(min(shifted, 60)): alpha * xg stays a normal BF16 number */

/* Per-step results that the device decides and the host reads once a step. */
typedef struct StepStats {
    double  loss;           /* sum of w * loss over the step */
    double  grad_norm;      /* before clipping */
    double  clip_factor;    /* min(1, clip / grad_norm); 1 when clipping is off */
    int64_t clamped_rows;   /* rows whose loss went beyond HEAD_CLAMP */
    int32_t skipped;        /* 1: gradients were not finite, no weight was changed */
    int32_t pad;
} StepStats;

/* Per-step settings of the update, on the device so that a captured graph can be replayed. */
typedef struct Hyper {
    float    lr, beta1, beta2, eps, weight_decay;
    float    bias1, bias2;  /* 1 - beta^t */
    float    clip;          /* 0 = off */
    uint32_t seed, step;    /* for stochastic rounding: counter-based, element index is the counter */
} Hyper;

/* A trainable tensor with all its companions. Norm weights are [1, d] with working.data NULL. */
typedef struct Weight {
    const char *name;       /* "layers.3.wqkv", for messages */
    Tensor   master;        /* [N, K] f32, rows in Hugging Face's order */
    Tensor   m, v;          /* [N, K] f32 or bf16 (stochastically rounded), rows as master */
    Tensor   grad;          /* [Np, K] f32: G, rows as working */
    Tensor   working;       /* [Np, K] act: W diag gamma; Np = N, or Vp for tables (rows >= N are zero) */
    RowLayout rows;
    float   *gamma;         /* [K] master of the norm folded into this weight, or NULL */
    float   *gamma_before;  /* [K]: gamma as it was when grad was computed */
    float   *dgamma;        /* [K]: gradient of gamma, written by grad_norm */
    float   *keep_before;   /* norm weights only, [K]: adamw saves the old value here first */
    bool     decay;         /* weight decay applies (matrices) */
} Weight;

typedef struct Ops {
    const char *name;       /* "cpu", "cuda" */

    /* How many parts op leaves per row in its RowSums for an output of `cols` columns. */
    int (*parts)(const OpContext *ctx, OpId op, int64_t cols);

    /* Bytes of the largest scratch that any op needs for these sizes: what OpContext.workspace must hold.
     * shape.seq is the longest range of keys that a row may attend to. */
    size_t (*workspace_bytes)(const OpContext *ctx, int64_t rows, int64_t hidden, int64_t ffn,
                              int64_t qkv_cols, int64_t head_chunk, int64_t vocab_padded,
                              AttentionShape shape);

    /* ---- forward ------------------------------------------------------------------------------- */

    /* x = table[tokens];  sumsq = sum x^2.     x: [T, d]  tokens: [T]  table: [Vp, d] */
    void (*embed)(const OpContext *ctx, Tensor x, RowSums sumsq, const int32_t *tokens, Tensor table);

    /* qkv = rotate(r * (x W'^T)).     qkv: [T, (H + 2KV) Dh]  x: [T, d]  w: [(H + 2KV) Dh, d] ROWS_QKV
     * Rotation of a pair: (a, b) -> (a cos - b sin, a sin + b cos). */
    void (*qkv)(const OpContext *ctx, Tensor qkv, Tensor x, Tensor w, RowNorm norm, Rope rope);

    /* o = softmax(q k^T / sqrt(Dh), causal) v, grouped heads.     o: [T, H Dh]
     * lse: [batch, H, seq] f32, log of the row sums of exp (natural log), kept for the backward pass. */
    void (*attention)(const OpContext *ctx, Tensor o, float *lse, Tensor qkv, AttentionShape shape);

    /* OP_OUT, OP_DOWN: out = residual + a W^T;  sumsq = sum out^2;  xg = out * gamma where xg is wanted.
     * out, residual: [T, d]  a: [T, K]  w: [d, K]  xg: [T, d]  gamma: [d] f32, NULL without xg
     * out may be the same memory as residual. */
    void (*residual)(const OpContext *ctx, OpId op, Tensor out, RowSums sumsq, Tensor xg, Tensor a, Tensor w,
                     Tensor residual, const float *gamma);

    /* z = r1 * (x1 W'^T), blocks of 8 gates and their 8 ups;  y = silu(g) u, from the rounded z.
     * z: [T, 2f]  y: [T, f]  x1: [T, d]  w: [2f, d] ROWS_GATE_UP */
    void (*gate_up)(const OpContext *ctx, Tensor z, Tensor y, Tensor x1, Tensor w, RowNorm norm);

    /* ---- head ---------------------------------------------------------------------------------- */

    /* Fills e, d, q, anchor: anchor = logit of the target, E = exp(min(logit - anchor, 60)), 0 at the
     * target and in padded columns, D = sum E, Q = sum E min(logit - anchor, 60); logit = r (xg table^T). */
    void (*head)(const OpContext *ctx, const HeadChunk *h);

    /* Fills loss, alpha, beta, s, axg from d, q; adds sum w loss and the clamped rows to stats. */
    void (*head_loss)(const OpContext *ctx, const HeadChunk *h, StepStats *stats);

    /* u = alpha * (E table) - beta * table[t];  dx = u * gamma - s * x;  dgamma (+)= sum over rows u * x.
     * dx: [C, d]  gamma, dgamma: [d] f32; dgamma is stored when !accumulate, else added to. */
    void (*head_dx)(const OpContext *ctx, Tensor dx, float *dgamma, const HeadChunk *h, const float *gamma,
                    bool accumulate);

    /* G (+)= E^T axg, then G[t_i] -= beta_i xg_i, added up in one fixed order that follows h->order.
     * grad: [Vp, d] f32 */
    void (*head_dw)(const OpContext *ctx, Tensor grad, const HeadChunk *h, bool accumulate);

    /* Validation: fills loss alone, from a running maximum and sum; uses e as scratch only if it must. */
    void (*head_eval)(const OpContext *ctx, const HeadChunk *h);

    /* Sampling: logits = r (xg table^T).     logits: [C, V] f32 */
    void (*logits)(const OpContext *ctx, Tensor logits, const HeadChunk *h);

    /* ---- backward ------------------------------------------------------------------------------ */

    /* dy = dx W2;  dz = r1 * dSwiGLU(z, dy), so already scaled;  zdz = sum over the row of z * (dz / r1);
     * y recomputed from z where y.data is not NULL.
     * dz: [T, 2f]  y: [T, f]  dx: [T, d]  w: [d, f]  z: [T, 2f] */
    void (*down_dx)(const OpContext *ctx, Tensor dz, Tensor y, RowSums zdz, Tensor dx, Tensor w, Tensor z,
                    RowNorm norm);

    /* OP_GATE_UP_DX, OP_QKV_DX: out = residual_grad + dz W' - s * x,  s = r^2 zdz / d.
     * out, residual_grad, x: [T, d]  dz: [T, N], already scaled by r  w: [N, d]
     * out may be the same memory as residual_grad. */
    void (*norm_dx)(const OpContext *ctx, OpId op, Tensor out, Tensor dz, Tensor w, Tensor residual_grad,
                    Tensor x, RowNorm norm, RowSums zdz);

    /* do = dx1 Wo.     do: [T, H Dh]  dx1: [T, d]  w: [d, H Dh] */
    void (*out_dx)(const OpContext *ctx, Tensor d_o, Tensor dx1, Tensor w);

    /* dqkv from do; every column of dqkv is written.     dqkv, qkv: [T, (H + 2KV) Dh]  d_o, o: [T, H Dh] */
    void (*attention_bwd)(const OpContext *ctx, Tensor dqkv, Tensor d_o, Tensor qkv, Tensor o,
                          const float *lse, AttentionShape shape);

    /* In place: zdz = sum qkv * dqkv;  dqkv = r * unrotate(dqkv). */
    void (*qkv_grad)(const OpContext *ctx, Tensor dqkv, RowSums zdz, Tensor qkv, RowNorm norm, Rope rope);

    /* OP_*_DW: G (+)= dy^T a.     grad: [N, K] f32  dy: [T, N]  a: [T, K]
     * Where sumsq is not NULL it receives sum G^2 of the finished accumulator. */
    void (*dw)(const OpContext *ctx, OpId op, Tensor grad, Tensor dy, Tensor a, bool accumulate,
               double *sumsq);

    /* grad[tokens[i]] (+)= dx[i], in one fixed order that follows `order` (rows sorted by token, stable).
     * grad: [Vp, d] f32; without accumulate the whole table is zeroed first. */
    void (*embed_dw)(const OpContext *ctx, Tensor grad, const int32_t *tokens, const int32_t *order,
                     Tensor dx, bool accumulate);

    /* ---- weight pass (docs/MATH.md, section 1: order of the weight pass) -------------------------- */

    /* working = master diag gamma, permuted; rows beyond the master are zero. At start and after a load. */
    void (*fold)(const OpContext *ctx, const Weight *w);

    /* sumsq = sum (G diag gamma)^2, and dgamma[k] = sum over n of W[n,k] G[n,k] where a gamma is folded. */
    void (*grad_norm)(const OpContext *ctx, const Weight *w, double *sumsq);

    /* stats: grad_norm = sqrt(sum sumsq), clip_factor; skipped = 1 where the norm or the loss is not
     * finite. */
    void (*clip)(const OpContext *ctx, const double *sumsq, int count, const Hyper *hyper, StepStats *stats);

    /* One AdamW update (decoupled decay) with dW = G diag gamma_before * clip_factor, then the fold with the
     * new gamma, in one pass. Nothing changes where stats->skipped. Norm weights go before what folds
     * them. */
    void (*adamw)(const OpContext *ctx, const Weight *w, const Hyper *hyper, const StepStats *stats);

    /* ---- generation ---------------------------------------------------------------------------- */

    /* n new rows at positions past .. past + n - 1 of one sequence: appends their k and v to the caches and
     * attends to everything so far.     o: [n, H Dh]  qkv: [n, (H + 2KV) Dh]  caches: [max, KV Dh] act */
    void (*attention_cached)(const OpContext *ctx, Tensor o, Tensor qkv, Tensor k_cache, Tensor v_cache,
                             int64_t past, AttentionShape shape);

    /* ---- diagnosis ----------------------------------------------------------------------------- */

    /* Number of NaN and infinite elements; waits for the result. */
    int64_t (*count_nonfinite)(const OpContext *ctx, Tensor t);

    /* What carries out op in this run, for the table of choices: "cpu", "cublasLt + separate kernel", ... */
    const char *(*choice)(const OpContext *ctx, OpId op);
} Ops;

extern const Ops cpu_ops;
