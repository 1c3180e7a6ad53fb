/* Text from a model: where it stops, what it hands on, and that a seed gives one text. */
#include "model/generate.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { CONTEXT = 12 };

/* Over the ids of the byte tokenizer. */
static Llama *make_model(void)
{
    Errors errors = {0};
    ConfigLoad *load = config_load(NULL, 0, NULL, &errors);
    Config *c = config_values(load);
    c->model.layers = 1, c->model.hidden = 8, c->model.ffn = 8;
    c->model.heads = 2, c->model.kv_heads = 1, c->model.head_dim = 4;
    c->model.vocab = 258;
    c->train.micro_batch = 1, c->train.seq_len = CONTEXT, c->train.accum = 1;
    const OpContext ctx = {.layer = -1};
    Llama *model = llama_create(c, DTYPE_F32, LLAMA_INFER, &cpu_ops, &cpu_device, &ctx, CONTEXT, &errors);
    assert_non_null(model);
    assert_true(llama_init(model, c));
    config_free(load);
    return model;
}

/* Makes `id` by far the likeliest token whatever came before: every token has the same embedding, the layer
 * adds nothing, and only that row of the head has any weight. */
static void always(Llama *model, int id)
{
    for (int i = 0; i < model->weight_count; i++) {
        Weight *w = &model->weights[i];
        float value = !w->working.data || i == model->embed ? 1.0f : 0.0f;
        for (int64_t k = 0; k < w->master.rows * w->master.cols; k++) ((float *)w->master.data)[k] = value;
    }
    Tensor head = model->weights[model->head].master;
    for (int64_t k = 0; k < head.cols; k++) ((float *)head.data)[id * head.stride + k] = 10.0f;
    llama_fold(model);
}

typedef struct Heard { char text[256]; int pieces; } Heard;

static void hear(const char *bytes, size_t length, void *user)
{
    Heard *heard = user;
    strncat(heard->text, bytes, length);
    heard->pieces++;
}

static Heard run(Llama *model, const char *prompt, int64_t tokens, double temperature, uint64_t key)
{
    Errors errors = {0};
    Heard heard = {0};
    Tokenizer *tokenizer = tokenizer_bytes();
    GenerateOptions options = {
        .prompt = prompt, .tokens = tokens, .temperature = temperature, .top_p = 1, .key = key};
    assert_true(generate(model, CONTEXT, tokenizer, &options, hear, &heard, &errors));
    assert_int_equal(errors.count, 0);
    tokenizer_free(tokenizer);
    return heard;
}

static void each_token_is_a_piece(void **state)
{
    (void)state;
    Llama *model = make_model();
    always(model, 'x');
    Heard heard = run(model, "ab", 4, 0.5, 1);
    assert_string_equal(heard.text, "abxxxx");
    assert_int_equal(heard.pieces, 1 + 4);      /* the prompt, and every token when it is there */
    llama_destroy(model);
}

static void ends_where_a_text_ends(void **state)
{
    (void)state;
    Llama *model = make_model();
    for (int id = 256; id <= 257; id++) {       /* the byte tokenizer's begin and end of text */
        always(model, id);
        assert_string_equal(run(model, "ab", 9, 0.5, 1).text, "ab");
    }
    llama_destroy(model);
}

static void ends_with_the_context(void **state)
{
    (void)state;
    Llama *model = make_model();
    always(model, 'y');
    Heard heard = run(model, "abc", 1000, 0, 1);
    /* BOS and three letters are in; the model sees up to CONTEXT tokens and predicts the one behind them. */
    assert_int_equal(strlen(heard.text), 3 + CONTEXT - 4 + 1);
    llama_destroy(model);
}

static void a_key_is_a_text(void **state)
{
    (void)state;
    Llama *model = make_model();
    Heard first = run(model, "a", 8, 1, 7), again = run(model, "a", 8, 1, 7),
          other = run(model, "a", 8, 1, 8);
    assert_memory_equal(first.text, again.text, sizeof first.text);
    assert_memory_not_equal(first.text, other.text, sizeof first.text);
    llama_destroy(model);
}

static void prompts_must_fit(void **state)
{
    (void)state;
    Errors errors = {0};
    Heard heard = {0};
    Llama *model = make_model();
    Tokenizer *tokenizer = tokenizer_bytes();
    GenerateOptions options = {.prompt = "much too long", .tokens = 1, .temperature = 1, .top_p = 1};
    assert_false(generate(model, CONTEXT, tokenizer, &options, hear, &heard, &errors));
    assert_non_null(strstr(errors.text[0], "the prompt has 14 tokens, the context only 12"));
    assert_int_equal(heard.pieces, 0);
    errors_free(&errors);
    tokenizer_free(tokenizer);
    llama_destroy(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_token_is_a_piece), cmocka_unit_test(ends_where_a_text_ends),
        cmocka_unit_test(ends_with_the_context), cmocka_unit_test(a_key_is_a_text),
        cmocka_unit_test(prompts_must_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
