#include "model/floats.h"
#include "kernels/rounding.h"

float float_from_bf16(uint16_t bits)
{
    return bf16_to_float(bits);
}

uint16_t bf16_from_float(float value)
{
    uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40);   /* a NaN stays one */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

float float_from_f16(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31) return float_from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0) return float_from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    float magnitude = (float)fraction * 0x1p-24f;
    return sign ? -magnitude : magnitude;
}

uint16_t f16_from_float(float value)
{
    uint32_t bits = float_bits(value);
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | (bits >> 13 & 1023));
    if (bits >= 0x477ff000u) return sign | 0x7c00;      /* 65520 and more round to infinity */
    if (bits < 0x38800000u) {
        /* Below 2^-14 the result counts units of 2^-24. Adding 0.5, whose unit in the last place is 2^-24,
         * lets the FPU do the rounding. */
        return (uint16_t)(sign | (float_bits(float_from_bits(bits) + 0.5f) - float_bits(0.5f)));
    }
    return (uint16_t)(sign | (bits - 0x38000000u + 0xfffu + (bits >> 13 & 1)) >> 13);
}
