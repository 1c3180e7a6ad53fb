/* Learning-rate schedules: cosine, linear, constant, WSD (warm-up, stable, decay). */
#pragma once
#include "model/config.h"

/* Learning rate of step `step` (0-based) of config->train.steps. Linear warm-up over train.warmup_steps, its
 * first step at lr / warmup_steps; then from lr to lr * min_lr_ratio, reached at the last step. */
double schedule_lr(const Config *config, int64_t step);
