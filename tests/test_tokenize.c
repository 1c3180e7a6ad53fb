/* ./train tokenize from its arguments to its files: what the shards hold, how documents are cut and held out,
 * what is refused and with which words, and that nothing half written stays. */
#include "commands/commands.h"
#include "data/jsonl.h"
#include "data/shards.h"
#include "data/tokenizer.h"
#include "model/files.h"
#include "tests/temporary.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define ARGUMENTS 12

static char *dir;

static int make_dir(void **state)
{
    (void)state;
    dir = temporary_make();
    return dir == NULL;
}

static int remove_dir(void **state)
{
    (void)state;
    temporary_remove(dir);
    return 0;
}

/* dir/name in a buffer of its own; the last eight results stay valid. */
static char *in_dir(const char *name)
{
    static char path[8][4096];
    static int  next;
    next = (next + 1) % 8;
    snprintf(path[next], sizeof path[next], "%s/%s", dir, name);
    return path[next];
}

static char *put(const char *name, const char *text)
{
    Errors errors = { 0 };
    char  *path   = in_dir(name);
    assert_true(files_replace(path, text, strlen(text), &errors));
    return path;
}

static char *read_back(const char *name)
{
    Errors errors = { 0 };
    char  *text   = files_read(in_dir(name), NULL, &errors);
    assert_non_null(text);
    return text;
}

/* Runs the command on `words` (a list that ends in NULL, "--out" is added) with its output in dir/said. */
static int run(const char *const *words)
{
    char *argv[ARGUMENTS + 3] = { (char *)"tokenize" }, out[5000];
    int   argc = 1, kept[2] = { dup(1), dup(2) };
    for (; *words; words++)
        argv[argc++] = (char *)*words;
    snprintf(out, sizeof out, "--out=%s/out", dir);
    argv[argc++] = out;
    fflush(stdout);
    int said = open(in_dir("said"), O_WRONLY | O_CREAT | O_TRUNC, 0666);
    dup2(said, 1);
    dup2(said, 2);
    close(said);
    int code = tokenize_command(argc, argv);
    fflush(stdout);
    fflush(stderr);
    for (int f = 0; f < 2; f++) {
        dup2(kept[f], f + 1);
        close(kept[f]);
    }
    return code;
}

#define RUN(...) run((const char *const[ARGUMENTS]){ __VA_ARGS__, NULL })

static void expect_said(const char *words)
{
    char *text = read_back("said");
    if (!strstr(text, words))
        fail_msg("\"%s\" does not say \"%s\"", text, words);
    free(text);
}

/* The text behind a shard, specials written out; caller frees. */
static char *decode(const char *name)
{
    Errors     errors    = { 0 };
    Tokenizer *tokenizer = tokenizer_load(in_dir("out"), &errors);
    ShardSet  *set       = shards_open(in_dir(name), SHARD_AUTO, tokenizer_vocab(tokenizer), &errors);
    errors_print(&errors, stderr);
    assert_non_null(set);
    assert_true(set->fingerprint == tokenizer_fingerprint(tokenizer));
    char  *text = calloc(1, (size_t)set->tokens * 40 + 1);
    size_t at   = 0, length;
    for (int s = 0; s < set->count; s++)
        for (int64_t i = 0; i < set->shards[s].count; i++) {
            const char *token = tokenizer_decode(tokenizer, shard_token(&set->shards[s], i), &length);
            memcpy(text + at, token, length);
            at += length;
        }
    text[at] = '\0';
    shards_close(set);
    tokenizer_free(tokenizer);
    return text;
}

static void expect_shard(const char *name, const char *text)
{
    char *found = decode(name);
    assert_string_equal(found, text);
    free(found);
}

static bool exists(const char *name)
{
    return files_exists(in_dir(name));
}

#define B "<|begin_of_text|>"
#define E "<|end_of_text|>"

/* ---- documents ------------------------------------------------------------------------------------ */

static void test_documents_by_separator(void **state)
{
    (void)state;
    put("a.txt", "\n\none\ntwo\n\n \t\nthree\r\n\r\nfour");
    assert_int_equal(RUN(in_dir("a.txt"), "--val-fraction=0", "--document-separator=blank"), 0);
    expect_shard("out/train.bin", B "one\ntwo" B "three" B "four");
    assert_false(exists("out/val.bin"));
    expect_said("3 documents, 16 bytes, 19 tokens");
    expect_said("|" B "|o|n|e|\\n|t|w|o|" B "|");

    put("a.txt", "one\n\ntwo\n<|x|>\n<|x|>\nthree<|x|>\n<|x|>\n");
    assert_int_equal(
        RUN(in_dir("a.txt"), "--val-fraction=0", "--document-separator=<|x|>", "--overwrite=true"), 0);
    expect_shard("out/train.bin", B "one\n\ntwo" B "three<|x|>");

    assert_int_equal(
        RUN(in_dir("a.txt"), "--val-fraction=0", "--overwrite=true", "--bos=false", "--eos=true"), 0);
    expect_shard("out/train.bin", "one\n\ntwo\n<|x|>\n<|x|>\nthree<|x|>\n<|x|>\n" E);
}

static void test_files_directories_and_stdin(void **state)
{
    (void)state;
    mkdir(in_dir("in"), 0777);
    mkdir(in_dir("in/sub"), 0777);
    put("in/b.txt", "bee");
    put("in/a.md", "ay");
    put("in/empty.txt", "");
    put("in/image.png", "no text");
    put("in/sub/c.jsonl", "{\"text\":\"sea\"}\n\n{\"text\":\"\"}\n{\"id\":1,\"text\":\"sea two\"}");
    put("d.txt", "dee");
    int kept = dup(0), input = open(in_dir("d.txt"), O_RDONLY);
    dup2(input, 0);
    assert_int_equal(RUN(in_dir("in"), "-", "--val-fraction=0"), 0);
    dup2(kept, 0);
    close(input);
    close(kept);
    expect_shard("out/train.bin", B "ay" B "bee" B "sea" B "sea two" B "dee");
    expect_said("1 file of other kinds skipped");
}

static void test_jsonl(void **state)
{
    (void)state;
    put("a.dat", "{\"n\":[1,{\"body\":\"no\"}],\"body\":\"q\\\"\\\\\\/"
                 "\\b\\f\\n\\r\\t\\u00e9\\u4e2d\\ud83d\\ude00\\ud83dx\",\"z\":null}\n"
                 " { \"body\" : \"two\" } \r\n");
    assert_int_equal(RUN(in_dir("a.dat"), "--format=jsonl", "--text-field=body", "--val-fraction=0"), 0);
    expect_shard("out/train.bin", B "q\"\\/\b\f\n\r\t\u00e9\u4e2d\U0001f600\ufffdx" B "two");
}

/* One line; the words of its problem. */
static void expect_bad_line(const char *line, const char *words)
{
    const char *value, *problem = "";
    size_t      length;
    if (jsonl_find(line, strlen(line), "text", &value, &length, &problem))
        fail_msg("%s was read", line);
    assert_string_equal(problem, words);
}

static void test_bad_jsonl(void **state)
{
    (void)state;
    static const char *const broken[] = { "",
                                          "x",
                                          "[]",
                                          "{",
                                          "{\"text\"}",
                                          "{\"text\":}",
                                          "{\"text\":\"a\"",
                                          "{\"text\":\"a}",
                                          "{\"text\":\"a\\q\"}",
                                          "{\"text\":\"\\u12g4\"}",
                                          "{\"text\":\"a\tb\"}",
                                          "{text:\"a\"}",
                                          "{\"text\":\"a\"} x",
                                          "{\"text\":\"a\",}",
                                          "{\"a\":[1,\"text\":\"b\"}",
                                          "{\"text\":\"\\" };
    for (size_t b = 0; b < sizeof broken / sizeof *broken; b++)
        expect_bad_line(broken[b], "not a JSON object");
    expect_bad_line("{\"text\":3}", "the text field is not a string");
    expect_bad_line("{\"texts\":\"a\"}", "has no text field of that name");
    expect_bad_line("{}", "has no text field of that name");

    put("a.jsonl", "{\"text\":\"fine\"}\n{\"text\":\"cut\n");
    assert_int_equal(RUN(in_dir("a.jsonl"), "--val-fraction=0"), 2);
    expect_said("a.jsonl:2: not a JSON object; expected a line like {\"text\": \"...\"}");
    assert_false(exists("out/train.bin"));
}

/* ---- the held-out side ---------------------------------------------------------------------------- */

/* 400 documents of three to six lines; document i % 300, so that a hundred stand twice. */
static void put_documents(const char *name, const char *between)
{
    FILE *file = fopen(in_dir(name), "wb");
    for (int i = 0; i < 400; i++)
        fprintf(file, "document %d\nhas number %d\n%s", i % 300, i % 300, between);
    fclose(file);
}

/* How often " N\n" names document n. */
static int occurrences(const char *text, int n)
{
    char name[40];
    int  count = 0;
    snprintf(name, sizeof name, "document %d\n", n);
    for (const char *at = text; (at = strstr(at, name)); at++)
        count++;
    return count;
}

static void test_held_out_by_documents(void **state)
{
    (void)state;
    put_documents("a.txt", "\n");
    char *first = NULL;
    for (int seed = 1; seed <= 2; seed++) {
        char option[20];
        snprintf(option, sizeof option, "--seed=%d", seed);
        assert_int_equal(RUN(in_dir("a.txt"), "--val-fraction=0.2", "--document-separator=blank", option,
                             "--overwrite=true"), 0);
        char *train = decode("out/train.bin"), *val = decode("out/val.bin");
        int   held  = 0;
        for (int n = 0; n < 300; n++) {
            int in_train = occurrences(train, n), in_val = occurrences(val, n);
            assert_int_equal(in_train + in_val, n < 100 ? 2 : 1);
            assert_true(in_train == 0 || in_val == 0);
            held += in_val;
        }
        assert_in_range(held, 75, 90);      /* 80 of 400, equal lengths nearly */
        assert_true(!first || strcmp(first, val));
        free(first);
        first = val;
        free(train);
    }
    free(first);
}

static void test_few_documents(void **state)
{
    (void)state;
    put("a.txt", "one\n\ntwo");
    assert_int_equal(RUN(in_dir("a.txt"), "--val-fraction=0.01", "--document-separator=blank"), 0);
    expect_said("train      1 document,");
    expect_said("held out   1 document,");
    put("a.txt", "one\n\none\n\ntwo");
    assert_int_equal(
        RUN(in_dir("a.txt"), "--val-fraction=0.99", "--document-separator=blank", "--overwrite=true"), 0);
    expect_said("held out");
    put("a.txt", "one\n\none\n\none");
    assert_int_equal(RUN(in_dir("a.txt"), "--document-separator=blank", "--overwrite=true"), 2);
    expect_said("all documents are equal, so none can be held out");
    put("a.jsonl", "{\"text\":\"one\"}");
    assert_int_equal(RUN(in_dir("a.jsonl"), "--overwrite=true"), 2);
    expect_said("the only document is a line of JSON");
    put("a.txt", "\n\n \n");
    assert_int_equal(RUN(in_dir("a.txt"), "--document-separator=blank", "--overwrite=true"), 2);
    expect_said("no document in the input");
}

static void test_one_document_is_cut_at_a_line(void **state)
{
    (void)state;
    put("a.txt", "line one\nline two\nline three\n  and four\nline five\n");
    assert_int_equal(RUN(in_dir("a.txt"), "--val-fraction=0.5"), 0);
    expect_shard("out/train.bin", B "line one\nline two\nline three\n  and four\n");
    expect_shard("out/val.bin", B "line five\n");
    expect_said("the input is one document: its end is held out");
    put("a.txt", "one line only");
    assert_int_equal(RUN(in_dir("a.txt"), "--val-fraction=0.5", "--overwrite=true"), 2);
    expect_said("single document without a line break");
}

static void test_val_file(void **state)
{
    (void)state;
    put("a.txt", "one\n\ntwo");
    put("b.txt", "three\n\nfour");
    char option[5000];
    snprintf(option, sizeof option, "--val-file=%s", in_dir("b.txt"));
    assert_int_equal(RUN(in_dir("a.txt"), option, "--document-separator=blank"), 0);
    expect_shard("out/train.bin", B "one" B "two");
    expect_shard("out/val.bin", B "three" B "four");
}

/* ---- tokenizers and sizes ------------------------------------------------------------------------- */

static void test_learned_tokenizer_leaves_the_held_out_side_alone(void **state)
{
    (void)state;
    put_documents("a.txt", "\n");
    assert_int_equal(RUN(in_dir("a.txt"), "--tokenizer=train:300", "--document-separator=blank"), 0);
    expect_said("byte-level BPE, learned, 300 tokens");
    char *train = decode("out/train.bin");
    assert_non_null(strstr(train, B "document 7\nhas number 7" B));
    free(train);

    char option[5000];
    snprintf(option, sizeof option, "--tokenizer=%s", in_dir("out/tokenizer.json"));
    char *before = read_back("out/tokenizer.json");
    assert_int_equal(rename(in_dir("out"), in_dir("old")), 0);
    snprintf(option, sizeof option, "--tokenizer=%s", in_dir("old/tokenizer.json"));
    assert_int_equal(RUN(in_dir("a.txt"), option, "--document-separator=blank"), 0);
    char *after = read_back("out/tokenizer.json");
    assert_string_equal(before, after);
    free(before);
    free(after);

    put("b.txt", "abab");
    assert_int_equal(RUN(in_dir("b.txt"), "--tokenizer=train:1000", "--val-fraction=0", "--overwrite=true"),
                     0);
    expect_said("no more pairs that occur twice: 259 tokens instead of 1000");
}

/* Long documents go through several threads in pieces: the ids are those of the whole. */
static void test_long_documents(void **state)
{
    (void)state;
    size_t lines = 120000, length = 0;
    char  *text  = malloc(lines * 30);
    for (size_t i = 0; i < lines; i++)
        length += (size_t)sprintf(text + length, "line %zu is  here\n%s", i, i % 7 ? "" : "\n  ");
    FILE *file = fopen(in_dir("a.txt"), "wb");
    fwrite(text, 1, length, file);
    fclose(file);
    assert_int_equal(RUN(in_dir("a.txt"), "--tokenizer=tests/fixtures/tokenizer/ranks.tiktoken",
                         "--val-fraction=0", "--dtype=u16"),
                     0);
    Errors     errors    = { 0 };
    Tokenizer *tokenizer = tokenizer_load("tests/fixtures/tokenizer/ranks.tiktoken", &errors);
    ShardSet  *set       = shards_open(in_dir("out/train.bin"), SHARD_U16, 0, &errors);
    IdBuffer   whole     = { 0 };
    tokenizer_encode(tokenizer, text, length, false, &whole);
    assert_int_equal(set->tokens, whole.count + 1);
    assert_int_equal(set->boundary, tokenizer_bos(tokenizer));
    for (int64_t i = 0; i < whole.count; i++)
        assert_int_equal(shard_token(&set->shards[0], i + 1), whole.ids[i]);
    id_buffer_free(&whole);
    shards_close(set);
    tokenizer_free(tokenizer);
    free(text);
}

static void test_several_shards(void **state)
{
    (void)state;
    put("a.txt", "one\n\ntwo\n\nthree\n\nfour");
    assert_int_equal(
        RUN(in_dir("a.txt"), "--document-separator=blank", "--val-fraction=0", "--shard-tokens=6"), 0);
    expect_shard("out/train_00000.bin", B "one" B "two");
    expect_shard("out/train_00001.bin", B "three");
    expect_shard("out/train_00002.bin", B "four");
    expect_shard("out/train_*.bin", B "one" B "two" B "three" B "four");
    assert_false(exists("out/train_00003.bin"));
    /* Fewer files the next time: the old ones are gone. */
    assert_int_equal(
        RUN(in_dir("a.txt"), "--document-separator=blank", "--val-fraction=0", "--overwrite=true"), 0);
    assert_false(exists("out/train_00000.bin"));
    assert_true(exists("out/train.bin"));
}

/* ---- refusals ------------------------------------------------------------------------------------- */

static void test_options(void **state)
{
    (void)state;
    put("a.txt", "one\ntwo\n");
    assert_int_equal(RUN(in_dir("a.txt"), "--tokeniser=bytes", "--frobnicate", "--bos=yes", "--seed=-1",
                         "--dtype=u8", "--val-fraction=1", "--shard-tokens=1k", "--tokenizer=train:10",
                         "--eos", "--format="),
                     2);
    expect_said("unknown argument \"--tokeniser=bytes\"; did you mean \"--tokenizer\"?");
    expect_said("unknown argument \"--frobnicate\"; see --help");
    expect_said("--eos needs a value: --eos=VALUE");
    expect_said("--format needs a value: --format=VALUE");
    assert_false(exists("out"));
    assert_int_equal(RUN(in_dir("a.txt"), "--bos=yes", "--seed=-1", "--dtype=u8", "--val-fraction=1",
                         "--shard-tokens=1k", "--tokenizer=train:10"), 2);
    expect_said("--bos=yes: expected one of false, true");
    expect_said("--seed=-1: expected a whole number, 0 or more");
    expect_said("--dtype=u8: expected one of u32, u16");
    expect_said("--val-fraction=1: expected a number from 0 to below 1");
    expect_said("--shard-tokens=1k: expected a whole number");
    expect_said("--tokenizer=train:10: expected a whole number, 259 or more");
    assert_int_equal(run((const char *const[1]){ NULL }), 2);
    expect_said("what it works on is missing");
    assert_int_equal(RUN("--help"), 0);
    expect_said("usage: ./train tokenize INPUT... --out=DIR");
}

static void test_inputs_are_refused(void **state)
{
    (void)state;
    assert_int_equal(RUN(in_dir("none.txt"), in_dir("none too")), 2);
    expect_said("none.txt: No such file");
    expect_said("none too: No such file");
    mkfifo(in_dir("pipe"), 0666);
    assert_int_equal(RUN(in_dir("pipe")), 2);
    expect_said("pipe: not a regular file (use - to read a pipe)");
    mkdir(in_dir("empty"), 0777);
    assert_int_equal(RUN(in_dir("empty")), 2);
    expect_said("empty: no text in the input");
    put("a.txt", "one\ntwo\n");
    assert_int_equal(RUN(in_dir("a.txt"), "--tokenizer=/no/such.json"), 2);
    expect_said("/no/such.json: cannot open");
    assert_false(exists("out"));
    put("out", "a file");
    assert_int_equal(RUN(in_dir("a.txt")), 2);
    expect_said("out");
}

/* The old result stays whole when the new one fails, and nothing else is left. */
static void test_failure_leaves_nothing(void **state)
{
    (void)state;
    put("a.txt", "one\ntwo\nthree\n");
    assert_int_equal(RUN(in_dir("a.txt"), "--val-fraction=0"), 0);
    assert_int_equal(RUN(in_dir("a.txt"), "--val-fraction=0"), 2);
    expect_said("out: holds the result of an earlier call; --overwrite=true replaces it");
    assert_int_equal(RUN(in_dir("none.txt"), "--val-fraction=0"), 2);
    expect_said("out: holds the result of an earlier call; --overwrite=true replaces it");
    expect_said("none.txt: No such file");

    FILE *file = fopen(in_dir("b.txt"), "wb");
    for (int i = 0; i < 30000; i++)
        fprintf(file, "line %d\n", i);
    fclose(file);
    struct rlimit old;
    getrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 100000, old.rlim_max });
    int code = RUN(in_dir("b.txt"), "--val-fraction=0", "--overwrite=true");
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(code, 1);
    expect_said("cannot be written");
    expect_shard("out/train.bin", B "one\ntwo\nthree\n");
    assert_false(exists("out/.tokenize.tmp"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_dir, remove_dir)
        TEST(test_documents_by_separator), TEST(test_files_directories_and_stdin), TEST(test_jsonl),
        TEST(test_bad_jsonl), TEST(test_held_out_by_documents), TEST(test_few_documents),
        TEST(test_one_document_is_cut_at_a_line), TEST(test_val_file),
        TEST(test_learned_tokenizer_leaves_the_held_out_side_alone), TEST(test_long_documents),
        TEST(test_several_shards), TEST(test_options), TEST(test_inputs_are_refused),
        TEST(test_failure_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
