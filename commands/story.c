/* ./train story: makes, checks and measures the demo's corpus. A file of stories holds one per paragraph: a
 * blank line ends a story, and none contains one. */
#include "commands/arguments.h"
#include "commands/commands.h"
#include "data/story.h"
#include "data/story_check.h"
#include "data/story_file.h"
#include "data/story_parse.h"
#include "model/files.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char usage[] =
    "usage: ./train story generate --bytes=N --out=DIR [--seed=1] [--held-out=0.05]\n"
    "       writes DIR/train.txt and DIR/held_out.txt\n"
    "       ./train story check FILE [--against=FILE]\n"
    "       how many stories hold together, and why the others do not; --against counts those found in FILE\n"
    "       ./train story entropy FILE\n"
    "       information in the stories, recovered from the text by a parser\n";

/* Prints and frees the errors; returns `code`. */
static int fail(Errors *errors, int code)
{
    errors_print(errors, stderr);
    errors_free(errors);
    return code;
}

static double parse_number(const char *name, const char *text, double low, double high, Errors *errors)
{
    char *end;
    const double x = strtod(text, &end);
    if (end == text || *end || !(x >= low && x <= high))
        errors_add(errors, "%s=%s: expected a number from %g to %g", name, text, low, high);
    return x;
}

typedef struct Split {
    const char *name;
    int stream;
    double bytes; /* written until this many are reached */
} Split;

static void write_split(const StoryGrammar *g, const char *dir, Split split, uint64_t seed, Errors *errors)
{
    char *path = files_join(dir, split.name);
    FILE *f = path ? fopen(path, "wb") : NULL;
    if (!f) {
        errors_add(errors, "%s/%s: cannot be written: %s", dir, split.name, strerror(errno));
        free(path);
        return;
    }
    double bits = 0;
    int64_t written = 0, text_bytes = 0, count = 0;
    Story s;
    for (; written < split.bytes; count++) {
        story_generate(g, seed, split.stream, (uint64_t)count, &s);
        fwrite(s.text, 1, (size_t)s.length, f);
        fwrite("\n\n", 1, 2, f);
        bits += s.bits;
        text_bytes += s.length;
        written += s.length + 2;
    }
    const int failed = ferror(f);
    if (fclose(f) != 0 || failed) {
        errors_add(errors, "%s: writing %lld bytes failed (disk full?)", path, (long long)written);
        unlink(path);
    } else if (count > 0) {
        printf("%s: %lld stories, %lld bytes, %.1f bits a story, entropy %.4f bits/byte\n", path,
               (long long)count, (long long)written, bits / (double)count, bits / (double)text_bytes);
    }
    free(path);
}

static int generate(int argc, char **argv)
{
    Errors errors = {0};
    Arguments args;
    const char *bytes_text = NULL, *seed_text = "1", *held_out_text = "0.05", *dir = NULL;
    const Flag flags[] = {{"--bytes", NULL, &bytes_text}, {"--seed", NULL, &seed_text},
                          {"--held-out", NULL, &held_out_text}, {"--out", NULL, &dir}};
    const Syntax syntax = {.usage = usage, .flags = flags, .flag_count = 4};
    int code = arguments_parse(&args, argc, argv, &syntax, &errors);
    arguments_free(&args);
    if (code != ARGUMENTS_GO_ON) return fail(&errors, code);
    const double bytes = bytes_text ? parse_number("--bytes", bytes_text, 1, 1e13, &errors) : 0;
    const double seed = parse_number("--seed", seed_text, 0, 9007199254740992.0, &errors);
    const double held_out = parse_number("--held-out", held_out_text, 0, 0.9, &errors);
    if (seed != floor(seed)) errors_add(&errors, "--seed: expected an integer");
    if (!bytes_text) errors_add(&errors, "--bytes=N is missing");
    if (!dir) errors_add(&errors, "--out=DIR is missing");
    if (errors.count || !files_make_dirs(dir, &errors)) return fail(&errors, 2);

    StoryGrammar *g = story_grammar_create();
    const Split splits[] = {
        {"train.txt", STORY_STREAM_TRAIN, bytes * (1 - held_out)},
        {"held_out.txt", STORY_STREAM_HELD_OUT, bytes * held_out},
    };
    if (!g) errors_add(&errors, "no memory for the story grammar");
    for (int i = 0; i < 2 && errors.count == 0; i++) write_split(g, dir, splits[i], (uint64_t)seed, &errors);
    story_grammar_free(g);
    return errors.count ? fail(&errors, 1) : 0;
}

/* What `check` counts. */
typedef struct Tally {
    int64_t hold, carry, repeated, known_text, fault[STORY_FAULTS];
} Tally;

static void print_tally(const char *path, const Tally *t, int64_t count, const char *against)
{
    const double percent = 100.0 / (double)count;
    printf("%s: %lld stories\n", path, (long long)count);
    printf("holds together: %.1f %%\n", (double)t->hold * percent);
    printf("carries name and object through: %.1f %%\n", (double)t->carry * percent);
    printf("repeats an earlier story of the file: %lld\n", (long long)t->repeated);
    if (against) printf("found in %s: %lld\n", against, (long long)t->known_text);
    for (int i = 0; i < STORY_FAULTS; i++) {
        if (t->fault[i]) printf("  %5.1f %% %s\n", (double)t->fault[i] * percent, story_fault_text(i));
    }
}

/* Takes the one FILE of a command, and its flags. Returns ARGUMENTS_GO_ON, or the exit code. */
static int take_file(int argc, char **argv, const char **path, const Flag *flags, int flag_count)
{
    Errors errors = {0};
    Arguments args;
    const Syntax syntax = {.usage = usage, .least = 1, .most = 1, .flags = flags, .flag_count = flag_count};
    int code = arguments_parse(&args, argc, argv, &syntax, &errors);
    *path = code == ARGUMENTS_GO_ON ? args.positional[0] : NULL;
    arguments_free(&args);
    return errors.count ? fail(&errors, 2) : code;
}

static int check(int argc, char **argv)
{
    Errors errors = {0};
    const char *path, *against = NULL;
    const Flag flags[] = {{"--against", NULL, &against}};
    int code = take_file(argc, argv, &path, flags, 1);
    if (code != ARGUMENTS_GO_ON) return code;

    StoryFile stories = {0}, training = {0};
    StoryGrammar *g = story_grammar_create();
    StoryChecker *checker = g ? story_checker_create(g) : NULL;
    const int readable = story_file_open(&stories, path, &errors) &&
                         (!against || story_file_open(&training, against, &errors));
    if (readable && checker) {
        Tally tally = {.repeated = story_file_repeats(&stories)};
        for (int64_t i = 0; i < stories.count; i++) {
            const Document d = stories.stories[i];
            const unsigned faults = story_check(checker, d.text, (int64_t)d.length);
            tally.hold += faults == 0;
            tally.carry += (faults & STORY_CARRY_FAULTS) == 0;
            for (int k = 0; k < STORY_FAULTS; k++) tally.fault[k] += faults >> k & 1;
            tally.known_text += story_file_contains(&training, d.text, d.length);
        }
        print_tally(path, &tally, stories.count, against);
    }
    if (!checker) errors_add(&errors, "no memory to check %s", path);
    story_file_close(&stories);
    story_file_close(&training);
    story_checker_free(checker);
    story_grammar_free(g);
    return errors.count ? fail(&errors, readable ? 1 : 2) : 0;
}

static int entropy(int argc, char **argv)
{
    Errors errors = {0};
    const char *path;
    int code = take_file(argc, argv, &path, NULL, 0);
    if (code != ARGUMENTS_GO_ON) return code;
    StoryFile stories = {0};
    StoryGrammar *g = story_grammar_create();
    const int readable = story_file_open(&stories, path, &errors);
    if (!g) errors_add(&errors, "no memory for the story grammar");
    if (errors.count == 0) {
        int64_t parsed = 0, ambiguous = 0, bytes = 0;
        double bits = 0;
        for (int64_t i = 0; i < stories.count; i++) {
            const Document d = stories.stories[i];
            if (d.length > STORY_MAX_BYTES) continue;
            const StoryParse p = story_parse(g, d.text, (int)d.length);
            ambiguous += p.derivations > 1;
            if (p.derivations != 1) continue;
            parsed++;
            bits += p.bits;
            bytes += (int64_t)d.length;
        }
        printf("%s: %lld stories, %lld parsed in one way, %lld in several\n", path,
               (long long)stories.count, (long long)parsed, (long long)ambiguous);
        if (parsed)
            printf("entropy: %.4f bits/byte, %.1f bits a story, %.1f bytes a story\n", bits / (double)bytes,
                   bits / (double)parsed, (double)bytes / (double)parsed);
    }
    story_file_close(&stories);
    story_grammar_free(g);
    return errors.count ? fail(&errors, readable ? 1 : 2) : 0;
}

int story_command(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "generate") == 0) return generate(argc - 1, argv + 1);
    if (strcmp(what, "check") == 0) return check(argc - 1, argv + 1);
    if (strcmp(what, "entropy") == 0) return entropy(argc - 1, argv + 1);
    if (strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0) {
        fputs(usage, stdout);
        return 0;
    }
    Errors errors = {0};
    errors_add(&errors, "story: expected generate, check or entropy, found \"%s\"\n%s", what, usage);
    return fail(&errors, 2);
}
