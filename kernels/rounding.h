/* BF16 conversion and stochastic rounding, one definition for the host and the device: moments in BF16 come
 * out the same on every backend. */
#pragma once
#include "kernels/tensor.h"
#include <string.h>

TENSOR_FN uint32_t float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

TENSOR_FN float float_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

TENSOR_FN float bf16_to_float(uint16_t x)
{
    return float_from_bits((uint32_t)x << 16);
}

/* Rounds up with a probability equal to the part that is cut off, so that the expected value is x.
 * random: 16 uniform bits (the rest is ignored). NaN and infinities are kept. */
TENSOR_FN uint16_t bf16_round_stochastic(float x, uint32_t random)
{
    uint32_t bits = float_bits(x);
    if ((bits & 0x7F800000u) != 0x7F800000u)
        return (uint16_t)((bits + (random & 0xFFFFu)) >> 16);
    /* The payload of a NaN may lie in the half that is cut off. */
    return (uint16_t)(bits >> 16 | ((bits & 0x007FFFFFu) ? 0x0040u : 0u));
}

/* Every input bit reaches every output bit: the 32-bit finaliser of MurmurHash3 (A. Appleby). */
TENSOR_FN uint32_t mix_bits(uint32_t h)
{
    h = (h ^ h >> 16) * 0x85EBCA6Bu;
    h = (h ^ h >> 13) * 0xC2B2AE35u;
    return h ^ h >> 16;
}

/* The key of one update, from Hyper.seed and Hyper.step. */
TENSOR_FN uint32_t rounding_key(uint32_t seed, uint32_t step)
{
    return mix_bits(seed + 0x9E3779B9u) ^ mix_bits(step * 0x9E3779B9u + 0x7F4A7C15u);
}

/* 32 random bits of the element at `index` of a master: the low half rounds m, the high half v. */
TENSOR_FN uint32_t rounding_bits(uint32_t key, int64_t index)
{
    uint32_t low = (uint32_t)index, high = (uint32_t)((uint64_t)index >> 32);
    return mix_bits(mix_bits(key + high * 0x9E3779B9u) ^ low);
}
