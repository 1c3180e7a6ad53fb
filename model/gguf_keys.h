/* The key-value part of a GGUF file, collected in memory since its count stands before it. */
#pragma once
#include "model/hf_export.h"
#include <stdio.h>

typedef struct GgufKeys {
    FILE    *out;           /* a memory stream over text */
    char    *text;          /* [bytes] after gguf_keys_close, owned */
    size_t   bytes;
    uint64_t count;
} GgufKeys;

bool gguf_keys_open(GgufKeys *keys);
bool gguf_keys_close(GgufKeys *keys);       /* false when memory ran out */

/* Little-endian pieces of the format, for keys and for the file itself. */
void gguf_put_u32(FILE *out, uint32_t value);
void gguf_put_u64(FILE *out, uint64_t value);
void gguf_put_f32(FILE *out, float value);
void gguf_put_string(FILE *out, const char *text, size_t length);

void gguf_key_u32(GgufKeys *keys, const char *name, int64_t value);
void gguf_key_f32(GgufKeys *keys, const char *name, double value);
void gguf_key_bool(GgufKeys *keys, const char *name, bool value);
void gguf_key_string(GgufKeys *keys, const char *name, const char *value);
/* An array of `count` elements of a type of 32 bits or of strings: the elements are put after it by hand. */
typedef enum GgufType {
    GGUF_U32 = 4, GGUF_I32 = 5, GGUF_F32 = 6, GGUF_BOOL = 7, GGUF_STRING = 8, GGUF_ARRAY = 9
} GgufType;
void gguf_key_array(GgufKeys *keys, const char *name, GgufType type, uint64_t count);

/* tokenizer.ggml.*: tokens, types, merges and special ids of a byte-level BPE with Llama-3's split rules,
 * which is what Tokenizer reads. scratch: a path that may be written and is removed again. */
bool gguf_tokenizer(GgufKeys *keys, const Tokenizer *tokenizer, int64_t vocab, const HfTokenIds *ids,
                    const char *scratch, Errors *errors);
