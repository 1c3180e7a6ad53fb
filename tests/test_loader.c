/* The loader against a slow, obvious one: which ids each row holds, targets, weights, documents; the order
 * and that it depends on the seed and the row alone; resuming anywhere, epoch edges included. */
#include "data/loader.h"
#include "data/permutation.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#define BOS 100

/* Shards in memory: what shards_open makes, without files. */
typedef struct Memory { ShardSet set; Shard shards[3]; uint16_t ids[3][4000]; } Memory;

static void add_shard(Memory *memory, int64_t count)
{
    int s = memory->set.count++;
    memory->shards[s]   = (Shard){ .path     = (char *)"memory",
                                   .tokens   = (const uint8_t *)memory->ids[s],
                                   .width    = 2,
                                   .count    = count,
                                   .boundary = -1 };
    memory->set.shards  = memory->shards;
    memory->set.tokens += count;
}

/* Ids that name their place: shard and offset. */
static Memory *numbered(int64_t a, int64_t b, int64_t c)
{
    const int64_t counts[3] = { a, b, c };
    Memory *memory = calloc(1, sizeof *memory);
    for (int s = 0; s < 3; s++) {
        if (counts[s] == 0)
            continue;
        for (int64_t i = 0; i < counts[s]; i++)
            memory->ids[s][i] = (uint16_t)(s * 10000 + i);
        add_shard(memory, counts[s]);
    }
    return memory;
}

/* Documents of the given lengths (ends with 0), each BOS and then 1, 2, ... */
static Memory *documents(const int *lengths)
{
    Memory *memory = calloc(1, sizeof *memory);
    int64_t at = 0;
    for (; *lengths; lengths++)
        for (int i = 0; i < *lengths; i++)
            memory->ids[0][at++] = (uint16_t)(i ? i : BOS);
    add_shard(memory, at);
    return memory;
}

static Loader *make(const Memory *memory, LoaderOptions options)
{
    Errors  errors = { 0 };
    Loader *loader = loader_create(&memory->set, &options, &errors);
    errors_print(&errors, stderr);
    assert_non_null(loader);
    return loader;
}

static void expect_row(const Batch *batch, int row, const int32_t *tokens, const int32_t *targets,
                       const float *weights)
{
    for (int i = 0; i < batch->seq; i++) {
        int64_t at = (int64_t)row * batch->seq + i;
        assert_int_equal(batch->tokens[at], tokens[i]);
        assert_int_equal(batch->targets[at], targets[i]);
        assert_true(batch->weights[at] == weights[i]);
    }
}

/* ---- order ---------------------------------------------------------------------------------------- */

static void test_permutation_is_one(void **state)
{
    (void)state;
    for (int64_t count = 1; count < 300; count += count < 70 ? 1 : 37) {
        Permutation p = permutation_make(count, 7, 3);
        uint8_t     seen[300] = { 0 };
        for (int64_t i = 0; i < count; i++) {
            int64_t at = permutation_at(&p, i);
            assert_true(at >= 0 && at < count && !seen[at]);
            seen[at] = 1;
        }
    }
    /* Beyond 2^32: distinct and in range. */
    Permutation p = permutation_make((1ll << 40) + 3, 1, 1);
    int64_t     previous = -1;
    for (int64_t i = 0; i < 1000; i++) {
        int64_t at = permutation_at(&p, (1ll << 40) - i);
        assert_true(at >= 0 && at < (1ll << 40) + 3 && at != previous);
        previous = at;
    }
}

/* Where index 0 goes, over many seeds, is even: chi-squared with 15 degrees of freedom, limit at p = 1e-4.
 * And neighbours do not stay neighbours. */
static void test_permutation_is_random(void **state)
{
    (void)state;
    int hits[16] = { 0 }, neighbours = 0;
    for (int seed = 0; seed < 16000; seed++) {
        Permutation p = permutation_make(16, (uint64_t)seed, 0);
        hits[permutation_at(&p, 0)]++;
        neighbours += permutation_at(&p, 1) == permutation_at(&p, 0) + 1;
    }
    double chi = 0;
    for (int i = 0; i < 16; i++)
        chi += (hits[i] - 1000.0) * (hits[i] - 1000.0) / 1000.0;
    assert_true(chi < 44.3);
    assert_true(neighbours > 800 && neighbours < 1200);     /* 1/16 of 16000 */
}

/* First token of the next n rows, in batches of `sequences`. */
static void first_tokens(Loader *loader, int sequences, int seq, int64_t n, int32_t *first)
{
    Batch batch;
    assert_true(batch_create(&batch, sequences, seq));
    for (int64_t at = 0; at < n; at += sequences) {
        assert_true(loader_next(loader, &batch));
        for (int64_t r = 0; r < sequences && at + r < n; r++)
            first[at + r] = batch.tokens[r * seq];
    }
    batch_free(&batch);
}

static void test_stream_rows_in_order(void **state)
{
    (void)state;
    /* 23 ids: windows at 0, 7, 14 need 7 + 1 ids, so the last one (14 .. 21, target 22) just fits. 7 ids hold
     * none; 8 hold one. */
    Memory *memory = numbered(22, 7, 8);
    Loader *loader = make(memory, (LoaderOptions){ .seq = 7, .boundary = -1 });
    assert_int_equal(loader_rows(loader), 4);
    assert_int_equal(loader_tokens(loader), 28);
    Batch batch;
    batch_create(&batch, 4, 7);
    assert_true(loader_next(loader, &batch));
    const int32_t starts[4] = { 0, 7, 14, 20000 };
    for (int r = 0; r < 4; r++)
        for (int i = 0; i < 7; i++) {
            assert_int_equal(batch.tokens[r * 7 + i], starts[r] + i);
            assert_int_equal(batch.targets[r * 7 + i], starts[r] + i + 1);
            assert_int_equal(batch.pos[r * 7 + i], i);
            assert_int_equal(batch.doc_start[r * 7 + i], 0);
            assert_true(batch.weights[r * 7 + i] == 1);
        }
    assert_int_equal(batch.valid, 28);
    assert_int_equal(batch.target_bytes, 0);
    assert_int_equal(loader_cursor(loader).epoch, 1);
    assert_int_equal(loader_cursor(loader).index, 0);
    batch_free(&batch);
    loader_destroy(loader);
    free(memory);
}

static void test_each_epoch_has_every_row_once(void **state)
{
    (void)state;
    Memory *memory = numbered(1000, 501, 333);
    Loader *loader = make(memory, (LoaderOptions){ .seq = 5, .shuffle = true, .boundary = -1, .seed = 9 });
    int64_t rows   = loader_rows(loader);
    assert_int_equal(rows, 199 + 100 + 66);
    int32_t *first = malloc(3 * (size_t)rows * sizeof *first);
    first_tokens(loader, 1, 5, 3 * rows, first);
    for (int e = 0; e < 3; e++) {
        uint8_t *seen = calloc(30000, 1);
        for (int64_t r = 0; r < rows; r++) {
            int32_t id = first[e * rows + r];
            assert_false(seen[id]);
            seen[id] = 1;
            assert_int_equal(id % 10000 % 5, 0);
        }
        free(seen);
    }
    assert_memory_not_equal(first, first + rows, (size_t)rows * 4);
    assert_memory_not_equal(first + rows, first + 2 * rows, (size_t)rows * 4);
    free(first);
    loader_destroy(loader);
    free(memory);
}

static void test_order_depends_on_seed_not_on_batch(void **state)
{
    (void)state;
    Memory *memory = numbered(400, 101, 0);
    int32_t first[4][300];
    const int sequences[4] = { 1, 3, 64, 7 };
    for (int v = 0; v < 4; v++) {
        Loader *loader = make(memory, (LoaderOptions){ .seq = 4, .shuffle = true, .boundary = -1,
                                                       .seed = v == 3 ? 6 : 5 });
        first_tokens(loader, sequences[v], 4, 300, first[v]);     /* 124 rows: across two edges */
        loader_destroy(loader);
    }
    assert_memory_equal(first[0], first[1], sizeof first[0]);
    assert_memory_equal(first[0], first[2], sizeof first[0]);
    assert_memory_not_equal(first[0], first[3], sizeof first[0]);
    free(memory);
}

static void test_resumes_anywhere(void **state)
{
    (void)state;
    Memory       *memory  = numbered(101, 60, 0);
    LoaderOptions options = { .seq = 4, .shuffle = true, .boundary = -1, .seed = 3 };
    int32_t       whole[100], rest[100];
    Loader       *loader  = make(memory, options);
    assert_int_equal(loader_rows(loader), 25 + 14);
    first_tokens(loader, 1, 4, 100, whole);
    loader_destroy(loader);
    for (int64_t stop = 0; stop < 90; stop++) {
        Errors errors = { 0 };
        loader = make(memory, options);
        first_tokens(loader, 1, 4, stop, rest);
        LoaderCursor cursor = loader_cursor(loader);
        assert_int_equal(cursor.epoch * 39 + cursor.index, stop);
        loader_destroy(loader);
        loader = make(memory, options);
        assert_true(loader_seek(loader, cursor, &errors));
        first_tokens(loader, 5, 4, 10, rest);       /* another batch size, and over the edges at 39 and 78 */
        assert_memory_equal(rest, whole + stop, 10 * sizeof *rest);
        loader_destroy(loader);
    }
    free(memory);
}

static void test_seek_refuses_what_does_not_fit(void **state)
{
    (void)state;
    Memory *memory = numbered(101, 0, 0);
    Loader *loader = make(memory, (LoaderOptions){ .seq = 4, .boundary = -1 });
    const LoaderCursor wrong[4] = { { 0, 25 }, { 0, -1 }, { -1, 0 }, { 3, 1000 } };
    Errors errors = { 0 };
    for (int w = 0; w < 4; w++)
        assert_false(loader_seek(loader, wrong[w], &errors));
    assert_int_equal(errors.count, 4);
    assert_non_null(strstr(errors.text[0], "epoch 0, row 25 does not fit these data with 25 rows"));
    assert_true(loader_seek(loader, (LoaderCursor){ 7, 24 }, &errors));
    errors_free(&errors);
    loader_destroy(loader);
    free(memory);
}

static void test_overfit_cycles_over_the_first_rows(void **state)
{
    (void)state;
    Memory       *memory  = numbered(101, 0, 0);
    LoaderOptions options = { .seq = 4, .shuffle = true, .boundary = -1, .seed = 3 };
    int32_t       all[8], few[32];
    Loader       *loader  = make(memory, options);
    first_tokens(loader, 8, 4, 8, all);
    loader_destroy(loader);
    options.limit_rows = 8;
    loader = make(memory, options);
    assert_int_equal(loader_rows(loader), 8);
    first_tokens(loader, 4, 4, 32, few);
    for (int i = 0; i < 32; i++)
        assert_int_equal(few[i], all[i % 8]);
    loader_destroy(loader);
    free(memory);
}

/* ---- validation ----------------------------------------------------------------------------------- */

static void test_one_pass_keeps_tails_and_ends(void **state)
{
    (void)state;
    Memory *memory = numbered(10, 3, 0);
    Loader *loader =
        make(memory, (LoaderOptions){ .seq = 4, .keep_tail = true, .one_pass = true, .boundary = -1 });
    assert_int_equal(loader_rows(loader), 3 + 1);
    assert_int_equal(loader_tokens(loader), 9 + 2);
    Batch batch;
    batch_create(&batch, 3, 4);
    assert_true(loader_next(loader, &batch));
    expect_row(&batch, 1, (int32_t[]){ 4, 5, 6, 7 }, (int32_t[]){ 5, 6, 7, 8 }, (float[]){ 1, 1, 1, 1 });
    expect_row(&batch, 2, (int32_t[]){ 8, 0, 0, 0 }, (int32_t[]){ 9, 0, 0, 0 }, (float[]){ 1, 0, 0, 0 });
    assert_int_equal(batch.valid, 9);
    assert_true(loader_next(loader, &batch));
    expect_row(&batch, 0, (int32_t[]){ 10000, 10001, 0, 0 }, (int32_t[]){ 10001, 10002, 0, 0 },
               (float[]){ 1, 1, 0, 0 });
    expect_row(&batch, 1, (int32_t[4]){ 0 }, (int32_t[4]){ 0 }, (float[4]){ 0 });
    expect_row(&batch, 2, (int32_t[4]){ 0 }, (int32_t[4]){ 0 }, (float[4]){ 0 });
    assert_int_equal(batch.valid, 2);
    assert_false(loader_next(loader, &batch));
    Errors errors = { 0 };
    assert_true(loader_seek(loader, loader_cursor(loader), &errors));
    assert_false(loader_next(loader, &batch));
    assert_true(loader_seek(loader, (LoaderCursor){ 0, 0 }, &errors));
    assert_true(loader_next(loader, &batch));
    assert_int_equal(batch.valid, 9);
    batch_free(&batch);
    loader_destroy(loader);
    free(memory);
}

static void test_target_bytes(void **state)
{
    (void)state;
    Memory  *memory = numbered(10, 0, 0);
    int32_t  bytes[10] = { 1, 2, 4, 8, 16, 32, 64, 128, 256, 512 };
    Loader  *loader =
        make(memory, (LoaderOptions){ .seq = 4, .keep_tail = true, .boundary = -1, .token_bytes = bytes });
    Batch    batch;
    batch_create(&batch, 3, 4);
    loader_next(loader, &batch);
    assert_int_equal(batch.target_bytes, 1023 - 1);     /* all but the first are targets */
    batch_free(&batch);
    loader_destroy(loader);
    free(memory);
}

/* ---- documents ------------------------------------------------------------------------------------ */

static void test_documents_are_packed_whole(void **state)
{
    (void)state;
    /* Rows of 6: 3 + 3 | 4 (2 do not fit 3) | 3 + 2 | 14 = 6, 6, 2 and then 2 + 1. */
    Memory *memory = documents((int[]){ 3, 3, 4, 3, 2, 14, 2, 1, 0 });
    Loader *loader = make(memory, (LoaderOptions){ .rows = LOADER_DOCUMENTS, .seq = 6, .boundary = BOS });
    assert_int_equal(loader_rows(loader), 6);
    assert_int_equal(loader_tokens(loader), 32);
    Batch batch;
    batch_create(&batch, 6, 6);
    loader_next(loader, &batch);
    const float all[6] = { 1, 1, 1, 1, 1, 1 };
    expect_row(&batch, 0, (int32_t[]){ BOS, 1, 2, BOS, 1, 2 }, (int32_t[]){ 1, 2, BOS, 1, 2, BOS }, all);
    expect_row(&batch, 1, (int32_t[]){ BOS, 1, 2, 3, 0, 0 }, (int32_t[]){ 1, 2, 3, BOS, 0, 0 },
               (float[]){ 1, 1, 1, 1, 0, 0 });
    expect_row(&batch, 2, (int32_t[]){ BOS, 1, 2, BOS, 1, 0 }, (int32_t[]){ 1, 2, BOS, 1, BOS, 0 },
               (float[]){ 1, 1, 1, 1, 1, 0 });
    expect_row(&batch, 3, (int32_t[]){ BOS, 1, 2, 3, 4, 5 }, (int32_t[]){ 1, 2, 3, 4, 5, 6 }, all);
    expect_row(&batch, 4, (int32_t[]){ 6, 7, 8, 9, 10, 11 }, (int32_t[]){ 7, 8, 9, 10, 11, 12 }, all);
    /* The file ends behind the last token: nothing says what follows. */
    expect_row(&batch, 5, (int32_t[]){ 12, 13, BOS, 1, BOS, 0 }, (int32_t[]){ 13, BOS, 1, BOS, 0, 0 },
               (float[]){ 1, 1, 1, 1, 0, 0 });
    assert_int_equal(batch.valid, 6 + 4 + 5 + 6 + 6 + 4);
    for (int i = 0; i < 36; i++) {
        assert_int_equal(batch.pos[i], i % 6);
        assert_int_equal(batch.doc_start[i], 0);
    }
    batch_free(&batch);
    loader_destroy(loader);
    free(memory);
}

static void test_mask_restarts_positions(void **state)
{
    (void)state;
    Memory *memory = documents((int[]){ 3, 4, 9, 1, 0 });
    Batch   batch;
    batch_create(&batch, 3, 6);
    Loader *loader = make(memory, (LoaderOptions){ .rows = LOADER_DOCUMENTS, .seq = 6, .boundary = BOS,
                                                   .document_mask = true, .one_pass = true });
    loader_next(loader, &batch);
    const int32_t pos[18]   = { 0, 1, 2, 0, 1, 2, 0, 1, 2, 3, 0, 1, 0, 1, 2, 3, 4, 5 };
    const int32_t start[18] = { 0, 0, 0, 3, 3, 3, 0, 0, 0, 0, 4, 4, 0, 0, 0, 0, 0, 0 };
    assert_int_equal(loader_rows(loader), 4);
    assert_memory_equal(batch.pos, pos, sizeof pos);
    assert_memory_equal(batch.doc_start, start, sizeof start);
    loader_next(loader, &batch);
    const int32_t last[6] = { 0, 1, 2, 0, 0, 1 }, last_start[6] = { 0, 0, 0, 3, 4, 4 };
    assert_memory_equal(batch.pos, last, sizeof last);      /* 6 7 8 of the long one, BOS, padding */
    assert_memory_equal(batch.doc_start, last_start, sizeof last_start);
    loader_destroy(loader);

    /* Windows of a stream begin inside documents. */
    loader = make(memory, (LoaderOptions){ .seq = 5, .boundary = BOS, .document_mask = true });
    batch_free(&batch);
    batch_create(&batch, 3, 5);
    loader_next(loader, &batch);
    const int32_t stream_pos[15]   = { 0, 1, 2, 0, 1, 0, 1, 0, 1, 2, 0, 1, 2, 3, 4 };
    const int32_t stream_start[15] = { 0, 0, 0, 3, 3, 0, 0, 2, 2, 2, 0, 0, 0, 0, 0 };
    assert_memory_equal(batch.pos, stream_pos, sizeof stream_pos);
    assert_memory_equal(batch.doc_start, stream_start, sizeof stream_start);
    assert_int_equal(batch.valid, 15);      /* the edge's target, BOS, counts */
    batch_free(&batch);
    loader_destroy(loader);
    free(memory);
}

/* Boundaries from an index: what follows a document is no signal of its end. */
static void test_edges_by_index(void **state)
{
    (void)state;
    Memory *memory = numbered(9, 0, 0);
    int64_t starts[3] = { 0, 2, 5 };
    memory->shards[0].documents      = starts;
    memory->shards[0].document_count = 3;
    Batch batch;
    batch_create(&batch, 2, 5);
    Loader *loader = make(memory, (LoaderOptions){ .rows = LOADER_DOCUMENTS, .seq = 5, .boundary = -1 });
    assert_int_equal(loader_rows(loader), 2);
    loader_next(loader, &batch);
    expect_row(&batch, 0, (int32_t[]){ 0, 1, 2, 3, 4 }, (int32_t[]){ 1, 0, 3, 4, 0 },
               (float[]){ 1, 0, 1, 1, 0 });
    expect_row(&batch, 1, (int32_t[]){ 5, 6, 7, 8, 0 }, (int32_t[]){ 6, 7, 8, 0, 0 },
               (float[]){ 1, 1, 1, 0, 0 });
    loader_destroy(loader);
    /* A plain stream keeps them; and with the next document's first id as the boundary token they are
     * signals. */
    loader = make(memory, (LoaderOptions){ .seq = 5, .boundary = -1, .keep_tail = true });
    loader_next(loader, &batch);
    assert_int_equal(batch.valid, 8);
    loader_destroy(loader);
    loader = make(memory, (LoaderOptions){ .rows = LOADER_DOCUMENTS, .seq = 5, .boundary = 5 });
    loader_next(loader, &batch);
    expect_row(&batch, 0, (int32_t[]){ 0, 1, 2, 3, 4 }, (int32_t[]){ 1, 0, 3, 4, 5 },
               (float[]){ 1, 0, 1, 1, 1 });
    batch_free(&batch);
    loader_destroy(loader);
    free(memory);
}

/* Random documents against the naive rule, ids and documents alike. */
static void test_random_documents(void **state)
{
    (void)state;
    srand(5);
    for (int round = 0; round < 30; round++) {
        int lengths[200] = { 0 }, count = 1 + rand() % 100, seq = 1 + rand() % 23;
        for (int d = 0; d < count; d++)
            lengths[d] = 1 + rand() % 30;
        Memory *memory = documents(lengths);
        Loader *loader = make(memory, (LoaderOptions){ .rows = LOADER_DOCUMENTS, .seq = seq, .boundary = BOS,
                                                       .one_pass = true, .document_mask = true });
        Batch   batch;
        batch_create(&batch, 1, seq);
        int64_t at = 0;     /* in the ids */
        int     d = 0, left = lengths[0];
        while (loader_next(loader, &batch)) {
            int used = 0, begin = 0;
            /* A row takes a part of the document under way, then whole ones. */
            while (d < count && (used == 0 || (left == lengths[d] && used + left <= seq))) {
                int take = left < seq - used ? left : seq - used;
                begin = used;
                for (int i = 0; i < take; i++, used++, at++) {
                    assert_int_equal(batch.tokens[used], memory->ids[0][at]);
                    assert_int_equal(batch.doc_start[used], begin);
                    assert_int_equal(batch.pos[used], used - begin);
                    assert_true(batch.weights[used] == (at + 1 < memory->shards[0].count));
                }
                left -= take;
                if (left == 0)
                    left = lengths[++d];
            }
            for (; used < seq; used++)
                assert_true(batch.weights[used] == 0);
        }
        assert_int_equal(at, memory->shards[0].count);
        batch_free(&batch);
        loader_destroy(loader);
        free(memory);
    }
}

/* ---- refusals ------------------------------------------------------------------------------------- */

static void expect_refused(const Memory *memory, LoaderOptions options, const char *words)
{
    Errors errors = { 0 };
    assert_null(loader_create(&memory->set, &options, &errors));
    assert_int_equal(errors.count, 1);
    if (!strstr(errors.text[0], words))
        fail_msg("\"%s\" does not say \"%s\"", errors.text[0], words);
    errors_free(&errors);
}

static void test_refusals(void **state)
{
    (void)state;
    Memory *memory = numbered(64, 64, 0);
    expect_refused(memory, (LoaderOptions){ .seq = 64, .boundary = -1 },
                   "the data holds 128 tokens in 2 files, less than one row of 64 and its last target");
    expect_refused(memory, (LoaderOptions){ .seq = 8, .boundary = -1, .document_mask = true },
                   "data.boundary_token");
    expect_refused(memory, (LoaderOptions){ .rows = LOADER_DOCUMENTS, .seq = 8, .boundary = -1 },
                   "memory: nothing tells");
    free(memory);
    memory = numbered(65, 0, 0);
    Loader *loader = make(memory, (LoaderOptions){ .seq = 64, .boundary = -1 });
    assert_int_equal(loader_rows(loader), 1);
    loader_destroy(loader);
    free(memory);
    memory = documents((int[]){ 1, 0 });
    expect_refused(memory, (LoaderOptions){ .rows = LOADER_DOCUMENTS, .seq = 8, .boundary = BOS },
                   "1 tokens in 1 file,");
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_permutation_is_one),
        cmocka_unit_test(test_permutation_is_random),
        cmocka_unit_test(test_stream_rows_in_order),
        cmocka_unit_test(test_each_epoch_has_every_row_once),
        cmocka_unit_test(test_order_depends_on_seed_not_on_batch),
        cmocka_unit_test(test_resumes_anywhere),
        cmocka_unit_test(test_seek_refuses_what_does_not_fit),
        cmocka_unit_test(test_overfit_cycles_over_the_first_rows),
        cmocka_unit_test(test_one_pass_keeps_tails_and_ends),
        cmocka_unit_test(test_target_bytes),
        cmocka_unit_test(test_documents_are_packed_whole),
        cmocka_unit_test(test_mask_restarts_positions),
        cmocka_unit_test(test_edges_by_index),
        cmocka_unit_test(test_random_documents),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
