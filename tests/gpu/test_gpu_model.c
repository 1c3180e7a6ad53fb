/* Whole models on the GPU against the CPU: gradients, losses over many steps, logits; that a step has the
 * same bits each time, recorded or not, allocates nothing and waits once; all with separate kernels and with
 * fused ones where the sizes allow them. And how many kernels a layer launches.
 *
 * With arguments it is a tool for tests/gpu/test_against_torch.py:
 *
 *   test_gpu_model trace HF_DIR BATCHES OUT off|on
 *
 * BATCHES: int32 steps, sequences, seq; then of each step its learning rate in f32, tokens and targets. OUT, f32:
 * the loss of each step, and before that, at the given weights, every gradient of the first batch in Hugging
 * Face's order of names as the tool prints them. off|on: fused kernels. */
#include "tests/gpu/gpu_model.h"
#include "data/loader.h"
#include "model/files.h"
#include "model/hf_config.h"
#include "model/hf_names.h"
#include "model/llama_buffers.h"
#include "model/random.h"
#include "model/weights_io.h"
#include "tests/gradients.h"
#include <cuda_runtime_api.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

typedef struct Sizes {
    const char *name;
    int64_t layers, hidden, ffn, heads, kv_heads, head_dim, vocab, sequences, seq, head_chunk;
    bool tied, documents, recompute;
} Sizes;

static const Sizes shapes[] = {
    {"odd, tied, documents", 2, 60, 72, 3, 1, 20, 131, 3, 37, 50, true, true, true},
    {"grouped heads, untied", 3, 128, 264, 8, 2, 16, 1000, 2, 130, 0, false, false, false},
    /* gate/up and the head have weight gradients that are large enough to be fused */
    {"head size 64, tied", 3, 256, 4864, 4, 2, 64, 10240, 4, 128, 256, true, false, true},
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static ConfigLoad *make_config(const Sizes *s)
{
    Errors errors = {0};
    ConfigLoad *load = config_load(NULL, 0, NULL, &errors);
    assert_int_equal(errors.count, 0);
    Config *c = config_values(load);
    c->model.layers = s->layers, c->model.hidden = s->hidden, c->model.ffn = s->ffn;
    c->model.heads = s->heads, c->model.kv_heads = s->kv_heads, c->model.head_dim = s->head_dim;
    c->model.vocab = s->vocab, c->model.tie_embeddings = s->tied, c->model.norm_eps = 1e-5;
    c->model.init_std = c->model.embedding_init_std = 0.05;
    c->train.micro_batch = s->sequences, c->train.seq_len = s->seq, c->train.head_chunk = s->head_chunk;
    c->train.accum = 1, c->train.deterministic = true;
    c->train.recompute = s->recompute ? RECOMPUTE_SWIGLU : RECOMPUTE_NONE;
    c->data.document_mask = s->documents;
    return load;
}

static bool no_capture(void *stream)
{
    (void)stream;
    return false;
}

static Llama *make_model(const Config *config, const OpContext *ctx, bool recorded)
{
    static Device eager;
    Errors errors = {0};
    OpContext cpu = {.layer = -1};
    bool gpu = ctx != NULL;
    eager = cuda_device;
    eager.capture_begin = no_capture;
    Llama *model = llama_create(config, gpu ? DTYPE_BF16 : DTYPE_F32, LLAMA_TRAIN, gpu ? &cuda_ops : &cpu_ops,
                                !gpu ? &cpu_device : recorded ? &cuda_device : &eager, gpu ? ctx : &cpu,
                                config->train.seq_len, &errors);
    errors_print(&errors, stderr);
    assert_non_null(model);
    assert_true(llama_init(model, config));
    llama_fold(model);
    return model;
}

/* Tokens that can be learnt: each follows from the one before, with some noise. */
static void make_batch(Batch *batch, const Sizes *s, uint64_t key)
{
    int64_t T = s->sequences * s->seq, start = 0;
    assert_true(batch_create(batch, (int)s->sequences, (int)s->seq));
    int64_t token = (int64_t)(random_bits(key, 0) % (uint64_t)s->vocab);
    for (int64_t i = 0; i < T; i++) {
        batch->tokens[i] = (int32_t)token;
        uint64_t bits = random_bits(key, (uint64_t)i + 1);
        token = bits % 4 ? (token * 5 + 3) % s->vocab : (int64_t)(bits >> 8) % s->vocab;
        batch->targets[i] = (int32_t)token;
        if (i % s->seq == 0 || (s->documents && bits % 11 == 0)) start = i % s->seq;
        batch->pos[i] = (int32_t)(i % s->seq - start);
        batch->doc_start[i] = (int32_t)start;
        batch->weights[i] = bits % 7 != 0;
        batch->valid += batch->weights[i] != 0;
    }
}

static StepStats accumulated_step(Llama *model, const Batch *batch, int accum, int step, float lr, float weight_decay)
{
    Hyper hyper = {.lr = lr,
                   .beta1 = 0.9f,
                   .beta2 = 0.95f,
                   .eps = 1e-8f,
                   .weight_decay = weight_decay,
                   .clip = 1,
                   .seed = 1,
                   .step = (uint32_t)step,
                   .bias1 = 1 - powf(0.9f, (float)(step + 1)),
                   .bias2 = 1 - powf(0.95f, (float)(step + 1))};
    llama_begin_step(model);
    for (int i = 0; i < accum; i++)
        llama_micro_step(model, batch, 1.0f / (float)(accum * batch->valid), i == 0, i + 1 == accum);
    return llama_update(model, &hyper);
}

static StepStats train_step(Llama *model, const Batch *batch, int step, float lr, float weight_decay)
{
    return accumulated_step(model, batch, 1, step, lr, weight_decay);
}

static float *all_masters(const Llama *model, int64_t *count)
{
    *count = 0;
    for (int i = 0; i < model->weight_count; i++)
        *count += model->weights[i].master.rows * model->weights[i].master.cols;
    float *all = malloc((size_t)*count * sizeof *all), *at = all;
    for (int i = 0; i < model->weight_count; i++) {
        model_master(model, i, at);
        at += model->weights[i].master.rows * model->weights[i].master.cols;
    }
    return all;
}

/* <a, b> / <b, b> */
static double projection(const float *a, const float *b, int64_t count)
{
    double along = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        along += (double)a[i] * b[i];
        size += (double)b[i] * b[i];
    }
    return along / size;
}

/* ---- tests, *state: a FusionMode ----------------------------------------------------------------------- */

/* Beside the error, the part of the gradient along the true one. Rounding is mostly at right angles to that:
 * in Hugging Face's Llama at these shapes, BF16 against FP32, the part moves by 0.44 % at most (six seeds).
 * So a wrong scale of one tensor shows where 3 % of error would hide it. */
static void gradients_match_the_cpu(void **state)
{
    OpContext ctx = gpu_context(*(const FusionMode *)*state);
    for (int i = 0; i < SHAPES; i++) {
        ConfigLoad *load = make_config(&shapes[i]);
        Batch batch = {0};
        make_batch(&batch, &shapes[i], 1);
        Llama *models[] = {make_model(config_values(load), NULL, false),
                           make_model(config_values(load), &ctx, false)};
        for (int k = 0; k < 2; k++) {
            llama_begin_step(models[k]);
            llama_micro_step(models[k], &batch, 1.0f / (float)batch.valid, true, true);
            model_finish_gradients(models[k]);
        }
        for (int w = 0; w < models[0]->weight_count; w++) {
            int64_t n = models[0]->weights[w].master.rows * models[0]->weights[w].master.cols;
            float *want = malloc((size_t)n * sizeof *want), *got = malloc((size_t)n * sizeof *got);
            model_gradient(models[0], w, want);
            model_gradient(models[1], w, got);
            double error = relative_error(got, want, n);
            if (!(error < 3e-2))
                fail_msg("%s: gradient of %s is off by %.2e", shapes[i].name, models[0]->weights[w].name,
                         error);
            double scale = projection(got, want, n);
            if (!(fabs(scale - 1) < 7.5e-3))
                fail_msg("%s: gradient of %s has %.5f times the right scale, and is off by %.2e",
                         shapes[i].name, models[0]->weights[w].name, scale, error);
            free(want), free(got);
        }
        llama_destroy(models[0]), llama_destroy(models[1]);
        batch_free(&batch);
        config_free(load);
    }
    gpu_context_close(&ctx);
}

/* Rounding to BF16, imitated on the CPU, moves these losses by 0.11 % at most. Every batch is fresh: learning
 * three by heart amplifies rounding to 1.7 %. The weight decay is 1: that of 0.1 moves losses by only 0.1 %.
 * AdamW hardly feels the scale of a gradient, so early norms are compared too: rounding moves them by 0.27 %
 * at most, a factor of 1.02 on dqkv or on the dx that enters a layer by about 1 % or more. */
static void losses_follow_the_cpu(void **state)
{
    enum { STEPS = 40, NORM_STEPS = 5 };
    static const float lr[SHAPES] = {2e-3f, 1e-3f, 1e-3f}, weight_decay = 1;
    OpContext ctx = gpu_context(*(const FusionMode *)*state);
    for (int i = 0; i < SHAPES; i++) {
        const Sizes *s = &shapes[i];
        ConfigLoad *load = make_config(s);
        config_values(load)->train.deterministic = false;   /* as by default */
        Llama *cpu = make_model(config_values(load), NULL, false),
              *gpu = make_model(config_values(load), &ctx, true);
        double first = 0, last = 0;
        for (int step = 0; step < STEPS; step++) {
            Batch batch = {0};
            make_batch(&batch, s, (uint64_t)step);
            StepStats want = train_step(cpu, &batch, step, lr[i], weight_decay);
            StepStats got = train_step(gpu, &batch, step, lr[i], weight_decay);
            if (!step) first = got.loss;
            last = got.loss;
            if (!(fabs(got.loss - want.loss) < 0.005 * want.loss))
                fail_msg("%s, step %d: loss %.5f, on the CPU %.5f", s->name, step, got.loss, want.loss);
            if (step < NORM_STEPS && !(fabs(got.grad_norm - want.grad_norm) < 0.0075 * want.grad_norm))
                fail_msg("%s, step %d: norm of the gradient %.5f, on the CPU %.5f", s->name, step,
                         got.grad_norm, want.grad_norm);
            batch_free(&batch);
        }
        assert_true(last < 0.95 * first);
        llama_destroy(cpu), llama_destroy(gpu);
        config_free(load);
    }
    gpu_context_close(&ctx);
}

/* With the same choices, that is: tiles of another size sum in another order, and which are fastest is measured. */
static void steps_have_the_same_bits(void **state)
{
    for (int i = 0; i < SHAPES; i++) {
        ConfigLoad *load = make_config(&shapes[i]);
        float *runs[3];
        char *choices = NULL;
        int64_t count = 0;
        for (int run = 0; run < 3; run++) {     /* the last one is not recorded */
            OpContext ctx = gpu_context(*(const FusionMode *)*state);
            Errors errors = {0};
            if (run) assert_true(cuda_backend_restore(ctx.backend, choices, &errors));
            Llama *model = make_model(config_values(load), &ctx, run < 2);
            for (int step = 0; step < 6; step++) {
                Batch batch = {0};
                make_batch(&batch, &shapes[i], (uint64_t)step);
                train_step(model, &batch, step, 1e-3f, 0.1f);
                batch_free(&batch);
            }
            runs[run] = all_masters(model, &count);
            if (!run) choices = cuda_backend_choices(ctx.backend);
            llama_destroy(model);
            gpu_context_close(&ctx);
        }
        free(choices);
        assert_memory_equal(runs[0], runs[1], (size_t)count * sizeof(float));
        assert_memory_equal(runs[0], runs[2], (size_t)count * sizeof(float));
        for (int run = 0; run < 3; run++) free(runs[run]);
        config_free(load);
    }
}

static void validation_and_logits_match_the_cpu(void **state)
{
    OpContext ctx = gpu_context(*(const FusionMode *)*state);
    for (int i = 0; i < SHAPES; i++) {
        const Sizes *s = &shapes[i];
        ConfigLoad *load = make_config(s);
        Batch batch = {0};
        make_batch(&batch, s, 5);
        Llama *cpu = make_model(config_values(load), NULL, false),
              *gpu = make_model(config_values(load), &ctx, true);
        int64_t T = s->sequences * s->seq;
        float *want = malloc((size_t)T * sizeof *want), *got = malloc((size_t)T * sizeof *got);
        llama_eval(cpu, &batch, want);
        llama_eval(gpu, &batch, got);
        assert_true(relative_error(got, want, T) < 1e-2);
        /* a prompt at once, then token by token */
        int64_t prompt = s->seq / 2;
        for (int64_t past = 0; past < prompt + 3; past += past ? 1 : prompt) {
            int64_t n = past ? 1 : prompt;
            const float *theirs = llama_next_logits(cpu, batch.tokens + past, n, past);
            const float *ours = llama_next_logits(gpu, batch.tokens + past, n, past);
            assert_true(relative_error(ours, theirs, s->vocab) < 3e-2);
        }
        free(want), free(got);
        llama_destroy(cpu), llama_destroy(gpu);
        batch_free(&batch);
        config_free(load);
    }
    gpu_context_close(&ctx);
}

/* ---- what a step asks of the host ---------------------------------------------------------------------- */

/* The linker sends here what coda.c itself calls (the Makefile says which functions). */
static int allocations, waits;

#define COUNTED(counter, name, parameters, arguments) \
    cudaError_t __real_##name parameters; \
    cudaError_t __wrap_##name parameters; \
    cudaError_t __wrap_##name parameters { counter++; return __real_##name arguments; }

COUNTED(allocations, cudaMalloc, (void **memory, size_t bytes), (memory, bytes))
COUNTED(allocations, cudaMallocAsync, (void **memory, size_t bytes, cudaStream_t stream), (memory, bytes, stream))
COUNTED(allocations, cudaHostAlloc, (void **memory, size_t bytes, unsigned flags), (memory, bytes, flags))
COUNTED(allocations, cudaMallocHost, (void **memory, size_t bytes), (memory, bytes))
COUNTED(waits, cudaDeviceSynchronize, (void), ())
COUNTED(waits, cudaStreamSynchronize, (cudaStream_t stream), (stream))
COUNTED(waits, cudaEventSynchronize, (cudaEvent_t event), (event))
COUNTED(waits, cudaMemcpy, (void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind),
        (to, from, bytes, kind))

/* After the first steps, of which one measures and makes plans and the next is recorded. */
static void a_step_allocates_nothing_and_waits_once(void **state)
{
    enum { WARM_UP = 3, STEPS = 5 };
    OpContext ctx = gpu_context(*(const FusionMode *)*state);
    for (int i = 0; i < 2 * SHAPES; i++) {
        const int accum = i < SHAPES ? 1 : 3;
        ConfigLoad *load = make_config(&shapes[i % SHAPES]);
        config_values(load)->train.accum = accum;
        Llama *model = make_model(config_values(load), &ctx, true);
        Batch batch = {0};
        size_t before, after, total;
        make_batch(&batch, &shapes[i % SHAPES], 1);
        for (int step = 0; step < WARM_UP + STEPS; step++) {
            if (step == WARM_UP) {
                assert_int_equal(cudaMemGetInfo(&before, &total), cudaSuccess);
                assert_true(allocations > 0 && waits >= WARM_UP);
                allocations = waits = 0;
            }
            accumulated_step(model, &batch, accum, step, 1e-3f, 0.1f);
        }
        assert_int_equal(allocations, 0);
        assert_int_equal(waits, STEPS);
        assert_int_equal(cudaMemGetInfo(&after, &total), cudaSuccess);
        assert_int_equal(after, before);    /* the libraries', too */
        llama_destroy(model);
        batch_free(&batch);
        config_free(load);
    }
    gpu_context_close(&ctx);
}

/* Heads of 20 are no multiple of 64. */
static void the_table_names_what_is_not_fused(void **state)
{
    OpContext ctx = gpu_context(*(const FusionMode *)*state);
    if (strncmp(cuda_ops.choice(&ctx, OP_QKV), "fused", 5)) {
        gpu_context_close(&ctx);
        skip();
    }
    ConfigLoad *load = make_config(&shapes[0]);
    Llama *model = make_model(config_values(load), &ctx, true);
    Batch batch = {0};
    make_batch(&batch, &shapes[0], 1);
    train_step(model, &batch, 0, 1e-3f, 0.1f);
    assert_non_null(strstr(cuda_ops.choice(&ctx, OP_QKV), "does not take these sizes"));
    assert_null(strstr(cuda_ops.choice(&ctx, OP_HEAD_EVAL), "does not take"));      /* has not run */
    assert_int_equal(strncmp(cuda_ops.choice(&ctx, OP_ATTENTION), "reference kernel", 16), 0);  /* documents */
    batch_free(&batch);
    llama_destroy(model);
    config_free(load);
    gpu_context_close(&ctx);
}

/* ---- launches of a layer ------------------------------------------------------------------------------- */

/* What a recording would launch: it is counted and never run. */
struct Graph {
    int launches;
};

static void require_success(cudaError_t status)
{
    if (status != cudaSuccess) fail_msg("%s", cudaGetErrorString(status));
}

/* Kernels and memsets; copies are none. */
static int count_launches(cudaGraph_t graph)
{
    size_t count = 0;
    require_success(cudaGraphGetNodes(graph, NULL, &count));
    cudaGraphNode_t *nodes = malloc(count * sizeof *nodes);
    require_success(cudaGraphGetNodes(graph, nodes, &count));
    int launches = 0;
    for (size_t i = 0; i < count; i++) {
        enum cudaGraphNodeType type;
        cudaGraph_t child;
        require_success(cudaGraphNodeGetType(nodes[i], &type));
        launches += type == cudaGraphNodeTypeKernel || type == cudaGraphNodeTypeMemset;
        if (type != cudaGraphNodeTypeGraph) continue;
        require_success(cudaGraphChildGraphNodeGetGraph(nodes[i], &child));
        launches += count_launches(child);
    }
    free(nodes);
    return launches;
}

static Graph *end_counting(void *stream)
{
    cudaGraph_t recorded;
    require_success(cudaStreamEndCapture((cudaStream_t)stream, &recorded));
    Graph *graph = malloc(sizeof *graph);
    graph->launches = count_launches(recorded);
    require_success(cudaGraphDestroy(recorded));
    return graph;
}

static void launch_nothing(Graph *graph, void *stream) { (void)graph, (void)stream; }
static void release_count(Graph *graph) { free(graph); }

/* Launches of the model's calls of cuDNN in one layer, both passes together. */
static int attention_launches(Llama *model)
{
    const LlamaShape *s = &model->shape;
    const struct LlamaBuffers *b = model->buffers;
    const LlamaLayer *y = &model->layers[0];
    const AttentionShape shape = {.batch = s->sequences, .seq = s->seq, .heads = s->heads,
                                  .kv_heads = s->kv_heads, .head_dim = s->head_dim,
                                  .deterministic = b->deterministic};
    assert_true(model->device->capture_begin(model->ctx.stream));
    model->ops->attention(&model->ctx, y->o, y->lse, y->qkv, shape);
    model->ops->attention_bwd(&model->ctx, b->dqkv, b->d_o, y->qkv, y->o, y->lse, shape);
    Graph *graph = model->device->capture_end(model->ctx.stream);
    int launches = graph->launches;
    free(graph);
    return launches;
}

/* Two models that differ by one layer. A call of cuDNN counts as one launch. */
static void a_layer_launches_at_most_fifteen_kernels(void **state)
{
    enum { MICRO_BATCHES = 4, MOST = 15 };
    static const struct { const char *name; bool first, last; } micro[MICRO_BATCHES] = {
        {"the only micro-batch", true, true}, {"the first of several", true, false},
        {"the last of several", false, true}, {"one between", false, false}};
    Sizes sizes = {"wide", 0, 2048, 2560, 32, 8, 64, 512, 2, 256, 0, true, false, true};
    int launches[2][MICRO_BATCHES], attention = 0;
    OpContext ctx = gpu_context(*(const FusionMode *)*state);
    if (strncmp(cuda_ops.choice(&ctx, OP_QKV), "fused", 5) ||
        strncmp(cuda_ops.choice(&ctx, OP_ATTENTION), "cuDNN", 5)) {
        gpu_context_close(&ctx);
        skip();
    }
    Device counting = cuda_device;
    counting.capture_end = end_counting, counting.launch = launch_nothing;
    counting.graph_release = release_count;
    Batch batch = {0};
    make_batch(&batch, &sizes, 1);
    for (int more = 0; more < 2; more++) {
        sizes.layers = 2 + more;
        ConfigLoad *load = make_config(&sizes);
        config_values(load)->train.deterministic = false;
        Llama *model = make_model(config_values(load), &ctx, true);
        model->device = &counting;
        for (int i = 0; i < MICRO_BATCHES; i++) {
            for (int run = 0; run < 2; run++) {     /* the second one is recorded */
                llama_micro_step(model, &batch, 1.0f / (float)batch.valid, micro[i].first, micro[i].last);
                counting.wait(ctx.stream);
            }
            launches[more][i] = model->buffers->micro_graph[micro[i].first][micro[i].last]->launches;
        }
        attention = attention_launches(model);
        llama_destroy(model);
        config_free(load);
    }
    batch_free(&batch);
    gpu_context_close(&ctx);
    int most = 0;
    for (int i = 0; i < MICRO_BATCHES; i++) {
        int layer = launches[1][i] - launches[0][i] - attention + 2;
        print_message("%d launches a layer in %s; cuDNN launched %d for its two calls\n", layer,
                      micro[i].name, attention);
        if (layer > most) most = layer;
    }
    assert_in_range(most, 1, MOST);
}

/* ---- the tool ------------------------------------------------------------------------------------------ */

static void fail_on(Errors *errors)
{
    if (!errors->count) return;
    errors_print(errors, stderr);
    exit(1);
}

static int trace(const char *dir, const char *batches, const char *out, FusionMode fusion)
{
    Errors errors = {0};
    char path[1024];
    snprintf(path, sizeof path, "%s/config.json", dir);
    char *text = files_read(path, NULL, &errors);
    ConfigLoad *load = config_load(NULL, 0, NULL, &errors);
    fail_on(&errors);
    Config *c = config_values(load);
    hf_config_read(text, path, c, &errors);
    Safetensors *weights = safetensors_open(dir, &errors);
    fail_on(&errors);

    FILE *in = fopen(batches, "rb"), *to = fopen(out, "wb");
    int32_t head[3];
    if (!in || !to || fread(head, sizeof *head, 3, in) != 3) return 1;
    c->train.micro_batch = head[1], c->train.seq_len = head[2], c->train.accum = 1;
    OpContext ctx = gpu_context(fusion);
    Llama *model = llama_create(c, DTYPE_BF16, LLAMA_TRAIN, &cuda_ops, &cuda_device, &ctx, 0, &errors);
    fail_on(&errors);
    weights_load(model, weights, NULL, &errors);
    fail_on(&errors);
    for (int i = 0; i < model->weight_count; i++) {
        Weight *w = &model->weights[i];
        cuda_device.zero(ctx.stream, w->m.data, (size_t)(w->m.rows * w->m.cols) * dtype_bytes(w->m.dtype));
        cuda_device.zero(ctx.stream, w->v.data, (size_t)(w->v.rows * w->v.cols) * dtype_bytes(w->v.dtype));
    }
    llama_fold(model);

    size_t T = (size_t)head[1] * (size_t)head[2];
    Batch batch = {0};
    if (!batch_create(&batch, head[1], head[2])) return 1;
    for (size_t i = 0; i < T; i++) {
        batch.pos[i] = (int32_t)(i % (size_t)head[2]);
        batch.doc_start[i] = 0;
        batch.weights[i] = 1;
    }
    batch.valid = (int64_t)T;
    for (int step = 0; step < head[0]; step++) {
        float lr;
        if (fread(&lr, sizeof lr, 1, in) != 1 || fread(batch.tokens, sizeof(int32_t), T, in) != T ||
            fread(batch.targets, sizeof(int32_t), T, in) != T)
            return 1;
        if (!step) {
            llama_begin_step(model);
            llama_micro_step(model, &batch, 1.0f / (float)T, true, true);
            model_finish_gradients(model);
            int count;
            HfTensor *tensors = hf_tensors(&model->shape, &count);
            for (int i = 0; i < count; i++) {
                const Tensor *m = &model->weights[tensors[i].weight].master;
                float *whole = malloc((size_t)(m->rows * m->cols) * sizeof *whole);
                model_gradient(model, tensors[i].weight, whole);
                fwrite(whole + tensors[i].first_row * tensors[i].cols, sizeof(float),
                       (size_t)(tensors[i].rows * tensors[i].cols), to);
                printf("%s %lld\n", tensors[i].name, (long long)(tensors[i].rows * tensors[i].cols));
                free(whole);
            }
            free(tensors);
        }
        float loss = (float)train_step(model, &batch, step, lr, 0.1f).loss;
        fwrite(&loss, sizeof loss, 1, to);
    }
    llama_destroy(model);
    gpu_context_close(&ctx);
    fclose(in);
    free(text);
    config_free(load);
    safetensors_close(weights);
    return fclose(to) != 0;
}

/* The name of each says how its ops run. */
#define BOTH_WAYS(test)                                                      \
    {#test ", separate kernels", test, NULL, NULL, &separate},               \
    {#test ", fused kernels", test, NULL, NULL, &fused}

int main(int argc, char **argv)
{
    if (argc == 6 && !strcmp(argv[1], "trace"))
        return trace(argv[2], argv[3], argv[4], strcmp(argv[5], "on") ? FUSION_OFF : FUSION_ON);
    static FusionMode separate = FUSION_OFF, fused = FUSION_ON;
    const struct CMUnitTest tests[] = {
        BOTH_WAYS(gradients_match_the_cpu),
        BOTH_WAYS(losses_follow_the_cpu),
        BOTH_WAYS(steps_have_the_same_bits),
        BOTH_WAYS(validation_and_logits_match_the_cpu),
        BOTH_WAYS(a_step_allocates_nothing_and_waits_once),
        cmocka_unit_test_prestate(the_table_names_what_is_not_fused, &fused),
        cmocka_unit_test_prestate(a_layer_launches_at_most_fifteen_kernels, &fused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
