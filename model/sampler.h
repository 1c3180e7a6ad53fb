/* Picks the next token from logits: temperature, top-k, top-p. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef struct Sampler {
    double   temperature;   /* 0 = the most likely token */
    double   top_p;         /* smallest set of tokens that holds this much probability; 1 = off */
    int64_t  top_k;         /* the k most likely tokens; 0 = off */
    uint64_t key;           /* of the random stream: seed and text */
    uint64_t drawn;         /* numbers used so far */
    int64_t  vocab;
    struct SamplerEntry { float logit; int32_t id; } *entries;  /* [vocab], owned */
} Sampler;

/* False when memory ran out. */
bool sampler_init(Sampler *sampler, int64_t vocab, double temperature, int64_t top_k, double top_p,
                  uint64_t key);
void sampler_free(Sampler *sampler);

/* logits: [vocab]. One uniform number is used per call, so a text depends on its key alone. */
int32_t sampler_next(Sampler *sampler, const float *logits);
