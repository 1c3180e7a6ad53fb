/* The CPU's ops of the embedding and of a layer's projections, each against a naive formulation in double
 * precision: odd sizes, rows further apart than they are long, poisoned outputs, permitted aliases. */
#include "tests/op_testing.h"
#include <omp.h>

#define TIGHT 1e-6      /* relative error of FP32 sums of a few hundred terms stays well below */
static const float eps = 1e-5f;
static const int64_t row_counts[] = {1, 7, 15, 150, 801};    /* none, one and several blocks a thread */
#define FOR_ROWS(T) \
    for (size_t which_ = 0; which_ < sizeof row_counts / sizeof *row_counts; which_++) \
        for (int64_t T = row_counts[which_], once_ = 1; once_; once_ = 0)

static int32_t *random_ids(OpTest *t, int64_t n, int64_t below)
{
    int32_t *ids = op_test_alloc(t, (size_t)n * sizeof *ids);
    for (int64_t i = 0; i < n; i++) ids[i] = random_below(t, below);
    return ids;
}

/* ---- embedding --------------------------------------------------------------------------------------- */

static void embed_body(OpTest *t)
{
    FOR_ROWS(T) {
        Tensor table = random_tensor(t, 128, 23, 2, 1), x = output_tensor(t, T, 23, 3);
        RowSums sumsq = output_sums(t, T);
        int32_t *ids = random_ids(t, T, 99);
        double *want = doubles(t, T * 23), *want_sum = doubles(t, T);
        for (int64_t i = 0; i < T; i++)
            for (int64_t k = 0; k < 23; k++) {
                double value = at(table, ids[i], k);
                want[i * 23 + k] = value;
                want_sum[i] += value * value;
            }
        cpu_ops.embed(&t->ctx, x, sumsq, ids, table);
        check_tensor("x", x, want, 0);
        check_floats("sumsq", sumsq.data, want_sum, T, TIGHT);
    }
}

static void embed_dw_body(OpTest *t)
{
    FOR_ROWS(T) for (int accumulate = 0; accumulate < 2; accumulate++) {
        Tensor grad = accumulate ? random_tensor(t, 128, 23, 2, 1) : output_tensor(t, 128, 23, 2);
        Tensor dx = random_tensor(t, T, 23, 5, 1);
        int32_t *ids = random_ids(t, T, 9);     /* many rows a token */
        double *want = accumulate ? doubles_of(t, grad) : doubles(t, 128 * 23);
        for (int64_t i = 0; i < T; i++)
            for (int64_t k = 0; k < 23; k++) want[ids[i] * 23 + k] += at(dx, i, k);
        cpu_ops.embed_dw(&t->ctx, grad, ids, order_of(t, ids, T), dx, accumulate);
        check_tensor("grad", grad, want, TIGHT);
    }
}

/* Rows of one token are one thread's alone, however many there are: sums are exact and in one order. */
static void test_one_token(void **state)
{
    OpTest *t = *state;
    enum { ROWS = 400, D = 2000 };
    Tensor dx = random_tensor(t, ROWS, D, 0, 1), first = output_tensor(t, 128, D, 0);
    int32_t *ids = random_ids(t, ROWS, 1);
    for (int round = 0; round < 20; round++) {
        Tensor grad = round ? copy_tensor(t, first) : first;
        omp_set_num_threads(round % 4 + 1);
        cpu_ops.embed_dw(&t->ctx, grad, ids, order_of(t, ids, ROWS), dx, false);
        check_same_bits("grad", grad, first);
    }
}

/* ---- qkv --------------------------------------------------------------------------------------------- */

/* Rotates columns of heads by sign * angle: the master's pairs are the working rows' neighbours. */
static void naive_rotate(double *row, const Rope *rope, int32_t pos, double sign)
{
    for (int64_t c = 0; c < rope->rotated; c += 2) {
        double angle = sign * pos * pow(100.0, -(double)(c % rope->head_dim) / rope->head_dim);
        double a = row[c], b = row[c + 1];
        row[c] = a * cos(angle) - b * sin(angle);
        row[c + 1] = a * sin(angle) + b * cos(angle);
    }
}

static void qkv_body(OpTest *t)
{
    enum { HEADS = 6, KV = 2, DIM = 10, D = 24, COLS = (HEADS + 2 * KV) * DIM };
    FOR_ROWS(T) {
        Tensor x = random_tensor(t, T, D, 4, 2), w = random_tensor(t, COLS, D, 0, 0.3);
        Tensor qkv = output_tensor(t, T, COLS, 6);
        Rope rope = {rope_table_of(t, DIM, 77), random_ids(t, T, 77), DIM, (HEADS + KV) * DIM};
        RowNorm norm = row_norm_of(t, x, 3, eps);
        double *want = doubles(t, T * COLS);
        naive_nt(want, doubles_of(t, x), doubles_of(t, w), T, COLS, D);
        for (int64_t i = 0; i < T; i++) {
            for (int64_t c = 0; c < COLS; c++) want[i * COLS + c] *= rstd_of(x, i, eps);
            naive_rotate(want + i * COLS, &rope, rope.pos[i], 1);
        }
        cpu_ops.qkv(&t->ctx, qkv, x, w, norm, rope);
        check_tensor("qkv", qkv, want, TIGHT);
    }
}

static void qkv_grad_body(OpTest *t)
{
    enum { HEADS = 3, KV = 1, DIM = 6, D = 17, COLS = (HEADS + 2 * KV) * DIM };
    FOR_ROWS(T) {
        Tensor x = random_tensor(t, T, D, 0, 1), qkv = random_tensor(t, T, COLS, 3, 1);
        Tensor dqkv = random_tensor(t, T, COLS, 5, 1);
        Rope rope = {rope_table_of(t, DIM, 50), random_ids(t, T, 50), DIM, (HEADS + KV) * DIM};
        RowSums zdz = output_sums(t, T);
        double *want = doubles_of(t, dqkv), *want_sum = doubles(t, T);
        for (int64_t i = 0; i < T; i++) {
            for (int64_t c = 0; c < COLS; c++) want_sum[i] += at(qkv, i, c) * want[i * COLS + c];
            naive_rotate(want + i * COLS, &rope, rope.pos[i], -1);
            for (int64_t c = 0; c < COLS; c++) want[i * COLS + c] *= rstd_of(x, i, eps);
        }
        cpu_ops.qkv_grad(&t->ctx, dqkv, zdz, qkv, row_norm_of(t, x, 2, eps), rope);
        check_tensor("dqkv", dqkv, want, TIGHT);
        check_floats("zdz", zdz.data, want_sum, T, 4 * TIGHT);
    }
}

/* ---- residual ---------------------------------------------------------------------------------------- */

static void residual_body(OpTest *t)
{
    enum { D = 37, K = 50 };
    FOR_ROWS(T) for (int variant = 0; variant < 4; variant++) {
        bool in_place = variant % 2, with_xg = variant / 2;
        Tensor a = random_tensor(t, T, K, 1, 1), w = random_tensor(t, D, K, 0, 0.2);
        Tensor residual = random_tensor(t, T, D, 2, 1), xg = {0};
        Tensor out = in_place ? residual : output_tensor(t, T, D, 7);
        float *gamma = with_xg ? random_floats(t, D, 1, 0.3) : NULL;
        RowSums sumsq = output_sums(t, T);
        double *want = doubles(t, T * D), *want_xg = doubles(t, T * D), *want_sum = doubles(t, T);
        naive_nt(want, doubles_of(t, a), doubles_of(t, w), T, D, K);
        for (int64_t i = 0; i < T; i++)
            for (int64_t k = 0; k < D; k++) {
                double *value = &want[i * D + k];
                *value += at(residual, i, k);
                want_sum[i] += *value * *value;
                if (gamma) want_xg[i * D + k] = *value * (double)gamma[k];
            }
        if (with_xg) xg = output_tensor(t, T, D, 4);
        cpu_ops.residual(&t->ctx, OP_DOWN, out, sumsq, xg, a, w, residual, gamma);
        check_tensor("out", out, want, TIGHT);
        check_floats("sumsq", sumsq.data, want_sum, T, TIGHT);
        if (with_xg) check_tensor("xg", xg, want_xg, TIGHT);
    }
}

/* ---- SwiGLU ------------------------------------------------------------------------------------------ */

static int64_t gate_col(int64_t i) { return i / 8 * 16 + i % 8; }

static void gate_up_body(OpTest *t)
{
    enum { F = 40, D = 19 };
    FOR_ROWS(T) {
        Tensor x1 = random_tensor(t, T, D, 2, 3), w = random_tensor(t, 2 * F, D, 0, 1);
        Tensor z = output_tensor(t, T, 2 * F, 5), y = output_tensor(t, T, F, 1);
        double *want_z = doubles(t, T * 2 * F), *want_y = doubles(t, T * F);
        naive_nt(want_z, doubles_of(t, x1), doubles_of(t, w), T, 2 * F, D);
        for (int64_t i = 0; i < T; i++) {
            double *row = want_z + i * 2 * F;
            for (int64_t c = 0; c < 2 * F; c++) row[c] *= rstd_of(x1, i, eps);
            for (int64_t c = 0; c < F; c++) {
                double gate = row[gate_col(c)], up = row[gate_col(c) + 8];
                want_y[i * F + c] = gate / (1 + exp(-gate)) * up;
            }
        }
        cpu_ops.gate_up(&t->ctx, z, y, x1, w, row_norm_of(t, x1, 5, eps));
        check_tensor("z", z, want_z, TIGHT);
        check_tensor("y", y, want_y, TIGHT);
    }
}

static void down_dx_body(OpTest *t)
{
    enum { F = 24, D = 21 };
    FOR_ROWS(T) for (int with_y = 0; with_y < 2; with_y++) {
        Tensor x1 = random_tensor(t, T, D, 0, 1), dx = random_tensor(t, T, D, 3, 1);
        Tensor w = random_tensor(t, D, F, 0, 0.3), z = random_tensor(t, T, 2 * F, 2, 3);
        Tensor dz = output_tensor(t, T, 2 * F, 1), y = {0};
        RowSums zdz = output_sums(t, T);
        double *want_dz = doubles(t, T * 2 * F), *want_y = doubles(t, T * F), *want_sum = doubles(t, T);
        double *terms = doubles(t, T);
        for (int64_t i = 0; i < T; i++)
            for (int64_t c = 0; c < F; c++) {
                double dy = 0, gate = at(z, i, gate_col(c)), up = at(z, i, gate_col(c) + 8);
                for (int64_t k = 0; k < D; k++) dy += at(dx, i, k) * at(w, k, c);
                double s = 1 / (1 + exp(-gate));
                double d_gate = dy * up * (s + gate * s * (1 - s)), d_up = dy * gate * s;
                want_dz[i * 2 * F + gate_col(c)] = rstd_of(x1, i, eps) * d_gate;
                want_dz[i * 2 * F + gate_col(c) + 8] = rstd_of(x1, i, eps) * d_up;
                want_y[i * F + c] = gate * s * up;
                want_sum[i] += gate * d_gate + up * d_up;
                terms[i] += fabs(gate * d_gate) + fabs(up * d_up);
            }
        if (with_y) y = output_tensor(t, T, F, 6);
        cpu_ops.down_dx(&t->ctx, dz, y, zdz, dx, w, z, row_norm_of(t, x1, 2, eps));
        check_tensor("dz", dz, want_dz, TIGHT);
        if (with_y) check_tensor("y", y, want_y, TIGHT);
        for (int64_t i = 0; i < T; i++)
            assert_true(fabs((double)zdz.data[i] - want_sum[i]) <= 2 * TIGHT * terms[i]);
    }
}

/* Activations far out: no overflow, no NaN, and NaN is passed on. */
static void test_swiglu_extremes(void **state)
{
    OpTest *t = *state;
    enum { F = 8 };
    static const float gates[F] = {-1e30f, -200, -88, -1e-30f, 0, 88, 200, 1e30f};
    Tensor x1 = random_tensor(t, 1, 1, 0, 1), w = random_tensor(t, 2 * F, 1, 0, 1);
    Tensor z = output_tensor(t, 1, 2 * F, 0), y = output_tensor(t, 1, F, 0);
    float sumsq = 1.0f;
    RowNorm norm = {.sumsq = {&sumsq, 1}, .eps = 0, .cols = 1};
    ((float *)x1.data)[0] = 1;
    for (int i = 0; i < F; i++) ((float *)w.data)[i] = gates[i], ((float *)w.data)[8 + i] = 1;
    cpu_ops.gate_up(&t->ctx, z, y, x1, w, norm);
    const float *out = y.data;
    for (int i = 0; i < F; i++) {
        double gate = (double)gates[i], want = gate / (1 + exp(-gate));
        assert_true(fabs((double)out[i] - want) <= 1e-6 * fabs(want) + 1e-30);
    }
    ((float *)w.data)[3] = NAN;
    cpu_ops.gate_up(&t->ctx, z, y, x1, w, norm);
    assert_true(isnan(out[3]));
    assert_int_equal(cpu_ops.count_nonfinite(&t->ctx, y), 1);
}

/* ---- gradients of the residual stream and of weights ------------------------------------------------- */

static void norm_dx_body(OpTest *t)
{
    enum { D = 24, N = 35 };
    FOR_ROWS(T) for (int in_place = 0; in_place < 2; in_place++) {
        Tensor dz = random_tensor(t, T, N, 1, 1), w = random_tensor(t, N, D, 0, 0.3);
        Tensor residual = random_tensor(t, T, D, 3, 1), x = random_tensor(t, T, D, 2, 1);
        Tensor out = in_place ? residual : output_tensor(t, T, D, 4);
        RowSums zdz = {random_floats(t, T * 2, 0, 3), 2};
        double *want = doubles_of(t, residual);
        for (int64_t i = 0; i < T; i++) {
            double r = rstd_of(x, i, eps), c = (double)zdz.data[2 * i] + (double)zdz.data[2 * i + 1];
            for (int64_t k = 0; k < D; k++) {
                for (int64_t n = 0; n < N; n++) want[i * D + k] += at(dz, i, n) * at(w, n, k);
                want[i * D + k] -= r * r * c / D * at(x, i, k);
            }
        }
        cpu_ops.norm_dx(&t->ctx, OP_QKV_DX, out, dz, w, residual, x, row_norm_of(t, x, 3, eps), zdz);
        check_tensor("out", out, want, TIGHT);
    }
}

static void out_dx_body(OpTest *t)
{
    enum { D = 13, N = 30 };
    FOR_ROWS(T) {
        Tensor dx1 = random_tensor(t, T, D, 1, 1), w = random_tensor(t, D, N, 0, 1);
        Tensor d_o = output_tensor(t, T, N, 2);
        double *want = doubles(t, T * N);
        for (int64_t i = 0; i < T; i++)
            for (int64_t c = 0; c < N; c++)
                for (int64_t k = 0; k < D; k++) want[i * N + c] += at(dx1, i, k) * at(w, k, c);
        cpu_ops.out_dx(&t->ctx, d_o, dx1, w);
        check_tensor("do", d_o, want, TIGHT);
    }
}

static void dw_body(OpTest *t)
{
    enum { K = 22 };
    FOR_ROWS(N) for (int accumulate = 0; accumulate < 2; accumulate++) {
        int64_t T = 45;
        Tensor dy = random_tensor(t, T, N, 3, 1), a = random_tensor(t, T, K, 5, 1);
        Tensor grad = accumulate ? random_tensor(t, N, K, 0, 1) : output_tensor(t, N, K, 0);
        double *want = accumulate ? doubles_of(t, grad) : doubles(t, N * K), want_sum = 0, sum = NAN;
        for (int64_t n = 0; n < N; n++)
            for (int64_t k = 0; k < K; k++) {
                for (int64_t i = 0; i < T; i++) want[n * K + k] += at(dy, i, n) * at(a, i, k);
                want_sum += want[n * K + k] * want[n * K + k];
            }
        cpu_ops.dw(&t->ctx, OP_OUT_DW, grad, dy, a, accumulate, accumulate ? &sum : NULL);
        check_tensor("grad", grad, want, TIGHT);
        if (accumulate) check_number("sumsq", sum, want_sum, TIGHT);
    }
}

/* ---- table ------------------------------------------------------------------------------------------- */

static void test_table(void **state)
{
    OpTest *t = *state;
    assert_string_equal(cpu_ops.name, "cpu");
    for (int op = 0; op < OP_COUNT; op++) {
        assert_true(strlen(op_name((OpId)op)) > 1);
        assert_string_equal(cpu_ops.choice(&t->ctx, (OpId)op), "cpu");
        assert_int_equal(cpu_ops.parts(&t->ctx, (OpId)op, 1000), 1);
        for (int other = 0; other < op; other++)
            assert_string_not_equal(op_name((OpId)op), op_name((OpId)other));
    }
    Tensor x = random_tensor(t, 5, 7, 3, 1);
    float *data = x.data;
    data[3] = NAN, data[12] = -INFINITY, data[48] = NAN;    /* the last: a gap */
    assert_int_equal(cpu_ops.count_nonfinite(&t->ctx, x), 2);
}

#define BODY(name) \
    static void test_##name(void **state) { with_threads(*state, name##_body); }
BODY(embed)
BODY(embed_dw)
BODY(qkv)
BODY(qkv_grad)
BODY(residual)
BODY(gate_up)
BODY(down_dx)
BODY(norm_dx)
BODY(out_dx)
BODY(dw)

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, op_test_setup, op_test_teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_embed), TEST(test_embed_dw), TEST(test_one_token), TEST(test_qkv), TEST(test_qkv_grad),
        TEST(test_residual), TEST(test_gate_up), TEST(test_down_dx), TEST(test_swiglu_extremes),
        TEST(test_norm_dx), TEST(test_out_dx), TEST(test_dw), TEST(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
