/* Documents to token shards: the working part of ./train tokenize. */
#pragma once
#include "data/documents.h"
#include "data/shards.h"
#include "data/tokenizer.h"

/* How documents become ids. */
typedef struct ShardRules {
    ShardDtype dtype;           /* SHARD_U16 or SHARD_U32 */
    bool       bos, eos;        /* around each document */
    int64_t    shard_tokens;    /* a new file is begun at the first document behind this many; 0 = one file */
} ShardRules;

/* Which documents of the inputs are meant: by a hash of their bytes, so that equal documents are always on
 * the same side. */
typedef struct DocumentSplit {
    uint64_t seed, threshold;   /* held out: hash below threshold */
    double   tail;              /* > 0: the inputs are one document, and its last part is held out */
} DocumentSplit;

typedef struct ShardTotals {
    int64_t documents, bytes, tokens;
    int     files;
} ShardTotals;

typedef struct SplitTotals { ShardTotals train, held_out; } SplitTotals;

/* Reads all documents and chooses some of about `fraction` of the bytes for the held-out side: none with 0,
 * else at least one and not all. False with an error added when there are no documents, or when all are
 * equal. */
bool split_choose(DocumentSplit *split, const Inputs *inputs, const DocumentRules *rules, double fraction,
                  uint64_t seed, Errors *errors);

/* Bytes at the document's begin that are for training: all, none, or with a tail about the part before it. */
size_t split_train_bytes(const DocumentSplit *split, const Document *document);

/* Writes dir/train.bin and dir/val.bin (dir/train_00000.bin, ... with shard_tokens), encoding on all threads.
 * split NULL: everything to `name` ("train" or "val") only. Progress goes to stderr when it is a terminal. */
bool shards_write(const char *dir, const char *name, const Tokenizer *tokenizer, const Inputs *inputs,
                  const DocumentRules *rules, const DocumentSplit *split, const ShardRules *shards,
                  SplitTotals *totals, Errors *errors);
