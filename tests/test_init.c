/* Initial weights: means and deviations of every tensor against what the configuration asks for, and the numbers
 * they are drawn from against the C library's functions. */
#include "model/llama.h"
#include "model/random.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

enum { LAYERS = 3 };

static ConfigLoad *config_of(double std, double embedding_std, int64_t seed)
{
    Errors errors = {0};
    ConfigLoad *load = config_load(NULL, 0, NULL, &errors);
    Config *c = config_values(load);
    c->run.seed = seed;
    c->model.layers = LAYERS, c->model.hidden = 72, c->model.ffn = 104, c->model.heads = 6, c->model.kv_heads = 2;
    c->model.head_dim = 12, c->model.vocab = 131, c->model.tie_embeddings = false;
    c->model.init_std = std, c->model.embedding_init_std = embedding_std;
    c->train.micro_batch = 1, c->train.seq_len = 4, c->train.accum = 1;
    return load;
}

static Llama *initialised(double std, double embedding_std, int64_t seed)
{
    Errors errors = {0};
    const OpContext ctx = {.layer = -1};
    ConfigLoad *load = config_of(std, embedding_std, seed);
    Llama *model = llama_create(config_values(load), DTYPE_F32, LLAMA_TRAIN, &cpu_ops, &cpu_device, &ctx, 0, &errors);
    assert_non_null(model);
    assert_true(llama_init(model, config_values(load)));
    config_free(load);
    return model;
}

/* Fails unless n numbers look drawn from N(mean, std^2): first, second and fourth moments within six sigma. */
static void check_normal(const char *name, const float *x, int64_t n, double mean, double std)
{
    double sum = 0, squares = 0, fourths = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = x[i] - mean;
        sum += d, squares += d * d, fourths += d * d * d * d;
    }
    double root = sqrt((double)n);
    if (fabs(sum / n) > 6 * std / root || fabs(squares / n - std * std) > 6 * sqrt(2.0) * std * std / root ||
        fabs(fourths / n - 3 * pow(std, 4)) > 6 * sqrt(96.0) * pow(std, 4) / root)
        fail_msg("%s: mean %g, deviation %g instead of %g, %g", name, sum / n + mean, sqrt(squares / n), mean, std);
}

/* Uniform numbers, and those next to what the range of each function ends with or turns at. */
static void logarithm_and_cosine_are_those_of_the_library(void **state)
{
    (void)state;
    const double edges[] = {0x1p-54, 0x1p-53, 0.125, 0.25, 0.5, M_SQRT1_2, 0.75, 0.875, 1 - 0x1p-53};
    for (uint64_t i = 0; i < 100000; i++) {
        const double u = i < sizeof edges / sizeof *edges ? edges[i] : random_uniform(3, i);
        const double ln = log(u), cosine = cos(2 * M_PI * u);
        if (fabs(random_log(u) - ln) > 2e-15 * fabs(ln) || fabs(random_cos(u) - cosine) > 2e-15)
            fail_msg("at %a: log %a instead of %a, cos %a instead of %a", u, random_log(u), ln, random_cos(u), cosine);
    }
    const double radius = sqrt(-2 * log(random_uniform(3, 14))), turn = random_uniform(3, 15);
    assert_true(fabs(random_normal(3, 7) - radius * cos(2 * M_PI * turn)) < 1e-14);
}

static void deviations_are_as_configured(void **state)
{
    (void)state;
    Llama *model = initialised(0.03, 0.5, 1);
    for (int i = 0; i < model->weight_count; i++) {
        const Weight *w = &model->weights[i];
        const char *part = strrchr(w->name, '.') ? strrchr(w->name, '.') + 1 : w->name;
        bool norm = strstr(part, "norm") != NULL, output = !strcmp(part, "wo") || !strcmp(part, "w2");
        double std = norm ? 0 : !strcmp(part, "embed") ? 0.5 : output ? 0.03 / sqrt(2.0 * LAYERS) : 0.03;
        check_normal(w->name, w->master.data, w->master.rows * w->master.cols, norm ? 1 : 0, std);
    }
    llama_destroy(model);
}

/* A deviation of 0 gives zeros, not the ones of a norm. */
static void no_deviation_gives_zeros(void **state)
{
    (void)state;
    Llama *model = initialised(0.03, 0, 1);
    const Tensor *table = &model->weights[model->embed].master;
    for (int64_t i = 0; i < table->rows * table->cols; i++) assert_true(((float *)table->data)[i] == 0);
    llama_destroy(model);
}

static void seeds_and_tensors_differ(void **state)
{
    (void)state;
    Llama *a = initialised(0.03, 0.03, 1), *b = initialised(0.03, 0.03, 2), *again = initialised(0.03, 0.03, 1);
    size_t bytes = (size_t)(a->weights[a->embed].master.rows * a->weights[a->embed].master.cols) * sizeof(float);
    const float *table = a->weights[a->embed].master.data;
    assert_memory_equal(table, again->weights[again->embed].master.data, bytes);
    assert_memory_not_equal(table, b->weights[b->embed].master.data, bytes);
    assert_memory_not_equal(table, a->weights[a->head].master.data, bytes);
    llama_destroy(a), llama_destroy(b), llama_destroy(again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logarithm_and_cosine_are_those_of_the_library),
        cmocka_unit_test(deviations_are_as_configured), cmocka_unit_test(no_deviation_gives_zeros),
        cmocka_unit_test(seeds_and_tensors_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
