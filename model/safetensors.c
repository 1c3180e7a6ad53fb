#include "model/safetensors.h"
#include "model/files.h"
#include "model/floats.h"
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the files are little-endian");

#define HEADER_LIMIT 100000000      /* as the reference implementation */
#define ERRORS_PER_FILE 20
#define EXACT 9007199254740992.0    /* 2^53: cJSON keeps numbers as doubles */

static const struct { const char *name; size_t bytes; } dtypes[ST_DTYPES] = {
    [ST_F32] = {"F32", 4}, [ST_BF16] = {"BF16", 2}, [ST_F16] = {"F16", 2}, [ST_BOOL] = {"BOOL", 1},
    [ST_U8] = {"U8", 1}, [ST_I8] = {"I8", 1}, [ST_F8_E4M3] = {"F8_E4M3", 1}, [ST_F8_E5M2] = {"F8_E5M2", 1},
    [ST_F8_E8M0] = {"F8_E8M0", 1}, [ST_I16] = {"I16", 2}, [ST_U16] = {"U16", 2}, [ST_I32] = {"I32", 4},
    [ST_U32] = {"U32", 4}, [ST_C64] = {"C64", 8}, [ST_I64] = {"I64", 8}, [ST_U64] = {"U64", 8},
    [ST_F64] = {"F64", 8},
};

const char *safetensors_dtype_name(SafetensorsDtype dtype) { return dtypes[dtype].name; }
size_t safetensors_dtype_bytes(SafetensorsDtype dtype) { return dtypes[dtype].bytes; }

/* pread of everything asked for. False with errno set; errno 0 = the file ended. */
static bool read_at(int fd, void *to, int64_t bytes, int64_t offset)
{
    char *p = to;
    while (bytes) {
        ssize_t n = pread(fd, p, bytes < 1 << 30 ? (size_t)bytes : (size_t)1 << 30, offset);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = 0;
        if (n <= 0) return false;
        p += n;
        bytes -= n;
        offset += n;
    }
    return true;
}

static const char *read_failure(void)
{
    return errno ? strerror(errno) : "the file has become shorter";
}

/* A non-negative integer that a double holds exactly. */
static bool whole(const cJSON *item, int64_t *value)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= 0 && item->valuedouble <= EXACT)) return false;
    *value = (int64_t)item->valuedouble;
    return (double)*value == item->valuedouble;
}

/* Reads one entry of the header; begin and end are relative to the data. */
static bool read_entry(const char *path, const cJSON *entry, int64_t data_bytes, SafetensorsTensor *t,
                       int64_t *end, Errors *errors)
{
    const char *name = entry->string;
    const cJSON *dtype = cJSON_GetObjectItemCaseSensitive(entry, "dtype");
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(entry, "shape");
    const cJSON *offsets = cJSON_GetObjectItemCaseSensitive(entry, "data_offsets");
    if (!cJSON_IsObject(entry) || cJSON_GetArraySize(entry) != 3 || !cJSON_IsString(dtype) ||
        !cJSON_IsArray(shape) || !cJSON_IsArray(offsets)) {
        errors_add(errors, "%s: tensor \"%s\": expected exactly \"dtype\" (string), \"shape\" (array) and "
                   "\"data_offsets\" (array)", path, name);
        return false;
    }
    int d = 0;
    while (d < ST_DTYPES && strcmp(dtypes[d].name, dtype->valuestring) != 0) d++;
    if (d == ST_DTYPES) {
        errors_add(errors, "%s: tensor \"%s\": dtype \"%s\" is not supported; expected F32, BF16 or F16",
                   path, name, dtype->valuestring);
        return false;
    }
    t->dtype = (SafetensorsDtype)d;
    t->dims = cJSON_GetArraySize(shape);
    if (t->dims > SAFETENSORS_DIMS) {
        errors_add(errors, "%s: tensor \"%s\": %d dimensions; at most %d are supported", path, name, t->dims,
                   SAFETENSORS_DIMS);
        return false;
    }
    t->count = 1;
    const cJSON *size;
    int i = 0;
    cJSON_ArrayForEach(size, shape) {
        if (!whole(size, &t->shape[i])) {
            errors_add(errors, "%s: tensor \"%s\": shape[%d] is not a whole number from 0 to 2^53", path,
                       name, i);
            return false;
        }
        if (__builtin_mul_overflow(t->count, t->shape[i], &t->count)) {
            errors_add(errors, "%s: tensor \"%s\": its shape has more than 2^63 elements", path, name);
            return false;
        }
        i++;
    }
    int64_t begin = 0, bytes;
    if (cJSON_GetArraySize(offsets) != 2 || !whole(offsets->child, &begin) ||
        !whole(offsets->child->next, end) || begin > *end) {
        errors_add(errors, "%s: tensor \"%s\": data_offsets must be [begin, end] with 0 <= begin <= end <= "
                   "2^53", path, name);
        return false;
    }
    if (*end > data_bytes) {
        errors_add(errors, "%s: tensor \"%s\" ends at byte %" PRId64 " of the data, which has %" PRId64
                   " bytes; the file is incomplete", path, name, *end, data_bytes);
        return false;
    }
    if (__builtin_mul_overflow(t->count, (int64_t)dtypes[d].bytes, &bytes) || *end - begin != bytes) {
        errors_add(errors, "%s: tensor \"%s\": data_offsets span %" PRId64 " bytes; %" PRId64
                   " elements of %s need %" PRId64, path, name, *end - begin, t->count, dtypes[d].name,
                   bytes);
        return false;
    }
    t->offset = begin;
    t->name = strdup(name);
    if (!t->name) errors_add(errors, "%s: not enough memory for its header", path);
    return t->name != NULL;
}

static int by_offset(const void *a, const void *b)
{
    const SafetensorsTensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return (x->count > y->count) - (x->count < y->count);       /* empty tensors first */
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const SafetensorsTensor *)a)->name, ((const SafetensorsTensor *)b)->name);
}

/* The tensors of one file must tile its data: no gap, no overlap. Leaves them sorted by offset. */
static bool check_tiling(const char *path, SafetensorsTensor *t, int count, int64_t data_bytes,
                         Errors *errors)
{
    qsort(t, (size_t)count, sizeof *t, by_offset);
    int64_t at = 0;
    for (int i = 0; i < count; i++) {
        if (t[i].offset != at) {
            errors_add(errors, "%s: tensor \"%s\" begins at byte %" PRId64 " of the data; expected %" PRId64
                       ", where the one before it ends (%s)", path, t[i].name, t[i].offset, at,
                       t[i].offset > at ? "a gap" : "an overlap");
            return false;
        }
        at += t[i].count * (int64_t)dtypes[t[i].dtype].bytes;
    }
    if (at == data_bytes) return true;
    errors_add(errors, "%s: %" PRId64 " bytes behind the last tensor", path, data_bytes - at);
    return false;
}

static bool read_metadata(const char *path, const cJSON *metadata, Errors *errors)
{
    const cJSON *value;
    bool ok = cJSON_IsObject(metadata);
    cJSON_ArrayForEach(value, metadata) ok = ok && cJSON_IsString(value);
    if (!ok) errors_add(errors, "%s: \"__metadata__\" must be an object of strings", path);
    return ok;
}

/* Adds the tensors of a parsed header. */
static bool read_header(Safetensors *st, int file, const cJSON *header, int64_t data_start, Errors *errors)
{
    const char *path = st->files[file].path;
    int64_t data_bytes = st->files[file].bytes - data_start;
    int first = st->tensor_count, wrong = 0, metadata = 0;
    size_t room = (size_t)(first + cJSON_GetArraySize(header));
    SafetensorsTensor *more = realloc(st->tensors, (room ? room : 1) * sizeof *more);
    if (!more) {
        errors_add(errors, "%s: not enough memory for its header", path);
        return false;
    }
    st->tensors = more;
    const cJSON *entry;
    cJSON_ArrayForEach(entry, header) {
        if (wrong == ERRORS_PER_FILE) {
            errors_add(errors, "%s: more errors are not listed", path);
            return false;
        }
        if (strcmp(entry->string, "__metadata__") == 0) {
            wrong += !read_metadata(path, entry, errors);
            if (++metadata == 2) errors_add(errors, "%s: \"__metadata__\" stands twice in the header", path);
            wrong += metadata == 2;
            continue;
        }
        SafetensorsTensor t = {.file = file};
        int64_t end = 0;
        if (read_entry(path, entry, data_bytes, &t, &end, errors)) st->tensors[st->tensor_count++] = t;
        else wrong++;
    }
    SafetensorsTensor *own = st->tensors + first;
    int count = st->tensor_count - first;
    if (wrong) return false;
    qsort(own, (size_t)count, sizeof *own, by_name);
    for (int i = 1; i < count; i++) {
        if (strcmp(own[i - 1].name, own[i].name) != 0) continue;
        errors_add(errors, "%s: tensor \"%s\" stands twice in the header", path, own[i].name);
        return false;
    }
    if (!check_tiling(path, own, count, data_bytes, errors)) return false;
    for (int i = 0; i < count; i++) own[i].offset += data_start;
    return true;
}

/* Opens one file, checks its frame and adds its tensors. */
static bool add_file(Safetensors *st, const char *path, Errors *errors)
{
    SafetensorsFile *more = realloc(st->files, (size_t)(st->file_count + 1) * sizeof *more);
    if (more) st->files = more;
    char *own_path = more ? strdup(path) : NULL;
    if (!own_path) {
        errors_add(errors, "%s: not enough memory to open it", path);
        return false;
    }
    /* Not blocking, so that a FIFO is reported instead of waited for. */
    int file = st->file_count++, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    st->files[file] = (SafetensorsFile){.path = own_path, .fd = fd};
    struct stat s;
    if (fd < 0 || fstat(fd, &s) != 0) {
        errors_add(errors, "%s: cannot open: %s", path, strerror(errno));
        return false;
    }
    int64_t bytes = st->files[file].bytes = s.st_size;
    uint64_t n = 0;
    if (!S_ISREG(s.st_mode)) {
        errors_add(errors, "%s: not a regular file, so no safetensors file", path);
        return false;
    }
    if (bytes < 8) {
        errors_add(errors, "%s: not a safetensors file: expected at least 8 bytes, found %" PRId64, path,
                   bytes);
        return false;
    }
    if (!read_at(fd, &n, 8, 0)) {
        errors_add(errors, "%s: cannot read: %s", path, read_failure());
        return false;
    }
    if (n > HEADER_LIMIT) {
        errors_add(errors, "%s: not a safetensors file: its header length is %" PRIu64 "; the format allows "
                   "%d bytes", path, n, HEADER_LIMIT);
        return false;
    }
    if ((int64_t)n > bytes - 8) {
        errors_add(errors, "%s: the header has %" PRIu64 " bytes but the file only %" PRId64
                   "; it is incomplete", path, n, bytes);
        return false;
    }
    char *text = malloc(n + 1);
    if (!text || !read_at(fd, text, (int64_t)n, 8)) {
        errors_add(errors, "%s: cannot read its header: %s", path,
                   text ? read_failure() : "not enough memory");
        free(text);
        return false;
    }
    text[n] = 0;
    const char *end = text;
    cJSON *header = text[0] == '{' ? cJSON_ParseWithLengthOpts(text, n, &end, false) : NULL;
    bool ok = false;
    if (!header) {
        const char *at = text[0] == '{' ? cJSON_GetErrorPtr() : text;
        int64_t position = at && at >= text && at <= text + n ? at - text : 0;
        errors_add(errors, "%s: the header is not a JSON object (at byte %" PRId64 ")", path, 8 + position);
    } else if (strspn(end, " ") != n - (size_t)(end - text)) {
        errors_add(errors, "%s: only spaces may follow the JSON object of the header (at byte %td)", path,
                   8 + (end - text));
    } else {
        ok = read_header(st, file, header, 8 + (int64_t)n, errors);
    }
    cJSON_Delete(header);
    free(text);
    return ok;
}

/* Every tensor must be in the file that the index names for it, and the index must name every tensor. */
static bool check_index(const Safetensors *st, const char *path, const cJSON *map, Errors *errors)
{
    int wrong = 0, named = 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, map) {
        named++;
        const SafetensorsTensor *t = safetensors_find(st, item->string);
        if (t && strcmp(strrchr(st->files[t->file].path, '/') + 1, item->valuestring) == 0) continue;
        if (++wrong <= ERRORS_PER_FILE) {
            errors_add(errors, "%s: tensor \"%s\" is not in %s, where the index has it", path, item->string,
                       item->valuestring);
        }
    }
    for (int i = 0; i < st->tensor_count && !wrong && named != st->tensor_count; i++) {
        const SafetensorsTensor *t = &st->tensors[i];
        if (cJSON_GetObjectItemCaseSensitive(map, t->name)) continue;
        errors_add(errors, "%s: tensor \"%s\" of %s is not in the index", path, t->name,
                   st->files[t->file].path);
        wrong++;
    }
    if (!wrong && named != st->tensor_count) {
        errors_add(errors, "%s: the index names a tensor twice", path);
        wrong++;
    }
    return wrong == 0;
}

static bool add_indexed(Safetensors *st, const char *path, cJSON **index, Errors *errors)
{
    size_t bytes;
    char *text = files_read(path, &bytes, errors);
    if (!text) return false;
    *index = cJSON_ParseWithLengthOpts(text, bytes + 1, NULL, true);
    free(text);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(*index, "weight_map"), *item;
    bool ok = cJSON_IsObject(map);
    cJSON_ArrayForEach(item, map) ok = ok && cJSON_IsString(item);
    if (!ok) {
        errors_add(errors, "%s: expected a JSON object with \"weight_map\": {tensor: file, ...}", path);
        return false;
    }
    const char *slash = strrchr(path, '/');
    int dir_length = slash ? (int)(slash - path) + 1 : 0;
    char shard[PATH_MAX];
    cJSON_ArrayForEach(item, map) {
        if (item->valuestring[0] == 0 || strchr(item->valuestring, '/')) {
            errors_add(errors, "%s: \"%s\" is not the name of a file beside the index", path,
                       item->valuestring);
            return false;
        }
        snprintf(shard, sizeof shard, "%s%.*s%s", slash ? "" : "./", dir_length, path, item->valuestring);
        bool known = false;
        for (int i = 0; i < st->file_count && !known; i++) known = strcmp(st->files[i].path, shard) == 0;
        if (!known) ok = add_file(st, shard, errors) && ok;
    }
    return ok;
}

/* The file to open behind a directory; owned by the caller. */
static char *pick_file(const char *dir, Errors *errors)
{
    char *single = files_join(dir, "model.safetensors");
    char *index = files_join(dir, "model.safetensors.index.json");
    bool has_single = single && files_exists(single), has_index = index && files_exists(index);
    char *picked = NULL;
    if (has_single && has_index) {
        errors_add(errors, "%s: holds both model.safetensors and model.safetensors.index.json; name the one "
                   "that is meant", dir);
    } else if (!has_single && !has_index) {
        errors_add(errors, "%s: holds neither model.safetensors nor model.safetensors.index.json; pickled "
                   "weights (pytorch_model.bin) are not read: load and save them with transformers first",
                   dir);
    } else {
        picked = strdup(has_single ? single : index);
    }
    free(single);
    free(index);
    return picked;
}

Safetensors *safetensors_open(const char *path, Errors *errors)
{
    char *file = files_is_dir(path) ? pick_file(path, errors) : strdup(path);
    Safetensors *st = file ? calloc(1, sizeof *st) : NULL;
    if (!st) {
        free(file);
        return NULL;
    }
    size_t length = strlen(file);
    cJSON *index = NULL;
    bool indexed = length > 5 && strcmp(file + length - 5, ".json") == 0;
    bool ok = indexed ? add_indexed(st, file, &index, errors) : add_file(st, file, errors);
    if (st->tensor_count) qsort(st->tensors, (size_t)st->tensor_count, sizeof *st->tensors, by_name);
    for (int i = 1; i < st->tensor_count && ok; i++) {
        if (strcmp(st->tensors[i - 1].name, st->tensors[i].name) != 0) continue;
        errors_add(errors, "%s: tensor \"%s\" is in two of its files", file, st->tensors[i].name);
        ok = false;
    }
    if (ok && indexed) {
        ok = check_index(st, file, cJSON_GetObjectItemCaseSensitive(index, "weight_map"), errors);
    }
    cJSON_Delete(index);
    free(file);
    if (ok) return st;
    safetensors_close(st);
    return NULL;
}

void safetensors_close(Safetensors *st)
{
    if (!st) return;
    for (int i = 0; i < st->tensor_count; i++) free(st->tensors[i].name);
    for (int i = 0; i < st->file_count; i++) {
        if (st->files[i].fd >= 0) close(st->files[i].fd);
        free(st->files[i].path);
    }
    free(st->tensors);
    free(st->files);
    free(st);
}

const SafetensorsTensor *safetensors_find(const Safetensors *st, const char *name)
{
    if (!st->tensor_count) return NULL;
    SafetensorsTensor key = {.name = (char *)name};
    return bsearch(&key, st->tensors, (size_t)st->tensor_count, sizeof key, by_name);
}

bool safetensors_read_raw(const Safetensors *st, const SafetensorsTensor *t, int64_t first, int64_t count,
                          void *bytes, Errors *errors)
{
    const SafetensorsFile *file = &st->files[t->file];
    int64_t size = (int64_t)dtypes[t->dtype].bytes;
    if (first < 0 || count < 0 || first > t->count || count > t->count - first) {
        errors_add(errors, "%s: tensor \"%s\" has %" PRId64 " elements; %" PRId64 " from %" PRId64
                   " were asked for", file->path, t->name, t->count, count, first);
        return false;
    }
    if (read_at(file->fd, bytes, count * size, t->offset + first * size)) return true;
    errors_add(errors, "%s: cannot read tensor \"%s\" at byte %" PRId64 ": %s", file->path, t->name,
               t->offset + first * size, read_failure());
    return false;
}

bool safetensors_read(const Safetensors *st, const SafetensorsTensor *t, int64_t first, int64_t count,
                      float *values, Errors *errors)
{
    if (t->dtype == ST_F32) return safetensors_read_raw(st, t, first, count, values, errors);
    if (t->dtype != ST_BF16 && t->dtype != ST_F16) {
        errors_add(errors, "%s: tensor \"%s\" is %s; expected F32, BF16 or F16", st->files[t->file].path,
                   t->name, dtypes[t->dtype].name);
        return false;
    }
    uint16_t halves[16384];
    const int64_t room = sizeof halves / sizeof *halves;
    for (int64_t done = 0; done < count; ) {
        int64_t n = count - done < room ? count - done : room;
        if (!safetensors_read_raw(st, t, first + done, n, halves, errors)) return false;
        for (int64_t i = 0; i < n; i++) {
            values[done + i] = t->dtype == ST_BF16 ? float_from_bf16(halves[i]) : float_from_f16(halves[i]);
        }
        done += n;
    }
    return true;
}
