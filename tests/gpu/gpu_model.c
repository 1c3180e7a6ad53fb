#include "tests/gpu/gpu_model.h"
#include "model/llama_buffers.h"
#include <stdlib.h>

OpContext gpu_context(FusionMode fusion)
{
    CudaOptions options = {.attention = CUDA_ATTENTION_CUDNN, .workspace_limit = (size_t)512 << 20};
    for (int key = 0; key < FUSE_COUNT; key++) options.fusion[key] = fusion;
    Errors errors = {0};
    OpContext ctx = {.layer = -1, .backend = cuda_backend_open(&options, &errors)};
    if (!ctx.backend) {
        errors_print(&errors, stderr);
        exit(1);
    }
    ctx.stream = cuda_backend_stream(ctx.backend);
    return ctx;
}

void gpu_context_close(OpContext *ctx) { cuda_backend_close(ctx->backend); }

static void fetch(const Llama *model, void *to, const void *from, size_t bytes)
{
    model->device->download(model->ctx.stream, to, from, bytes);
    model->device->wait(model->ctx.stream);
}

void model_master(const Llama *model, int weight, float *out)
{
    const Tensor *t = &model->weights[weight].master;
    fetch(model, out, t->data, (size_t)(t->rows * t->cols) * sizeof(float));
}

void model_finish_gradients(Llama *model)
{
    for (int i = 0; i < model->weight_count; i++)
        if (model->weights[i].gamma)
            model->ops->grad_norm(&model->ctx, &model->weights[i], model->buffers->sumsq + i);
}

void model_gradient(const Llama *model, int weight, float *out)
{
    const Weight *w = &model->weights[weight];
    int64_t rows = w->master.rows, cols = w->master.cols;
    float *grad = malloc((size_t)(w->grad.rows * cols) * sizeof(float));
    float *gamma = malloc((size_t)cols * sizeof(float));
    fetch(model, grad, w->grad.data, (size_t)(w->grad.rows * cols) * sizeof(float));
    if (w->gamma) fetch(model, gamma, w->gamma, (size_t)cols * sizeof(float));
    for (int64_t n = 0; n < rows; n++)
        for (int64_t k = 0; k < cols; k++)
            out[master_row(w->rows, n) * cols + k] = grad[n * cols + k] * (w->gamma ? gamma[k] : 1.0f);
    free(grad);
    free(gamma);
}
