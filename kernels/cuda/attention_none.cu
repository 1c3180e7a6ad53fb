/* Stands in for attention_cudnn.cpp where the build has no cuDNN: every shape goes to the reference. */
#ifndef WITH_CUDNN
#include "kernels/cuda/backend.h"

bool cudnn_built() { return false; }
const char *cudnn_version_text() { return "no cuDNN"; }
void cudnn_plans_close(AttentionPlans *) {}
bool cudnn_attention(const OpContext *, Tensor, float *, Tensor, AttentionShape) { return false; }
bool cudnn_attention_bwd(const OpContext *, Tensor, Tensor, Tensor, Tensor, const float *, AttentionShape)
{
    return false;
}
#endif
