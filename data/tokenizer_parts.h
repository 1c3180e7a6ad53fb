/* The inside of a tokenizer, shared by the files that make, read, write and run one. */
#pragma once
#include "data/tokenizer.h"

typedef enum TokenKind { TOKEN_UNUSED, TOKEN_PLAIN, TOKEN_ADDED, TOKEN_SPECIAL } TokenKind;

/* Rule: ids left, right side by side become merged; the lowest rank goes first. */
typedef struct Merge { int32_t left, right, merged, rank; } Merge;

/* Open addressing from a pair of ids to its rule. */
typedef struct MergeTable {
    Merge   *slots;         /* [mask + 1]; rank < 0: free */
    uint64_t mask;
} MergeTable;

/* Open addressing from bytes to the id of a plain token. */
typedef struct WordTable {
    int32_t *slots;         /* [mask + 1] ids, -1 free */
    uint64_t mask;
} WordTable;

struct Tokenizer {
    int64_t    vocab;
    char     **text;        /* [vocab] bytes of each id, owned; NULL when unused */
    uint32_t  *length;      /* [vocab] */
    uint8_t   *kind;        /* [vocab] TokenKind */
    int32_t    bos, eos;    /* -1 = none */
    int32_t    byte_ids[256];
    bool       whole_words; /* a word that is a token needs no merges (ignore_merges) */
    Merge     *merges;      /* [merge_count], by rank */
    int64_t    merge_count;
    MergeTable merge_table;
    WordTable  words;       /* of plain tokens */
    int32_t   *added;       /* [added_count] ids of kinds ADDED and SPECIAL, longest text first */
    int64_t    added_count;
    bool       added_begins[2][256];  /* bytes that some ADDED name begins with; [1]: or a SPECIAL one */
    uint8_t   *classes;     /* of split.h */
};

/* A tokenizer of `vocab` unused ids; NULL when memory is short. */
Tokenizer *tokenizer_new(int64_t vocab);
/* Sets the bytes of an id, copied. False when memory is short. */
bool tokenizer_set(Tokenizer *tokenizer, int32_t id, TokenKind kind, const char *text, size_t length);
/* Builds the tables once all tokens and merges (ranks ascending) are in; checks that all 256 bytes have an
 * id. name: of the file, for errors. False with an error added. */
bool tokenizer_complete(Tokenizer *tokenizer, const char *name, Errors *errors);

/* Id of the plain token with these bytes, -1 = none. Needs words_index first. */
int32_t words_find(const Tokenizer *tokenizer, const char *text, size_t length);
/* Builds tokenizer->words from the plain tokens: false when memory is short. */
bool words_index(Tokenizer *tokenizer);
static inline uint64_t pair_hash(int32_t left, int32_t right)
{
    uint64_t key = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15ull;
    return key ^ key >> 32;
}

/* Readers of file contents; NULL with errors added. */
Tokenizer *tokenizer_from_json(const char *path, const char *text, size_t length, Errors *errors);
Tokenizer *tokenizer_from_ranks(const char *path, const char *text, size_t length, Errors *errors);
