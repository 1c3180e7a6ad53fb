#include "model/generate.h"
#include <string.h>

/* The prompt's ids, with BOS before them. */
static bool encode_prompt(const Tokenizer *tokenizer, const char *prompt, IdBuffer *ids)
{
    int32_t bos = tokenizer_bos(tokenizer);
    if (bos >= 0 && !id_buffer_append(ids, &bos, 1)) return false;
    return tokenizer_encode(tokenizer, prompt, strlen(prompt), false, ids);
}

bool generate(Llama *model, int64_t context, const Tokenizer *tokenizer, const GenerateOptions *options,
              void (*piece)(const char *bytes, size_t length, void *user), void *user, Errors *errors)
{
    IdBuffer ids = {0};
    Sampler sampler = {0};
    bool ok = false;
    if (!encode_prompt(tokenizer, options->prompt, &ids) ||
        !sampler_init(&sampler, model->shape.vocab, options->temperature, options->top_k, options->top_p,
                      options->key)) {
        errors_add(errors, "out of memory while preparing the sample");
        goto done;
    }
    if (ids.count == 0) {
        errors_add(errors,
                   "the prompt is empty and the tokenizer has no token that begins a text: give a prompt");
        goto done;
    }
    if (ids.count >= context) {
        errors_add(errors, "the prompt has %lld tokens, the context only %lld", (long long)ids.count,
                   (long long)context);
        goto done;
    }
    piece(options->prompt, strlen(options->prompt), user);
    const float *logits = llama_next_logits(model, ids.ids, ids.count, 0);
    for (int64_t past = ids.count, n = 0; n < options->tokens; n++, past++) {
        int32_t next = sampler_next(&sampler, logits);
        size_t length;
        const char *bytes = tokenizer_decode(tokenizer, next, &length);
        if (next == tokenizer_bos(tokenizer) || next == tokenizer_eos(tokenizer)) break;
        if (bytes) piece(bytes, length, user);
        if (n + 1 == options->tokens || past >= context) break;
        logits = llama_next_logits(model, &next, 1, past);
    }
    ok = true;
done:
    sampler_free(&sampler);
    id_buffer_free(&ids);
    return ok;
}
