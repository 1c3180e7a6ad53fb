#include "model/checkpoint_manifest.h"
#include "model/files.h"
#include "model/xxh64.h"
#include <cjson/cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The manifest's own checksum is its last entry and covers every byte before it. */
#define SEAL ",\n\t\"manifest_xxh64\":\t\"%016" PRIx64 "\"\n}"
#define SEAL_BEGIN ",\n\t\"manifest_xxh64\""
#define SEAL_ROOM 64

static const char *const file_names[MANIFEST_FILES] = {"model.safetensors", "optimizer.safetensors"};

/* 64-bit numbers travel as strings: JSON readers keep numbers as doubles. */
static void add_i64(cJSON *to, const char *key, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    cJSON_AddStringToObject(to, key, text);
}

static void add_hex(cJSON *to, const char *key, uint64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%016" PRIx64, value);
    cJSON_AddStringToObject(to, key, text);
}

/* cJSON prints 15 digits; this is the number itself. */
static void add_double(cJSON *to, const char *key, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.17g", value);
    cJSON_AddRawToObject(to, key, isfinite(value) ? text : "null");
}

/* The seal of a manifest whose first `bytes` bytes are `text`. */
static void make_seal(char *seal, const char *text, size_t bytes)
{
    Xxh64 hash;
    xxh64_begin(&hash, 0);
    xxh64_add(&hash, text, bytes);
    snprintf(seal, SEAL_ROOM, SEAL, xxh64_end(&hash));
}

static bool is_sealed(const char *text)
{
    char seal[SEAL_ROOM];
    const char *end = strstr(text, SEAL_BEGIN);
    if (!end) return false;
    make_seal(seal, text, (size_t)(end - text));
    return strcmp(end, seal) == 0;
}

static cJSON *to_json(const CheckpointState *s, const SafetensorsWritten *files, int count)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddNumberToObject(root, "schema_version", CHECKPOINT_SCHEMA_VERSION);
    add_i64(root, "step", s->step);
    add_i64(root, "tokens", s->tokens);
    add_i64(root, "adam_step", s->adam_step);
    add_i64(root, "skipped", s->skipped);
    add_hex(root, "seed", s->seed);
    add_hex(root, "tokenizer", s->tokenizer);
    add_i64(root, "data_tokens", s->data_tokens);
    cJSON *cursor = cJSON_AddArrayToObject(root, "cursor");
    for (int i = 0; i < s->cursor_count; i++) {
        char text[32];
        snprintf(text, sizeof text, "%" PRId64, s->cursor[i]);
        cJSON_AddItemToArray(cursor, cJSON_CreateString(text));
    }
    add_double(root, "best_val_loss", s->best_val_loss);
    add_i64(root, "best_val_step", s->best_val_step);
    add_double(root, "elapsed_seconds", s->elapsed_seconds);
    cJSON_AddStringToObject(root, "backend", s->backend);
    cJSON_AddStringToObject(root, "precision", s->precision);
    cJSON_AddStringToObject(root, "device", s->device);
    cJSON_AddStringToObject(root, "libraries", s->libraries);
    cJSON *choices = cJSON_AddArrayToObject(root, "choices");
    for (int i = 0; i < s->choice_count; i++) {
        cJSON_AddItemToArray(choices, cJSON_CreateString(s->choices[i]));
    }
    cJSON *list = cJSON_AddArrayToObject(root, "files");
    for (int i = 0; i < count; i++) {
        cJSON *file = cJSON_CreateObject();
        cJSON_AddStringToObject(file, "name", files[i].name);
        add_i64(file, "bytes", files[i].bytes);
        add_hex(file, "xxh64", files[i].xxh64);
        cJSON_AddItemToArray(list, file);
    }
    return root;
}

bool manifest_write(const char *dir, const CheckpointState *state, const SafetensorsWritten *files, int count,
                    Errors *errors)
{
    cJSON *root = to_json(state, files, count);
    char *text = cJSON_Print(root), *path = files_join(dir, "manifest.json");
    size_t bytes = text ? strlen(text) - 2 : 0;     /* without "\n}" */
    char *sealed = text ? realloc(text, bytes + SEAL_ROOM) : NULL;
    bool ok = sealed && path;
    if (ok) {
        char seal[SEAL_ROOM];
        make_seal(seal, sealed, bytes);
        strcpy(sealed + bytes, seal);
        ok = files_replace(path, sealed, strlen(sealed), errors);
    } else {
        errors_add(errors, "%s: not enough memory for the manifest", dir);
    }
    free(path);
    free(sealed ? sealed : text);
    cJSON_Delete(root);
    return ok;
}

/* ---- reading: each get_ sets *ok to false where the entry is not as it was written ------------------- */

static const char *get_text(const cJSON *from, const char *key, bool *ok)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, key);
    if (cJSON_IsString(item)) return item->valuestring;
    *ok = false;
    return "";
}

static int64_t parse_i64(const char *text, bool *ok)
{
    char *end;
    errno = 0;
    int64_t value = strtoll(text, &end, 10);
    if (errno || end == text || *end) *ok = false;
    return value;
}

static int64_t get_i64(const cJSON *from, const char *key, bool *ok)
{
    return parse_i64(get_text(from, key, ok), ok);
}

static uint64_t get_hex(const cJSON *from, const char *key, bool *ok)
{
    const char *text = get_text(from, key, ok);
    char *end;
    uint64_t value = strtoull(text, &end, 16);
    if (end - text != 16 || *end) *ok = false;
    return value;
}

static double get_double(const cJSON *from, const char *key, bool *ok)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(from, key);
    if (cJSON_IsNumber(item)) return item->valuedouble;
    if (!cJSON_IsNull(item)) *ok = false;
    return NAN;
}

static void get_copy(char *to, size_t size, const cJSON *from, const char *key, bool *ok)
{
    snprintf(to, size, "%s", get_text(from, key, ok));
}

static bool from_json(const cJSON *root, CheckpointState *s, SafetensorsWritten *files, int *count)
{
    bool ok = true;
    s->step = get_i64(root, "step", &ok);
    s->tokens = get_i64(root, "tokens", &ok);
    s->adam_step = get_i64(root, "adam_step", &ok);
    s->skipped = get_i64(root, "skipped", &ok);
    s->seed = get_hex(root, "seed", &ok);
    if (cJSON_HasObjectItem(root, "tokenizer")) {   /* the first manifests had neither */
        s->tokenizer = get_hex(root, "tokenizer", &ok);
        s->data_tokens = get_i64(root, "data_tokens", &ok);
    }
    s->best_val_loss = get_double(root, "best_val_loss", &ok);
    s->best_val_step = get_i64(root, "best_val_step", &ok);
    s->elapsed_seconds = get_double(root, "elapsed_seconds", &ok);
    get_copy(s->backend, sizeof s->backend, root, "backend", &ok);
    get_copy(s->precision, sizeof s->precision, root, "precision", &ok);
    get_copy(s->device, sizeof s->device, root, "device", &ok);
    get_copy(s->libraries, sizeof s->libraries, root, "libraries", &ok);
    const cJSON *item;
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(root, "cursor")) {
        if (!cJSON_IsString(item) || s->cursor_count == CHECKPOINT_CURSOR) return false;
        s->cursor[s->cursor_count++] = parse_i64(item->valuestring, &ok);
    }
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(root, "choices")) {
        if (!cJSON_IsString(item)) return false;
        checkpoint_add_choice(s, item->valuestring);
    }
    cJSON_ArrayForEach(item, cJSON_GetObjectItemCaseSensitive(root, "files")) {
        if (*count == MANIFEST_FILES) return false;
        SafetensorsWritten *file = &files[(*count)];
        get_copy(file->name, sizeof file->name, item, "name", &ok);
        file->bytes = get_i64(item, "bytes", &ok);
        file->xxh64 = get_hex(item, "xxh64", &ok);
        ok = ok && strcmp(file->name, file_names[*count]) == 0;
        ++*count;
    }
    return ok && *count > 0;
}

bool manifest_read(const char *dir, CheckpointState *state, SafetensorsWritten *files, int *count,
                   Errors *errors)
{
    size_t bytes;
    char *path = files_join(dir, "manifest.json"), *text = path ? files_read(path, &bytes, errors) : NULL;
    cJSON *root = text ? cJSON_ParseWithLengthOpts(text, bytes + 1, NULL, true) : NULL;
    CheckpointState read = {0};
    bool ok = false;
    *count = 0;
    const cJSON *version = cJSON_GetObjectItemCaseSensitive(root, "schema_version");
    if (text && cJSON_IsNumber(version) && version->valuedouble > CHECKPOINT_SCHEMA_VERSION) {
        errors_add(errors, "%s: schema_version %.0f was written by a newer program; this one knows %d", path,
                   version->valuedouble, CHECKPOINT_SCHEMA_VERSION);
    } else if (text) {
        ok = is_sealed(text) && from_json(root, &read, files, count);
        if (!ok) errors_add(errors, "%s: damaged, or not a checkpoint's manifest", path);
    }
    if (ok) *state = read;
    else checkpoint_state_free(&read);
    cJSON_Delete(root);
    free(text);
    free(path);
    return ok;
}
