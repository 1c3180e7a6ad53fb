/* Token files: what is read, what is written, and the one clear line that each kind of bad file gets. Files
 * are made here byte by byte, not by the writer, except where the writer is the subject. */
#include "data/megatron.h"
#include "data/shards.h"
#include "model/files.h"
#include "tests/temporary.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* dir/name in a buffer of its own; the last four results stay valid. */
static const char *in_dir(const char *name)
{
    static char path[4][4096];
    static int  next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", dir, name);
    return path[next];
}

static const char *put(const char *name, const void *head, size_t head_bytes, const void *body,
                       size_t body_bytes)
{
    const char *path = in_dir(name);
    FILE       *file = fopen(path, "wb");
    assert_non_null(file);
    if (head)
        assert_int_equal(fwrite(head, 1, head_bytes, file), head_bytes);
    if (body)
        assert_int_equal(fwrite(body, 1, body_bytes, file), body_bytes);
    fclose(file);
    return path;
}

/* A file with a header as other tools write it. */
static const char *put_shard(const char *name, int32_t magic, int32_t version, int32_t count, const void *ids,
                             size_t bytes)
{
    int32_t header[256] = { magic, version, count };
    return put(name, header, sizeof header, ids, bytes);
}

static void expect_opens(const char *patterns, ShardDtype dtype, int64_t vocab, const int32_t *ids,
                         int64_t count)
{
    Errors    errors = { 0 };
    ShardSet *set    = shards_open(patterns, dtype, vocab, &errors);
    errors_print(&errors, stderr);
    assert_non_null(set);
    assert_int_equal(errors.count, 0);
    assert_int_equal(set->tokens, count);
    int64_t at = 0;
    for (int s = 0; s < set->count; s++)
        for (int64_t i = 0; i < set->shards[s].count; i++)
            assert_int_equal(shard_token(&set->shards[s], i), ids[at++]);
    assert_int_equal(at, count);
    shards_close(set);
}

/* Exactly one line, with all of the words (a list that ends in NULL). */
static void expect_refused(const char *patterns, ShardDtype dtype, int64_t vocab, ...)
{
    Errors errors = { 0 };
    assert_null(shards_open(patterns, dtype, vocab, &errors));
    if (errors.count != 1)
        errors_print(&errors, stderr);
    assert_int_equal(errors.count, 1);
    assert_null(strchr(errors.text[0], '\n'));
    va_list words;
    va_start(words, vocab);
    for (const char *word; (word = va_arg(words, const char *));)
        if (!strstr(errors.text[0], word))
            fail_msg("\"%s\" does not say \"%s\"", errors.text[0], word);
    va_end(words);
    errors_free(&errors);
}

static const uint16_t narrow[5] = { 3, 1, 4, 65535, 9 };
static const uint32_t wide[5]   = { 3, 1, 4, 128255, 9 };
static const int32_t  narrow_ids[5] = { 3, 1, 4, 65535, 9 }, wide_ids[5] = { 3, 1, 4, 128255, 9 };

static void test_reads_all_forms(void **state)
{
    (void)state;
    expect_opens(put_shard("a.bin", 20240520, 1, 5, narrow, 10), SHARD_AUTO, 65536, narrow_ids, 5);
    expect_opens(put_shard("b.bin", 20240801, 7, 5, wide, 20), SHARD_AUTO, 128256, wide_ids, 5);
    expect_opens(in_dir("b.bin"), SHARD_U32, 0, wide_ids, 5);
    expect_opens(put("c.bin", NULL, 0, narrow, 10), SHARD_U16, 65536, narrow_ids, 5);
    expect_opens(put("d.bin", NULL, 0, wide, 20), SHARD_U32, 128256, wide_ids, 5);
}

static void test_patterns(void **state)
{
    (void)state;
    static const uint16_t one[1] = { 1 }, two[2] = { 2, 2 };
    static const int32_t  all[3] = { 1, 2, 2 }, turned[3] = { 2, 2, 1 };
    put_shard("x1.bin", 20240520, 1, 1, one, 2);
    put_shard("x2.bin", 20240520, 1, 2, two, 4);
    char patterns[9000];
    expect_opens(in_dir("x?.bin"), SHARD_AUTO, 10, all, 3);
    snprintf(patterns, sizeof patterns, "%s,%s", in_dir("x2.bin"), in_dir("x1.b*"));
    expect_opens(patterns, SHARD_AUTO, 10, turned, 3);
    snprintf(patterns, sizeof patterns, "%s,%s", in_dir("x1.bin"), in_dir("x[1].bin"));
    expect_refused(patterns, SHARD_AUTO, 10, "x1.bin", "named twice", NULL);
    expect_refused(in_dir("none*.bin"), SHARD_AUTO, 10, "none*.bin", "no file matches", NULL);
    expect_refused(in_dir("none.bin"), SHARD_AUTO, 10, "none.bin", "no such file", NULL);
    expect_refused("", SHARD_AUTO, 10, "names no token file", "./train tokenize", NULL);
}

static void test_every_bad_file_gets_its_line(void **state)
{
    (void)state;
    put_shard("a.bin", 20240520, 1, 5, narrow, 8);
    put_shard("b.bin", 20240801, 7, 9, wide, 20);
    char patterns[9000];
    snprintf(patterns, sizeof patterns, "%s,%s", in_dir("a.bin"), in_dir("b.bin"));
    Errors errors = { 0 };
    assert_null(shards_open(patterns, SHARD_AUTO, 0, &errors));
    assert_int_equal(errors.count, 2);
    errors_free(&errors);
}

static void test_wrong_headers(void **state)
{
    (void)state;
    expect_refused(put_shard("m.bin", 12345, 1, 5, narrow, 10), SHARD_AUTO, 0, "m.bin", "magic 12345",
                   "byte 0", "20240520", "20240801", "./train tokenize", "llm.c", "data.dtype", NULL);
    expect_refused(put_shard("m.bin", 20240522, 1, 5, narrow, 10), SHARD_AUTO, 0, "evaluation file", NULL);
    expect_refused(put_shard("m.bin", 20240326, 3, 5, narrow, 10), SHARD_AUTO, 0, "model checkpoint", NULL);
    expect_refused(put_shard("m.bin", (int32_t)__builtin_bswap32(20240520), 1, 5, narrow, 10), SHARD_AUTO, 0,
                   "big-endian", NULL);
    expect_refused(put("m.bin", "BIN.TOK\n", 8, (char[2000]){ 0 }, 2000), SHARD_AUTO, 0, "LLMQ", NULL);
    expect_refused(put_shard("v.bin", 20240801, 1, 5, wide, 20), SHARD_AUTO, 0, "version 1", "byte 4",
                   "expected 7", NULL);
    expect_refused(put_shard("v.bin", 20240520, 7, 5, narrow, 10), SHARD_AUTO, 0, "version 7", "expected 1",
                   NULL);
    expect_refused(put_shard("w.bin", 20240801, 7, 5, wide, 20), SHARD_U16, 0, "data.dtype says u16",
                   "header says u32", NULL);
}

static void test_wrong_sizes(void **state)
{
    (void)state;
    expect_refused(put_shard("t.bin", 20240801, 7, 5, wide, 19), SHARD_AUTO, 0, "t.bin",
                   "5 tokens of 4 bytes", "1044 bytes", "the file has 1043", "truncated", NULL);
    expect_refused(put_shard("t.bin", 20240520, 1, 4, narrow, 10), SHARD_AUTO, 0, "1032 bytes", "has 1034",
                   "left over", NULL);
    expect_refused(put_shard("t.bin", 20240520, 1, -1, narrow, 10), SHARD_AUTO, 0, "4294967295 tokens",
                   "truncated", NULL);
    expect_refused(put_shard("t.bin", 20240520, 1, 0, NULL, 0), SHARD_AUTO, 0, "holds no tokens", NULL);
    int32_t magic = 20240520;
    expect_refused(put("t.bin", &magic, 4, NULL, 0), SHARD_AUTO, 0, "4 bytes", "1024-byte header",
                   "truncated", NULL);
    expect_refused(put("t.bin", "abc", 3, NULL, 0), SHARD_AUTO, 0, "3 bytes", "header", "data.dtype", NULL);
    expect_refused(put("t.bin", "abc", 3, NULL, 0), SHARD_U16, 0, "3 bytes", "multiple of 2", NULL);
    expect_refused(put("t.bin", "abcdef", 6, NULL, 0), SHARD_U32, 0, "6 bytes", "multiple of 4", NULL);
    expect_refused(put("t.bin", NULL, 0, NULL, 0), SHARD_U32, 0, "empty", NULL);
}

static void test_not_a_file(void **state)
{
    (void)state;
    assert_int_equal(mkdir(in_dir("sub"), 0777), 0);
    expect_refused(in_dir("sub"), SHARD_AUTO, 0, "a directory", NULL);
    assert_int_equal(mkfifo(in_dir("fifo"), 0666), 0);
    expect_refused(in_dir("fifo"), SHARD_AUTO, 0, "not a regular file", NULL);
    assert_int_equal(symlink("nowhere", in_dir("link")), 0);
    expect_refused(in_dir("link"), SHARD_AUTO, 0, "link", NULL);
}

static void test_ids_beyond_the_vocabulary(void **state)
{
    (void)state;
    expect_refused(put_shard("i.bin", 20240520, 1, 5, narrow, 10), SHARD_AUTO, 65535, "i.bin", "id 65535",
                   "token 3", "byte 1030", "65535", "model.vocab", NULL);
    expect_refused(put("i.bin", NULL, 0, wide, 20), SHARD_U32, 10, "id 128255", "token 3", "byte 12", NULL);
    uint32_t huge[2] = { 1, 0x80000000u };
    expect_refused(put("i.bin", NULL, 0, huge, 8), SHARD_U32, 0, "id 2147483648", "token 1", "data.dtype",
                   NULL);

    /* The first of several, far into a file that the pass reads in pieces. */
    int64_t   count = 3000017;
    uint16_t *many  = calloc((size_t)count, 2);
    many[2500001] = many[2999999] = 300;
    expect_refused(put("i.bin", NULL, 0, many, 2 * (size_t)count), SHARD_U16, 300, "token 2500001",
                   "byte 5000002", NULL);
    many[2500001] = many[2999999] = 299;
    Errors    errors = { 0 };
    ShardSet *set    = shards_open(put("i.bin", NULL, 0, many, 2 * (size_t)count), SHARD_U16, 300, &errors);
    assert_non_null(set);
    shards_close(set);
    free(many);
}

static void test_writes_what_it_reads(void **state)
{
    (void)state;
    const ShardInfo info = { .vocab = 128256, .boundary = 128000, .fingerprint = 0x123456789abcdef0ull };
    for (int w = 0; w < 2; w++) {
        Errors       errors = { 0 };
        ShardWriter *writer = shard_writer_open(in_dir("out.bin"), w ? SHARD_U32 : SHARD_U16, &info, &errors);
        const int32_t *ids  = w ? wide_ids : narrow_ids;
        assert_non_null(writer);
        assert_true(shard_writer_append(writer, ids, 2, &errors));
        assert_true(shard_writer_append(writer, ids + 2, 0, &errors));
        assert_true(shard_writer_append(writer, ids + 2, 3, &errors));
        assert_int_equal(shard_writer_count(writer), 5);
        assert_false(files_exists(in_dir("out.bin")));
        assert_true(shard_writer_finish(writer, &errors));
        assert_false(files_exists(in_dir("out.bin.tmp")));
        expect_opens(in_dir("out.bin"), SHARD_AUTO, 128256, ids, 5);

        size_t  bytes;
        char   *text = files_read(in_dir("out.bin"), &bytes, &errors);
        int32_t words[5];
        memcpy(words, text, sizeof words);
        assert_int_equal(bytes, 1024 + (w ? 20 : 10));
        assert_int_equal(words[0], w ? 20240801 : 20240520);
        assert_int_equal(words[1], w ? 7 : 1);
        assert_int_equal(words[2], 5);
        assert_int_equal(words[4], 128256);
        free(text);
        ShardSet *set = shards_open(in_dir("out.bin"), SHARD_AUTO, 0, &errors);
        assert_int_equal(set->boundary, 128000);
        assert_true(set->fingerprint == info.fingerprint);
        shards_close(set);
        assert_int_equal(errors.count, 0);
        unlink(in_dir("out.bin"));
    }
}

static void test_shards_of_two_tokenizers(void **state)
{
    (void)state;
    char patterns[9000];
    for (int f = 0; f < 2; f++) {
        Errors       errors = { 0 };
        ShardInfo    info   = { .vocab = 10, .boundary = f, .fingerprint = 100 + (uint64_t)f };
        ShardWriter *writer = shard_writer_open(in_dir(f ? "p1.bin" : "p0.bin"), SHARD_U16, &info, &errors);
        assert_true(shard_writer_append(writer, narrow_ids, 2, &errors));
        assert_true(shard_writer_finish(writer, &errors));
    }
    snprintf(patterns, sizeof patterns, "%s", in_dir("p?.bin"));
    expect_refused(patterns, SHARD_AUTO, 0, "p1.bin", "another tokenizer", "p0.bin", NULL);
}

static void test_writer_refuses(void **state)
{
    (void)state;
    const ShardInfo info = { .boundary = -1 };
    Errors       errors = { 0 };
    ShardWriter *writer = shard_writer_open(in_dir("out.bin"), SHARD_U16, &info, &errors);
    assert_false(shard_writer_append(writer, (int32_t[]){ 5, 65536 }, 2, &errors));
    assert_non_null(strstr(errors.text[0], "id 65536 of token 1 does not fit uint16"));
    shard_writer_abandon(writer);
    assert_false(files_exists(in_dir("out.bin.tmp")));
    assert_false(files_exists(in_dir("out.bin")));
    assert_null(shard_writer_open(in_dir("no/such/out.bin"), SHARD_U16, &info, &errors));
    assert_int_equal(errors.count, 2);
    errors_free(&errors);
}

/* A full disk, by the limit on a file's size. */
static void test_disk_full_leaves_nothing(void **state)
{
    (void)state;
    const ShardInfo info = { .boundary = -1 };
    struct rlimit   old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = (struct rlimit){ 100000, old.rlim_max };
    signal(SIGXFSZ, SIG_IGN);
    Errors       errors = { 0 };
    ShardWriter *writer = shard_writer_open(in_dir("full.bin"), SHARD_U32, &info, &errors);
    int32_t      ids[1000] = { 0 };
    setrlimit(RLIMIT_FSIZE, &small);
    bool fine = true;
    for (int i = 0; i < 2000 && fine; i++)
        fine = shard_writer_append(writer, ids, 1000, &errors);
    if (fine)
        fine = shard_writer_finish(writer, &errors);
    else
        shard_writer_abandon(writer);
    setrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_DFL);
    assert_false(fine);
    assert_non_null(strstr(errors.text[0], "cannot be written"));
    assert_false(files_exists(in_dir("full.bin.tmp")));
    assert_false(files_exists(in_dir("full.bin")));
    errors_free(&errors);
}

/* ---- Megatron ------------------------------------------------------------------------------------- */

typedef struct Index { uint8_t bytes[512]; size_t length; } Index;

static void push(Index *index, const void *data, size_t length)
{
    memcpy(index->bytes + index->length, data, length);
    index->length += length;
}

/* Three sequences of 2, 0 and 3 tokens; documents at sequences 0, 1, 2 and the end. */
static Index make_index(uint8_t dtype, int width)
{
    Index    index     = { .length = 0 };
    uint64_t version = 1, sequences = 3, entries = 4;
    int32_t  lengths[3] = { 2, 0, 3 };
    int64_t  offsets[3] = { 0, 2 * width, 2 * width }, documents[4] = { 0, 1, 2, 3 };
    push(&index, "MMIDIDX\0\0", 9);
    push(&index, &version, 8);
    push(&index, &dtype, 1);
    push(&index, &sequences, 8);
    push(&index, &entries, 8);
    push(&index, lengths, sizeof lengths);
    push(&index, offsets, sizeof offsets);
    push(&index, documents, sizeof documents);
    return index;
}

static void test_megatron(void **state)
{
    (void)state;
    const uint8_t  bytes[5] = { 3, 1, 4, 1, 9 };
    const uint64_t longs[5] = { 3, 1, 4, 1, 9 };
    const int32_t  ids[5]   = { 3, 1, 4, 1, 9 };
    Index          index    = make_index(1, 1);
    put("g.idx", index.bytes, index.length, NULL, 0);
    expect_opens(put("g.bin", bytes, 5, NULL, 0), SHARD_AUTO, 10, ids, 5);
    index = make_index(8, 2);
    put("g.idx", index.bytes, index.length, NULL, 0);
    expect_opens(put("g.bin", narrow, 10, NULL, 0), SHARD_AUTO, 65536, narrow_ids, 5);
    expect_opens(in_dir("g.*"), SHARD_AUTO, 65536, narrow_ids, 5);    /* the index is not a shard */
    index = make_index(5, 8);
    put("g.idx", index.bytes, index.length, NULL, 0);
    expect_opens(put("g.bin", longs, 40, NULL, 0), SHARD_AUTO, 10, ids, 5);
    index = make_index(4, 4);
    put("g.idx", index.bytes, index.length, NULL, 0);
    expect_opens(put("g.bin", wide, 20, NULL, 0), SHARD_AUTO, 128256, wide_ids, 5);
    expect_refused(in_dir("g.bin"), SHARD_AUTO, 100, "id 128255", "token 3", "byte 12", NULL);
    expect_refused(in_dir("g.idx"), SHARD_AUTO, 100, "Megatron index", ".bin", NULL);

    Errors    errors = { 0 };
    ShardSet *set    = shards_open(in_dir("g.bin"), SHARD_AUTO, 0, &errors);
    assert_int_equal(set->shards[0].document_count, 2);     /* the empty one is none */
    assert_int_equal(set->shards[0].documents[0], 0);
    assert_int_equal(set->shards[0].documents[1], 2);
    shards_close(set);
}

static void test_megatron_damage(void **state)
{
    (void)state;
    const Index good = make_index(4, 4);
    put("h.bin", wide, 20, NULL, 0);
    Index index = good;
    index.bytes[17] = 7;
    put("h.idx", index.bytes, index.length, NULL, 0);
    expect_refused(in_dir("h.bin"), SHARD_AUTO, 0, "h.idx", "dtype code 7", "byte 17", NULL);
    index = good;
    index.bytes[9] = 2;
    put("h.idx", index.bytes, index.length, NULL, 0);
    expect_refused(in_dir("h.bin"), SHARD_AUTO, 0, "version", NULL);
    put("h.idx", good.bytes, 20, NULL, 0);
    expect_refused(in_dir("h.bin"), SHARD_AUTO, 0, "shorter than its header", NULL);
    put("h.idx", good.bytes, good.length - 8, NULL, 0);
    expect_refused(in_dir("h.bin"), SHARD_AUTO, 0, "3 sequences", "4 document entries", "truncated", NULL);
    index = good;
    index.bytes[34] = 1;    /* length of sequence 0: the second no longer begins where it ends */
    put("h.idx", index.bytes, index.length, NULL, 0);
    expect_refused(in_dir("h.bin"), SHARD_AUTO, 0, "sequence 1", "byte 8", "expected byte 4", NULL);
    index = good;
    index.bytes[42] = 4;    /* length of sequence 2: more than the .bin holds */
    put("h.idx", index.bytes, index.length, NULL, 0);
    expect_refused(in_dir("h.bin"), SHARD_AUTO, 0, "covers 24 bytes", "has 20", NULL);
    index = good;
    index.bytes[70] = 9;    /* document 0 */
    put("h.idx", index.bytes, index.length, NULL, 0);
    expect_refused(in_dir("h.bin"), SHARD_AUTO, 0, "document 0 begins at sequence 9 of 3", NULL);
    index = good;
    index.bytes[70] = 3, index.bytes[78] = 0;
    put("h.idx", index.bytes, index.length, NULL, 0);
    expect_refused(in_dir("h.bin"), SHARD_AUTO, 0, "document", "before", NULL);
}

/* 2^31 + 5 ids without writing them: a file with a hole, and its index. */
static void test_more_ids_than_31_bits_count(void **state)
{
    (void)state;
    Index    index     = { .length = 0 };
    uint64_t version = 1, two = 2;
    int32_t  lengths[2] = { INT32_MAX, 6 };
    int64_t  offsets[2] = { 0, INT32_MAX }, documents[2] = { 0, 1 }, count = (1ll << 31) + 5;
    push(&index, "MMIDIDX\0\0", 9);
    push(&index, &version, 8);
    push(&index, &(uint8_t){ 1 }, 1);
    push(&index, &two, 8);
    push(&index, &two, 8);
    push(&index, lengths, sizeof lengths);
    push(&index, offsets, sizeof offsets);
    push(&index, documents, sizeof documents);
    put("big.idx", index.bytes, index.length, NULL, 0);
    const char *path = put("big.bin", NULL, 0, NULL, 0);
    if (truncate(path, count))
        skip();     /* a file system without large files */
    int     fd   = open(path, O_WRONLY);
    uint8_t last = 77;
    assert_int_equal(pwrite(fd, &last, 1, count - 1), 1);
    close(fd);
    Errors    errors = { 0 };
    ShardSet *set    = shards_open(path, SHARD_AUTO, 256, &errors);
    assert_non_null(set);
    assert_int_equal(set->tokens, count);
    assert_int_equal(shard_token(&set->shards[0], count - 1), 77);
    assert_int_equal(set->shards[0].documents[1], INT32_MAX);
    shards_close(set);
}

/* 2^32 + 5 ids of two bytes need both halves of the header's count. The file is a byte short, so that the
 * message shows what was understood and nothing has to be read. */
static void test_counts_of_more_than_32_bits(void **state)
{
    (void)state;
    int32_t     header[256] = { 20240520, 1, 5, 1 };
    const char *path = put("big.bin", header, sizeof header, NULL, 0);
    if (truncate(path, 1023 + 2 * ((1ll << 32) + 5)))
        skip();
    expect_refused(path, SHARD_AUTO, 0, "4294967301 tokens", "8589935626 bytes", "has 8589935625", NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make_dir, remove_dir)
        TEST(test_reads_all_forms), TEST(test_patterns), TEST(test_every_bad_file_gets_its_line),
        TEST(test_wrong_headers), TEST(test_wrong_sizes), TEST(test_not_a_file),
        TEST(test_ids_beyond_the_vocabulary), TEST(test_writes_what_it_reads),
        TEST(test_shards_of_two_tokenizers), TEST(test_writer_refuses), TEST(test_disk_full_leaves_nothing),
        TEST(test_megatron), TEST(test_megatron_damage),
        TEST(test_more_ids_than_31_bits_count), TEST(test_counts_of_more_than_32_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
