/* Tokenizers against the tokenizers and tiktoken libraries (tests/fixtures/tokenizer, written by
 * scripts/make_tokenizer_fixtures.py), and against naive formulations of merging and of learning. */
#include "data/split.h"
#include "data/tokenizer.h"
#include "data/tokenizer_parts.h"
#include "model/files.h"
#include "tests/temporary.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <cjson/cJSON.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FIXTURES "tests/fixtures/tokenizer/"

static char *read_text(const char *path, size_t *length)
{
    Errors errors = { 0 };
    char  *text   = files_read(path, length, &errors);
    errors_print(&errors, stderr);
    assert_non_null(text);
    return text;
}

static Tokenizer *load(const char *path)
{
    Errors     errors    = { 0 };
    Tokenizer *tokenizer = tokenizer_load(path, &errors);
    errors_print(&errors, stderr);
    assert_non_null(tokenizer);
    return tokenizer;
}

static cJSON *load_cases(void)
{
    size_t length;
    char  *text  = read_text(FIXTURES "cases.json", &length);
    cJSON *cases = cJSON_Parse(text);
    free(text);
    assert_true(cJSON_GetArraySize(cases) > 100);
    return cases;
}

/* The text of a case; caller frees. */
static char *case_text(const cJSON *item, size_t *length)
{
    const char *hex = cJSON_GetObjectItem(item, "text")->valuestring;
    *length = strlen(hex) / 2;
    char *text = malloc(*length + 1);
    for (size_t i = 0; i < *length; i++) {
        char pair[3] = { hex[2 * i], hex[2 * i + 1], 0 };
        text[i] = (char)strtol(pair, NULL, 16);
    }
    return text;
}

/* ---- against the libraries ------------------------------------------------------------------------ */

static void test_words_as_the_library_splits(void **state)
{
    (void)state;
    cJSON   *cases = load_cases(), *item;
    uint8_t *classes = split_make_classes();
    cJSON_ArrayForEach(item, cases) {
        size_t length, at = 0;
        char  *text = case_text(item, &length);
        cJSON *word;
        cJSON_ArrayForEach(word, cJSON_GetObjectItem(item, "words")) {
            assert_true(at < length);
            size_t bytes = split_next(classes, text + at, length - at);
            if ((int)bytes != word->valueint)
                fail_msg("case %s, byte %zu: %zu bytes, expected %d",
                         cJSON_GetObjectItem(item, "text")->valuestring, at, bytes, word->valueint);
            at += bytes;
        }
        assert_int_equal(at, length);
        free(text);
    }
    free(classes);
    cJSON_Delete(cases);
}

/* Counted with the tokenizers library over all code points. */
static void test_code_points_by_class(void **state)
{
    (void)state;
    int64_t  count[4] = { 0 };
    uint8_t *classes = split_make_classes();
    for (int32_t point = 0; point < 0x110000; point++)
        count[classes[point]]++;
    assert_int_equal(count[SYMBOL_LETTER], 141028);
    assert_int_equal(count[SYMBOL_NUMBER], 1911);
    assert_int_equal(count[SYMBOL_SPACE], 25);
    free(classes);
}

static void expect_ids(const Tokenizer *tokenizer, const cJSON *item, const char *key, bool specials)
{
    size_t   length;
    char    *text = case_text(item, &length);
    IdBuffer out  = { 0 };
    assert_true(tokenizer_encode(tokenizer, text, length, specials, &out));
    const cJSON *ids = cJSON_GetObjectItem(item, key), *id;
    int64_t at = 0;
    cJSON_ArrayForEach(id, ids) {
        if (at >= out.count || out.ids[at] != id->valueint)
            fail_msg("case %s, %s id %lld: %d, expected %d", cJSON_GetObjectItem(item, "text")->valuestring,
                     key, (long long)at, at < out.count ? out.ids[at] : -1, id->valueint);
        at++;
    }
    assert_int_equal(at, out.count);
    id_buffer_free(&out);
    free(text);
}

static void test_ids_as_the_libraries_find(void **state)
{
    (void)state;
    Tokenizer *pairs = load(FIXTURES "pairs.json"), *strings = load(FIXTURES "strings.json");
    Tokenizer *ranks = load(FIXTURES "ranks.tiktoken"), *learned = load(FIXTURES "learned.json");
    cJSON     *cases = load_cases(), *item;
    int        changed = 0;
    cJSON_ArrayForEach(item, cases) {
        expect_ids(pairs, item, "pairs", false);
        expect_ids(pairs, item, "special", true);
        expect_ids(strings, item, "strings", false);
        expect_ids(ranks, item, "tiktoken", false);
        expect_ids(learned, item, "learned", false);
        changed +=
            !cJSON_Compare(cJSON_GetObjectItem(item, "pairs"), cJSON_GetObjectItem(item, "strings"), true);
    }
    assert_true(changed > 5);       /* ignore_merges matters in some */
    assert_int_equal(tokenizer_bos(pairs), 563);
    assert_int_equal(tokenizer_eos(pairs), 564);
    assert_int_equal(tokenizer_vocab(pairs), 566);
    assert_int_equal(tokenizer_bos(ranks), 560);
    assert_int_equal(tokenizer_eos(ranks), 561);
    assert_int_equal(tokenizer_vocab(ranks), 560 + 256);
    size_t length;
    assert_string_equal(tokenizer_decode(ranks, 560 + 9, &length), "<|eot_id|>");
    assert_string_equal(tokenizer_decode(ranks, 560 + 255, &length), "<|reserved_special_token_250|>");
    cJSON_Delete(cases);
    tokenizer_free(pairs);
    tokenizer_free(strings);
    tokenizer_free(ranks);
    tokenizer_free(learned);
}

/* ---- any bytes ------------------------------------------------------------------------------------ */

static void expect_round_trip(const Tokenizer *tokenizer, const char *text, size_t length)
{
    IdBuffer out = { 0 };
    assert_true(tokenizer_encode(tokenizer, text, length, false, &out));
    int32_t *bytes = malloc((size_t)tokenizer_vocab(tokenizer) * sizeof *bytes);
    tokenizer_token_bytes(tokenizer, bytes);
    size_t at = 0, part;
    for (int64_t i = 0; i < out.count; i++) {
        const char *token = tokenizer_decode(tokenizer, out.ids[i], &part);
        assert_true(at + part <= length && !memcmp(token, text + at, part));
        assert_int_equal(bytes[out.ids[i]], part);
        at += part;
    }
    assert_int_equal(at, length);
    free(bytes);
    id_buffer_free(&out);
}

static void test_any_bytes_come_back(void **state)
{
    (void)state;
    Tokenizer *all[4] = { load("bytes"), load(FIXTURES "pairs.json"), load(FIXTURES "strings.json"),
                          load(FIXTURES "ranks.tiktoken") };
    static const char *const broken[] = {
        "\xff\xfe",      "\xc3",         "a\xc3(",           "\xe2\x82", "\xe2\x82 \xac",
        "\xed\xa0\x80x", "\xf0\x9f\x91", "\xf5\x80\x80\x80", "\xc0\xaf", "\xf4\x90\x80\x80",
        "\x80 \x80"
    };
    srand(3);
    for (int t = 0; t < 4; t++) {
        for (size_t b = 0; b < sizeof broken / sizeof *broken; b++)
            expect_round_trip(all[t], broken[b], strlen(broken[b]));
        for (int round = 0; round < 200; round++) {
            char   text[300];
            size_t length = (size_t)rand() % sizeof text;
            for (size_t i = 0; i < length; i++)
                text[i] = (char)(round % 2 ? rand() : " ab'\n1\xc3\xa9"[rand() % 8]);
            expect_round_trip(all[t], text, length);
        }
        tokenizer_free(all[t]);
    }
}

static void test_bytes(void **state)
{
    (void)state;
    Tokenizer *tokenizer = load("bytes");
    IdBuffer   out       = { 0 };
    assert_true(tokenizer_encode(tokenizer, "a\0\xff<|end_of_text|>", 18, true, &out));
    const int32_t ids[4] = { 'a', 0, 255, 257 };
    assert_int_equal(out.count, 4);
    assert_memory_equal(out.ids, ids, sizeof ids);
    assert_int_equal(tokenizer_vocab(tokenizer), 258);
    assert_int_equal(tokenizer_bos(tokenizer), 256);
    size_t length;
    assert_null(tokenizer_decode(tokenizer, 258, &length));
    assert_int_equal(length, 0);
    id_buffer_free(&out);
    tokenizer_free(tokenizer);
}

/* ---- merging against the definition --------------------------------------------------------------- */

/* Merges a word by looking for the lowest rank from the left, again and again. */
static int64_t merge_naive(const Tokenizer *tokenizer, const char *text, size_t length, int32_t *ids)
{
    int64_t count = (int64_t)length;
    for (int64_t i = 0; i < count; i++)
        ids[i] = tokenizer->byte_ids[(uint8_t)text[i]];
    for (;;) {
        const Merge *best = NULL;
        int64_t      at   = 0;
        for (int64_t i = 0; i + 1 < count; i++)
            for (int64_t m = 0; m < tokenizer->merge_count && (!best || m < best->rank); m++)
                if (tokenizer->merges[m].left == ids[i] && tokenizer->merges[m].right == ids[i + 1]) {
                    best = &tokenizer->merges[m];
                    at   = i;
                }
        if (!best)
            return count;
        ids[at] = best->merged;
        memmove(ids + at + 1, ids + at + 2, (size_t)(count - at - 2) * sizeof *ids);
        count--;
    }
}

static void test_merges_in_order(void **state)
{
    (void)state;
    Tokenizer *tokenizer = load(FIXTURES "strings.json");
    srand(8);
    for (int round = 0; round < 300; round++) {
        char    word[40];
        int32_t naive[40];
        size_t  length = 2 + (size_t)rand() % 38;
        for (size_t i = 0; i < length; i++)
            word[i] = "etaoinshrd"[rand() % 10];
        IdBuffer out = { 0 };
        assert_true(tokenizer_encode(tokenizer, word, length, false, &out));
        assert_int_equal(out.count, merge_naive(tokenizer, word, length, naive));
        assert_memory_equal(out.ids, naive, (size_t)out.count * sizeof *naive);
        id_buffer_free(&out);
    }
    tokenizer_free(tokenizer);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* FNV-1a over whole ids, as 16 digits. */
static void hash_ids(const IdBuffer *ids, char hash[17])
{
    uint64_t value = 0xcbf29ce484222325;
    for (int64_t i = 0; i < ids->count; i++)
        value = (value ^ (uint32_t)ids->ids[i]) * 0x100000001b3;
    snprintf(hash, 17, "%016llx", (unsigned long long)value);
}

/* A megabyte without a space, against the libraries; quadratic merging would take hours. */
static void test_long_words(void **state)
{
    (void)state;
    static const char *const keys[]  = { "pairs", "strings", "tiktoken" };
    static const char *const units[] = { NULL, "-", "ferryman", "river\xe6\x88\x91\xe4\xbb\xac\xc3\xb6" };
    Tokenizer *tokenizers[] = { load(FIXTURES "pairs.json"), load(FIXTURES "strings.json"),
                                load(FIXTURES "ranks.tiktoken") };
    size_t     json_length;
    char      *text = malloc(1 << 20), *json = read_text(FIXTURES "long.json", &json_length), hash[17];
    cJSON     *cases = cJSON_Parse(json);
    double     begun = seconds();
    assert_int_equal(cJSON_GetArraySize(cases), 4);
    for (int kind = 0; kind < 4; kind++) {
        size_t unit = units[kind] ? strlen(units[kind]) : 1, length = (1 << 20) / unit * unit;
        for (size_t i = 0; i < length; i++)
            text[i] = units[kind] ? units[kind][i % unit] : "etaoinshrd"[i * 2654435761u % 1000003 % 10];
        for (int t = 0; t < 3; t++) {
            const cJSON *expected = cJSON_GetObjectItem(cJSON_GetArrayItem(cases, kind), keys[t]);
            IdBuffer     out      = { 0 };
            assert_true(tokenizer_encode(tokenizers[t], text, length, false, &out));
            assert_int_equal(out.count, cJSON_GetObjectItem(expected, "count")->valueint);
            hash_ids(&out, hash);
            assert_string_equal(hash, cJSON_GetObjectItem(expected, "hash")->valuestring);
            id_buffer_free(&out);
        }
    }
    assert_true(seconds() - begun < 60);
    for (int t = 0; t < 3; t++)
        tokenizer_free(tokenizers[t]);
    cJSON_Delete(cases);
    free(json);
    free(text);
}

/* One encoder for many texts gives what fresh ones give, cached words and all. */
static void test_encoder_keeps_nothing_wrong(void **state)
{
    (void)state;
    Tokenizer *tokenizer = load(FIXTURES "pairs.json");
    Encoder   *encoder   = encoder_create(tokenizer);
    cJSON     *cases     = load_cases(), *item;
    for (int pass = 0; pass < 2; pass++)
        cJSON_ArrayForEach(item, cases) {
            size_t   length;
            char    *text = case_text(item, &length);
            IdBuffer kept = { 0 }, fresh = { 0 };
            assert_true(encoder_encode(encoder, text, length, pass, &kept));
            assert_true(tokenizer_encode(tokenizer, text, length, pass, &fresh));
            assert_int_equal(kept.count, fresh.count);
            if (kept.count)
                assert_memory_equal(kept.ids, fresh.ids, (size_t)kept.count * 4);
            id_buffer_free(&kept);
            id_buffer_free(&fresh);
            free(text);
        }
    cJSON_Delete(cases);
    encoder_free(encoder);
    tokenizer_free(tokenizer);
}

/* Text encoded in two parts, cut where the tokenizer says, gives the ids of the whole. */
static void test_safe_cuts(void **state)
{
    (void)state;
    Tokenizer *tokenizer = load(FIXTURES "pairs.json");
    cJSON     *cases     = load_cases(), *item;
    int        cuts      = 0;
    cJSON_ArrayForEach(item, cases) {
        size_t   length;
        char    *text  = case_text(item, &length);
        IdBuffer whole = { 0 };
        tokenizer_encode(tokenizer, text, length, false, &whole);
        for (size_t cut = 0; (cut = tokenizer_safe_cut(tokenizer, text, cut + 1, length)) < length; cuts++) {
            IdBuffer parts = { 0 };
            tokenizer_encode(tokenizer, text, cut, false, &parts);
            tokenizer_encode(tokenizer, text + cut, length - cut, false, &parts);
            assert_int_equal(parts.count, whole.count);
            assert_memory_equal(parts.ids, whole.ids, (size_t)whole.count * 4);
            id_buffer_free(&parts);
        }
        id_buffer_free(&whole);
        free(text);
    }
    assert_true(cuts > 100);
    cJSON_Delete(cases);
    tokenizer_free(tokenizer);
}

/* ---- learning ------------------------------------------------------------------------------------- */

#define NAIVE_WORDS 4000

/* Learns by counting every pair anew at each step; ids by bytes' identity as the trainer says. */
static void expect_learned_naively(const Tokenizer *learned, const char *text, size_t length)
{
    static int32_t ids[NAIVE_WORDS][260];
    static int     lengths[NAIVE_WORDS];
    static int     counts[700][700];
    uint8_t *classes = split_make_classes();
    int      words = 0;
    for (size_t at = 0, bytes; at < length; at += bytes, words++) {
        bytes = split_next(classes, text + at, length - at);
        assert_true(words < NAIVE_WORDS && bytes < 256);
        lengths[words] = (int)bytes;
        for (size_t i = 0; i < bytes; i++)
            ids[words][i] = (uint8_t)text[at + i];
    }
    for (int64_t m = 0; m < learned->merge_count; m++) {
        memset(counts, 0, sizeof counts);
        for (int w = 0; w < words; w++)
            for (int i = 0; i + 1 < lengths[w]; i++)
                counts[ids[w][i]][ids[w][i + 1]]++;
        int left = 0, right = 0;
        for (int a = 0; a < 700; a++)
            for (int b = 0; b < 700; b++)
                if (counts[a][b] > counts[left][right]) {
                    left  = a;
                    right = b;
                }
        const Merge *merge = &learned->merges[m];
        assert_int_equal(merge->left, left);
        assert_int_equal(merge->right, right);
        for (int w = 0; w < words; w++) {
            int to = 0;
            for (int i = 0; i < lengths[w]; i++) {
                bool here = i + 1 < lengths[w] && ids[w][i] == left && ids[w][i + 1] == right;
                ids[w][to++] = here ? merge->merged : ids[w][i];
                i += here;
            }
            lengths[w] = to;
        }
    }
    free(classes);
}

/* Words of few letters, so that many counts are equal and pairs overlap. */
static char *babble(size_t length)
{
    char *text = malloc(length);
    srand(21);
    for (size_t i = 0; i < length; i++)
        text[i] = "aaaaabbbb \n"[rand() % 11];
    return text;
}

static void test_learns_by_the_definition(void **state)
{
    (void)state;
    Errors   errors = { 0 };
    char    *text   = babble(8000);
    TextSpan spans[2] = { { text, 5000 }, { text + 5000, 3000 } };
    Tokenizer *learned = tokenizer_train(spans, 1, 500, &errors);
    assert_non_null(learned);
    assert_true(learned->merge_count > 150);
    expect_learned_naively(learned, text, 5000);

    assert_int_equal(tokenizer_bos(learned), tokenizer_vocab(learned) - 2);
    tokenizer_free(learned);

    /* The same from one thread and many, from one text and from its parts (cut between words). */
    uint64_t fingerprint = 0;
    for (int threads = 1; threads <= 4; threads += 3) {
        omp_set_num_threads(threads);
        learned = tokenizer_train(spans, 2, 400, &errors);
        assert_true(threads == 1 || fingerprint == tokenizer_fingerprint(learned));
        fingerprint = tokenizer_fingerprint(learned);
        tokenizer_free(learned);
    }
    omp_set_num_threads(2);
    free(text);
}

static void test_learning_ends_with_the_text(void **state)
{
    (void)state;
    Errors     errors = { 0 };
    TextSpan   spans[2] = { { "abc", 3 }, { "", 0 } };
    Tokenizer *learned = tokenizer_train(spans, 2, 1000, &errors);
    assert_int_equal(tokenizer_vocab(learned), 258);
    tokenizer_free(learned);
    spans[1] = (TextSpan){ "abd", 3 };
    learned = tokenizer_train(spans, 2, 1000, &errors);
    assert_int_equal(tokenizer_vocab(learned), 259);
    IdBuffer out = { 0 };
    tokenizer_encode(learned, "abab", 4, false, &out);
    assert_int_equal(out.count, 2);
    assert_int_equal(out.ids[0], 256);
    id_buffer_free(&out);
    tokenizer_free(learned);
}

/* The file that the library has read, byte for byte. */
static void test_learns_the_file_that_was_verified(void **state)
{
    (void)state;
    size_t     length, saved_length, expected_length;
    char      *dir  = temporary_make(), *path = files_join(dir, "learned.json");
    char      *text = read_text(FIXTURES "learned.txt", &length);
    Errors     errors  = { 0 };
    TextSpan   span    = { text, length };
    Tokenizer *learned = tokenizer_train(&span, 1, 340, &errors);
    assert_true(tokenizer_save(learned, path, &errors));
    char *saved = read_text(path, &saved_length),
         *expected = read_text(FIXTURES "learned.json", &expected_length);
    assert_int_equal(saved_length, expected_length);
    assert_memory_equal(saved, expected, saved_length);
    free(saved);
    free(expected);
    free(text);
    free(path);
    tokenizer_free(learned);
    temporary_remove(dir);
}

static void test_saved_and_loaded_is_the_same(void **state)
{
    (void)state;
    char      *dir = temporary_make(), *path = files_join(dir, "tokenizer.json"), *text = babble(20000);
    Errors     errors = { 0 };
    TextSpan   span   = { text, 20000 };
    Tokenizer *all[4] = { tokenizer_train(&span, 1, 420, &errors), load("bytes"),
                          load(FIXTURES "strings.json"), load(FIXTURES "ranks.tiktoken") };
    for (int t = 0; t < 4; t++) {
        assert_true(tokenizer_save(all[t], path, &errors));
        Tokenizer *loaded = load(t % 2 ? dir : path);
        assert_true(tokenizer_fingerprint(loaded) == tokenizer_fingerprint(all[t]));
        assert_int_equal(tokenizer_bos(loaded), tokenizer_bos(all[t]));
        IdBuffer before = { 0 }, after = { 0 };
        tokenizer_encode(all[t], text, 20000, false, &before);
        tokenizer_encode(loaded, text, 20000, false, &after);
        assert_int_equal(before.count, after.count);
        assert_memory_equal(before.ids, after.ids, (size_t)before.count * 4);
        id_buffer_free(&before);
        id_buffer_free(&after);
        tokenizer_free(loaded);
        tokenizer_free(all[t]);
    }
    char *nowhere = files_join(dir, "no/such/dir.json");
    Tokenizer *bytes = load("bytes");
    assert_false(tokenizer_save(bytes, nowhere, &errors));
    assert_int_equal(errors.count, 1);
    errors_free(&errors);
    tokenizer_free(bytes);
    free(nowhere);
    free(text);
    free(path);
    temporary_remove(dir);
}

/* ---- refusals ------------------------------------------------------------------------------------- */

/* Loads `text` from a file; exactly one error with these words. */
static void expect_refused(const char *text, const char *words)
{
    char  *dir = temporary_make(), *path = files_join(dir, "t.json");
    Errors errors = { 0 };
    assert_true(files_replace(path, text, strlen(text), &errors));
    assert_null(tokenizer_load(path, &errors));
    if (errors.count != 1)
        errors_print(&errors, stderr);
    assert_int_equal(errors.count, 1);
    if (!strstr(errors.text[0], words) || !strstr(errors.text[0], path))
        fail_msg("\"%s\" does not say \"%s\"", errors.text[0], words);
    errors_free(&errors);
    free(path);
    temporary_remove(dir);
}

/* The good file with one piece of text replaced. */
static void expect_change_refused(const char *from, const char *to, const char *words)
{
    size_t length;
    char  *good = read_text(FIXTURES "pairs.json", &length), *at = strstr(good, from);
    assert_non_null(at);
    char  *text = malloc(length + strlen(to) + 1);
    memcpy(text, good, (size_t)(at - good));
    strcpy(text + (at - good), to);
    strcat(text, at + strlen(from));
    expect_refused(text, words);
    free(text);
    free(good);
}

static void test_refuses_other_pipelines(void **state)
{
    (void)state;
    expect_change_refused("\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}",
                          "normalizer NFC is not supported");
    expect_change_refused("\"padding\": null", "\"padding\": {}", "padding is not supported");
    expect_change_refused("\"truncation\": null", "\"truncation\": {}", "truncation is not supported");
    expect_change_refused("\"type\": \"Sequence\"", "\"type\": \"Whitespace\"",
                          "pre_tokenizer Whitespace is not supported");
    expect_change_refused("\"use_regex\": false", "\"use_regex\": true", "expected Llama 3's: a Sequence");
    expect_change_refused("\"add_prefix_space\": false", "\"add_prefix_space\": true",
                          "expected Llama 3's: a Sequence");
    expect_change_refused("{1,3}", "", "pre_tokenizer splits by");
    expect_change_refused("\"Isolated\"", "\"Removed\"", "behavior Isolated");
    expect_change_refused("\"decoder\": {\"type\": \"ByteLevel\"", "\"decoder\": {\"type\": \"Fuse\"",
                          "decoder Fuse is not supported");
    expect_change_refused("\"type\": \"BPE\"", "\"type\": \"Unigram\"", "model Unigram is not supported");
    expect_change_refused("\"dropout\": null", "\"dropout\": 0.1", "model.dropout");
    expect_change_refused("\"byte_fallback\": false", "\"byte_fallback\": true", "model.byte_fallback");
    expect_change_refused("\"end_of_word_suffix\": null", "\"end_of_word_suffix\": \"</w>\"",
                          "model.end_of_word_suffix");
    expect_change_refused("\"continuing_subword_prefix\": null", "\"continuing_subword_prefix\": \"##\"",
                          "model.continuing_subword_prefix");
    expect_change_refused("\"lstrip\": false", "\"lstrip\": true", "has lstrip, which is not supported");
    expect_change_refused("\"single_word\": false", "\"single_word\": true", "has single_word");
}

static void test_refuses_damage(void **state)
{
    (void)state;
    expect_change_refused("\"a\": ", "\"a\": -", "model.vocab[\"a\"] is not an id");
    expect_change_refused("\"a\": ", "\"a\": 0.5, \"zz\": ", "model.vocab[\"a\"] is not an id");
    expect_change_refused("\"a\": ", "\"a\": 0, \"zz\": ", "has id 0, which another token has too");
    expect_change_refused("\"a\": ", "\"a a\": ", "is not written in the byte alphabet");
    expect_change_refused("\"a\": ", "\"\xe2\x82\xac\": ", "is not written in the byte alphabet");
    expect_change_refused("\"\xc4\x80\": ", "\"zzz\": ", "byte 0 has no token"); /* U+0100 stands for NUL */
    expect_change_refused("\"merges\": [", "\"merges\": [[\"a\", \"q\"], ",
                          "model.merges[0] is not a pair of tokens");
    expect_change_refused("\"merges\": [", "\"merges\": [\"ab\", ",
                          "model.merges[0] is not a pair of tokens");
    expect_change_refused("\"merges\": [", "\"merges\": [3, ", "model.merges[0]");
    expect_change_refused("\"id\": 563", "\"id\": 564", "both have id 564");
    expect_change_refused("\"id\": 563", "\"id\": 99999999", "added_tokens has no id");
    expect_change_refused("\"version\"", "version", "not JSON");
    expect_change_refused("\"vocab\"", "\"words\"", "model.vocab must be an object");
    expect_refused("{} x", "not JSON");
    expect_refused("", "empty");
}

static void test_refuses_bad_ranks(void **state)
{
    (void)state;
    expect_refused("YQ== 0\nhello\n", "t.json:2: neither");
    expect_refused("YQ== 0\nYg== x\n", ":2: neither");
    expect_refused("YQ== 0\nYg== 0\n", "rank 0 stands on two lines");
    expect_refused("YQ== 0\nY*== 1\n", "rank 1 has no token in base64");
    expect_refused("YQ== 0\n 1\n", "rank 1 has no token in base64");
    expect_refused("YQ== 0\nYg== 1\n", "byte 0 has no token");
    expect_refused("YQ== 0\nYg== 99999999999\n", ":2: neither");
    Errors errors = { 0 };
    char  *dir    = temporary_make();
    assert_null(tokenizer_load(dir, &errors));
    assert_non_null(strstr(errors.text[0], "holds neither tokenizer.json nor tokenizer.model"));
    assert_null(tokenizer_load("/no/such/file", &errors));
    assert_int_equal(errors.count, 2);
    errors_free(&errors);
    temporary_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words_as_the_library_splits),
        cmocka_unit_test(test_code_points_by_class),
        cmocka_unit_test(test_ids_as_the_libraries_find),
        cmocka_unit_test(test_any_bytes_come_back),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_merges_in_order),
        cmocka_unit_test(test_long_words),
        cmocka_unit_test(test_encoder_keeps_nothing_wrong),
        cmocka_unit_test(test_safe_cuts),
        cmocka_unit_test(test_learns_by_the_definition),
        cmocka_unit_test(test_learning_ends_with_the_text),
        cmocka_unit_test(test_learns_the_file_that_was_verified),
        cmocka_unit_test(test_saved_and_loaded_is_the_same),
        cmocka_unit_test(test_refuses_other_pipelines),
        cmocka_unit_test(test_refuses_damage),
        cmocka_unit_test(test_refuses_bad_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
