/* Rotary position tables with Llama-3's frequency scaling. */
#pragma once
#include "model/config.h"

/* inv_freq[i], i < head_dim / 2: theta^(-2i / head_dim), then the rule of Llama 3.1 where
 * model.rope_scaling is llama3: wavelengths longer than original / low_freq_factor are stretched by `factor`,
 * those shorter than original / high_freq_factor are kept, and those between are blended. */
void rope_inverse_frequencies(const Config *config, int head_dim, double *inv_freq);

/* table: [positions, head_dim/2, 2] f32, cosine and sine of position * inv_freq[i], computed in double. */
void rope_table(const Config *config, int head_dim, int64_t positions, float *table);
