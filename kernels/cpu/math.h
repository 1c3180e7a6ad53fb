/* Elementary functions that the compiler can vectorise: no branches, no calls, no tables. */
#pragma once
#include "kernels/rounding.h"

/* e^x, relative error below 1.2e-7 (under two units in the last place) for x in [-87.3, 88.3]; 0 below,
 * infinity above, NaN stays NaN.
 * x = n ln2 + r with |r| <= ln2 / 2; e^r is 1 + r + r^2 q(r), q the least-maximum fit of degree 4 (its own
 * relative error is 3e-9). Adding 1.5 * 2^23 rounds to an integer and leaves n in the low bits. */
static inline float fast_exp(float x)
{
    const float round = 12582912.0f, ln2_high = 0x1.62e4p-1f, ln2_low = 0x1.7f7d1cp-20f;
    float clamped = x < -88.0f ? -88.0f : x;
    clamped = clamped > 89.0f ? 89.0f : clamped;
    float shifted = clamped * 0x1.715476p+0f + round;
    float n = shifted - round;
    float r = clamped - n * ln2_high - n * ln2_low;
    float q = 0x1.6a23cep-10f;
    q = q * r + 0x1.123a2p-7f;
    q = q * r + 0x1.5558f2p-5f;
    q = q * r + 0x1.555492p-3f;
    q = q * r + 0x1.fffffcp-2f;
    float power = float_from_bits((float_bits(shifted) << 23) + 0x3F800000u);
    float value = (q * r * r + r + 1.0f) * power;
    return x < -87.3f ? 0.0f : value;
}

/* sigma(g) and 1 - sigma(g), neither by subtraction, so that both keep their relative precision. */
typedef struct Sigmoid { float yes, no; } Sigmoid;

static inline Sigmoid sigmoid(float g)
{
    float e = fast_exp(g < 0.0f ? g : -g);
    float large = 1.0f / (1.0f + e), small = e * large;
    return (Sigmoid){.yes = g < 0.0f ? small : large, .no = g < 0.0f ? large : small};
}
