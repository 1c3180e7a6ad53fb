#include "model/weights_io.h"
#include "model/floats.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define STAGING_BYTES ((int64_t)16 << 20)
#define NAME_BYTES 96

typedef enum Part { PART_MASTER, PART_M, PART_V, PART_COUNT } Part;

static const char *const suffix[PART_COUNT] = {"", ".m", ".v"};

static const Tensor *part_of(const Weight *w, Part part)
{
    return part == PART_MASTER ? &w->master : part == PART_M ? &w->m : &w->v;
}

static SafetensorsDtype file_dtype(Dtype dtype)
{
    return dtype == DTYPE_BF16 ? ST_BF16 : ST_F32;
}

/* First byte of a tensor's rows on the device. */
static char *rows_at(const Tensor *t, int64_t first_row)
{
    return (char *)t->data + (size_t)(first_row * t->stride) * dtype_bytes(t->dtype);
}

/* Feeds one tensor to the writer, STAGING_BYTES at a time. */
static bool save_tensor(const Llama *model, const HfTensor *hf, Part part, SafetensorsWriter *writer,
                        void *staging)
{
    const Tensor *t = part_of(&model->weights[hf->weight], part);
    const Device *device = model->device;
    const size_t size = dtype_bytes(t->dtype);
    const int64_t total = hf->rows * hf->cols, room = STAGING_BYTES / (int64_t)size;
    const char *from = rows_at(t, hf->first_row);
    for (int64_t done = 0, n; done < total; done += n) {
        n = total - done < room ? total - done : room;
        device->download(model->ctx.stream, staging, from + (size_t)done * size, (size_t)n * size);
        device->wait(model->ctx.stream);
        /* Masters are converted to what the file wants; moments stay as they are. */
        bool ok = part == PART_MASTER ? safetensors_write(writer, staging, n) :
                  safetensors_write_raw(writer, staging, n);
        if (!ok) return false;
    }
    return true;
}

static bool save_parts(const Llama *model, Part first, Part last, const char *dir, const char *stem,
                       SafetensorsDtype dtype, int64_t shard_bytes, SafetensorsWritten **files,
                       int *file_count, Errors *errors)
{
    int count = 0, parts = (int)last - (int)first + 1;
    HfTensor *list = hf_tensors(&model->shape, &count);
    SafetensorsSpec *specs = list ? calloc((size_t)(count * parts), sizeof *specs) : NULL;
    char (*names)[NAME_BYTES] = list ? calloc((size_t)(count * parts), sizeof *names) : NULL;
    void *staging = malloc((size_t)STAGING_BYTES);
    bool ok = specs && names && staging;
    if (!ok) errors_add(errors, "%s/%s: not enough memory to write it", dir, stem);
    for (int i = 0; ok && i < count * parts; i++) {
        const HfTensor *hf = &list[i % count];
        snprintf(names[i], sizeof names[i], "%s%s", hf->name, suffix[(int)first + i / count]);
        specs[i] = (SafetensorsSpec){.name = names[i], .dtype = dtype, .dims = hf->dims};
        specs[i].shape[0] = hf->dims == 1 ? hf->cols : hf->rows;
        specs[i].shape[1] = hf->cols;
    }
    SafetensorsWriter *writer = NULL;
    if (ok) writer = safetensors_create(dir, stem, specs, count * parts, shard_bytes, errors);
    ok = writer != NULL;
    for (int i = 0; ok && i < count * parts; i++) {
        ok = save_tensor(model, &list[i % count], (Part)((int)first + i / count), writer, staging);
    }
    if (writer) ok = safetensors_finish(writer, files, file_count, errors);
    free(staging);
    free(names);
    free(specs);
    free(list);
    return ok;
}

bool weights_save(const Llama *model, const char *dir, const char *stem, SafetensorsDtype dtype,
                  int64_t shard_bytes, SafetensorsWritten **files, int *file_count, Errors *errors)
{
    return save_parts(model, PART_MASTER, PART_MASTER, dir, stem, dtype, shard_bytes, files, file_count,
                      errors);
}

bool moments_save(const Llama *model, const char *dir, const char *stem, SafetensorsWritten **files,
                  int *file_count, Errors *errors)
{
    return save_parts(model, PART_M, PART_V, dir, stem, file_dtype(model->weights[0].m.dtype), 0, files,
                      file_count, errors);
}

/* ---- loading ------------------------------------------------------------------------------------- */

static bool load_tensor(Llama *model, const HfTensor *hf, Part part, const Safetensors *from,
                        const SafetensorsTensor *source, void *staging, Errors *errors)
{
    const Tensor *t = part_of(&model->weights[hf->weight], part);
    const Device *device = model->device;
    const bool narrow = t->dtype == DTYPE_BF16, raw = narrow && source->dtype == ST_BF16;
    const size_t size = dtype_bytes(t->dtype);
    const int64_t total = hf->rows * hf->cols, room = STAGING_BYTES / 4;
    char *to = rows_at(t, hf->first_row);
    for (int64_t done = 0, n; done < total; done += n) {
        n = total - done < room ? total - done : room;
        bool ok = raw ? safetensors_read_raw(from, source, done, n, staging, errors) :
                  safetensors_read(from, source, done, n, staging, errors);
        if (!ok) return false;
        if (narrow && !raw) {
            float *wide = staging;
            uint16_t *halves = staging;
            for (int64_t i = 0; i < n; i++) halves[i] = bf16_from_float(wide[i]);
        }
        device->upload(model->ctx.stream, to + (size_t)done * size, staging, (size_t)n * size);
        device->wait(model->ctx.stream);
    }
    return true;
}

static bool shape_fits(const HfTensor *hf, const SafetensorsTensor *t)
{
    if (t->dims != hf->dims) return false;
    return hf->dims == 1 ? t->shape[0] == hf->cols : t->shape[0] == hf->rows && t->shape[1] == hf->cols;
}

static void shape_text(char *text, size_t size, int dims, const int64_t *shape)
{
    size_t at = (size_t)snprintf(text, size, "[");
    for (int i = 0; i < dims && at < size; i++) {
        at += (size_t)snprintf(text + at, size - at, "%s%" PRId64, i ? ", " : "", shape[i]);
    }
    if (at < size) snprintf(text + at, size - at, "]");
}

/* True where lm_head.weight of a tied model repeats the embedding, as some writers leave it. */
static bool repeats_embedding(const Safetensors *from, const SafetensorsTensor *t, float *staging,
                              Errors *errors)
{
    const SafetensorsTensor *embed = safetensors_find(from, "model.embed_tokens.weight");
    if (strcmp(t->name, "lm_head.weight") != 0 || !embed || embed->count != t->count) return false;
    const int64_t room = STAGING_BYTES / 8;
    for (int64_t done = 0, n; done < t->count; done += n) {
        n = t->count - done < room ? t->count - done : room;
        if (!safetensors_read(from, embed, done, n, staging, errors) ||
            !safetensors_read(from, t, done, n, staging + n, errors)) return false;
        if (memcmp(staging, staging + n, (size_t)n * sizeof(float)) != 0) return false;
    }
    return true;
}

static bool is_expected(const HfTensor *list, int count, Part first, Part last, const char *name)
{
    char expected[NAME_BYTES];
    for (int i = 0; i < count; i++) {
        for (int part = (int)first; part <= (int)last; part++) {
            snprintf(expected, sizeof expected, "%s%s", list[i].name, suffix[part]);
            if (strcmp(expected, name) == 0) return true;
        }
    }
    return false;
}

/* Adds an error for every missing, misshapen and unknown tensor. */
static bool check_names(const Llama *model, const HfTensor *list, int count, Part first, Part last,
                        const Safetensors *from, void *staging, Errors *errors)
{
    const char *path = from->files[0].path;
    int wrong = 0, found = 0;
    for (int i = 0; i < count; i++) {
        for (int part = (int)first; part <= (int)last; part++) {
            char name[NAME_BYTES], have[128], want[128];
            snprintf(name, sizeof name, "%s%s", list[i].name, suffix[part]);
            const SafetensorsTensor *t = safetensors_find(from, name);
            int64_t shape[2] = {list[i].dims == 1 ? list[i].cols : list[i].rows, list[i].cols};
            shape_text(want, sizeof want, list[i].dims, shape);
            if (!t) {
                errors_add(errors, "%s: tensor \"%s\" %s is missing", path, name, want);
                wrong++;
                continue;
            }
            found++;
            if (!shape_fits(&list[i], t)) {
                shape_text(have, sizeof have, t->dims, t->shape);
                errors_add(errors, "%s: tensor \"%s\" is %s; the model needs %s", path, name, have, want);
                wrong++;
            } else if (t->dtype > ST_F16) {
                errors_add(errors, "%s: tensor \"%s\" is %s; expected F32, BF16 or F16", path, name,
                           safetensors_dtype_name(t->dtype));
                wrong++;
            }
        }
    }
    for (int i = 0; i < from->tensor_count && found < from->tensor_count; i++) {
        const SafetensorsTensor *t = &from->tensors[i];
        if (is_expected(list, count, first, last, t->name)) continue;
        const char *end = strstr(t->name, ".rotary_emb.inv_freq");
        if (end && strcmp(end, ".rotary_emb.inv_freq") == 0) continue;
        if (model->shape.tied && repeats_embedding(from, t, staging, errors)) continue;
        bool head = model->shape.tied && strcmp(t->name, "lm_head.weight") == 0;
        errors_add(errors, "%s: tensor \"%s\" is not part of this model%s", from->files[t->file].path,
                   t->name, head ? " (tie_embeddings is true and it differs from the embedding)" : "");
        wrong++;
    }
    return wrong == 0;
}

/* Loads what check_names has found in order; returns the number of tensors loaded, -1 with an error added. */
static int load_parts(Llama *model, const HfTensor *list, int count, Part first, Part last,
                      const Safetensors *from, void *staging, Errors *errors)
{
    int loaded = 0;
    for (int i = 0; i < count; i++) {
        for (int part = (int)first; part <= (int)last; part++, loaded++) {
            char name[NAME_BYTES];
            snprintf(name, sizeof name, "%s%s", list[i].name, suffix[part]);
            const SafetensorsTensor *source = safetensors_find(from, name);
            if (!load_tensor(model, &list[i], (Part)part, from, source, staging, errors)) return -1;
        }
    }
    return loaded;
}

int weights_load(Llama *model, const Safetensors *masters, const Safetensors *moments, Errors *errors)
{
    int count = 0, loaded = -1;
    HfTensor *list = hf_tensors(&model->shape, &count);
    void *staging = malloc((size_t)STAGING_BYTES);
    if (!list || !staging) {
        errors_add(errors, "%s: not enough memory to load it", masters->files[0].path);
    } else {
        bool ok = check_names(model, list, count, PART_MASTER, PART_MASTER, masters, staging, errors);
        if (moments) ok = check_names(model, list, count, PART_M, PART_V, moments, staging, errors) && ok;
        if (ok) loaded = load_parts(model, list, count, PART_MASTER, PART_MASTER, masters, staging, errors);
        if (loaded >= 0 && moments) {
            int more = load_parts(model, list, count, PART_M, PART_V, moments, staging, errors);
            loaded = more < 0 ? -1 : loaded + more;
        }
    }
    free(staging);
    free(list);
    return loaded;
}
