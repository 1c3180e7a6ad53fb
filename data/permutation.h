/* A seeded permutation of 0 .. count - 1 that needs no table: a Feistel network on the next power of four,
 * walked until it lands below count (cycle walking; under four rounds of it on average). */
#pragma once
#include "model/random.h"

#define PERMUTATION_ROUNDS 6

typedef struct Permutation {
    int64_t  count;
    int      half_bits;
    uint64_t key[PERMUTATION_ROUNDS];
} Permutation;

static inline uint64_t permutation_mix(uint64_t x)
{
    return random_mix(x + RANDOM_STEP);
}

static inline Permutation permutation_make(int64_t count, uint64_t seed, uint64_t stream)
{
    Permutation p = { .count = count, .half_bits = 1 };
    while (p.half_bits < 31 && (int64_t)1 << 2 * p.half_bits < count)
        p.half_bits++;
    uint64_t state = permutation_mix(seed) ^ permutation_mix(~stream);
    for (int r = 0; r < PERMUTATION_ROUNDS; r++)
        p.key[r] = state = permutation_mix(state);
    return p;
}

/* index and the result are in [0, count). */
static inline int64_t permutation_at(const Permutation *p, int64_t index)
{
    uint64_t mask = ((uint64_t)1 << p->half_bits) - 1, value = (uint64_t)index;
    do {
        uint64_t left = value >> p->half_bits, right = value & mask;
        for (int r = 0; r < PERMUTATION_ROUNDS; r++) {
            uint64_t next = left ^ (permutation_mix(right ^ p->key[r]) & mask);
            left  = right;
            right = next;
        }
        value = left << p->half_bits | right;
    } while (value >= (uint64_t)p->count);
    return (int64_t)value;
}
