/* Rows of a ShardSet in a shuffled or sequential order, as batches.
 *
 * STREAM rows are windows of seq tokens (and the one that follows) of a shard, one after another; a window
 * never crosses shards. DOCUMENTS rows begin at a document's start, hold whole documents as many as fit, and
 * end in padding of weight 0; a document longer than a row begins a row and continues in the next ones.
 *
 * Targets across a document's edge: the last token of a document predicts the id that begins the next one
 * (the boundary token), which is how a model learns to end. It has weight 1 in every mode. Where an index
 * tells the boundaries (Megatron) and the next document begins with another id, that id is an unrelated word:
 * weight 0 with document_mask or DOCUMENTS rows. The last token of a shard has no target: weight 0. */
#pragma once
#include "data/batch.h"
#include "data/shards.h"

typedef enum LoaderRows { LOADER_STREAM, LOADER_DOCUMENTS } LoaderRows;

typedef struct LoaderOptions {
    LoaderRows rows;
    int        seq;             /* tokens of a row */
    bool       shuffle;         /* a new permutation of all rows each epoch, from seed */
    bool       keep_tail;       /* STREAM: keep a shard's last, shorter window, padded (for validation) */
    bool       one_pass;        /* loader_next ends after the last row instead of beginning an epoch */
    bool       document_mask;   /* pos and doc_start restart at each document */
    int64_t    boundary;        /* id that begins a document, -1 = none */
    uint64_t   seed;
    int64_t    limit_rows;      /* n > 0: cycle over the first n rows of epoch 0's order (overfit_batch) */
    const int32_t *token_bytes; /* [vocab] bytes of each id for target_bytes, NULL = unknown; not owned */
} LoaderOptions;

/* Where the next row comes from: all that a checkpoint needs. It counts rows, so it does not depend on the
 * batch size. */
typedef struct LoaderCursor {
    int64_t epoch;
    int64_t index;              /* rows of this epoch already given, < loader_rows */
} LoaderCursor;

typedef struct Loader Loader;

/* The set must outlive the loader. NULL with an error added when the data holds no row, or when DOCUMENTS or
 * document_mask is asked for and nothing tells where documents begin. */
Loader *loader_create(const ShardSet *set, const LoaderOptions *options, Errors *errors);
void loader_destroy(Loader *loader);

int64_t loader_rows(const Loader *loader);          /* rows of an epoch */
int64_t loader_tokens(const Loader *loader);        /* tokens in them, without padding */

/* Fills every array of the batch (batch->seq must be the loader's) with the next batch->sequences rows,
 * across the epoch's edge where it comes. With one_pass: rows after the last are padding, and false is
 * returned when there was none to give. */
bool loader_next(Loader *loader, Batch *batch);

LoaderCursor loader_cursor(const Loader *loader);
/* Continues exactly where cursor was taken. False with an error added when it does not fit these rows. */
bool loader_seek(Loader *loader, LoaderCursor cursor, Errors *errors);

/* Allocates the arrays of a batch in ordinary memory; false when memory is short. */
bool batch_create(Batch *batch, int sequences, int seq);
void batch_free(Batch *batch);
