/* Hugging Face's tokenizer.json: byte-level BPE with Llama-3's split rules, read and written. */
#include "data/split.h"
#include "data/tokenizer_parts.h"
#include "model/files.h"
#include <cjson/cJSON.h>
#include <stdlib.h>
#include <string.h>

#define LARGEST_VOCAB (1 << 24)

/* ---- the printable byte alphabet ----------------------------------------------------------------- */

/* Each byte is written as one code point: itself where it prints in Latin-1, else 256, 257, ... in order. */
static void make_alphabet(uint16_t point_of[256], int16_t byte_of[512])
{
    uint16_t next = 256;
    memset(byte_of, 0xff, 512 * sizeof *byte_of);
    for (int b = 0; b < 256; b++) {
        bool prints = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        point_of[b] = prints ? (uint16_t)b : next++;
        byte_of[point_of[b]] = (int16_t)b;
    }
}

/* Bytes behind `length` bytes of the alphabet in UTF-8, written over them. False when a symbol is not one. */
static bool from_alphabet(const int16_t byte_of[512], char *text, size_t *length)
{
    size_t to = 0;
    for (size_t at = 0; at < *length; at++) {
        uint32_t point = (uint8_t)text[at];
        if (point >= 0x80) {
            if (point < 0xc2 || point > 0xc7 || at + 1 == *length)    /* above code point 511 */
                return false;
            point = (point & 0x1f) << 6 | ((uint8_t)text[++at] & 0x3f);
        }
        if (byte_of[point] < 0)
            return false;
        text[to++] = (char)byte_of[point];
    }
    *length = to;
    return true;
}

/* The token's bytes in the alphabet; out has room for 2 length + 1. */
static size_t to_alphabet(const uint16_t point_of[256], const char *text, size_t length, char *out)
{
    size_t to = 0;
    for (size_t i = 0; i < length; i++) {
        uint16_t point = point_of[(uint8_t)text[i]];
        if (point >= 0x80) {
            out[to++] = (char)(0xc0 | point >> 6);
            out[to++] = (char)(0x80 | (point & 0x3f));
        } else {
            out[to++] = (char)point;
        }
    }
    out[to] = '\0';
    return to;
}

/* ---- what is understood -------------------------------------------------------------------------- */

static const cJSON *member(const cJSON *object, const char *name)
{
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static bool absent(const cJSON *item)
{
    return !item || cJSON_IsNull(item);
}

static bool is_text(const cJSON *item, const char *text)
{
    return cJSON_IsString(item) && !strcmp(item->valuestring, text);
}

static const char *type_name(const cJSON *object)
{
    const cJSON *type = member(object, "type");
    return cJSON_IsString(type) ? type->valuestring : "without a type";
}

/* ByteLevel that only changes the alphabet: no prefix space, no split rules of its own. */
static bool is_plain_byte_level(const cJSON *step)
{
    return is_text(member(step, "type"), "ByteLevel") && cJSON_IsFalse(member(step, "add_prefix_space")) &&
           cJSON_IsFalse(member(step, "use_regex"));
}

static void check_pre_tokenizer(const char *path, const cJSON *pre, Errors *errors)
{
    const cJSON *steps = is_text(member(pre, "type"), "Sequence") ? member(pre, "pretokenizers") : NULL;
    const cJSON *split = cJSON_GetArrayItem(steps, 0);
    if (cJSON_GetArraySize(steps) != 2 || !is_text(member(split, "type"), "Split") ||
        !is_plain_byte_level(cJSON_GetArrayItem(steps, 1))) {
        errors_add(errors,
                   "%s: pre_tokenizer %s is not supported; expected Llama 3's: a Sequence of Split and "
                   "ByteLevel (add_prefix_space false, use_regex false)",
                   path, absent(pre) ? "null" : type_name(pre));
        return;
    }
    const cJSON *regex = member(member(split, "pattern"), "Regex");
    if (!is_text(regex, SPLIT_LLAMA3_REGEX))
        errors_add(
            errors, "%s: pre_tokenizer splits by %s, which is not supported; expected Llama 3's pattern %s",
            path, cJSON_IsString(regex) ? regex->valuestring : "no regular expression", SPLIT_LLAMA3_REGEX);
    if (!is_text(member(split, "behavior"), "Isolated") || cJSON_IsTrue(member(split, "invert")))
        errors_add(errors, "%s: pre_tokenizer Split must have behavior Isolated and invert false", path);
}

/* Everything that would change ids and is not done here is refused. */
static void check_pipeline(const char *path, const cJSON *root, Errors *errors)
{
    const cJSON *model = member(root, "model");
    if (!absent(member(root, "normalizer")))
        errors_add(errors, "%s: normalizer %s is not supported; expected null", path,
                   type_name(member(root, "normalizer")));
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "truncation" : "padding";
        if (!absent(member(root, name)))
            errors_add(errors, "%s: %s is not supported; set it to null", path, name);
    }
    check_pre_tokenizer(path, member(root, "pre_tokenizer"), errors);
    if (!is_text(member(member(root, "decoder"), "type"), "ByteLevel"))
        errors_add(errors, "%s: decoder %s is not supported; expected ByteLevel", path,
                   absent(member(root, "decoder")) ? "null" : type_name(member(root, "decoder")));
    if (!cJSON_IsObject(model) || (member(model, "type") && !is_text(member(model, "type"), "BPE"))) {
        errors_add(errors, "%s: model %s is not supported; expected BPE", path, type_name(model));
        return;
    }
    for (int i = 0; i < 2; i++) {
        const char *name = i ? "continuing_subword_prefix" : "end_of_word_suffix";
        if (!absent(member(model, name)) && !is_text(member(model, name), ""))
            errors_add(errors, "%s: model.%s is not supported; expected null", path, name);
    }
    const cJSON *dropout = member(model, "dropout");
    if (!absent(dropout) && !(cJSON_IsNumber(dropout) && dropout->valuedouble == 0))
        errors_add(errors, "%s: model.dropout is not supported; expected null", path);
    if (cJSON_IsTrue(member(model, "byte_fallback")))
        errors_add(errors, "%s: model.byte_fallback is not supported; expected false", path);
}

/* ---- reading ------------------------------------------------------------------------------------- */

/* The id of a JSON number, -1 when it is none. */
static int32_t id_of(const cJSON *number)
{
    double value = cJSON_IsNumber(number) ? number->valuedouble : -1;
    return value >= 0 && value < LARGEST_VOCAB && value == (int32_t)value ? (int32_t)value : -1;
}

/* The largest id + 1 of vocab and added tokens; 0 with an error added when one is no id. */
static int64_t measure(const char *path, const cJSON *vocab, const cJSON *added, Errors *errors)
{
    const cJSON *item;
    int64_t      size = 0;
    if (!cJSON_IsObject(vocab) || (!absent(added) && !cJSON_IsArray(added))) {
        errors_add(errors, "%s: model.vocab must be an object and added_tokens a list", path);
        return 0;
    }
    cJSON_ArrayForEach(item, vocab) {
        int32_t id = id_of(item);
        if (id < 0) {
            errors_add(errors, "%s: model.vocab[\"%s\"] is not an id below %d", path, item->string,
                       LARGEST_VOCAB);
            return 0;
        }
        size = id + 1 > size ? id + 1 : size;
    }
    cJSON_ArrayForEach(item, added) {
        const cJSON *content = member(item, "content");
        int32_t      id      = id_of(member(item, "id"));
        if (id < 0 || !cJSON_IsString(content) || !*content->valuestring) {
            errors_add(errors, "%s: an entry of added_tokens has no id below %d or no content", path,
                       LARGEST_VOCAB);
            return 0;
        }
        size = id + 1 > size ? id + 1 : size;
    }
    if (size == 0)
        errors_add(errors, "%s: model.vocab is empty", path);
    return size;
}

static bool read_vocab(Tokenizer *tokenizer, const char *path, const cJSON *vocab, const int16_t byte_of[512],
                       Errors *errors)
{
    cJSON *item;
    cJSON_ArrayForEach(item, vocab) {
        int32_t id     = id_of(item);
        if (tokenizer->kind[id] > TOKEN_PLAIN && !strcmp(tokenizer->text[id], item->string))
            continue;           /* some files name their added tokens here too */
        size_t  length = strlen(item->string);
        char   *text   = strdup(item->string);
        bool    fits   = text && length > 0 && from_alphabet(byte_of, text, &length);
        if (!fits || tokenizer->kind[id] != TOKEN_UNUSED) {
            errors_add(errors,
                       fits ? "%s: model.vocab[\"%s\"] has id %d, which another token has too"
                            : "%s: model.vocab[\"%s\"], id %d, is not written in the byte alphabet",
                       path, item->string, id);
            free(text);
            return false;
        }
        fits = tokenizer_set(tokenizer, id, TOKEN_PLAIN, text, length);
        free(text);
        if (!fits) {
            errors_add(errors, "%s: no memory for its vocabulary", path);
            return false;
        }
    }
    return true;
}

static bool read_added(Tokenizer *tokenizer, const char *path, const cJSON *added, Errors *errors)
{
    static const char *const unsupported[] = { "lstrip", "rstrip", "single_word" };
    const cJSON *item;
    cJSON_ArrayForEach(item, added) {
        const char *content = member(item, "content")->valuestring;
        for (size_t u = 0; u < 3; u++)
            if (cJSON_IsTrue(member(item, unsupported[u]))) {
                errors_add(errors, "%s: added token \"%s\" has %s, which is not supported; expected false",
                           path, content, unsupported[u]);
                return false;
            }
        int32_t id = id_of(member(item, "id"));
        if (tokenizer->kind[id] != TOKEN_UNUSED) {
            errors_add(errors, "%s: added tokens \"%s\" and \"%s\" both have id %d", path,
                       tokenizer->text[id], content, id);
            return false;
        }
        TokenKind kind = cJSON_IsTrue(member(item, "special")) ? TOKEN_SPECIAL : TOKEN_ADDED;
        if (!tokenizer_set(tokenizer, id, kind, content, strlen(content))) {
            errors_add(errors, "%s: no memory for its added tokens", path);
            return false;
        }
    }
    return true;
}

/* The two halves of a merge, "a b" or ["a", "b"], as copies in `half`. False when it is neither. */
static bool split_merge(const cJSON *item, char *half[2])
{
    half[0] = half[1] = NULL;
    const char *space = cJSON_IsString(item) ? strchr(item->valuestring, ' ') : NULL;
    if (space) {
        half[0] = strndup(item->valuestring, (size_t)(space - item->valuestring));
        half[1] = strdup(space + 1);
    } else if (cJSON_IsArray(item) && cJSON_GetArraySize(item) == 2) {
        for (int h = 0; h < 2; h++)
            if (cJSON_IsString(cJSON_GetArrayItem(item, h)))
                half[h] = strdup(cJSON_GetArrayItem(item, h)->valuestring);
    }
    return half[0] && half[1];
}

/* Fills merge from an item; false when a half or the whole is no token. */
static bool read_merge(const Tokenizer *tokenizer, const cJSON *item, const int16_t byte_of[512],
                       Merge *merge)
{
    char  *half[2];
    bool   fine = split_merge(item, half);
    size_t left = fine ? strlen(half[0]) : 0, right = fine ? strlen(half[1]) : 0;
    fine = fine && from_alphabet(byte_of, half[0], &left) && from_alphabet(byte_of, half[1], &right);
    char *whole = fine ? malloc(left + right + 1) : NULL;
    if (whole) {
        memcpy(whole, half[0], left);
        memcpy(whole + left, half[1], right);
        merge->left   = words_find(tokenizer, half[0], left);
        merge->right  = words_find(tokenizer, half[1], right);
        merge->merged = words_find(tokenizer, whole, left + right);
        fine = merge->left >= 0 && merge->right >= 0 && merge->merged >= 0;
    }
    free(whole);
    free(half[0]);
    free(half[1]);
    return fine && whole;
}

static bool read_merges(Tokenizer *tokenizer, const char *path, const cJSON *merges,
                        const int16_t byte_of[512], Errors *errors)
{
    int count = cJSON_GetArraySize(merges);
    tokenizer->merges = malloc((size_t)(count + 1) * sizeof *tokenizer->merges);
    if (!cJSON_IsArray(merges) || count >= LARGEST_VOCAB || !tokenizer->merges || !words_index(tokenizer)) {
        errors_add(errors, cJSON_IsArray(merges) ? "%s: no memory for %d merges" :
                   "%s: model.merges is not a list (%d entries)", path, count);
        return false;
    }
    const cJSON *item;
    cJSON_ArrayForEach(item, merges) {
        Merge *merge = &tokenizer->merges[tokenizer->merge_count];
        *merge = (Merge){ .rank = (int32_t)tokenizer->merge_count };
        if (!read_merge(tokenizer, item, byte_of, merge)) {
            errors_add(errors, "%s: model.merges[%lld] is not a pair of tokens that make a token: %s", path,
                       (long long)tokenizer->merge_count,
                       cJSON_IsString(item) ? item->valuestring : "a list");
            return false;
        }
        tokenizer->merge_count++;
    }
    return true;
}

Tokenizer *tokenizer_from_json(const char *path, const char *text, size_t length, Errors *errors)
{
    const char *end  = NULL;
    cJSON      *root = cJSON_ParseWithLengthOpts(text, length + 1, &end, true);
    if (!root) {
        int line = 1;
        for (const char *p = text; end && p < end; p++)
            line += *p == '\n';
        errors_add(errors, "%s:%d: not JSON", path, line);
        return NULL;
    }
    int before = errors->count;
    check_pipeline(path, root, errors);

    const cJSON *model = member(root, "model"), *vocab = member(model, "vocab");
    const cJSON *added = member(root, "added_tokens");
    int64_t      size  = errors->count == before ? measure(path, vocab, added, errors) : 0;
    uint16_t     point_of[256];
    int16_t      byte_of[512];
    make_alphabet(point_of, byte_of);
    Tokenizer *tokenizer = size > 0 ? tokenizer_new(size) : NULL;
    if (size > 0 && !tokenizer)
        errors_add(errors, "%s: no memory for %lld tokens", path, (long long)size);
    if (tokenizer)
        tokenizer->whole_words = cJSON_IsTrue(member(model, "ignore_merges"));
    bool fine = tokenizer && read_added(tokenizer, path, added, errors) &&
                read_vocab(tokenizer, path, vocab, byte_of, errors) &&
                read_merges(tokenizer, path, member(model, "merges"), byte_of, errors) &&
                tokenizer_complete(tokenizer, path, errors);
    cJSON_Delete(root);
    if (fine)
        return tokenizer;
    tokenizer_free(tokenizer);
    return NULL;
}

/* ---- writing ------------------------------------------------------------------------------------- */

static cJSON *byte_level(void)
{
    cJSON *step = cJSON_CreateObject();
    cJSON_AddStringToObject(step, "type", "ByteLevel");
    cJSON_AddFalseToObject(step, "add_prefix_space");
    cJSON_AddTrueToObject(step, "trim_offsets");
    cJSON_AddFalseToObject(step, "use_regex");
    return step;
}

static void add_pre_tokenizer(cJSON *root)
{
    cJSON *pre = cJSON_AddObjectToObject(root, "pre_tokenizer"), *split = cJSON_CreateObject();
    cJSON_AddStringToObject(pre, "type", "Sequence");
    cJSON *steps = cJSON_AddArrayToObject(pre, "pretokenizers");
    cJSON_AddStringToObject(split, "type", "Split");
    cJSON_AddStringToObject(cJSON_AddObjectToObject(split, "pattern"), "Regex", SPLIT_LLAMA3_REGEX);
    cJSON_AddStringToObject(split, "behavior", "Isolated");
    cJSON_AddFalseToObject(split, "invert");
    cJSON_AddItemToArray(steps, split);
    cJSON_AddItemToArray(steps, byte_level());
}

/* One element of a template: {kind: {id, type_id}}. */
static void add_piece(cJSON *list, const char *kind, const char *id, int type)
{
    cJSON *wrapper = cJSON_CreateObject(), *piece = cJSON_AddObjectToObject(wrapper, kind);
    cJSON_AddStringToObject(piece, "id", id);
    cJSON_AddNumberToObject(piece, "type_id", type);
    cJSON_AddItemToArray(list, wrapper);
}

/* Begins every text with BOS, as training documents begin. */
static void add_post_processor(cJSON *root, const Tokenizer *tokenizer)
{
    const char *bos = tokenizer->text[tokenizer->bos];
    cJSON *post = cJSON_AddObjectToObject(root, "post_processor"), *ids;
    cJSON_AddStringToObject(post, "type", "TemplateProcessing");
    cJSON *single = cJSON_AddArrayToObject(post, "single"), *pair = cJSON_AddArrayToObject(post, "pair");
    add_piece(single, "SpecialToken", bos, 0);
    add_piece(single, "Sequence", "A", 0);
    add_piece(pair, "SpecialToken", bos, 0);
    add_piece(pair, "Sequence", "A", 0);
    add_piece(pair, "SpecialToken", bos, 1);
    add_piece(pair, "Sequence", "B", 1);
    cJSON *special = cJSON_AddObjectToObject(cJSON_AddObjectToObject(post, "special_tokens"), bos);
    cJSON_AddStringToObject(special, "id", bos);
    ids = cJSON_AddArrayToObject(special, "ids");
    cJSON_AddItemToArray(ids, cJSON_CreateNumber(tokenizer->bos));
    cJSON_AddItemToArray(cJSON_AddArrayToObject(special, "tokens"), cJSON_CreateString(bos));
}

static void add_added_tokens(cJSON *root, const Tokenizer *tokenizer)
{
    cJSON *list = cJSON_AddArrayToObject(root, "added_tokens");
    for (int32_t id = 0; id < tokenizer->vocab; id++) {
        if (tokenizer->kind[id] != TOKEN_ADDED && tokenizer->kind[id] != TOKEN_SPECIAL)
            continue;
        cJSON *item = cJSON_CreateObject();
        cJSON_AddNumberToObject(item, "id", id);
        cJSON_AddStringToObject(item, "content", tokenizer->text[id]);
        cJSON_AddFalseToObject(item, "single_word");
        cJSON_AddFalseToObject(item, "lstrip");
        cJSON_AddFalseToObject(item, "rstrip");
        cJSON_AddFalseToObject(item, "normalized");
        cJSON_AddBoolToObject(item, "special", tokenizer->kind[id] == TOKEN_SPECIAL);
        cJSON_AddItemToArray(list, item);
    }
}

/* Vocabulary and merges; false when memory is short. */
static bool add_model(cJSON *root, const Tokenizer *tokenizer)
{
    uint16_t point_of[256];
    int16_t  byte_of[512];
    make_alphabet(point_of, byte_of);
    uint32_t longest = 1;
    for (int64_t id = 0; id < tokenizer->vocab; id++)
        longest = tokenizer->length[id] > longest ? tokenizer->length[id] : longest;
    char *text = malloc(4 * (size_t)longest + 2);
    cJSON *model = cJSON_AddObjectToObject(root, "model");
    cJSON_AddStringToObject(model, "type", "BPE");
    static const char *const unset[] = { "dropout", "unk_token", "continuing_subword_prefix",
                                         "end_of_word_suffix" };
    for (size_t u = 0; u < 4; u++)
        cJSON_AddNullToObject(model, unset[u]);
    cJSON_AddFalseToObject(model, "fuse_unk");
    cJSON_AddFalseToObject(model, "byte_fallback");
    cJSON_AddBoolToObject(model, "ignore_merges", tokenizer->whole_words);
    cJSON *vocab = cJSON_AddObjectToObject(model, "vocab"), *merges = cJSON_AddArrayToObject(model, "merges");
    for (int32_t id = 0; text && id < tokenizer->vocab; id++)
        if (tokenizer->kind[id] == TOKEN_PLAIN) {
            to_alphabet(point_of, tokenizer->text[id], tokenizer->length[id], text);
            cJSON_AddItemToObject(vocab, text, cJSON_CreateNumber(id));
        }
    for (int64_t m = 0; text && m < tokenizer->merge_count; m++) {
        const Merge *merge = &tokenizer->merges[m];
        size_t at = to_alphabet(point_of, tokenizer->text[merge->left], tokenizer->length[merge->left], text);
        text[at++] = ' ';
        to_alphabet(point_of, tokenizer->text[merge->right], tokenizer->length[merge->right], text + at);
        cJSON_AddItemToArray(merges, cJSON_CreateString(text));
    }
    free(text);
    return text != NULL && merges;
}

bool tokenizer_save(const Tokenizer *tokenizer, const char *path, Errors *errors)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "version", "1.0");
    cJSON_AddNullToObject(root, "truncation");
    cJSON_AddNullToObject(root, "padding");
    add_added_tokens(root, tokenizer);
    cJSON_AddNullToObject(root, "normalizer");
    add_pre_tokenizer(root);
    if (tokenizer->bos >= 0)
        add_post_processor(root, tokenizer);
    else
        cJSON_AddNullToObject(root, "post_processor");
    cJSON_AddItemToObject(root, "decoder", byte_level());
    char *text = add_model(root, tokenizer) ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    if (!text) {
        errors_add(errors, "%s: no memory to write it", path);
        return false;
    }
    bool fine = files_replace(path, text, strlen(text), errors);
    free(text);
    return fine;
}
