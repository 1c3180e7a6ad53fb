/* Conversions between float and the 16-bit floats of files. Rounding is to nearest, ties to even. */
#pragma once
#include <stdint.h>

float float_from_bf16(uint16_t bits);
float float_from_f16(uint16_t bits);
uint16_t bf16_from_float(float value);
uint16_t f16_from_float(float value);   /* beyond 65504 becomes infinity */
