#include "tests/gradients.h"
#include <math.h>
#include <string.h>

void gradients_finish(Llama *model)
{
    double sumsq;
    for (int i = 0; i < model->weight_count; i++)
        if (model->weights[i].gamma) model->ops->grad_norm(&model->ctx, &model->weights[i], &sumsq);
}

void gradient_of_master(const Llama *model, int weight, float *out)
{
    const Weight *w = &model->weights[weight];
    int64_t cols = w->master.cols;
    for (int i = 0; i < model->weight_count; i++)
        if (model->weights[i].gamma == w->master.data) {
            memcpy(out, model->weights[i].dgamma, (size_t)cols * sizeof(float));
            return;
        }
    for (int64_t n = 0; n < w->master.rows; n++) {
        const float *g = (const float *)w->grad.data + n * w->grad.stride;
        float *row = out + master_row(w->rows, n) * cols;
        for (int64_t k = 0; k < cols; k++) row[k] = g[k] * (w->gamma ? w->gamma[k] : 1.0f);
    }
}

double relative_error(const float *a, const float *b, int64_t count)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / size);
}
