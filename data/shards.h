/* Token files, mapped read-only: llm.c uint16 (v1) and uint32 (v7), raw uint16/uint32, Megatron .bin/.idx.
 * docs/FORMATS.md has the layouts. Every count and offset is 64-bit. Files must not shrink while they are
 * open. */
#pragma once
#include "model/errors.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SHARD_MAGIC_U16   20240520   /* version 1: written by llm.c's GPT-2 scripts, modded-nanogpt */
#define SHARD_MAGIC_U32   20240801   /* version 7: written by llm.c's Llama-3 scripts and ./train tokenize */
#define SHARD_HEADER_INTS 256        /* int32 words before the tokens */

/* Of files without a header; files with one say it themselves. AUTO refuses raw files. */
typedef enum ShardDtype { SHARD_AUTO, SHARD_U16, SHARD_U32 } ShardDtype;

typedef struct Shard {
    char          *path;        /* owned */
    const uint8_t *tokens;      /* [count * width] little-endian, inside the mapping */
    int            width;       /* bytes of an id: 1, 2, 4 or 8 */
    int64_t        count;       /* ids */
    uint64_t       offset;      /* of the first id in the file, bytes */
    int64_t        boundary;    /* id that begins a document, from the header, -1 = not said */
    uint64_t       fingerprint; /* of the tokenizer, from the header, 0 = not said */
    int64_t       *documents;   /* [document_count] first id of each, ascending; NULL: only ids tell; owned */
    int64_t        document_count;
    void          *map;
    size_t         map_bytes;
} Shard;

typedef struct ShardSet {
    Shard   *shards;            /* [count], in the order of the patterns, sorted inside each */
    int      count;
    int64_t  tokens;            /* sum of the shards' counts */
    int64_t  boundary;          /* what the headers say, -1 = nothing, or they disagree */
    uint64_t fingerprint;       /* of the tokenizer, 0 = none said */
} ShardSet;

/* Opens every file that the comma-separated glob patterns name and checks it: format, size, and in one pass
 * every id against vocab (0 = unknown: no check). The pass reads each file once at memory or disk speed and
 * so finds a bad id before a run instead of hours into it. Errors: one line per bad file (missing, not a
 * regular file, empty, truncated, wrong magic or version, size that does not match the header, id >= vocab
 * with its offset). Returns NULL when anything was wrong. */
ShardSet *shards_open(const char *patterns, ShardDtype dtype, int64_t vocab, Errors *errors);
void shards_close(ShardSet *set);
/* Only whether each pattern names a file; adds an error for each that does not. */
void shards_find(const char *patterns, Errors *errors);

static inline int32_t shard_token(const Shard *shard, int64_t index)
{
    switch (shard->width) {
    case 1:  return shard->tokens[index];
    case 2:  return ((const uint16_t *)shard->tokens)[index];
    case 4:  return (int32_t)((const uint32_t *)shard->tokens)[index];
    default: return (int32_t)((const uint64_t *)shard->tokens)[index];
    }
}

/* ---- writing ------------------------------------------------------------------------------------- */

/* What a header says beside the count. */
typedef struct ShardInfo {
    int64_t  vocab;             /* 0 = not said */
    int64_t  boundary;          /* -1 = none */
    uint64_t fingerprint;       /* 0 = not said */
} ShardInfo;

typedef struct ShardWriter ShardWriter;

/* Writes `path`.tmp; shard_writer_finish completes the header, syncs and renames it to `path`, so that a
 * file with the final name is always whole (files_sync_dir makes the name durable). dtype: SHARD_U16 or
 * SHARD_U32. NULL with an error added when the file cannot be made. */
ShardWriter *shard_writer_open(const char *path, ShardDtype dtype, const ShardInfo *info, Errors *errors);
/* False with an error added when an id does not fit the dtype or writing fails (disk full). */
bool shard_writer_append(ShardWriter *writer, const int32_t *ids, int64_t count, Errors *errors);
int64_t shard_writer_count(const ShardWriter *writer);
/* Frees the writer in any case; false with an error added, and no file left, when finishing fails. */
bool shard_writer_finish(ShardWriter *writer, Errors *errors);
/* Frees the writer and removes the unfinished file. */
void shard_writer_abandon(ShardWriter *writer);
