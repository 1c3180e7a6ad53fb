#include "model/sampler.h"
#include "model/random.h"
#include <math.h>
#include <stdlib.h>

bool sampler_init(Sampler *sampler, int64_t vocab, double temperature, int64_t top_k, double top_p,
                  uint64_t key)
{
    *sampler = (Sampler){
        .temperature = temperature, .top_p = top_p, .top_k = top_k, .key = key, .vocab = vocab};
    sampler->entries = malloc((size_t)vocab * sizeof *sampler->entries);
    return sampler->entries != NULL;
}

void sampler_free(Sampler *sampler)
{
    free(sampler->entries);
    sampler->entries = NULL;
}

/* Falling logits; equal ones by id, so that the order is the same everywhere. */
static int by_logit(const void *a, const void *b)
{
    const struct SamplerEntry *x = a, *y = b;
    if (x->logit != y->logit) return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : 1;
}

int32_t sampler_next(Sampler *sampler, const float *logits)
{
    int64_t n = sampler->vocab, best = 0;
    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    double uniform = random_uniform(sampler->key, sampler->drawn++);
    if (sampler->temperature <= 0) return (int32_t)best;

    struct SamplerEntry *e = sampler->entries;
    for (int64_t i = 0; i < n; i++) e[i] = (struct SamplerEntry){logits[i], (int32_t)i};
    bool cut = (sampler->top_k > 0 && sampler->top_k < n) || sampler->top_p < 1;
    if (cut) {
        qsort(e, (size_t)n, sizeof *e, by_logit);
        if (sampler->top_k > 0 && sampler->top_k < n) n = sampler->top_k;
    }
    double total = 0, top = logits[best];
    for (int64_t i = 0; i < n; i++) total += exp((e[i].logit - top) / sampler->temperature);
    if (sampler->top_p < 1) {
        double kept = 0;
        int64_t count = 0;
        while (count < n && kept < sampler->top_p * total)
            kept += exp((e[count++].logit - top) / sampler->temperature);
        n = count, total = kept;
    }
    double left = uniform * total;
    for (int64_t i = 0; i < n; i++) {
        left -= exp((e[i].logit - top) / sampler->temperature);
        if (left < 0) return e[i].id;
    }
    return e[n - 1].id;
}
