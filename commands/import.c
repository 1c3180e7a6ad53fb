/* ./train import HF_DIR RUN_DIR [CONFIG]: begins a run with the weights of a Hugging Face model. */
#include "commands/arguments.h"
#include "commands/commands.h"
#include "data/tokenizer.h"
#include "model/checkpoint.h"
#include "model/files.h"
#include "model/hf_export.h"
#include "model/run.h"
#include "model/weights_io.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: ./train import HF_DIR RUN_DIR [CONFIG] [--section.key=value ...]\n"
    "       the model comes from HF_DIR, everything else from CONFIG and the overrides;\n"
    "       train it with ./train RUN_DIR/config.json --resume\n";

static void refuse_model_overrides(const Arguments *args, Errors *errors)
{
    for (int i = 0; i < args->override_count; i++)
        if (strncmp(args->overrides[i], "--model.", 8) == 0)
            errors_add(errors, "%s: the model is what the imported config.json says; leave --model keys out",
                       args->overrides[i]);
}

/* The tokenizer of the model becomes the run's where the config names no other and it can be used here. */
static void adopt_tokenizer(Config *c, const char *hf_dir, const char *run_dir)
{
    char *from = files_join(hf_dir, "tokenizer.json");
    const bool named = *c->data.tokenizer;
    Errors refused = {0}, unread = {0};
    Tokenizer *theirs = from && files_exists(from) ? tokenizer_load(from, &refused) : NULL;
    Tokenizer *ours = named && theirs ? tokenizer_load(c->data.tokenizer, &unread) : NULL;
    if (theirs && tokenizer_vocab(theirs) > c->model.vocab)
        errors_add(&refused, "it has %lld ids, the model %lld", (long long)tokenizer_vocab(theirs),
                   (long long)c->model.vocab);
    if (!named && theirs && !refused.count)
        snprintf(c->data.tokenizer, CONFIG_STRING, "%s/" HF_KEPT_DIR "/tokenizer.json", run_dir);
    for (int i = 0; !named && i < refused.count; i++)
        fprintf(stderr, "note: %s is kept for the export but not used here: %s\n", from, refused.text[i]);
    if (ours && tokenizer_fingerprint(ours) != tokenizer_fingerprint(theirs))
        fprintf(stderr, "note: data.tokenizer (%s) has other tokens than %s, which exports hand on\n",
                c->data.tokenizer, from);
    tokenizer_free(theirs);
    tokenizer_free(ours);
    errors_free(&refused);
    errors_free(&unread);
    free(from);
}

/* RUN/hf: the companion files and the original config.json. */
static bool keep_originals(const char *hf_dir, const char *run_dir, const char *config_text, Errors *errors)
{
    char *kept = files_join(run_dir, HF_KEPT_DIR), *path = kept ? files_join(kept, "config.json") : NULL;
    if (!path) errors_add(errors, "%s: out of memory", run_dir);
    bool ok = path && files_make_dirs(kept, errors) && hf_copy_companions(hf_dir, kept, errors) &&
              files_replace(path, config_text, strlen(config_text), errors);
    free(path);
    free(kept);
    return ok;
}

/* Masters only: nothing is computed, so the working copies are never touched and cost no memory. */
static Llama *load_model(const Config *config, const char *hf_dir, int *tensors, Errors *errors)
{
    static const OpContext ctx = {.layer = -1};
    Config smallest = *config;
    smallest.train.micro_batch = smallest.train.seq_len = smallest.train.accum = 1;
    Safetensors *from = safetensors_open(hf_dir, errors);
    Llama *model = NULL;
    if (from) model = llama_create(&smallest, DTYPE_F32, LLAMA_INFER, &cpu_ops, &cpu_device, &ctx, 0, errors);
    *tensors = model ? weights_load(model, from, NULL, errors) : -1;
    safetensors_close(from);
    if (model && *tensors < 0) llama_destroy(model), model = NULL;
    return model;
}

static bool begin_run(const Config *c, const Llama *model, const char *hf_dir, const char *config_text,
                      Errors *errors)
{
    CheckpointState state = {.seed = (uint64_t)c->run.seed, .best_val_loss = NAN};
    snprintf(state.backend, sizeof state.backend, "cpu");
    snprintf(state.precision, sizeof state.precision, "fp32");
    const RunStart start = c->run.overwrite ? RUN_OVERWRITE : RUN_NEW;
    Config kept = *c;
    kept.run.overwrite = false;     /* meant for this import alone */
    char *json = config_to_json(&kept);
    if (!json) errors_add(errors, "%s: out of memory", c->run.dir);
    int claim = json ? run_claim(c->run.dir, start, errors) : -1;
    bool ok = claim >= 0 && checkpoint_has_room(c->run.dir, model, errors) &&
              run_open(c->run.dir, start, json, errors) &&
              keep_originals(hf_dir, c->run.dir, config_text, errors) &&
              checkpoint_save(c->run.dir, model, &state, errors);
    if (claim >= 0) close(claim);
    free(json);
    checkpoint_state_free(&state);
    return ok;
}

/* Returns the exit code; errors are left for the caller to print. */
static int import(const char *hf_dir, const char *run_dir, ConfigLoad *load, Errors *errors)
{
    Config *c = config_values(load);
    char *path = files_join(hf_dir, "config.json"), *text = path ? files_read(path, NULL, errors) : NULL;
    int tensors = 0, code = 2;
    Llama *model = NULL;
    if (!text || !hf_config_read(text, path, c, errors)) goto done;
    if (snprintf(c->run.dir, CONFIG_STRING, "%s", run_dir) >= CONFIG_STRING)
        errors_add(errors, "RUN_DIR is longer than %d characters", CONFIG_STRING - 1);
    if (c->data.boundary_token < 0) c->data.boundary_token = hf_config_token_ids(text).bos;
    bool seq_is_default = strcmp(config_where(load, "train.seq_len"), "default") == 0;
    if (seq_is_default && c->train.seq_len > c->model.max_position) c->train.seq_len = c->model.max_position;
    adopt_tokenizer(c, hf_dir, run_dir);
    config_validate(load, errors);
    run_check(c->run.dir, c->run.overwrite ? RUN_OVERWRITE : RUN_NEW, errors);
    if (c->run.overwrite && run_owns(c->run.dir, hf_dir))
        errors_add(errors, "%s belongs to the run that --run.overwrite=true would delete; name another RUN_DIR", hf_dir);
    if (errors->count) goto done;
    model = load_model(c, hf_dir, &tensors, errors);
    if (!model) goto done;
    code = 1;
    if (!begin_run(c, model, hf_dir, text, errors)) goto done;
    code = 0;
    fprintf(stderr, "imported: %d tensors, %lld parameters, from %s to %s\n"
            "train it with: ./train %s/config.json --resume\n", tensors,
            (long long)llama_parameters(&model->shape), hf_dir, run_dir, run_dir);
    if (!*c->data.train)
        fprintf(stderr, "before that, write the names of token files into it as data.train\n");
done:
    llama_destroy(model);
    free(text);
    free(path);
    return code;
}

int import_command(int argc, char **argv)
{
    Errors errors = {0};
    Arguments args;
    ConfigLoad *load = NULL;
    const Syntax syntax = {.usage = usage, .least = 2, .most = 3, .overrides = true};
    int code = arguments_parse(&args, argc, argv, &syntax, &errors);
    if (code == ARGUMENTS_GO_ON) {
        code = 2;
        refuse_model_overrides(&args, &errors);
        load = config_load(args.positional[2], args.override_count, args.overrides, &errors);
        if (load && !errors.count) code = import(args.positional[0], args.positional[1], load, &errors);
    }
    errors_print(&errors, stderr);
    errors_free(&errors);
    config_free(load);
    arguments_free(&args);
    return code;
}
