/* Forward and backward ops together: the two halves of a layer as a textbook writes them (norm, projection,
 * nonlinearity, projection, residual) in double precision, and central differences of that against what the
 * ops leave: dx, the weights' gradients after the weight pass, and gamma's. */
#include "tests/op_testing.h"

#define TIGHT 4e-6
enum { BATCH = 2, SEQ = 5, T = BATCH * SEQ, D = 12, F = 16, HEADS = 3, KV = 1, DIM = 4 };
enum { Q = HEADS * DIM, QKV = (HEADS + 2 * KV) * DIM, WIDEST = 2 * F > QKV ? 2 * F : QKV };
static const float eps = 1e-5f;

/* One half of a layer: its inputs as doubles, and the cotangent of its output. */
typedef struct Half {
    double *x, *gamma, *in, *out, *d_out;   /* [T, D], [D], [2F or QKV, D], [D, F or Q], [T, D] */
    const Rope    *rope;
    const int32_t *doc_start;
    bool attention;
} Half;

static void norm_row(double *out, const Half *h, int i)
{
    double sum = 0;
    for (int k = 0; k < D; k++) sum += h->x[i * D + k] * h->x[i * D + k];
    for (int k = 0; k < D; k++) out[k] = h->x[i * D + k] * h->gamma[k] / sqrt(sum / D + (double)eps);
}

/* The master's rotary pairs are (i, i + DIM / 2). */
static void rotate(double *head, int pos)
{
    for (int i = 0; i < DIM / 2; i++) {
        double angle = pos * pow(100.0, -2.0 * i / DIM), a = head[i], b = head[i + DIM / 2];
        head[i] = a * cos(angle) - b * sin(angle);
        head[i + DIM / 2] = a * sin(angle) + b * cos(angle);
    }
}

static void attend(double *o, double qkv[T][WIDEST], const Half *h, int i, int head)
{
    int first = i / SEQ * SEQ + h->doc_start[i], kv = head / (HEADS / KV);
    double p[T], sum = 0;
    for (int j = first; j <= i; j++) {
        double dot = 0;
        for (int k = 0; k < DIM; k++) dot += qkv[i][head * DIM + k] * qkv[j][Q + kv * DIM + k];
        sum += p[j] = exp(dot / sqrt(DIM));
    }
    for (int k = 0; k < DIM; k++) {
        o[head * DIM + k] = 0;
        for (int j = first; j <= i; j++) o[head * DIM + k] += p[j] / sum * qkv[j][Q + (KV + kv) * DIM + k];
    }
}

/* sum d_out * (x + W_out f(W_in norm(x))), f: attention or SwiGLU. */
static double textbook_half(void *arg)
{
    Half *h = arg;
    double z[T][WIDEST], total = 0;
    int rows = h->attention ? QKV : 2 * F, inner = h->attention ? Q : F;
    for (int i = 0; i < T; i++) {
        double normed[D];
        norm_row(normed, h, i);
        for (int n = 0; n < rows; n++) {
            z[i][n] = 0;
            for (int k = 0; k < D; k++) z[i][n] += normed[k] * h->in[n * D + k];
        }
        for (int head = 0; h->attention && head < HEADS + KV; head++)
            rotate(z[i] + head * DIM, h->rope->pos[i]);
    }
    for (int i = 0; i < T; i++) {
        double y[WIDEST];
        for (int head = 0; h->attention && head < HEADS; head++) attend(y, z, h, i, head);
        for (int n = 0; !h->attention && n < F; n++) y[n] = z[i][n] / (1 + exp(-z[i][n])) * z[i][F + n];
        for (int k = 0; k < D; k++) {
            double out = h->x[i * D + k];
            for (int n = 0; n < inner; n++) out += y[n] * h->out[k * inner + n];
            total += h->d_out[i * D + k] * out;
        }
    }
    return total;
}

static Weight weight_of(OpTest *t, int64_t rows, int64_t cols, RowLayout layout, float *gamma)
{
    Weight w = {.name = "w", .rows = layout, .gamma = gamma, .gamma_before = gamma};
    w.master = random_tensor(t, rows, cols, 0, 0.5);
    w.working = output_tensor(t, rows, cols, 0);
    w.grad = output_tensor(t, rows, cols, 0);
    if (gamma) w.dgamma = output_floats(t, cols);
    cpu_ops.fold(&t->ctx, &w);
    return w;
}

/* dW = G diag gamma in the master's order. */
static Tensor master_gradient(OpTest *t, const Weight *w)
{
    Tensor out = output_tensor(t, w->master.rows, w->master.cols, 0);
    for (int64_t n = 0; n < w->master.rows; n++)
        for (int64_t k = 0; k < w->master.cols; k++)
            ((float *)out.data)[master_row(w->rows, n) * out.stride + k] =
                (float)at(w->grad, n, k) * (w->gamma ? w->gamma[k] : 1.0f);
    return out;
}

/* Compares with central differences: dx, dW of both weights, dgamma and the sum of squares of the folded. */
static void check_half(OpTest *t, Half *h, Tensor dx, Weight *in, const Weight *out)
{
    int64_t n_in = in->master.rows * D, n_out = out->master.rows * out->master.cols;
    double *want_dx = doubles(t, T * D), *want_gamma = doubles(t, D), *want_in = doubles(t, n_in);
    double *want_out = doubles(t, n_out), squares = 0, got = 0;
    central_differences(textbook_half, h, h->x, T * D, want_dx);
    central_differences(textbook_half, h, h->gamma, D, want_gamma);
    central_differences(textbook_half, h, h->in, n_in, want_in);
    central_differences(textbook_half, h, h->out, n_out, want_out);
    check_tensor("dx", dx, want_dx, TIGHT);
    check_tensor("dW of the second weight", master_gradient(t, out), want_out, TIGHT);
    check_tensor("dW of the folded weight", master_gradient(t, in), want_in, TIGHT);
    cpu_ops.grad_norm(&t->ctx, in, &got);
    for (int64_t i = 0; i < n_in; i++) squares += want_in[i] * want_in[i];
    check_number("sum of squares", got, squares, TIGHT);
    check_floats("dgamma", in->dgamma, want_gamma, D, TIGHT);
}

static void doubles_from(double *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = (double)from[i];
}

static void mlp_body(OpTest *t)
{
    float *gamma = random_floats(t, D, 1, 0.3);
    Weight w13 = weight_of(t, 2 * F, D, (RowLayout){.order = ROWS_GATE_UP, .ffn = F}, gamma);
    Weight w2 = weight_of(t, D, F, (RowLayout){.order = ROWS_PLAIN}, NULL);
    Tensor x1 = random_tensor(t, T, D, 1, 1.5), dx = random_tensor(t, T, D, 2, 1);
    Tensor z = output_tensor(t, T, 2 * F, 0), y = output_tensor(t, T, F, 0), out = output_tensor(t, T, D, 0);
    Tensor dz = output_tensor(t, T, 2 * F, 3);
    RowSums sumsq = output_sums(t, T), zdz = output_sums(t, T);
    RowNorm norm = row_norm_of(t, x1, 1, eps);
    Half h = {doubles_of(t, x1), doubles(t, D), doubles_of(t, w13.master), doubles_of(t, w2.master),
              doubles_of(t, dx), NULL, NULL, false};
    doubles_from(h.gamma, gamma, D);

    cpu_ops.gate_up(&t->ctx, z, y, x1, w13.working, norm);
    cpu_ops.residual(&t->ctx, OP_DOWN, out, sumsq, (Tensor){0}, y, w2.working, x1, NULL);
    double value = 0;
    for (int i = 0; i < T; i++)
        for (int k = 0; k < D; k++) value += at(out, i, k) * at(dx, i, k);
    check_number("output", value, textbook_half(&h), 1e-5);

    cpu_ops.down_dx(&t->ctx, dz, y, zdz, dx, w2.working, z, norm);
    cpu_ops.dw(&t->ctx, OP_DOWN_DW, w2.grad, dx, y, false, NULL);
    cpu_ops.norm_dx(&t->ctx, OP_GATE_UP_DX, dx, dz, w13.working, dx, x1, norm, zdz);
    cpu_ops.dw(&t->ctx, OP_GATE_UP_DW, w13.grad, dz, x1, false, NULL);
    check_half(t, &h, dx, &w13, &w2);
}

static void attention_body(OpTest *t)
{
    static const int32_t pos[T] = {0, 1, 2, 0, 1, 3, 4, 5, 6, 7};
    static const int32_t doc_start[T] = {0, 0, 0, 3, 3, 0, 0, 0, 0, 0};
    float *gamma = random_floats(t, D, 1, 0.3);
    RowLayout layout = {.order = ROWS_QKV, .head_dim = DIM, .rotated = (HEADS + KV) * DIM};
    Weight wqkv = weight_of(t, QKV, D, layout, gamma);
    Weight wo = weight_of(t, D, Q, (RowLayout){.order = ROWS_PLAIN}, NULL);
    Tensor x = random_tensor(t, T, D, 1, 1.5), dx = random_tensor(t, T, D, 2, 1);
    Tensor qkv = output_tensor(t, T, QKV, 0), o = output_tensor(t, T, Q, 0), x1 = output_tensor(t, T, D, 0);
    Tensor dqkv = output_tensor(t, T, QKV, 3), d_o = output_tensor(t, T, Q, 1);
    RowSums sumsq = output_sums(t, T), zdz = output_sums(t, T);
    RowNorm norm = row_norm_of(t, x, 1, eps);
    Rope rope = {rope_table_of(t, DIM, 8), pos, DIM, layout.rotated};
    AttentionShape shape = {BATCH, SEQ, HEADS, KV, DIM, doc_start, true};
    float *lse = output_floats(t, T * HEADS);
    Half h = {doubles_of(t, x), doubles(t, D), doubles_of(t, wqkv.master), doubles_of(t, wo.master),
              doubles_of(t, dx), &rope, doc_start, true};
    doubles_from(h.gamma, gamma, D);

    cpu_ops.qkv(&t->ctx, qkv, x, wqkv.working, norm, rope);
    cpu_ops.attention(&t->ctx, o, lse, qkv, shape);
    cpu_ops.residual(&t->ctx, OP_OUT, x1, sumsq, (Tensor){0}, o, wo.working, x, NULL);
    double value = 0;
    for (int i = 0; i < T; i++)
        for (int k = 0; k < D; k++) value += at(x1, i, k) * at(dx, i, k);
    check_number("output", value, textbook_half(&h), 1e-5);

    cpu_ops.out_dx(&t->ctx, d_o, dx, wo.working);
    cpu_ops.dw(&t->ctx, OP_OUT_DW, wo.grad, dx, o, false, NULL);
    cpu_ops.attention_bwd(&t->ctx, dqkv, d_o, qkv, o, lse, shape);
    cpu_ops.qkv_grad(&t->ctx, dqkv, zdz, qkv, norm, rope);
    cpu_ops.norm_dx(&t->ctx, OP_QKV_DX, dx, dqkv, wqkv.working, dx, x, norm, zdz);
    cpu_ops.dw(&t->ctx, OP_QKV_DW, wqkv.grad, dqkv, x, false, NULL);
    check_half(t, &h, dx, &wqkv, &wo);
}

static void test_mlp(void **state) { with_threads(*state, mlp_body); }
static void test_attention(void **state) { with_threads(*state, attention_body); }

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, op_test_setup, op_test_teardown)
    const struct CMUnitTest tests[] = {TEST(test_mlp), TEST(test_attention)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
