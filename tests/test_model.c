/* The whole model on the CPU against the textbook model in double precision (tests/textbook.h), and
 * properties that hold for any model. */
#include "model/llama.h"
#include "model/llama_buffers.h"
#include "tests/gradients.h"
#include "tests/textbook.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* ---- models and batches ----------------------------------------------------------------------------- */

typedef struct Sizes {
    int64_t layers, hidden, ffn, heads, kv_heads, head_dim, vocab, sequences, seq, head_chunk;
    bool    tied, scaled, documents, recompute;
} Sizes;

static const Sizes shapes[] = {
    {2, 12, 16, 3, 1, 4, 17, 2, 7, 0, true, false, false, false},
    {1, 14, 8, 2, 2, 6, 19, 3, 5, 4, false, true, false, false},       /* heads * head_dim != hidden */
    {2, 10, 24, 4, 2, 2, 131, 1, 9, 5, true, true, true, true},      /* vocabulary beyond one block of 128 */
    {1, 8, 8, 1, 1, 8, 9, 2, 1, 0, false, false, false, true},          /* one token a sequence */
};
enum { SHAPES = sizeof shapes / sizeof *shapes };

typedef struct Random { uint64_t state; } Random;

static double uniform(Random *r)    /* [0, 1) */
{
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (double)(r->state >> 11) * 0x1p-53;
}

static double normal(Random *r)
{
    double u = 1.0 - uniform(r), angle = 2 * M_PI * uniform(r);
    return sqrt(-2 * log(u)) * cos(angle);
}

static ConfigLoad *make_config(const Sizes *s)
{
    Errors errors = {0};
    ConfigLoad *load = config_load(NULL, 0, NULL, &errors);
    assert_int_equal(errors.count, 0);
    Config *c = config_values(load);
    c->model.layers = s->layers, c->model.hidden = s->hidden, c->model.ffn = s->ffn;
    c->model.heads = s->heads, c->model.kv_heads = s->kv_heads, c->model.head_dim = s->head_dim;
    c->model.vocab = s->vocab, c->model.tie_embeddings = s->tied, c->model.norm_eps = 1e-5;
    c->model.rope_theta = 100.0;
    c->model.rope_scaling = s->scaled ? ROPE_LLAMA3 : ROPE_NONE;
    c->model.rope_factor = 4, c->model.rope_low_freq_factor = 1, c->model.rope_high_freq_factor = 4;
    c->model.rope_original_max_position = 40;
    c->train.micro_batch = s->sequences, c->train.seq_len = s->seq, c->train.head_chunk = s->head_chunk;
    c->train.accum = 1;
    c->train.recompute = s->recompute ? RECOMPUTE_SWIGLU : RECOMPUTE_NONE;
    c->data.document_mask = s->documents;
    return load;
}

static Llama *make_model(const Config *config, int64_t context)
{
    Errors errors = {0};
    const OpContext ctx = {.layer = -1};
    Llama *model = llama_create(config, DTYPE_F32, LLAMA_TRAIN, &cpu_ops, &cpu_device, &ctx, context,
                                &errors);
    errors_print(&errors, stderr);
    assert_non_null(model);
    return model;
}

/* Random masters, norms around 1; the textbook, where given, gets the same values. */
static void fill(Llama *model, Textbook *t, uint64_t seed)
{
    Random r = {seed};
    int64_t at = 0;
    for (int i = 0; i < model->weight_count; i++) {
        Weight *w = &model->weights[i];
        float *master = w->master.data;
        int64_t count = w->master.rows * w->master.cols;
        for (int64_t k = 0; k < count; k++) {
            if (!w->working.data) master[k] = (float)(1 + 0.3 * normal(&r));
            else if (i == model->embed || i == model->head) master[k] = (float)(0.5 * normal(&r));
            else master[k] = (float)(normal(&r) / sqrt((double)w->master.cols));
            if (t) t->p[at + k] = master[k];
        }
        memset(w->m.data, 0, (size_t)count * sizeof(float));
        memset(w->v.data, 0, (size_t)count * sizeof(float));
        at += count;
    }
    if (t) assert_int_equal(at, t->count);
    llama_fold(model);
}

static Batch make_batch(int sequences, int seq, int64_t vocab, bool documents, uint64_t seed)
{
    Random r = {seed};
    size_t rows = (size_t)sequences * (size_t)seq;
    Batch b = {.sequences = sequences, .seq = seq};
    b.tokens = malloc(rows * 4), b.targets = malloc(rows * 4), b.pos = malloc(rows * 4);
    b.doc_start = malloc(rows * 4), b.weights = malloc(rows * 4);
    for (size_t i = 0; i < rows; i++) {
        int32_t s = (int32_t)(i % (size_t)seq);
        bool begins = s == 0 || (documents && uniform(&r) < 0.3);
        b.doc_start[i] = begins ? (documents ? s : 0) : b.doc_start[i - 1];
        b.pos[i] = s - b.doc_start[i];
        b.tokens[i] = (int32_t)(uniform(&r) * (double)vocab);
        b.targets[i] = (int32_t)(uniform(&r) * (double)vocab);
        b.weights[i] = i == 0 || uniform(&r) < 0.8;
        b.valid += b.weights[i] != 0;
        if (b.weights[i] == 0) b.targets[i] = 0;
    }
    return b;
}

static void free_batch(Batch *b)
{
    free(b->tokens), free(b->targets), free(b->pos), free(b->doc_start), free(b->weights);
}

static int64_t master_count(const Llama *model, int weight)
{
    return model->weights[weight].master.rows * model->weights[weight].master.cols;
}

/* ---- against the textbook ------------------------------------------------------------------------------ */

static void expect_gradients(Llama *model, const double *expected)
{
    int64_t at = 0;
    for (int i = 0; i < model->weight_count; i++) {
        int64_t count = master_count(model, i);
        float *ours = malloc((size_t)count * 4), *theirs = malloc((size_t)count * 4);
        gradient_of_master(model, i, ours);
        for (int64_t k = 0; k < count; k++) theirs[k] = (float)expected[at + k];
        double error = relative_error(ours, theirs, count);
        if (!(error < 1e-5))
            fail_msg("gradient of %s is off by %.2e of its norm", model->weights[i].name, error);
        free(ours), free(theirs);
        at += count;
    }
}

static void gradients_match_textbook(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        const Sizes *s = &shapes[i];
        ConfigLoad *load = make_config(s);
        Config *config = config_values(load);
        Llama *model = make_model(config, 0);
        Textbook t = textbook_create(config);
        fill(model, &t, 100 + (uint64_t)i);
        Batch batch = make_batch((int)s->sequences, (int)s->seq, s->vocab, s->documents, (uint64_t)i);
        double *expected = malloc((size_t)t.count * sizeof(double));
        textbook_gradient(&t, &batch, expected);
        llama_begin_step(model);
        llama_micro_step(model, &batch, 1.0f / (float)batch.valid, true, true);
        gradients_finish(model);
        expect_gradients(model, expected);
        free(expected);
        free_batch(&batch);
        textbook_free(&t);
        llama_destroy(model);
        config_free(load);
    }
}

/* AdamW with clipping and decoupled decay on matrices, as its paper states it. */
static double textbook_update(Textbook *t, const Llama *model, const double *grad, double *m, double *v,
                              const Hyper *h)
{
    double sumsq = 0;
    for (int64_t i = 0; i < t->count; i++) sumsq += grad[i] * grad[i];
    double clip = h->clip > 0 ? fmin(1.0, h->clip / sqrt(sumsq)) : 1.0;
    int64_t at = 0;
    for (int w = 0; w < model->weight_count; w++)
        for (int64_t end = at + master_count(model, w); at < end; at++) {
            double g = grad[at] * clip;
            m[at] = h->beta1 * m[at] + (1 - h->beta1) * g;
            v[at] = h->beta2 * v[at] + (1 - h->beta2) * g * g;
            double decay = model->weights[w].decay ? h->weight_decay : 0;
            t->p[at] -= h->lr * (m[at] / h->bias1 / (sqrt(v[at] / h->bias2) + h->eps) + decay * t->p[at]);
        }
    return sqrt(sumsq);
}

static void expect_masters(const Llama *model, const Textbook *t, const double *before)
{
    int64_t at = 0;
    for (int i = 0; i < model->weight_count; i++) {
        const float *master = model->weights[i].master.data;
        double difference = 0, moved = 0;
        for (int64_t k = 0; k < master_count(model, i); k++, at++) {
            difference += (master[k] - t->p[at]) * (master[k] - t->p[at]);
            moved += (t->p[at] - before[at]) * (t->p[at] - before[at]);
        }
        double error = sqrt(difference / moved);
        if (!(error < 2e-4)) fail_msg("%s moved wrongly by %.2e of its way", model->weights[i].name, error);
    }
}

static void expect_folded(const Llama *model)
{
    for (int i = 0; i < model->weight_count; i++) {
        const Weight *w = &model->weights[i];
        if (!w->working.data) continue;
        for (int64_t n = 0; n < w->working.rows; n++) {
            int64_t row = master_row(w->rows, n);
            for (int64_t k = 0; k < w->working.cols; k++) {
                const float *master = (const float *)w->master.data + row * w->master.cols;
                float expected = row < w->master.rows ? master[k] : 0;
                if (w->gamma) expected *= w->gamma[k];
                assert_true(((float *)w->working.data)[n * w->working.stride + k] == expected);
            }
        }
    }
}

static void updates_match_textbook(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        const Sizes *s = &shapes[i];
        ConfigLoad *load = make_config(s);
        Config *config = config_values(load);
        config->train.decay_embeddings = i == 1;
        Llama *model = make_model(config, 0);
        Textbook t = textbook_create(config);
        fill(model, &t, 7);
        size_t bytes = (size_t)t.count * sizeof(double);
        double *grad = malloc(bytes), *before = malloc(bytes), *m = calloc(1, bytes), *v = calloc(1, bytes);
        memcpy(before, t.p, bytes);
        for (int step = 1; step <= 3; step++) {
            Batch batch = make_batch((int)s->sequences, (int)s->seq, s->vocab, s->documents, (uint64_t)step);
            Hyper hyper = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-6f, .weight_decay = 0.1f,
                           .clip = step == 2 ? 0 : 0.5f, .step = (uint32_t)step};
            hyper.bias1 = (float)(1 - pow(hyper.beta1, step));
            hyper.bias2 = (float)(1 - pow(hyper.beta2, step));
            textbook_gradient(&t, &batch, grad);
            double loss = textbook_loss(&t, &batch, NULL, NULL);
            double norm = textbook_update(&t, model, grad, m, v, &hyper);
            llama_begin_step(model);
            llama_micro_step(model, &batch, 1.0f / (float)batch.valid, true, true);
            StepStats stats = llama_update(model, &hyper);
            assert_int_equal(stats.skipped, 0);
            assert_true(fabs(stats.loss - loss) < 1e-5 * loss);
            assert_true(fabs(stats.grad_norm - norm) < 1e-4 * norm);
            double factor = hyper.clip > 0 ? fmin(1.0, hyper.clip / norm) : 1.0;
            assert_true(fabs(stats.clip_factor - factor) < 1e-4);
            free_batch(&batch);
        }
        expect_masters(model, &t, before);
        expect_folded(model);
        free(grad), free(before), free(m), free(v);
        textbook_free(&t);
        llama_destroy(model);
        config_free(load);
    }
}

static void evaluation_and_generation_match_textbook(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        const Sizes *s = &shapes[i];
        ConfigLoad *load = make_config(s);
        Config *config = config_values(load);
        Llama *model = make_model(config, s->seq);
        Textbook t = textbook_create(config);
        fill(model, &t, 40 + (uint64_t)i);
        Batch batch = make_batch((int)s->sequences, (int)s->seq, s->vocab, s->documents, (uint64_t)i);
        int64_t rows = s->sequences * s->seq;
        double losses[rows], *logits = malloc((size_t)(rows * s->vocab) * sizeof(double));
        float ours[rows];
        textbook_loss(&t, &batch, losses, logits);
        llama_eval(model, &batch, ours);
        for (int64_t k = 0; k < rows; k++) assert_true(fabs(ours[k] - losses[k]) < 1e-5 * (1 + losses[k]));

        /* each document: whole prefixes, token by token, and with the last two tokens at once */
        for (int64_t k = 0; k < rows; k++) {
            int64_t past = batch.pos[k];
            const int32_t *first = batch.tokens + k - past;
            for (int way = 0; way < 3; way++) {
                int64_t n = way == 0 ? past + 1 : way == 1 ? 1 : past > 0 ? 2 : 1;
                const float *row = llama_next_logits(model, first + past + 1 - n, n, past + 1 - n);
                for (int64_t v = 0; v < s->vocab; v++)
                    assert_true(fabs(row[v] - logits[k * s->vocab + v]) < 1e-5 * (1 + fabs(row[v])));
            }
        }
        free(logits);
        free_batch(&batch);
        textbook_free(&t);
        llama_destroy(model);
        config_free(load);
    }
}

/* ---- properties ---------------------------------------------------------------------------------------- */

/* Eight sequences in one micro-batch, or one in each of eight. */
static void accumulation_changes_nothing(void **state)
{
    (void)state;
    Sizes s = {2, 24, 32, 4, 2, 6, 150, 8, 11, 0, true, false, false, false};
    ConfigLoad *load = make_config(&s);
    Config *config = config_values(load);
    Llama *whole = make_model(config, 0);
    config->train.micro_batch = 1;
    config->train.accum = 8;
    Llama *parts = make_model(config, 0);
    fill(whole, NULL, 3);
    fill(parts, NULL, 3);
    Batch batch = make_batch(8, 11, s.vocab, false, 5);
    float scale = 1.0f / (float)batch.valid;
    Hyper hyper = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f,
                   .bias1 = 0.1f, .bias2 = 0.05f, .clip = 1, .step = 1};
    llama_begin_step(whole);
    llama_micro_step(whole, &batch, scale, true, true);
    llama_begin_step(parts);
    for (int i = 0; i < 8; i++) {
        Batch one = {1, 11, batch.tokens + i * 11, batch.targets + i * 11, batch.pos + i * 11,
                     batch.doc_start + i * 11, batch.weights + i * 11, 0, 0};
        llama_micro_step(parts, &one, scale, i == 0, i == 7);
    }
    for (int i = 0; i < whole->weight_count; i++) {
        if (!whole->weights[i].working.data) continue;
        const Tensor *a = &parts->weights[i].grad, *b = &whole->weights[i].grad;
        assert_true(relative_error(a->data, b->data, a->rows * a->cols) < 1e-6);
    }
    StepStats a = llama_update(whole, &hyper), b = llama_update(parts, &hyper);
    assert_true(fabs(a.loss - b.loss) < 1e-6 * a.loss);
    assert_true(fabs(a.grad_norm - b.grad_norm) < 1e-6 * a.grad_norm);
    free_batch(&batch);
    llama_destroy(whole);
    llama_destroy(parts);
    config_free(load);
}

/* The residual stream before the head: whatever the logits are, they follow from it row by row. */
static float *final_rows(Llama *model, const Batch *batch, float *losses)
{
    llama_eval(model, batch, losses);
    const Tensor *x = &model->buffers->x_final;
    float *copy = malloc((size_t)(x->rows * x->cols) * sizeof(float));
    memcpy(copy, x->data, (size_t)(x->rows * x->cols) * sizeof(float));
    return copy;
}

/* Changes every token that `changes` marks; all rows that `must_stay` marks must keep their bits. */
static void expect_isolated(const Sizes *s, Batch *batch, const bool *changes, const bool *must_stay)
{
    ConfigLoad *load = make_config(s);
    Llama *model = make_model(config_values(load), 0);
    fill(model, NULL, 9);
    int64_t rows = s->sequences * s->seq, d = s->hidden, moved = 0;
    float losses[2][rows], *before = final_rows(model, batch, losses[0]);
    for (int64_t i = 0; i < rows; i++)
        if (changes[i]) batch->tokens[i] = (int32_t)((batch->tokens[i] + 1) % s->vocab);
    float *after = final_rows(model, batch, losses[1]);
    for (int64_t i = 0; i < rows; i++) {
        bool same = memcmp(before + i * d, after + i * d, (size_t)d * sizeof(float)) == 0;
        if (must_stay[i]) assert_true(same && losses[0][i] == losses[1][i]);
        else moved += !same;
    }
    assert_true(moved > 0);
    free(before), free(after);
    llama_destroy(model);
    config_free(load);
}

static void documents_do_not_see_each_other(void **state)
{
    (void)state;
    Sizes s = {2, 24, 32, 4, 2, 6, 150, 2, 23, 0, true, false, true, false};
    Batch batch = make_batch(2, 23, s.vocab, true, 11);
    bool changes[46] = {0}, must_stay[46];
    int document = 0;
    for (int i = 0; i < 46; i++) {
        document += batch.pos[i] == 0;
        changes[i] = document == 2;
        must_stay[i] = !changes[i];
    }
    expect_isolated(&s, &batch, changes, must_stay);
    free_batch(&batch);
}

static void the_future_is_not_seen(void **state)
{
    (void)state;
    Sizes s = {2, 24, 32, 4, 2, 6, 150, 2, 23, 0, false, true, false, false};
    Batch batch = make_batch(2, 23, s.vocab, false, 12);
    bool changes[46] = {0}, must_stay[46];
    for (int i = 0; i < 46; i++) {
        changes[i] = i == 9;
        must_stay[i] = i < 9 || i >= 23;
    }
    expect_isolated(&s, &batch, changes, must_stay);
    free_batch(&batch);
}

static void non_finite_gradients_change_nothing(void **state)
{
    (void)state;
    const Sizes *s = &shapes[0];
    ConfigLoad *load = make_config(s);
    Llama *model = make_model(config_values(load), 0);
    fill(model, NULL, 21);
    Batch batch = make_batch((int)s->sequences, (int)s->seq, s->vocab, false, 2);
    const Hyper hyper = {.lr = 1, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .bias1 = 0.1f,
                         .bias2 = 0.05f, .step = 1};
    char *found = llama_find_nonfinite(model);
    llama_begin_step(model);
    llama_micro_step(model, &batch, 1.0f / (float)batch.valid, true, true);
    free(found);
    found = llama_find_nonfinite(model);
    assert_null(found);

    Weight *w = &model->weights[model->layers[1].w2];
    float *working = w->working.data;
    working[3] = NAN;
    llama_begin_step(model);
    llama_micro_step(model, &batch, 1.0f / (float)batch.valid, true, true);
    int64_t count = master_count(model, model->embed);
    float *before = malloc((size_t)count * 4);
    memcpy(before, model->weights[model->embed].master.data, (size_t)count * 4);
    StepStats stats = llama_update(model, &hyper);
    assert_int_equal(stats.skipped, 1);
    assert_memory_equal(before, model->weights[model->embed].master.data, (size_t)count * 4);
    found = llama_find_nonfinite(model);
    assert_non_null(found);
    assert_non_null(strstr(found, "x_final has 14 non-finite values of 168"));   /* one column of every row */
    free(found);
    free(before);
    free_batch(&batch);
    llama_destroy(model);
    config_free(load);
}

static void one_batch_is_learned_by_heart(void **state)
{
    (void)state;
    Sizes s = {2, 32, 48, 4, 2, 8, 60, 2, 12, 0, true, false, false, false};
    ConfigLoad *load = make_config(&s);
    Llama *model = make_model(config_values(load), 0);
    assert_true(llama_init(model, config_values(load)));
    Batch batch = make_batch(2, 12, s.vocab, false, 8);
    double first = 0, last = 0;
    for (int step = 1; step <= 60; step++) {
        Hyper hyper = {.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .clip = 1,
                       .step = (uint32_t)step};
        hyper.bias1 = (float)(1 - pow(hyper.beta1, step));
        hyper.bias2 = (float)(1 - pow(hyper.beta2, step));
        llama_begin_step(model);
        llama_micro_step(model, &batch, 1.0f / (float)batch.valid, true, true);
        last = llama_update(model, &hyper).loss;
        if (step == 1) first = last;
    }
    assert_true(fabs(first - log(60)) < 0.2);   /* a fresh model knows nothing */
    assert_true(last < 0.05);
    free_batch(&batch);
    llama_destroy(model);
    config_free(load);
}

/* ---- counts -------------------------------------------------------------------------------------------- */

static void parameters_and_flops_match_hand_counts(void **state)
{
    (void)state;
    /* Llama-3.2-1B and Llama-3-8B; parameters as published. A layer of the 1B has 2048 x 3072 in qkv, 2048 x
     * 2048 in out and 3 x 2048 x 8192 in the MLP: 60,817,408; with the head 1,235,746,816 in matrices. */
    Sizes one = {16, 2048, 8192, 32, 8, 64, 128256, 1, 2048, 0, true, true, false, false};
    Sizes eight = {32, 4096, 14336, 32, 8, 128, 128256, 1, 8192, 0, false, false, false, false};
    ConfigLoad *load = make_config(&one);
    LlamaShape shape = llama_shape(config_values(load), DTYPE_BF16);
    assert_int_equal(llama_parameters(&shape), 1235814400);
    double expected = 6.0 * 1235746816 + 12.0 * 16 * 2048 * 2048;
    assert_true(llama_flops_per_token(&shape) == expected);
    config_free(load);
    load = make_config(&eight);
    shape = llama_shape(config_values(load), DTYPE_BF16);
    assert_int_equal(llama_parameters(&shape), 8030261248);
    /* 8,030,261,248 less the input table (525,336,576) and 65 norms of 4096 */
    expected = 6.0 * (8030261248.0 - 525336576 - 65 * 4096) + 12.0 * 32 * 4096 * 8192;
    assert_true(llama_flops_per_token(&shape) == expected);
    config_free(load);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_match_textbook),
        cmocka_unit_test(updates_match_textbook),
        cmocka_unit_test(evaluation_and_generation_match_textbook),
        cmocka_unit_test(accumulation_changes_nothing),
        cmocka_unit_test(documents_do_not_see_each_other),
        cmocka_unit_test(the_future_is_not_seen),
        cmocka_unit_test(non_finite_gradients_change_nothing),
        cmocka_unit_test(one_batch_is_learned_by_heart),
        cmocka_unit_test(parameters_and_flops_match_hand_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
