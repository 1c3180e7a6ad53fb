/* One training step as the list of ops of docs/MATH.md's tables. */
#include "model/llama.h"
#include "model/llama_buffers.h"
#include "model/rope.h"
#include <stdlib.h>
#include <string.h>

/* ---- life ------------------------------------------------------------------------------------------- */

/* With a head of its own. */
static int most_weights(const LlamaShape *s) { return 1 + LAYER_WEIGHTS * s->layers + 2; }

static bool name_weights(Llama *model)
{
    static const char *const parts[LAYER_WEIGHTS] = {
        [LAYER_ATTN_NORM] = "attn_norm", [LAYER_WQKV] = "wqkv", [LAYER_WO] = "wo",
        [LAYER_MLP_NORM] = "mlp_norm", [LAYER_W13] = "w13", [LAYER_W2] = "w2"};
    enum { LONGEST = 40 };
    int count = most_weights(&model->shape);
    char (*names)[LONGEST] = calloc((size_t)count, LONGEST);
    if (!names) return false;
    int n = 0;
    strcpy(names[n++], "embed");    /* the block of all names begins here: free_host frees it */
    for (int l = 0; l < model->shape.layers; l++)
        for (int p = 0; p < LAYER_WEIGHTS; p++) snprintf(names[n++], LONGEST, "layers.%d.%s", l, parts[p]);
    strcpy(names[n++], "final_norm");
    strcpy(names[n++], "head");
    for (int i = 0; i < count; i++) model->weights[i].name = names[i];
    return true;
}

static void free_host(Llama *model)
{
    if (!model) return;
    struct LlamaBuffers *b = model->buffers;
    if (b) free(b->k_cache), free(b->v_cache), free(b->counts);
    if (model->weights) free((char *)model->weights[0].name);
    free(b);
    free(model->weights);
    free(model->layers);
    free(model);
}

/* Everything of a model that lives on the host. */
static Llama *make_host(const Config *config, Dtype act, LlamaMode mode, const Ops *ops, const Device *device,
                        const OpContext *ctx, int64_t context)
{
    Llama *model = calloc(1, sizeof *model);
    if (!model) return NULL;
    LlamaShape *s = &model->shape;
    *s = llama_shape(config, act);
    s->max_position = s->seq > context ? s->seq : context;
    model->mode = mode, model->ops = ops, model->device = device, model->ctx = *ctx;
    model->weights = calloc((size_t)most_weights(s), sizeof *model->weights);
    model->layers = calloc((size_t)s->layers, sizeof *model->layers);
    struct LlamaBuffers *b = model->buffers = calloc(1, sizeof *b);
    if (!model->weights || !model->layers || !b || !name_weights(model)) goto fail;

    b->context = context;
    b->slots = (int)config->train.accum;
    b->document_mask = config->data.document_mask;
    b->deterministic = config->train.deterministic;
    b->decay_embeddings = config->train.decay_embeddings;
    b->k_cache = calloc((size_t)s->layers, sizeof(Tensor));
    b->v_cache = calloc((size_t)s->layers, sizeof(Tensor));
    if (!b->k_cache || !b->v_cache) goto fail;
    return model;
fail:
    free_host(model);
    return NULL;
}

Plan llama_plan(const Config *config, Dtype act, LlamaMode mode, const Ops *ops, const OpContext *ctx,
                int64_t context)
{
    Plan plan = {0};
    Llama *model = make_host(config, act, mode, ops, NULL, ctx, context);
    if (model) llama_layout(model, &plan);
    free_host(model);
    return plan;
}

static bool upload_rope_table(Llama *model, const Config *config)
{
    const LlamaShape *s = &model->shape;
    size_t bytes = (size_t)(s->max_position * s->head_dim) * sizeof(float);
    float *table = malloc(bytes);
    if (!table) return false;
    rope_table(config, s->head_dim, s->max_position, table);
    model->device->upload(model->ctx.stream, model->buffers->cos_sin, table, bytes);
    model->device->wait(model->ctx.stream);
    free(table);
    return true;
}

Llama *llama_create(const Config *config, Dtype act, LlamaMode mode, const Ops *ops, const Device *device,
                    const OpContext *ctx, int64_t context, Errors *errors)
{
    Llama *model = make_host(config, act, mode, ops, device, ctx, context);
    if (!model) {
        errors_add(errors, "out of memory while preparing the model");
        return NULL;
    }
    Plan plan = {0};
    llama_layout(model, &plan);
    model->memory_bytes = plan.total;
    model->memory = device->alloc(plan.total);
    if (!model->memory) {
        errors_add(errors,
                   "%s: no room for the plan of %.2f GiB; --dry-run shows its parts. What helps "
                   "most: a smaller train.micro_batch%s",
                   device->name, (double)plan.total / (1 << 30),
                   device->host_memory ? "" : ", train.recompute=swiglu, train.moments=bf16");
        goto fail;
    }
    plan = (Plan){.base = model->memory};
    llama_layout(model, &plan);

    struct LlamaBuffers *b = model->buffers;
    const LlamaShape *s = &model->shape;
    b->staging = device->alloc_host((size_t)(b->slots * BATCH_FIELDS * s->rows) * sizeof(int32_t));
    b->counts = malloc((size_t)(s->vocab + 1) * sizeof(int32_t));
    b->host_logits = device->alloc_host((size_t)s->vocab * sizeof(float));
    b->host_stats = device->alloc_host(sizeof *b->host_stats);
    b->host_hyper = device->alloc_host(sizeof *b->host_hyper);
    if (!b->staging || !b->counts || !b->host_logits || !b->host_stats || !b->host_hyper || !upload_rope_table(model, config)) {
        errors_add(errors, "out of memory while preparing the model");
        goto fail;
    }
    return model;
fail:
    llama_destroy(model);
    return NULL;
}

void llama_destroy(Llama *model)
{
    if (!model) return;
    struct LlamaBuffers *b = model->buffers;
    for (int first = 0; first < 2; first++)
        for (int last = 0; last < 2; last++)
            if (b->micro_graph[first][last]) model->device->graph_release(b->micro_graph[first][last]);
    if (b->update_graph) model->device->graph_release(b->update_graph);
    void *host[] = {b->staging, b->host_logits, b->host_stats, b->host_hyper};
    for (int i = 0; i < 3; i++)
        if (host[i]) model->device->release_host(host[i]);
    if (model->memory) model->device->release(model->memory);
    free_host(model);
}

/* ---- batches ---------------------------------------------------------------------------------------- */

/* order: rows [0, n) sorted by ids, equal ids in row order. counts: [vocab + 1] scratch. */
static void sort_rows(int32_t *order, const int32_t *ids, int64_t n, int32_t *counts, int64_t vocab)
{
    memset(counts, 0, (size_t)(vocab + 1) * sizeof *counts);
    for (int64_t i = 0; i < n; i++) counts[ids[i] + 1]++;
    for (int64_t v = 0; v < vocab; v++) counts[v + 1] += counts[v];
    for (int64_t i = 0; i < n; i++) order[counts[ids[i]]++] = (int32_t)i;
}

/* Loss weights become weights * scale. The staging slot is free again after the step's wait. */
static void upload_batch(Llama *model, const Batch *batch, float scale)
{
    struct LlamaBuffers *b = model->buffers;
    const LlamaShape *s = &model->shape;
    int64_t T = s->rows;
    int32_t *block = b->staging + (int64_t)b->next_slot * BATCH_FIELDS * T;
    b->next_slot = (b->next_slot + 1) % b->slots;

    size_t bytes = (size_t)T * sizeof(int32_t);
    memcpy(block + BATCH_TOKENS * T, batch->tokens, bytes);
    memcpy(block + BATCH_TARGETS * T, batch->targets, bytes);
    memcpy(block + BATCH_POS * T, batch->pos, bytes);
    memcpy(block + BATCH_DOC_START * T, batch->doc_start, bytes);
    float *weights = (float *)(block + BATCH_WEIGHTS * T);
    for (int64_t i = 0; i < T; i++) weights[i] = batch->weights[i] * scale;
    sort_rows(block + BATCH_TOKEN_ORDER * T, batch->tokens, T, b->counts, s->vocab);
    for (int64_t row = 0; row < T; row += s->head_chunk) {
        int64_t rows = T - row < s->head_chunk ? T - row : s->head_chunk;
        sort_rows(block + BATCH_TARGET_ORDER * T + row, batch->targets + row, rows, b->counts, s->vocab);
    }
    model->device->upload(model->ctx.stream, b->batch, block, BATCH_FIELDS * bytes);
}

static int32_t *batch_field(const Llama *model, BatchField field)
{
    return model->buffers->batch + field * model->shape.rows;
}

/* ---- the pieces of a step --------------------------------------------------------------------------- */

static Tensor working(const Llama *model, int weight) { return model->weights[weight].working; }
static RowNorm row_norm(const Llama *model, RowSums sumsq)
{
    return (RowNorm){.sumsq = sumsq, .eps = model->shape.norm_eps, .cols = model->shape.hidden};
}

static Rope rope(const Llama *model)
{
    const LlamaShape *s = &model->shape;
    return (Rope){model->buffers->cos_sin, batch_field(model, BATCH_POS), s->head_dim,
                  s->q_cols + s->kv_cols};
}

static AttentionShape attention_shape(const Llama *model)
{
    const LlamaShape *s = &model->shape;
    return (AttentionShape){
        .batch = s->sequences, .seq = s->seq,
        .heads = s->heads, .kv_heads = s->kv_heads, .head_dim = s->head_dim,
        .doc_start = model->buffers->document_mask ? batch_field(model, BATCH_DOC_START) : NULL,
        .deterministic = model->buffers->deterministic,
    };
}

/* Where layer l leaves the residual stream: the next layer's x, or x_final. */
static Tensor layer_output(const Llama *model, int l, RowSums *sumsq)
{
    bool last = l + 1 == model->shape.layers;
    *sumsq = last ? model->buffers->x_final_sumsq : model->layers[l + 1].x_sumsq;
    return last ? model->buffers->x_final : model->layers[l + 1].x;
}

static Tensor top(Tensor t, int64_t rows) { return tensor_rows(t, 0, rows); }

enum { WHOLE_SEQUENCES = -1 };

/* The forward pass over n rows: a micro-batch of whole sequences, or, when past is not WHOLE_SEQUENCES, the
 * rows of one text at positions past .. past + n - 1, which see the ones before in the key/value caches. */
static void forward(Llama *model, int64_t n, int64_t past)
{
    const Ops *op = model->ops;
    OpContext *ctx = &model->ctx;
    struct LlamaBuffers *b = model->buffers;
    const float *gamma_final = model->weights[model->final_norm].master.data;
    AttentionShape shape = attention_shape(model), of_text = shape;
    of_text.batch = 1, of_text.seq = (int)n, of_text.doc_start = NULL;

    ctx->layer = -1;
    op->embed(ctx, top(model->layers[0].x, n), model->layers[0].x_sumsq, batch_field(model, BATCH_TOKENS),
              working(model, model->embed));
    for (int l = 0; l < model->shape.layers; l++) {
        LlamaLayer *y = &model->layers[l];
        Tensor x = top(y->x, n), qkv = top(y->qkv, n), o = top(y->o, n), x1 = top(y->x1, n), z = top(y->z, n);
        Tensor swiglu = top(y->y, n);
        bool last = l + 1 == model->shape.layers;
        RowSums out_sumsq;
        Tensor out = top(layer_output(model, l, &out_sumsq), n);
        ctx->layer = l;
        op->qkv(ctx, qkv, x, working(model, y->wqkv), row_norm(model, y->x_sumsq), rope(model));
        if (past == WHOLE_SEQUENCES) op->attention(ctx, o, y->lse, qkv, shape);
        else op->attention_cached(ctx, o, qkv, b->k_cache[l], b->v_cache[l], past, of_text);
        op->residual(ctx, OP_OUT, x1, y->x1_sumsq, (Tensor){0}, o, working(model, y->wo), x, NULL);
        op->gate_up(ctx, z, swiglu, x1, working(model, y->w13), row_norm(model, y->x1_sumsq));
        op->residual(ctx, OP_DOWN, out, out_sumsq, last ? top(b->xg, n) : (Tensor){0}, swiglu,
                     working(model, y->w2), x1, last ? gamma_final : NULL);
    }
    ctx->layer = -1;
}

/* Rows [first, first + rows) of the micro-batch as a head chunk. */
static HeadChunk head_chunk(const Llama *model, int64_t first, int64_t rows)
{
    const struct LlamaBuffers *b = model->buffers;
    HeadChunk h = b->head;
    h.xg = tensor_rows(b->xg, first, rows);
    h.x = tensor_rows(b->x_final, first, rows);
    h.norm = row_norm(model, b->x_final_sumsq);
    h.norm.sumsq.data += first * h.norm.sumsq.parts;
    h.table = working(model, model->head);
    h.vocab = model->shape.vocab;
    h.targets = batch_field(model, BATCH_TARGETS) + first;
    h.order = batch_field(model, BATCH_TARGET_ORDER) + first;
    h.weights = (const float *)batch_field(model, BATCH_WEIGHTS) + first;
    h.e.rows = h.axg.rows = rows;
    h.loss = b->loss + first;
    return h;
}

/* The loss, its gradient in dx, and the gradients of the head's weight and the final norm. */
static void head(Llama *model)
{
    const Ops *op = model->ops;
    const OpContext *ctx = &model->ctx;
    struct LlamaBuffers *b = model->buffers;
    const Weight *norm = &model->weights[model->final_norm], *table = &model->weights[model->head];
    int64_t T = model->shape.rows, step = model->shape.head_chunk;

    for (int64_t row = 0; row < T; row += step) {
        HeadChunk h = head_chunk(model, row, T - row < step ? T - row : step);
        bool accumulate = !ctx->first_micro || row > 0;
        op->head(ctx, &h);
        op->head_loss(ctx, &h, b->stats);
        op->head_dx(ctx, tensor_rows(b->dx, row, h.x.rows), norm->grad.data, &h, norm->master.data,
                    accumulate);
        op->head_dw(ctx, table->grad, &h, accumulate);
    }
}

static void backward(Llama *model)
{
    const Ops *op = model->ops;
    OpContext *ctx = &model->ctx;
    struct LlamaBuffers *b = model->buffers;
    bool accumulate = !ctx->first_micro;

    for (int l = model->shape.layers - 1; l >= 0; l--) {
        LlamaLayer *y = &model->layers[l];
        const Weight *w2 = &model->weights[y->w2], *w13 = &model->weights[y->w13];
        const Weight *wo = &model->weights[y->wo], *wqkv = &model->weights[y->wqkv];
        RowNorm norm = row_norm(model, y->x_sumsq), norm1 = row_norm(model, y->x1_sumsq);
        RowSums zdz = b->zdz;
        /* the finished accumulators of unfolded weights can leave their sum of squares on the way */
        double *sumsq2 = ctx->last_micro ? b->sumsq + y->w2 : NULL;
        double *sumsqo = ctx->last_micro ? b->sumsq + y->wo : NULL;
        ctx->layer = l;

        zdz.parts = op->parts(ctx, OP_DOWN_DX, b->dz.cols);
        op->down_dx(ctx, b->dz, model->shape.keep_y ? (Tensor){0} : y->y, zdz, b->dx, w2->working, y->z,
                    norm1);
        op->dw(ctx, OP_DOWN_DW, w2->grad, b->dx, y->y, accumulate, sumsq2);
        op->norm_dx(ctx, OP_GATE_UP_DX, b->dx, b->dz, w13->working, b->dx, y->x1, norm1, zdz);
        op->dw(ctx, OP_GATE_UP_DW, w13->grad, b->dz, y->x1, accumulate, NULL);
        op->out_dx(ctx, b->d_o, b->dx, wo->working);
        op->dw(ctx, OP_OUT_DW, wo->grad, b->dx, y->o, accumulate, sumsqo);
        op->attention_bwd(ctx, b->dqkv, b->d_o, y->qkv, y->o, y->lse, attention_shape(model));
        zdz.parts = op->parts(ctx, OP_QKV_GRAD, b->dqkv.cols);
        op->qkv_grad(ctx, b->dqkv, zdz, y->qkv, norm, rope(model));
        op->norm_dx(ctx, OP_QKV_DX, b->dx, b->dqkv, wqkv->working, b->dx, y->x, norm, zdz);
        op->dw(ctx, OP_QKV_DW, wqkv->grad, b->dqkv, y->x, accumulate, NULL);
    }
    ctx->layer = -1;
    op->embed_dw(ctx, model->weights[model->embed].grad, batch_field(model, BATCH_TOKENS),
                 batch_field(model, BATCH_TOKEN_ORDER), b->dx, accumulate || model->shape.tied);
}

/* ---- one step --------------------------------------------------------------------------------------- */

void llama_begin_step(Llama *model)
{
    model->device->zero(model->ctx.stream, model->buffers->stats, sizeof(StepStats));
}

static void micro_step(Llama *model)
{
    forward(model, model->shape.rows, WHOLE_SEQUENCES);
    head(model);
    backward(model);
}

/* Whether sum G^2 of the weight has been left behind by its weight-gradient GEMM. The head's has not: targets are taken off
 * behind the product, and a tied table's gradient gets the embedding's added. */
static bool has_sumsq(const Llama *model, int weight)
{
    if (weight == model->embed || weight == model->head || weight == model->final_norm) return false;
    int part = (weight - 1) % LAYER_WEIGHTS;
    return part == LAYER_WO || part == LAYER_W2;
}

/* docs/MATH.md, section 1: the norm of the whole gradient first, then every update with its fold. */
static void weight_pass(Llama *model)
{
    const Ops *op = model->ops;
    const OpContext *ctx = &model->ctx;
    struct LlamaBuffers *b = model->buffers;
    /* a folded weight writes its norm's gradient, so norms come after */
    for (int i = 0; i < model->weight_count; i++)
        if (model->weights[i].working.data && !has_sumsq(model, i))
            op->grad_norm(ctx, &model->weights[i], b->sumsq + i);
    for (int i = 0; i < model->weight_count; i++)
        if (!model->weights[i].working.data) op->grad_norm(ctx, &model->weights[i], b->sumsq + i);
    op->clip(ctx, b->sumsq, model->weight_count, b->hyper, b->stats);
    for (int i = 0; i < model->weight_count; i++) op->adamw(ctx, &model->weights[i], b->hyper, b->stats);
}

void llama_record_steps(Llama *model, bool record)
{
    model->buffers->issue_directly = !record;
}

/* Runs work: directly the first time (libraries make their plans then), recorded the second time where the
 * device can, and from the recording after that. */
static void run_recorded(Llama *model, void (*work)(Llama *), Graph **graph, int *runs)
{
    void *stream = model->ctx.stream;
    if (model->buffers->issue_directly) {
        work(model);
        return;
    }
    if (!*graph && *runs > 0 && model->device->capture_begin(stream)) {
        work(model);
        *graph = model->device->capture_end(stream);
    }
    if (*graph) model->device->launch(*graph, stream);
    else work(model);
    ++*runs;
}

void llama_micro_step(Llama *model, const Batch *batch, float scale, bool first, bool last)
{
    struct LlamaBuffers *b = model->buffers;
    upload_batch(model, batch, scale);
    model->ctx.first_micro = first;
    model->ctx.last_micro = last;
    run_recorded(model, micro_step, &b->micro_graph[first][last], &b->micro_runs[first][last]);
}

StepStats llama_update(Llama *model, const Hyper *hyper)
{
    struct LlamaBuffers *b = model->buffers;
    *b->host_hyper = *hyper;
    model->device->upload(model->ctx.stream, b->hyper, b->host_hyper, sizeof *hyper);
    run_recorded(model, weight_pass, &b->update_graph, &b->update_runs);
    model->device->download(model->ctx.stream, b->host_stats, b->stats, sizeof *b->host_stats);
    model->device->wait(model->ctx.stream);
    return *b->host_stats;
}

void llama_eval(Llama *model, const Batch *batch, float *loss)
{
    struct LlamaBuffers *b = model->buffers;
    int64_t T = model->shape.rows, step = model->shape.head_chunk;
    upload_batch(model, batch, 0);
    forward(model, T, WHOLE_SEQUENCES);
    for (int64_t row = 0; row < T; row += step) {
        HeadChunk h = head_chunk(model, row, T - row < step ? T - row : step);
        model->ops->head_eval(&model->ctx, &h);
    }
    model->device->download(model->ctx.stream, loss, b->loss, (size_t)T * sizeof(float));
    model->device->wait(model->ctx.stream);
}

void llama_fold(Llama *model)
{
    for (int i = 0; i < model->weight_count; i++)
        if (model->weights[i].working.data) model->ops->fold(&model->ctx, &model->weights[i]);
    model->device->wait(model->ctx.stream);
}

/* ---- generation ------------------------------------------------------------------------------------- */

const float *llama_next_logits(Llama *model, const int32_t *tokens, int64_t n, int64_t past)
{
    struct LlamaBuffers *b = model->buffers;
    void *stream = model->ctx.stream;
    int64_t T = model->shape.rows, rows = 0;
    for (int64_t done = 0; done < n; done += rows) {    /* the buffers hold T rows at a time */
        rows = n - done < T ? n - done : T;
        int32_t *pos = b->staging;
        for (int64_t i = 0; i < rows; i++) pos[i] = (int32_t)(past + done + i);
        model->device->upload(stream, batch_field(model, BATCH_POS), pos, (size_t)rows * sizeof *pos);
        model->device->upload(stream, batch_field(model, BATCH_TOKENS), tokens + done,
                              (size_t)rows * sizeof *tokens);
        forward(model, rows, past + done);
        model->device->wait(stream);
    }
    HeadChunk h = head_chunk(model, rows - 1, 1);
    model->ops->logits(&model->ctx, b->logits, &h);
    model->device->download(stream, b->host_logits, b->logits.data,
                            (size_t)model->shape.vocab * sizeof(float));
    model->device->wait(stream);
    return b->host_logits;
}

/* ---- diagnosis -------------------------------------------------------------------------------------- */

static char *nonfinite_sentence(Llama *model, const char *owner, const char *what, Tensor t)
{
    if (!t.data) return NULL;
    int64_t bad = model->ops->count_nonfinite(&model->ctx, t);
    if (!bad) return NULL;
    enum { LONGEST = 160 };
    char *text = malloc(LONGEST);
    if (text)
        snprintf(text, LONGEST, "%s%s has %lld non-finite values of %lld", owner, what, (long long)bad,
                 (long long)(t.rows * t.cols));
    return text;
}

char *llama_find_nonfinite(Llama *model)
{
    char *found = NULL, owner[32];
    struct LlamaBuffers *b = model->buffers;
    for (int i = 0; !found && i < model->weight_count; i++)
        found = nonfinite_sentence(model, model->weights[i].name, " (weight)", model->weights[i].master);
    for (int l = 0; !found && l < model->shape.layers; l++) {
        const LlamaLayer *y = &model->layers[l];
        const struct { const char *name; Tensor t; } saved[] = {
            {"x", y->x}, {"qkv", y->qkv}, {"o", y->o}, {"x1", y->x1}, {"z", y->z}};
        snprintf(owner, sizeof owner, "layers.%d.", l);
        for (size_t i = 0; !found && i < sizeof saved / sizeof *saved; i++)
            found = nonfinite_sentence(model, owner, saved[i].name, saved[i].t);
    }
    if (!found) found = nonfinite_sentence(model, "", "x_final", b->x_final);
    if (!found)
        found = nonfinite_sentence(model, "", "the loss of a row",
                                   tensor(b->loss, 1, model->shape.rows, DTYPE_F32));
    for (int i = model->weight_count - 1; !found && i >= 0; i--)
        found = nonfinite_sentence(model, model->weights[i].name, " (gradient)", model->weights[i].grad);
    return found;
}
