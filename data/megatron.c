#include "data/megatron.h"
#include "model/files.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MARK         "MMIDIDX\0"    /* with the 0 of a C string: 9 bytes */
#define HEADER_BYTES 34    /* mark, u64 version, u8 dtype, u64 sequences, u64 document entries */

/* X.idx of X.bin; NULL when path does not end in .bin or memory is short. Caller frees. */
static char *index_path(const char *path)
{
    size_t length = strlen(path);
    if (length < 4 || strcmp(path + length - 4, ".bin"))
        return NULL;
    char *index = strdup(path);
    if (index)
        memcpy(index + length - 4, ".idx", 4);
    return index;
}

static bool has_mark(const char *path)
{
    char        mark[sizeof MARK];
    struct stat status;
    if (stat(path, &status) || !S_ISREG(status.st_mode))    /* opening a FIFO would wait */
        return false;
    FILE *file = fopen(path, "rb");
    bool  fine = file && fread(mark, sizeof mark, 1, file) == 1 && !memcmp(mark, MARK, sizeof mark);
    if (file)
        fclose(file);
    return fine;
}

bool megatron_is_index(const char *path)
{
    size_t length = strlen(path);
    return length >= 4 && !strcmp(path + length - 4, ".idx") && has_mark(path);
}

bool megatron_has_index(const char *path)
{
    char *index = index_path(path);
    bool  fine  = index && has_mark(index);
    free(index);
    return fine;
}

static int64_t read_i64(const uint8_t *at) { int64_t value; memcpy(&value, at, 8); return value; }
static int32_t read_i32(const uint8_t *at) { int32_t value; memcpy(&value, at, 4); return value; }

/* Bytes of an id by Megatron's dtype code, 0 for kinds that are not ids. */
static int dtype_width(uint8_t code)
{
    switch (code) {
    case 1: return 1;     /* uint8 */
    case 8: return 2;     /* uint16 */
    case 4: return 4;     /* int32 */
    case 5: return 8;     /* int64 */
    default: return 0;
    }
}

/* data: the index, of `bytes`. Sequences must lie in the .bin one after another, as Megatron writes them. */
static bool parse_index(Shard *shard, const char *path, const uint8_t *data, uint64_t bytes, Errors *errors)
{
    if (bytes < HEADER_BYTES || read_i64(data + 9) != 1) {
        errors_add(errors, "%s: %s", path, bytes < HEADER_BYTES ? "truncated: shorter than its header" :
                   "version at byte 9 is not 1");
        return false;
    }
    uint8_t  code      = data[17];
    uint64_t sequences = (uint64_t)read_i64(data + 18), entries = (uint64_t)read_i64(data + 26);
    shard->width = dtype_width(code);
    if (!shard->width) {
        errors_add(errors,
                   "%s: dtype code %u at byte 17, expected 1 (uint8), 4 (int32), 5 (int64) or 8 (uint16)",
                   path, code);
        return false;
    }
    if (sequences > bytes / 12 || entries > bytes / 8 ||
        HEADER_BYTES + sequences * 12 + entries * 8 != bytes) {
        errors_add(
            errors, "%s: %llu sequences and %llu document entries do not make its %llu bytes; truncated?",
            path, (unsigned long long)sequences, (unsigned long long)entries, (unsigned long long)bytes);
        return false;
    }
    const uint8_t *lengths = data + HEADER_BYTES, *offsets = lengths + 4 * sequences;
    const uint8_t *documents = offsets + 8 * sequences;
    int64_t        at = 0, width = shard->width;
    for (uint64_t s = 0; s < sequences; s++) {
        int32_t length = read_i32(lengths + 4 * s);
        if (length < 0 || read_i64(offsets + 8 * s) != at) {
            errors_add(errors, "%s: sequence %llu has %d tokens at byte %lld of the .bin, expected byte %lld",
                       path, (unsigned long long)s, length, (long long)read_i64(offsets + 8 * s),
                       (long long)at);
            return false;
        }
        at += length * width;
    }
    if ((uint64_t)at != shard->map_bytes) {
        errors_add(errors, "%s: its index %s covers %lld bytes, the file has %zu; truncated?", shard->path,
                   path, (long long)at, shard->map_bytes);
        return false;
    }
    shard->count     = at / width;
    shard->documents = malloc((entries + 1) * sizeof *shard->documents);
    if (!shard->documents) {
        errors_add(errors, "%s: no memory for %llu documents", path, (unsigned long long)entries);
        return false;
    }
    int64_t before = 0;
    for (uint64_t d = 0; d < entries; d++) {
        int64_t sequence = read_i64(documents + 8 * d);
        if (sequence < 0 || (uint64_t)sequence > sequences) {
            errors_add(errors, "%s: document %llu begins at sequence %lld of %llu", path,
                       (unsigned long long)d, (long long)sequence, (unsigned long long)sequences);
            return false;
        }
        int64_t first =
            (uint64_t)sequence == sequences ? at / width : read_i64(offsets + 8 * sequence) / width;
        if (first < before) {
            errors_add(errors, "%s: document %llu begins before the one in front of it", path,
                       (unsigned long long)d);
            return false;
        }
        /* An empty document begins where the next one does, or at the end. */
        if (first < shard->count && (first > before || shard->document_count == 0))
            shard->documents[shard->document_count++] = first;
        before = first;
    }
    return true;
}

bool megatron_read_index(Shard *shard, Errors *errors)
{
    char    *path  = index_path(shard->path);
    size_t   bytes = 0;
    char    *data  = path ? files_read(path, &bytes, errors) : NULL;
    bool     fine  = data && parse_index(shard, path, (const uint8_t *)data, bytes, errors);
    free(data);
    free(path);
    return fine;
}
