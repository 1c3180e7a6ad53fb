/* Which GEMMs have a fused form and how each runs, for the configuration and the CUDA backend alike. */
#pragma once

/* By a library and a separate kernel, fused (on Hopper, where the sizes allow it), or as is faster at its shape,
 * measured at the first start. */
typedef enum FusionMode { FUSION_OFF, FUSION_ON, FUSION_AUTO } FusionMode;

/* In the order of the training step. DW stands for the weight gradients, the head's included, and out_dx: products
 * without an epilogue. */
typedef enum FusionKey {
    FUSE_QKV, FUSE_OUT, FUSE_GATE_UP, FUSE_DOWN, FUSE_HEAD, FUSE_HEAD_DX, FUSE_DOWN_DX, FUSE_GATE_UP_DX,
    FUSE_QKV_DX, FUSE_DW, FUSE_COUNT
} FusionKey;
