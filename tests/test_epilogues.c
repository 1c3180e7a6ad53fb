/* The arithmetic of the fused epilogues, compiled for the host: against the textbook's formulas in double
 * precision and against central differences of them. */
#include "kernels/cuda/formulas.h"
#include "tests/op_testing.h"

static OpTest *test_of(void **state) { return *state; }

static void close_to(double got, double want, double scale, double tolerance)
{
    if (fabs(got - want) > tolerance * (fabs(want) + scale)) fail_msg("%.9g, expected %.9g", got, want);
}

static double silu(double x) { return x / (1 + exp(-x)); }

static void test_swiglu(void **state)
{
    OpTest *test = test_of(state);
    for (int i = 0; i < 2000; i++) {
        float gate = (float)(4 * random_normal(test)), up = (float)random_normal(test),
              dy = (float)random_normal(test);
        double h = 1e-5;
        SwigluGrad grad = swiglu_grad(gate, up, dy);
        close_to(swiglu(gate, up), silu(gate) * up, 1e-3, 1e-6);
        close_to(grad.y, silu(gate) * up, 1e-3, 1e-6);
        close_to(grad.up, dy * silu(gate), 1e-3, 1e-6);
        close_to(grad.gate, dy * up * (silu(gate + h) - silu(gate - h)) / (2 * h), 1, 1e-6);
        close_to(grad.zdz, gate * grad.gate + up * grad.up, 1e-3, 1e-5);
    }
    /* far out nothing overflows */
    assert_true(swiglu(-200, 3) == 0 && swiglu(200, 3) == 600);
    assert_true(swiglu_grad(-200, 3, 2).gate == 0 && swiglu_grad(200, 3, 2).gate == 6);
}

static void test_columns_of_heads(void **state)
{
    (void)state;
    for (int head_dim = 64; head_dim <= 1024; head_dim += 64)
        for (int col = 0; col < MOST_HEAD_COLUMNS; col += 64)
            assert_int_equal(column_in_head(col, head_dim, 1.0f / (float)head_dim), col % head_dim);
}

static void test_rotation(void **state)
{
    OpTest *test = test_of(state);
    for (int i = 0; i < 1000; i++) {
        double a = random_normal(test), b = random_normal(test), angle = 7 * random_normal(test);
        RotatedPair turned = rotate_pair((float)a, (float)b, (float)cos(angle), (float)sin(angle));
        close_to(turned.a, a * cos(angle) - b * sin(angle), 1, 1e-6);
        close_to(turned.b, a * sin(angle) + b * cos(angle), 1, 1e-6);
        RotatedPair back = rotate_pair(turned.a, turned.b, (float)cos(angle), (float)-sin(angle));
        close_to(back.a, a, 1, 1e-6);
        close_to(back.b, b, 1, 1e-6);
    }
}

/* ---- the norm, folded into the next weight -------------------------------------------------------------- */

enum { D = 13, N = 7 };

typedef struct Layer {
    double x[D], w[N * D], dz[N], residual[D];
} Layer;

/* Pair by pair, in as many parts as a row has column tiles: norms, and r of them. */
static void test_sums_of_squares(void **state)
{
    enum { COLS = 1096, PART = 192 };
    OpTest *test = test_of(state);
    double want = 0;
    float sumsq = 0;
    for (int first = 0; first < COLS; first += PART) {
        float part = 0;
        for (int i = first; i < first + PART && i < COLS; i += 2) {
            const float a = (float)(3 * random_normal(test)), b = (float)random_normal(test);
            part += squares(a, b), want += (double)a * a + (double)b * b;
        }
        sumsq += part;
    }
    close_to(sumsq, want, 0, 1e-6);
    close_to(norm_rstd(sumsq, COLS, 1e-5f), 1 / sqrt(want / COLS + 1e-5), 0, 1e-6);
}

/* sum dz . (norm(x) W'^T) + sum residual . x: its gradient in x is what norm_grad computes. */
static double layer_value(void *arg)
{
    Layer *l = arg;
    double sumsq = 0, value = 0;
    for (int i = 0; i < D; i++) sumsq += l->x[i] * l->x[i], value += l->residual[i] * l->x[i];
    double r = 1 / sqrt(sumsq / D + 1e-5);
    for (int n = 0; n < N; n++)
        for (int i = 0; i < D; i++) value += l->dz[n] * r * l->x[i] * l->w[n * D + i];
    return value;
}

static void test_norm_gradient(void **state)
{
    OpTest *test = test_of(state);
    Layer l;
    for (size_t i = 0; i < sizeof l / sizeof(double); i++) ((double *)&l)[i] = random_normal(test);
    double want[D], sumsq = 0, zdz = 0;
    central_differences(layer_value, &l, l.x, D, want);
    for (int i = 0; i < D; i++) sumsq += l.x[i] * l.x[i];
    float r = norm_rstd((float)sumsq, D, 1e-5f);
    close_to(r, 1 / sqrt(sumsq / D + 1e-5), 0, 1e-6);
    for (int n = 0; n < N; n++)     /* z . dz, with z as the forward pass left it */
        for (int i = 0; i < D; i++) zdz += l.dz[n] * r * l.x[i] * l.w[n * D + i];
    float s = norm_pull(r, (float)zdz, D);
    for (int i = 0; i < D; i++) {
        double product = 0;
        for (int n = 0; n < N; n++) product += r * l.dz[n] * l.w[n * D + i];
        close_to(norm_grad((float)product, (float)l.residual[i], s, (float)l.x[i]), want[i], 1, 1e-5);
    }
}

/* ---- the head --------------------------------------------------------------------------------------------- */

enum { V = 301, TARGET = 77 };

/* Cross entropy of the row and its gradient in the logits, from E and D. */
static void test_anchored_softmax(void **state)
{
    OpTest *test = test_of(state);
    const double lift[] = {0, 4, 12, 20};   /* how sure the model is of the target: losses from 6 to 1e-6 */
    for (size_t k = 0; k < sizeof lift / sizeof *lift; k++) {
        double logit[V], sum = 0, d = 0, q = 0, most = -1e300;
        float e[V];
        for (int j = 0; j < V; j++) logit[j] = random_normal(test);
        logit[TARGET] += lift[k];
        for (int j = 0; j < V; j++) most = logit[j] > most ? logit[j] : most;
        for (int j = 0; j < V; j++) sum += exp(logit[j] - most);
        for (int j = 0; j < V; j++) {
            HeadTerm term = head_term((float)logit[j], (float)logit[TARGET], 60, j != TARGET);
            e[j] = term.e, d += term.e, q += term.q;
        }
        assert_true(e[TARGET] == 0);
        double others = 0, weighted = 0;
        for (int j = 0; j < V; j++)
            if (j != TARGET) {
                double p = exp(logit[j] - logit[TARGET]);
                others += p, weighted += p * (logit[j] - logit[TARGET]);
                close_to(e[j] / (1 + d), exp(logit[j] - most) / sum, 0, 1e-5);
            }
        close_to(log1p(d), log1p(others), 0, 1e-6);
        close_to(q, weighted, 1e-6, 1e-5);
    }
    assert_true(head_term(1000, 0, 60, 1).e <= 1.15e26f && isfinite(head_term(1000, 0, 60, 1).q));
    assert_true(head_term(1000, 0, 60, 0).e == 0 && head_term(1000, 0, 60, 0).q == 0);
    assert_true(isnan(head_term(NAN, 0, 60, 1).e));     /* shows in the loss */
}

/* However the columns are cut into pieces, and with empty pieces among them. */
static void test_running_sum(void **state)
{
    OpTest *test = test_of(state);
    for (int round = 0; round < 50; round++) {
        double logit[V], others = 0;
        for (int j = 0; j < V; j++) logit[j] = 30 * random_normal(test);
        for (int j = 0; j < V; j++) others += j == TARGET ? 0 : exp(logit[j] - logit[TARGET]);
        RunningSum total = {-INFINITY, 0}, empty = {0, 0};
        for (int j = 0, end; j < V; j = end) {     /* a tile's chunks, of which some hold nothing that counts */
            RunningSum piece = {-INFINITY, 0};
            end = j + 1 + (int)random_below(test, 40);
            if (end > V) end = V;
            for (int at = j; at < end; at += 4) {
                float chunk[4];
                for (int i = 0; i < 4; i++)
                    chunk[i] = at + i < end && at + i != TARGET ? (float)logit[at + i] : -INFINITY;
                piece = running_add(piece, chunk, 4);
            }
            total = running_merge(running_merge(total, empty), piece);
        }
        close_to(running_loss(total, (float)logit[TARGET]), log1p(others), 1e-6, 2e-5);
    }
    close_to(running_loss((RunningSum){-20, 3}, 0), log1p(3 * exp(-20)), 0, 1e-5);      /* a tiny loss */
}

static void test_head_gradient(void **state)
{
    OpTest *test = test_of(state);
    for (int i = 0; i < 100; i++) {
        double v[7];
        for (int j = 0; j < 7; j++) v[j] = random_normal(test);
        double u = v[0] * v[1] - v[2] * v[3];
        close_to(head_pull((float)v[0], (float)v[1], (float)v[2], (float)v[3]), u, 1, 1e-6);
        close_to(head_grad((float)u, (float)v[4], (float)v[5], (float)v[6]), u * v[4] - v[5] * v[6], 1, 1e-6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_swiglu, op_test_setup, op_test_teardown),
        cmocka_unit_test(test_columns_of_heads),
        cmocka_unit_test_setup_teardown(test_rotation, op_test_setup, op_test_teardown),
        cmocka_unit_test_setup_teardown(test_sums_of_squares, op_test_setup, op_test_teardown),
        cmocka_unit_test_setup_teardown(test_norm_gradient, op_test_setup, op_test_teardown),
        cmocka_unit_test_setup_teardown(test_anchored_softmax, op_test_setup, op_test_teardown),
        cmocka_unit_test_setup_teardown(test_running_sum, op_test_setup, op_test_teardown),
        cmocka_unit_test_setup_teardown(test_head_gradient, op_test_setup, op_test_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
