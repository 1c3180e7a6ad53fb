/* tiktoken's rank files, as Meta ships Llama 3's tokenizer.model: a line "base64 rank" for each token. */
#include "data/tokenizer_parts.h"
#include <stdlib.h>
#include <string.h>

#define LARGEST_RANK (1 << 24)
#define SPECIALS     256

/* Decodes base64 of `length` symbols into out (room for 3/4 of it); -1 when it is not base64. */
static int64_t decode_base64(const char *text, size_t length, char *out)
{
    static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    while (length && text[length - 1] == '=')
        length--;
    uint32_t bits = 0;
    int      held = 0;
    int64_t  to   = 0;
    for (size_t i = 0; i < length; i++) {
        const char *at = text[i] ? strchr(alphabet, text[i]) : NULL;
        if (!at)
            return -1;
        bits = bits << 6 | (uint32_t)(at - alphabet);
        held += 6;
        if (held >= 8) {
            held -= 8;
            out[to++] = (char)(bits >> held);
        }
    }
    return to;
}

typedef struct RankLine { const char *text; size_t length; int64_t rank; } RankLine;

/* Next line of the file at *at: false at its end. A line that is no token has rank -1. */
static bool next_line(const char **at, const char *end, RankLine *line)
{
    while (*at < end && (**at == '\n' || **at == '\r'))
        (*at)++;
    if (*at >= end)
        return false;
    const char *stop = memchr(*at, '\n', (size_t)(end - *at));
    stop = stop ? stop : end;
    const char *space = memchr(*at, ' ', (size_t)(stop - *at));
    *line = (RankLine){ *at, space ? (size_t)(space - *at) : 0, -1 };
    if (space) {
        char *after;
        long long rank = strtoll(space + 1, &after, 10);
        if (after > space + 1 && rank >= 0 && rank < LARGEST_RANK &&
            (*after == '\n' || *after == '\r' || !*after))
            line->rank = rank;
    }
    *at = stop;
    return true;
}

/* Llama 3's 256 specials, which the file does not hold: they follow its last rank. */
static bool set_specials(Tokenizer *tokenizer, int32_t first)
{
    static const char *const named[] = { TOKENIZER_BOS, TOKENIZER_EOS, NULL, NULL, NULL, NULL,
                                         "<|start_header_id|>", "<|end_header_id|>", NULL, "<|eot_id|>" };
    int reserved = 0;
    for (int s = 0; s < SPECIALS; s++) {
        char        name[40];
        const char *text = s < 10 ? named[s] : NULL;
        if (!text) {
            snprintf(name, sizeof name, "<|reserved_special_token_%d|>", reserved++);
            text = name;
        }
        if (!tokenizer_set(tokenizer, first + s, TOKEN_SPECIAL, text, strlen(text)))
            return false;
    }
    return true;
}

/* tiktoken joins any two neighbours whose bytes together are a token, lowest rank first: one rule for every
 * way to cut a token into two tokens, with the token's rank. */
static bool list_merges(Tokenizer *tokenizer)
{
    int64_t capacity = 0;
    for (int32_t id = 0; id < tokenizer->vocab; id++) {
        if (tokenizer->kind[id] != TOKEN_PLAIN)
            continue;
        for (uint32_t cut = 1; cut < tokenizer->length[id]; cut++) {
            int32_t left  = words_find(tokenizer, tokenizer->text[id], cut);
            int32_t right = words_find(tokenizer, tokenizer->text[id] + cut, tokenizer->length[id] - cut);
            if (left < 0 || right < 0)
                continue;
            if (tokenizer->merge_count == capacity) {
                capacity = 2 * capacity + 4096;
                Merge *merges = realloc(tokenizer->merges, (size_t)capacity * sizeof *merges);
                if (!merges)
                    return false;
                tokenizer->merges = merges;
            }
            tokenizer->merges[tokenizer->merge_count++] = (Merge){ left, right, id, id };
        }
    }
    return true;
}

/* Reads all lines into the tokenizer. */
static bool read_lines(Tokenizer *tokenizer, const char *path, const char *text, size_t length,
                       Errors *errors)
{
    const char *at = text, *end = text + length;
    RankLine    line;
    while (next_line(&at, end, &line)) {
        char   *bytes = malloc(line.length + 1);
        int64_t count = bytes ? decode_base64(line.text, line.length, bytes) : -1;
        bool    taken = tokenizer->kind[line.rank] != TOKEN_UNUSED;
        bool    fine  = count > 0 && !taken &&
                        tokenizer_set(tokenizer, (int32_t)line.rank, TOKEN_PLAIN, bytes, (size_t)count);
        free(bytes);
        if (!fine) {
            errors_add(errors, "%s: rank %lld %s", path, (long long)line.rank, taken ? "stands on two lines" :
                       "has no token in base64 before it");
            return false;
        }
    }
    return true;
}

Tokenizer *tokenizer_from_ranks(const char *path, const char *text, size_t length, Errors *errors)
{
    const char *at = text;
    RankLine    line;
    int64_t     vocab = 0, number = 1;
    for (; next_line(&at, text + length, &line); number++) {
        if (line.rank < 0) {
            errors_add(errors,
                       "%s:%lld: neither a tokenizer.json nor a line \"base64 rank\" of a tiktoken file",
                       path, (long long)number);
            return NULL;
        }
        vocab = line.rank + 1 > vocab ? line.rank + 1 : vocab;
    }
    if (vocab == 0) {
        errors_add(errors, "%s: empty, expected a tokenizer.json or a tiktoken rank file", path);
        return NULL;
    }
    int        before    = errors->count;
    Tokenizer *tokenizer = tokenizer_new(vocab + SPECIALS);
    bool       fine      = tokenizer && read_lines(tokenizer, path, text, length, errors);
    if (fine) {
        tokenizer->whole_words = true;
        fine = set_specials(tokenizer, (int32_t)vocab) && words_index(tokenizer) && list_merges(tokenizer);
    }
    if (!fine && errors->count == before)
        errors_add(errors, "%s: no memory for %lld tokens", path, (long long)vocab);
    if (fine && tokenizer_complete(tokenizer, path, errors))
        return tokenizer;
    tokenizer_free(tokenizer);
    return NULL;
}
