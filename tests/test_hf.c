/* Import and export of Hugging Face models and GGUF files: every refusal, and that nothing is lost on the
 * way. tests/fixtures/hf is written by transformers (scripts/make_hf_fixtures.py). */
#include "commands/commands.h"
#include "model/files.h"
#include "model/hf_export.h"
#include "model/run.h"
#include "tests/temporary.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define FIXTURES "tests/fixtures/hf/"

/* ---- config.json --------------------------------------------------------------------------------------- */

/* A Llama 3.1 in miniature; `more` is put before the closing brace, and replaces nothing. */
static char *config_text(const char *rope, const char *more)
{
    char *text = malloc(4096);
    snprintf(text, 4096,
             "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"vocab_size\": 96,"
             "\"hidden_size\": 64, \"intermediate_size\": 72, \"num_hidden_layers\": 2,"
             "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"max_position_embeddings\": 256,"
             "\"rms_norm_eps\": 1e-05,"
             "\"hidden_act\": \"silu\", \"attention_bias\": false, \"tie_word_embeddings\": true%s%s}",
             rope, more);
    return text;
}

static Config default_config(void)
{
    Errors errors = {0};
    ConfigLoad *load = config_load(NULL, 0, NULL, &errors);
    assert_int_equal(errors.count, 0);
    Config config = *config_values(load);
    config_free(load);
    return config;
}

static void expect_refused(const char *rope, const char *more, const char *sentence)
{
    Errors errors = {0};
    Config config = default_config(), before = config;
    char *text = config_text(rope, more);
    assert_false(hf_config_read(text, "dir/config.json", &config, &errors));
    bool said = false;
    for (int i = 0; i < errors.count; i++) said |= strstr(errors.text[i], sentence) != NULL;
    if (!said) fail_msg("expected \"%s\", got \"%s\"", sentence, errors.count ? errors.text[0] : "nothing");
    assert_memory_equal(&config, &before, sizeof config);
    errors_free(&errors);
    free(text);
}

#define NUMBERS "\"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, " \
                    "\"original_max_position_embeddings\": 8192"
#define OLD_ROPE ", \"rope_theta\": 500000.0, \"rope_scaling\": {\"rope_type\": \"llama3\", " NUMBERS "}"
#define NEW_ROPE ", \"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": \"llama3\", " NUMBERS "}"

static void what_cannot_be_represented_is_refused(void **state)
{
    (void)state;
    expect_refused("", ", \"mlp_bias\": true", "mlp_bias is true; matrices have no bias here");
    expect_refused("", ", \"attention_dropout\": 0.1", "attention_dropout is not 0");
    expect_refused("", ", \"pretraining_tp\": 2", "pretraining_tp is not 1");
    expect_refused("", ", \"sliding_window\": 4096", "sliding_window is set");
    expect_refused("", ", \"quantization_config\": {\"bits\": 4}", "quantization_config is set");
    expect_refused("", ", \"partial_rotary_factor\": 0.5", "partial_rotary_factor is set");
    expect_refused("", ", \"head_dim\": 16.5", "\"head_dim\" is 16.5; expected a whole number");
    expect_refused("", ", \"head_dim\": 4096", "model.head_dim: expected an integer in [0, 1024]");
    expect_refused("", ", \"initializer_range\": \"big\"", "\"initializer_range\" must be a number above 0");
    expect_refused(", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}", "",
                   "rope_scaling has rope_type \"linear\"; only \"default\" and \"llama3\" are known");
    expect_refused(", \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2.0}", "",
                   "rope_parameters has rope_type \"yarn\"");
    expect_refused(", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8}", "",
                   "no low_freq_factor");
    expect_refused(", \"rope_scaling\": 8.0", "", "\"rope_scaling\" must be an object or null");
    expect_refused(", \"rope_parameters\": {\"partial_rotary_factor\": 0.5}", "",
                   "partial_rotary_factor is not 1");

    Errors errors = {0};
    Config config = default_config();
    assert_false(hf_config_read("{\"model_type\": \"mistral\", \"architectures\": [\"MistralForCausalLM\"], "
                                "\"hidden_act\": \"gelu\", \"attention_bias\": true}", "c", &config,
                                &errors));
    assert_int_equal(errors.count, 4);      /* all at once */
    assert_non_null(strstr(errors.text[0], "model_type is \"mistral\"; only \"llama\""));
    assert_non_null(strstr(errors.text[1], "MistralForCausalLM has no counterpart"));
    assert_non_null(strstr(errors.text[2], "hidden_act is \"gelu\""));
    assert_non_null(strstr(errors.text[3], "attention_bias is true"));
    assert_false(hf_config_read("[]", "c", &config, &errors));
    assert_non_null(strstr(errors.text[4], "c: not a JSON object"));
    errors_free(&errors);
}

static void both_forms_of_rope_are_read(void **state)
{
    (void)state;
    static const char *const forms[] = {OLD_ROPE, NEW_ROPE, OLD_ROPE NEW_ROPE};
    for (int i = 0; i < 3; i++) {
        Errors errors = {0};
        Config c = default_config();
        char *text = config_text(forms[i], "");
        assert_true(hf_config_read(text, "c", &c, &errors));
        assert_int_equal(c.model.rope_scaling, ROPE_LLAMA3);
        assert_true(c.model.rope_theta == 500000 && c.model.rope_factor == 8);
        assert_true(c.model.rope_low_freq_factor == 1);
        assert_true(c.model.rope_high_freq_factor == 4 && c.model.rope_original_max_position == 8192);
        assert_int_equal(c.model.head_dim, 16);
        assert_int_equal(c.model.kv_heads, 2);
        assert_int_equal(c.model.max_position, 256);
        assert_true(c.model.tie_embeddings);
        free(text);
    }
    Errors errors = {0};
    Config c = default_config();
    char *text = config_text("", "");       /* neither: transformers' defaults */
    assert_true(hf_config_read(text, "c", &c, &errors));
    assert_true(c.model.rope_theta == 10000 && c.model.rope_scaling == ROPE_NONE);
    free(text);
}

static void forms_of_rope_that_disagree_are_refused(void **state)
{
    (void)state;
    const char *sentence = "rope_parameters disagrees with rope_theta and rope_scaling";
    expect_refused(NEW_ROPE ", \"rope_theta\": 10000.0", "", sentence);
    expect_refused(NEW_ROPE ", \"rope_theta\": 500000.0", "", sentence);      /* no scaling in the old form */
    expect_refused(OLD_ROPE ", \"rope_parameters\": {\"rope_theta\": 5e5, \"rope_type\": \"default\"}", "",
                   sentence);
}

static void a_written_config_reads_the_same(void **state)
{
    (void)state;
    for (int scaled = 0; scaled < 2; scaled++) {
        Errors errors = {0};
        Config c = default_config(), again = c;
        c.model.hidden = 96, c.model.ffn = 104, c.model.layers = 3, c.model.heads = 4, c.model.kv_heads = 2;
        c.model.head_dim = 32, c.model.vocab = 777, c.model.norm_eps = 3e-6, c.model.rope_theta = 12345.5;
        c.model.max_position = 512, c.model.tie_embeddings = scaled, c.model.init_std = 0.03;
        c.model.embedding_init_std = 0.03;
        c.model.rope_scaling = scaled ? ROPE_LLAMA3 : ROPE_NONE;
        c.model.rope_factor = scaled ? 32 : 1;
        HfTokenIds ids = {.bos = 5, .pad = -1, .eos = {6, 7}, .eos_count = 2};
        char *text = hf_config_write(&c, "bfloat16", &ids);
        assert_true(hf_config_read(text, "c", &again, &errors));
        assert_memory_equal(&again.model, &c.model, sizeof c.model);
        HfTokenIds same = hf_config_token_ids(text);
        assert_true(same.bos == 5 && same.pad == -1 && same.eos_count == 2);
        assert_true(same.eos[0] == 6 && same.eos[1] == 7);
        /* readers of transformers 4 know only these */
        assert_non_null(strstr(text, "\"rope_theta\":\t12345.5"));
        assert_non_null(strstr(text, scaled ? "\"rope_scaling\":\t{" : "\"rope_scaling\":\tnull"));
        assert_non_null(strstr(text, "\"torch_dtype\":\t\"bfloat16\""));
        free(text);
    }
}

/* ---- whole directories --------------------------------------------------------------------------------- */

/* Runs a command with its messages in *said (owned by the caller). */
static int run_command(int (*command)(int, char **), char **said, const char *a, const char *b, const char *c,
                       const char *d)
{
    const char *words[] = {"command", a, b, c, d};
    int count = 1;
    while (count < 5 && words[count]) count++;
    Errors errors = {0};
    char *dir = temporary_make(), *path = files_join(dir, "stderr");
    int keep = dup(2);
    assert_non_null(freopen(path, "w", stderr));
    int code = command(count, (char **)words);
    fflush(stderr);
    dup2(keep, 2);
    close(keep);
    *said = files_read(path, NULL, &errors);
    temporary_remove(dir);
    free(path);
    return code;
}

static void expect_done(int (*command)(int, char **), const char *a, const char *b, const char *c,
                        const char *d)
{
    char *said;
    int code = run_command(command, &said, a, b, c, d);
    if (code) fail_msg("exit code %d: %s", code, said);
    free(said);
}

static void expect_failure(int expected, const char *sentence, int (*command)(int, char **), const char *a,
                           const char *b, const char *c, const char *d)
{
    char *said;
    int code = run_command(command, &said, a, b, c, d);
    if (code != expected || !strstr(said, sentence))
        fail_msg("expected code %d and \"%s\", got %d: %s", expected, sentence, code, said);
    free(said);
}

/* Every tensor of a has the same bits in b, and b has no other. */
static void expect_same_bits(const char *a_path, const char *b_path)
{
    Errors errors = {0};
    Safetensors *a = safetensors_open(a_path, &errors), *b = safetensors_open(b_path, &errors);
    errors_print(&errors, stderr);
    assert_int_equal(errors.count, 0);
    assert_int_equal(a->tensor_count, b->tensor_count);
    for (int i = 0; i < a->tensor_count; i++) {
        const SafetensorsTensor *t = &a->tensors[i], *u = safetensors_find(b, t->name);
        assert_non_null(u);
        assert_int_equal(t->dtype, u->dtype);
        assert_int_equal(t->dims, u->dims);
        assert_memory_equal(t->shape, u->shape, (size_t)t->dims * sizeof *t->shape);
        size_t bytes = (size_t)t->count * safetensors_dtype_bytes(t->dtype);
        void *x = malloc(bytes), *y = malloc(bytes);
        assert_true(safetensors_read_raw(a, t, 0, t->count, x, &errors));
        assert_true(safetensors_read_raw(b, u, 0, u->count, y, &errors));
        assert_memory_equal(x, y, bytes);
        free(x);
        free(y);
    }
    safetensors_close(a);
    safetensors_close(b);
}

/* From Hugging Face's files to masters to a checkpoint and out again. */
static void what_comes_in_goes_out_bit_for_bit(void **state)
{
    (void)state;
    static const struct { const char *fixture, *dtype, *shard_size; } cases[] = {
        {"tied", "--dtype=f32", "--shard-size=5GB"},
        {"sharded_bf16", "--dtype=bf16", "--shard-size=40KB"},
        {"sharded_f16_old_config", "--dtype=f16", "--shard-size=1MB"},
    };
    for (int i = 0; i < 3; i++) {
        char *dir = temporary_make(), *run = files_join(dir, "run"), *out = files_join(dir, "out");
        char *source = files_join(FIXTURES, cases[i].fixture);
        expect_done(import_command, source, run, "--train.seq_len=16", NULL);
        expect_done(export_command, run, out, cases[i].dtype, cases[i].shard_size);
        expect_same_bits(source, out);

        Errors errors = {0};
        Config before = default_config(), after = before;
        char *source_config = files_join(source, "config.json"), *out_config = files_join(out, "config.json");
        char *text = files_read(source_config, NULL, &errors), *again = files_read(out_config, NULL, &errors);
        assert_true(hf_config_read(text, source_config, &before, &errors));
        assert_true(hf_config_read(again, out_config, &after, &errors));
        assert_memory_equal(&before.model, &after.model, sizeof before.model);
        assert_int_equal(hf_config_token_ids(again).bos, 1);
        char *index = files_join(out, "model.safetensors.index.json");
        assert_int_equal(files_exists(index), i == 1);
        free(index), free(text), free(again), free(source_config), free(out_config);
        free(run), free(out), free(source);
        temporary_remove(dir);
    }
}

static void companion_files_pass_through(void **state)
{
    (void)state;
    Errors errors = {0};
    char *dir = temporary_make(), *source = files_join(dir, "source"), *run = files_join(dir, "run");
    char *out = files_join(dir, "out"), *tokenizer = files_join(source, "tokenizer.json");
    char *generation = files_join(source, "generation_config.json");
    char *config = files_join(source, "config.json"), *weights = files_join(source, "model.safetensors");
    const char *odd = "{\"model\": {\"type\": \"WordPiece\"}}", *ids = "{\"eos_token_id\": [2, 3]}\n";
    size_t bytes;
    assert_true(files_make_dirs(source, &errors));
    char *text = files_read(FIXTURES "tied/config.json", &bytes, &errors);
    assert_true(files_replace(config, text, bytes, &errors));
    free(text);
    text = files_read(FIXTURES "tied/model.safetensors", &bytes, &errors);
    assert_true(files_replace(weights, text, bytes, &errors));
    free(text);
    assert_true(files_replace(tokenizer, odd, strlen(odd), &errors));
    assert_true(files_replace(generation, ids, strlen(ids), &errors));

    /* a tokenizer that is not understood is kept, and said to be of no use here */
    char *said;
    assert_int_equal(run_command(import_command, &said, source, run, "--train.seq_len=16", NULL), 0);
    assert_non_null(strstr(said, "tokenizer.json is kept for the export but not used here"));
    free(said);
    expect_done(export_command, run, out, NULL, NULL);
    static const char *const names[] = {"tokenizer.json", "generation_config.json"};
    for (int i = 0; i < 2; i++) {
        char *path = files_join(out, names[i]);
        text = files_read(path, NULL, &errors);
        assert_string_equal(text, i == 0 ? odd : ids);
        free(text);
        free(path);
    }
    char *gguf = files_join(dir, "model.gguf"), flag[512];
    snprintf(flag, sizeof flag, "--gguf=%s", gguf);
    expect_failure(1, "the imported tokenizer is not one that can be read here", export_command, run, flag,
                   NULL, NULL);
    assert_false(files_exists(gguf));
    free(gguf), free(source), free(run), free(out);
    free(tokenizer), free(generation), free(config), free(weights);
    temporary_remove(dir);
}

/* A model directory whose tensors are not those of its config.json. */
static void wrong_tensors_are_all_listed(void **state)
{
    (void)state;
    Errors errors = {0};
    char *dir = temporary_make(), *source = files_join(dir, "source"), *run = files_join(dir, "run");
    char *config = files_join(source, "config.json");
    size_t bytes;
    assert_true(files_make_dirs(source, &errors));
    char *text = files_read(FIXTURES "tied/config.json", &bytes, &errors);
    assert_true(files_replace(config, text, bytes, &errors));
    free(text);
    const SafetensorsSpec specs[] = {
        {"model.embed_tokens.weight", ST_F32, 2, {131, 48}},
        {"model.layers.0.self_attn.q_proj.bias", ST_F32, 1, {48}},
        {"model.norm.weight", ST_F32, 1, {47}},
        {"model.layers.0.self_attn.rotary_emb.inv_freq", ST_F32, 1, {6}},     /* of old files: passed over */
    };
    SafetensorsWriter *writer = safetensors_create(source, "model", specs, 4, 0, &errors);
    float *zeros = calloc(131 * 48, sizeof *zeros);
    const int64_t counts[] = {131 * 48, 48, 47, 6};
    for (int i = 0; i < 4; i++) assert_true(safetensors_write(writer, zeros, counts[i]));
    assert_true(safetensors_finish(writer, NULL, NULL, &errors));

    char *said;
    assert_int_equal(run_command(import_command, &said, source, run, "--train.seq_len=16", NULL), 2);
    assert_non_null(strstr(said, "\"model.norm.weight\" is [47]; the model needs [48]"));
    assert_non_null(strstr(said, "\"model.layers.0.self_attn.q_proj.bias\" is not part of this model"));
    assert_non_null(strstr(said, "\"model.layers.0.self_attn.q_proj.weight\" [48, 48] is missing"));
    assert_non_null(strstr(said, "\"model.layers.1.mlp.down_proj.weight\" [48, 40] is missing"));
    assert_null(strstr(said, "inv_freq"));
    assert_false(files_exists(run));        /* nothing is begun */
    free(said), free(zeros), free(config), free(source), free(run);
    temporary_remove(dir);
}

static void commands_refuse_what_they_cannot_do(void **state)
{
    (void)state;
    char *dir = temporary_make(), *run = files_join(dir, "run"), *out = files_join(dir, "out");
    expect_failure(2, "usage: ./train import", import_command, run, NULL, NULL, NULL);
    expect_failure(2, "leave --model keys out", import_command, FIXTURES "tied", run, "--model.hidden=64",
                   NULL);
    expect_failure(2, "model.hidden = 42", import_command, FIXTURES "scaled", run, NULL, NULL);
    expect_failure(2, "no/such/dir/config.json", import_command, "no/such/dir", run, NULL, NULL);
    expect_failure(2, "usage: ./train export", export_command, run, NULL, NULL, NULL);
    expect_done(import_command, FIXTURES "tied", run, "--train.seq_len=16", NULL);
    expect_failure(2, "it holds a run already", import_command, FIXTURES "tied", run, NULL, NULL);
    expect_failure(2, "--dtype=int8: expected bf16, f16 or f32", export_command, run, out, "--dtype=int8",
                   NULL);
    expect_failure(2, "--shard-size=5: expected a number and KB, MB or GB", export_command, run, out,
                   "--shard-size=5", NULL);
    expect_failure(2, "usage: ./train export", export_command, run, out, "--gguf=x", NULL);
    expect_failure(1, "exists already; name a new directory", export_command, run, run, NULL, NULL);
    expect_failure(1, "the tokenizer has 258 ids, the model 131", export_command, run, out,
                   "--data.tokenizer=bytes", NULL);
    assert_false(files_exists(out));
    free(run), free(out);
    temporary_remove(dir);
}

static void values_beyond_f16_are_refused(void **state)
{
    (void)state;
    Errors errors = {0};
    char *dir = temporary_make(), *run = files_join(dir, "run"), *out = files_join(dir, "out"), flag[512];
    char *gguf = files_join(dir, "model.gguf");
    expect_done(import_command, FIXTURES "tied", run, "--train.seq_len=16", NULL);
    Config config = default_config();
    char *text = files_read(FIXTURES "tied/config.json", NULL, &errors);
    assert_true(hf_config_read(text, "c", &config, &errors));
    free(text);

    /* the checkpoint's directory with one value changed */
    char *path = files_join(run, "checkpoints/step-00000000/model.safetensors");
    size_t bytes;
    text = files_read(path, &bytes, &errors);
    const float large = 70000.0f;
    memcpy(text + bytes - sizeof large, &large, sizeof large);
    assert_true(files_replace(path, text, bytes, &errors));
    char *checkpoint = files_join(run, "checkpoints/step-00000000");
    HfExport e = {.config = &config, .run_dir = run, .checkpoint = checkpoint, .dtype = ST_F16};
    assert_false(hf_export(&e, out, &errors));
    assert_non_null(strstr(errors.text[0], "has values beyond 65504, which F16 cannot hold"));
    char *written = files_join(out, "model.safetensors");
    assert_false(files_exists(written));

    config.model.heads = 5;                 /* 48 is no multiple */
    e.dtype = ST_F32;
    assert_false(hf_export(&e, out, &errors));
    assert_non_null(strstr(errors.text[1], "transformers refuses a hidden size (48)"));
    errors_free(&errors);

    /* the command notices that the file is not what was saved */
    snprintf(flag, sizeof flag, "--gguf=%s", gguf);
    expect_failure(2, "holds no checkpoint that is whole", export_command, run, flag, NULL, NULL);

    /* a run that replaces the imported one has nothing of it */
    char *kept = files_join(run, HF_KEPT_DIR);
    assert_true(files_exists(kept));
    assert_true(run_open(run, RUN_OVERWRITE, "{}", &errors));
    assert_false(files_exists(kept));
    free(kept), free(written), free(checkpoint), free(path), free(text), free(gguf), free(run), free(out);
    temporary_remove(dir);
}

/* ---- GGUF ---------------------------------------------------------------------------------------------- */

typedef struct Cursor { const char *at, *start; } Cursor;

static uint64_t take(Cursor *c, int bytes)
{
    uint64_t value = 0;
    memcpy(&value, c->at, (size_t)bytes);
    c->at += bytes;
    return value;
}

static void skip_value(Cursor *c, uint64_t type)
{
    if (type == 8) c->at += take(c, 8);
    else if (type == 9) {
        uint64_t of = take(c, 4), count = take(c, 8);
        for (uint64_t i = 0; i < count; i++) skip_value(c, of);
    } else c->at += type == 7 ? 1 : 4;
}

/* Offset of a tensor's data in the file, by the description of the format. */
static size_t gguf_find(const char *text, const char *wanted)
{
    Cursor c = {text, text};
    assert_memory_equal(take(&c, 4) == 0x46554747 ? "GGUF" : "????", "GGUF", 4);
    assert_int_equal(take(&c, 4), 3);
    uint64_t tensors = take(&c, 8), keys = take(&c, 8), found = UINT64_MAX;
    for (uint64_t i = 0; i < keys; i++) {
        c.at += take(&c, 8);
        skip_value(&c, take(&c, 4));
    }
    for (uint64_t i = 0; i < tensors; i++) {
        uint64_t length = take(&c, 8);
        bool here = length == strlen(wanted) && memcmp(c.at, wanted, length) == 0;
        c.at += length;
        c.at += 8 * take(&c, 4);
        take(&c, 4);
        uint64_t offset = take(&c, 8);
        if (here) found = offset;
    }
    assert_true(found != UINT64_MAX);
    return (size_t)((c.at - c.start + 31) / 32 * 32) + found;
}

static void gguf_rows_are_rotary_pairs(void **state)
{
    (void)state;
    Errors errors = {0};
    char *dir = temporary_make(), *run = files_join(dir, "run"), *path = files_join(dir, "model.gguf");
    char flag[512];
    snprintf(flag, sizeof flag, "--gguf=%s", path);
    expect_done(import_command, FIXTURES "tied", run, "--train.seq_len=16", NULL);
    expect_done(export_command, run, flag, "--dtype=f32", NULL);
    size_t bytes;
    char *text = files_read(path, &bytes, &errors);
    Safetensors *st = safetensors_open(FIXTURES "tied", &errors);
    static const struct { const char *hf, *gguf; int rows, pairs; } cases[] = {
        {"model.layers.1.self_attn.q_proj.weight", "blk.1.attn_q.weight", 48, 6},
        {"model.layers.0.self_attn.k_proj.weight", "blk.0.attn_k.weight", 24, 6},
        {"model.layers.0.self_attn.v_proj.weight", "blk.0.attn_v.weight", 24, 0},
        {"model.layers.1.mlp.up_proj.weight", "blk.1.ffn_up.weight", 40, 0},
        {"model.embed_tokens.weight", "token_embd.weight", 131, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *data = text + gguf_find(text, cases[i].gguf);
        const SafetensorsTensor *t = safetensors_find(st, cases[i].hf);
        for (int n = 0; n < cases[i].rows; n++) {
            int pairs = cases[i].pairs, row = n;
            if (pairs) row = n / (2 * pairs) * 2 * pairs + n % 2 * pairs + n % (2 * pairs) / 2;
            float expected[48];
            assert_true(safetensors_read(st, t, (int64_t)row * 48, 48, expected, &errors));
            assert_memory_equal(data + (size_t)n * sizeof expected, expected, sizeof expected);
        }
    }
    assert_int_equal(bytes % 4, 0);
    safetensors_close(st);
    free(text), free(run), free(path);
    temporary_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_represented_is_refused),
        cmocka_unit_test(both_forms_of_rope_are_read),
        cmocka_unit_test(forms_of_rope_that_disagree_are_refused),
        cmocka_unit_test(a_written_config_reads_the_same),
        cmocka_unit_test(what_comes_in_goes_out_bit_for_bit),
        cmocka_unit_test(companion_files_pass_through),
        cmocka_unit_test(wrong_tensors_are_all_listed),
        cmocka_unit_test(commands_refuse_what_they_cannot_do),
        cmocka_unit_test(values_beyond_f16_are_refused),
        cmocka_unit_test(gguf_rows_are_rotary_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
