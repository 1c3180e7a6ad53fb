/* Text to ids: special names, words by the split rules, merges inside a word. */
#include "data/split.h"
#include "data/tokenizer_parts.h"
#include <stdlib.h>
#include <string.h>

/* A cached word fills one cache line. */
#define CACHE_SLOTS (1 << 16)
#define CACHE_TEXT  30
#define CACHE_IDS   8

typedef struct CachedWord {
    uint8_t length, count;      /* length 0: free */
    char    text[CACHE_TEXT];   /* zeros behind the word */
    int32_t ids[CACHE_IDS];
} CachedWord;

/* One symbol of the word that is being merged. */
typedef struct Piece {
    int32_t id, rank, merged;   /* rank of the rule for this piece and the next, -1 = none; what it makes */
    int64_t next, previous;     /* indices, -1 = end */
} Piece;

struct Encoder {
    const Tokenizer *tokenizer;
    CachedWord      *cache;     /* [CACHE_SLOTS] */
    Piece           *pieces;    /* [capacity] */
    uint64_t        *heap;      /* [2 * capacity] rank << RANK_SHIFT | piece: lowest, then leftmost, first */
    int64_t          capacity, heap_count;
};

#define RANK_SHIFT 40           /* words of up to a TiB, 16 M rules */

Encoder *encoder_create(const Tokenizer *tokenizer)
{
    Encoder *encoder = calloc(1, sizeof *encoder);
    if (!encoder)
        return NULL;
    encoder->tokenizer = tokenizer;
    encoder->cache     = calloc(CACHE_SLOTS, sizeof *encoder->cache);
    if (encoder->cache)
        return encoder;
    free(encoder);
    return NULL;
}

void encoder_free(Encoder *encoder)
{
    if (!encoder)
        return;
    free(encoder->cache);
    free(encoder->pieces);
    free(encoder->heap);
    free(encoder);
}

/* ---- merging one word ---------------------------------------------------------------------------- */

static void heap_push(Encoder *encoder, uint64_t key)
{
    uint64_t *heap = encoder->heap;
    int64_t   at   = encoder->heap_count++;
    for (int64_t up; at > 0 && heap[up = (at - 1) / 2] > key; at = up)
        heap[at] = heap[up];
    heap[at] = key;
}

static uint64_t heap_pop(Encoder *encoder)
{
    uint64_t *heap = encoder->heap, top = heap[0], last = heap[--encoder->heap_count];
    int64_t   at = 0, count = encoder->heap_count;
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        child += child + 1 < count && heap[child + 1] < heap[child];
        if (heap[child] >= last)
            break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return top;
}

/* Looks up the rule for piece i and its successor, and queues it. */
static void queue_pair(Encoder *encoder, int64_t i)
{
    const MergeTable *table = &encoder->tokenizer->merge_table;
    Piece            *piece = &encoder->pieces[i];
    piece->rank = -1;
    if (piece->next < 0)
        return;
    int32_t  left = piece->id, right = encoder->pieces[piece->next].id;
    uint64_t slot = pair_hash(left, right) & table->mask;
    for (; table->slots[slot].rank >= 0; slot = (slot + 1) & table->mask)
        if (table->slots[slot].left == left && table->slots[slot].right == right) {
            piece->rank   = table->slots[slot].rank;
            piece->merged = table->slots[slot].merged;
            heap_push(encoder, (uint64_t)piece->rank << RANK_SHIFT | (uint64_t)i);
            return;
        }
}

/* Room for a word of `length` bytes. A merge removes one entry of the heap and adds at most two, and there
 * are at most length - 1 merges after length - 1 first entries. */
static bool reserve(Encoder *encoder, size_t length)
{
    if ((int64_t)length <= encoder->capacity)
        return true;
    size_t    capacity = 2 * length + 64;
    Piece    *pieces   = realloc(encoder->pieces, capacity * sizeof *pieces);
    if (pieces)
        encoder->pieces = pieces;
    uint64_t *heap     = realloc(encoder->heap, 2 * capacity * sizeof *heap);
    if (heap)
        encoder->heap = heap;
    if (!pieces || !heap)
        return false;
    encoder->capacity = (int64_t)capacity;
    return true;
}

/* Appends the ids of a word by merging it: the rule of lowest rank first, the leftmost of equals, until none
 * applies. n log n in the word's length. */
static bool merge_word(Encoder *encoder, const char *text, size_t length, IdBuffer *out)
{
    if (!reserve(encoder, length))
        return false;
    Piece *pieces = encoder->pieces;
    for (int64_t i = 0; i < (int64_t)length; i++)
        pieces[i] = (Piece){ .id = encoder->tokenizer->byte_ids[(uint8_t)text[i]], .previous = i - 1,
                             .next = i + 1 < (int64_t)length ? i + 1 : -1 };
    encoder->heap_count = 0;
    for (int64_t i = 0; i < (int64_t)length; i++)
        queue_pair(encoder, i);
    while (encoder->heap_count) {
        uint64_t key   = heap_pop(encoder);
        int64_t  i     = (int64_t)(key & (((uint64_t)1 << RANK_SHIFT) - 1)), gone = pieces[i].next;
        if (pieces[i].rank != (int32_t)(key >> RANK_SHIFT))
            continue;           /* its piece was merged otherwise since */
        pieces[i].id      = pieces[i].merged;
        pieces[i].next    = pieces[gone].next;
        pieces[gone].rank = -1;
        if (pieces[gone].next >= 0)
            pieces[pieces[gone].next].previous = i;
        queue_pair(encoder, i);
        if (pieces[i].previous >= 0)
            queue_pair(encoder, pieces[i].previous);
    }
    for (int64_t i = 0; i >= 0; i = pieces[i].next)
        if (!id_buffer_append(out, &pieces[i].id, 1))
            return false;
    return true;
}

static bool encode_word(Encoder *encoder, const char *text, size_t length, IdBuffer *out)
{
    const Tokenizer *tokenizer = encoder->tokenizer;
    if (length == 1)
        return id_buffer_append(out, &tokenizer->byte_ids[(uint8_t)*text], 1);
    CachedWord *cached = NULL, word = { .length = (uint8_t)length };
    if (length <= CACHE_TEXT) {
        uint64_t part[4] = { 0 };
        memcpy(word.text, text, length);
        memcpy(part, &word, 32);
        uint64_t hash = part[0] * 0x9e3779b97f4a7c15ull ^ part[1] * 0xc2b2ae3d27d4eb4full ^
                        part[2] * 0x165667b19e3779f9ull ^ part[3] * 0xd6e8feb86659fd93ull;
        cached = &encoder->cache[(hash ^ hash >> 32) % CACHE_SLOTS];
        if (cached->length == length && !memcmp(cached->text, word.text, CACHE_TEXT))
            return id_buffer_append(out, cached->ids, cached->count);
    }
    int64_t before = out->count;
    int32_t whole  = tokenizer->whole_words ? words_find(tokenizer, text, length) : -1;
    bool    fine   = whole >= 0 ? id_buffer_append(out, &whole, 1) : merge_word(encoder, text, length, out);
    int64_t count  = out->count - before;
    if (fine && cached && count <= CACHE_IDS) {
        word.count = (uint8_t)count;
        memcpy(word.ids, out->ids + before, (size_t)count * sizeof *word.ids);
        *cached = word;
    }
    return fine;
}

/* ---- text ---------------------------------------------------------------------------------------- */

static bool encode_plain(Encoder *encoder, const char *text, size_t length, IdBuffer *out)
{
    const Tokenizer *tokenizer = encoder->tokenizer;
    bool   split = tokenizer->merge_count > 0 || tokenizer->whole_words;
    size_t word;
    for (size_t at = 0; at < length; at += word) {
        word = split ? split_next(tokenizer->classes, text + at, length - at) : 1;
        if (!encode_word(encoder, text + at, word, out))
            return false;
    }
    return true;
}

/* The added token, the longest, whose name stands at text, or -1. */
static int32_t added_at(const Tokenizer *tokenizer, const char *text, size_t length, bool specials)
{
    for (int64_t a = 0; a < tokenizer->added_count; a++) {
        int32_t id = tokenizer->added[a];
        if ((specials || tokenizer->kind[id] != TOKEN_SPECIAL) && tokenizer->length[id] <= length &&
            !memcmp(text, tokenizer->text[id], tokenizer->length[id]))
            return id;
    }
    return -1;
}

bool encoder_encode(Encoder *encoder, const char *text, size_t length, bool specials, IdBuffer *out)
{
    const Tokenizer *tokenizer = encoder->tokenizer;
    const bool      *begins    = tokenizer->added_begins[specials];
    size_t           begin     = 0;
    for (size_t at = 0; at < length && tokenizer->added_count > 0; at++) {
        int32_t id = begins[(uint8_t)text[at]] ? added_at(tokenizer, text + at, length - at, specials) : -1;
        if (id < 0)
            continue;
        if (!encode_plain(encoder, text + begin, at - begin, out) || !id_buffer_append(out, &id, 1))
            return false;
        begin = at + tokenizer->length[id];
        at    = begin - 1;
    }
    return encode_plain(encoder, text + begin, length - begin, out);
}

bool tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t length, bool specials,
                      IdBuffer *out)
{
    Encoder *encoder = encoder_create(tokenizer);
    bool     fine    = encoder && encoder_encode(encoder, text, length, specials, out);
    encoder_free(encoder);
    return fine;
}

size_t tokenizer_safe_cut(const Tokenizer *tokenizer, const char *text, size_t from, size_t length)
{
    for (int64_t a = 0; a < tokenizer->added_count; a++) {
        int32_t id = tokenizer->added[a];
        if (memchr(tokenizer->text[id], '\n', tokenizer->length[id]))
            return length;      /* cuts fall behind newlines, perhaps inside this name */
    }
    return split_safe_cut(tokenizer->classes, text, from, length);
}
