/* ./train sample RUN --prompt TEXT: generates text from the newest checkpoint of a run. */
#include "commands/arguments.h"
#include "commands/commands.h"
#include "commands/setup.h"
#include "model/generate.h"
#include "model/random.h"
#include <stdlib.h>

static void print_piece(const char *bytes, size_t length, void *out)
{
    fwrite(bytes, 1, length, out);
    fflush(out);
}

int sample_command(int argc, char **argv)
{
    Errors errors = {0};
    Setup setup = {0};
    Arguments args;
    const char *prompt = NULL, *count_text = "1", *separator = "\n";
    const Flag flags[] = {{"--prompt", NULL, &prompt}, {"--count", NULL, &count_text},
                          {"--separator", NULL, &separator}};
    if (!arguments_parse(&args, argc, argv, flags, 3, 1, &errors)) return 1;
    char *end;
    long count = strtol(count_text, &end, 10);
    if (*end || count < 1) errors_add(&errors, "--count=%s: expected a positive number", count_text);
    if (args.positional_count != 1)
        errors_add(&errors, "usage: ./train sample RUN [--prompt=TEXT] [--count=N] [--separator=TEXT] "
                   "[--sample.temperature=T] [--sample.top_k=K] [--sample.top_p=P] [--sample.tokens=N] [--run.seed=S]");
    if (errors.count) return arguments_free(&args), setup_failed(&setup, &errors, 2);

    Llama *model = setup_trained(&setup, args.positional[0], args.override_count, args.overrides, &errors);
    arguments_free(&args);
    if (!model) return setup_failed(&setup, &errors, 2);
    const Config *c = setup.config;
    int code = 0;
    if (!setup.tokenizer) {
        errors_add(&errors, "%s was trained on ids alone: data.tokenizer names none to write text with", c->run.dir);
        llama_destroy(model);
        return setup_failed(&setup, &errors, 2);
    }
    for (long i = 0; i < count && !code; i++) {
        GenerateOptions options = {.prompt = prompt ? prompt : c->sample.prompt, .tokens = c->sample.tokens,
                                   .temperature = c->sample.temperature, .top_p = c->sample.top_p,
                                   .top_k = c->sample.top_k, .key = random_bits((uint64_t)c->run.seed, (uint64_t)i)};
        if (!generate(model, c->train.seq_len, setup.tokenizer, &options, print_piece, stdout, &errors)) code = 2;
        else printf("%s%s", i + 1 < count ? "\n" : "", i + 1 < count ? separator : "\n");
    }
    llama_destroy(model);
    if (code) return setup_failed(&setup, &errors, code);
    setup_close(&setup);
    return 0;
}
