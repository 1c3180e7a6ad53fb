#include "tests/textbook.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double wavelength_rule(const Config *config, double f)
{
    if (config->model.rope_scaling != ROPE_LLAMA3) return f;
    double wave = 2.0 * M_PI / f, original = (double)config->model.rope_original_max_position;
    double low = config->model.rope_low_freq_factor, high = config->model.rope_high_freq_factor;
    if (wave < original / high) return f;
    if (wave > original / low) return f / config->model.rope_factor;
    double s = (original / wave - low) / (high - low);
    return (1.0 - s) * f / config->model.rope_factor + s * f;
}

Textbook textbook_create(const Config *config)
{
    Textbook t = {
        .layers = (int)config->model.layers, .heads = (int)config->model.heads,
        .kv_heads = (int)config->model.kv_heads, .head_dim = (int)config->model.head_dim,
        .hidden = config->model.hidden, .ffn = config->model.ffn, .vocab = config->model.vocab,
        .norm_eps = config->model.norm_eps, .tied = config->model.tie_embeddings,
        .document_mask = config->data.document_mask,
    };
    if (!t.head_dim) t.head_dim = (int)(t.hidden / t.heads);
    t.inv_freq = calloc((size_t)t.head_dim / 2, sizeof(double));
    for (int i = 0; i < t.head_dim / 2; i++)
        t.inv_freq[i] = wavelength_rule(config, pow(config->model.rope_theta, -2.0 * i / t.head_dim));
    int64_t qkv = (int64_t)(t.heads + 2 * t.kv_heads) * t.head_dim, q = (int64_t)t.heads * t.head_dim;
    int64_t layer = 2 * t.hidden + qkv * t.hidden + q * t.hidden + 3 * t.ffn * t.hidden;
    t.count = (t.tied ? 1 : 2) * t.vocab * t.hidden + t.layers * layer + t.hidden;
    t.p = calloc((size_t)t.count, sizeof(double));
    return t;
}

void textbook_free(Textbook *t)
{
    free(t->inv_freq);
    free(t->p);
}

/* out[n] = sum over k of w[n, k] x[k] */
static void multiply(double *out, const double *w, const double *x, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t j = 0; j < k; j++) sum += w[i * k + j] * x[j];
        out[i] = sum;
    }
}

static void norm(double *out, const double *x, const double *gamma, int64_t d, double eps)
{
    double sum = 0;
    for (int64_t k = 0; k < d; k++) sum += x[k] * x[k];
    double r = 1.0 / sqrt(sum / (double)d + eps);
    for (int64_t k = 0; k < d; k++) out[k] = x[k] * r * gamma[k];
}

static void rotate(double *head, const double *inv_freq, int head_dim, int32_t pos)
{
    int half = head_dim / 2;
    for (int i = 0; i < half; i++) {
        double c = cos(pos * inv_freq[i]), s = sin(pos * inv_freq[i]), a = head[i], b = head[i + half];
        head[i] = a * c - b * s;
        head[i + half] = b * c + a * s;
    }
}

/* One head of one row: out [Dh] = softmax(q . k / sqrt(Dh)) v over `rows` keys, `stride` apart. */
static void attend(double *out, const double *q, const double *k, const double *v, int64_t stride, int rows,
                   int head_dim)
{
    double p[rows], top = -INFINITY, sum = 0;
    for (int r = 0; r < rows; r++) {
        p[r] = 0;
        for (int i = 0; i < head_dim; i++) p[r] += q[i] * k[r * stride + i];
        p[r] /= sqrt(head_dim);
        top = fmax(top, p[r]);
    }
    for (int r = 0; r < rows; r++) sum += p[r] = exp(p[r] - top);
    for (int i = 0; i < head_dim; i++) {
        out[i] = 0;
        for (int r = 0; r < rows; r++) out[i] += p[r] / sum * v[r * stride + i];
    }
}

/* x [seq, d] of one sequence, updated in place; returns the parameters after the layer's. */
static const double *layer_forward(const Textbook *t, const double *p, double *x, int seq, const int32_t *pos,
                                   const int32_t *doc_start)
{
    int64_t d = t->hidden, f = t->ffn, q = (int64_t)t->heads * t->head_dim;
    int64_t kv = (int64_t)t->kv_heads * t->head_dim, width = q + 2 * kv;
    const double *attn_norm = p, *wqkv = attn_norm + d, *wo = wqkv + width * d, *mlp_norm = wo + d * q;
    const double *w1 = mlp_norm + d, *w3 = w1 + f * d, *w2 = w3 + f * d;
    double *qkv = malloc((size_t)(seq * width) * sizeof(double)), y[d], o[q], gate[f], up[f];
    for (int s = 0; s < seq; s++) {
        norm(y, x + s * d, attn_norm, d, t->norm_eps);
        multiply(qkv + s * width, wqkv, y, width, d);
        for (int h = 0; h < t->heads + t->kv_heads; h++)
            rotate(qkv + s * width + h * t->head_dim, t->inv_freq, t->head_dim, pos[s]);
    }
    for (int s = 0; s < seq; s++) {
        int first = t->document_mask ? doc_start[s] : 0;
        for (int h = 0; h < t->heads; h++) {
            int kv_head = h / (t->heads / t->kv_heads);
            const double *k = qkv + first * width + q + kv_head * t->head_dim;
            attend(o + h * t->head_dim, qkv + s * width + h * t->head_dim, k, k + kv, width, s - first + 1,
                   t->head_dim);
        }
        multiply(y, wo, o, d, q);
        for (int64_t k = 0; k < d; k++) x[s * d + k] += y[k];
        norm(y, x + s * d, mlp_norm, d, t->norm_eps);
        multiply(gate, w1, y, f, d);
        multiply(up, w3, y, f, d);
        for (int64_t k = 0; k < f; k++) gate[k] = gate[k] / (1.0 + exp(-gate[k])) * up[k];
        multiply(y, w2, gate, d, f);
        for (int64_t k = 0; k < d; k++) x[s * d + k] += y[k];
    }
    free(qkv);
    return w2 + d * f;
}

double textbook_loss(const Textbook *t, const Batch *batch, double *losses, double *logits)
{
    int64_t d = t->hidden;
    int seq = batch->seq;
    double *x = malloc((size_t)(seq * d) * sizeof(double)), y[d], row[t->vocab], total = 0, weight = 0;
    for (int b = 0; b < batch->sequences; b++) {
        int64_t first = (int64_t)b * seq;
        for (int s = 0; s < seq; s++)
            memcpy(x + s * d, t->p + batch->tokens[first + s] * d, (size_t)d * sizeof(double));
        const double *p = t->p + t->vocab * d;
        for (int l = 0; l < t->layers; l++)
            p = layer_forward(t, p, x, seq, batch->pos + first, batch->doc_start + first);
        for (int s = 0; s < seq; s++) {
            norm(y, x + s * d, p, d, t->norm_eps);
            multiply(row, t->tied ? t->p : p + d, y, t->vocab, d);
            double top = -INFINITY, sum = 0;
            for (int64_t v = 0; v < t->vocab; v++) top = fmax(top, row[v]);
            for (int64_t v = 0; v < t->vocab; v++) sum += exp(row[v] - top);
            double loss = log(sum) + top - row[batch->targets[first + s]];
            if (losses) losses[first + s] = loss;
            if (logits) memcpy(logits + (first + s) * t->vocab, row, (size_t)t->vocab * sizeof(double));
            total += batch->weights[first + s] * loss;
            weight += batch->weights[first + s];
        }
    }
    free(x);
    return total / weight;
}

void textbook_gradient(Textbook *t, const Batch *batch, double *grad)
{
    const double step = 1e-5;
    for (int64_t i = 0; i < t->count; i++) {
        double keep = t->p[i];
        t->p[i] = keep + step;
        double above = textbook_loss(t, batch, NULL, NULL);
        t->p[i] = keep - step;
        grad[i] = (above - textbook_loss(t, batch, NULL, NULL)) / (2.0 * step);
        t->p[i] = keep;
    }
}
