/* The LLaMA-3 model as a textbook writes it, in double precision and with no rewrite of the algebra: norms
 * are applied before their matrices, rotary pairs are (i, i + head_dim / 2), the loss is a plain log-softmax.
 * Tests take gradients from it by central differences. */
#pragma once
#include "data/batch.h"
#include "model/config.h"

typedef struct Textbook {
    int     layers, heads, kv_heads, head_dim;
    int64_t hidden, ffn, vocab;
    double  norm_eps;
    bool    tied, document_mask;
    double *inv_freq;       /* [head_dim / 2] */
    int64_t count;          /* parameters */
    double *p;              /* [count]: the masters of Llama.weights, one after the other in that order */
} Textbook;

/* A model of the sizes in config with parameters 0. */
Textbook textbook_create(const Config *config);
void textbook_free(Textbook *t);

/* Sum over the rows of w * cross entropy, divided by the sum of w. Fills losses [T] and logits [T, V] where
 * not NULL. */
double textbook_loss(const Textbook *t, const Batch *batch, double *losses, double *logits);

/* grad [count]: central differences of textbook_loss, exact to about 1e-8 of the largest. */
void textbook_gradient(Textbook *t, const Batch *batch, double *grad);
