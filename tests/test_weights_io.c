/* Masters and moments to safetensors and back: names, rows, dtypes, and what may be in a file besides. */
#include "model/files.h"
#include "model/weights_io.h"
#include "tests/small_model.h"
#include "tests/temporary.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* A tensor of the file, compared with rows [first, first + rows) of a master. */
static void expect_tensor(const Safetensors *st, const char *name, const Tensor *master, int64_t first,
                          int64_t rows)
{
    const SafetensorsTensor *t = safetensors_find(st, name);
    Errors errors = {0};
    assert_non_null(t);
    int64_t count = rows * master->cols;
    assert_int_equal(t->count, count);
    assert_int_equal(t->dtype, ST_F32);
    assert_int_equal(t->shape[0], t->dims == 1 ? master->cols : rows);
    float *values = malloc((size_t)count * sizeof *values);
    assert_true(safetensors_read(st, t, 0, count, values, &errors));
    assert_memory_equal(values, (float *)master->data + first * master->cols, (size_t)count * sizeof *values);
    free(values);
}

/* Names and rows, against the table of docs/FORMATS.md written out by hand. */
static void test_names(void **state)
{
    (void)state;
    char *dir = temporary_make();
    Llama *model = small_model(false, 2, LLAMA_TRAIN, DTYPE_F32);      /* d 12, f 16, q 12, kv 4, V 17 */
    small_fill(model, 0.25f);
    Errors errors = {0};
    assert_true(weights_save(model, dir, "model", ST_F32, 0, NULL, NULL, &errors));
    Safetensors *st = safetensors_open(dir, &errors);
    assert_non_null(st);
    assert_int_equal(st->tensor_count, 3 + 2 * 9);
    const Weight *w = model->weights;
    const LlamaLayer *l = &model->layers[1];
    expect_tensor(st, "model.embed_tokens.weight", &w[model->embed].master, 0, 17);
    expect_tensor(st, "model.layers.1.input_layernorm.weight", &w[l->attn_norm].master, 0, 1);
    expect_tensor(st, "model.layers.1.self_attn.q_proj.weight", &w[l->wqkv].master, 0, 12);
    expect_tensor(st, "model.layers.1.self_attn.k_proj.weight", &w[l->wqkv].master, 12, 4);
    expect_tensor(st, "model.layers.1.self_attn.v_proj.weight", &w[l->wqkv].master, 16, 4);
    expect_tensor(st, "model.layers.1.self_attn.o_proj.weight", &w[l->wo].master, 0, 12);
    expect_tensor(st, "model.layers.1.post_attention_layernorm.weight", &w[l->mlp_norm].master, 0, 1);
    expect_tensor(st, "model.layers.1.mlp.gate_proj.weight", &w[l->w13].master, 0, 16);
    expect_tensor(st, "model.layers.1.mlp.up_proj.weight", &w[l->w13].master, 16, 16);
    expect_tensor(st, "model.layers.1.mlp.down_proj.weight", &w[l->w2].master, 0, 12);
    expect_tensor(st, "model.norm.weight", &w[model->final_norm].master, 0, 1);
    expect_tensor(st, "lm_head.weight", &w[model->head].master, 0, 17);
    assert_int_equal(safetensors_find(st, "model.norm.weight")->dims, 1);
    safetensors_close(st);
    llama_destroy(model);
    temporary_remove(dir);
}

/* Moments in BF16 are kept bit by bit, and go over into F32 and back. */
static void test_bf16_moments(void **state)
{
    (void)state;
    char *dir = temporary_make();
    Llama *narrow = small_model(true, 1, LLAMA_TRAIN, DTYPE_BF16);
    Llama *wide = small_model(true, 1, LLAMA_TRAIN, DTYPE_F32);
    Llama *again = small_model(true, 1, LLAMA_TRAIN, DTYPE_BF16);
    for (int i = 0; i < narrow->weight_count; i++) {
        Weight *w = &narrow->weights[i];
        assert_int_equal(w->m.dtype, DTYPE_BF16);
        for (int64_t k = 0; k < w->m.rows * w->m.cols; k++) {
            ((float *)w->master.data)[k] = (float)k;
            ((uint16_t *)w->m.data)[k] = (uint16_t)(k * 37 % 0x7f80);
            ((uint16_t *)w->v.data)[k] = (uint16_t)(k * 41 % 0x7f80);
        }
    }
    Errors errors = {0};
    assert_true(weights_save(narrow, dir, "model", ST_F32, 0, NULL, NULL, &errors));
    assert_true(moments_save(narrow, dir, "bf16", NULL, NULL, &errors));
    char *path = files_join(dir, "bf16.safetensors");
    Safetensors *masters = safetensors_open(dir, &errors), *moments = safetensors_open(path, &errors);
    assert_int_equal(moments->tensors[0].dtype, ST_BF16);
    assert_int_equal(weights_load(wide, masters, moments, &errors), 33);
    safetensors_close(moments);
    assert_true(moments_save(wide, dir, "f32", NULL, NULL, &errors));
    free(path);
    path = files_join(dir, "f32.safetensors");
    moments = safetensors_open(path, &errors);
    assert_int_equal(moments->tensors[0].dtype, ST_F32);
    assert_int_equal(weights_load(again, masters, moments, &errors), 33);
    for (int i = 0; i < narrow->weight_count; i++) {
        const Weight *x = &narrow->weights[i], *y = &again->weights[i], *f = &wide->weights[i];
        size_t count = (size_t)(x->m.rows * x->m.cols);
        assert_memory_equal(x->m.data, y->m.data, 2 * count);
        assert_memory_equal(x->v.data, y->v.data, 2 * count);
        for (size_t k = 0; k < count; k++) {
            uint32_t bits;
            memcpy(&bits, (float *)f->v.data + k, 4);
            assert_int_equal(bits, (uint32_t)((uint16_t *)x->v.data)[k] << 16);
        }
    }
    safetensors_close(masters);
    safetensors_close(moments);
    assert_int_equal(errors.count, 0);
    free(path);
    llama_destroy(narrow);
    llama_destroy(wide);
    llama_destroy(again);
    temporary_remove(dir);
}

/* Copies plain.safetensors to model.safetensors with one tensor more. */
static void add_rotary_buffer(const char *dir)
{
    Errors errors = {0};
    char *path = files_join(dir, "plain.safetensors");
    Safetensors *st = safetensors_open(path, &errors);
    SafetensorsSpec *specs = calloc((size_t)st->tensor_count + 1, sizeof *specs);
    for (int i = 0; i < st->tensor_count; i++) {
        const SafetensorsTensor *t = &st->tensors[i];
        specs[i] = (SafetensorsSpec){.name = t->name, .dtype = ST_F32, .dims = t->dims};
        memcpy(specs[i].shape, t->shape, sizeof t->shape);
    }
    const char *name = "model.layers.0.self_attn.rotary_emb.inv_freq";
    specs[st->tensor_count] = (SafetensorsSpec){.name = name, .dims = 1, .shape = {2}};
    SafetensorsWriter *w = safetensors_create(dir, "model", specs, st->tensor_count + 1, 0, &errors);
    for (int i = 0; i < st->tensor_count; i++) {
        float values[17 * 16];
        assert_true(st->tensors[i].count <= 17 * 16);
        assert_true(safetensors_read(st, &st->tensors[i], 0, st->tensors[i].count, values, &errors));
        assert_true(safetensors_write(w, values, st->tensors[i].count));
    }
    assert_true(safetensors_write(w, (float[]){1, 0.5f}, 2));
    assert_true(safetensors_finish(w, NULL, NULL, &errors));
    safetensors_close(st);
    free(specs);
    free(path);
}

/* A head that repeats the embedding belongs to a tied model; rotary buffers of old files are passed over. */
static void test_harmless_extras(void **state)
{
    (void)state;
    char *dir = temporary_make();
    Llama *untied = small_model(false, 1, LLAMA_INFER, DTYPE_F32);
    Llama *tied = small_model(true, 1, LLAMA_INFER, DTYPE_F32);
    small_fill(untied, 0.5f);
    memcpy(untied->weights[untied->head].master.data, untied->weights[untied->embed].master.data,
           17 * 12 * sizeof(float));
    Errors errors = {0};
    assert_true(weights_save(untied, dir, "plain", ST_F32, 0, NULL, NULL, &errors));
    add_rotary_buffer(dir);
    Safetensors *st = safetensors_open(dir, &errors);
    assert_int_equal(weights_load(tied, st, NULL, &errors), 11);
    assert_true(small_same_tensor(&tied->weights[0].master, &untied->weights[0].master));
    assert_true(small_same_tensor(&tied->weights[4].master, &untied->weights[4].master));
    safetensors_close(st);
    assert_int_equal(errors.count, 0);
    llama_destroy(untied);
    llama_destroy(tied);
    temporary_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names), cmocka_unit_test(test_bf16_moments),
        cmocka_unit_test(test_harmless_extras),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
