/* Every op of the GPU against the CPU's, on the same numbers: odd sizes, and the widths of real models. */
#include "kernels/rounding.h"
#include "tests/gpu/head_cases.h"
#include <stdio.h>

static const OpSizes odd_sizes[] = {
    {3, 7, 3, 1, 6, 13, 24, 131, 21},
    {2, 33, 4, 2, 16, 72, 136, 1000, 50},
    {1, 129, 5, 5, 20, 100, 264, 77, 129},
    {2, 130, 6, 3, 64, 384, 1024, 4101, 200},
};
/* For attention alone: heads wider than its kernels' stretches of columns. */
static const OpSizes wide_heads[] = {
    {2, 37, 3, 1, 302, 40, 72, 300, 30},
    {1, 45, 4, 2, 1024, 56, 40, 65, 20},
};
/* More sequences than the second and third dimension of a grid take. */
static const OpSizes many_sequences = {70000, 2, 1, 1, 2, 8, 8, 128, 8};
static const OpSizes real_sizes[] = {
    {2, 512, 32, 8, 64, 2048, 8192, 128256, 256},       /* 1B */
    {1, 512, 32, 8, 128, 4096, 14336, 128256, 128},     /* 8B */
};

typedef struct Ropes { Rope cpu, gpu; } Ropes;
static Ropes make_rope(GpuTest *test)
{
    int64_t positions = 2 * test->size.seq, half = test->size.head_dim / 2;
    Both table = floats(test, positions, test->size.head_dim);
    float *to = table.cpu.data;
    for (int64_t p = 0; p < positions; p++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)p * pow(10000, -(double)i / (double)half);
            *to++ = (float)cos(angle), *to++ = (float)sin(angle);
        }
    upload(test, table);
    int32_t *pos = random_ids(test, rows(test), positions);
    int64_t rotated = (int64_t)(test->size.heads + test->size.kv_heads) * test->size.head_dim;
    return (Ropes){{table.cpu.data, pos, test->size.head_dim, rotated},
                   {table.gpu.data, device_ints(test, pos, rows(test)), test->size.head_dim, rotated}};
}

/* ---- forward and backward ops ----------------------------------------------------------------------- */

static void test_embed(GpuTest *test)
{
    Both x = result(test, rows(test), test->size.hidden), sums = floats(test, rows(test), 1),
         table = weight(test, padded_vocab(test), test->size.hidden);
    int32_t *tokens = random_ids(test, rows(test), test->size.vocab),
            *order = sorted_order(test, tokens, rows(test));
    int32_t *gpu_tokens = device_ints(test, tokens, rows(test)),
            *gpu_order = device_ints(test, order, rows(test));
    cpu_ops.embed(&test->cpu, x.cpu, cpu_sums(sums), tokens, table.cpu);
    cuda_ops.embed(&test->gpu, x.gpu, gpu_sums(sums), gpu_tokens, table.gpu);
    check_both(test, "x", x, 0);
    check_both(test, "sumsq", sums, EXACT);

    Both grad = floats(test, padded_vocab(test), test->size.hidden),
         dx = activation(test, rows(test), test->size.hidden);
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        cpu_ops.embed_dw(&test->cpu, grad.cpu, tokens, order, dx.cpu, accumulate);
        cuda_ops.embed_dw(&test->gpu, grad.gpu, gpu_tokens, gpu_order, dx.gpu, accumulate);
        check_both(test, accumulate ? "grad added" : "grad", grad, REORDERED);
    }
}

/* Runs that end anywhere in the stretches a warp looks ahead and back, and the long run of padding. */
static void test_embed_runs(GpuTest *test)
{
    enum { PADDING = 1000, MOST = 70, ROW_BY_ROW = 32 };
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
    Both grad = floats(test, 128, test->size.hidden), dx = activation(test, n, test->size.hidden);
    cpu_ops.embed_dw(&test->cpu, grad.cpu, tokens, order, dx.cpu, false);
    cuda_ops.embed_dw(&test->gpu, grad.gpu, device_ints(test, tokens, n), device_ints(test, order, n), dx.gpu,
                      false);
    check_both(test, "grad", grad, REORDERED);
    /* id is the length: those are added up row by row, as on the CPU */
    Both shorter = {grad.cpu, grad.gpu};
    shorter.cpu.data = (float *)grad.cpu.data + grad.cpu.stride, shorter.cpu.rows = ROW_BY_ROW - 1;
    shorter.gpu.data = (float *)grad.gpu.data + grad.gpu.stride, shorter.gpu.rows = ROW_BY_ROW - 1;
    check_both(test, "shorter runs", shorter, 0);
}

static void test_qkv(GpuTest *test)
{
    Both qkv = result(test, rows(test), qkv_cols(test)), x = activation(test, rows(test), test->size.hidden),
         w = weight(test, qkv_cols(test), test->size.hidden);
    Norms norm = norm_of(test, x);
    Ropes rope = make_rope(test);
    cpu_ops.qkv(&test->cpu, qkv.cpu, x.cpu, w.cpu, norm.cpu, rope.cpu);
    cuda_ops.qkv(&test->gpu, qkv.gpu, x.gpu, w.gpu, norm.gpu, rope.gpu);
    check_both(test, "qkv", qkv, TWO_ROUNDINGS);

    Both dqkv = activation(test, rows(test), qkv_cols(test)),
         z = activation(test, rows(test), qkv_cols(test)), zdz = floats(test, rows(test), 1);
    cpu_ops.qkv_grad(&test->cpu, dqkv.cpu, cpu_sums(zdz), z.cpu, norm.cpu, rope.cpu);
    cuda_ops.qkv_grad(&test->gpu, dqkv.gpu, gpu_sums(zdz), z.gpu, norm.gpu, rope.gpu);
    check_both(test, "dqkv", dqkv, ONE_ROUNDING);
    check_both(test, "zdz", zdz, 1e-4);
}

static void test_residual(GpuTest *test)
{
    Both out = result(test, rows(test), test->size.hidden), sums = floats(test, rows(test), 1),
         xg = result(test, rows(test), test->size.hidden);
    Both a = activation(test, rows(test), test->size.ffn),
         w = weight(test, test->size.hidden, test->size.ffn),
         x = activation(test, rows(test), test->size.hidden);
    Both gamma = input(test, 1, test->size.hidden, DTYPE_F32, 1);
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

static void test_gate_up(GpuTest *test)
{
    Both z = result(test, rows(test), 2 * test->size.ffn), y = result(test, rows(test), test->size.ffn),
         x = activation(test, rows(test), test->size.hidden);
    Both w = weight(test, 2 * test->size.ffn, test->size.hidden);
    Norms norm = norm_of(test, x);
    cpu_ops.gate_up(&test->cpu, z.cpu, y.cpu, x.cpu, w.cpu, norm.cpu);
    cuda_ops.gate_up(&test->gpu, z.gpu, y.gpu, x.gpu, w.gpu, norm.gpu);
    check_both(test, "z", z, TWO_ROUNDINGS);
    check_both(test, "y", y, 6e-3);     /* both factors have been rounded */
}

static void test_down_dx(GpuTest *test)
{
    Both dz = result(test, rows(test), 2 * test->size.ffn), y = result(test, rows(test), test->size.ffn),
         zdz = floats(test, rows(test), 1);
    Both dx = activation(test, rows(test), test->size.hidden),
         z = activation(test, rows(test), 2 * test->size.ffn);
    Both w = input(test, test->size.hidden, test->size.ffn, DTYPE_BF16, fan_in(test->size.hidden));
    Norms norm = norm_of(test, activation(test, rows(test), test->size.hidden));
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

static void test_norm_dx(GpuTest *test)
{
    Both out = result(test, rows(test), test->size.hidden),
         dz = activation(test, rows(test), 2 * test->size.ffn),
         x = activation(test, rows(test), test->size.hidden);
    Both w = input(test, 2 * test->size.ffn, test->size.hidden, DTYPE_BF16, fan_in(2 * test->size.ffn));
    Both residual = activation(test, rows(test), test->size.hidden),
         zdz = input(test, rows(test), 1, DTYPE_F32, (float)test->size.hidden);
    Norms norm = norm_of(test, x);
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

/* What comes off through the norm can be below the last digit of what it comes off from, and would be lost where
 * that is rounded first. Here it is a thousandth of the residual's gradient, and the product a tenth, as in upper
 * layers; how much of it arrives shows in the mean over all elements. Simulated, with the sum rounded first: 0.67. */
static void test_norm_dx_small(GpuTest *test)
{
    enum { ROWS = 2000 };
    int64_t d = test->size.hidden, n = qkv_cols(test);
    Both dz = activation(test, ROWS, n), w = input(test, n, d, DTYPE_BF16, 0.1f * fan_in(n));
    Both x = activation(test, ROWS, d), dx = activation(test, ROWS, d);
    Both whole = result(test, ROWS, d), out = result(test, ROWS, d);
    Both zdz = input(test, ROWS, 1, DTYPE_F32, 1e-3f * (float)d), none = input(test, ROWS, 1, DTYPE_F32, 0);
    Norms norm = norm_of(test, x);
    cpu_ops.norm_dx(&test->cpu, OP_QKV_DX, whole.cpu, dz.cpu, w.cpu, dx.cpu, x.cpu, norm.cpu, cpu_sums(none));
    cpu_ops.norm_dx(&test->cpu, OP_QKV_DX, out.cpu, dz.cpu, w.cpu, dx.cpu, x.cpu, norm.cpu, cpu_sums(zdz));
    cuda_ops.norm_dx(&test->gpu, OP_QKV_DX, dx.gpu, dz.gpu, w.gpu, dx.gpu, x.gpu, norm.gpu, gpu_sums(zdz));
    const float *got = download(test, dx.gpu), *want = out.cpu.data, *before = whole.cpu.data;
    double arrived = 0, wanted = 0;
    for (int64_t i = 0; i < ROWS * d; i++) {
        double off = before[i] - want[i];
        arrived += off * (before[i] - got[i]);
        wanted += off * off;
    }
    printf("    of a thousandth %.3f arrive\n", arrived / wanted);
    assert_true(fabs(arrived / wanted - 1) < 0.1);
}

static void test_products(GpuTest *test)
{
    int64_t cols = (int64_t)test->size.heads * test->size.head_dim;
    Both d_o = result(test, rows(test), cols), dx = activation(test, rows(test), test->size.hidden),
         a = activation(test, rows(test), cols);
    Both w = input(test, test->size.hidden, cols, DTYPE_BF16, fan_in(test->size.hidden)),
         grad = floats(test, test->size.hidden, cols);
    cpu_ops.out_dx(&test->cpu, d_o.cpu, dx.cpu, w.cpu);
    cuda_ops.out_dx(&test->gpu, d_o.gpu, dx.gpu, w.gpu);
    check_both(test, "do", d_o, ONE_ROUNDING);
    Both sums = floats(test, 1, 2);   /* one double */
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
static void test_restored_choices(GpuTest *test)
{
    test_residual(test);
    char *choices = cuda_backend_choices(test->gpu.backend);
    for (char *at = choices; (at = strstr(at, " + "));) at[1] = '&';
    assert_non_null(strstr(choices, " & "));
    CudaOptions options = {0};
    Errors errors = {0};
    OpContext before = test->gpu;
    test->gpu.backend = cuda_backend_open(&options, &errors);
    assert_non_null(test->gpu.backend);
    test->gpu.stream = cuda_backend_stream(test->gpu.backend);
    assert_true(cuda_backend_restore(test->gpu.backend, choices, &errors));
    test_residual(test);
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

/* ---- attention ----------------------------------------------------------------------------------------- */

static void attention_case(GpuTest *test, bool documents, bool deterministic)
{
    int64_t T = rows(test), cols = (int64_t)test->size.heads * test->size.head_dim;
    Both qkv = activation(test, T, qkv_cols(test)), o = result(test, T, cols),
         lse = floats(test, (int64_t)test->size.batch * test->size.heads, test->size.seq);
    Both d_o = activation(test, T, cols), dqkv = result(test, T, qkv_cols(test));
    AttentionShape cpu = {.batch = test->size.batch,
                          .seq = test->size.seq,
                          .heads = test->size.heads,
                          .kv_heads = test->size.kv_heads,
                          .head_dim = test->size.head_dim,
                          .deterministic = deterministic},
                   gpu = cpu;
    int32_t *doc_start = host_take(test, (size_t)T * sizeof *doc_start);
    for (int64_t i = 0, start = 0; i < T; i++) {
        if (i % test->size.seq == 0) start = 0;
        else if (below(test, 9) == 0) start = i % test->size.seq;
        doc_start[i] = (int32_t)start;
    }
    if (documents) cpu.doc_start = doc_start, gpu.doc_start = device_ints(test, doc_start, T);
    test->cpu.workspace_bytes = cpu_ops.workspace_bytes(&test->cpu, T, test->size.hidden, test->size.ffn,
                                                        qkv_cols(test), 1, 128, cpu);
    test->cpu.workspace = host_take(test, test->cpu.workspace_bytes);
    cpu_ops.attention(&test->cpu, o.cpu, lse.cpu.data, qkv.cpu, cpu);
    cuda_ops.attention(&test->gpu, o.gpu, lse.gpu.data, qkv.gpu, gpu);
    check_both(test, "o", o, 4e-3);
    check_both(test, "lse", lse, 1e-3);
    cpu_ops.attention_bwd(&test->cpu, dqkv.cpu, d_o.cpu, qkv.cpu, o.cpu, lse.cpu.data, cpu);
    cuda_ops.attention_bwd(&test->gpu, dqkv.gpu, d_o.gpu, qkv.gpu, o.gpu, lse.gpu.data, gpu);
    check_both(test, "dqkv", dqkv, 8e-3);
}

static void test_attention(GpuTest *test) { attention_case(test, false, false); }
static void test_attention_deterministic(GpuTest *test) { attention_case(test, false, true); }
static void test_attention_documents(GpuTest *test) { attention_case(test, true, true); }

static void test_attention_cached(GpuTest *test)
{
    int64_t kv_cols = (int64_t)test->size.kv_heads * test->size.head_dim,
            cols = (int64_t)test->size.heads * test->size.head_dim;
    int64_t steps[] = {test->size.seq / 2, 1, 3}, past = 0, most = test->size.seq + 8;
    Both k = result(test, most, kv_cols), v = result(test, most, kv_cols);
    AttentionShape shape = {.batch = 1,
                            .seq = (int)most,
                            .heads = test->size.heads,
                            .kv_heads = test->size.kv_heads,
                            .head_dim = test->size.head_dim};
    test->cpu.workspace_bytes = cpu_ops.workspace_bytes(&test->cpu, most, test->size.hidden, test->size.ffn,
                                                        qkv_cols(test), 1, 128, shape);
    test->cpu.workspace = host_take(test, test->cpu.workspace_bytes);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; past += steps[i++]) {
        Both qkv = activation(test, steps[i], qkv_cols(test)), o = result(test, steps[i], cols);
        shape.seq = (int)steps[i];
        cpu_ops.attention_cached(&test->cpu, o.cpu, qkv.cpu, k.cpu, v.cpu, past, shape);
        cuda_ops.attention_cached(&test->gpu, o.gpu, qkv.gpu, k.gpu, v.gpu, past, shape);
        check_both(test, "o", o, ONE_ROUNDING);
    }
}

/* ---- weight pass --------------------------------------------------------------------------------------- */

/* Moments in BF16 are what the CPU keeps in f32, rounded by the same random bits. The two may differ in the last bit before
 * that, which seldom decides. */
static void check_rounded(GpuTest *test, Both moment, const Hyper *hyper, int shift)
{
    const float *got = download(test, moment.gpu), *want = moment.cpu.data;
    const uint32_t key = rounding_key(hyper->seed, hyper->step);
    const int64_t n = moment.cpu.rows * moment.cpu.cols;
    int64_t other = 0;
    for (int64_t i = 0; i < n; i++)
        other += got[i] != bf16_to_float(bf16_round_stochastic(want[i], rounding_bits(key, i) >> shift));
    assert_in_range(other, 0, n / 1000);
}

static void weight_case(GpuTest *test, int64_t n, int64_t cols, RowLayout layout, bool folded,
                        int64_t working_rows, Dtype moments)
{
    Both master = input(test, n, cols, DTYPE_F32, fan_in(cols)),
         grad = input(test, working_rows, cols, DTYPE_F32, 1);
    Both m = input(test, n, cols, moments, 1), v = input(test, n, cols, moments, 1);
    Both working = result(test, working_rows, cols), gamma = input(test, 1, cols, DTYPE_F32, 1);
    Both before = input(test, 1, cols, DTYPE_F32, 1), dgamma = floats(test, 1, cols),
         sums = floats(test, 1, 2);
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
    if (moments == DTYPE_BF16) check_rounded(test, m, &hyper, 0), check_rounded(test, v, &hyper, 16);

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

static void test_weights(GpuTest *test)
{
    RowLayout qkv = {.order = ROWS_QKV, .head_dim = test->size.head_dim,
                     .rotated = (int64_t)(test->size.heads + test->size.kv_heads) * test->size.head_dim};
    RowLayout gate_up = {.order = ROWS_GATE_UP, .ffn = test->size.ffn}, plain = {.order = ROWS_PLAIN};
    weight_case(test, qkv_cols(test), test->size.hidden, qkv, true, qkv_cols(test), DTYPE_F32);
    weight_case(test, 2 * test->size.ffn, test->size.hidden, gate_up, true, 2 * test->size.ffn, DTYPE_BF16);
    int64_t n = test->size.vocab > 9000 ? 9000 : test->size.vocab;
    weight_case(test, n, test->size.hidden, plain, false, (n + 127) / 128 * 128, DTYPE_F32);
}

static void test_norm_weight(GpuTest *test)
{
    int64_t d = test->size.hidden;
    Both master = input(test, 1, d, DTYPE_F32, 1), grad = input(test, 1, d, DTYPE_F32, 1),
         m = input(test, 1, d, DTYPE_F32, 1);
    Both v = input(test, 1, d, DTYPE_F32, 0), keep = floats(test, 1, d), old = floats(test, 1, d);
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

static const struct { const char *name; void (*run)(GpuTest *test); bool cheap; } cases[] = {
    {"embed", test_embed, true},
    {"embed runs", test_embed_runs, false},
    {"qkv", test_qkv, true},
    {"residual", test_residual, true},
    {"gate_up", test_gate_up, true},
    {"down_dx", test_down_dx, true},
    {"norm_dx", test_norm_dx, true},
    {"norm_dx, small", test_norm_dx_small, false},
    {"products", test_products, true},
    {"restored choices", test_restored_choices, true},
    {"head", test_head, true},
    {"head forward only", test_head_forward_only, true},
    {"head extremes", test_head_extremes, false},
    {"head NaN", test_head_nan, false},
    {"head zero row", test_head_zero_row, false},
    {"attention", test_attention, true},
    {"attention deterministic", test_attention_deterministic, true},
    {"attention documents", test_attention_documents, true},
    {"attention cached", test_attention_cached, true},
    {"weights", test_weights, true},
    {"norm weight", test_norm_weight, true},
};
enum { CASES = sizeof cases / sizeof *cases };

typedef struct Run {
    GpuTest *test;
    size_t   index;     /* of the case */
} Run;

static void run_case(void **state)
{
    const Run *run = *state;
    gpu_test_reset(run->test);
    printf("  %s, hidden %lld\n", cases[run->index].name, (long long)run->test->size.hidden);
    fflush(stdout);
    cases[run->index].run(run->test);
}

static int run_sizes(GpuTest *test, OpSizes sizes, bool real, bool reference)
{
    struct CMUnitTest list[CASES];
    Run runs[CASES];
    char names[CASES][96];
    int count = 0;
    test->size = sizes;
    for (size_t i = 0; i < CASES; i++) {
        if (real && !cases[i].cheap) continue;
        if (reference && strncmp(cases[i].name, "attention", 9)) continue;
        snprintf(names[count], sizeof names[count], "%s, hidden %lld%s", cases[i].name,
                 (long long)sizes.hidden, reference ? ", reference attention" : "");
        runs[count] = (Run){test, i};
        list[count] = (struct CMUnitTest){
            .name = names[count], .test_func = run_case, .initial_state = &runs[count]};
        count++;
    }
    return _cmocka_run_group_tests("gpu ops", list, (size_t)count, NULL, NULL);
}

/* From too little workspace for one sequence to enough for all of them, by factors of two: in between, the backward
 * pass walks over the batch in steps. */
static void attention_fits_any_workspace(void **state)
{
    GpuTest *test = *state;
    const OpContext enough = test->gpu;
    test->size = (OpSizes){
        .batch = 6, .seq = 640, .heads = 4, .kv_heads = 2, .head_dim = 64, .hidden = 256, .ffn = 512};
    for (size_t room = (size_t)1 << 20; room <= (size_t)128 << 20; room *= 2) {
        Errors errors = {0};
        CudaOptions options = {.attention = CUDA_ATTENTION_CUDNN};
        gpu_test_reset(test);
        test->gpu.backend = cuda_backend_open(&options, &errors);     /* plans are made once a backend */
        assert_non_null(test->gpu.backend);
        test->gpu.stream = cuda_backend_stream(test->gpu.backend);
        test->gpu.workspace_bytes = ((size_t)32 << 20) + room;
        attention_case(test, false, true);
        cuda_device.wait(test->gpu.stream);
        cuda_backend_close(test->gpu.backend);
        test->gpu = enough;
    }
}

int main(int argc, char **argv)
{
    bool small = argc > 1 && !strcmp(argv[1], "small");     /* what compute-sanitizer runs */
    int failed = 0;
    const size_t host_bytes = small ? (size_t)6 << 30 : (size_t)24 << 30;
    GpuTest *test = gpu_test_create(CUDA_ATTENTION_CUDNN, host_bytes);
    printf("%s\n", cuda_backend_versions(test->gpu.backend));
    for (size_t i = 0; i < sizeof odd_sizes / sizeof *odd_sizes; i++)
        failed += run_sizes(test, odd_sizes[i], false, false);
    for (size_t i = 0; !small && i < sizeof real_sizes / sizeof *real_sizes; i++)
        failed += run_sizes(test, real_sizes[i], true, false);
    const struct CMUnitTest once[] = {cmocka_unit_test_prestate(attention_fits_any_workspace, test)};
    if (!small) failed += cmocka_run_group_tests_name("gpu ops", once, NULL, NULL);
    gpu_test_destroy(test);

    test = gpu_test_create(CUDA_ATTENTION_REFERENCE, host_bytes);
    for (size_t i = 0; i < sizeof odd_sizes / sizeof *odd_sizes; i++)
        failed += run_sizes(test, odd_sizes[i], false, true);
    for (size_t i = 0; i < sizeof wide_heads / sizeof *wide_heads; i++)
        failed += run_sizes(test, wide_heads[i], false, true);
    if (!small)
        failed += run_sizes(test, many_sequences, false, true) + run_sizes(test, real_sizes[0], true, true);
    gpu_test_destroy(test);
    return failed != 0;
}
