#include "data/story_file.h"

#include <ctype.h>
#include <stdlib.h>

static uint64_t hash_of(const char *text, size_t length)
{
    uint64_t hash = 14695981039346656037u; /* FNV-1a, 64 bit: http://www.isthe.com/chongo/tech/comp/fnv */
    for (size_t i = 0; i < length; i++) hash = (hash ^ (uint8_t)text[i]) * 1099511628211u;
    return hash;
}

static int compare(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static Document trim(Document d)
{
    while (d.length && isspace((unsigned char)d.text[0])) d.text++, d.length--;
    while (d.length && isspace((unsigned char)d.text[d.length - 1])) d.length--;
    return d;
}

bool story_file_open(StoryFile *f, const char *path, Errors *errors)
{
    *f = (StoryFile){0};
    char *paths[] = {(char *)path};
    if (!inputs_open(&f->inputs, paths, 1, INPUT_TEXT, errors)) return false;
    DocumentReader reader = {.inputs = &f->inputs};
    Document d;
    for (int64_t capacity = 0; documents_next(&reader, &d, errors); f->count++) {
        if (f->count == capacity) {
            capacity = 2 * capacity + 1024;
            Document *grown = realloc(f->stories, sizeof d * (size_t)capacity);
            if (!grown) goto no_memory;
            f->stories = grown;
        }
        f->stories[f->count] = trim(d);
    }
    if (f->count == 0) {
        errors_add(errors, "%s: holds no text", path);
        return false;
    }
    f->hashes = malloc(sizeof *f->hashes * (size_t)f->count);
    if (!f->hashes) goto no_memory;
    for (int64_t i = 0; i < f->count; i++) f->hashes[i] = hash_of(f->stories[i].text, f->stories[i].length);
    qsort(f->hashes, (size_t)f->count, sizeof *f->hashes, compare);
    return true;
no_memory:
    errors_add(errors, "%s: no memory for more than %lld stories", path, (long long)f->count);
    return false;
}

void story_file_close(StoryFile *f)
{
    inputs_close(&f->inputs);
    free(f->stories);
    free(f->hashes);
    *f = (StoryFile){0};
}

bool story_file_contains(const StoryFile *f, const char *text, size_t length)
{
    const uint64_t hash = hash_of(text, length);
    return f->count && bsearch(&hash, f->hashes, (size_t)f->count, sizeof hash, compare);
}

int64_t story_file_repeats(const StoryFile *f)
{
    int64_t repeats = 0;
    for (int64_t i = 1; i < f->count; i++) repeats += f->hashes[i] == f->hashes[i - 1];
    return repeats;
}
