#include "model/rope.h"
#include <math.h>

void rope_inverse_frequencies(const Config *config, int head_dim, double *inv_freq)
{
    double low = config->model.rope_low_freq_factor, high = config->model.rope_high_freq_factor;
    double original = (double)config->model.rope_original_max_position;
    for (int i = 0; i < head_dim / 2; i++) {
        double f = pow(config->model.rope_theta, -2.0 * i / head_dim);
        if (config->model.rope_scaling == ROPE_LLAMA3) {
            double turns = original * f / (2.0 * M_PI);    /* rotations within the original context */
            double keep = (turns - low) / (high - low);    /* 1: keep f, 0: stretch it */
            keep = fmin(fmax(keep, 0.0), 1.0);
            f = keep * f + (1.0 - keep) * f / config->model.rope_factor;
        }
        inv_freq[i] = f;
    }
}

void rope_table(const Config *config, int head_dim, int64_t positions, float *table)
{
    int half = head_dim / 2;
    double inv_freq[half];
    rope_inverse_frequencies(config, head_dim, inv_freq);
    for (int64_t p = 0; p < positions; p++)
        for (int i = 0; i < half; i++) {
            double angle = (double)p * inv_freq[i];
            table[(p * half + i) * 2] = (float)cos(angle);
            table[(p * half + i) * 2 + 1] = (float)sin(angle);
        }
}
