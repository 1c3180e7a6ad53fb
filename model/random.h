/* Counter-based random numbers on the host: the same index gives the same number on every machine. */
#pragma once
#include <stdint.h>

/* 64 well-mixed bits of (key, counter): the finaliser of SplitMix64 (Steele, Lea, Flood 2014), twice. */
static inline uint64_t random_bits(uint64_t key, uint64_t counter)
{
    uint64_t x = key ^ (counter * 0x9E3779B97F4A7C15u);
    for (int round = 0; round < 2; round++) {
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
        x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
        x ^= x >> 31;
        x += 0x9E3779B97F4A7C15u;
    }
    return x;
}

/* Uniform in (0, 1): never either end. */
static inline double random_uniform(uint64_t key, uint64_t counter)
{
    return ((double)(random_bits(key, counter) >> 11) + 0.5) * 0x1p-53;
}
