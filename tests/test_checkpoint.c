/* Checkpoints: what is saved comes back bit by bit; whatever is torn, damaged or out of place is noticed
 * before it reaches a model; a failed save leaves the earlier ones alone. */
#include "model/checkpoint_manifest.h"
#include "model/files.h"
#include "tests/small_model.h"
#include "tests/temporary.h"
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static CheckpointState make_state(int64_t step)
{
    CheckpointState s = {
        .step = step, .tokens = step * 4096, .adam_step = step - 1, .skipped = 1, .seed = 0xfedcba9876543210u,
        .tokenizer = 0xfeedfacecafebeefu, .data_tokens = INT64_MAX,
        .cursor = {3, INT64_MAX, INT64_MIN, -1}, .cursor_count = 4,
        .best_val_loss = 1.0 / 3, .best_val_step = 7, .elapsed_seconds = 12.625,
        .backend = "cpu", .precision = "fp32", .device = "a \"processor\"",
        .libraries = "x 1.2, y 3.4",
    };
    checkpoint_add_choice(&s, "qkv=cpu");
    checkpoint_add_choice(&s, "out=cpu");
    return s;
}

static bool save(const char *run, const Llama *model, int64_t step, Errors *errors)
{
    CheckpointState state = make_state(step);
    bool ok = checkpoint_save(run, model, &state, errors);
    checkpoint_state_free(&state);
    return ok;
}

static void must_save(const char *run, const Llama *model, int64_t step)
{
    Errors errors = {0};
    bool ok = save(run, model, step, &errors);
    errors_print(&errors, stderr);
    assert_true(ok);
}

static bool has(const char *run, const char *name)
{
    char *path = files_join(run, name);
    bool found = files_exists(path);
    free(path);
    return found;
}

/* The newest good checkpoint must be that of `step` (-1 = none) and `sentence` the only one said, or none. */
static char *expect_found(const char *run, int64_t step, const char *sentence)
{
    Errors skipped = {0};
    char *found = checkpoint_find(run, &skipped), name[64];
    snprintf(name, sizeof name, "/checkpoints/step-%08lld", (long long)step);
    bool as_expected = step < 0 ? !found : found && strcmp(found + strlen(run), name) == 0;
    bool said = sentence ? skipped.count == 1 && strstr(skipped.text[0], sentence) : skipped.count == 0;
    if (!as_expected || !said) {
        errors_print(&skipped, stderr);
        fail_msg("found %s", found ? found : "nothing");
    }
    errors_free(&skipped);
    return found;
}

/* ---- round trips ---------------------------------------------------------------------------------- */

static void test_round_trip(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        char *run = temporary_make();
        Llama *model = small_model(tied, 3, LLAMA_TRAIN, DTYPE_F32);
        Llama *again = small_model(tied, 3, LLAMA_TRAIN, DTYPE_F32);
        Llama *infer = small_model(tied, 3, LLAMA_INFER, DTYPE_F32);
        small_fill(model, 0.5f);
        must_save(run, model, 120);
        char *dir = expect_found(run, 120, NULL);

        Errors errors = {0};
        CheckpointState wanted = make_state(120), found = {0};
        int tensors = 2 + 9 * 3 + !tied;
        assert_int_equal(checkpoint_load(dir, again, &found, &errors), 3 * tensors);
        small_assert_same(model, again);
        assert_int_equal(found.step, 120);
        assert_int_equal(found.tokens, wanted.tokens);
        assert_int_equal(found.adam_step, 119);
        assert_int_equal(found.skipped, 1);
        assert_true(found.seed == wanted.seed && found.tokenizer == wanted.tokenizer);
        assert_int_equal(found.data_tokens, wanted.data_tokens);
        assert_int_equal(found.cursor_count, 4);
        assert_memory_equal(found.cursor, wanted.cursor, sizeof wanted.cursor);
        assert_true(found.best_val_loss == wanted.best_val_loss);
        assert_int_equal(found.best_val_step, 7);
        assert_true(found.elapsed_seconds == 12.625);
        assert_string_equal(found.device, wanted.device);
        assert_string_equal(found.libraries, wanted.libraries);
        assert_int_equal(found.choice_count, 2);
        assert_string_equal(found.choices[1], "out=cpu");

        /* The working copies are the folded masters: as after llama_fold of the same masters. */
        llama_fold(model);
        for (int i = 0; i < model->weight_count; i++) {
            const Tensor *working = &model->weights[i].working;
            if (working->data) assert_true(small_same_tensor(working, &again->weights[i].working));
        }
        assert_int_equal(checkpoint_load(dir, infer, &found, &errors), tensors);
        small_assert_same(model, infer);
        assert_int_equal(errors.count, 0);
        checkpoint_state_free(&wanted);
        checkpoint_state_free(&found);
        free(dir);
        llama_destroy(model);
        llama_destroy(again);
        llama_destroy(infer);
        temporary_remove(run);
    }
}

/* Weights without moments, as an import leaves them: training starts with moments of zero. */
static void test_without_moments(void **state)
{
    (void)state;
    char *run = temporary_make();
    Llama *infer = small_model(true, 1, LLAMA_INFER, DTYPE_F32);
    Llama *train = small_model(true, 1, LLAMA_TRAIN, DTYPE_F32);
    small_fill(infer, 0.1f);
    small_fill(train, 3.0f);
    must_save(run, infer, 0);
    char *dir = expect_found(run, 0, NULL);
    assert_false(has(dir, "optimizer.safetensors"));
    CheckpointState found = {0};
    Errors errors = {0};
    assert_int_equal(checkpoint_load(dir, train, &found, &errors), 11);
    small_assert_same(infer, train);
    assert_int_equal(found.adam_step, 0);
    for (int i = 0; i < train->weight_count; i++) {
        const Tensor *v = &train->weights[i].v;
        for (int64_t k = 0; k < v->rows * v->cols; k++) assert_true(((float *)v->data)[k] == 0);
    }
    checkpoint_state_free(&found);
    free(dir);
    llama_destroy(infer);
    llama_destroy(train);
    temporary_remove(run);
}

/* ---- what must be noticed ------------------------------------------------------------------------- */

/* Another model: every missing, unknown and misshapen tensor is listed, and nothing is changed. */
static void test_other_model(void **state)
{
    (void)state;
    char *run = temporary_make();
    Llama *model = small_model(false, 2, LLAMA_TRAIN, DTYPE_F32);
    Llama *shallow = small_model(true, 1, LLAMA_TRAIN, DTYPE_F32);
    Llama *deep = small_model(false, 3, LLAMA_TRAIN, DTYPE_F32);
    Llama *before = small_model(true, 1, LLAMA_TRAIN, DTYPE_F32);
    small_fill(model, 0.5f);
    small_fill(shallow, 0.7f);
    small_fill(before, 0.7f);
    must_save(run, model, 5);
    char *dir = expect_found(run, 5, NULL);
    CheckpointState found = {0};
    Errors errors = {0};
    assert_int_equal(checkpoint_load(dir, shallow, &found, &errors), -1);
    assert_int_equal(errors.count, 3 * (9 + 1));        /* a layer and the head; masters and both moments */
    int heads = 0;
    for (int i = 0; i < errors.count; i++) {
        assert_non_null(strstr(errors.text[i], "is not part of this model"));
        heads += strstr(errors.text[i], "lm_head.weight\" is not part of this model (tie_embeddings") != NULL;
    }
    assert_int_equal(heads, 1);
    small_assert_same(shallow, before);
    assert_int_equal(found.step, 0);
    errors_free(&errors);

    assert_int_equal(checkpoint_load(dir, deep, &found, &errors), -1);
    assert_int_equal(errors.count, 3 * 9);
    assert_non_null(strstr(errors.text[0], "\"model.layers.2.input_layernorm.weight\" [12] is missing"));
    errors_free(&errors);

    deep->shape.layers = 2;         /* same names, other shapes */
    deep->shape.ffn = 24;
    assert_int_equal(checkpoint_load(dir, deep, &found, &errors), -1);
    assert_int_equal(errors.count, 3 * 2 * 3);
    assert_non_null(strstr(errors.text[0], "mlp.gate_proj.weight\" is [16, 12]; the model needs [24, 12]"));
    errors_free(&errors);
    free(dir);
    llama_destroy(model);
    llama_destroy(shallow);
    llama_destroy(before);
    llama_destroy(deep);
    temporary_remove(run);
}

/* Changes one byte at `at` (from the end when negative), or cuts the file there. */
static void damage(const char *run, const char *name, long at, bool cut)
{
    char *path = files_join(run, name);
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_int_equal(fseek(file, at, at < 0 ? SEEK_END : SEEK_SET), 0);
    at = ftell(file);
    int byte = fgetc(file);
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    if (!cut) fputc(byte ^ 1, file);
    assert_int_equal(fclose(file), 0);
    if (cut) assert_int_equal(truncate(path, at), 0);
    free(path);
}

/* Whatever happens to the newest checkpoint, the one before it is found and the reason is told. */
static void test_fallback(void **state)
{
    (void)state;
    static const struct { const char *file; long at; bool cut; const char *said; bool fifo; } cases[] = {
        {"model.safetensors", 3000, false, "model.safetensors is damaged", false},
        {"model.safetensors", 20, false, "model.safetensors is damaged", false},
        {"optimizer.safetensors", -1, false, "optimizer.safetensors is damaged", false},
        {"optimizer.safetensors", -1, true, "bytes; its manifest says", false},
        {"model.safetensors", 0, true, "model.safetensors has 0 bytes", false},
        {"manifest.json", 40, true, "damaged, or not a checkpoint's manifest", false},
        {"manifest.json", 0, true, "damaged, or not a checkpoint's manifest", false},
        {"model.safetensors", 0, false, NULL, false},       /* deleted */
        {"manifest.json", 0, false, NULL, false},
        {"model.safetensors", 0, false, "model.safetensors has 0 bytes", true},     /* not waited for */
    };
    Llama *model = small_model(true, 2, LLAMA_TRAIN, DTYPE_F32);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *run = temporary_make(), *newest = files_join(run, "checkpoints/step-00000020");
        must_save(run, model, 10);
        must_save(run, model, 20);
        free(expect_found(run, 20, NULL));
        if (cases[i].said && !cases[i].fifo) {
            damage(newest, cases[i].file, cases[i].at, cases[i].cut);
        } else {
            char *path = files_join(newest, cases[i].file);
            assert_int_equal(unlink(path), 0);
            if (cases[i].fifo) assert_int_equal(mkfifo(path, 0600), 0);
            free(path);
        }
        free(expect_found(run, 10, cases[i].said ? cases[i].said : "No such file or directory"));
        free(newest);
        temporary_remove(run);
    }
    llama_destroy(model);
}

/* files_replace syncs, which takes too long for a thousand times. */
static void overwrite(const char *path, const char *text, size_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

/* Every single byte of a manifest counts. */
static void test_manifest_bytes(void **state)
{
    (void)state;
    char *run = temporary_make(), *dir = files_join(run, "checkpoints/step-00000009");
    char *path = files_join(dir, "manifest.json");
    Llama *model = small_model(true, 1, LLAMA_TRAIN, DTYPE_F32);
    must_save(run, model, 9);
    Errors errors = {0};
    CheckpointState found = {0};
    SafetensorsWritten files[MANIFEST_FILES];
    int count = 0;
    size_t bytes;
    char *text = files_read(path, &bytes, &errors);
    for (size_t i = 0; i < bytes; i++) {
        text[i] ^= 1;
        overwrite(path, text, bytes);
        if (manifest_read(dir, &found, files, &count, &errors))
            fail_msg("a change at byte %zu was not noticed", i);
        text[i] ^= 1;
    }
    overwrite(path, text, bytes);
    assert_true(manifest_read(dir, &found, files, &count, &errors));
    char *version = strstr(text, "\"schema_version\":\t1");
    version[strlen("\"schema_version\":\t")] = '2';
    overwrite(path, text, bytes);
    assert_false(manifest_read(dir, &found, files, &count, &errors));
    assert_non_null(strstr(errors.text[errors.count - 1], "written by a newer program"));
    errors_free(&errors);
    checkpoint_state_free(&found);
    free(text);
    free(path);
    free(dir);
    llama_destroy(model);
    temporary_remove(run);
}

/* ---- interrupted and failing saves, pruning -------------------------------------------------------- */

static void test_interrupted(void **state)
{
    (void)state;
    char *run = temporary_make();
    Llama *model = small_model(true, 1, LLAMA_TRAIN, DTYPE_F32);
    Errors errors = {0};
    assert_null(expect_found(run, -1, NULL));           /* no checkpoints at all */
    must_save(run, model, 10);
    char *from = files_join(run, "checkpoints/step-00000010");
    char *torn = files_join(run, "checkpoints/step-00000020.tmp");
    char *aside = files_join(run, "checkpoints/step-00000010.old");
    assert_int_equal(mkdir(torn, 0777), 0);
    free(expect_found(run, 10, "step-00000020.tmp: passed over: its writing was interrupted"));
    must_save(run, model, 20);                          /* over the remains */
    assert_false(has(run, "checkpoints/step-00000020.tmp"));
    free(expect_found(run, 20, NULL));
    must_save(run, model, 20);                          /* over itself */
    free(expect_found(run, 20, NULL));
    assert_false(has(run, "checkpoints/step-00000020.old"));

    /* Stopped between moving the old one aside and putting the new one in its place. */
    assert_true(files_remove_tree(torn, &errors));
    assert_int_equal(rename(from, aside), 0);
    char *place = files_join(run, "checkpoints/step-00000020");
    assert_true(files_remove_tree(place, &errors));
    free(expect_found(run, 10, NULL));
    free(place);
    free(from);
    free(torn);
    free(aside);
    llama_destroy(model);
    temporary_remove(run);
}

static void test_pruning(void **state)
{
    (void)state;
    char *run = temporary_make(), *torn = files_join(run, "checkpoints/step-00000035.tmp");
    Llama *model = small_model(true, 1, LLAMA_INFER, DTYPE_F32);
    Errors errors = {0};
    char name[64];
    for (int64_t step = 10; step <= 60; step += 10) must_save(run, model, step);
    assert_int_equal(mkdir(torn, 0777), 0);
    assert_true(checkpoint_remove_torn(run, &errors));      /* as a run that goes on does: it may fill the disk */
    assert_false(files_exists(torn));
    for (int64_t step = 10; step <= 60; step += 10) {
        snprintf(name, sizeof name, "checkpoints/step-%08lld", (long long)step);
        assert_true(has(run, name));
    }
    assert_int_equal(mkdir(torn, 0777), 0);
    assert_true(checkpoint_prune(run, 0, 0, &errors));
    assert_false(files_exists(torn));
    assert_true(checkpoint_prune(run, 2, 30, &errors));
    for (int64_t step = 10; step <= 60; step += 10) {
        snprintf(name, sizeof name, "checkpoints/step-%08lld", (long long)step);
        assert_int_equal(has(run, name), step == 30 || step >= 50);
    }
    /* Resumed from step 30, because the later ones were damaged: they go, the one just saved stays. */
    must_save(run, model, 40);
    assert_true(checkpoint_prune(run, 1, 0, &errors));
    for (int64_t step = 10; step <= 60; step += 10) {
        snprintf(name, sizeof name, "checkpoints/step-%08lld", (long long)step);
        assert_int_equal(has(run, name), step == 40);
    }
    char *latest = files_join(run, "checkpoints/latest"), *text = files_read(latest, NULL, &errors);
    assert_string_equal(text, "step-00000040\n");
    assert_int_equal(errors.count, 0);
    free(text);
    free(latest);
    free(torn);
    llama_destroy(model);
    temporary_remove(run);
}

/* A limit on the size of files stands for a full disk. It must be told with path and cause, leave nothing of
 * the new checkpoint, and keep the old one. */
static void test_full_disk(void **state)
{
    (void)state;
    static const rlim_t limits[] = {0, 1000, 9000, 20000};
    char *run = temporary_make();
    Llama *model = small_model(true, 2, LLAMA_TRAIN, DTYPE_F32);
    struct rlimit before, limit;
    signal(SIGXFSZ, SIG_IGN);
    must_save(run, model, 10);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    for (int i = 0; i < 4; i++) {
        Errors errors = {0};
        limit = (struct rlimit){.rlim_cur = limits[i], .rlim_max = before.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        bool ok = save(run, model, 20, &errors);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
        assert_false(ok);
        assert_int_equal(errors.count, 1);
        assert_non_null(strstr(errors.text[0], "step-00000020.tmp/"));
        assert_non_null(strstr(errors.text[0], "cannot write: File too large"));
        errors_free(&errors);
        assert_false(has(run, "checkpoints/step-00000020"));
        assert_false(has(run, "checkpoints/step-00000020.tmp"));
        free(expect_found(run, 10, NULL));
    }
    llama_destroy(model);
    temporary_remove(run);
}

/* Larger than any disk. */
static void test_room(void **state)
{
    (void)state;
    char *run = temporary_make();
    Llama *model = small_model(true, 1, LLAMA_TRAIN, DTYPE_F32);
    const int64_t vocab = model->shape.vocab;
    Errors errors = {0};
    assert_true(checkpoint_has_room(run, model, &errors));
    model->shape.vocab = (int64_t)1 << 50;
    assert_false(checkpoint_has_room(run, model, &errors));
    assert_false(save(run, model, 1, &errors));
    assert_int_equal(errors.count, 2);
    assert_non_null(strstr(errors.text[0], "not enough space for a checkpoint: it needs "));
    assert_false(has(run, "checkpoints/step-00000001.tmp"));
    model->shape.vocab = vocab;
    errors_free(&errors);
    llama_destroy(model);
    temporary_remove(run);
}

/* The run directory has become a file, or was deleted with its disk. */
static void test_unwritable(void **state)
{
    (void)state;
    char *run = temporary_make(), *blocked = files_join(run, "checkpoints");
    Llama *model = small_model(true, 1, LLAMA_INFER, DTYPE_F32);
    Errors errors = {0};
    assert_true(files_replace(blocked, "x", 1, &errors));
    assert_false(save(run, model, 1, &errors));
    assert_int_equal(errors.count, 1);
    assert_non_null(strstr(errors.text[0], "checkpoints: cannot create directory"));
    errors_free(&errors);
    free(blocked);
    llama_destroy(model);
    temporary_remove(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip), cmocka_unit_test(test_without_moments),
        cmocka_unit_test(test_other_model),
        cmocka_unit_test(test_fallback), cmocka_unit_test(test_manifest_bytes),
        cmocka_unit_test(test_interrupted), cmocka_unit_test(test_pruning), cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_room), cmocka_unit_test(test_unwritable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
