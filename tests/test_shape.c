/* Parameters, FLOPs and plans against numbers worked out by hand and the published sizes. */
#include "model/llama.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static Config shape(int layers, int hidden, int ffn, int heads, int kv_heads, int vocab, bool tied)
{
    Config c = {0};
    c.model.layers = layers, c.model.hidden = hidden, c.model.ffn = ffn, c.model.heads = heads;
    c.model.kv_heads = kv_heads, c.model.vocab = vocab, c.model.tie_embeddings = tied;
    c.train.seq_len = 2048, c.train.micro_batch = 2, c.train.accum = 1;
    return c;
}

static int64_t parameters(const Config *c)
{
    LlamaShape s = llama_shape(c, DTYPE_BF16);
    return llama_parameters(&s);
}

static void published_parameter_counts(void **state)
{
    (void)state;
    Config c1 = shape(16, 2048, 8192, 32, 8, 128256, true);
    assert_int_equal(parameters(&c1), 1235814400);
    Config c3 = shape(28, 3072, 8192, 24, 8, 128256, true);
    assert_int_equal(parameters(&c3), 3212749824);
    Config c8 = shape(32, 4096, 14336, 32, 8, 128256, false);
    assert_int_equal(parameters(&c8), 8030261248);
    Config c70 = shape(80, 8192, 28672, 64, 8, 128256, false);
    assert_int_equal(parameters(&c70), 70553706496);
}

/* One layer, hidden 8, ffn 16, 2 heads of 4, 1 kv head, vocab 10, seq 5:
 * qkv 16 x 8 = 128, out 8 x 8 = 64, gate, up, down 3 x 128 = 384, head 80: 656 in matrices.
 * 6 x 656 + 12 x 1 layer x 8 columns of q x 5 = 3936 + 480 = 4416 a token. */
static void flops_by_hand(void **state)
{
    (void)state;
    Config c = shape(1, 8, 16, 2, 1, 10, false);
    c.train.seq_len = 5;
    LlamaShape s = llama_shape(&c, DTYPE_F32);
    assert_true(llama_flops_per_token(&s) == 4416.0);
    c.model.tie_embeddings = true;      /* the head counts once, the lookup never */
    s = llama_shape(&c, DTYPE_F32);
    assert_true(llama_flops_per_token(&s) == 4416.0);
}

/* Four times hidden, but never all rows where their logits, 2 bytes each here, take more than a GiB. */
static void large_logits_never_stand_whole(void **state)
{
    (void)state;
    Config c = shape(32, 4096, 14336, 32, 8, 128256, false);
    assert_int_equal(llama_shape(&c, DTYPE_BF16).head_chunk, 4096);      /* all rows: 0.98 GiB */
    assert_int_equal(llama_shape(&c, DTYPE_F32).head_chunk, 2048);
    c.train.micro_batch = 8;
    assert_int_equal(llama_shape(&c, DTYPE_BF16).head_chunk, 8192);
    c.train.micro_batch = 32;
    assert_int_equal(llama_shape(&c, DTYPE_BF16).head_chunk, 16384);
    c.train.seq_len = 4229, c.train.micro_batch = 1;
    assert_int_equal(llama_shape(&c, DTYPE_BF16).head_chunk, 2115);
    c.train.head_chunk = 1 << 20;       /* as asked */
    assert_int_equal(llama_shape(&c, DTYPE_BF16).head_chunk, 4229);
}

/* Llama 3.2 1B at sequence 2048: 6 x 1,235,748,864 in matrices (all but the 33 norms)
 * + 12 x 16 x 2048 x 2048. */
static void flops_of_1b(void **state)
{
    (void)state;
    Config c = shape(16, 2048, 8192, 32, 8, 128256, true);
    LlamaShape s = llama_shape(&c, DTYPE_BF16);
    assert_true(llama_flops_per_token(&s) == 6.0 * (1235814400 - 33 * 2048) + 805306368.0);
}

/* Weights of the plan: working + master + gradient + two moments, 4 bytes each on the CPU. */
static void plan_counts_every_class(void **state)
{
    (void)state;
    Config c = shape(2, 24, 40, 6, 2, 131, false);
    c.train.seq_len = 15;
    OpContext ctx = {.layer = -1};
    Plan plan = llama_plan(&c, DTYPE_F32, LLAMA_TRAIN, &cpu_ops, &ctx, 0);
    size_t weights = (size_t)parameters(&c) * 4, padding = 2 * (256 - 131) * 24 * 4;
    assert_in_range(plan.bytes[BUFFER_MASTER], weights, weights + 32 * PLAN_ALIGN);
    assert_in_range(plan.bytes[BUFFER_MOMENTS], 2 * weights, 2 * weights + 64 * PLAN_ALIGN);
    assert_in_range(plan.bytes[BUFFER_GRAD], weights + padding, weights + padding + 32 * PLAN_ALIGN);
    size_t sum = 0;
    for (int i = 0; i < BUFFER_CLASSES; i++) sum += plan.bytes[i];
    assert_int_equal(sum, plan.total);

    c.train.micro_batch = INT32_MAX, c.train.seq_len = INT32_MAX;       /* 2^62 rows: no wrapping round to a small sum */
    plan = llama_plan(&c, DTYPE_F32, LLAMA_TRAIN, &cpu_ops, &ctx, 0);
    assert_true(plan.total == SIZE_MAX && plan.bytes[BUFFER_ACTIVATIONS] == SIZE_MAX);
    c.train.micro_batch = 1, c.train.seq_len = 15;

    Plan infer = llama_plan(&c, DTYPE_F32, LLAMA_INFER, &cpu_ops, &ctx, 15);
    assert_int_equal(infer.bytes[BUFFER_GRAD] + infer.bytes[BUFFER_MOMENTS] + infer.bytes[BUFFER_BACKWARD],
                     0);
    size_t caches = 2 * 2 * 15 * 8 * 4 + 131 * 4;
    assert_in_range(infer.bytes[BUFFER_CACHE], caches, caches + 5 * PLAN_ALIGN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_parameter_counts),
        cmocka_unit_test(flops_by_hand),
        cmocka_unit_test(large_logits_never_stand_whole), cmocka_unit_test(flops_of_1b),
        cmocka_unit_test(plan_counts_every_class),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
