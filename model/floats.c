#include "model/floats.h"
#include <string.h>

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float float_from_bf16(uint16_t bits)
{
    return float_of((uint32_t)bits << 16);
}

uint16_t bf16_from_float(float value)
{
    uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40);   /* a NaN stays one */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

float float_from_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31) return float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0) return float_of(sign | (exponent + 112) << 23 | fraction << 13);
    float magnitude = (float)fraction * 0x1p-24f;
    return sign ? -magnitude : magnitude;
}

uint16_t f16_from_float(float value)
{
    uint32_t bits = bits_of(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | (bits >> 13 & 1023));
    if (bits >= 0x477ff000u) return sign | 0x7c00;      /* 65520 and more round to infinity */
    if (bits < 0x38800000u) {
        /* Below 2^-14 the result counts units of 2^-24. Adding 0.5, whose unit in the last place is 2^-24,
         * lets the FPU do the rounding. */
        return (uint16_t)(sign | (bits_of(float_of(bits) + 0.5f) - bits_of(0.5f)));
    }
    return (uint16_t)(sign | (bits - 0x38000000u + 0xfffu + (bits >> 13 & 1)) >> 13);
}
