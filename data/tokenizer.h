/* Byte-level tokenizers: 256 bytes and specials ("bytes"), or byte-level BPE with Llama-3's split rules, read
 * from and written to Hugging Face's tokenizer.json, read from tiktoken's rank files, or trained here.
 *
 * Text is any bytes: bytes that are not UTF-8 count as symbols of their own and come back unchanged. */
#pragma once
#include "model/errors.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOKENIZER_BOS "<|begin_of_text|>"
#define TOKENIZER_EOS "<|end_of_text|>"

typedef struct Tokenizer Tokenizer;     /* read-only after it is made: shared by threads freely */
typedef struct Encoder   Encoder;       /* a thread's own state: scratch and a cache of words */

typedef struct IdBuffer {
    int32_t *ids;                       /* [capacity], owned; start from {0}, free with id_buffer_free */
    int64_t  count, capacity;
} IdBuffer;

/* path: a tokenizer.json, a tiktoken rank file (tokenizer.model of Llama 3), a directory that holds one of
 * them, or the word "bytes". NULL with errors added when it cannot be read or asks for something (a
 * normalizer, another pre-tokenizer, ...) that is not done here: refused, never approximated. */
Tokenizer *tokenizer_load(const char *path, Errors *errors);
Tokenizer *tokenizer_bytes(void);       /* ids 0-255 the bytes, 256 BOS, 257 EOS */

typedef struct TextSpan { const char *text; size_t length; } TextSpan;

/* Learns byte-level BPE: ids 0-255 the bytes, then merges by falling count (equal counts: the pair with the
 * smaller ids first), then BOS, EOS; vocab >= 258 tokens in all, fewer when no pair occurs twice. Pairs never
 * cross texts. NULL with an error added when memory is short. */
Tokenizer *tokenizer_train(const TextSpan *texts, int64_t count, int64_t vocab, Errors *errors);
/* Writes tokenizer.json (path.tmp, then renamed). False with an error added when it cannot. */
bool tokenizer_save(const Tokenizer *tokenizer, const char *path, Errors *errors);
void tokenizer_free(Tokenizer *tokenizer);

int64_t  tokenizer_vocab(const Tokenizer *tokenizer);        /* largest id + 1 */
int32_t  tokenizer_bos(const Tokenizer *tokenizer);          /* -1 = none */
int32_t  tokenizer_eos(const Tokenizer *tokenizer);          /* -1 = none */
uint64_t tokenizer_fingerprint(const Tokenizer *tokenizer); /* hash of every id's bytes: names it in shards */

/* Bytes of one id, inside the tokenizer; specials give their name. NULL, *length 0, for an unused id. */
const char *tokenizer_decode(const Tokenizer *tokenizer, int32_t id, size_t *length);
/* bytes[id] for id < tokenizer_vocab: bytes of text that an id stands for, 0 for specials and unused ids. */
void tokenizer_token_bytes(const Tokenizer *tokenizer, int32_t *bytes);

/* Appends the ids of text to out. Never adds BOS or EOS; names of specials inside the text are read as plain
 * text unless specials is true. False when memory is short. */
bool tokenizer_encode(const Tokenizer *tokenizer, const char *text, size_t length, bool specials,
                      IdBuffer *out);

/* The first place at or after `from` where text may be cut so that both parts, encoded apart, give the ids of
 * the whole; length when there is none. */
size_t tokenizer_safe_cut(const Tokenizer *tokenizer, const char *text, size_t from, size_t length);

/* tokenizer_encode for many texts: one encoder per thread keeps its cache between calls. */
Encoder *encoder_create(const Tokenizer *tokenizer);
bool encoder_encode(Encoder *encoder, const char *text, size_t length, bool specials, IdBuffer *out);
void encoder_free(Encoder *encoder);

bool id_buffer_append(IdBuffer *buffer, const int32_t *ids, int64_t count);
void id_buffer_free(IdBuffer *buffer);
