/* ./train logits RUN --ids=1,2,3: the logits after some tokens, for comparing with other implementations. */
#include "commands/arguments.h"
#include "commands/commands.h"
#include "commands/setup.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ids: [most]; returns how many, 0 with an error added. */
static int64_t parse_ids(const char *text, int32_t *ids, int64_t most, int64_t vocab, Errors *errors)
{
    int64_t count = 0;
    for (const char *at = text; *at;) {
        char *end;
        long id = strtol(at, &end, 10);
        if (end == at || (*end && *end != ',') || id < 0 || id >= vocab) {
            errors_add(errors, "--ids: \"%s\": expected ids below %lld with commas between", at,
                       (long long)vocab);
            return 0;
        }
        if (count == most) {
            errors_add(errors, "--ids: more than the %lld tokens of train.seq_len", (long long)most);
            return 0;
        }
        ids[count++] = (int32_t)id;
        at = *end ? end + 1 : end;
    }
    if (!count) errors_add(errors, "--ids names no token");
    return count;
}

static const char usage[] =
    "usage: ./train logits RUN --ids=1,2,3 [--all] [--out=FILE]\n"
    "       prints the logits after the last token (--all: after each), a line a token;\n"
    "       --out writes them as raw little-endian float32 instead\n";

/* Writes the logits after the last of count ids, or after each. */
static void write_logits(Llama *model, const int32_t *ids, int64_t count, bool all, bool raw, FILE *out)
{
    int64_t vocab = model->shape.vocab;
    for (int64_t i = all ? 0 : count - 1; i < count; i++) {
        const float *logits = all ? llama_next_logits(model, ids + i, 1, i)
                                  : llama_next_logits(model, ids, count, 0);
        if (raw) fwrite(logits, sizeof *logits, (size_t)vocab, out);
        else for (int64_t v = 0; v < vocab; v++)
            fprintf(out, "%.9g%c", (double)logits[v], v + 1 < vocab ? ' ' : '\n');
    }
}

int logits_command(int argc, char **argv)
{
    Errors errors = {0};
    Setup setup = {0};
    Arguments args;
    const char *ids_text = NULL, *out_path = NULL;
    bool all = false;
    const Flag flags[] = {{"--ids", NULL, &ids_text}, {"--out", NULL, &out_path}, {"--all", &all, NULL}};
    const Syntax syntax = {
        .usage = usage, .least = 1, .most = 1, .overrides = true, .flags = flags, .flag_count = 3};
    int code = arguments_parse(&args, argc, argv, &syntax, &errors);
    if (code == ARGUMENTS_GO_ON && !ids_text) errors_add(&errors, "logits: --ids=1,2,3 is missing");
    Llama *model = NULL;
    if (code == ARGUMENTS_GO_ON && args.positional_count)
        model = setup_trained(&setup, args.positional[0], args.override_count, args.overrides, &errors);
    arguments_free(&args);
    if (!model) return setup_finish(&setup, &errors, code == ARGUMENTS_GO_ON ? 2 : code);

    int64_t most = setup.config->train.seq_len;
    int32_t *ids = malloc((size_t)most * sizeof *ids);
    int64_t count = ids ? parse_ids(ids_text, ids, most, model->shape.vocab, &errors) : 0;
    if (!ids) errors_add(&errors, "out of memory while reading --ids");
    FILE *out = errors.count ? NULL : out_path ? fopen(out_path, "wb") : stdout;
    if (!out && !errors.count) errors_add(&errors, "%s: cannot be written: %s", out_path, strerror(errno));
    code = errors.count ? 2 : 0;
    if (out) write_logits(model, ids, count, all, out_path != NULL, out);
    if (out_path && out && (ferror(out) | fclose(out))) {
        errors_add(&errors, "%s: writing failed", out_path);
        code = 1;
    }
    free(ids);
    llama_destroy(model);
    return setup_finish(&setup, &errors, code);
}
