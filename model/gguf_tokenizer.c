#include "model/files.h"
#include "model/gguf_keys.h"
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum TokenType { TOKEN_NORMAL = 1, TOKEN_CONTROL = 3, TOKEN_USER = 4, TOKEN_UNUSED = 5 } TokenType;

typedef struct Token { const char *text; TokenType type; } Token;

/* Places a token of the JSON; false where its id is not below vocab. */
static bool place(Token *tokens, int64_t vocab, const cJSON *id, const char *text, TokenType type)
{
    if (!cJSON_IsNumber(id) || id->valuedouble < 0 || id->valuedouble >= (double)vocab) return false;
    tokens[(int64_t)id->valuedouble] = (Token){text, type};
    return true;
}

static bool collect(Token *tokens, int64_t vocab, const cJSON *root)
{
    const cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model"), *item;
    bool ok = true;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(model, "vocab"))
        ok = ok && place(tokens, vocab, item, item->string, TOKEN_NORMAL);
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(root, "added_tokens")) {
        const cJSON *content = cJSON_GetObjectItemCaseSensitive(item, "content");
        bool special = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(item, "special"));
        ok = ok && cJSON_IsString(content) &&
             place(tokens, vocab, cJSON_GetObjectItemCaseSensitive(item, "id"), content->valuestring,
                   special ? TOKEN_CONTROL : TOKEN_USER);
    }
    return ok;
}

static void write_tokens(GgufKeys *keys, const Token *tokens, int64_t vocab)
{
    gguf_key_array(keys, "tokenizer.ggml.tokens", GGUF_STRING, (uint64_t)vocab);
    for (int64_t i = 0; i < vocab; i++) {
        char unused[32];
        snprintf(unused, sizeof unused, "[PAD%lld]", (long long)i);
        const char *text = tokens[i].text ? tokens[i].text : unused;
        gguf_put_string(keys->out, text, strlen(text));
    }
    gguf_key_array(keys, "tokenizer.ggml.token_type", GGUF_I32, (uint64_t)vocab);
    for (int64_t i = 0; i < vocab; i++)
        gguf_put_u32(keys->out, tokens[i].text ? (uint32_t)tokens[i].type : TOKEN_UNUSED);
}

/* A merge is "a b" or ["a", "b"]. */
static void write_merges(GgufKeys *keys, const cJSON *merges)
{
    const cJSON *item;
    gguf_key_array(keys, "tokenizer.ggml.merges", GGUF_STRING, (uint64_t)cJSON_GetArraySize(merges));
    cJSON_ArrayForEach(item, merges) {
        const cJSON *left = item->child, *right = left ? left->next : NULL;
        if (cJSON_IsString(item)) {
            gguf_put_string(keys->out, item->valuestring, strlen(item->valuestring));
        } else if (cJSON_IsString(left) && cJSON_IsString(right)) {
            size_t a = strlen(left->valuestring), b = strlen(right->valuestring);
            gguf_put_u64(keys->out, a + 1 + b);
            fprintf(keys->out, "%s %s", left->valuestring, right->valuestring);
        } else {
            gguf_put_string(keys->out, "", 0);
        }
    }
}

static void write_special_ids(GgufKeys *keys, const HfTokenIds *ids)
{
    if (ids->bos >= 0) gguf_key_u32(keys, "tokenizer.ggml.bos_token_id", ids->bos);
    if (ids->eos_count) gguf_key_u32(keys, "tokenizer.ggml.eos_token_id", ids->eos[0]);
    if (ids->pad >= 0) gguf_key_u32(keys, "tokenizer.ggml.padding_token_id", ids->pad);
    gguf_key_bool(keys, "tokenizer.ggml.add_bos_token", ids->bos >= 0);
}

/* The tokenizer as the JSON that tokenizer_save writes. */
static cJSON *as_json(const Tokenizer *tokenizer, const char *scratch, Errors *errors)
{
    char *text = tokenizer_save(tokenizer, scratch, errors) ? files_read(scratch, NULL, errors) : NULL;
    unlink(scratch);
    cJSON *root = text ? cJSON_Parse(text) : NULL;
    if (text && !root) errors_add(errors, "out of memory while writing the tokenizer");
    free(text);
    return root;
}

bool gguf_tokenizer(GgufKeys *keys, const Tokenizer *tokenizer, int64_t vocab, const HfTokenIds *ids,
                    const char *scratch, Errors *errors)
{
    cJSON *root = as_json(tokenizer, scratch, errors);
    if (!root) return false;
    Token *tokens = calloc((size_t)vocab, sizeof *tokens);
    bool ok = tokens && collect(tokens, vocab, root);
    if (ok) {
        const cJSON *model = cJSON_GetObjectItemCaseSensitive(root, "model");
        gguf_key_string(keys, "tokenizer.ggml.model", "gpt2");
        gguf_key_string(keys, "tokenizer.ggml.pre", "llama-bpe");
        write_tokens(keys, tokens, vocab);
        write_merges(keys, cJSON_GetObjectItemCaseSensitive(model, "merges"));
        write_special_ids(keys, ids);
    } else {
        errors_add(errors, tokens ? "the tokenizer has ids beyond the model's vocabulary of %lld"
                                  : "out of memory while writing a tokenizer of %lld ids", (long long)vocab);
    }
    free(tokens);
    cJSON_Delete(root);
    return ok;
}
