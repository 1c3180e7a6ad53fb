#include "data/loader.h"
#include "data/permutation.h"
#include <stdlib.h>
#include <string.h>

/* Rows of a shard. Those of STREAM follow from the size; those of DOCUMENTS are listed: row i of the shard
 * holds the ids [starts[i], starts[i + 1]), at most seq of them. */
typedef struct ShardRows {
    int64_t  first;         /* row of the epoch that is this shard's row 0 */
    int64_t *starts;        /* [rows + 1]; NULL for STREAM */
} ShardRows;

struct Loader {
    const ShardSet *set;
    LoaderOptions   options;
    ShardRows      *shards;     /* [set->count + 1], the last only for its `first` */
    int64_t         rows, tokens;
    LoaderCursor    cursor;
    Permutation     order;      /* of the cursor's epoch */
};

/* ---- documents ----------------------------------------------------------------------------------- */

/* First document start after `after` and below `limit`, else `limit`. */
static int64_t next_document(const Shard *shard, int64_t boundary, int64_t after, int64_t limit)
{
    if (shard->documents) {
        int64_t low = 0, high = shard->document_count;
        while (low < high) {
            int64_t middle = (low + high) / 2;
            if (shard->documents[middle] > after)
                high = middle;
            else
                low = middle + 1;
        }
        return low < shard->document_count && shard->documents[low] < limit ? shard->documents[low] : limit;
    }
    if (boundary >= 0)
        for (int64_t i = after + 1; i < limit; i++)
            if (shard_token(shard, i) == boundary)
                return i;
    return limit;
}

/* Packs the shard's documents in their order: a row is closed when the next whole document does not fit. */
static bool pack_documents(const Shard *shard, int64_t boundary, int64_t seq, ShardRows *rows, int64_t *count)
{
    int64_t capacity = 0, used = 0, row = 0;
    for (int64_t begin = 0, end; begin < shard->count; begin = end) {
        end = next_document(shard, boundary, begin, shard->count);
        bool fits = begin > 0 && end - row <= seq;
        for (int64_t at = begin; at < end && !fits; at += seq) {
            if (used + 1 >= capacity) {    /* one entry stays free for the end */
                capacity = capacity ? 2 * capacity : 1024;
                int64_t *starts = realloc(rows->starts, capacity * sizeof *starts);
                if (!starts)
                    return false;
                rows->starts = starts;
            }
            rows->starts[used++] = row = at;
        }
    }
    rows->starts[used] = shard->count;
    *count = used;
    return true;
}

/* ---- making and moving --------------------------------------------------------------------------- */

static int64_t stream_rows(const Shard *shard, const LoaderOptions *options)
{
    int64_t targets = shard->count - 1;
    return options->keep_tail ? (targets + options->seq - 1) / options->seq : targets / options->seq;
}

static bool knows_documents(const ShardSet *set, const LoaderOptions *options, Errors *errors)
{
    for (int s = 0; s < set->count; s++)
        if (options->boundary < 0 && !set->shards[s].documents) {
            errors_add(errors, "%s: nothing tells where its documents begin; set data.boundary_token, or use "
                       "data.rows stream without data.document_mask", set->shards[s].path);
            return false;
        }
    return true;
}

/* Fills loader->shards and counts. */
static bool list_rows(Loader *loader, Errors *errors)
{
    const LoaderOptions *options = &loader->options;
    for (int s = 0; s < loader->set->count; s++) {
        const Shard *shard = &loader->set->shards[s];
        int64_t      count = 0;
        if (options->rows == LOADER_STREAM) {
            count = stream_rows(shard, options);
            loader->tokens += options->keep_tail ? shard->count - 1 : count * options->seq;
        } else if (shard->count > 1) {
            if (!pack_documents(shard, options->boundary, options->seq, &loader->shards[s], &count)) {
                errors_add(errors, "%s: no memory to list its rows", shard->path);
                return false;
            }
            loader->tokens += shard->count;
        }
        loader->shards[s + 1].first = loader->rows += count;
    }
    if (loader->rows == 0)
        errors_add(errors,
                   "the data holds %lld tokens in %d file%s, less than one row of %d and its last target; "
                   "give more data or a smaller train.seq_len (first file: %s)",
                   (long long)loader->set->tokens, loader->set->count, loader->set->count == 1 ? "" : "s",
                   options->seq, loader->set->shards[0].path);
    return loader->rows > 0;
}

/* Whether any token of the set has a target: the next one of its document, or the id that begins another. */
static bool has_target(const ShardSet *set, const LoaderOptions *options)
{
    bool exact = options->rows == LOADER_DOCUMENTS || options->document_mask;
    for (int s = 0; s < set->count; s++) {
        const Shard *shard = &set->shards[s];
        if (!exact && shard->count > 1)
            return true;
        for (int64_t begin = 0, end; exact && begin < shard->count; begin = end) {
            end = next_document(shard, options->boundary, begin, shard->count);
            if (end - begin > 1 || (end < shard->count && shard_token(shard, end) == options->boundary))
                return true;
        }
    }
    return false;
}

static void set_epoch(Loader *loader, int64_t epoch)
{
    uint64_t stream = loader->options.limit_rows ? 0 : (uint64_t)epoch;
    loader->cursor.epoch = epoch;
    loader->order        = permutation_make(loader->rows, loader->options.seed, stream);
}

Loader *loader_create(const ShardSet *set, const LoaderOptions *options, Errors *errors)
{
    bool needs_documents = options->rows == LOADER_DOCUMENTS || options->document_mask;
    if (needs_documents && !knows_documents(set, options, errors))
        return NULL;
    Loader *loader = calloc(1, sizeof *loader);
    if (loader)
        *loader =
            (Loader){ .set = set, .options = *options, .shards = calloc(set->count + 1, sizeof(ShardRows)) };
    if (!loader || !loader->shards)
        errors_add(errors, "no memory for the data loader");
    if (!loader || !loader->shards || !list_rows(loader, errors)) {
        loader_destroy(loader);
        return NULL;
    }
    if (!has_target(set, options)) {
        errors_add(errors,
                   "%s: every document holds a single token, so there is nothing to predict; join documents "
                   "when the files are made, or use rows stream without data.document_mask",
                   set->shards[0].path);
        loader_destroy(loader);
        return NULL;
    }
    set_epoch(loader, 0);
    return loader;
}

void loader_destroy(Loader *loader)
{
    if (!loader)
        return;
    for (int s = 0; loader->shards && s < loader->set->count; s++)
        free(loader->shards[s].starts);
    free(loader->shards);
    free(loader);
}

/* Rows that an epoch gives: all, or the first few again and again. */
static int64_t epoch_rows(const Loader *loader)
{
    int64_t limit = loader->options.limit_rows;
    return limit > 0 && limit < loader->rows ? limit : loader->rows;
}

int64_t loader_rows(const Loader *loader)
{
    return epoch_rows(loader);
}

int64_t loader_tokens(const Loader *loader)
{
    return loader->tokens;
}

LoaderCursor loader_cursor(const Loader *loader)
{
    return loader->cursor;
}

bool loader_seek(Loader *loader, LoaderCursor cursor, Errors *errors)
{
    /* A finished pass stands at index == rows. */
    int64_t last = epoch_rows(loader) - !loader->options.one_pass;
    if (cursor.epoch < 0 || cursor.index < 0 || cursor.index > last) {
        errors_add(errors,
                   "data position epoch %lld, row %lld does not fit these data with %lld rows per epoch; "
                   "were files or train.seq_len changed?",
                   (long long)cursor.epoch, (long long)cursor.index, (long long)epoch_rows(loader));
        return false;
    }
    set_epoch(loader, cursor.epoch);
    loader->cursor.index = cursor.index;
    return true;
}

/* ---- filling ------------------------------------------------------------------------------------- */

/* The shard of an epoch's row, and the ids [*begin, *end) of the row in it. */
static const Shard *find_row(const Loader *loader, int64_t row, int64_t *begin, int64_t *end)
{
    int low = 0, high = loader->set->count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (loader->shards[middle].first <= row)
            low = middle;
        else
            high = middle - 1;
    }
    const Shard     *shard = &loader->set->shards[low];
    const ShardRows *rows  = &loader->shards[low];
    row -= rows->first;
    if (rows->starts) {
        *begin = rows->starts[row];
        *end   = rows->starts[row + 1];
    } else {
        int64_t seq = loader->options.seq;
        *begin = row * seq;
        *end   = *begin + seq < shard->count - 1 ? *begin + seq : shard->count - 1;
    }
    return shard;
}

/* Row r of the batch from ids [begin, end) of the shard; begin == end: padding only. */
static void fill_row(const Loader *loader, Batch *batch, int64_t r, const Shard *shard, int64_t begin,
                     int64_t end)
{
    const LoaderOptions *options = &loader->options;
    bool     mask   = options->document_mask, exact = mask || options->rows == LOADER_DOCUMENTS;
    int64_t  length = end - begin, base = r * batch->seq, shard_end = shard ? shard->count : 0;
    int32_t *tokens = batch->tokens + base, *targets = batch->targets + base, *pos = batch->pos + base;
    int32_t *doc_start = batch->doc_start + base;
    float   *weights = batch->weights + base;

    /* `next` is the document that begins after `begin + i`, at most one id behind the row, where the row's
     * last target lies. */
    int64_t limit = end + 1 < shard_end ? end + 1 : shard_end, start = 0;
    int64_t next  = exact && length > 0 ? next_document(shard, options->boundary, begin, limit) : limit;
    for (int64_t i = 0; i < length; i++) {
        if (begin + i == next) {
            start = i;
            next  = next_document(shard, options->boundary, next, limit);
        }
        bool    has_target = begin + i + 1 < shard_end;
        int32_t target     = has_target ? shard_token(shard, begin + i + 1) : 0;
        if (has_target && begin + i + 1 == next && next < limit && target != options->boundary)
            has_target = false;
        tokens[i]    = shard_token(shard, begin + i);
        targets[i]   = has_target ? target : 0;
        weights[i]   = has_target;
        pos[i]       = (int32_t)(mask ? i - start : i);
        doc_start[i] = (int32_t)(mask ? start : 0);
    }
    for (int64_t i = length; i < batch->seq; i++) {
        tokens[i] = targets[i] = 0;
        weights[i]   = 0;
        pos[i]       = (int32_t)(mask ? i - length : i);
        doc_start[i] = (int32_t)(mask ? length : 0);    /* padding is a document of its own */
    }
    for (int64_t i = 0; i < length; i++) {
        batch->valid += weights[i] != 0;
        if (options->token_bytes && weights[i] != 0)
            batch->target_bytes += options->token_bytes[targets[i]];
    }
}

bool loader_next(Loader *loader, Batch *batch)
{
    int64_t rows = epoch_rows(loader);
    if (loader->options.one_pass && loader->cursor.index >= rows)
        return false;
    batch->valid = batch->target_bytes = 0;
    for (int64_t r = 0; r < batch->sequences; r++) {
        int64_t      begin = 0, end = 0;
        const Shard *shard = NULL;
        if (loader->cursor.index < rows) {
            int64_t row = loader->cursor.index++;
            shard = find_row(loader, loader->options.shuffle ? permutation_at(&loader->order, row) : row,
                             &begin, &end);
        }
        fill_row(loader, batch, r, shard, begin, end);
        if (loader->cursor.index == rows && !loader->options.one_pass) {
            set_epoch(loader, loader->cursor.epoch + 1);
            loader->cursor.index = 0;
        }
    }
    return true;
}

bool batch_create(Batch *batch, int sequences, int seq)
{
    size_t rows = (size_t)sequences * seq;
    *batch = (Batch){ .sequences = sequences, .seq = seq };
    batch->tokens    = calloc(rows, sizeof *batch->tokens);
    batch->targets   = calloc(rows, sizeof *batch->targets);
    batch->pos       = calloc(rows, sizeof *batch->pos);
    batch->doc_start = calloc(rows, sizeof *batch->doc_start);
    batch->weights   = calloc(rows, sizeof *batch->weights);
    if (batch->tokens && batch->targets && batch->pos && batch->doc_start && batch->weights)
        return true;
    batch_free(batch);
    return false;
}

void batch_free(Batch *batch)
{
    free(batch->tokens);
    free(batch->targets);
    free(batch->pos);
    free(batch->doc_start);
    free(batch->weights);
    *batch = (Batch){ 0 };
}
