#include "data/tokenize_shards.h"
#include "data/jsonl.h"
#include "model/files.h"
#include "model/machine.h"
#include "model/xxh64.h"
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PIECE_BYTES (1 << 20)   /* longer documents are encoded in pieces, by several threads */
#define BATCH_BYTES (32 << 20)
#define BATCH_PIECES 16384

/* ---- choosing ------------------------------------------------------------------------------------ */

static uint64_t document_hash(const Document *document, uint64_t seed)
{
    Xxh64 hash;
    xxh64_begin(&hash, seed);
    xxh64_add(&hash, document->text, document->length);
    return xxh64_end(&hash);
}

typedef struct Hashed { uint64_t hash; size_t length; } Hashed;

static int compare_hashes(const void *a, const void *b)
{
    const Hashed *left = a, *right = b;
    return (left->hash > right->hash) - (left->hash < right->hash);
}

/* All documents' hashes; NULL with an error added. */
static Hashed *hash_documents(const Inputs *inputs, const DocumentRules *rules, uint64_t seed, int64_t *count,
                              Document *last, Errors *errors)
{
    DocumentReader reader   = { .inputs = inputs, .rules = *rules };
    Hashed        *list     = NULL;
    int64_t        capacity = 0;
    int            before   = errors->count;
    for (*count = 0; documents_next(&reader, last, errors); ++*count) {
        if (*count == capacity) {
            capacity = 2 * capacity + 1024;
            Hashed *grown = realloc(list, (size_t)capacity * sizeof *grown);
            if (!grown) {
                errors_add(errors, "no memory to list %lld documents", (long long)capacity);
                break;
            }
            list = grown;
        }
        list[*count] = (Hashed){ document_hash(last, seed), last->length };
    }
    if (errors->count == before && *count == 0)
        errors_add(errors, "%s: no document in the input, only separators", inputs->files[0].path);
    if (errors->count == before)
        return list;
    free(list);
    return NULL;
}

bool split_choose(DocumentSplit *split, const Inputs *inputs, const DocumentRules *rules, double fraction,
                  uint64_t seed, Errors *errors)
{
    Document last  = { 0 };
    int64_t  count = 0;
    Hashed  *list  = hash_documents(inputs, rules, seed, &count, &last, errors);
    *split = (DocumentSplit){ .seed = seed };
    if (!list)
        return false;
    qsort(list, (size_t)count, sizeof *list, compare_hashes);
    bool fine = true;
    if (fraction <= 0) {
        split->threshold = 0;
    } else if (count == 1 && !last.escaped) {
        split->tail = fraction;
    } else if (list[0].hash == list[count - 1].hash) {
        errors_add(errors, "%s: %s, so none can be held out; give more text, --val-file or --val-fraction=0",
                   inputs->files[0].path, count == 1 ? "the only document is a line of JSON" :
                   "all documents are equal");
        fine = false;
    } else {
        double  total = 0, held = 0;
        int64_t end = 0;
        for (int64_t d = 0; d < count; d++)
            total += (double)list[d].length;
        while (end < count && held < fraction * total)
            held += (double)list[end++].length;
        /* Equal documents stay together, and the last distinct one stays for training. */
        while (end < count && list[end].hash == list[end - 1].hash)
            end++;
        while (end == count || list[end].hash == list[end - 1].hash)
            end--;
        split->threshold = list[end].hash;
    }
    free(list);
    return fine;
}

size_t split_train_bytes(const DocumentSplit *split, const Document *document)
{
    if (split->tail > 0)
        return (size_t)((1 - split->tail) * (double)document->length);
    return document_hash(document, split->seed) < split->threshold ? 0 : document->length;
}

/* ---- encoding ------------------------------------------------------------------------------------ */

typedef struct Piece {
    const char *text;
    size_t      length;
    int64_t     bytes;          /* without JSON's escapes */
    bool        escaped, first, last, held_out, failed;
    IdBuffer    ids;            /* kept between batches for its memory */
} Piece;

/* Cuts documents into pieces. */
typedef struct Cutter {
    DocumentReader       reader;
    const Tokenizer     *tokenizer;
    const DocumentSplit *split;
    Document             document;
    size_t               at, tail;      /* in the document; tail: where the held-out part of it begins */
    bool                 held_out;
} Cutter;

static bool next_document(Cutter *cutter, Errors *errors)
{
    const DocumentSplit *split = cutter->split;
    if (!documents_next(&cutter->reader, &cutter->document, errors))
        return false;
    cutter->at       = 0;
    cutter->tail     = cutter->document.length;
    size_t train     = split ? split_train_bytes(split, &cutter->document) : cutter->document.length;
    cutter->held_out = train == 0;
    if (split && split->tail > 0)
        cutter->tail =
            tokenizer_safe_cut(cutter->tokenizer, cutter->document.text, train, cutter->document.length);
    return true;
}

static bool next_piece(Cutter *cutter, Piece *piece, Errors *errors)
{
    if (cutter->at >= cutter->document.length && !next_document(cutter, errors))
        return false;
    const Document *document = &cutter->document;
    size_t begin = cutter->at, part = begin < cutter->tail ? cutter->tail : document->length, end = part;
    if (!document->escaped && part - begin > PIECE_BYTES)
        end = tokenizer_safe_cut(cutter->tokenizer, document->text, begin + PIECE_BYTES, part);
    piece->text     = document->text + begin;
    piece->length   = end - begin;
    piece->escaped  = document->escaped;
    piece->first    = begin == 0 || begin == cutter->tail;
    piece->last     = end == part;
    piece->held_out = cutter->held_out || begin >= cutter->tail;
    cutter->at      = end;
    return true;
}

static void encode_piece(Encoder *encoder, Piece *piece)
{
    char *plain = piece->escaped ? malloc(piece->length) : NULL;
    piece->ids.count = 0;
    piece->bytes     = (int64_t)(plain ? jsonl_unescape(piece->text, piece->length, plain) : piece->length);
    const char *text = plain ? plain : piece->text;
    piece->failed    = (piece->escaped && !plain) ||
                       !encoder_encode(encoder, text, (size_t)piece->bytes, false, &piece->ids);
    free(plain);
}

/* ---- writing ------------------------------------------------------------------------------------- */

typedef struct Side {
    const char      *dir, *name;
    const Tokenizer *tokenizer;
    const ShardRules *rules;
    ShardWriter     *writer;
    ShardTotals      totals;
} Side;

static bool side_open(Side *side, Errors *errors)
{
    char name[64];
    if (side->rules->shard_tokens)
        snprintf(name, sizeof name, "%s_%05d.bin", side->name, side->totals.files);
    else
        snprintf(name, sizeof name, "%s.bin", side->name);
    char     *path = files_join(side->dir, name);
    ShardInfo info = { .vocab       = tokenizer_vocab(side->tokenizer),
                       .fingerprint = tokenizer_fingerprint(side->tokenizer),
                       .boundary    = side->rules->bos ? tokenizer_bos(side->tokenizer) : -1 };
    side->writer = path ? shard_writer_open(path, side->rules->dtype, &info, errors) : NULL;
    side->totals.files++;
    free(path);
    return side->writer != NULL;
}

static bool side_close(Side *side, Errors *errors)
{
    bool fine = !side->writer || shard_writer_finish(side->writer, errors);
    side->writer = NULL;
    return fine;
}

static bool side_append(Side *side, const Piece *piece, Errors *errors)
{
    const ShardRules *rules = side->rules;
    if (piece->first && side->writer && rules->shard_tokens &&
        shard_writer_count(side->writer) >= rules->shard_tokens && !side_close(side, errors))
        return false;
    if (!side->writer && !side_open(side, errors))
        return false;
    int32_t bos = tokenizer_bos(side->tokenizer), eos = tokenizer_eos(side->tokenizer);
    int64_t before = shard_writer_count(side->writer);
    bool    fine = true;
    if (piece->first && rules->bos)
        fine = shard_writer_append(side->writer, &bos, 1, errors);
    fine = fine && shard_writer_append(side->writer, piece->ids.ids, piece->ids.count, errors);
    if (fine && piece->last && rules->eos)
        fine = shard_writer_append(side->writer, &eos, 1, errors);
    side->totals.documents += piece->first;
    side->totals.bytes     += piece->bytes;
    side->totals.tokens    += shard_writer_count(side->writer) - before;
    return fine;
}

static void show_progress(double begun, size_t done, size_t total)
{
    double seconds = machine_seconds() - begun;
    if (isatty(STDERR_FILENO) && seconds > 1)
        fprintf(stderr, "\r%.0f%% of %.0f MB, %.1f MB/s, %.0f s left  %s",
                100.0 * (double)done / (double)total, 1e-6 * (double)total, 1e-6 * (double)done / seconds,
                seconds * (double)(total - done) / (double)done, done >= total ? "\n" : "");
}

/* Cuts, encodes and appends batch after batch. */
static bool write_batches(Cutter *cutter, Piece *pieces, Encoder **encoders, Side sides[2], Errors *errors)
{
    double  begun = machine_seconds();
    size_t  done = 0, total = cutter->reader.inputs->bytes;
    int     before = errors->count, count;
    do {
        size_t bytes = 0;
        for (count = 0; count < BATCH_PIECES && bytes < BATCH_BYTES; count++) {
            if (!next_piece(cutter, &pieces[count], errors))
                break;
            bytes += pieces[count].length;
        }
        #pragma omp parallel for schedule(dynamic)
        for (int p = 0; p < count; p++)
            encode_piece(encoders[omp_get_thread_num()], &pieces[p]);
        for (int p = 0; p < count && errors->count == before; p++) {
            if (pieces[p].failed)
                errors_add(errors, "no memory to encode a document of %zu bytes", pieces[p].length);
            else
                side_append(&sides[pieces[p].held_out], &pieces[p], errors);
        }
        done += bytes;
        show_progress(begun, count ? done : total, total);
    } while (count && errors->count == before);
    return errors->count == before;
}

bool shards_write(const char *dir, const char *name, const Tokenizer *tokenizer, const Inputs *inputs,
                  const DocumentRules *rules, const DocumentSplit *split, const ShardRules *shards,
                  SplitTotals *totals, Errors *errors)
{
    Side sides[2] = { { .dir = dir, .name = split ? "train" : name, .tokenizer = tokenizer, .rules = shards },
                      { .dir = dir, .name = "val", .tokenizer = tokenizer, .rules = shards } };
    Cutter    cutter   = { .reader    = { .inputs = inputs, .rules = *rules },
                           .tokenizer = tokenizer,
                           .split     = split };
    int       threads = omp_get_max_threads();
    Piece    *pieces  = calloc(BATCH_PIECES, sizeof *pieces);
    Encoder **encoders = calloc((size_t)threads, sizeof *encoders);
    bool      fine    = pieces && encoders;
    for (int t = 0; t < threads && fine; t++)
        fine = (encoders[t] = encoder_create(tokenizer)) != NULL;
    if (!fine)
        errors_add(errors, "no memory to encode");
    fine = fine && write_batches(&cutter, pieces, encoders, sides, errors);
    for (int s = 0; s < 2; s++) {
        if (fine)
            fine = side_close(&sides[s], errors);
        else
            shard_writer_abandon(sides[s].writer);
    }
    for (int t = 0; encoders && t < threads; t++)
        encoder_free(encoders[t]);
    for (int p = 0; pieces && p < BATCH_PIECES; p++)
        id_buffer_free(&pieces[p].ids);
    free(encoders);
    free(pieces);
    *totals = (SplitTotals){ sides[0].totals, sides[1].totals };
    return fine;
}
