#include "model/schedule.h"
#include <math.h>

double schedule_lr(const Config *config, int64_t step)
{
    double lr = config->train.lr, floor = lr * config->train.min_lr_ratio;
    int64_t warmup = config->train.warmup_steps, last = config->train.steps - 1;
    if (step < warmup) return lr * (double)(step + 1) / (double)warmup;

    int64_t start = warmup;     /* first step of the decay */
    if (config->train.schedule == SCHEDULE_WSD) {
        start = config->train.steps -
                (int64_t)llround((double)config->train.steps * config->train.decay_fraction);
        if (start < warmup) start = warmup;
    }
    if (config->train.schedule == SCHEDULE_CONSTANT || step < start) return lr;

    double progress = last > start ? (double)(step - start) / (double)(last - start) : 1.0;
    if (progress > 1.0) progress = 1.0;
    switch (config->train.schedule) {
    case SCHEDULE_COSINE: return floor + (lr - floor) * 0.5 * (1.0 + cos(M_PI * progress));
    case SCHEDULE_WSD:
        if (config->train.decay_shape == DECAY_SQRT) return floor + (lr - floor) * (1.0 - sqrt(progress));
        return floor + (lr - floor) * (1.0 - progress);
    default: return floor + (lr - floor) * (1.0 - progress);
    }
}
