/* The CUDA table of ops, and what the model must know of them before it allocates. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/fused/dispatch.h"
#include <algorithm>

/* cuDNN's backward pass: dq in f32 and dk, dv of every head in bf16, beside row statistics. Its deterministic
 * form takes many times that: it gets all there is and walks over the batch in steps. */
static size_t attention_workspace(const CudaOptions &options, AttentionShape s)
{
    size_t limit = std::max(options.workspace_limit, (size_t)GEMM_WORKSPACE) - GEMM_WORKSPACE;
    if (options.attention != CUDA_ATTENTION_CUDNN || !cudnn_built()) return reference_attention_scratch(s);
    size_t rows = (size_t)s.batch * s.seq * s.heads;
    size_t estimate = rows * s.head_dim * 8 + rows * 8 + (4 << 20);
    return std::max(reference_attention_scratch(s), s.deterministic ? limit : std::min(estimate, limit));
}

static size_t cuda_workspace_bytes(const OpContext *ctx, int64_t rows, int64_t hidden, int64_t ffn,
                                   int64_t qkv_cols, int64_t head_chunk, int64_t vocab_padded,
                                   AttentionShape shape)
{
    /* gate_up's operand; sums in place are measured there, and products that are added later stand there */
    size_t activation = (size_t)(rows * hidden) * dtype_bytes(DTYPE_BF16);
    return GEMM_WORKSPACE + std::max({
        activation,
        cuda_head_dx_scratch(head_chunk, hidden),
        cuda_norm_scratch(2 * ffn, hidden, true),
        cuda_norm_scratch(qkv_cols, hidden, true),
        cuda_norm_scratch(vocab_padded, hidden, false),
        cuda_norm_scratch(hidden, ffn, false),
        attention_workspace(backend_of(ctx)->options, shape),
    });
}

/* For the table of choices: whether cuDNN took the op's largest call. */
static void note_attention(const OpContext *ctx, OpId op, AttentionShape s, bool taken)
{
    CudaBackend *b = backend_of(ctx);
    const double flops = 2.0 * s.batch * s.heads * s.head_dim * s.seq * s.seq;
    if (flops < b->ran_flops[op]) return;
    b->ran_flops[op] = flops;
    b->unfit[op] = !taken;
}

static void cuda_attention(const OpContext *ctx, Tensor o, float *lse, Tensor qkv, AttentionShape shape)
{
    OpRange range(ctx, OP_ATTENTION);
    bool library = backend_of(ctx)->options.attention == CUDA_ATTENTION_CUDNN;
    bool taken = library && cudnn_attention(ctx, o, lse, qkv, shape);
    note_attention(ctx, OP_ATTENTION, shape, taken);
    if (!taken) reference_attention(ctx, o, lse, qkv, shape);
}

static void cuda_attention_bwd(const OpContext *ctx, Tensor dqkv, Tensor d_o, Tensor qkv, Tensor o,
                               const float *lse, AttentionShape shape)
{
    OpRange range(ctx, OP_ATTENTION_BWD);
    bool library = backend_of(ctx)->options.attention == CUDA_ATTENTION_CUDNN;
    bool taken = library && cudnn_attention_bwd(ctx, dqkv, d_o, qkv, o, lse, shape);
    note_attention(ctx, OP_ATTENTION_BWD, shape, taken);
    if (!taken) reference_attention_bwd(ctx, dqkv, d_o, qkv, o, lse, shape);
}

static const char *attention_choice(const CudaBackend *b, OpId op)
{
    if (b->options.attention != CUDA_ATTENTION_CUDNN || !cudnn_built()) return "reference kernel";
    if (!b->ran_flops[op]) return "cuDNN, where it can; else the reference kernel";
    return b->unfit[op] ? "reference kernel: cuDNN does not take this" : "cuDNN";
}

static const char *cuda_choice(const OpContext *ctx, OpId op)
{
    if (const char *fused = dispatch_choice(ctx, op)) return fused;
    switch (op) {
    case OP_QKV: case OP_OUT: case OP_GATE_UP: case OP_DOWN: case OP_HEAD: case OP_HEAD_DX: case OP_HEAD_DW:
    case OP_HEAD_EVAL: case OP_LOGITS: case OP_DOWN_DX: case OP_GATE_UP_DX: case OP_QKV_DX:
        return "cublasLt + separate kernel";
    case OP_DOWN_DW: case OP_GATE_UP_DW: case OP_OUT_DX: case OP_OUT_DW: case OP_QKV_DW:
        return "cublasLt";
    case OP_ATTENTION: case OP_ATTENTION_BWD:
        return attention_choice(backend_of(ctx), op);
    default:
        return "separate kernel";
    }
}

extern "C" const Ops cuda_ops = [] {
    Ops t = {};
    t.name = "cuda";
    t.parts = dispatch_parts, t.workspace_bytes = cuda_workspace_bytes;
    t.embed = cuda_embed, t.qkv = dispatch_qkv, t.attention = cuda_attention, t.residual = dispatch_residual;
    t.gate_up = dispatch_gate_up;
    t.head = dispatch_head, t.head_loss = cuda_head_loss, t.head_dx = dispatch_head_dx,
    t.head_dw = dispatch_head_dw;
    t.head_eval = dispatch_head_eval, t.logits = cuda_logits;
    t.down_dx = dispatch_down_dx, t.norm_dx = dispatch_norm_dx, t.out_dx = dispatch_out_dx;
    t.attention_bwd = cuda_attention_bwd, t.qkv_grad = cuda_qkv_grad, t.dw = dispatch_dw,
    t.embed_dw = cuda_embed_dw;
    t.fold = cuda_fold, t.grad_norm = cuda_grad_norm, t.clip = cuda_clip, t.adamw = cuda_adamw;
    t.attention_cached = cuda_attention_cached;
    t.count_nonfinite = cuda_count_nonfinite, t.choice = cuda_choice;
    return t;
}();
