/* ./train tokenize: text to token shards with a held-out split by documents. */
#include "commands/arguments.h"
#include "commands/commands.h"
#include "data/jsonl.h"
#include "data/tokenize_shards.h"
#include "model/files.h"
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LEARN_BYTES (1ll << 30)    /* a tokenizer learns from the first GiB of text */

static const char usage[] =
    "usage: ./train tokenize INPUT... --out=DIR [options]\n"
    "  INPUT                      text or .jsonl files, directories of them, - for standard input\n"
    "  --out=DIR                  where train.bin, val.bin and tokenizer.json go\n"
    "  --tokenizer=bytes          bytes; train:N learns a byte-level BPE of N tokens from the input; else a\n"
    "                             tokenizer.json or a tiktoken rank file\n"
    "  --val-fraction=0.05        part of the text, by documents, that is held out\n"
    "  --val-file=FILE            held-out text instead, with documents like the input's\n"
    "  --document-separator=none  none: a file is a document; blank: documents end at blank lines;\n"
    "                             else: at lines that equal this text\n"
    "  --text-field=text          of jsonl lines, each of which is a document\n"
    "  --format=auto              auto (by the name), text, jsonl\n"
    "  --bos=true --eos=false     specials at a document's begin and end\n"
    "  --dtype=u32                u32, u16\n"
    "  --shard-tokens=0           > 0: several files of about this many tokens\n"
    "  --seed=1                   of the held-out choice\n"
    "  --overwrite=false          replace what an earlier call left in DIR\n";

/* ---- options ------------------------------------------------------------------------------------- */

typedef struct Options {
    const char *out, *tokenizer, *val_file, *separator, *field, *format, *dtype, *bos, *eos, *overwrite;
    const char *val_fraction, *shard_tokens, *seed;
    char      **inputs;         /* [input_count], not owned */
    int         input_count;
} Options;

/* Index of value among `count` words; adds an error that lists them when it is none. */
static int choose(const char *option, const char *value, const char *const *words, int count, Errors *errors)
{
    char list[128] = "";
    for (int w = 0; w < count; w++) {
        if (!strcmp(value, words[w]))
            return w;
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", w ? ", " : "", words[w]);
    }
    errors_add(errors, "tokenize: %s=%s: expected one of %s", option, value, list);
    return 0;
}

static bool choose_bool(const char *option, const char *value, Errors *errors)
{
    static const char *const words[] = { "false", "true" };
    return choose(option, value, words, 2, errors);
}

/* The options with their types. */
typedef struct Job {
    DocumentRules rules;
    ShardRules    shards;
    InputFormat   format;
    int64_t       learn;        /* tokens to learn, 0 = the tokenizer is given */
    double        val_fraction; /* 0 = nothing is held out of the input */
    uint64_t      seed;
    bool          overwrite;
} Job;

static Job read_job(const Options *options, Errors *errors)
{
    static const char *const dtypes[] = { "u32", "u16" }, *const formats[] = { "auto", "text", "jsonl" };
    Job job = { .seed = (uint64_t)arguments_integer("--seed=", options->seed, 0, errors) };
    job.shards.dtype = choose("--dtype", options->dtype, dtypes, 2, errors) ? SHARD_U16 : SHARD_U32;
    job.shards.bos   = choose_bool("--bos", options->bos, errors);
    job.shards.eos   = choose_bool("--eos", options->eos, errors);
    job.shards.shard_tokens = arguments_integer("--shard-tokens=", options->shard_tokens, 0, errors);
    job.overwrite    = choose_bool("--overwrite", options->overwrite, errors);
    job.format       = (InputFormat)choose("--format", options->format, formats, 3, errors);
    job.rules =
        (DocumentRules){ .field       = options->field,
                         .whole_files = !strcmp(options->separator, "none"),
                         .separator   = strcmp(options->separator, "blank") ? options->separator : NULL };
    if (!strncmp(options->tokenizer, "train:", 6))
        job.learn = arguments_integer("--tokenizer=train:", options->tokenizer + 6, 259, errors);
    if (job.learn > 1 << 24)
        errors_add(errors, "tokenize: --tokenizer=train:%lld: expected at most 16777216 tokens",
                   (long long)job.learn);
    char *end;
    job.val_fraction = strtod(options->val_fraction, &end);
    if (end == options->val_fraction || *end || !(job.val_fraction >= 0 && job.val_fraction < 1))
        errors_add(errors, "tokenize: --val-fraction=%s: expected a number from 0 to below 1",
                   options->val_fraction);
    if (options->val_file)
        job.val_fraction = 0;
    return job;
}

/* ---- the output directory ------------------------------------------------------------------------ */

/* What this command writes. */
static const char *const outputs[] = { "train.bin", "val.bin", "train_[0-9]*.bin", "val_[0-9]*.bin",
                                       "tokenizer.json" };

static bool is_output(const char *name)
{
    bool found = false;
    for (size_t o = 0; o < sizeof outputs / sizeof *outputs; o++)
        found = found || !fnmatch(outputs[o], name, 0);
    return found;
}

/* Calls for each output in dir: counts them (then NULL), moves them to `to`, or removes them (to ""). */
static int each_output(const char *dir, const char *to, Errors *errors)
{
    struct dirent **entries;
    int count = scandir(dir, &entries, NULL, alphasort), found = 0;
    for (int e = 0; e < count; e++) {
        const char *name   = entries[e]->d_name;
        bool        output = is_output(name);
        char       *path   = output && to ? files_join(dir, name) : NULL;
        char       *target = path && *to ? files_join(to, name) : NULL;
        if (path && (target ? rename(path, target) : unlink(path)))
            errors_add(errors, "%s: cannot be %s: %s", path, target ? "renamed" : "removed", strerror(errno));
        found += output;
        free(target);
        free(path);
        free(entries[e]);
    }
    if (count >= 0)
        free(entries);
    return found;
}

/* ---- tokenizer ----------------------------------------------------------------------------------- */

/* Learns from the training side of the inputs, at most LEARN_BYTES of it. split NULL: all of them. A document
 * with which it reaches that ends there, in the middle of a word if need be; one of JSON, which may have an
 * escape there, is left out. */
static Tokenizer *learn_tokenizer(const Inputs *inputs, const Job *job, const DocumentSplit *split,
                                  Errors *errors)
{
    DocumentReader reader = { .inputs = inputs, .rules = job->rules };
    Document       document;
    int64_t        count = 0, capacity = 0;
    size_t         room  = inputs->bytes < LEARN_BYTES ? inputs->bytes : LEARN_BYTES, total = 0;
    char          *plain = malloc(room);    /* JSON strings without their escapes */
    TextSpan      *texts = NULL;
    bool           fine  = plain != NULL;
    while (fine && total < room && documents_next(&reader, &document, errors)) {
        size_t length = split ? split_train_bytes(split, &document) : document.length;
        if (length > room - total && document.escaped)
            break;
        if (length > room - total)
            length = room - total;
        if (count == capacity) {
            capacity = 2 * capacity + 1024;
            TextSpan *grown = realloc(texts, (size_t)capacity * sizeof *texts);
            fine  = grown != NULL;
            texts = grown ? grown : texts;
        }
        if (fine && length > 0)
            texts[count++] = (TextSpan){ document.text, length };
        if (fine && length > 0 && document.escaped)
            texts[count - 1] =
                (TextSpan){ plain + total, jsonl_unescape(document.text, length, plain + total) };
        total += length;
    }
    if (!fine)
        errors_add(errors, "no memory to learn a tokenizer");
    Tokenizer *tokenizer = fine ? tokenizer_train(texts, count, job->learn, errors) : NULL;
    free(texts);
    free(plain);
    return tokenizer;
}

/* Keeps a given tokenizer.json as it is; writes one for the others. */
static void save_tokenizer(const Tokenizer *tokenizer, const char *given, const char *dir, Errors *errors)
{
    char *to   = files_join(dir, "tokenizer.json");
    char *from = files_is_dir(given) ? files_join(given, "tokenizer.json") : strdup(given);
    size_t length = strlen(given), bytes = 0;
    bool   json   = files_is_dir(given) || (length > 5 && !strcmp(given + length - 5, ".json"));
    if (!to || !from)
        errors_add(errors, "%s: no memory to write a tokenizer", dir);
    else if (!json || !files_exists(from))
        tokenizer_save(tokenizer, to, errors);
    else {
        char *text = files_read(from, &bytes, errors);
        if (text)
            files_replace(to, text, bytes, errors);
        free(text);
    }
    free(to);
    free(from);
}

/* ---- the command --------------------------------------------------------------------------------- */

static void print_side(const char *label, const ShardTotals *totals)
{
    if (totals->documents)
        printf("%-10s %lld document%s, %lld bytes, %lld tokens (%.2f bytes per token), %d file%s\n", label,
               (long long)totals->documents, totals->documents == 1 ? "" : "s", (long long)totals->bytes,
               (long long)totals->tokens, (double)totals->bytes / (double)totals->tokens, totals->files,
               totals->files == 1 ? "" : "s");
}

/* Whether a token holds whole UTF-8 symbols: bytes above 0x7f in runs of a lead and its followers. */
static bool is_whole(const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)text[i];
        size_t more = byte < 0x80 ? 0 : byte < 0xc2 ? length : byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
        if (more >= length - i)
            return false;
        for (; more; more--)
            if ((text[++i] & 0xc0) != 0x80)
                return false;
    }
    return true;
}

/* The first tokens of a shard, one in each pair of bars, so that doubled specials and stray spaces show. */
static void print_first_tokens(const Tokenizer *tokenizer, const char *path)
{
    Errors    none = { 0 };
    ShardSet *set  = shards_open(path, SHARD_AUTO, 0, &none);
    printf("begins     |");
    for (int64_t i = 0; set && i < 32 && i < set->tokens; i++) {
        size_t      length;
        const char *text = tokenizer_decode(tokenizer, shard_token(&set->shards[0], i), &length);
        bool whole = is_whole(text, length);
        for (size_t c = 0; c < length; c++) {
            unsigned char byte = (unsigned char)text[c];
            if (byte == '\n')
                printf("\\n");
            else if (byte < 0x20 || byte == 0x7f || (byte > 0x7f && !whole))
                printf("\\x%02x", byte);
            else
                putchar(byte);
        }
        putchar('|');
    }
    putchar('\n');
    shards_close(set);
    errors_free(&none);
}

static void print_summary(const Options *options, const Job *job, const Tokenizer *tokenizer,
                          const Inputs *inputs, const DocumentSplit *split, const SplitTotals *totals,
                          const char *dir)
{
    char *first = files_join(dir, job->shards.shard_tokens ? "train_00000.bin" : "train.bin");
    printf("tokenizer  %s, %lld tokens\n", job->learn ? "byte-level BPE, learned" : options->tokenizer,
           (long long)tokenizer_vocab(tokenizer));
    if (job->learn > tokenizer_vocab(tokenizer))
        printf("note       the text has no more pairs that occur twice: %lld tokens instead of %lld\n",
               (long long)tokenizer_vocab(tokenizer), (long long)job->learn);
    print_side("train", &totals->train);
    print_side("held out", &totals->held_out);
    if (split && split->tail > 0)
        printf("note       the input is one document: its end is held out; "
               "--document-separator=blank splits it at blank lines\n");
    if (inputs->skipped)
        printf("note       %d file%s of other kinds skipped\n", inputs->skipped,
               inputs->skipped == 1 ? "" : "s");
    if (first)
        print_first_tokens(tokenizer, first);
    free(first);
}

static bool open_texts(Inputs *inputs, Inputs *val, const Options *options, const Job *job, Errors *errors)
{
    bool fine = inputs_open(inputs, options->inputs, options->input_count, job->format, errors);
    if (options->val_file)
        fine = inputs_open(val, &(char *){ (char *)options->val_file }, 1, job->format, errors) && fine;
    return fine;
}

/* What is wrong with the texts beside what is wrong already. Standard input is not waited for. */
static void check_texts(const Options *options, const Job *job, Errors *errors)
{
    Inputs inputs = { 0 }, val = { 0 };
    bool   standard = options->val_file && !strcmp(options->val_file, "-");
    for (int i = 0; i < options->input_count; i++)
        standard = standard || !strcmp(options->inputs[i], "-");
    if (!standard)
        open_texts(&inputs, &val, options, job, errors);
    inputs_close(&inputs);
    inputs_close(&val);
}

/* Everything after the options are read: writes into `staging`. Returns the exit code that errors deserve. */
static int tokenize_into(const char *staging, const Options *options, const Job *job, Errors *errors)
{
    Inputs        inputs = { 0 }, val = { 0 };
    DocumentSplit split, all;
    SplitTotals   totals = { 0 }, val_totals = { 0 };
    bool          fine = open_texts(&inputs, &val, options, job, errors);
    const DocumentSplit *chosen = job->val_fraction > 0 ? &split : NULL;
    /* Reads all text once, so that a bad line is found before anything is learned or written. */
    fine = fine && split_choose(&split, &inputs, &job->rules, job->val_fraction, job->seed, errors) &&
           (!options->val_file || split_choose(&all, &val, &job->rules, 0, job->seed, errors));

    Tokenizer *tokenizer = NULL;
    if (fine)
        tokenizer = job->learn ? learn_tokenizer(&inputs, job, chosen, errors) :
                                 tokenizer_load(options->tokenizer, errors);
    if (tokenizer && job->shards.bos && tokenizer_bos(tokenizer) < 0)
        errors_add(errors, "%s: has no token %s to begin documents; --bos=false does without",
                   options->tokenizer, TOKENIZER_BOS);
    if (tokenizer && job->shards.eos && tokenizer_eos(tokenizer) < 0)
        errors_add(errors, "%s: has no token %s to end documents; --eos=false does without",
                   options->tokenizer, TOKENIZER_EOS);
    if (tokenizer && job->shards.dtype == SHARD_U16 && tokenizer_vocab(tokenizer) > 65536)
        errors_add(errors, "tokenize: --dtype=u16 holds ids below 65536, the tokenizer has %lld; use u32",
                   (long long)tokenizer_vocab(tokenizer));
    int code = errors->count ? 2 : 1;
    fine = tokenizer && errors->count == 0 &&
           shards_write(staging, "train", tokenizer, &inputs, &job->rules, chosen, &job->shards, &totals,
                        errors);
    if (fine && chosen && totals.held_out.documents == 0) {
        errors_add(errors,
                   "%s: a single document without a line break behind its first %.4g%%, so no part can be "
                   "held out; give --val-file or --val-fraction=0",
                   inputs.files[0].path, 100 * (1 - split.tail));
        fine = false;
        code = 2;
    }
    fine = fine && (!options->val_file || shards_write(staging, "val", tokenizer, &val, &job->rules, NULL,
                                                       &job->shards, &val_totals, errors));
    if (fine)
        save_tokenizer(tokenizer, options->tokenizer, staging, errors);
    if (options->val_file)
        totals.held_out = val_totals.train;
    if (errors->count == 0)
        print_summary(options, job, tokenizer, &inputs, chosen, &totals, staging);
    tokenizer_free(tokenizer);
    inputs_close(&inputs);
    inputs_close(&val);
    return code;
}

/* Writes beside the final names and renames at the end, so that DIR never holds half of a result. Returns the
 * exit code. */
static int tokenize(const Options *options, const Job *job, Errors *errors)
{
    char *staging = files_join(options->out, ".tokenize.tmp");
    if (!staging)
        return 1;
    int  code   = 2;
    bool staged = false, existed = files_exists(options->out);
    const int lock = files_lock_dir(options->out, errors);
    if (lock == FILES_BUSY)
        errors_add(errors, "%s: another process is writing there; wait for it, or name another directory with --out",
                   options->out);
    else if (lock >= 0 && each_output(options->out, NULL, errors) && !job->overwrite) {
        errors_add(errors, "%s: holds the result of an earlier call; --overwrite=true replaces it",
                   options->out);
        check_texts(options, job, errors);
    } else if (lock >= 0 && files_make_dirs(staging, errors)) {
        each_output(staging, "", errors);       /* of a call that was stopped */
        code   = tokenize_into(staging, options, job, errors);
        staged = true;
    }
    if (errors->count == 0) {
        each_output(options->out, "", errors);
        each_output(staging, options->out, errors);
        files_sync_dir(options->out, errors);
    }
    Errors ignored = { 0 };
    if (staged)
        files_remove_tree(staging, &ignored);
    if (errors->count && !existed && lock >= 0)
        rmdir(options->out);
    if (lock >= 0)
        close(lock);
    errors_free(&ignored);
    free(staging);
    return errors->count ? code : 0;
}

int tokenize_command(int argc, char **argv)
{
    Errors    errors = { 0 };
    Arguments args;
    Options   options = { .tokenizer = "bytes", .separator = "none", .field = "text", .format = "auto",
                          .dtype = "u32", .bos = "true", .eos = "false", .overwrite = "false",
                          .val_fraction = "0.05", .shard_tokens = "0", .seed = "1" };
    const Flag flags[] = {
        { "--out", NULL, &options.out },
        { "--tokenizer", NULL, &options.tokenizer },
        { "--val-file", NULL, &options.val_file },
        { "--val-fraction", NULL, &options.val_fraction },
        { "--document-separator", NULL, &options.separator },
        { "--text-field", NULL, &options.field },
        { "--format", NULL, &options.format },
        { "--dtype", NULL, &options.dtype },
        { "--bos", NULL, &options.bos },
        { "--eos", NULL, &options.eos },
        { "--overwrite", NULL, &options.overwrite },
        { "--shard-tokens", NULL, &options.shard_tokens },
        { "--seed", NULL, &options.seed },
    };
    const Syntax syntax = { .usage = usage, .least = 1, .most = INT_MAX, .flags = flags,
                            .flag_count = sizeof flags / sizeof *flags };
    int code = arguments_parse(&args, argc, argv, &syntax, &errors);
    if (code == ARGUMENTS_GO_ON) {
        options.inputs      = args.positional;
        options.input_count = args.positional_count;
        if (!options.out)
            errors_add(&errors, "tokenize: --out=DIR is missing");
        Job job = read_job(&options, &errors);
        code    = errors.count ? 2 : tokenize(&options, &job, &errors);
    }
    errors_print(&errors, stderr);
    errors_free(&errors);
    arguments_free(&args);
    return code;
}
