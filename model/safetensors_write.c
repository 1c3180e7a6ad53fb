#include "model/files.h"
#include "model/floats.h"
#include "model/safetensors.h"
#include "model/xxh64.h"
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BUFFER_BYTES (1 << 20)

typedef struct Planned {
    char            *name;          /* owned */
    SafetensorsDtype dtype;
    int              dims;
    int64_t          shape[SAFETENSORS_DIMS], count;
    int              shard;
    int64_t          begin, end;    /* bytes within the data of its shard */
} Planned;

struct SafetensorsWriter {
    char               *dir, *stem;
    Planned            *tensors;
    int                 count, shard_count;
    SafetensorsWritten *written;        /* [shard_count] */
    int64_t             total_bytes;    /* of tensor data */
    int                 tensor, shard;  /* being written; shard -1 before the first */
    int64_t             done;           /* elements of that tensor */
    int                 fd;
    Xxh64               hash;
    char               *buffer;         /* [BUFFER_BYTES] */
    size_t              used;
    char               *failure;        /* the first one, owned */
};

static void fail(SafetensorsWriter *w, const char *name, const char *what, const char *cause)
{
    if (w->failure) return;
    size_t size = strlen(w->dir) + strlen(name) + strlen(what) + strlen(cause) + 16;
    w->failure = malloc(size);
    if (w->failure) snprintf(w->failure, size, "%s/%s: %s: %s", w->dir, name, what, cause);
}

static bool failed(const SafetensorsWriter *w)
{
    return w->failure != NULL;
}

static void flush_buffer(SafetensorsWriter *w)
{
    xxh64_add(&w->hash, w->buffer, w->used);
    w->written[w->shard].bytes += (int64_t)w->used;
    for (size_t at = 0; at < w->used && !failed(w); ) {
        ssize_t n = write(w->fd, w->buffer + at, w->used - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail(w, w->written[w->shard].name, "cannot write", strerror(errno));
        else at += (size_t)n;
    }
    w->used = 0;
}

static void put(SafetensorsWriter *w, const void *data, size_t bytes)
{
    const char *p = data;
    while (bytes && !failed(w)) {
        size_t n = BUFFER_BYTES - w->used < bytes ? BUFFER_BYTES - w->used : bytes;
        memcpy(w->buffer + w->used, p, n);
        w->used += n;
        p += n;
        bytes -= n;
        if (w->used == BUFFER_BYTES) flush_buffer(w);
    }
}

static char *header_text(const SafetensorsWriter *w, int shard)
{
    cJSON *header = cJSON_CreateObject(), *metadata = cJSON_AddObjectToObject(header, "__metadata__");
    /* Without this entry Hugging Face's loaders refuse the file. */
    bool ok = cJSON_AddStringToObject(metadata, "format", "pt") != NULL;
    for (int i = 0; i < w->count && ok; i++) {
        const Planned *t = &w->tensors[i];
        if (t->shard != shard) continue;
        cJSON *entry = cJSON_AddObjectToObject(header, t->name);
        ok = cJSON_AddStringToObject(entry, "dtype", safetensors_dtype_name(t->dtype)) != NULL;
        cJSON *shape = cJSON_AddArrayToObject(entry, "shape");
        for (int d = 0; d < t->dims; d++) {
            ok = cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->shape[d])) && ok;
        }
        cJSON *offsets = cJSON_AddArrayToObject(entry, "data_offsets");
        ok = cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)t->begin)) && ok;
        ok = cJSON_AddItemToArray(offsets, cJSON_CreateNumber((double)t->end)) && ok;
    }
    char *text = ok ? cJSON_PrintUnformatted(header) : NULL;
    cJSON_Delete(header);
    return text;
}

static void begin_shard(SafetensorsWriter *w)
{
    SafetensorsWritten *file = &w->written[++w->shard];
    char *path = files_join(w->dir, file->name), *header = header_text(w, w->shard);
    if (!path || !header) {
        fail(w, file->name, "cannot write", "not enough memory");
    } else {
        w->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (w->fd < 0) fail(w, file->name, "cannot create", strerror(errno));
    }
    if (!failed(w)) {
        xxh64_begin(&w->hash, 0);
        size_t length = strlen(header), padding = (8 - length % 8) % 8;
        uint64_t n = length + padding;
        put(w, &n, 8);
        put(w, header, length);
        put(w, "        ", padding);
    }
    free(path);
    free(header);
}

static void end_shard(SafetensorsWriter *w)
{
    SafetensorsWritten *file = &w->written[w->shard];
    if (!failed(w)) flush_buffer(w);
    if (!failed(w) && fsync(w->fd) != 0) fail(w, file->name, "cannot sync to disk", strerror(errno));
    if (w->fd >= 0 && close(w->fd) != 0) fail(w, file->name, "cannot close", strerror(errno));
    w->fd = -1;
    file->xxh64 = xxh64_end(&w->hash);
}

/* Moves on to the next tensor that has elements, through the ends and beginnings of shards. */
static void advance(SafetensorsWriter *w)
{
    while (!failed(w)) {
        bool end = w->tensor == w->count;
        int shard = end ? w->shard_count : w->tensors[w->tensor].shard;
        while (w->shard < shard && !failed(w)) {
            if (w->shard >= 0) end_shard(w);
            if (w->shard + 1 == w->shard_count) return;
            begin_shard(w);
        }
        if (end || w->done < w->tensors[w->tensor].count) return;
        w->tensor++;
        w->done = 0;
    }
}

/* Fills in counts, shards and offsets. */
static bool lay_out(SafetensorsWriter *w, const SafetensorsSpec *specs, int64_t shard_bytes, Errors *errors)
{
    int64_t at = 0;
    for (int i = 0; i < w->count; i++) {
        Planned *t = &w->tensors[i];
        *t = (Planned){.name = strdup(specs[i].name), .dtype = specs[i].dtype, .dims = specs[i].dims,
                       .count = 1};
        if (!t->name) {
            errors_add(errors, "%s/%s: not enough memory", w->dir, w->stem);
            return false;
        }
        for (int d = 0; d < t->dims; d++) {
            t->shape[d] = specs[i].shape[d];
            t->count *= t->shape[d];
        }
        int64_t size = (int64_t)safetensors_dtype_bytes(t->dtype), bytes = t->count * size;
        if (t->dtype > ST_F16 || at % size) {
            errors_add(errors, "%s/%s: tensor \"%s\": %s", w->dir, w->stem, t->name,
                       t->dtype > ST_F16 ? "only F32, BF16 and F16 can be written" :
                       "tensors of wider types must stand before narrower ones");
            return false;
        }
        if (shard_bytes > 0 && at > 0 && bytes > 0 && at + bytes > shard_bytes) {
            w->shard_count++;
            at = 0;
        }
        t->shard = w->shard_count;
        t->begin = at;
        t->end = at += bytes;
        w->total_bytes += bytes;
    }
    w->shard_count++;
    return true;
}

static void writer_free(SafetensorsWriter *w)
{
    for (int i = 0; i < w->count && w->tensors; i++) free(w->tensors[i].name);
    free(w->tensors);
    free(w->written);
    free(w->buffer);
    free(w->failure);
    free(w->dir);
    free(w->stem);
    free(w);
}

SafetensorsWriter *safetensors_create(const char *dir, const char *stem, const SafetensorsSpec *specs,
                                      int count, int64_t shard_bytes, Errors *errors)
{
    SafetensorsWriter *w = calloc(1, sizeof *w);
    if (!w) {
        errors_add(errors, "%s/%s: not enough memory", dir, stem);
        return NULL;
    }
    *w = (SafetensorsWriter){.dir = strdup(dir), .stem = strdup(stem), .count = count, .shard = -1, .fd = -1,
                             .tensors = calloc((size_t)count + 1, sizeof *w->tensors),
                             .buffer = malloc(BUFFER_BYTES)};
    bool ok = w->dir && w->stem && w->tensors && w->buffer;
    if (!ok) errors_add(errors, "%s/%s: not enough memory", dir, stem);
    ok = ok && lay_out(w, specs, shard_bytes, errors);
    if (ok && !(w->written = calloc((size_t)w->shard_count, sizeof *w->written))) {
        errors_add(errors, "%s/%s: not enough memory", dir, stem);
        ok = false;
    }
    if (!ok) {
        writer_free(w);
        return NULL;
    }
    for (int i = 0; i < w->shard_count; i++) {
        char *name = w->written[i].name;
        const size_t size = sizeof w->written[i].name;
        if (w->shard_count == 1) snprintf(name, size, "%s.safetensors", stem);
        else snprintf(name, size, "%s-%05d-of-%05d.safetensors", stem, i + 1, w->shard_count);
    }
    advance(w);
    return w;
}

bool safetensors_write_raw(SafetensorsWriter *w, const void *bytes, int64_t count)
{
    if (failed(w)) return false;
    if (w->tensor == w->count || count < 0 || count > w->tensors[w->tensor].count - w->done) {
        fail(w, w->stem, "cannot write", "more data than its tensors have");
        return false;
    }
    put(w, bytes, (size_t)count * safetensors_dtype_bytes(w->tensors[w->tensor].dtype));
    w->done += count;
    advance(w);
    return !failed(w);
}

bool safetensors_write(SafetensorsWriter *w, const float *values, int64_t count)
{
    if (w->tensor == w->count || w->tensors[w->tensor].dtype == ST_F32) {
        return safetensors_write_raw(w, values, count);
    }
    bool bf16 = w->tensors[w->tensor].dtype == ST_BF16;
    uint16_t halves[16384];
    const int64_t room = sizeof halves / sizeof *halves;
    for (int64_t done = 0; done < count; ) {
        int64_t n = count - done < room ? count - done : room;
        for (int64_t i = 0; i < n; i++) {
            halves[i] = bf16 ? bf16_from_float(values[done + i]) : f16_from_float(values[done + i]);
        }
        if (!safetensors_write_raw(w, halves, n)) return false;
        done += n;
    }
    return !failed(w);
}

static char *index_path(const SafetensorsWriter *w)
{
    char name[128];
    snprintf(name, sizeof name, "%s.safetensors.index.json", w->stem);
    return files_join(w->dir, name);
}

static bool write_index(const SafetensorsWriter *w, Errors *errors)
{
    cJSON *index = cJSON_CreateObject(), *metadata = cJSON_AddObjectToObject(index, "metadata");
    cJSON_AddNumberToObject(metadata, "total_size", (double)w->total_bytes);
    cJSON *map = cJSON_AddObjectToObject(index, "weight_map");
    bool ok = map != NULL;
    for (int i = 0; i < w->count && ok; i++) {
        ok = cJSON_AddStringToObject(map, w->tensors[i].name, w->written[w->tensors[i].shard].name) != NULL;
    }
    char *text = ok ? cJSON_Print(index) : NULL, *path = index_path(w);
    cJSON_Delete(index);
    if (text && path) ok = files_replace(path, text, strlen(text), errors);
    else errors_add(errors, "%s/%s: not enough memory for the index", w->dir, w->stem);
    ok = ok && text && path;
    free(text);
    free(path);
    return ok;
}

void safetensors_abandon(SafetensorsWriter *w)
{
    if (!w) return;
    if (w->fd >= 0) close(w->fd);
    for (int i = 0; i <= w->shard && i < w->shard_count; i++) {
        char *path = files_join(w->dir, w->written[i].name);
        if (path) unlink(path);
        free(path);
    }
    writer_free(w);
}

bool safetensors_finish(SafetensorsWriter *w, SafetensorsWritten **files, int *file_count, Errors *errors)
{
    if (!failed(w) && w->tensor < w->count) fail(w, w->stem, "cannot write", "its tensors are not complete");
    bool ok = !failed(w);
    if (!ok) errors_add(errors, "%s", w->failure);
    ok = ok && (w->shard_count == 1 || write_index(w, errors)) && files_sync_dir(w->dir, errors);
    if (!ok) {
        safetensors_abandon(w);
        return false;
    }
    if (files) {
        *files = w->written;
        *file_count = w->shard_count;
        w->written = NULL;
    }
    writer_free(w);
    return true;
}
