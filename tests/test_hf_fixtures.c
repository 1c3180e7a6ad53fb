/* Loss, logits and every gradient of whole models against Hugging Face's Llama: tests/fixtures/hf, written by
 * scripts/make_hf_fixtures.py. */
#include "model/files.h"
#include "model/hf_config.h"
#include "model/hf_names.h"
#include "model/weights_io.h"
#include "tests/gradients.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define TOLERANCE 1e-5      /* relative error of a tensor's norm */

typedef struct Fixture {
    Safetensors *weights, *expected;
    ConfigLoad  *load;
    Config      *config;
    Batch        batch;
    Llama       *model;
} Fixture;

static void expect_no_errors(Errors *errors)
{
    errors_print(errors, stderr);
    assert_int_equal(errors->count, 0);
}

static void *read_tensor(const Safetensors *st, const char *name, int64_t *count)
{
    Errors errors = {0};
    const SafetensorsTensor *t = safetensors_find(st, name);
    assert_non_null(t);
    float *values = malloc((size_t)t->count * sizeof(float));
    safetensors_read_raw(st, t, 0, t->count, values, &errors);
    expect_no_errors(&errors);
    if (count) *count = t->count;
    return values;
}

static Fixture fixture_open(const char *name, int64_t head_chunk)
{
    Errors errors = {0};
    Fixture f = {0};
    char dir[128], path[192];
    snprintf(dir, sizeof dir, "tests/fixtures/hf/%s", name);
    snprintf(path, sizeof path, "%s/config.json", dir);
    char *text = files_read(path, NULL, &errors);
    f.load = config_load(NULL, 0, NULL, &errors);
    expect_no_errors(&errors);
    f.config = config_values(f.load);
    hf_config_read(text, path, f.config, &errors);
    expect_no_errors(&errors);
    free(text);
    f.weights = safetensors_open(dir, &errors);
    snprintf(path, sizeof path, "%s/expected.safetensors", dir);
    f.expected = safetensors_open(path, &errors);
    expect_no_errors(&errors);

    int64_t rows, seq = 0;
    f.batch.tokens = read_tensor(f.expected, "tokens", &rows);
    f.batch.targets = read_tensor(f.expected, "targets", NULL);
    f.batch.pos = read_tensor(f.expected, "pos", NULL);
    f.batch.doc_start = read_tensor(f.expected, "doc_start", NULL);
    f.batch.weights = read_tensor(f.expected, "weights", NULL);
    int64_t sequences = 0;      /* each begins with a document of its own: position 0 at index 0 */
    for (int64_t i = 0; i < rows; i++) {
        f.batch.valid += f.batch.weights[i] != 0;
        if (f.batch.doc_start[i] == 0 && f.batch.pos[i] == 0) sequences++;
    }
    seq = rows / sequences;
    f.batch.sequences = (int)sequences;
    f.batch.seq = (int)seq;
    f.config->train.micro_batch = sequences;
    f.config->train.seq_len = seq;
    f.config->train.head_chunk = head_chunk;
    f.config->data.document_mask = strcmp(name, "documents") == 0;
    static const OpContext ctx = {.layer = -1};
    f.model = llama_create(f.config, DTYPE_F32, LLAMA_TRAIN, &cpu_ops, &cpu_device, &ctx, seq, &errors);
    expect_no_errors(&errors);
    int count = weights_load(f.model, f.weights, NULL, &errors);
    expect_no_errors(&errors);
    assert_int_equal(count, f.weights->tensor_count);
    llama_fold(f.model);
    return f;
}

static void fixture_close(Fixture *f)
{
    llama_destroy(f->model);
    safetensors_close(f->weights);
    safetensors_close(f->expected);
    config_free(f->load);
    free(f->batch.tokens);
    free(f->batch.targets);
    free(f->batch.pos);
    free(f->batch.doc_start);
    free(f->batch.weights);
}

static void expect_close(const char *fixture, const char *name, const float *ours, const float *theirs,
                         int64_t count)
{
    double error = relative_error(ours, theirs, count);
    if (!(error < TOLERANCE)) fail_msg("%s: %s is off by %.2e of its norm", fixture, name, error);
}

/* The gradient of one tensor in Hugging Face's rows. */
static float *gradient(const Llama *model, const HfTensor *t)
{
    const Weight *w = &model->weights[t->weight];
    float *whole = malloc((size_t)(w->master.rows * t->cols) * sizeof(float));
    gradient_of_master(model, t->weight, whole);
    memmove(whole, whole + t->first_row * t->cols, (size_t)(t->rows * t->cols) * sizeof(float));
    return whole;
}

static void check_gradients(const char *name, int64_t head_chunk)
{
    Fixture f = fixture_open(name, head_chunk);
    Llama *model = f.model;
    llama_begin_step(model);
    llama_micro_step(model, &f.batch, 1.0f / (float)f.batch.valid, true, true);
    gradients_finish(model);
    int count;
    HfTensor *tensors = hf_tensors(&model->shape, &count);
    for (int i = 0; i < count; i++) {
        char key[100];
        snprintf(key, sizeof key, "grad.%s", tensors[i].name);
        float *theirs = read_tensor(f.expected, key, NULL), *ours = gradient(model, &tensors[i]);
        expect_close(name, key, ours, theirs, tensors[i].rows * tensors[i].cols);
        free(theirs);
        free(ours);
    }
    free(tensors);
    fixture_close(&f);
}

static void check_losses(const char *name)
{
    Fixture f = fixture_open(name, 0);
    int64_t rows;
    float *theirs = read_tensor(f.expected, "losses", &rows), *ours = malloc((size_t)rows * sizeof(float));
    llama_eval(f.model, &f.batch, ours);
    for (int64_t i = 0; i < rows; i++)      /* rows that do not count may have any target and loss */
        if (f.batch.weights[i] == 0) ours[i] = theirs[i] = 0;
    expect_close(name, "losses", ours, theirs, rows);
    free(ours);
    free(theirs);
    fixture_close(&f);
}

/* Logits after each prefix of each document, fed whole and one token at a time. */
static void check_logits(const char *name)
{
    Fixture f = fixture_open(name, 0);
    float *theirs = read_tensor(f.expected, "logits", NULL);
    int64_t vocab = f.config->model.vocab;
    for (int64_t i = 0; i < (int64_t)f.batch.sequences * f.batch.seq; i++) {
        int64_t past = f.batch.pos[i];
        const float *cached = llama_next_logits(f.model, f.batch.tokens + i, 1, past);
        expect_close(name, "logits with cache", cached, theirs + i * vocab, vocab);
    }
    for (int64_t i = 0; i < (int64_t)f.batch.sequences * f.batch.seq; i++) {
        int64_t past = f.batch.pos[i];
        const float *whole = llama_next_logits(f.model, f.batch.tokens + i - past, past + 1, 0);
        expect_close(name, "logits of a prefix", whole, theirs + i * vocab, vocab);
    }
    free(theirs);
    fixture_close(&f);
}

static const char *const with_gradients[] = {"tied", "scaled", "documents", "one_head"};
static const char *const all[] = {"tied", "scaled", "documents", "one_head", "sharded_bf16",
                                  "sharded_f16_old_config"};

static void gradients_match(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof with_gradients / sizeof *with_gradients; i++)
        check_gradients(with_gradients[i], 0);
}

static void gradients_match_in_chunks_of_the_head(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof with_gradients / sizeof *with_gradients; i++)
        check_gradients(with_gradients[i], 8);
}

static void losses_match(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) check_losses(all[i]);
}

static void logits_match(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) check_logits(all[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(losses_match),
        cmocka_unit_test(logits_match),
        cmocka_unit_test(gradients_match),
        cmocka_unit_test(gradients_match_in_chunks_of_the_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
