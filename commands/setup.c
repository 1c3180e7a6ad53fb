#include "commands/setup.h"
#include "model/checkpoint.h"
#include "model/files.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool load_tokenizer(Setup *setup, bool need, Errors *errors)
{
    Config *c = setup->config;
    const char *path = c->data.tokenizer;
    if (!*path) return true;
    if (!need && c->model.vocab > 0 && strcmp(path, "bytes") && !files_exists(path)) return true;
    setup->tokenizer = tokenizer_load(path, errors);
    if (!setup->tokenizer) {
        if (!files_exists(path))
            errors_add(errors, "%s: data.tokenizer names that file; make it first, as the config's _comment may say, or add "
                       "--data.tokenizer=PATH if it has moved%s", config_where(setup->load, "data.tokenizer"),
                       need ? "" : "; without it, --model.vocab=NUMBER");
        return false;
    }
    int64_t vocab = tokenizer_vocab(setup->tokenizer);
    if (c->model.vocab == 0) c->model.vocab = vocab;
    if (c->model.vocab < vocab) {
        errors_add(
            errors,
            "%s: model.vocab is %lld, but the tokenizer %s has ids up to %lld; set model.vocab to 0 or "
            "at least %lld",
            config_where(setup->load, "model.vocab"), (long long)c->model.vocab, path, (long long)vocab - 1,
            (long long)vocab);
        return false;
    }
    setup->token_bytes = calloc((size_t)c->model.vocab, sizeof *setup->token_bytes);
    if (setup->token_bytes) tokenizer_token_bytes(setup->tokenizer, setup->token_bytes);
    else errors_add(errors, "out of memory while preparing the tokenizer");
    return setup->token_bytes != NULL;
}

/* accum and tokens_per_step say the same thing in two ways; the config may give either. */
void setup_derive(Config *c)
{
    int64_t rows = c->train.micro_batch * c->train.seq_len;
    if (c->train.tokens_per_step > 0) c->train.accum = c->train.tokens_per_step / rows;
    c->train.tokens_per_step = c->train.accum * rows;
    if (c->model.head_dim == 0) c->model.head_dim = c->model.hidden / c->model.heads;
    if (c->model.max_position == 0) c->model.max_position = c->train.seq_len;
}

bool setup_config(Setup *setup, const char *path, int override_count, char **overrides, bool need_tokenizer,
                  Errors *errors)
{
    int before = errors->count;
    setup->load = config_load(path, override_count, overrides, errors);
    if (!setup->load) {
        errors_add(errors, "out of memory while reading the config");
        return false;
    }
    setup->config = config_values(setup->load);
    load_tokenizer(setup, need_tokenizer, errors);
    config_validate(setup->load, errors);
    if (errors->count > before) return false;
    setup_derive(setup->config);
    return true;
}

/* Ids mean nothing without the tokenizer that made them. */
static void check_fingerprint(const Setup *setup, const ShardSet *set, const char *patterns, Errors *errors)
{
    if (!setup->tokenizer || !set || !set->fingerprint) return;
    if (set->fingerprint == tokenizer_fingerprint(setup->tokenizer)) return;
    errors_add(
        errors,
        "%s: these tokens were made with another tokenizer than data.tokenizer = %s; tokenize the text "
        "again, or name the tokenizer.json beside the shards",
        patterns, setup->config->data.tokenizer);
}

bool setup_data(Setup *setup, Errors *errors)
{
    const Config *c = setup->config;
    int before = errors->count;
    LoaderOptions options = {
        .rows = c->data.rows == ROWS_DOCUMENTS ? LOADER_DOCUMENTS : LOADER_STREAM,
        .seq = (int)c->train.seq_len,
        .shuffle = c->data.shuffle,
        .document_mask = c->data.document_mask,
        .boundary = c->data.boundary_token,
        .seed = (uint64_t)c->run.seed,
        .limit_rows = c->train.overfit_batch * c->train.micro_batch,
        .token_bytes = setup->token_bytes,
    };
    if (*c->data.train)
        setup->train_set = shards_open(c->data.train, (ShardDtype)c->data.dtype, c->model.vocab, errors);
    else
        errors_add(errors, "%s: data.train is empty; name token files, as `./train tokenize` writes them",
                   config_where(setup->load, "data.train"));
    if (*c->data.val)
        setup->val_set = shards_open(c->data.val, (ShardDtype)c->data.dtype, c->model.vocab, errors);
    else if (c->val.every) fprintf(stderr, "note: data.val is empty, so nothing is validated\n");
    check_fingerprint(setup, setup->train_set, c->data.train, errors);
    check_fingerprint(setup, setup->val_set, c->data.val, errors);
    if (setup->train_set && options.boundary < 0) options.boundary = setup->train_set->boundary;
    if (setup->train_set) setup->train = loader_create(setup->train_set, &options, errors);
    if (setup->val_set) {
        options.rows = c->val.rows == ROWS_DOCUMENTS ? LOADER_DOCUMENTS : LOADER_STREAM;
        options.shuffle = false, options.keep_tail = true, options.one_pass = true, options.limit_rows = 0;
        setup->val = loader_create(setup->val_set, &options, errors);
    }
    return errors->count == before;
}

void setup_find_data(const Setup *setup, Errors *errors)
{
    if (*setup->config->data.train) shards_find(setup->config->data.train, errors);
    if (*setup->config->data.val) shards_find(setup->config->data.val, errors);
}

bool setup_check_tokenizer(const Setup *setup, uint64_t fingerprint, Errors *errors)
{
    if (!setup->tokenizer || !fingerprint) return true;
    if (fingerprint == tokenizer_fingerprint(setup->tokenizer)) return true;
    errors_add(errors, "data.tokenizer = %s is not the tokenizer that the model was trained with; has the "
               "file changed? --data.tokenizer=PATH names another", setup->config->data.tokenizer);
    return false;
}

bool setup_check_place(const Setup *setup, const char *config_path, Errors *errors)
{
    const char *slash = config_path ? strrchr(config_path, '/') : NULL, *run = setup->config->run.dir;
    if (!slash || strcmp(slash, "/config.json") ||
        strcmp(config_where(setup->load, "run.dir"), "command line") == 0) return true;
    char *dir = strndup(config_path, (size_t)(slash - config_path));
    char *checkpoints = dir ? files_join(dir, "checkpoints") : NULL;
    struct stat here, there;
    bool elsewhere = checkpoints && files_is_dir(checkpoints) && stat(dir, &here) == 0 &&
                     (stat(run, &there) != 0 || here.st_dev != there.st_dev || here.st_ino != there.st_ino);
    if (elsewhere)
        errors_add(errors,
                   "%s: run.dir is %s, but this configuration lies in the run %s; choose with --run.dir=%s "
                   "or --run.dir=%s", config_path, run, dir, dir, run);
    free(checkpoints);
    free(dir);
    return !elsewhere;
}

bool setup_backend(Setup *setup, bool plan_only, Errors *errors)
{
    const char *home = getenv("HOME"), *cache_home = getenv("XDG_CACHE_HOME");
    char cache[CONFIG_STRING];  /* tuning takes a minute: it is kept where the user's other caches are */
    if (cache_home && *cache_home) snprintf(cache, sizeof cache, "%s/coda", cache_home);
    else snprintf(cache, sizeof cache, "%s/.cache/coda", home && *home ? home : ".");
    if (!backend_open(&setup->backend, setup->config, plan_only, cache, errors)) return false;
    if (setup->backend.ops == &cpu_ops || setup->config->train.precision == PRECISION_BF16) return true;
    errors_add(errors,
               "%s: the GPU kernels compute in bf16; set train.precision=bf16, or run.device=cpu for fp32",
               config_where(setup->load, "train.precision"));
    return false;
}

int64_t setup_sample_context(const Config *config)
{
    return config->sample.every && *config->data.tokenizer ? config->train.seq_len : 0;
}

Llama *setup_trained(Setup *setup, const char *run_dir, int override_count, char **overrides, Errors *errors)
{
    char *config_path = files_join(run_dir, "config.json"), *dir = NULL;
    Llama *model = NULL;
    Errors skipped = {0};
    if (!config_path || !setup_config(setup, config_path, override_count, overrides, true, errors)) goto done;
    if (errors->count) goto done;
    dir = checkpoint_find(run_dir, &skipped);
    errors_print(&skipped, stderr);
    if (!dir) {
        errors_add(errors, "%s holds no checkpoint yet", run_dir);
        goto done;
    }
    setup->config->train.micro_batch = 1;   /* generation holds one text */
    if (!setup_backend(setup, false, errors)) goto done;
    const Backend *backend = &setup->backend;
    model = llama_create(setup->config, backend->act, LLAMA_INFER, backend->ops, backend->device,
                         &backend->ctx, setup->config->train.seq_len, errors);
    CheckpointState state = {0};
    if (model && (checkpoint_load(dir, model, &state, errors) < 0 ||
                  !setup_check_tokenizer(setup, state.tokenizer, errors))) llama_destroy(model), model = NULL;
    checkpoint_state_free(&state);
done:
    errors_free(&skipped);
    free(config_path);
    free(dir);
    return model;
}

void setup_close(Setup *setup)
{
    loader_destroy(setup->train);
    loader_destroy(setup->val);
    shards_close(setup->train_set);
    shards_close(setup->val_set);
    tokenizer_free(setup->tokenizer);
    free(setup->token_bytes);
    if (setup->backend.ops) backend_close(&setup->backend);
    config_free(setup->load);
    *setup = (Setup){0};
}

int setup_finish(Setup *setup, Errors *errors, int code)
{
    errors_print(errors, stderr);
    errors_free(errors);
    setup_close(setup);
    return code;
}
