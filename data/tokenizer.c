/* What all tokenizers share: tokens, tables, decoding, loading by kind of file. */
#include "data/tokenizer.h"
#include "data/split.h"
#include "data/tokenizer_parts.h"
#include "model/files.h"
#include "model/xxh64.h"
#include <stdlib.h>
#include <string.h>

/* ---- making -------------------------------------------------------------------------------------- */

Tokenizer *tokenizer_new(int64_t vocab)
{
    Tokenizer *tokenizer = calloc(1, sizeof *tokenizer);
    if (!tokenizer)
        return NULL;
    tokenizer->vocab  = vocab;
    tokenizer->bos    = tokenizer->eos = -1;
    tokenizer->text   = calloc(vocab, sizeof *tokenizer->text);
    tokenizer->length = calloc(vocab, sizeof *tokenizer->length);
    tokenizer->kind   = calloc(vocab, sizeof *tokenizer->kind);
    if (tokenizer->text && tokenizer->length && tokenizer->kind)
        return tokenizer;
    tokenizer_free(tokenizer);
    return NULL;
}

void tokenizer_free(Tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    for (int64_t id = 0; tokenizer->text && id < tokenizer->vocab; id++)
        free(tokenizer->text[id]);
    free(tokenizer->text);
    free(tokenizer->length);
    free(tokenizer->kind);
    free(tokenizer->merges);
    free(tokenizer->merge_table.slots);
    free(tokenizer->words.slots);
    free(tokenizer->added);
    free(tokenizer->classes);
    free(tokenizer);
}

bool tokenizer_set(Tokenizer *tokenizer, int32_t id, TokenKind kind, const char *text, size_t length)
{
    char *copy = malloc(length + 1);
    if (!copy)
        return false;
    memcpy(copy, text, length);
    copy[length] = '\0';
    free(tokenizer->text[id]);
    tokenizer->text[id]   = copy;
    tokenizer->length[id] = (uint32_t)length;
    tokenizer->kind[id]   = kind;
    return true;
}

static uint64_t table_size(int64_t entries)
{
    uint64_t size = 16;
    while (size < 2 * (uint64_t)entries)
        size *= 2;
    return size;
}

static uint64_t bytes_hash(const char *text, size_t length)
{
    uint64_t hash = length;
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (uint8_t)text[i]) * 0x100000001b3ull;
    return hash ^ hash >> 29;
}

static void words_add(Tokenizer *tokenizer, int32_t id)
{
    uint64_t slot = bytes_hash(tokenizer->text[id], tokenizer->length[id]) & tokenizer->words.mask;
    while (tokenizer->words.slots[slot] >= 0)
        slot = (slot + 1) & tokenizer->words.mask;
    tokenizer->words.slots[slot] = id;
}

bool words_index(Tokenizer *tokenizer)
{
    uint64_t size = table_size(tokenizer->vocab);
    free(tokenizer->words.slots);
    tokenizer->words = (WordTable){ malloc(size * sizeof(int32_t)), size - 1 };
    if (!tokenizer->words.slots)
        return false;
    memset(tokenizer->words.slots, 0xff, size * sizeof(int32_t));
    for (int32_t id = 0; id < tokenizer->vocab; id++)
        if (tokenizer->kind[id] == TOKEN_PLAIN)
            words_add(tokenizer, id);
    return true;
}

int32_t words_find(const Tokenizer *tokenizer, const char *text, size_t length)
{
    uint64_t slot = bytes_hash(text, length) & tokenizer->words.mask;
    for (int32_t id; (id = tokenizer->words.slots[slot]) >= 0; slot = (slot + 1) & tokenizer->words.mask)
        if (tokenizer->length[id] == length && !memcmp(tokenizer->text[id], text, length))
            return id;
    return -1;
}

/* A pair that is named twice keeps its first, lowest rank. */
static bool index_merges(Tokenizer *tokenizer)
{
    uint64_t    size  = table_size(tokenizer->merge_count);
    MergeTable *table = &tokenizer->merge_table;
    *table = (MergeTable){ malloc(size * sizeof(Merge)), size - 1 };
    if (!table->slots)
        return false;
    for (uint64_t i = 0; i < size; i++)
        table->slots[i].rank = -1;
    for (int64_t m = 0; m < tokenizer->merge_count; m++) {
        const Merge *merge = &tokenizer->merges[m];
        uint64_t     slot  = pair_hash(merge->left, merge->right) & table->mask;
        while (table->slots[slot].rank >= 0 &&
               (table->slots[slot].left != merge->left || table->slots[slot].right != merge->right))
            slot = (slot + 1) & table->mask;
        if (table->slots[slot].rank < 0)
            table->slots[slot] = *merge;
    }
    return true;
}

/* Added tokens by falling length, so that the first match is the longest; and BOS and EOS by their names. */
static bool index_added(Tokenizer *tokenizer)
{
    tokenizer->added = malloc((tokenizer->vocab + 1) * sizeof *tokenizer->added);
    if (!tokenizer->added)
        return false;
    for (int32_t id = 0; id < tokenizer->vocab; id++) {
        if (tokenizer->kind[id] != TOKEN_ADDED && tokenizer->kind[id] != TOKEN_SPECIAL)
            continue;
        int64_t at = tokenizer->added_count++;
        for (; at > 0 && tokenizer->length[tokenizer->added[at - 1]] < tokenizer->length[id]; at--)
            tokenizer->added[at] = tokenizer->added[at - 1];
        tokenizer->added[at] = id;
        uint8_t first = (uint8_t)tokenizer->text[id][0];
        tokenizer->added_begins[1][first] = true;
        if (tokenizer->kind[id] == TOKEN_ADDED)
            tokenizer->added_begins[0][first] = true;
        if (!strcmp(tokenizer->text[id], TOKENIZER_BOS))
            tokenizer->bos = id;
        if (!strcmp(tokenizer->text[id], TOKENIZER_EOS))
            tokenizer->eos = id;
    }
    return true;
}

bool tokenizer_complete(Tokenizer *tokenizer, const char *name, Errors *errors)
{
    tokenizer->classes = split_make_classes();
    if (!tokenizer->classes || !words_index(tokenizer) || !index_merges(tokenizer) ||
        !index_added(tokenizer)) {
        errors_add(errors, "%s: no memory for the tokenizer's tables", name);
        return false;
    }
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        tokenizer->byte_ids[b] = words_find(tokenizer, &byte, 1);
        if (tokenizer->byte_ids[b] < 0) {
            errors_add(errors,
                       "%s: byte %d has no token; only byte-level vocabularies, which can spell any text, "
                       "are read",
                       name, b);
            return false;
        }
    }
    return true;
}

Tokenizer *tokenizer_bytes(void)
{
    Tokenizer *tokenizer = tokenizer_new(258);
    Errors     none      = { 0 };
    bool       fine      = tokenizer != NULL;
    for (int b = 0; b < 256 && fine; b++)
        fine = tokenizer_set(tokenizer, b, TOKEN_PLAIN, &(char){ (char)b }, 1);
    fine = fine && tokenizer_set(tokenizer, 256, TOKEN_SPECIAL, TOKENIZER_BOS, strlen(TOKENIZER_BOS)) &&
           tokenizer_set(tokenizer, 257, TOKEN_SPECIAL, TOKENIZER_EOS, strlen(TOKENIZER_EOS)) &&
           tokenizer_complete(tokenizer, "bytes", &none);
    errors_free(&none);
    if (fine)
        return tokenizer;
    tokenizer_free(tokenizer);
    return NULL;
}

/* ---- loading ------------------------------------------------------------------------------------- */

static Tokenizer *load_file(const char *path, Errors *errors)
{
    size_t length = 0;
    char  *text   = files_read(path, &length, errors);
    if (!text)
        return NULL;
    size_t at = strspn(text, " \t\r\n");
    Tokenizer *tokenizer = text[at] == '{' ? tokenizer_from_json(path, text, length, errors) :
                                             tokenizer_from_ranks(path, text, length, errors);
    free(text);
    return tokenizer;
}

Tokenizer *tokenizer_load(const char *path, Errors *errors)
{
    if (!strcmp(path, "bytes")) {
        Tokenizer *tokenizer = tokenizer_bytes();
        if (!tokenizer)
            errors_add(errors, "no memory for the byte tokenizer");
        return tokenizer;
    }
    if (!files_is_dir(path))
        return load_file(path, errors);

    static const char *const names[] = { "tokenizer.json", "tokenizer.model" };
    for (size_t n = 0; n < 2; n++) {
        char *file = files_join(path, names[n]);
        if (file && files_exists(file)) {
            Tokenizer *tokenizer = load_file(file, errors);
            free(file);
            return tokenizer;
        }
        free(file);
    }
    errors_add(errors, "%s: holds neither tokenizer.json nor tokenizer.model", path);
    return NULL;
}

/* ---- facts and decoding -------------------------------------------------------------------------- */

int64_t tokenizer_vocab(const Tokenizer *tokenizer)
{
    return tokenizer->vocab;
}

int32_t tokenizer_bos(const Tokenizer *tokenizer)
{
    return tokenizer->bos;
}

int32_t tokenizer_eos(const Tokenizer *tokenizer)
{
    return tokenizer->eos;
}

uint64_t tokenizer_fingerprint(const Tokenizer *tokenizer)
{
    Xxh64 hash;
    xxh64_begin(&hash, 0);
    for (int64_t id = 0; id < tokenizer->vocab; id++) {
        xxh64_add(&hash, &tokenizer->kind[id], 1);
        xxh64_add(&hash, &tokenizer->length[id], sizeof tokenizer->length[id]);
        xxh64_add(&hash, tokenizer->text[id] ? tokenizer->text[id] : "", tokenizer->length[id]);
    }
    return xxh64_end(&hash);
}

const char *tokenizer_decode(const Tokenizer *tokenizer, int32_t id, size_t *length)
{
    bool used = id >= 0 && id < tokenizer->vocab;
    *length = used ? tokenizer->length[id] : 0;
    return used ? tokenizer->text[id] : NULL;
}

void tokenizer_token_bytes(const Tokenizer *tokenizer, int32_t *bytes)
{
    for (int64_t id = 0; id < tokenizer->vocab; id++)
        bytes[id] = tokenizer->kind[id] == TOKEN_SPECIAL ? 0 : (int32_t)tokenizer->length[id];
}

bool id_buffer_append(IdBuffer *buffer, const int32_t *ids, int64_t count)
{
    if (buffer->count + count > buffer->capacity) {
        int64_t  capacity = 2 * (buffer->count + count) + 64;
        int32_t *grown    = realloc(buffer->ids, (size_t)capacity * sizeof *grown);
        if (!grown)
            return false;
        buffer->ids      = grown;
        buffer->capacity = capacity;
    }
    if (count > 0)
        memcpy(buffer->ids + buffer->count, ids, (size_t)count * sizeof *ids);
    buffer->count += count;
    return true;
}

void id_buffer_free(IdBuffer *buffer)
{
    free(buffer->ids);
    *buffer = (IdBuffer){ 0 };
}
