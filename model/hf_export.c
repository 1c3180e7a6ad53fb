#include "model/hf_export.h"
#include "model/files.h"
#include "model/hf_names.h"
#include <cjson/cJSON.h>
#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK ((int64_t)1 << 20)    /* elements on their way from file to file */
#define F16_MAX 65504.0f

/* ---- companion files ----------------------------------------------------------------------------- */

static const char *const companions[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "tokenizer.model", "vocab.json",
    "merges.txt", "added_tokens.json", "chat_template.jinja", "chat_template.json", "generation_config.json",
};
enum { COMPANIONS = sizeof companions / sizeof *companions };

static bool copy_file(const char *from_dir, const char *to_dir, const char *name, Errors *errors)
{
    char *from = files_join(from_dir, name), *to = files_join(to_dir, name);
    size_t bytes;
    char *text = from && to ? files_read(from, &bytes, errors) : NULL;
    bool ok = text && files_replace(to, text, bytes, errors);
    free(text);
    free(from);
    free(to);
    return ok;
}

static bool has_file(const char *dir, const char *name)
{
    char *path = files_join(dir, name);
    bool exists = path && files_exists(path);
    free(path);
    return exists;
}

bool hf_copy_companions(const char *from, const char *to, Errors *errors)
{
    for (int i = 0; i < COMPANIONS; i++)
        if (has_file(from, companions[i]) && !copy_file(from, to, companions[i], errors)) return false;
    return true;
}

static bool write_text(const char *dir, const char *name, char *text, Errors *errors)
{
    char *path = files_join(dir, name);
    bool ok = path && text;
    if (!ok) errors_add(errors, "%s/%s: out of memory", dir, name);
    size_t bytes = text ? strlen(text) : 0;
    if (ok) text[bytes++] = '\n';       /* in the place of its end, which nobody reads any more */
    ok = ok && files_replace(path, text, bytes, errors);
    free(path);
    free(text);
    return ok;
}

static void add_token(cJSON *root, const char *key, const Tokenizer *tokenizer, int32_t id)
{
    size_t length;
    const char *name = id >= 0 ? tokenizer_decode(tokenizer, id, &length) : NULL;
    if (!name) return;
    char text[length + 1];
    memcpy(text, name, length);
    text[length] = 0;
    cJSON_AddStringToObject(root, key, text);
}

static char *tokenizer_config(const Tokenizer *tokenizer, int64_t max_length)
{
    cJSON *root = cJSON_CreateObject();
    cJSON_AddStringToObject(root, "tokenizer_class", "PreTrainedTokenizerFast");
    cJSON_AddFalseToObject(root, "clean_up_tokenization_spaces");
    cJSON_AddNumberToObject(root, "model_max_length", (double)max_length);
    add_token(root, "bos_token", tokenizer, tokenizer_bos(tokenizer));
    add_token(root, "eos_token", tokenizer, tokenizer_eos(tokenizer));
    char *text = cJSON_Print(root);
    cJSON_Delete(root);
    return text;
}

/* What was imported is handed on unchanged; what is missing is written from the tokenizer. */
static bool write_companions(const HfExport *e, const char *out_dir, const HfTokenIds *ids, Errors *errors)
{
    const Config *c = e->config;
    char *kept = files_join(e->run_dir, HF_KEPT_DIR);
    bool ok = kept && (!files_is_dir(kept) || hf_copy_companions(kept, out_dir, errors));
    free(kept);
    if (ok && !has_file(out_dir, "generation_config.json"))
        ok = write_text(out_dir, "generation_config.json", hf_generation_config_write(ids), errors);
    if (!ok || !e->tokenizer) return ok;
    if (!has_file(out_dir, "tokenizer.json")) {
        char *path = files_join(out_dir, "tokenizer.json");
        ok = path && tokenizer_save(e->tokenizer, path, errors);
        free(path);
    } else if (has_file(out_dir, "tokenizer_config.json")) {
        return ok;
    }
    int64_t longest = c->model.max_position ? c->model.max_position : c->train.seq_len;
    return ok && write_text(out_dir, "tokenizer_config.json", tokenizer_config(e->tokenizer, longest),
                            errors);
}

char *hf_original_config(const char *run_dir)
{
    char *dir = files_join(run_dir, HF_KEPT_DIR), *path = dir ? files_join(dir, "config.json") : NULL;
    Errors ignored = {0};
    char *text = path && files_exists(path) ? files_read(path, NULL, &ignored) : NULL;
    errors_free(&ignored);
    free(path);
    free(dir);
    return text;
}

bool hf_kept_tokenizer(const char *run_dir)
{
    char *dir = files_join(run_dir, HF_KEPT_DIR);
    bool kept = dir && (has_file(dir, "tokenizer.json") || has_file(dir, "tokenizer.model"));
    free(dir);
    return kept;
}

HfTokenIds hf_token_ids(const char *original, const Tokenizer *tokenizer)
{
    HfTokenIds ids = original ? hf_config_token_ids(original) : (HfTokenIds){.bos = -1, .pad = -1};
    if (original || !tokenizer) return ids;
    ids.bos = tokenizer_bos(tokenizer);
    if (tokenizer_eos(tokenizer) >= 0) ids.eos[ids.eos_count++] = tokenizer_eos(tokenizer);
    return ids;
}

/* ---- weights ------------------------------------------------------------------------------------- */

static bool fits_f16(const float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(values[i]) <= F16_MAX)) return false;
    return true;
}

/* values: [CHUNK] scratch. */
static bool copy_tensor(SafetensorsWriter *writer, const Safetensors *from, const SafetensorsTensor *t,
                        SafetensorsDtype dtype, float *values, Errors *errors)
{
    for (int64_t done = 0, n; done < t->count; done += n) {
        n = t->count - done < CHUNK ? t->count - done : CHUNK;
        if (!safetensors_read(from, t, done, n, values, errors)) return false;
        if (dtype == ST_F16 && !fits_f16(values, n)) {
            errors_add(errors, "%s has values beyond 65504, which F16 cannot hold; export with --dtype=bf16 "
                       "or f32", t->name);
            return false;
        }
        if (!safetensors_write(writer, values, n)) return false;
    }
    return true;
}

static bool write_weights(const HfExport *e, const char *out_dir, Errors *errors)
{
    LlamaShape shape = llama_shape(e->config, DTYPE_F32);
    int count = 0, before = errors->count;
    HfTensor *tensors = hf_tensors(&shape, &count);
    SafetensorsSpec *specs = calloc((size_t)count + 1, sizeof *specs);
    float *values = malloc((size_t)CHUNK * sizeof *values);
    Safetensors *from = safetensors_open(e->checkpoint, errors);
    SafetensorsWriter *writer = NULL;
    if (!tensors || !specs || !values) errors_add(errors, "%s: out of memory while exporting", out_dir);
    for (int i = 0; errors->count == before && i < count; i++) {
        const SafetensorsTensor *t = safetensors_find(from, tensors[i].name);
        if (!t || t->count != tensors[i].rows * tensors[i].cols) {
            errors_add(errors, "%s: %s is %s; config.json and checkpoint of the run do not fit together",
                       e->checkpoint, tensors[i].name, t ? "of another size" : "missing");
            continue;
        }
        specs[i] = (SafetensorsSpec){tensors[i].name, e->dtype, t->dims, {t->shape[0], t->shape[1]}};
    }
    if (errors->count == before)
        writer = safetensors_create(out_dir, "model", specs, count, e->shard_bytes, errors);
    bool ok = writer != NULL;
    for (int i = 0; ok && i < count; i++)
        ok = copy_tensor(writer, from, safetensors_find(from, tensors[i].name), e->dtype, values, errors);
    if (errors->count > before && writer) safetensors_abandon(writer);
    else if (writer) ok = safetensors_finish(writer, NULL, NULL, errors);
    safetensors_close(from);
    free(values);
    free(specs);
    free(tensors);
    return ok;
}

/* ---- the directory ------------------------------------------------------------------------------- */

static bool is_empty(const char *path)
{
    DIR *dir = opendir(path);
    if (!dir) return !files_exists(path);
    int names = 0;
    while (readdir(dir)) names++;
    closedir(dir);
    return names <= 2;      /* . and .. */
}

bool hf_export(const HfExport *e, const char *out_dir, Errors *errors)
{
    const Config *c = e->config;
    if (c->model.hidden % c->model.heads) {
        errors_add(errors, "transformers refuses a hidden size (%lld) that is no multiple of the heads "
                   "(%lld), even with a head_dim of its own; such a model can only be exported as GGUF",
                   (long long)c->model.hidden, (long long)c->model.heads);
        return false;
    }
    if (e->tokenizer && tokenizer_vocab(e->tokenizer) > c->model.vocab) {
        errors_add(errors, "the tokenizer has %lld ids, the model %lld; name the one that the model was "
                   "trained with", (long long)tokenizer_vocab(e->tokenizer),
                   (long long)c->model.vocab);
        return false;
    }
    if (!is_empty(out_dir)) {
        errors_add(errors, "%s exists already; name a new directory", out_dir);
        return false;
    }
    const char *dtype = e->dtype == ST_F32 ? "float32" : e->dtype == ST_F16 ? "float16" : "bfloat16";
    char *original = hf_original_config(e->run_dir);
    HfTokenIds ids = hf_token_ids(original, e->tokenizer);
    free(original);
    /* config.json comes last: a directory that has it is complete */
    return files_make_dirs(out_dir, errors) && write_weights(e, out_dir, errors) &&
           write_companions(e, out_dir, &ids, errors) &&
           write_text(out_dir, "config.json", hf_config_write(c, dtype, &ids), errors);
}
