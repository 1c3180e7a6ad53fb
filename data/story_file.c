#include "data/story_file.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char *read_whole(const char *path, int64_t *length, Errors *errors)
{
    FILE *f = fopen(path, "rb");
    struct stat info;
    if (!f || fstat(fileno(f), &info) != 0 || !S_ISREG(info.st_mode)) {
        errors_add(errors, "%s: cannot be read (%s)", path, f ? "not a regular file" : strerror(errno));
        if (f) fclose(f);
        return NULL;
    }
    *length = info.st_size;
    char *bytes = malloc((size_t)*length + 1);
    if (!bytes || fread(bytes, 1, (size_t)*length, f) != (size_t)*length) {
        errors_add(errors, "%s: reading %lld bytes failed", path, (long long)*length);
        free(bytes);
        bytes = NULL;
    }
    fclose(f);
    return bytes;
}

/* Finds the paragraphs of bytes[length]. With d->start NULL only counts. */
static int64_t split(Documents *d, int64_t length)
{
    int64_t count = 0;
    for (int64_t at = 0; at < length;) {
        while (at < length && isspace((unsigned char)d->bytes[at])) at++;
        int64_t end = at;
        while (end < length && !(d->bytes[end] == '\n' && (end + 1 == length || d->bytes[end + 1] == '\n')))
            end++;
        const int64_t next = end;
        while (end > at && isspace((unsigned char)d->bytes[end - 1])) end--;
        if (end > at) {
            if (d->start) {
                d->start[count] = at;
                d->length[count] = end - at;
            }
            count++;
        }
        at = next;
    }
    return count;
}

int documents_read(const char *path, Documents *out, Errors *errors)
{
    int64_t length = 0;
    *out = (Documents){.bytes = read_whole(path, &length, errors)};
    if (!out->bytes) return 0;
    const int64_t count = split(out, length);
    out->start = malloc(sizeof *out->start * (size_t)(count + 1));
    out->length = malloc(sizeof *out->length * (size_t)(count + 1));
    if (!out->start || !out->length) {
        errors_add(errors, "%s: no memory for %lld documents", path, (long long)count);
        return 0;
    }
    out->count = split(out, length);
    if (count == 0) errors_add(errors, "%s: holds no text", path);
    return count > 0;
}

void documents_free(Documents *d)
{
    free(d->bytes);
    free(d->start);
    free(d->length);
    *d = (Documents){0};
}

uint64_t document_hash(const char *text, int64_t length)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a, 64 bit: http://www.isthe.com/chongo/tech/comp/fnv */
    for (int64_t i = 0; i < length; i++) hash = (hash ^ (uint8_t)text[i]) * 1099511628211u;
    return hash;
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

uint64_t *documents_hashes(const Documents *d)
{
    uint64_t *hashes = malloc(sizeof *hashes * (size_t)(d->count + 1));
    if (!hashes) return NULL;
    for (int64_t i = 0; i < d->count; i++) hashes[i] = document_hash(d->bytes + d->start[i], d->length[i]);
    qsort(hashes, (size_t)d->count, sizeof *hashes, compare);
    return hashes;
}

int hashes_contain(const uint64_t *sorted, int64_t count, uint64_t hash)
{
    return bsearch(&hash, sorted, (size_t)count, sizeof hash, compare) != NULL;
}
