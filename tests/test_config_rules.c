/* Rules between keys, the configurations in configs/, and what may change on resume. */
#include "tests/config_testing.h"

#include <stdlib.h>
#include <string.h>

/* ---- rules between keys -------------------------------------------------------------------------- */

static void heads_must_fit(void **state)
{
    (void)state;
    expect_arguments(
        "--model.heads=7", NULL, NULL,
        "error: model.heads = 7 (command line) is not a multiple of model.kv_heads = 2 (good.json:2); set "
        "model.heads to 4 or 8, or model.kv_heads to 1 or 7\n"
        "error: model.hidden = 64 (good.json:2) is not divisible by model.heads = 7 (command line); set "
        "model.heads to 4 or 8, or give model.head_dim\n");
    expect_arguments(
        "--model.heads=7", "--model.kv_heads=7", NULL,
        "error: model.hidden = 64 (good.json:2) is not divisible by model.heads = 7 (command line); give "
        "model.head_dim\n");
    expect_arguments(
        "--model.heads=3", "--model.head_dim=20", "--model.kv_heads=2",
        "error: model.heads = 3 (command line) is not a multiple of model.kv_heads = 2 (command line); set "
        "model.heads to 2 or 4, or model.kv_heads to 1 or 3\n");
    expect_arguments("--model.heads=3", "--model.head_dim=20", "--model.kv_heads=1", "");
    expect_arguments(
        "--model.heads=8", "--model.hidden=72", NULL,
        "error: model.hidden = 72 (command line) / model.heads = 8 (command line) gives the odd head size 9, "
        "but rotary pairs need an even one; set model.heads to 6 or 12, or give model.head_dim\n");
    expect_arguments(
        "--model.head_dim=9", NULL, NULL,
        "error: model.head_dim = 9 (command line) is odd, but rotary pairs need an even head size; set it to "
        "10\n");
    /* a key that was refused is not blamed again */
    expect_arguments("--model.heads=0", NULL, NULL,
                     "error: command line: model.heads: expected an integer in [1, 1024], found \"0\"\n");
}

static void widths_must_be_aligned(void **state)
{
    (void)state;
    expect_arguments("--model.hidden=60", "--model.ffn=100", "--model.heads=2",
                     "error: model.hidden = 60 (command line) is not a multiple of 8; set it to 56 or 64\n"
                     "error: model.ffn = 100 (command line) is not a multiple of 8; set it to 96 or 104\n");
}

static void rope_must_be_complete(void **state)
{
    (void)state;
    expect_arguments(
        "--model.rope_factor=8", NULL, NULL,
        "error: model.rope_factor = 8 (command line) has no effect with model.rope_scaling = none (default); "
        "set model.rope_scaling to llama3 or leave the factor out\n");
    expect_arguments(
        "--model.rope_scaling=llama3", NULL, NULL,
        "error: model.rope_scaling = llama3 (command line) needs model.rope_factor above 1: 8 for Llama 3.1, "
        "32 for Llama 3.2 1B and 3B; found model.rope_factor = 1 (default)\n");
    expect_arguments(
        "--model.rope_scaling=llama3", "--model.rope_factor=8", "--model.rope_low_freq_factor=4",
        "error: model.rope_low_freq_factor = 4 (command line) must be below model.rope_high_freq_factor = 4 "
        "(default); Llama 3 has 1 and 4\n");
    expect_arguments("--model.rope_scaling=llama3", "--model.rope_factor=8", NULL, "");
}

static void vocabulary_must_be_known(void **state)
{
    (void)state;
    expect_arguments(
        "--model.vocab=0", NULL, NULL,
        "error: model.vocab = 0 (command line) and no data.tokenizer to take it from; set either of them\n");
    expect_arguments("--model.vocab=0", "--data.tokenizer=bytes", "--data.boundary_token=999", "");
    expect_arguments("--data.boundary_token=300", NULL, NULL,
                     "error: data.boundary_token = 300 (command line) is outside of model.vocab = 300 "
                     "(good.json:3); token "
                     "ids end at 299\n");
}

static void tokens_must_divide(void **state)
{
    (void)state;
    expect_arguments(
        "--train.tokens_per_step=1000", NULL, NULL,
        "error: train.tokens_per_step = 1000 (command line) is not a multiple of train.micro_batch = 4 "
        "(default) times train.seq_len = 32 (good.json:4), that is 128; set it to 896 or 1024\n");
    expect_arguments(
        "--train.tokens_per_step=100", NULL, NULL,
        "error: train.tokens_per_step = 100 (command line) is not a multiple of train.micro_batch = 4 "
        "(default) times train.seq_len = 32 (good.json:4), that is 128; set it to 128\n");
    expect_arguments(
        "--train.tokens_per_step=1024", "--train.accum=4", NULL,
        "error: train.tokens_per_step = 1024 (command line) and train.accum = 4 (command line) contradict "
        "each "
        "other: with train.micro_batch = 4 (default) and train.seq_len = 32 (good.json:4) the step has 8 "
        "micro-batches; give one of the two\n");
    expect_arguments("--train.tokens_per_step=1024", "--train.accum=8", NULL, "");
    expect_arguments(
        "--train.tokens_per_step=1099511627776", NULL, NULL,
        "error: train.tokens_per_step = 1099511627776 (command line) is 8589934592 micro-batches, more than "
        "the 1048576 that a step can have; raise train.micro_batch\n");
    expect_arguments(           /* without trying out a milliard of numbers */
        "--train.tokens_per_step=1099511627775", "--train.micro_batch=2047", "--train.seq_len=1048576",
        "error: train.tokens_per_step = 1099511627775 (command line) is not a multiple of train.micro_batch = "
        "2047 (command line) times train.seq_len = 1048576 (command line), that is 2146435072; set it to "
        "1098974756864 or 1101121191936\n");
    expect_arguments(
        "--train.micro_batch=65536", "--train.seq_len=65536", NULL,
        "error: train.micro_batch = 65536 (command line) times train.seq_len = 65536 (command line) are "
        "4294967296 tokens at once, at most 2147483647 are possible; use train.accum\n");
}

static void accum_is_settled(void **state)
{
    (void)state;
    static const struct { char *tokens, *accum; int64_t settled; const char *where; } cases[] = {
        {"--train.tokens_per_step=0", "--train.accum=0", 1, "derived"},
        {"--train.tokens_per_step=0", "--train.accum=3", 3, "command line"},
        {"--train.tokens_per_step=1024", "--train.accum=0", 8, "derived"},
        {"--train.tokens_per_step=1024", "--train.accum=8", 8, "command line"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *arguments[] = {cases[i].tokens, cases[i].accum, "--train.seq_len=32", "--train.micro_batch=4"};
        Errors errors = {0};
        ConfigLoad *load = config_load(NULL, 4, arguments, &errors);
        assert_int_equal(errors.count, 0);
        assert_int_equal(config_values(load)->train.accum, cases[i].settled);
        assert_string_equal(config_where(load, "train.accum"), cases[i].where);
        config_free(load);
    }
}

static void schedule_must_fit(void **state)
{
    (void)state;
    expect_arguments("--train.warmup_steps=51", NULL, NULL,
                     "error: train.warmup_steps = 51 (command line) is longer than the run, train.steps = 50 "
                     "(good.json:4); "
                     "warm up for less or train for more steps\n");
    expect_arguments("--train.warmup_steps=50", NULL, NULL, "");
    expect_arguments("--train.schedule=wsd", "--train.decay_fraction=0.95", NULL,
                     "error: train.warmup_steps = 5 (good.json:4) and train.decay_fraction = 0.95 (command "
                     "line) overlap in "
                     "train.steps = 50 (good.json:4): set train.decay_fraction to 0.9 or less\n");
    expect_arguments("--train.schedule=wsd", "--train.decay_fraction=0.9", NULL, "");
    expect_arguments("--train.decay_fraction=0.95", NULL, NULL, "");
    expect_arguments(
        "--model.max_position=16", NULL, NULL,
        "error: train.seq_len = 32 (good.json:4) is longer than the model's context, model.max_position = 16 "
        "(command line); raise the context, or set it to 0\n");
}

static void texts_must_be_complete(void **state)
{
    (void)state;
    expect_arguments("--run.dir=", NULL, NULL,
                     "error: run.dir = \"\" (command line): the run needs a directory, such as runs/first\n");
    expect_arguments("--data.train=", "--data.val=", NULL, "");    /* not every command needs data */
    expect_arguments(
        "--data.train=a,,b", "--data.val= ,a", NULL,
        "error: data.train = a,,b (command line) has an empty pattern beside a comma; remove it\n"
        "error: data.val =  ,a (command line) has an empty pattern beside a comma; remove it\n");
    expect_arguments(
        "--data.train=a,", "--data.val=a, b*", NULL,
        "error: data.train = a, (command line) has an empty pattern beside a comma; remove it\n");
    expect_arguments(
        "--sample.every=10", NULL, NULL,
        "error: sample.every = 10 (command line) needs data.tokenizer to write text; set it, or sample.every "
        "to 0\n");
}

static void profile_window_must_exist(void **state)
{
    (void)state;
    expect_arguments(
        "--profile.start=10", NULL, NULL,
        "error: profile.end = 0 (default) is not after profile.start = 10 (command line); a window of two "
        "steps ends at 12\n");
    expect_arguments(
        "--profile.start=50", "--profile.end=52", NULL,
        "error: profile.start = 50 (command line) comes after the last step, train.steps = 50 (good.json:4); "
        "start the window earlier\n");
    expect_arguments(
        "--profile.start=10", "--train.steps=1.5", NULL,
        "error: command line: train.steps: expected an integer in [1, 4294967295], found \"1.5\"\n"
        "error: profile.end = 0 (default) is not after profile.start = 10 (command line); a window of two "
        "steps ends at 12\n");
    expect_arguments("--profile.start=10", "--profile.end=12", NULL, "");
}

/* The example of the README's promise: a typo and a conflict in one run. */
static void all_errors_come_at_once(void **state)
{
    (void)state;
    char path[4200];
    snprintf(path, sizeof path, "%s/configs/demo.json", config_test_root());
    char *arguments[] = {"--train.warmup_step=3", "--model.heads=7", NULL};
    char *got = messages(path, arguments);
    assert_non_null(strstr(got, "unknown key \"train.warmup_step\"; did you mean \"train.warmup_steps\"?"));
    assert_non_null(strstr(got, "model.heads = 7 (command line)"));
    assert_non_null(strstr(got, "set model.heads to "));
    free(got);

    expect_file(
        "{\"train\": {\"lrr\": 1,\n\"steps\": 5},\n\"model\": {\"layers\": \"x\",\n\"heads\": 7, "
        "\"kv_heads\": 7}}",
        "error: c.json:1: unknown key \"train.lrr\"; did you mean \"train.lr\"?\n"
        "error: c.json:3: model.layers: expected an integer in [1, 1024], found \"x\"\n"
        "error: model.hidden = 2048 (default) is not divisible by model.heads = 7 (c.json:4); give "
        "model.head_dim\n"
        "error: train.warmup_steps = 100 (default) is longer than the run, train.steps = 5 (c.json:2); warm "
        "up for "
        "less or train for more steps\n");
}

/* ---- shipped configurations, resume --------------------------------------------------------------- */

static int64_t parameters(const Config *c)
{
    int64_t d = c->model.hidden, dh = c->model.head_dim ? c->model.head_dim : d / c->model.heads;
    int64_t q = c->model.heads * dh, kv = c->model.kv_heads * dh;
    int64_t layer = 2 * d + (q + 2 * kv) * d + d * q + 3 * d * c->model.ffn;
    return c->model.vocab * d * (c->model.tie_embeddings ? 1 : 2) + c->model.layers * layer + d;
}

static void shipped_configs_are_good(void **state)
{
    (void)state;
    static const struct { const char *name; int64_t layers, hidden, parameters; double factor; } cases[] = {
        {"demo", 0, 0, 0, 0},
        {"llama3_1b", 16, 2048, 1235814400, 32},
        {"llama3_8b", 32, 4096, 8030261248, 8},
        {"width_1b", 2, 2048, 0, 32},
        {"width_7b", 2, 4096, 0, 8},
        {"width_70b", 2, 8192, 0, 8},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[4200];
        snprintf(path, sizeof path, "%s/configs/%s.json", config_test_root(), cases[i].name);
        Errors errors = {0};
        ConfigLoad *load = config_load(path, 0, NULL, &errors);
        config_validate(load, &errors);
        errors_print(&errors, stderr);
        assert_int_equal(errors.count, 0);
        const Config *c = config_values(load);
        if (cases[i].layers) {
            assert_int_equal(c->model.layers, cases[i].layers);
            assert_int_equal(c->model.hidden, cases[i].hidden);
            assert_int_equal(c->model.vocab, 128256);
            assert_int_equal(c->model.rope_scaling, ROPE_LLAMA3);
            assert_true(c->model.rope_factor == cases[i].factor);
        }
        if (cases[i].parameters) assert_int_equal(parameters(c), cases[i].parameters);
        config_free(load);
    }
}

static void resume_refuses_other_models_and_data(void **state)
{
    (void)state;
    write_file("good.json", GOOD_FILE, strlen(GOOD_FILE));
    char *arguments[] = {"--model.layers=3", "--train.lr=1e-3", "--data.train=u.bin", "--run.log_every=5"};
    Errors errors = {0}, refused = {0};
    ConfigLoad *saved = config_load("good.json", 0, NULL, &errors);
    ConfigLoad *now = config_load("good.json", 4, arguments, &errors);
    assert_int_equal(errors.count, 0);
    char *changes = NULL;
    size_t length;
    FILE *out = open_memstream(&changes, &length);
    config_diff(config_values(saved), now, true, &refused, out);
    fclose(out);
    assert_string_equal(changes, "run.log_every: 10 -> 5\ntrain.lr: 0.0003 -> 0.001\n");
    assert_int_equal(refused.count, 2);
    assert_string_equal(refused.text[0],
                        "model.layers cannot change on resume: the run has \"2\", now \"3\"; keep the "
                        "run's value, or start a new run");
    assert_string_equal(refused.text[1],
                        "data.train cannot change on resume: the run has \"t.bin\", now \"u.bin\"; keep "
                        "the run's value, or start a new run");
    errors_free(&refused);
    config_diff(config_values(saved), saved, true, &refused, NULL);
    assert_int_equal(refused.count, 0);
    free(changes);

    /* what an import left open may be filled in */
    config_values(saved)->data.train[0] = 0;
    out = open_memstream(&changes, &length);
    config_diff(config_values(saved), now, true, &refused, out);
    fclose(out);
    assert_int_equal(refused.count, 1);
    assert_non_null(strstr(changes, "data.train: \"\" -> u.bin\n"));
    errors_free(&refused);
    free(changes);
    config_free(saved);
    config_free(now);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads_must_fit),
        cmocka_unit_test(widths_must_be_aligned),
        cmocka_unit_test(rope_must_be_complete),
        cmocka_unit_test(vocabulary_must_be_known),
        cmocka_unit_test(tokens_must_divide),
        cmocka_unit_test(accum_is_settled),
        cmocka_unit_test(schedule_must_fit),
        cmocka_unit_test(texts_must_be_complete),
        cmocka_unit_test(profile_window_must_exist),
        cmocka_unit_test(all_errors_come_at_once),
        cmocka_unit_test(shipped_configs_are_good),
        cmocka_unit_test(resume_refuses_other_models_and_data),
    };
    return cmocka_run_group_tests_name("config_rules", tests, config_test_begin, config_test_end);
}
