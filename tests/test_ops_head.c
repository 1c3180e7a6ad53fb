/* The head against a plain log-softmax in double precision: losses, gradients by formula and by central
 * differences, very confident rows, clamped rows, ignored rows, padding, several chunks. */
#include "tests/op_testing.h"

#define TIGHT 2e-6
static const float eps = 1e-5f;

/* A head with all its buffers; rows of one chunk. */
typedef struct Head {
    HeadChunk h;
    float    *gamma;
    float    *dgamma;
    Tensor    dx, grad;
    StepStats stats;
} Head;

/* Sets xg = x * gamma and the norm from x. */
static void prepare(OpTest *t, Head *head, int parts)
{
    HeadChunk *h = &head->h;
    h->norm = row_norm_of(t, h->x, parts, eps);
    for (int64_t i = 0; i < h->x.rows; i++)
        for (int64_t k = 0; k < h->x.cols; k++)
            ((float *)h->xg.data)[i * h->xg.stride + k] = (float)at(h->x, i, k) * head->gamma[k];
}

static Head random_head(OpTest *t, int64_t rows, int64_t d, int64_t vocab, double scale)
{
    Head head = {0};
    HeadChunk *h = &head.h;
    int64_t padded = (vocab + 127) / 128 * 128;
    int32_t *targets = op_test_alloc(t, (size_t)rows * sizeof *targets);
    float *weights = output_floats(t, rows);
    for (int64_t i = 0; i < rows; i++) {
        targets[i] = random_below(t, vocab);
        weights[i] = i % 5 == 3 ? 0.0f : (float)(random_uniform(t) / (double)rows);
    }
    targets[0] = (int32_t)vocab - 1;
    h->x = random_tensor(t, rows, d, 2, 3);
    h->xg = output_tensor(t, rows, d, 5);
    h->table = random_tensor(t, padded, d, 0, scale);
    for (int64_t k = vocab * d; k < padded * d; k++) ((float *)h->table.data)[k] = 0;
    h->vocab = vocab, h->targets = targets, h->weights = weights, h->order = order_of(t, targets, rows);
    h->e = output_tensor(t, rows, padded, 4);
    h->d = output_sums(t, rows), h->q = output_sums(t, rows);
    h->anchor = output_floats(t, rows), h->loss = output_floats(t, rows);
    h->alpha = output_floats(t, rows), h->beta = output_floats(t, rows), h->s = output_floats(t, rows);
    h->axg = output_tensor(t, rows, d, 1);
    head.gamma = random_floats(t, d, 1, 0.3), head.dgamma = output_floats(t, d);
    head.dx = output_tensor(t, rows, d, 3), head.grad = output_tensor(t, padded, d, 0);
    prepare(t, &head, 3);
    return head;
}

static void run(OpTest *t, Head *head, bool accumulate)
{
    cpu_ops.head(&t->ctx, &head->h);
    cpu_ops.head_loss(&t->ctx, &head->h, &head->stats);
    cpu_ops.head_dx(&t->ctx, head->dx, head->dgamma, &head->h, head->gamma, accumulate);
    cpu_ops.head_dw(&t->ctx, head->grad, &head->h, accumulate);
}

/* The same as doubles, with the loss as a textbook writes it. */
typedef struct Plain {
    int64_t rows, d, vocab;
    const int32_t *targets;
    double *x, *gamma, *table, *weights, *losses, *logits;
} Plain;

static Plain plain_of(OpTest *t, const Head *head)
{
    const HeadChunk *h = &head->h;
    int64_t rows = h->x.rows, d = h->x.cols;
    Plain p = {rows, d, h->vocab, h->targets, doubles_of(t, h->x), doubles(t, d), doubles_of(t, h->table),
               doubles(t, rows), doubles(t, rows), doubles(t, rows * h->vocab)};
    for (int64_t k = 0; k < d; k++) p.gamma[k] = (double)head->gamma[k];
    for (int64_t i = 0; i < rows; i++) p.weights[i] = (double)h->weights[i];
    return p;
}

static double plain_loss(void *arg)
{
    Plain *p = arg;
    double total = 0;
    for (int64_t i = 0; i < p->rows; i++) {
        double square = 0, largest = -INFINITY, sum = 0, *logits = p->logits + i * p->vocab;
        const double *x = p->x + i * p->d;
        for (int64_t k = 0; k < p->d; k++) square += x[k] * x[k];
        double r = 1 / sqrt(square / (double)p->d + (double)eps);
        for (int64_t v = 0; v < p->vocab; v++) {
            logits[v] = 0;
            for (int64_t k = 0; k < p->d; k++) logits[v] += r * x[k] * p->gamma[k] * p->table[v * p->d + k];
            if (logits[v] > largest) largest = logits[v];
        }
        /* summed without the target, so that a tiny loss has all its digits */
        for (int64_t v = 0; v < p->vocab; v++) sum += v == p->targets[i] ? 0 : exp(logits[v] - largest);
        double others = largest + log(sum) - logits[p->targets[i]];
        p->losses[i] = others > 0 ? others + log1p(exp(-others)) : log1p(exp(others));
        total += p->weights[i] * p->losses[i];
    }
    return total;
}

/* Gradient of the loss to the table: (softmax - onehot) w r xg, with no cancellation at the target. */
static double *plain_dw(OpTest *t, Plain *p, int64_t padded)
{
    double *grad = doubles(t, padded * p->d);
    plain_loss(p);
    for (int64_t i = 0; i < p->rows; i++) {
        double square = 0, others = 0, *logits = p->logits + i * p->vocab, anchor = logits[p->targets[i]];
        for (int64_t k = 0; k < p->d; k++) square += p->x[i * p->d + k] * p->x[i * p->d + k];
        double r = 1 / sqrt(square / (double)p->d + (double)eps);
        for (int64_t v = 0; v < p->vocab; v++) others += v == p->targets[i] ? 0 : exp(logits[v] - anchor);
        for (int64_t v = 0; v < p->vocab; v++) {
            double by = v == p->targets[i] ? -others / (1 + others) : exp(logits[v] - anchor) / (1 + others);
            for (int64_t k = 0; k < p->d; k++)
                grad[v * p->d + k] += p->weights[i] * by * r * p->x[i * p->d + k] * p->gamma[k];
        }
    }
    return grad;
}

static void loss_body(OpTest *t)
{
    static const struct { int64_t rows, d, vocab; } sizes[] = {
        {1, 6, 3}, {15, 24, 131}, {801, 8, 20}, {9, 10, 2500},
    };
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        Head head = random_head(t, sizes[n].rows, sizes[n].d, sizes[n].vocab, 0.6);
        HeadChunk *h = &head.h;
        Plain p = plain_of(t, &head);
        double total = plain_loss(&p), *anchors = doubles(t, p.rows);
        run(t, &head, false);
        check_floats("loss", h->loss, p.losses, p.rows, TIGHT);
        check_number("sum of w * loss", head.stats.loss, total, TIGHT);
        assert_int_equal(head.stats.clamped_rows, 0);
        for (int64_t i = 0; i < p.rows; i++) {
            anchors[i] = p.logits[i * p.vocab + p.targets[i]];
            assert_true(at(h->e, i, p.targets[i]) == 0);
            for (int64_t v = p.vocab; v < h->e.cols; v++) assert_true(at(h->e, i, v) == 0);
        }
        check_floats("anchor", h->anchor, anchors, p.rows, TIGHT);
        check_tensor("grad", head.grad, plain_dw(t, &p, head.grad.rows), TIGHT);

        for (int64_t i = 0; i < p.rows; i++) h->loss[i] = NAN;
        cpu_ops.head_eval(&t->ctx, h);
        check_floats("loss of validation", h->loss, p.losses, p.rows, TIGHT);

        Tensor logits = output_tensor(t, p.rows, p.vocab, 3);
        cpu_ops.logits(&t->ctx, logits, h);
        check_tensor("logits", logits, p.logits, TIGHT);
    }
}

static void gradients_body(OpTest *t)
{
    Head head = random_head(t, 9, 7, 13, 0.5);
    Plain p = plain_of(t, &head);
    double *dx = doubles(t, p.rows * p.d), *dgamma = doubles(t, p.d);
    double *dtable = doubles(t, head.grad.rows * p.d);
    central_differences(plain_loss, &p, p.x, p.rows * p.d, dx);
    central_differences(plain_loss, &p, p.gamma, p.d, dgamma);
    central_differences(plain_loss, &p, p.table, p.vocab * p.d, dtable);
    run(t, &head, false);
    check_tensor("dx", head.dx, dx, TIGHT);
    check_floats("dgamma", head.dgamma, dgamma, p.d, TIGHT);
    check_tensor("grad", head.grad, dtable, TIGHT);

    run(t, &head, true);    /* a second chunk of the same rows adds the same again */
    for (int64_t k = 0; k < p.d; k++) dgamma[k] *= 2;
    for (int64_t i = 0; i < head.grad.rows * p.d; i++) dtable[i] *= 2;
    check_tensor("dx", head.dx, dx, TIGHT);
    check_floats("dgamma, accumulated", head.dgamma, dgamma, p.d, TIGHT);
    check_tensor("grad, accumulated", head.grad, dtable, TIGHT);
}

/* Moves every row towards its target's table row until the losses are tiny; the gradient keeps its digits. */
static void confident_body(OpTest *t)
{
    static const double margins[] = {0, 6, 12, 18};
    enum { ROWS = 33, D = 16, V = 150 };
    for (size_t n = 0; n < sizeof margins / sizeof *margins; n++) {
        Head head = random_head(t, ROWS, D, V, 1);
        HeadChunk *h = &head.h;
        for (int64_t i = 0; i < ROWS; i++) {
            float *x = (float *)h->x.data + i * h->x.stride;
            const float *w = (const float *)h->table.data + h->targets[i] * D;
            if (margins[n] > 0)
                for (int k = 0; k < D; k++) x[k] = 0.1f * x[k] + w[k];
            /* lengthen the target's row: its logit rises by about the margin */
            double norm = 0;
            for (int k = 0; k < D; k++) norm += (double)(w[k] * w[k]);
            for (int k = 0; k < D && i % 2 == 0; k++)
                ((float *)h->table.data)[h->targets[i] * D + k] *= (float)(1 + margins[n] / norm * 0.3);
        }
        prepare(t, &head, 1);
        Plain p = plain_of(t, &head);
        plain_loss(&p);
        run(t, &head, false);
        double smallest = INFINITY;
        for (int64_t i = 0; i < ROWS; i++) {
            check_number("loss", (double)h->loss[i], p.losses[i], 2e-5);
            smallest = fmin(smallest, p.losses[i]);
        }
        assert_true(margins[n] < 18 || smallest < 1e-5);
        check_tensor("grad", head.grad, plain_dw(t, &p, head.grad.rows), 5e-6);
        cpu_ops.head_eval(&t->ctx, h);
        for (int64_t i = 0; i < ROWS; i++)
            check_number("loss of validation", (double)h->loss[i], p.losses[i], 2e-5);
    }
}

/* One row at a loss of 1e-5 exactly computable: the gradient's relative error stays at rounding. */
static void test_sure_row(void **state)
{
    OpTest *t = *state;
    enum { D = 4, V = 11 };
    Head head = random_head(t, 1, D, V, 1);
    HeadChunk *h = &head.h;
    ((int32_t *)h->targets)[0] = 2;
    ((float *)h->weights)[0] = 1;
    for (int k = 0; k < D; k++) ((float *)h->x.data)[k] = 1, head.gamma[k] = 1;
    for (int64_t v = 0; v < V; v++)
        for (int k = 0; k < D; k++) ((float *)h->table.data)[v * D + k] = v == 2 ? 3.5f : 0.0f;
    prepare(t, &head, 1);
    Plain p = plain_of(t, &head);
    double loss = plain_loss(&p);
    assert_true(loss > 1e-6 && loss < 2e-5);
    run(t, &head, false);
    check_number("loss", (double)h->loss[0], loss, 4e-6);
    check_tensor("grad", head.grad, plain_dw(t, &p, head.grad.rows), 4e-6);
}

/* Beyond 60 nats a row is counted, its loss is at least 60, and everything stays finite. */
static void test_clamped(void **state)
{
    OpTest *t = *state;
    Head head = random_head(t, 12, 8, 40, 1);
    HeadChunk *h = &head.h;
    double *weights = doubles(t, 12);
    for (int64_t i = 0; i < 12; i++) weights[i] = (double)h->weights[i];
    for (int k = 0; k < 8; k++) {
        ((float *)h->table.data)[7 * 8 + k] = 60.0f;
        for (int64_t i = 0; i < 12; i++) ((float *)h->x.data)[i * h->x.stride + k] = i < 6 ? 1.0f : -1.0f;
        head.gamma[k] = 1;
    }
    for (int64_t i = 0; i < 12; i++) ((int32_t *)h->targets)[i] = i < 4 ? 3 : 7;
    h->order = order_of(t, h->targets, 12);
    prepare(t, &head, 1);
    Plain p = plain_of(t, &head);
    plain_loss(&p);
    int64_t beyond = 0;
    for (int64_t i = 0; i < 12; i++) beyond += p.losses[i] > 60 && weights[i] != 0;
    assert_true(beyond >= 3 && beyond <= 10);
    run(t, &head, false);
    assert_int_equal(head.stats.clamped_rows, beyond);
    for (int64_t i = 0; i < 12; i++)
        if (p.losses[i] > 60) assert_true(h->loss[i] > 59.99f);
    assert_int_equal(cpu_ops.count_nonfinite(&t->ctx, head.dx), 0);
    assert_int_equal(cpu_ops.count_nonfinite(&t->ctx, head.grad), 0);
    cpu_ops.head_eval(&t->ctx, h);      /* which does not clamp */
    check_floats("loss of validation", h->loss, p.losses, 12, TIGHT);
}

/* Ignored rows: no loss, no gradient, whatever their target. */
static void test_ignored(void **state)
{
    OpTest *t = *state;
    Head head = random_head(t, 10, 6, 20, 1);
    for (int64_t i = 0; i < 10; i++) ((float *)head.h.weights)[i] = 0;
    run(t, &head, false);
    assert_true(head.stats.loss == 0);
    check_tensor("dx", head.dx, doubles(t, 60), 0);
    check_tensor("grad", head.grad, doubles(t, head.grad.rows * 6), 0);
    check_floats("dgamma", head.dgamma, doubles(t, 6), 6, 0);
}

#define BODY(name) \
    static void test_##name(void **state) { with_threads(*state, name##_body); }
BODY(loss)
BODY(gradients)
BODY(confident)

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, op_test_setup, op_test_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_loss), TEST(test_gradients), TEST(test_confident), TEST(test_sure_row), TEST(test_clamped),
        TEST(test_ignored),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
