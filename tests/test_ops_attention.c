/* Attention, forward, backward and over caches, against a naive formulation in double precision; the backward
 * pass against central differences of it as well. */
#include "tests/op_testing.h"

#define TIGHT 2e-6

typedef struct Case {
    int  batch, seq, heads, kv_heads, head_dim;
    bool documents;
} Case;

static const Case cases[] = {
    {3, 15, 6, 2, 4, false}, {2, 15, 6, 2, 4, true}, {1, 1, 1, 1, 2, false}, {2, 130, 3, 3, 6, false},
    {1, 193, 4, 1, 8, true}, {2, 64, 2, 1, 10, true},
};
enum { CASES = sizeof cases / sizeof *cases };

static int64_t q_cols(const Case *c) { return (int64_t)c->heads * c->head_dim; }
static int64_t qkv_cols(const Case *c) { return (int64_t)(c->heads + 2 * c->kv_heads) * c->head_dim; }

/* Documents of random lengths: the first index of each row's own. */
static const int32_t *random_documents(OpTest *t, const Case *c)
{
    if (!c->documents) return NULL;
    int32_t *start = op_test_alloc(t, (size_t)(c->batch * c->seq) * sizeof *start);
    for (int b = 0; b < c->batch; b++) {
        int32_t first = 0;
        for (int s = 0; s < c->seq; s++) {
            if (s > 0 && random_below(t, 9) == 0) first = s;
            start[b * c->seq + s] = first;
        }
    }
    return start;
}

static AttentionShape shape_of(const Case *c, const int32_t *doc_start)
{
    return (AttentionShape){.batch = c->batch, .seq = c->seq, .heads = c->heads, .kv_heads = c->kv_heads,
                            .head_dim = c->head_dim, .doc_start = doc_start, .deterministic = true};
}

/* Row (b, s) of head h: probabilities [seq] from packed qkv; returns log of the sum of exp. */
static double naive_probabilities(double *p, const double *qkv, const Case *c, const int32_t *doc_start,
                                  int b, int s, int h)
{
    int64_t cols = qkv_cols(c), row = (int64_t)b * c->seq + s;
    int kv = h / (c->heads / c->kv_heads), dim = c->head_dim;
    int first = doc_start ? doc_start[row] : 0;
    double largest = -INFINITY, sum = 0;
    for (int j = 0; j < c->seq; j++) {
        const double *q = qkv + row * cols + h * dim;
        const double *k = qkv + ((int64_t)b * c->seq + j) * cols + (c->heads + kv) * dim;
        p[j] = 0;
        for (int i = 0; i < dim; i++) p[j] += q[i] * k[i] / sqrt(dim);
        if (j >= first && j <= s && p[j] > largest) largest = p[j];
    }
    for (int j = 0; j < c->seq; j++) {
        p[j] = j >= first && j <= s ? exp(p[j] - largest) : 0;
        sum += p[j];
    }
    for (int j = 0; j < c->seq; j++) p[j] /= sum;
    return largest + log(sum);
}

/* o: [T, H Dh]  lse: [batch, H, seq] or NULL  scratch: [seq] */
static void naive_attention(double *o, double *lse, const double *qkv, const Case *c,
                            const int32_t *doc_start, double *scratch)
{
    int dim = c->head_dim;
    for (int b = 0; b < c->batch; b++)
        for (int h = 0; h < c->heads; h++)
            for (int s = 0; s < c->seq; s++) {
                int kv = h / (c->heads / c->kv_heads);
                double *out = o + ((int64_t)b * c->seq + s) * q_cols(c) + h * dim;
                double l = naive_probabilities(scratch, qkv, c, doc_start, b, s, h);
                if (lse) lse[((int64_t)b * c->heads + h) * c->seq + s] = l;
                for (int i = 0; i < dim; i++) {
                    out[i] = 0;
                    for (int j = 0; j < c->seq; j++)
                        out[i] += scratch[j] * qkv[((int64_t)b * c->seq + j) * qkv_cols(c)
                                                   + (c->heads + c->kv_heads + kv) * dim + i];
                }
            }
}

static void forward_body(OpTest *t)
{
    for (int n = 0; n < CASES; n++) {
        const Case *c = &cases[n];
        int64_t T = (int64_t)c->batch * c->seq;
        const int32_t *documents = random_documents(t, c);
        Tensor qkv = random_tensor(t, T, qkv_cols(c), 5, 1.5), o = output_tensor(t, T, q_cols(c), 3);
        float *lse = output_floats(t, T * c->heads);
        double *want = doubles(t, T * q_cols(c)), *want_lse = doubles(t, T * c->heads);
        naive_attention(want, want_lse, doubles_of(t, qkv), c, documents, doubles(t, c->seq));
        cpu_ops.attention(&t->ctx, o, lse, qkv, shape_of(c, documents));
        check_tensor("o", o, want, TIGHT);
        check_floats("lse", lse, want_lse, T * c->heads, TIGHT);
    }
}

/* dqkv of sum d_o * attention(qkv), by the textbook's formulas. */
static void naive_attention_bwd(OpTest *t, double *dqkv, const double *d_o, const double *qkv, const Case *c,
                                const int32_t *doc_start)
{
    int dim = c->head_dim;
    int64_t cols = qkv_cols(c);
    double *p = doubles(t, c->seq), *dp = doubles(t, c->seq);
    for (int b = 0; b < c->batch; b++)
        for (int h = 0; h < c->heads; h++)
            for (int s = 0; s < c->seq; s++) {
                int kv = h / (c->heads / c->kv_heads);
                int64_t row = (int64_t)b * c->seq + s, q_at = h * dim, k_at = (c->heads + kv) * dim;
                int64_t v_at = (c->heads + c->kv_heads + kv) * dim;
                const double *out_grad = d_o + row * q_cols(c) + h * dim;
                double mean = 0;
                naive_probabilities(p, qkv, c, doc_start, b, s, h);
                for (int j = 0; j < c->seq; j++) {
                    int64_t key = (int64_t)b * c->seq + j;
                    dp[j] = 0;
                    for (int i = 0; i < dim; i++) {
                        dp[j] += out_grad[i] * qkv[key * cols + v_at + i];
                        dqkv[key * cols + v_at + i] += p[j] * out_grad[i];
                    }
                    mean += p[j] * dp[j];
                }
                for (int j = 0; j < c->seq; j++) {
                    int64_t key = (int64_t)b * c->seq + j;
                    double ds = p[j] * (dp[j] - mean) / sqrt(dim);
                    for (int i = 0; i < dim; i++) {
                        dqkv[row * cols + q_at + i] += ds * qkv[key * cols + k_at + i];
                        dqkv[key * cols + k_at + i] += ds * qkv[row * cols + q_at + i];
                    }
                }
            }
}

static void backward_body(OpTest *t)
{
    for (int n = 0; n < CASES; n++) {
        const Case *c = &cases[n];
        int64_t T = (int64_t)c->batch * c->seq;
        const int32_t *documents = random_documents(t, c);
        Tensor qkv = random_tensor(t, T, qkv_cols(c), 5, 1), o = output_tensor(t, T, q_cols(c), 3);
        Tensor d_o = random_tensor(t, T, q_cols(c), 1, 1), dqkv = output_tensor(t, T, qkv_cols(c), 2);
        Tensor again = output_tensor(t, T, qkv_cols(c), 0);
        float *lse = output_floats(t, T * c->heads);
        double *want = doubles(t, T * qkv_cols(c));
        naive_attention_bwd(t, want, doubles_of(t, d_o), doubles_of(t, qkv), c, documents);
        cpu_ops.attention(&t->ctx, o, lse, qkv, shape_of(c, documents));
        cpu_ops.attention_bwd(&t->ctx, dqkv, d_o, qkv, o, lse, shape_of(c, documents));
        check_tensor("dqkv", dqkv, want, TIGHT);
        cpu_ops.attention_bwd(&t->ctx, again, d_o, qkv, o, lse, shape_of(c, documents));
        check_same_bits("dqkv, twice", again, dqkv);
    }
}

/* ---- central differences ----------------------------------------------------------------------------- */

typedef struct Problem {
    const Case *c;
    const int32_t *doc_start;
    double *qkv, *o, *d_o, *scratch;
} Problem;

static double weighted_output(void *arg)
{
    Problem *p = arg;
    double sum = 0;
    naive_attention(p->o, NULL, p->qkv, p->c, p->doc_start, p->scratch);
    for (int64_t i = 0; i < (int64_t)p->c->batch * p->c->seq * q_cols(p->c); i++) sum += p->o[i] * p->d_o[i];
    return sum;
}

static void test_differences(void **state)
{
    OpTest *t = *state;
    for (int n = 0; n < 2; n++) {
        const Case *c = &cases[n];
        int64_t T = (int64_t)c->batch * c->seq;
        const int32_t *documents = random_documents(t, c);
        Tensor qkv = random_tensor(t, T, qkv_cols(c), 0, 1), o = output_tensor(t, T, q_cols(c), 0);
        Tensor d_o = random_tensor(t, T, q_cols(c), 0, 1), dqkv = output_tensor(t, T, qkv_cols(c), 0);
        float *lse = output_floats(t, T * c->heads);
        Problem p = {c, documents, doubles_of(t, qkv), doubles(t, T * q_cols(c)), doubles_of(t, d_o),
                     doubles(t, c->seq)};
        double *want = doubles(t, T * qkv_cols(c));
        central_differences(weighted_output, &p, p.qkv, T * qkv_cols(c), want);
        cpu_ops.attention(&t->ctx, o, lse, qkv, shape_of(c, documents));
        cpu_ops.attention_bwd(&t->ctx, dqkv, d_o, qkv, o, lse, shape_of(c, documents));
        check_tensor("dqkv", dqkv, want, TIGHT);
    }
}

/* ---- caches ------------------------------------------------------------------------------------------ */

/* A sequence fed in pieces gives what the whole gives, and the caches hold its keys and values. */
static void cached_body(OpTest *t)
{
    static const int pieces[] = {1, 70, 1, 1, 20, 64, 3};
    Case c = {1, 160, 6, 2, 4, false};
    int64_t kv_cols = (int64_t)c.kv_heads * c.head_dim, past = 0;
    Tensor qkv = random_tensor(t, c.seq, qkv_cols(&c), 5, 1), o = output_tensor(t, c.seq, q_cols(&c), 3);
    Tensor k_cache = output_tensor(t, 200, kv_cols, 0), v_cache = output_tensor(t, 200, kv_cols, 2);
    double *want = doubles(t, c.seq * q_cols(&c));
    naive_attention(want, NULL, doubles_of(t, qkv), &c, NULL, doubles(t, c.seq));
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; past += pieces[i++])
        cpu_ops.attention_cached(&t->ctx, tensor_rows(o, past, pieces[i]), tensor_rows(qkv, past, pieces[i]),
                                 k_cache, v_cache, past, shape_of(&c, NULL));
    assert_int_equal(past, c.seq);
    check_tensor("o", o, want, TIGHT);
    for (int64_t i = 0; i < c.seq; i++)
        for (int64_t k = 0; k < kv_cols; k++) {
            assert_true(at(k_cache, i, k) == at(qkv, i, q_cols(&c) + k));
            assert_true(at(v_cache, i, k) == at(qkv, i, q_cols(&c) + kv_cols + k));
        }
    assert_true(isnan(at(k_cache, c.seq, 0)));
}

/* ---- scratch ----------------------------------------------------------------------------------------- */

/* The op stays inside what workspace_bytes asks for: a guard behind it survives. */
static void scratch_body(OpTest *t)
{
    const Case *c = &cases[4];
    int64_t T = (int64_t)c->batch * c->seq;
    AttentionShape shape = shape_of(c, NULL);
    size_t bytes = cpu_ops.workspace_bytes(&t->ctx, T, 8, 8, qkv_cols(c), T, 128, shape);
    OpContext ctx = t->ctx;
    unsigned char *memory = op_test_alloc(t, bytes + 4096);
    memset(memory, 0x5A, bytes + 4096);
    ctx.workspace = memory, ctx.workspace_bytes = bytes;
    Tensor qkv = random_tensor(t, T, qkv_cols(c), 0, 1), o = output_tensor(t, T, q_cols(c), 0);
    float *lse = output_floats(t, T * c->heads);
    cpu_ops.attention(&ctx, o, lse, qkv, shape);
    cpu_ops.attention_bwd(&ctx, output_tensor(t, T, qkv_cols(c), 0), o, qkv, o, lse, shape);
    for (size_t i = bytes; i < bytes + 4096; i++) assert_int_equal(memory[i], 0x5A);
}

#define BODY(name) \
    static void test_##name(void **state) { with_threads(*state, name##_body); }
BODY(forward)
BODY(backward)
BODY(cached)
BODY(scratch)

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, op_test_setup, op_test_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_forward), TEST(test_backward), TEST(test_differences), TEST(test_cached),
        TEST(test_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
