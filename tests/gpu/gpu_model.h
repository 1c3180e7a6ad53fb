/* Whole models on the GPU, for tests: made on a given backend, their gradients brought back in master rows. */
#pragma once
#include "kernels/cuda/cuda.h"
#include "model/llama.h"

/* A context with a backend of its own, every op in the same form. Ends the program where there is no GPU. */
OpContext gpu_context(FusionMode fusion);
void gpu_context_close(OpContext *ctx);

/* After the last micro-step and before an update: dW = G diag gamma in the rows of the master, or dgamma for
 * a norm. Works on both backends. out: [rows, cols of the master] on the host. */
void model_gradient(const Llama *model, int weight, float *out);
/* The master itself. */
void model_master(const Llama *model, int weight, float *out);
/* Computes the gradients of all folded norms, which the weight pass does in training. */
void model_finish_gradients(Llama *model);
