/* Counter-based random numbers on the host: the same index gives the same number on every machine. */
#pragma once
#include <stdint.h>

#define RANDOM_STEP 0x9E3779B97F4A7C15u     /* 2^64 divided by the golden ratio */

/* The finaliser of SplitMix64 (Steele, Lea, Flood 2014): bijective, every bit of x reaches every bit. */
static inline uint64_t random_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* 64 well-mixed bits of (key, counter). */
static inline uint64_t random_bits(uint64_t key, uint64_t counter)
{
    uint64_t once = random_mix(key ^ (counter * RANDOM_STEP));
    return random_mix(once + RANDOM_STEP) + RANDOM_STEP;
}

/* Uniform in (0, 1): never either end. */
static inline double random_uniform(uint64_t key, uint64_t counter)
{
    return ((double)(random_bits(key, counter) >> 11) + 0.5) * 0x1p-53;
}
