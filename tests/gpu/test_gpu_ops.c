/* Every op of the GPU against the CPU's, on the same numbers: odd sizes, and the widths of real models. */
#include "tests/gpu/gpu_testing.h"
#include <stdio.h>

typedef struct Sizes {
    int     batch, seq, heads, kv_heads, head_dim;
    int64_t hidden, ffn, vocab, chunk;
} Sizes;

static const Sizes odd_sizes[] = {
    {3, 7, 3, 1, 6, 13, 24, 131, 21},
    {2, 33, 4, 2, 16, 72, 136, 1000, 50},
    {1, 129, 5, 5, 20, 100, 264, 77, 129},
    {2, 130, 6, 3, 64, 384, 1024, 4101, 200},
};
/* For attention alone: heads wider than its kernels' stretches of columns. */
static const Sizes wide_heads[] = {
    {2, 37, 3, 1, 302, 40, 72, 300, 30},
    {1, 45, 4, 2, 1024, 56, 40, 65, 20},
};
/* More sequences than the second and third dimension of a grid take. */
static const Sizes many_sequences = {70000, 2, 1, 1, 2, 8, 8, 128, 8};
static const Sizes real_sizes[] = {
    {2, 512, 32, 8, 64, 2048, 8192, 128256, 256},       /* 1B */
    {1, 512, 32, 8, 128, 4096, 14336, 128256, 128},     /* 8B */
};

/* Rounding to BF16 once leaves 1.7e-3. */
static const double ONE_ROUNDING = 2.5e-3, TWO_ROUNDINGS = 4e-3, EXACT = 1e-5;

static Sizes size;
static GpuTest *test;       /* cmocka's tests take it from here: one per program */

static int64_t rows(void) { return (int64_t)size.batch * size.seq; }
static int64_t qkv_cols(void) { return (int64_t)(size.heads + 2 * size.kv_heads) * size.head_dim; }
static int64_t padded_vocab(void) { return (size.vocab + 127) / 128 * 128; }
static float fan_in(int64_t n) { return 1.0f / sqrtf((float)n); }
static Both activation(int64_t r, int64_t cols) { return input(test, r, cols, DTYPE_BF16, 1); }
static Both weight(int64_t r, int64_t cols) { return input(test, r, cols, DTYPE_BF16, fan_in(cols)); }
static Both result(int64_t r, int64_t cols) { return output(test, r, cols, DTYPE_BF16); }
static Both floats(int64_t r, int64_t cols) { return output(test, r, cols, DTYPE_F32); }
static RowSums cpu_sums(Both b) { return (RowSums){b.cpu.data, 1}; }
static RowSums gpu_sums(Both b) { return (RowSums){b.gpu.data, 1}; }

/* What the op before x left behind. */
static Both sumsq_of(Both x)
{
    Both sums = floats(x.cpu.rows, 1);
    for (int64_t i = 0; i < x.cpu.rows; i++) {
        double sum = 0;
        for (int64_t k = 0; k < x.cpu.cols; k++) {
            double v = ((float *)x.cpu.data)[i * x.cpu.cols + k];
            sum += v * v;
        }
        ((float *)sums.cpu.data)[i] = (float)sum;
    }
    upload(test, sums);
    return sums;
}

typedef struct Norms { RowNorm cpu, gpu; } Norms;
static Norms norm_of(Both x)
{
    Both sums = sumsq_of(x);
    return (Norms){{cpu_sums(sums), 1e-5f, x.cpu.cols}, {gpu_sums(sums), 1e-5f, x.cpu.cols}};
}

typedef struct Ropes { Rope cpu, gpu; } Ropes;
static Ropes make_rope(void)
{
    int64_t positions = 2 * size.seq, half = size.head_dim / 2;
    Both table = floats(positions, size.head_dim);
    float *to = table.cpu.data;
    for (int64_t p = 0; p < positions; p++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)p * pow(10000, -(double)i / (double)half);
            *to++ = (float)cos(angle), *to++ = (float)sin(angle);
        }
    upload(test, table);
    int32_t *pos = random_ids(test, rows(), positions);
    int64_t rotated = (int64_t)(size.heads + size.kv_heads) * size.head_dim;
    return (Ropes){{table.cpu.data, pos, size.head_dim, rotated},
                   {table.gpu.data, device_ints(test, pos, rows()), size.head_dim, rotated}};
}

/* ---- forward and backward ops ----------------------------------------------------------------------- */

static void test_embed(void)
{
    Both x = result(rows(), size.hidden), sums = floats(rows(), 1),
         table = weight(padded_vocab(), size.hidden);
    int32_t *tokens = random_ids(test, rows(), size.vocab), *order = sorted_order(test, tokens, rows());
    int32_t *gpu_tokens = device_ints(test, tokens, rows()), *gpu_order = device_ints(test, order, rows());
    cpu_ops.embed(&test->cpu, x.cpu, cpu_sums(sums), tokens, table.cpu);
    cuda_ops.embed(&test->gpu, x.gpu, gpu_sums(sums), gpu_tokens, table.gpu);
    check_both(test, "x", x, 0);
    check_both(test, "sumsq", sums, EXACT);

    Both grad = floats(padded_vocab(), size.hidden), dx = activation(rows(), size.hidden);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        cpu_ops.embed_dw(&test->cpu, grad.cpu, tokens, order, dx.cpu, accumulate);
        cuda_ops.embed_dw(&test->gpu, grad.gpu, gpu_tokens, gpu_order, dx.gpu, accumulate);
        check_both(test, accumulate ? "grad added" : "grad", grad, 0);     /* one order of additions */
    }
}

/* Runs that end anywhere in the stretch a warp looks ahead, and the long run of padding. */
static void test_embed_runs(void)
{
    enum { PADDING = 1000, MOST = 70 };
    int64_t n = PADDING + MOST * (MOST + 1) / 2, at = 0;
    int32_t *tokens = host_take(test, (size_t)n * sizeof *tokens);
    while (at < PADDING) tokens[at++] = 0;
    for (int32_t length = 1; length <= MOST; length++)
        for (int i = 0; i < length; i++) tokens[at++] = length;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t other = below(test, i + 1);
        int32_t kept = tokens[i];
        tokens[i] = tokens[other], tokens[other] = kept;
    }
    int32_t *order = sorted_order(test, tokens, n);
    Both grad = floats(128, size.hidden), dx = activation(n, size.hidden);
    cpu_ops.embed_dw(&test->cpu, grad.cpu, tokens, order, dx.cpu, false);
    cuda_ops.embed_dw(&test->gpu, grad.gpu, device_ints(test, tokens, n), device_ints(test, order, n), dx.gpu,
                      false);
    check_both(test, "grad", grad, 0);
}

static void test_qkv(void)
{
    Both qkv = result(rows(), qkv_cols()), x = activation(rows(), size.hidden),
         w = weight(qkv_cols(), size.hidden);
    Norms norm = norm_of(x);
    Ropes rope = make_rope();
    cpu_ops.qkv(&test->cpu, qkv.cpu, x.cpu, w.cpu, norm.cpu, rope.cpu);
    cuda_ops.qkv(&test->gpu, qkv.gpu, x.gpu, w.gpu, norm.gpu, rope.gpu);
    check_both(test, "qkv", qkv, TWO_ROUNDINGS);

    Both dqkv = activation(rows(), qkv_cols()), z = activation(rows(), qkv_cols()), zdz = floats(rows(), 1);
    cpu_ops.qkv_grad(&test->cpu, dqkv.cpu, cpu_sums(zdz), z.cpu, norm.cpu, rope.cpu);
    cuda_ops.qkv_grad(&test->gpu, dqkv.gpu, gpu_sums(zdz), z.gpu, norm.gpu, rope.gpu);
    check_both(test, "dqkv", dqkv, ONE_ROUNDING);
    check_both(test, "zdz", zdz, 1e-4);
}

static void test_residual(void)
{
    Both out = result(rows(), size.hidden), sums = floats(rows(), 1), xg = result(rows(), size.hidden);
    Both a = activation(rows(), size.ffn), w = weight(size.hidden, size.ffn),
         x = activation(rows(), size.hidden);
    Both gamma = input(test, 1, size.hidden, DTYPE_F32, 1);
    for (int last = 0; last < 2; last++) {
        cpu_ops.residual(&test->cpu, OP_DOWN, out.cpu, cpu_sums(sums), last ? xg.cpu : (Tensor){0}, a.cpu,
                         w.cpu, x.cpu, last ? gamma.cpu.data : NULL);
        cuda_ops.residual(&test->gpu, OP_DOWN, out.gpu, gpu_sums(sums), last ? xg.gpu : (Tensor){0}, a.gpu,
                          w.gpu, x.gpu, last ? gamma.gpu.data : NULL);
        check_both(test, "out", out, TWO_ROUNDINGS);
        check_both(test, "sumsq", sums, ONE_ROUNDING);
        if (last) check_both(test, "xg", xg, 6e-3);
    }
    cpu_ops.residual(&test->cpu, OP_DOWN, x.cpu, cpu_sums(sums), (Tensor){0}, a.cpu, w.cpu, x.cpu, NULL);
    cuda_ops.residual(&test->gpu, OP_DOWN, x.gpu, gpu_sums(sums), (Tensor){0}, a.gpu, w.gpu, x.gpu, NULL);
    check_both(test, "in place", x, TWO_ROUNDINGS);
}

static void test_gate_up(void)
{
    Both z = result(rows(), 2 * size.ffn), y = result(rows(), size.ffn), x = activation(rows(), size.hidden);
    Both w = weight(2 * size.ffn, size.hidden);
    Norms norm = norm_of(x);
    cpu_ops.gate_up(&test->cpu, z.cpu, y.cpu, x.cpu, w.cpu, norm.cpu);
    cuda_ops.gate_up(&test->gpu, z.gpu, y.gpu, x.gpu, w.gpu, norm.gpu);
    check_both(test, "z", z, TWO_ROUNDINGS);
    check_both(test, "y", y, 6e-3);     /* both factors have been rounded */
}

static void test_down_dx(void)
{
    Both dz = result(rows(), 2 * size.ffn), y = result(rows(), size.ffn), zdz = floats(rows(), 1);
    Both dx = activation(rows(), size.hidden), z = activation(rows(), 2 * size.ffn);
    Both w = input(test, size.hidden, size.ffn, DTYPE_BF16, fan_in(size.hidden));
    Norms norm = norm_of(activation(rows(), size.hidden));
    for (int recompute = 0; recompute < 2; recompute++) {
        Tensor none = {0};
        cpu_ops.down_dx(&test->cpu, dz.cpu, recompute ? y.cpu : none, cpu_sums(zdz), dx.cpu, w.cpu, z.cpu,
                        norm.cpu);
        cuda_ops.down_dx(&test->gpu, dz.gpu, recompute ? y.gpu : none, gpu_sums(zdz), dx.gpu, w.gpu, z.gpu,
                         norm.gpu);
        check_both(test, "dz", dz, TWO_ROUNDINGS);
        check_both(test, "zdz", zdz, TWO_ROUNDINGS);
        if (recompute) check_both(test, "y", y, ONE_ROUNDING);
    }
}

static void test_norm_dx(void)
{
    Both out = result(rows(), size.hidden), dz = activation(rows(), 2 * size.ffn),
         x = activation(rows(), size.hidden);
    Both w = input(test, 2 * size.ffn, size.hidden, DTYPE_BF16, fan_in(2 * size.ffn));
    Both residual = activation(rows(), size.hidden),
         zdz = input(test, rows(), 1, DTYPE_F32, (float)size.hidden);
    Norms norm = norm_of(x);
    cpu_ops.norm_dx(&test->cpu, OP_GATE_UP_DX, out.cpu, dz.cpu, w.cpu, residual.cpu, x.cpu, norm.cpu,
                    cpu_sums(zdz));
    cuda_ops.norm_dx(&test->gpu, OP_GATE_UP_DX, out.gpu, dz.gpu, w.gpu, residual.gpu, x.gpu, norm.gpu,
                     gpu_sums(zdz));
    check_both(test, "out", out, TWO_ROUNDINGS);
    cuda_ops.norm_dx(&test->gpu, OP_GATE_UP_DX, residual.gpu, dz.gpu, w.gpu, residual.gpu, x.gpu, norm.gpu,
                     gpu_sums(zdz));
    residual.cpu = out.cpu;
    check_both(test, "in place", residual, TWO_ROUNDINGS);
}

static void test_products(void)
{
    int64_t cols = (int64_t)size.heads * size.head_dim;
    Both d_o = result(rows(), cols), dx = activation(rows(), size.hidden), a = activation(rows(), cols);
    Both w = input(test, size.hidden, cols, DTYPE_BF16, fan_in(size.hidden)),
         grad = floats(size.hidden, cols);
    cpu_ops.out_dx(&test->cpu, d_o.cpu, dx.cpu, w.cpu);
    cuda_ops.out_dx(&test->gpu, d_o.gpu, dx.gpu, w.gpu);
    check_both(test, "do", d_o, ONE_ROUNDING);
    Both sums = floats(1, 2);   /* one double */
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        cpu_ops.dw(&test->cpu, OP_OUT_DW, grad.cpu, dx.cpu, a.cpu, accumulate, sums.cpu.data);
        cuda_ops.dw(&test->gpu, OP_OUT_DW, grad.gpu, dx.gpu, a.gpu, accumulate, sums.gpu.data);
        check_both(test, accumulate ? "grad added" : "grad", grad, EXACT);
        double got, want;
        memcpy(&want, sums.cpu.data, sizeof want);
        cuda_device.download(test->gpu.stream, &got, sums.gpu.data, sizeof got);
        cuda_device.wait(test->gpu.stream);
        assert_true(fabs(got - want) <= EXACT * want);
    }
}

/* Choices travel as text; a sum that is left to the kernel behind the GEMM comes out the same. */
static void test_restored_choices(void)
{
    test_residual();
    test_norm_dx();
    char *choices = cuda_backend_choices(test->gpu.backend);
    int marked = 0;
    for (char *at = choices; (at = strstr(at, " + ")); marked++) at[1] = '&';
    assert_true(marked >= 2);
    CudaOptions options = {.deterministic = true};
    Errors errors = {0};
    OpContext before = test->gpu;
    test->gpu.backend = cuda_backend_open(&options, &errors);
    assert_non_null(test->gpu.backend);
    test->gpu.stream = cuda_backend_stream(test->gpu.backend);
    assert_true(cuda_backend_restore(test->gpu.backend, choices, &errors));
    test_residual();
    test_norm_dx();
    char *again = cuda_backend_choices(test->gpu.backend);
    assert_true(strstr(again, " & "));
    assert_null(strstr(again, " + "));
    assert_false(cuda_backend_restore(test->gpu.backend, "NT bf16 nonsense\n", &errors));
    assert_int_equal(errors.count, 1);
    errors_free(&errors);
    free(choices), free(again);
    cuda_device.wait(test->gpu.stream);
    cuda_backend_close(test->gpu.backend);
    test->gpu = before;
}

/* ---- head --------------------------------------------------------------------------------------------- */

typedef struct Heads {
    HeadChunk cpu, gpu;
    Both e, d, q, anchor, loss, alpha, beta, s, axg;
} Heads;

/* padding: the last rows, which have target 0 and no weight. */
static Heads make_head(int64_t padding)
{
    int64_t C = size.chunk, d = size.hidden;
    Heads h = {.e = result(C, padded_vocab()),
               .d = floats(C, 1),
               .q = floats(C, 1),
               .anchor = floats(C, 1),
               .loss = floats(C, 1),
               .alpha = floats(C, 1),
               .beta = floats(C, 1),
               .s = floats(C, 1),
               .axg = result(C, d)};
    Both x = activation(C, d), xg = activation(C, d), table = weight(padded_vocab(), d);
    memset((float *)table.cpu.data + size.vocab * d, 0,
           (size_t)((padded_vocab() - size.vocab) * d) * sizeof(float));
    upload(test, table);
    Both weights = floats(C, 1);
    Norms norm = norm_of(x);
    int32_t *targets = random_ids(test, C, size.vocab);
    for (int64_t i = 0; i < C; i++) {
        bool padded = i >= C - padding;
        ((float *)weights.cpu.data)[i] = padded || i % 5 == 3 ? 0.0f : 1.0f / (float)C;
        if (padded) targets[i] = 0;
    }
    upload(test, weights);
    int32_t *order = sorted_order(test, targets, C);
    h.cpu = (HeadChunk){.xg = xg.cpu,
                        .x = x.cpu,
                        .norm = norm.cpu,
                        .table = table.cpu,
                        .vocab = size.vocab,
                        .targets = targets,
                        .order = order,
                        .weights = weights.cpu.data,
                        .e = h.e.cpu,
                        .d = cpu_sums(h.d),
                        .q = cpu_sums(h.q),
                        .anchor = h.anchor.cpu.data,
                        .loss = h.loss.cpu.data,
                        .alpha = h.alpha.cpu.data,
                        .beta = h.beta.cpu.data,
                        .s = h.s.cpu.data,
                        .axg = h.axg.cpu};
    h.gpu = (HeadChunk){.xg = xg.gpu, .x = x.gpu, .norm = norm.gpu, .table = table.gpu, .vocab = size.vocab,
                        .targets = device_ints(test, targets, C), .order = device_ints(test, order, C),
                        .weights = weights.gpu.data, .e = h.e.gpu, .d = gpu_sums(h.d), .q = gpu_sums(h.q),
                        .anchor = h.anchor.gpu.data, .loss = h.loss.gpu.data, .alpha = h.alpha.gpu.data,
                        .beta = h.beta.gpu.data, .s = h.s.gpu.data, .axg = h.axg.gpu};
    return h;
}

static void test_head(void)
{
    int64_t C = size.chunk, d = size.hidden;
    Heads h = make_head(C / 4);
    cpu_ops.head(&test->cpu, &h.cpu);
    cuda_ops.head(&test->gpu, &h.gpu);
    /* Logits of size 1 are stored with an error of 2e-3, which is E's relative error. */
    check_both(test, "e", h.e, 1e-2);
    check_both(test, "d", h.d, 1e-2);
    check_both(test, "q", h.q, 2e-2);
    check_both(test, "anchor", h.anchor, ONE_ROUNDING);
    /* From here on both have the same E, so that the rest is compared by itself. */
    h.e.cpu.data = download(test, h.e.gpu);
    h.cpu.e = h.e.cpu;
    for (int i = 0; i < 2; i++) {
        Both sums = i ? h.q : h.d;
        memcpy(sums.cpu.data, download(test, sums.gpu), (size_t)C * sizeof(float));
    }
    StepStats cpu_stats = {0}, gpu_stats = {0}, *device_stats = device_take(test, sizeof gpu_stats);
    cuda_device.upload(test->gpu.stream, device_stats, &gpu_stats, sizeof gpu_stats);
    cpu_ops.head_loss(&test->cpu, &h.cpu, &cpu_stats);
    cuda_ops.head_loss(&test->gpu, &h.gpu, device_stats);
    cuda_device.download(test->gpu.stream, &gpu_stats, device_stats, sizeof gpu_stats);
    cuda_device.wait(test->gpu.stream);
    assert_true(fabs(gpu_stats.loss - cpu_stats.loss) <= EXACT * cpu_stats.loss);
    assert_int_equal(gpu_stats.clamped_rows, cpu_stats.clamped_rows);
    check_both(test, "loss", h.loss, EXACT);
    check_both(test, "alpha", h.alpha, EXACT);
    check_both(test, "beta", h.beta, EXACT);
    check_both(test, "s", h.s, EXACT);
    check_both(test, "axg", h.axg, ONE_ROUNDING);

    Both dx = result(C, d), dgamma = floats(1, d), gamma = input(test, 1, d, DTYPE_F32, 1);
    Both grad = floats(padded_vocab(), d);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        cpu_ops.head_dx(&test->cpu, dx.cpu, dgamma.cpu.data, &h.cpu, gamma.cpu.data, accumulate);
        cuda_ops.head_dx(&test->gpu, dx.gpu, dgamma.gpu.data, &h.gpu, gamma.gpu.data, accumulate);
        check_both(test, "dx", dx, TWO_ROUNDINGS);
        check_both(test, "dgamma", dgamma, TWO_ROUNDINGS);
        cpu_ops.head_dw(&test->cpu, grad.cpu, &h.cpu, accumulate);
        cuda_ops.head_dw(&test->gpu, grad.gpu, &h.gpu, accumulate);
        check_both(test, "grad", grad, ONE_ROUNDING);   /* axg was rounded on one side */
    }
}

static void test_head_forward_only(void)
{
    Heads h = make_head(0);
    cpu_ops.head_eval(&test->cpu, &h.cpu);
    cuda_ops.head_eval(&test->gpu, &h.gpu);
    check_both(test, "loss", h.loss, ONE_ROUNDING);
    Both logits = floats(size.chunk, size.vocab);
    cpu_ops.logits(&test->cpu, logits.cpu, &h.cpu);
    cuda_ops.logits(&test->gpu, logits.gpu, &h.gpu);
    check_both(test, "logits", logits, EXACT);
}

/* Targets that are nearly certain, and targets beyond the clamp: where a plain softmax loses its digits. */
static void test_head_extremes(void)
{
    Heads h = make_head(0);
    int64_t C = size.chunk, d = size.hidden;
    Both xg = {h.cpu.xg, h.gpu.xg};
    /* x g = +-c times the target's own row: logits of about +-c |row|^2 against noise of c |row| */
    for (int64_t i = 0; i < C; i++) {
        float *to = (float *)xg.cpu.data + i * d;
        const float *row = (const float *)h.cpu.table.data + h.cpu.targets[i] * d;
        float factor = i % 2 ? 20.0f : -400.0f;
        for (int64_t k = 0; k < d; k++) to[k] = factor * row[k];
    }
    upload(test, xg);
    memcpy(xg.cpu.data, download(test, xg.gpu), (size_t)(C * d) * sizeof(float));
    StepStats cpu_stats = {0}, gpu_stats = {0}, *device_stats = device_take(test, sizeof gpu_stats);
    cuda_device.upload(test->gpu.stream, device_stats, &gpu_stats, sizeof gpu_stats);
    cpu_ops.head(&test->cpu, &h.cpu);
    cuda_ops.head(&test->gpu, &h.gpu);
    cpu_ops.head_loss(&test->cpu, &h.cpu, &cpu_stats);
    cuda_ops.head_loss(&test->gpu, &h.gpu, device_stats);
    cuda_device.download(test->gpu.stream, &gpu_stats, device_stats, sizeof gpu_stats);
    cuda_device.wait(test->gpu.stream);
    assert_true(cpu_stats.clamped_rows > 0);
    assert_int_equal(gpu_stats.clamped_rows, cpu_stats.clamped_rows);
    /* A logit of 20 is stored with an error of 0.04, which is the relative error of a tiny loss. */
    const float *got = download(test, h.loss.gpu), *want = h.loss.cpu.data;
    for (int64_t i = 0; i < C; i++) assert_true(fabsf(got[i] - want[i]) <= (i % 2 ? 0.1f : 1e-2f) * want[i]);
}

static void head_losses(const Heads *h)
{
    StepStats cpu_stats = {0}, *gpu_stats = device_take(test, sizeof *gpu_stats);
    cuda_device.zero(test->gpu.stream, gpu_stats, sizeof *gpu_stats);
    cpu_ops.head(&test->cpu, &h->cpu);
    cuda_ops.head(&test->gpu, &h->gpu);
    cpu_ops.head_loss(&test->cpu, &h->cpu, &cpu_stats);
    cuda_ops.head_loss(&test->gpu, &h->gpu, gpu_stats);
}

/* A row that is not finite spoils its own loss, and no clamp hides it. */
static void test_head_nan(void)
{
    Heads h = make_head(0);
    int64_t C = size.chunk, d = size.hidden, spoilt = C / 2;
    Both xg = {h.cpu.xg, h.gpu.xg};
    ((float *)xg.cpu.data)[spoilt * d + d / 2] = NAN;
    upload(test, xg);
    for (int eval = 0; eval < 2; eval++) {
        if (eval) {
            cpu_ops.head_eval(&test->cpu, &h.cpu);
            cuda_ops.head_eval(&test->gpu, &h.gpu);
        } else {
            head_losses(&h);
        }
        const float *got = download(test, h.loss.gpu), *want = h.loss.cpu.data;
        for (int64_t i = 0; i < C; i++) {
            assert_int_equal(isnan(want[i]), i == spoilt);
            assert_int_equal(isnan(got[i]), i == spoilt);
        }
    }
}

/* r of a row of zeros is 1e15: what the target's place and the padding hold must not overflow with it. */
static void test_head_zero_row(void)
{
    Heads h = make_head(0);
    int64_t d = size.hidden, zero = size.chunk / 2;
    Both x = {h.cpu.x, h.gpu.x}, xg = {h.cpu.xg, h.gpu.xg};
    memset((float *)x.cpu.data + zero * d, 0, (size_t)d * sizeof(float));
    memset((float *)xg.cpu.data + zero * d, 0, (size_t)d * sizeof(float));
    upload(test, x);
    upload(test, xg);
    Norms norm = norm_of(x);
    h.cpu.norm = norm.cpu, h.gpu.norm = norm.gpu;
    h.cpu.norm.eps = h.gpu.norm.eps = 1e-30f;
    head_losses(&h);
    check_both(test, "d", h.d, 1e-2);
    check_both(test, "q", h.q, 2e-2);
    check_both(test, "loss", h.loss, 1e-2);
    cpu_ops.head_eval(&test->cpu, &h.cpu);
    cuda_ops.head_eval(&test->gpu, &h.gpu);
    check_both(test, "eval loss", h.loss, ONE_ROUNDING);
}

/* ---- attention ----------------------------------------------------------------------------------------- */

static void attention_case(bool documents)
{
    int64_t T = rows(), cols = (int64_t)size.heads * size.head_dim;
    Both qkv = activation(T, qkv_cols()), o = result(T, cols),
         lse = floats((int64_t)size.batch * size.heads, size.seq);
    Both d_o = activation(T, cols), dqkv = result(T, qkv_cols());
    AttentionShape cpu = {.batch = size.batch,
                          .seq = size.seq,
                          .heads = size.heads,
                          .kv_heads = size.kv_heads,
                          .head_dim = size.head_dim,
                          .deterministic = true},
                   gpu = cpu;
    int32_t *doc_start = host_take(test, (size_t)T * sizeof *doc_start);
    for (int64_t i = 0, start = 0; i < T; i++) {
        if (i % size.seq == 0) start = 0;
        else if (below(test, 9) == 0) start = i % size.seq;
        doc_start[i] = (int32_t)start;
    }
    if (documents) cpu.doc_start = doc_start, gpu.doc_start = device_ints(test, doc_start, T);
    test->cpu.workspace_bytes =
        cpu_ops.workspace_bytes(&test->cpu, T, size.hidden, size.ffn, qkv_cols(), 1, 128, cpu);
    test->cpu.workspace = host_take(test, test->cpu.workspace_bytes);
    cpu_ops.attention(&test->cpu, o.cpu, lse.cpu.data, qkv.cpu, cpu);
    cuda_ops.attention(&test->gpu, o.gpu, lse.gpu.data, qkv.gpu, gpu);
    check_both(test, "o", o, 4e-3);
    check_both(test, "lse", lse, 1e-3);
    cpu_ops.attention_bwd(&test->cpu, dqkv.cpu, d_o.cpu, qkv.cpu, o.cpu, lse.cpu.data, cpu);
    cuda_ops.attention_bwd(&test->gpu, dqkv.gpu, d_o.gpu, qkv.gpu, o.gpu, lse.gpu.data, gpu);
    check_both(test, "dqkv", dqkv, 8e-3);
}

static void test_attention(void) { attention_case(false); }
static void test_attention_documents(void) { attention_case(true); }

static void test_attention_cached(void)
{
    int64_t kv_cols = (int64_t)size.kv_heads * size.head_dim, cols = (int64_t)size.heads * size.head_dim;
    int64_t steps[] = {size.seq / 2, 1, 3}, past = 0, most = size.seq + 8;
    Both k = result(most, kv_cols), v = result(most, kv_cols);
    AttentionShape shape = {.batch = 1, .seq = (int)most, .heads = size.heads, .kv_heads = size.kv_heads,
                            .head_dim = size.head_dim};
    test->cpu.workspace_bytes =
        cpu_ops.workspace_bytes(&test->cpu, most, size.hidden, size.ffn, qkv_cols(), 1, 128, shape);
    test->cpu.workspace = host_take(test, test->cpu.workspace_bytes);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; past += steps[i++]) {
        Both qkv = activation(steps[i], qkv_cols()), o = result(steps[i], cols);
        shape.seq = (int)steps[i];
        cpu_ops.attention_cached(&test->cpu, o.cpu, qkv.cpu, k.cpu, v.cpu, past, shape);
        cuda_ops.attention_cached(&test->gpu, o.gpu, qkv.gpu, k.gpu, v.gpu, past, shape);
        check_both(test, "o", o, ONE_ROUNDING);
    }
}

/* ---- weight pass --------------------------------------------------------------------------------------- */

static void
weight_case(int64_t n, int64_t cols, RowLayout layout, bool folded, int64_t working_rows, Dtype moments)
{
    Both master = input(test, n, cols, DTYPE_F32, fan_in(cols)),
         grad = input(test, working_rows, cols, DTYPE_F32, 1);
    Both m = input(test, n, cols, moments, 1), v = input(test, n, cols, moments, 1);
    Both working = result(working_rows, cols), gamma = input(test, 1, cols, DTYPE_F32, 1);
    Both before = input(test, 1, cols, DTYPE_F32, 1), dgamma = floats(1, cols), sums = floats(1, 2);
    for (int64_t i = 0; i < n * cols; i++) ((float *)v.cpu.data)[i] = fabsf(((float *)v.cpu.data)[i]);
    upload(test, v);
    Weight cpu = {.name = "w",
                  .master = master.cpu,
                  .m = m.cpu,
                  .v = v.cpu,
                  .grad = grad.cpu,
                  .working = working.cpu,
                  .rows = layout,
                  .decay = true},
           gpu = cpu;
    gpu.master = master.gpu, gpu.m = m.gpu, gpu.v = v.gpu, gpu.grad = grad.gpu, gpu.working = working.gpu;
    if (folded) {
        cpu.gamma = gamma.cpu.data, cpu.gamma_before = before.cpu.data, cpu.dgamma = dgamma.cpu.data;
        gpu.gamma = gamma.gpu.data, gpu.gamma_before = before.gpu.data, gpu.dgamma = dgamma.gpu.data;
    }
    test->cpu.workspace_bytes = (size_t)1 << 30;
    test->cpu.workspace = host_take(test, test->cpu.workspace_bytes);
    cpu_ops.fold(&test->cpu, &cpu);
    cuda_ops.fold(&test->gpu, &gpu);
    check_both(test, "folded", working, ONE_ROUNDING);
    cpu_ops.grad_norm(&test->cpu, &cpu, sums.cpu.data);
    cuda_ops.grad_norm(&test->gpu, &gpu, sums.gpu.data);
    if (folded) check_both(test, "dgamma", dgamma, EXACT);

    Hyper hyper = {.lr = 1e-2f,
                   .beta1 = 0.9f,
                   .beta2 = 0.95f,
                   .eps = 1e-8f,
                   .weight_decay = 0.1f,
                   .bias1 = 0.1f,
                   .bias2 = 0.05f,
                   .clip = 1,
                   .seed = 7,
                   .step = 3},
          *gpu_hyper = device_take(test, sizeof hyper);
    StepStats cpu_stats = {.loss = 1}, gpu_stats = cpu_stats,
              *device_stats = device_take(test, sizeof gpu_stats);
    cuda_device.upload(test->gpu.stream, gpu_hyper, &hyper, sizeof hyper);
    cuda_device.upload(test->gpu.stream, device_stats, &gpu_stats, sizeof gpu_stats);
    cpu_ops.clip(&test->cpu, sums.cpu.data, 1, &hyper, &cpu_stats);
    cuda_ops.clip(&test->gpu, sums.gpu.data, 1, gpu_hyper, device_stats);
    cpu_ops.adamw(&test->cpu, &cpu, &hyper, &cpu_stats);
    cuda_ops.adamw(&test->gpu, &gpu, gpu_hyper, device_stats);
    cuda_device.download(test->gpu.stream, &gpu_stats, device_stats, sizeof gpu_stats);
    cuda_device.wait(test->gpu.stream);
    assert_true(fabs(gpu_stats.grad_norm - cpu_stats.grad_norm) <= EXACT * cpu_stats.grad_norm);
    assert_true(fabs(gpu_stats.clip_factor - cpu_stats.clip_factor) <= EXACT * cpu_stats.clip_factor);
    assert_int_equal(gpu_stats.skipped, 0);
    check_both(test, "master", master, EXACT);
    check_both(test, "working", working, ONE_ROUNDING);
    /* The CPU keeps f32 moments here; BF16 ones differ from them by one stochastic rounding. */
    check_both(test, "m", m, moments == DTYPE_F32 ? EXACT : 4e-3);
    check_both(test, "v", v, moments == DTYPE_F32 ? EXACT : 4e-3);

    /* A gradient that is not finite changes nothing. */
    ((float *)grad.cpu.data)[cols / 2] = INFINITY;
    upload(test, grad);
    cuda_ops.grad_norm(&test->gpu, &gpu, sums.gpu.data);
    cuda_ops.clip(&test->gpu, sums.gpu.data, 1, gpu_hyper, device_stats);
    cuda_ops.adamw(&test->gpu, &gpu, gpu_hyper, device_stats);
    cuda_device.download(test->gpu.stream, &gpu_stats, device_stats, sizeof gpu_stats);
    cuda_device.wait(test->gpu.stream);
    assert_int_equal(gpu_stats.skipped, 1);
    check_both(test, "skipped", master, EXACT);
    assert_int_equal(cuda_ops.count_nonfinite(&test->gpu, grad.gpu), 1);
    assert_int_equal(cuda_ops.count_nonfinite(&test->gpu, working.gpu), 0);
}

static void test_weights(void)
{
    RowLayout qkv = {.order = ROWS_QKV, .head_dim = size.head_dim,
                     .rotated = (int64_t)(size.heads + size.kv_heads) * size.head_dim};
    RowLayout gate_up = {.order = ROWS_GATE_UP, .ffn = size.ffn}, plain = {.order = ROWS_PLAIN};
    weight_case(qkv_cols(), size.hidden, qkv, true, qkv_cols(), DTYPE_F32);
    weight_case(2 * size.ffn, size.hidden, gate_up, true, 2 * size.ffn, DTYPE_BF16);
    int64_t n = size.vocab > 9000 ? 9000 : size.vocab;
    weight_case(n, size.hidden, plain, false, (n + 127) / 128 * 128, DTYPE_F32);
}

static void test_norm_weight(void)
{
    int64_t d = size.hidden;
    Both master = input(test, 1, d, DTYPE_F32, 1), grad = input(test, 1, d, DTYPE_F32, 1),
         m = input(test, 1, d, DTYPE_F32, 1);
    Both v = input(test, 1, d, DTYPE_F32, 0), keep = floats(1, d), old = floats(1, d);
    memcpy(old.cpu.data, master.cpu.data, (size_t)d * sizeof(float));
    Weight cpu = {.name = "norm", .master = master.cpu, .m = m.cpu, .v = v.cpu, .grad = grad.cpu,
                  .keep_before = keep.cpu.data}, gpu = cpu;
    gpu.master = master.gpu, gpu.m = m.gpu, gpu.v = v.gpu, gpu.grad = grad.gpu,
    gpu.keep_before = keep.gpu.data;
    Hyper hyper = {.lr = 1e-2f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .bias1 = 1, .bias2 = 1};
    StepStats stats = {.clip_factor = 0.5};
    Hyper *gpu_hyper = device_take(test, sizeof hyper);
    StepStats *gpu_stats = device_take(test, sizeof stats);
    cuda_device.upload(test->gpu.stream, gpu_hyper, &hyper, sizeof hyper);
    cuda_device.upload(test->gpu.stream, gpu_stats, &stats, sizeof stats);
    cpu_ops.adamw(&test->cpu, &cpu, &hyper, &stats);
    cuda_ops.adamw(&test->gpu, &gpu, gpu_hyper, gpu_stats);
    check_both(test, "master", master, EXACT);
    keep.cpu = old.cpu;
    check_both(test, "kept", keep, 0);
}

/* ---- all of them at all sizes -------------------------------------------------------------------------- */

static const struct { const char *name; void (*run)(void); bool cheap; } cases[] = {
    {"embed", test_embed, true},
    {"embed runs", test_embed_runs, false},
    {"qkv", test_qkv, true},
    {"residual", test_residual, true},
    {"gate_up", test_gate_up, true},
    {"down_dx", test_down_dx, true},
    {"norm_dx", test_norm_dx, true},
    {"products", test_products, true},
    {"restored choices", test_restored_choices, true},
    {"head", test_head, true},
    {"head forward only", test_head_forward_only, true},
    {"head extremes", test_head_extremes, false},
    {"head NaN", test_head_nan, false},
    {"head zero row", test_head_zero_row, false},
    {"attention", test_attention, true},
    {"attention documents", test_attention_documents, true},
    {"attention cached", test_attention_cached, true},
    {"weights", test_weights, true},
    {"norm weight", test_norm_weight, true},
};
enum { CASES = sizeof cases / sizeof *cases };

/* cmocka hands over the index of the case; the sizes are the group's. */
static void run_case(void **state)
{
    size_t index = (size_t)*state;
    gpu_test_reset(test);
    printf("  %s, hidden %lld\n", cases[index].name, (long long)size.hidden);
    fflush(stdout);
    cases[index].run();
}

static int run_sizes(Sizes sizes, bool real, bool reference)
{
    struct CMUnitTest list[CASES];
    char names[CASES][96];
    int count = 0;
    size = sizes;
    for (size_t i = 0; i < CASES; i++) {
        if (real && !cases[i].cheap) continue;
        if (reference && strncmp(cases[i].name, "attention", 9)) continue;
        snprintf(names[count], sizeof names[count], "%s, hidden %lld%s", cases[i].name,
                 (long long)sizes.hidden, reference ? ", reference attention" : "");
        list[count] =
            (struct CMUnitTest){.name = names[count], .test_func = run_case, .initial_state = (void *)i};
        count++;
    }
    return _cmocka_run_group_tests("gpu ops", list, (size_t)count, NULL, NULL);
}

int main(int argc, char **argv)
{
    bool small = argc > 1 && !strcmp(argv[1], "small");     /* what compute-sanitizer runs */
    int failed = 0;
    size_t bytes = small ? (size_t)3 << 30 : (size_t)12 << 30;
    test = gpu_test_create(CUDA_ATTENTION_CUDNN, true, bytes);
    printf("%s\n", cuda_backend_versions(test->gpu.backend));
    for (size_t i = 0; i < sizeof odd_sizes / sizeof *odd_sizes; i++)
        failed += run_sizes(odd_sizes[i], false, false);
    for (size_t i = 0; !small && i < sizeof real_sizes / sizeof *real_sizes; i++)
        failed += run_sizes(real_sizes[i], true, false);
    gpu_test_destroy(test);

    test = gpu_test_create(CUDA_ATTENTION_REFERENCE, true, bytes);
    for (size_t i = 0; i < sizeof odd_sizes / sizeof *odd_sizes; i++)
        failed += run_sizes(odd_sizes[i], false, true);
    for (size_t i = 0; i < sizeof wide_heads / sizeof *wide_heads; i++)
        failed += run_sizes(wide_heads[i], false, true);
    if (!small) failed += run_sizes(many_sequences, false, true) + run_sizes(real_sizes[0], true, true);
    gpu_test_destroy(test);
    return failed != 0;
}
