/* Text from a model, token by token. */
#pragma once
#include "data/tokenizer.h"
#include "model/llama.h"
#include "model/sampler.h"

typedef struct GenerateOptions {
    const char *prompt;         /* text; BOS is put before it where the tokenizer has one */
    int64_t     tokens;         /* most new tokens */
    double      temperature, top_p;
    int64_t     top_k;
    uint64_t    key;            /* of the random stream */
} GenerateOptions;

/* Calls piece(bytes, length, user) with the prompt and then each token's bytes as they come; stops at BOS,
 * EOS, the most new tokens, or the end of the model's context. False with an error added. */
bool generate(Llama *model, int64_t context, const Tokenizer *tokenizer, const GenerateOptions *options,
              void (*piece)(const char *bytes, size_t length, void *user), void *user, Errors *errors);
