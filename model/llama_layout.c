/* Shapes and buffers of the model: one walk that measures (--dry-run) or places (llama_create). */
#include "model/llama_buffers.h"
#include <stdlib.h>

#define VOCAB_ALIGN 128
#define HEAD_CHUNK_PER_HIDDEN 4     /* fewer rows read and write the head's gradient too often (MATH.md, 3) */

#define LARGE_LOGITS ((int64_t)1 << 30)     /* bytes; smaller ones of a whole micro-batch may stand in memory */

static int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t head_chunk(const Config *config, int64_t rows, int64_t vocab_padded, Dtype act)
{
    if (config->train.head_chunk) return min64(config->train.head_chunk, rows);
    const bool large = rows * vocab_padded > LARGE_LOGITS / (int64_t)dtype_bytes(act);
    return min64(HEAD_CHUNK_PER_HIDDEN * config->model.hidden, large ? (rows + 1) / 2 : rows);
}

LlamaShape llama_shape(const Config *config, Dtype act)
{
    int64_t heads = config->model.heads, kv_heads = config->model.kv_heads;
    int64_t head_dim = config->model.head_dim ? config->model.head_dim : config->model.hidden / heads;
    int64_t rows = config->train.micro_batch * config->train.seq_len;
    int64_t vocab_padded = (config->model.vocab + VOCAB_ALIGN - 1) / VOCAB_ALIGN * VOCAB_ALIGN;
    return (LlamaShape){
        .layers = (int)config->model.layers,
        .heads = (int)heads,
        .kv_heads = (int)kv_heads,
        .head_dim = (int)head_dim,
        .hidden = config->model.hidden,
        .ffn = config->model.ffn,
        .vocab = config->model.vocab,
        .vocab_padded = vocab_padded,
        .q_cols = heads * head_dim,
        .kv_cols = kv_heads * head_dim,
        .qkv_cols = (heads + 2 * kv_heads) * head_dim,
        .sequences = (int)config->train.micro_batch,
        .seq = (int)config->train.seq_len,
        .rows = rows,
        .head_chunk = head_chunk(config, rows, vocab_padded, act),
        .tied = config->model.tie_embeddings,
        .keep_y = config->train.recompute == RECOMPUTE_NONE,
        .norm_eps = (float)config->model.norm_eps,
        .act = act,
        .moments = act != DTYPE_F32 && config->train.moments == MOMENTS_BF16 ? DTYPE_BF16 : DTYPE_F32,
    };
}

int64_t llama_parameters(const LlamaShape *s)
{
    int64_t layer = 2 * s->hidden + s->qkv_cols * s->hidden + s->hidden * s->q_cols + 3 * s->ffn * s->hidden;
    return s->layers * layer + s->hidden + s->vocab * s->hidden * (s->tied ? 1 : 2);
}

double llama_flops_per_token(const LlamaShape *s)
{
    double layer = (double)s->qkv_cols * s->hidden + (double)s->hidden * s->q_cols + 3.0 * s->ffn * s->hidden;
    double matmul = s->layers * layer + (double)s->vocab * s->hidden;
    return 6.0 * matmul + 12.0 * s->layers * (double)s->q_cols * s->seq;
}

static Tensor take(Plan *plan, BufferClass class, int64_t rows, int64_t cols, Dtype dtype)
{
    return tensor(plan_take(plan, class, (size_t)rows, (size_t)cols * dtype_bytes(dtype)), rows, cols, dtype);
}

static RowSums take_sums(const Llama *model, Plan *plan, BufferClass class, OpId op, int64_t rows,
                         int64_t cols)
{
    int parts = model->ops->parts(&model->ctx, op, cols);
    return (RowSums){plan_take(plan, class, (size_t)rows, (size_t)parts * sizeof(float)), parts};
}

/* One weight with its companions. working_rows: 0 = a norm, which is used from its master. */
static int add_weight(Llama *model, Plan *plan, int64_t rows, int64_t cols, int64_t working_rows,
                      RowLayout layout, bool decay)
{
    const LlamaShape *s = &model->shape;
    Weight *w = &model->weights[model->weight_count];
    *w = (Weight){.name = w->name, .rows = layout, .decay = decay};
    int64_t grad_rows = working_rows ? working_rows : rows;
    w->master = take(plan, BUFFER_MASTER, rows, cols, DTYPE_F32);
    if (working_rows) w->working = take(plan, BUFFER_WORKING, working_rows, cols, s->act);
    if (model->mode == LLAMA_TRAIN) {
        w->grad = take(plan, BUFFER_GRAD, grad_rows, cols, DTYPE_F32);
        w->m = take(plan, BUFFER_MOMENTS, rows, cols, s->moments);
        w->v = take(plan, BUFFER_MOMENTS, rows, cols, s->moments);
    }
    return model->weight_count++;
}

/* A norm and the weight that folds it; the weight's index is returned, the norm's is one less. */
static int add_norm_and_weight(Llama *model, Plan *plan, int64_t rows, RowLayout layout)
{
    int64_t d = model->shape.hidden;
    int norm = add_weight(model, plan, 1, d, 0, (RowLayout){ROWS_PLAIN}, false);
    int folded = add_weight(model, plan, rows, d, rows, layout, true);
    Weight *n = &model->weights[norm], *w = &model->weights[folded];
    w->gamma = n->master.data;
    if (model->mode == LLAMA_TRAIN) {
        n->keep_before = plan_take(plan, BUFFER_MASTER, (size_t)d, sizeof(float));
        w->gamma_before = n->keep_before;
        w->dgamma = n->grad.data;
    }
    return folded;
}

static void lay_weights(Llama *model, Plan *plan, bool decay_embeddings)
{
    const LlamaShape *s = &model->shape;
    RowLayout plain = {ROWS_PLAIN};
    RowLayout qkv = {.order = ROWS_QKV, .head_dim = s->head_dim, .rotated = s->q_cols + s->kv_cols};
    RowLayout gate_up = {.order = ROWS_GATE_UP, .ffn = s->ffn};
    model->weight_count = 0;
    model->embed = add_weight(model, plan, s->vocab, s->hidden, s->vocab_padded, plain, decay_embeddings);
    for (int l = 0; l < s->layers; l++) {
        LlamaLayer *layer = &model->layers[l];
        layer->wqkv = add_norm_and_weight(model, plan, s->qkv_cols, qkv);
        layer->attn_norm = layer->wqkv - 1;
        layer->wo = add_weight(model, plan, s->hidden, s->q_cols, s->hidden, plain, true);
        layer->w13 = add_norm_and_weight(model, plan, 2 * s->ffn, gate_up);
        layer->mlp_norm = layer->w13 - 1;
        layer->w2 = add_weight(model, plan, s->hidden, s->ffn, s->hidden, plain, true);
    }
    model->final_norm = add_weight(model, plan, 1, s->hidden, 0, plain, false);
    model->head = s->tied ? model->embed
                          : add_weight(model, plan, s->vocab, s->hidden, s->vocab_padded, plain,
                                       decay_embeddings);
}

/* Saved tensors of one layer, or the one set that all layers of a model without backward pass share. */
static void lay_layer(Llama *model, Plan *plan, LlamaLayer *layer, Tensor shared_y)
{
    const LlamaShape *s = &model->shape;
    int64_t T = s->rows;
    layer->x = take(plan, BUFFER_ACTIVATIONS, T, s->hidden, s->act);
    layer->x_sumsq = take_sums(model, plan, BUFFER_ACTIVATIONS, OP_DOWN, T, s->hidden);
    layer->qkv = take(plan, BUFFER_ACTIVATIONS, T, s->qkv_cols, s->act);
    layer->o = take(plan, BUFFER_ACTIVATIONS, T, s->q_cols, s->act);
    layer->lse = plan_take(plan, BUFFER_ACTIVATIONS, (size_t)T, (size_t)s->heads * sizeof(float));
    layer->x1 = take(plan, BUFFER_ACTIVATIONS, T, s->hidden, s->act);
    layer->x1_sumsq = take_sums(model, plan, BUFFER_ACTIVATIONS, OP_OUT, T, s->hidden);
    layer->z = take(plan, BUFFER_ACTIVATIONS, T, 2 * s->ffn, s->act);
    layer->y = shared_y.rows ? shared_y : take(plan, BUFFER_ACTIVATIONS, T, s->ffn, s->act);
}

static void share_layer(LlamaLayer *layer, const LlamaLayer *from)
{
    LlamaLayer indices = *layer;
    *layer = *from;
    layer->attn_norm = indices.attn_norm, layer->wqkv = indices.wqkv, layer->wo = indices.wo;
    layer->mlp_norm = indices.mlp_norm, layer->w13 = indices.w13, layer->w2 = indices.w2;
}

static void lay_head(Llama *model, Plan *plan, struct LlamaBuffers *b)
{
    const LlamaShape *s = &model->shape;
    int64_t C = s->head_chunk;
    HeadChunk *h = &b->head;
    h->e = take(plan, BUFFER_HEAD, C, s->vocab_padded, s->act);
    h->d = take_sums(model, plan, BUFFER_HEAD, OP_HEAD, C, s->vocab_padded);
    h->q = take_sums(model, plan, BUFFER_HEAD, OP_HEAD, C, s->vocab_padded);
    h->anchor = plan_take(plan, BUFFER_HEAD, (size_t)C, sizeof(float));
    h->alpha = plan_take(plan, BUFFER_HEAD, (size_t)C, sizeof(float));
    h->beta = plan_take(plan, BUFFER_HEAD, (size_t)C, sizeof(float));
    h->s = plan_take(plan, BUFFER_HEAD, (size_t)C, sizeof(float));
    h->axg = take(plan, BUFFER_HEAD, C, s->hidden, s->act);
}

static void lay_backward(Llama *model, Plan *plan, struct LlamaBuffers *b)
{
    const LlamaShape *s = &model->shape;
    b->dz = take(plan, BUFFER_BACKWARD, s->rows, 2 * s->ffn, s->act);
    b->dqkv = take(plan, BUFFER_BACKWARD, s->rows, s->qkv_cols, s->act);
    b->d_o = take(plan, BUFFER_BACKWARD, s->rows, s->q_cols, s->act);
    int down = model->ops->parts(&model->ctx, OP_DOWN_DX, 2 * s->ffn);
    int qkv = model->ops->parts(&model->ctx, OP_QKV_GRAD, s->qkv_cols);
    b->zdz = (RowSums){.parts = down > qkv ? down : qkv};
    b->zdz.data = plan_take(plan, BUFFER_BACKWARD, (size_t)s->rows, (size_t)b->zdz.parts * sizeof(float));
}

void llama_layout(Llama *model, Plan *plan)
{
    const LlamaShape *s = &model->shape;
    struct LlamaBuffers *b = model->buffers;
    bool train = model->mode == LLAMA_TRAIN;
    int64_t T = s->rows;

    lay_weights(model, plan, b->decay_embeddings);

    Tensor shared_y = {0};
    if (train && !s->keep_y) shared_y = take(plan, BUFFER_ACTIVATIONS, T, s->ffn, s->act);
    for (int l = 0; l < s->layers; l++)
        if (train || l == 0) lay_layer(model, plan, &model->layers[l], shared_y);
        else share_layer(&model->layers[l], &model->layers[0]);
    b->x_final = train ? take(plan, BUFFER_ACTIVATIONS, T, s->hidden, s->act) : model->layers[0].x;
    b->x_final_sumsq = train ? take_sums(model, plan, BUFFER_ACTIVATIONS, OP_DOWN, T, s->hidden)
                             : model->layers[0].x_sumsq;
    b->xg = take(plan, BUFFER_ACTIVATIONS, T, s->hidden, s->act);
    b->loss = plan_take(plan, BUFFER_HEAD, (size_t)T, sizeof(float));

    if (train) {
        b->dx = take(plan, BUFFER_BACKWARD, T, s->hidden, s->act);
        Plan head = plan_fork(plan), backward = plan_fork(plan);    /* the head is done when layers begin */
        lay_head(model, &head, b);
        lay_backward(model, &backward, b);
        plan_join(plan, &head, &backward);
    }

    b->batch = plan_take(plan, BUFFER_BATCH, (size_t)T, BATCH_FIELDS * sizeof(int32_t));
    b->cos_sin = plan_take(plan, BUFFER_BATCH, (size_t)s->max_position, (size_t)s->head_dim * sizeof(float));
    b->stats = plan_take(plan, BUFFER_BATCH, 1, sizeof(StepStats));
    b->hyper = plan_take(plan, BUFFER_BATCH, 1, sizeof(Hyper));
    b->sumsq = plan_take(plan, BUFFER_BATCH, (size_t)model->weight_count, sizeof(double));

    if (b->context) {
        b->logits = take(plan, BUFFER_CACHE, 1, s->vocab, DTYPE_F32);
        for (int l = 0; l < s->layers; l++) {
            b->k_cache[l] = take(plan, BUFFER_CACHE, b->context, s->kv_cols, s->act);
            b->v_cache[l] = take(plan, BUFFER_CACHE, b->context, s->kv_cols, s->act);
        }
    }

    AttentionShape attention = {
        .batch = s->sequences, .seq = (int)s->max_position, .heads = s->heads, .kv_heads = s->kv_heads,
        .head_dim = s->head_dim, .deterministic = b->deterministic};
    model->ctx.workspace_bytes = model->ops->workspace_bytes(&model->ctx, T, s->hidden, s->ffn, s->qkv_cols,
                                                             s->head_chunk, s->vocab_padded, attention);
    model->ctx.workspace = plan_take(plan, BUFFER_WORKSPACE, 1, model->ctx.workspace_bytes);
}
