#include "model/gguf.h"
#include "model/files.h"
#include "model/floats.h"
#include "model/gguf_keys.h"
#include "model/hf_names.h"
#include "model/rope.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GGUF_VERSION 3
#define GGUF_ALIGN 32

/* ---- keys ---------------------------------------------------------------------------------------- */

static void model_keys(GgufKeys *keys, const HfExport *e)
{
    const Config *c = e->config;
    LlamaShape s = llama_shape(c, DTYPE_F32);
    const char *slash = strrchr(c->run.dir, '/');
    gguf_key_string(keys, "general.architecture", "llama");
    gguf_key_string(keys, "general.name", slash && slash[1] ? slash + 1 : c->run.dir);
    gguf_key_u32(keys, "general.alignment", GGUF_ALIGN);
    gguf_key_u32(keys, "general.file_type", e->dtype == ST_F32 ? 0 : e->dtype == ST_F16 ? 1 : 32);
    gguf_key_u32(keys, "llama.vocab_size", s.vocab);
    int64_t longest = c->model.max_position ? c->model.max_position : c->train.seq_len;
    gguf_key_u32(keys, "llama.context_length", longest);
    gguf_key_u32(keys, "llama.embedding_length", s.hidden);
    gguf_key_u32(keys, "llama.block_count", s.layers);
    gguf_key_u32(keys, "llama.feed_forward_length", s.ffn);
    gguf_key_u32(keys, "llama.rope.dimension_count", s.head_dim);
    gguf_key_f32(keys, "llama.rope.freq_base", c->model.rope_theta);
    gguf_key_u32(keys, "llama.attention.head_count", s.heads);
    gguf_key_u32(keys, "llama.attention.head_count_kv", s.kv_heads);
    gguf_key_u32(keys, "llama.attention.key_length", s.head_dim);
    gguf_key_u32(keys, "llama.attention.value_length", s.head_dim);
    gguf_key_f32(keys, "llama.attention.layer_norm_rms_epsilon", c->model.norm_eps);
}

static bool all_keys(GgufKeys *keys, const HfExport *e, const char *scratch, Errors *errors)
{
    model_keys(keys, e);
    char *original = hf_original_config(e->run_dir);
    HfTokenIds ids = hf_token_ids(original, e->tokenizer);
    bool ok = true;
    if (e->tokenizer) {
        ok = gguf_tokenizer(keys, e->tokenizer, e->config->model.vocab, &ids, scratch, errors);
    } else if (hf_kept_tokenizer(e->run_dir)) {
        errors_add(errors, "the imported tokenizer is not one that can be read here, so GGUF's name of its "
                   "split rules is not known; export a Hugging Face directory and use llama.cpp's converter");
        ok = false;
    } else {
        gguf_key_string(keys, "tokenizer.ggml.model", "none");
    }
    free(original);
    return ok;
}

/* ---- tensors ------------------------------------------------------------------------------------- */

typedef struct GgufTensor {
    char      name[64];
    HfTensor  hf;
    RowLayout rows;         /* row n of the file is row master_row(rows, n) of the checkpoint */
    uint32_t  type;         /* 0 F32, 1 F16, 30 BF16 */
    uint64_t  offset, bytes;
} GgufTensor;

static void gguf_name(char *name, size_t size, const char *hf)
{
    static const struct { const char *hf, *gguf; } parts[] = {
        {"input_layernorm", "attn_norm"}, {"self_attn.q_proj", "attn_q"}, {"self_attn.k_proj", "attn_k"},
        {"self_attn.v_proj", "attn_v"}, {"self_attn.o_proj", "attn_output"},
        {"post_attention_layernorm", "ffn_norm"}, {"mlp.gate_proj", "ffn_gate"}, {"mlp.up_proj", "ffn_up"},
        {"mlp.down_proj", "ffn_down"},
    };
    static const struct { const char *hf, *gguf; } whole[] = {
        {"model.embed_tokens.weight", "token_embd.weight"}, {"model.norm.weight", "output_norm.weight"},
        {"lm_head.weight", "output.weight"},
    };
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (strcmp(hf, whole[i].hf) == 0) snprintf(name, size, "%s", whole[i].gguf);
    int layer, at = 0;
    if (sscanf(hf, "model.layers.%d.%n", &layer, &at) != 1 || !at) return;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strncmp(hf + at, parts[i].hf, strlen(parts[i].hf)) == 0)
            snprintf(name, size, "blk.%d.%s.weight", layer, parts[i].gguf);
}

/* Owned by the caller; NULL when memory ran out. */
static GgufTensor *list_tensors(const HfExport *e, int *count)
{
    LlamaShape shape = llama_shape(e->config, DTYPE_F32);
    HfTensor *hf = hf_tensors(&shape, count);
    GgufTensor *list = hf ? calloc((size_t)*count, sizeof *list) : NULL;
    uint64_t offset = 0;
    for (int i = 0; list && i < *count; i++) {
        GgufTensor *t = &list[i];
        t->hf = hf[i];
        gguf_name(t->name, sizeof t->name, hf[i].name);
        if (strstr(hf[i].name, "q_proj") || strstr(hf[i].name, "k_proj"))
            t->rows = (RowLayout){.order = ROWS_QKV, .head_dim = shape.head_dim, .rotated = hf[i].rows};
        bool f32 = hf[i].dims == 1 || e->dtype == ST_F32;
        t->type = f32 ? 0 : e->dtype == ST_F16 ? 1 : 30;
        t->bytes = (uint64_t)(hf[i].rows * hf[i].cols) * (f32 ? 4 : 2);
        t->offset = offset;
        offset += (t->bytes + GGUF_ALIGN - 1) / GGUF_ALIGN * GGUF_ALIGN;
    }
    free(hf);
    return list;
}

static void put_info(FILE *out, const char *name, int dims, const uint64_t *shape, uint32_t type,
                     uint64_t offset)
{
    gguf_put_string(out, name, strlen(name));
    gguf_put_u32(out, (uint32_t)dims);
    for (int i = 0; i < dims; i++) gguf_put_u64(out, shape[i]);
    gguf_put_u32(out, type);
    gguf_put_u64(out, offset);
}

static void pad(FILE *out, uint64_t written)
{
    while (written++ % GGUF_ALIGN) fputc(0, out);
}

/* One row, converted to the type of the tensor. */
static bool put_row(FILE *out, const float *values, int64_t n, const GgufTensor *t, Errors *errors)
{
    if (t->type == 0) return fwrite(values, sizeof *values, (size_t)n, out) == (size_t)n;
    for (int64_t i = 0; i < n; i++) {
        if (t->type == 1 && !(fabsf(values[i]) <= 65504.0f)) {
            errors_add(errors, "%s has values beyond 65504, which F16 cannot hold; export with --dtype=bf16 "
                       "or f32", t->hf.name);
            return false;
        }
        uint16_t half = t->type == 1 ? f16_from_float(values[i]) : bf16_from_float(values[i]);
        fputc(half & 0xff, out);
        fputc(half >> 8, out);
    }
    return true;
}

static bool put_tensor(FILE *out, const GgufTensor *t, const Safetensors *from, float *row, Errors *errors)
{
    const SafetensorsTensor *source = safetensors_find(from, t->hf.name);
    int64_t cols = t->hf.cols;
    if (!source || source->count != t->hf.rows * cols) {
        errors_add(errors, "%s: %s is %s; config.json and checkpoint of the run do not fit together",
                   from->files[0].path, t->hf.name, source ? "of another size" : "missing");
        return false;
    }
    for (int64_t n = 0; n < t->hf.rows; n++)
        if (!safetensors_read(from, source, master_row(t->rows, n) * cols, cols, row, errors) ||
            !put_row(out, row, cols, t, errors)) return false;
    pad(out, t->bytes);
    return true;
}

/* rope_freqs: what each frequency is divided by. */
static void put_divisors(FILE *out, const Config *c, int head_dim)
{
    double scaled[head_dim / 2];
    rope_inverse_frequencies(c, head_dim, scaled);
    for (int i = 0; i < head_dim / 2; i++)
        gguf_put_f32(out, (float)(pow(c->model.rope_theta, -2.0 * i / head_dim) / scaled[i]));
}

/* ---- the file ------------------------------------------------------------------------------------ */

static bool put_file(FILE *out, const HfExport *e, const GgufKeys *keys, Errors *errors)
{
    int count = 0, before = errors->count;
    GgufTensor *tensors = list_tensors(e, &count);
    LlamaShape shape = llama_shape(e->config, DTYPE_F32);
    int64_t widest = shape.ffn > shape.hidden ? shape.ffn : shape.hidden;
    float *row = malloc((size_t)(widest > shape.q_cols ? widest : shape.q_cols) * sizeof *row);
    Safetensors *from = safetensors_open(e->checkpoint, errors);
    bool scaled = e->config->model.rope_scaling == ROPE_LLAMA3;
    bool ok = tensors && row && from;
    if (!ok && errors->count == before) errors_add(errors, "out of memory while exporting");
    if (ok) {
        fwrite("GGUF", 1, 4, out);
        gguf_put_u32(out, GGUF_VERSION);
        gguf_put_u64(out, (uint64_t)count + scaled);
        gguf_put_u64(out, keys->count);
        fwrite(keys->text, 1, keys->bytes, out);
        for (int i = 0; i < count; i++) {
            const HfTensor *hf = &tensors[i].hf;
            uint64_t dims[2] = {(uint64_t)hf->cols, (uint64_t)hf->rows};
            put_info(out, tensors[i].name, hf->dims, dims, tensors[i].type, tensors[i].offset);
        }
        const GgufTensor *last = &tensors[count - 1];
        uint64_t half = (uint64_t)shape.head_dim / 2;
        uint64_t end = (last->offset + last->bytes + GGUF_ALIGN - 1) / GGUF_ALIGN * GGUF_ALIGN;
        if (scaled) put_info(out, "rope_freqs.weight", 1, &half, 0, end);
        pad(out, (uint64_t)ftello(out));
    }
    for (int i = 0; ok && i < count; i++) ok = put_tensor(out, &tensors[i], from, row, errors);
    if (ok && scaled) put_divisors(out, e->config, shape.head_dim);
    safetensors_close(from);
    free(row);
    free(tensors);
    return ok;
}

static bool write_file(const char *path, const char *written, const HfExport *e, const GgufKeys *keys,
                       Errors *errors)
{
    FILE *out = fopen(written, "wb");
    if (!out) {
        errors_add(errors, "%s: cannot create: %s", written, strerror(errno));
        return false;
    }
    bool ok = put_file(out, e, keys, errors);
    bool sound = !ferror(out) && fflush(out) == 0 && fsync(fileno(out)) == 0;
    if (fclose(out)) sound = false;
    if (ok && !sound) errors_add(errors, "%s: writing failed: %s", written, strerror(errno));
    ok = ok && sound;
    if (ok && rename(written, path)) {
        errors_add(errors, "%s: cannot rename to %s: %s", written, path, strerror(errno));
        ok = false;
    }
    if (!ok) unlink(written);
    return ok;
}

bool gguf_export(const HfExport *e, const char *path, Errors *errors)
{
    char written[strlen(path) + 8];
    snprintf(written, sizeof written, "%s.tmp", path);
    GgufKeys keys;
    if (!gguf_keys_open(&keys)) {
        errors_add(errors, "%s: out of memory", path);
        return false;
    }
    bool ok = all_keys(&keys, e, written, errors);
    if (!gguf_keys_close(&keys)) {
        errors_add(errors, "%s: out of memory", path);
        ok = false;
    }
    ok = ok && write_file(path, written, e, &keys, errors);
    free(keys.text);
    return ok;
}
