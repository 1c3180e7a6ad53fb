/* The target's logit of each row, for the heads. */
#pragma once
#include "kernels/cuda/backend.h"

/* out[i] = r_i xg_i . table[target_i].     out: [C] f32 */
void target_logits(const OpContext *ctx, OpId op, float *out, const HeadChunk *h);
