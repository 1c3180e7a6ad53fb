/* Initial weights: the same on every backend, from the seed, the tensor's name and the element's index. */
#include "model/llama.h"
#include "model/random.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Two of 16 MiB for staging: the model may be larger than the host's memory. */
enum { CHUNK = 1 << 22, STRETCH = 1 << 14 };    /* elements; a thread draws a stretch at a time */

static uint64_t name_key(const char *name, int64_t seed)
{
    uint64_t key = random_bits((uint64_t)seed, 0x11AA);
    for (; *name; name++) key = random_bits(key, (uint64_t)(unsigned char)*name);
    return key;
}

static void fill_normal(float *out, int64_t first, int64_t n, uint64_t key, double mean, double std)
{
    for (int64_t i = 0; i < n; i++) out[i] = (float)(mean + std * random_normal(key, (uint64_t)(first + i)));
}

static void init_weight(Llama *model, Weight *w, float *staging, double mean, double std, int64_t seed)
{
    int64_t n = w->master.rows * w->master.cols;
    uint64_t key = name_key(w->name, seed);
    /* One thread takes a chunk to the device while the others draw the next. */
    int64_t drawn = 0;      /* elements of the chunk before */
    for (int64_t first = 0; first < n || drawn; first += CHUNK) {
        int64_t left = first < n ? n - first : 0, count = left < CHUNK ? left : CHUNK;
        float *chunk = staging + first / CHUNK % 2 * CHUNK, *before = staging + (first / CHUNK + 1) % 2 * CHUNK;
#pragma omp parallel
        {
#pragma omp single nowait
            if (drawn) {
                model->device->upload(model->ctx.stream, (float *)w->master.data + first - CHUNK, before,
                                      (size_t)drawn * sizeof(float));
                model->device->wait(model->ctx.stream);
            }
#pragma omp for schedule(dynamic)
            for (int64_t i = 0; i < count; i += STRETCH)
                fill_normal(chunk + i, first + i, count - i < STRETCH ? count - i : STRETCH, key, mean, std);
        }
        drawn = count;
    }
    Tensor moments[] = {w->m, w->v};
    for (int i = 0; i < 2; i++)
        if (moments[i].data)
            model->device->zero(model->ctx.stream, moments[i].data,
                                (size_t)n * dtype_bytes(moments[i].dtype));
}

bool llama_init(Llama *model, const Config *config)
{
    float *staging = model->device->alloc_host(2 * CHUNK * sizeof(float));
    if (!staging) return false;
    double std = config->model.init_std, output_std = std / sqrt(2.0 * model->shape.layers);
    for (int i = 0; i < model->weight_count; i++) {
        Weight *w = &model->weights[i];
        const char *part = strrchr(w->name, '.');
        bool norm = !w->working.data, output = part && (!strcmp(part, ".wo") || !strcmp(part, ".w2"));
        double tensor_std = i == model->embed ? config->model.embedding_init_std : output ? output_std : std;
        init_weight(model, w, staging, norm ? 1.0 : 0.0, norm ? 0.0 : tensor_std, config->run.seed);
    }
    model->device->release_host(staging);
    llama_fold(model);
    return true;
}
