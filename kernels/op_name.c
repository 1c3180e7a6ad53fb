#include "kernels/ops.h"

const char *op_name(OpId op)
{
    static const char *const names[OP_COUNT] = {
        [OP_EMBED] = "embed",
        [OP_QKV] = "qkv",
        [OP_ATTENTION] = "attention",
        [OP_OUT] = "out",
        [OP_GATE_UP] = "gate_up",
        [OP_DOWN] = "down",
        [OP_HEAD] = "head",
        [OP_HEAD_LOSS] = "head_loss",
        [OP_HEAD_DX] = "head_dx",
        [OP_HEAD_DW] = "head_dw",
        [OP_HEAD_EVAL] = "head_eval",
        [OP_LOGITS] = "logits",
        [OP_DOWN_DX] = "down_dx",
        [OP_DOWN_DW] = "down_dw",
        [OP_GATE_UP_DX] = "gate_up_dx",
        [OP_GATE_UP_DW] = "gate_up_dw",
        [OP_OUT_DX] = "out_dx",
        [OP_OUT_DW] = "out_dw",
        [OP_ATTENTION_BWD] = "attention_bwd",
        [OP_QKV_GRAD] = "qkv_grad",
        [OP_QKV_DX] = "qkv_dx",
        [OP_QKV_DW] = "qkv_dw",
        [OP_EMBED_DW] = "embed_dw",
        [OP_FOLD] = "fold",
        [OP_GRAD_NORM] = "grad_norm",
        [OP_CLIP] = "clip",
        [OP_ADAMW] = "adamw",
    };
    return names[op];
}
