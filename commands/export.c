/* ./train export RUN: the newest checkpoint of a run as a Hugging Face directory or a GGUF file. */
#include "commands/arguments.h"
#include "commands/commands.h"
#include "model/checkpoint.h"
#include "model/files.h"
#include "model/gguf.h"
#include "model/hf_export.h"
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: ./train export RUN HF_DIR [--dtype=bf16|f16|f32] [--shard-size=5GB]\n"
    "       ./train export RUN --gguf=FILE [--dtype=bf16|f16|f32]\n"
    "       [--data.tokenizer=PATH] where the run's tokenizer has moved\n";

typedef struct Wish {
    const char *run, *hf_dir, *gguf, *dtype, *shard_size;
} Wish;

static bool parse_dtype(const char *text, SafetensorsDtype *dtype, Errors *errors)
{
    static const struct { const char *name; SafetensorsDtype dtype; } names[] = {
        {"bf16", ST_BF16}, {"f16", ST_F16}, {"f32", ST_F32}};
    for (int i = 0; i < 3; i++)
        if (strcmp(text, names[i].name) == 0) return *dtype = names[i].dtype, true;
    errors_add(errors, "--dtype=%s: expected bf16, f16 or f32", text);
    return false;
}

/* "5GB", "200MB": decimal units, as transformers has them. */
static bool parse_size(const char *text, int64_t *bytes, Errors *errors)
{
    static const struct { const char *name; double bytes; } units[] = {{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}};
    char *unit;
    double value = strtod(text, &unit);
    for (int i = 0; i < 3; i++)
        if (unit != text && strcmp(unit, units[i].name) == 0 && value > 0 && value < 1e9)
            return *bytes = (int64_t)(value * units[i].bytes), true;
    errors_add(errors, "--shard-size=%s: expected a number and KB, MB or GB, such as 5GB", text);
    return false;
}

static Tokenizer *load_tokenizer(const Config *c, Errors *errors)
{
    Tokenizer *tokenizer = *c->data.tokenizer ? tokenizer_load(c->data.tokenizer, errors) : NULL;
    if (*c->data.tokenizer && !tokenizer)
        errors_add(errors, "the tokenizer belongs to the export; if it has moved, add --data.tokenizer=PATH");
    return tokenizer;
}

static int export(const Wish *wish, const Config *c, Errors *errors)
{
    HfExport e = {.config = c, .run_dir = wish->run};
    Errors skipped = {0};
    bool ok = parse_dtype(wish->dtype, &e.dtype, errors);
    ok = parse_size(wish->shard_size, &e.shard_bytes, errors) && ok;
    char *checkpoint = checkpoint_find(wish->run, &skipped);
    errors_print(&skipped, stderr);
    errors_free(&skipped);
    if (wish->gguf && files_exists(wish->gguf))
        errors_add(errors, "%s exists already; name a new file", wish->gguf);
    if (!checkpoint) errors_add(errors, "%s holds no checkpoint that is whole", wish->run);
    Tokenizer *tokenizer = load_tokenizer(c, errors);
    e.checkpoint = checkpoint, e.tokenizer = tokenizer;
    int code = 2;
    if (ok && !errors->count) {
        ok = wish->gguf ? gguf_export(&e, wish->gguf, errors) : hf_export(&e, wish->hf_dir, errors);
        code = ok ? 0 : 1;
        if (ok) fprintf(stderr, "exported: %s to %s\n", checkpoint, wish->gguf ? wish->gguf : wish->hf_dir);
    }
    tokenizer_free(tokenizer);
    free(checkpoint);
    return code;
}

int export_command(int argc, char **argv)
{
    Errors errors = {0};
    Arguments args;
    Wish wish = {.dtype = "bf16", .shard_size = "5GB"};
    const Flag flags[] = {{"--gguf", NULL, &wish.gguf}, {"--dtype", NULL, &wish.dtype},
                          {"--shard-size", NULL, &wish.shard_size}};
    const Syntax syntax = {
        .usage = usage, .least = 1, .most = 2, .overrides = true, .flags = flags, .flag_count = 3};
    ConfigLoad *load = NULL;
    char *path = NULL;
    int code = arguments_parse(&args, argc, argv, &syntax, &errors);
    if (code == ARGUMENTS_GO_ON) {
        code = 2;
        wish.run = args.positional[0], wish.hf_dir = args.positional_count > 1 ? args.positional[1] : NULL;
        if (!errors.count && !wish.hf_dir == !wish.gguf)
            errors_add(&errors, "export: name either HF_DIR or --gguf=FILE\n%s", usage);
        path = wish.run ? files_join(wish.run, "config.json") : NULL;
        load = path ? config_load(path, args.override_count, args.overrides, &errors) : NULL;
        if (load && !errors.count) code = export(&wish, config_values(load), &errors);
    }
    errors_print(&errors, stderr);
    errors_free(&errors);
    config_free(load);
    free(path);
    arguments_free(&args);
    return code;
}
