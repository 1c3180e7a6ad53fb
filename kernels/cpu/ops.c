/* The CPU's table of ops. */
#include "kernels/cpu/cpu.h"
#include "kernels/rounding.h"

static int cpu_parts(const OpContext *ctx, OpId op, int64_t cols)
{
    (void)ctx, (void)op, (void)cols;
    return 1;
}

static size_t cpu_workspace_bytes(const OpContext *ctx, int64_t rows, int64_t hidden, int64_t ffn,
                                  int64_t qkv_cols, int64_t head_chunk, int64_t vocab_padded,
                                  AttentionShape shape)
{
    (void)ctx;
    int64_t weight_rows = max_i64(max_i64(2 * ffn, qkv_cols), max_i64(vocab_padded, hidden));
    size_t needs[] = {
        attention_scratch(shape),
        down_dx_scratch(rows, ffn),
        head_dx_scratch(head_chunk, hidden),
        dw_scratch(),
        grad_norm_scratch(weight_rows, max_i64(hidden, ffn)),
    };
    size_t most = 0;
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) most = needs[i] > most ? needs[i] : most;
    return most;
}

static int64_t cpu_count_nonfinite(const OpContext *ctx, Tensor t)
{
    (void)ctx;
    int64_t count = 0;
#pragma omp parallel for schedule(static) reduction(+ : count)
    for (int64_t i = 0; i < t.rows; i++) {
        const float *row = row_at(t, i);
        int32_t bad = 0;
#pragma omp simd reduction(+ : bad)
        for (int64_t k = 0; k < t.cols; k++) bad += (float_bits(row[k]) & 0x7F800000u) == 0x7F800000u;
        count += bad;
    }
    return count;
}

static const char *cpu_choice(const OpContext *ctx, OpId op)
{
    (void)ctx, (void)op;
    return "cpu";
}

const Ops cpu_ops = {
    .name = "cpu",
    .parts = cpu_parts,
    .workspace_bytes = cpu_workspace_bytes,

    .embed = cpu_embed,
    .qkv = cpu_qkv,
    .attention = cpu_attention,
    .residual = cpu_residual,
    .gate_up = cpu_gate_up,

    .head = cpu_head,
    .head_loss = cpu_head_loss,
    .head_dx = cpu_head_dx,
    .head_dw = cpu_head_dw,
    .head_eval = cpu_head_eval,
    .logits = cpu_logits,

    .down_dx = cpu_down_dx,
    .norm_dx = cpu_norm_dx,
    .out_dx = cpu_out_dx,
    .attention_bwd = cpu_attention_bwd,
    .qkv_grad = cpu_qkv_grad,
    .dw = cpu_dw,
    .embed_dw = cpu_embed_dw,

    .fold = cpu_fold,
    .grad_norm = cpu_grad_norm,
    .clip = cpu_clip,
    .adamw = cpu_adamw,

    .attention_cached = cpu_attention_cached,
    .count_nonfinite = cpu_count_nonfinite,
    .choice = cpu_choice,
};
