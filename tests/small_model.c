#include "tests/small_model.h"
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

Llama *small_model(bool tied, int64_t layers, LlamaMode mode, Dtype act)
{
    Errors errors = {0};
    ConfigLoad *load = config_load(NULL, 0, NULL, &errors);
    Config *c = config_values(load);
    c->model.layers = layers, c->model.hidden = 12, c->model.ffn = 16;
    c->model.heads = 3, c->model.kv_heads = 1, c->model.head_dim = 4;
    c->model.vocab = 17, c->model.tie_embeddings = tied;
    c->train.micro_batch = 2, c->train.seq_len = 5, c->train.accum = 1;
    c->train.moments = act == DTYPE_BF16 ? MOMENTS_BF16 : MOMENTS_FP32;
    const OpContext ctx = {.layer = -1};
    Llama *model = llama_create(c, act, mode, &cpu_ops, &cpu_device, &ctx, 0, &errors);
    errors_print(&errors, stderr);
    assert_non_null(model);
    config_free(load);
    return model;
}

static size_t bytes_of(const Tensor *t)
{
    return (size_t)(t->rows * t->cols) * sizeof(float);
}

void small_fill(Llama *model, float start)
{
    float value = start;
    for (int i = 0; i < model->weight_count; i++) {
        Weight *w = &model->weights[i];
        Tensor *parts[] = {&w->master, &w->m, &w->v};
        for (int p = 0; p < (model->mode == LLAMA_TRAIN ? 3 : 1); p++) {
            for (int64_t k = 0; k < parts[p]->rows * parts[p]->cols; k++) {
                ((float *)parts[p]->data)[k] = value;
                value = value * 1.0009765625f + 0.001f;
            }
        }
    }
}

bool small_same_tensor(const Tensor *a, const Tensor *b)
{
    return memcmp(a->data, b->data, bytes_of(a)) == 0;
}

void small_assert_same(const Llama *a, const Llama *b)
{
    assert_int_equal(a->weight_count, b->weight_count);
    for (int i = 0; i < a->weight_count; i++) {
        const Weight *x = &a->weights[i], *y = &b->weights[i];
        assert_true(small_same_tensor(&x->master, &y->master));
        if (a->mode != LLAMA_TRAIN || b->mode != LLAMA_TRAIN) continue;
        assert_true(small_same_tensor(&x->m, &y->m));
        assert_true(small_same_tensor(&x->v, &y->v));
    }
}
