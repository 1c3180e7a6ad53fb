/* Gradients of a model's masters, whatever order and folding the accumulators have. */
#pragma once
#include "model/llama.h"

/* After the last micro-step: dgamma of every folded norm, as the weight pass computes it. */
void gradients_finish(Llama *model);

/* out [rows, cols of the master]: dW = G diag gamma in the master's rows, or dgamma for a norm. Host memory
 * only; after gradients_finish and before an update. */
void gradient_of_master(const Llama *model, int weight, float *out);

/* ||a - b|| / ||b|| */
double relative_error(const float *a, const float *b, int64_t count);
