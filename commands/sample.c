/* ./train sample RUN --prompt TEXT: generates text from the newest checkpoint of a run. */
#include "commands/arguments.h"
#include "commands/commands.h"
#include "commands/setup.h"
#include "model/generate.h"
#include "model/random.h"
#include <stdlib.h>

static const char usage[] =
    "usage: ./train sample RUN [--prompt=TEXT] [--count=N] [--separator=TEXT] [--section.key=value ...]\n"
    "       --count texts, with --separator between them\n"
    "       most useful: --sample.temperature=T --sample.top_k=K --sample.top_p=P --sample.tokens=N "
    "--run.seed=S\n";

static void print_piece(const char *bytes, size_t length, void *out)
{
    fwrite(bytes, 1, length, out);
    fflush(out);
}

/* Writes `count` texts to stdout, each from its own part of the random stream. */
static void write_samples(Llama *model, const Setup *setup, const char *prompt, int64_t count,
                          const char *separator, Errors *errors)
{
    const Config *c = setup->config;
    for (int64_t i = 0; i < count && !ferror(stdout); i++) {
        GenerateOptions options = {
            .prompt = prompt ? prompt : c->sample.prompt, .tokens = c->sample.tokens,
            .temperature = c->sample.temperature, .top_p = c->sample.top_p, .top_k = c->sample.top_k,
            .key = random_bits((uint64_t)c->run.seed, (uint64_t)i)};
        if (!generate(model, c->train.seq_len, setup->tokenizer, &options, print_piece, stdout, errors))
            return;
        printf("%s%s", i + 1 < count ? "\n" : "", i + 1 < count ? separator : "\n");
    }
}

int sample_command(int argc, char **argv)
{
    Errors errors = {0};
    Setup setup = {0};
    Arguments args;
    const char *prompt = NULL, *count_text = "1", *separator = "\n";
    const Flag flags[] = {{"--prompt", NULL, &prompt}, {"--count", NULL, &count_text},
                          {"--separator", NULL, &separator}};
    const Syntax syntax = {
        .usage = usage, .least = 1, .most = 1, .overrides = true, .flags = flags, .flag_count = 3,
        .empty_values = true};
    int code = arguments_parse(&args, argc, argv, &syntax, &errors);
    int64_t count = arguments_integer("--count=", count_text, 1, &errors);
    Llama *model = NULL;
    if (code == ARGUMENTS_GO_ON && args.positional_count)
        model = setup_trained(&setup, args.positional[0], args.override_count, args.overrides, &errors);
    arguments_free(&args);
    if (!model) return setup_finish(&setup, &errors, code == ARGUMENTS_GO_ON ? 2 : code);

    if (setup.tokenizer) write_samples(model, &setup, prompt, count, separator, &errors);
    else errors_add(&errors, "%s was trained on ids alone: data.tokenizer names none to write text with",
                    setup.config->run.dir);
    llama_destroy(model);
    return setup_finish(&setup, &errors, errors.count ? 2 : 0);
}
