/* The head's ops on the GPU against the CPU's: losses, gradients, extremes. */
#include "tests/gpu/head_cases.h"

typedef struct Heads {
    HeadChunk cpu, gpu;
    Both e, d, q, anchor, loss, alpha, beta, s, axg;
} Heads;

/* padding: the last rows, which have target 0 and no weight. */
static Heads make_head(GpuTest *test, int64_t padding)
{
    int64_t C = test->size.chunk, d = test->size.hidden;
    Heads h = {.e = result(test, C, padded_vocab(test)),
               .d = floats(test, C, 1),
               .q = floats(test, C, 1),
               .anchor = floats(test, C, 1),
               .loss = floats(test, C, 1),
               .alpha = floats(test, C, 1),
               .beta = floats(test, C, 1),
               .s = floats(test, C, 1),
               .axg = result(test, C, d)};
    Both x = activation(test, C, d), xg = activation(test, C, d), table = weight(test, padded_vocab(test), d);
    memset((float *)table.cpu.data + test->size.vocab * d, 0,
           (size_t)((padded_vocab(test) - test->size.vocab) * d) * sizeof(float));
    upload(test, table);
    Both weights = floats(test, C, 1);
    Norms norm = norm_of(test, x);
    int32_t *targets = random_ids(test, C, test->size.vocab);
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
                        .vocab = test->size.vocab,
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
    h.gpu = (HeadChunk){.xg = xg.gpu,
                        .x = x.gpu,
                        .norm = norm.gpu,
                        .table = table.gpu,
                        .vocab = test->size.vocab,
                        .targets = device_ints(test, targets, C),
                        .order = device_ints(test, order, C),
                        .weights = weights.gpu.data,
                        .e = h.e.gpu,
                        .d = gpu_sums(h.d),
                        .q = gpu_sums(h.q),
                        .anchor = h.anchor.gpu.data,
                        .loss = h.loss.gpu.data,
                        .alpha = h.alpha.gpu.data,
                        .beta = h.beta.gpu.data,
                        .s = h.s.gpu.data,
                        .axg = h.axg.gpu};
    return h;
}

void test_head(GpuTest *test)
{
    int64_t C = test->size.chunk, d = test->size.hidden;
    Heads h = make_head(test, C / 4);
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

    Both dx = result(test, C, d), dgamma = floats(test, 1, d), gamma = input(test, 1, d, DTYPE_F32, 1);
    Both grad = floats(test, padded_vocab(test), d);
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

void test_head_forward_only(GpuTest *test)
{
    Heads h = make_head(test, 0);
    cpu_ops.head_eval(&test->cpu, &h.cpu);
    cuda_ops.head_eval(&test->gpu, &h.gpu);
    check_both(test, "loss", h.loss, ONE_ROUNDING);
    Both logits = floats(test, test->size.chunk, test->size.vocab);
    cpu_ops.logits(&test->cpu, logits.cpu, &h.cpu);
    cuda_ops.logits(&test->gpu, logits.gpu, &h.gpu);
    check_both(test, "logits", logits, EXACT);
}

/* Targets that are nearly certain, and targets beyond the clamp: where a plain softmax loses its digits. */
void test_head_extremes(GpuTest *test)
{
    Heads h = make_head(test, 0);
    int64_t C = test->size.chunk, d = test->size.hidden;
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

static void head_losses(GpuTest *test, const Heads *h)
{
    StepStats cpu_stats = {0}, *gpu_stats = device_take(test, sizeof *gpu_stats);
    cuda_device.zero(test->gpu.stream, gpu_stats, sizeof *gpu_stats);
    cpu_ops.head(&test->cpu, &h->cpu);
    cuda_ops.head(&test->gpu, &h->gpu);
    cpu_ops.head_loss(&test->cpu, &h->cpu, &cpu_stats);
    cuda_ops.head_loss(&test->gpu, &h->gpu, gpu_stats);
}

/* A row that is not finite spoils its own loss, and no clamp hides it. */
void test_head_nan(GpuTest *test)
{
    Heads h = make_head(test, 0);
    int64_t C = test->size.chunk, d = test->size.hidden, spoilt = C / 2;
    Both xg = {h.cpu.xg, h.gpu.xg};
    ((float *)xg.cpu.data)[spoilt * d + d / 2] = NAN;
    upload(test, xg);
    for (int eval = 0; eval < 2; eval++) {
        if (eval) {
            cpu_ops.head_eval(&test->cpu, &h.cpu);
            cuda_ops.head_eval(&test->gpu, &h.gpu);
        } else {
            head_losses(test, &h);
        }
        const float *got = download(test, h.loss.gpu), *want = h.loss.cpu.data;
        for (int64_t i = 0; i < C; i++) {
            assert_int_equal(isnan(want[i]), i == spoilt);
            assert_int_equal(isnan(got[i]), i == spoilt);
        }
    }
}

/* r of a row of zeros is 1e15: what the target's place and the padding hold must not overflow with it. */
void test_head_zero_row(GpuTest *test)
{
    Heads h = make_head(test, 0);
    int64_t d = test->size.hidden, zero = test->size.chunk / 2;
    Both x = {h.cpu.x, h.gpu.x}, xg = {h.cpu.xg, h.gpu.xg};
    memset((float *)x.cpu.data + zero * d, 0, (size_t)d * sizeof(float));
    memset((float *)xg.cpu.data + zero * d, 0, (size_t)d * sizeof(float));
    upload(test, x);
    upload(test, xg);
    Norms norm = norm_of(test, x);
    h.cpu.norm = norm.cpu, h.gpu.norm = norm.gpu;
    h.cpu.norm.eps = h.gpu.norm.eps = 1e-30f;
    head_losses(test, &h);
    check_both(test, "d", h.d, 1e-2);
    check_both(test, "q", h.q, 2e-2);
    check_both(test, "loss", h.loss, 1e-2);
    cpu_ops.head_eval(&test->cpu, &h.cpu);
    cuda_ops.head_eval(&test->gpu, &h.gpu);
    check_both(test, "eval loss", h.loss, ONE_ROUNDING);
}
