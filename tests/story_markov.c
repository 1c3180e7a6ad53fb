#include "tests/story_markov.h"

#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1 << 20 };

struct Markov {
    const char *text; /* [length] */
    int64_t length;
    int64_t *start;    /* [BUCKETS + 1]: where each bucket begins in position */
    int64_t *position; /* [length]: positions by the hash of the bytes before them */
};

static uint32_t bucket(const char *context)
{
    uint64_t hash = 0;
    for (int i = 0; i < MARKOV_ORDER; i++) hash = hash * 1099511628211u + (uint8_t)context[i] + 1;
    return (uint32_t)(hash >> 44);
}

static uint64_t next_random(uint64_t *state) /* xorshift64* (Vigna 2016) */
{
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (*state * 2685821657736338717u) >> 32;
}

Markov *markov_create(const char *text, int64_t length)
{
    Markov *m = calloc(1, sizeof *m);
    if (!m) return NULL;
    m->text = text;
    m->length = length;
    m->start = calloc(BUCKETS + 1, sizeof *m->start);
    m->position = malloc(sizeof *m->position * (size_t)length);
    int64_t *fill = calloc(BUCKETS, sizeof *fill);
    if (!m->start || !m->position || !fill) {
        free(fill);
        markov_free(m);
        return NULL;
    }
    for (int64_t i = MARKOV_ORDER; i < length; i++) m->start[bucket(text + i - MARKOV_ORDER) + 1]++;
    for (int i = 0; i < BUCKETS; i++) m->start[i + 1] += m->start[i];
    for (int64_t i = MARKOV_ORDER; i < length; i++) {
        const uint32_t b = bucket(text + i - MARKOV_ORDER);
        m->position[m->start[b] + fill[b]++] = i;
    }
    free(fill);
    return m;
}

void markov_free(Markov *m)
{
    if (!m) return;
    free(m->start);
    free(m->position);
    free(m);
}

int markov_write(const Markov *m, uint64_t *state, char *out, int capacity)
{
    int64_t at; /* the first document after a random position */
    const char *gap;
    do {
        at = (int64_t)(next_random(state) % (uint64_t)(m->length - MARKOV_ORDER - 2));
        gap = memmem(m->text + at, (size_t)(m->length - at - MARKOV_ORDER - 2), "\n\n", 2);
    } while (!gap);
    memcpy(out, gap + 2, MARKOV_ORDER);
    int length = MARKOV_ORDER;
    while (length < capacity) {
        const char *context = out + length - MARKOV_ORDER;
        const uint32_t b = bucket(context);
        do { /* other contexts may share the bucket: draw until it is this one */
            const int64_t size = m->start[b + 1] - m->start[b];
            at = m->position[m->start[b] + (int64_t)(next_random(state) % (uint64_t)size)];
        } while (memcmp(m->text + at - MARKOV_ORDER, context, MARKOV_ORDER) != 0);
        out[length++] = m->text[at];
        if (memcmp(out + length - 2, "\n\n", 2) == 0) return length - 2;
    }
    return length;
}
