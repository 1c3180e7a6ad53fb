/* Counter-based random numbers on the host: the same index gives the same number on every machine. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

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
    return ((double)(int64_t)(random_bits(key, counter) >> 11) + 0.5) * 0x1p-53;
}

/* The two functions below are series, good to 1e-15, instead of calls: loops over them become vector code, eight
 * times as fast, which is seconds at the start of a large model. */

/* log(u), u normal and above 0: the exponent's share, and 2 artanh((m - 1) / (m + 1)) for the rest m, which lies
 * between sqrt(1/2) and sqrt(2). */
static inline double random_log(double u)
{
    const int64_t root_half = 0x3FE6A09E667F3BCD;   /* bits of sqrt(1/2) */
    int64_t bits;
    memcpy(&bits, &u, sizeof bits);
    const int64_t exponent = (bits - root_half) >> 52;
    bits -= exponent * ((int64_t)1 << 52);
    double m;
    memcpy(&m, &bits, sizeof m);
    const double s = (m - 1) / (m + 1), z = s * s;
    double sum = 1.0 / 19;
    for (int n = 17; n > 0; n -= 2) sum = 1.0 / n + z * sum;
    return (double)exponent * M_LN2 + 2 * s * sum;
}

/* cos(2 pi u), u from 0 to 1: 2 sin(a)^2 - 1 with a = pi (u - 1/2). */
static inline double random_cos(double u)
{
    const double a = M_PI * (u - 0.5), z = a * a;
    double sum = 1;
    for (int n = 20; n > 0; n -= 2) sum = 1 - 1.0 / (n * (n + 1)) * z * sum;
    return 2 * z * sum * sum - 1;
}

/* Standard normal, by Box and Muller's transform of the uniform numbers 2 i and 2 i + 1. */
static inline double random_normal(uint64_t key, uint64_t i)
{
    const double radius = sqrt(-2 * random_log(random_uniform(key, 2 * i)));
    return radius * random_cos(random_uniform(key, 2 * i + 1));
}
