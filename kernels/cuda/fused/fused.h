/* The fused ops of Hopper: each is one GEMM with its epilogue program. Same arguments and results as the op
 * in kernels/ops.h, for BF16 operands; fused/dispatch.cu decides which implementation runs. */
#pragma once
#include "kernels/cuda/backend.h"
#include "kernels/cuda/fused/walk.h"

/* Tiles of the output, rows x columns. Consumers in turns: 128x192, 192x128; each half the rows: 256x128, 256x192, or half
 * the columns: 192x256. */
enum FusedTile { TILE_128x192, TILE_192x128, TILE_256x128, TILE_256x192, TILE_192x256, TILE_COUNT };

struct FusedVariant {
    FusedTile tile;
    int cluster;        /* blocks along M that share their columns of B: 1 or 2 */
    int group;          /* rows of one block's tiles that are walked together: tile_spot */
};

static inline const char *fused_tile_name(FusedTile tile)
{
    static const char *const names[TILE_COUNT] = {"128x192", "192x128", "256x128", "256x192", "192x256"};
    return names[tile];
}

/* Where K is short beside what the epilogue does, that must hide, and that of a cooperative tile does not: these are 7 to 20 %
 * slower in them. */
static inline bool fused_tile_fits(OpId op, FusedTile tile)
{
    return tile < TILE_256x128 || (op != OP_GATE_UP && op != OP_QKV && op != OP_HEAD && op != OP_HEAD_EVAL);
}

static inline int fused_tile_rows(FusedTile tile)
{
    static const int rows[TILE_COUNT] = {128, 192, 256, 256, 192};
    return rows[tile];
}

static inline int fused_tile_cols(FusedTile tile)
{
    static const int cols[TILE_COUNT] = {192, 128, 128, 192, 256};
    return cols[tile];
}

/* Columns for which a tile's epilogue leaves one sum. */
static inline int fused_sum_cols(FusedTile tile) { return tile == TILE_192x256 ? 128 : fused_tile_cols(tile); }

/* Whether tiles of an output [rows, cols] can be counted, whatever their size: see quotient in walk.h. */
static inline bool fused_tiles_fit(int64_t rows, int64_t cols)
{
    return (rows / 128 + 1) * (cols / 128 + 1) < MOST_TILES;
}

/* Whether a weight gradient [rows, cols] has tiles for most multiprocessors. Smaller ones are left to
 * cublasLt, which splits a long K: shorter sums lose less to rounding. */
static inline bool fused_dw_fits(int64_t rows, int64_t cols, int multiprocessors)
{
    return rows * cols >= 128 * 192 * (int64_t)multiprocessors * 3 / 4;
}

/* What a launch needs beside the op's own arguments. */
struct FusedCall {
    const OpContext *ctx;
    OpId op;
    FusedVariant variant;
};

/* Most parts that a fused op may leave per row of an output of `cols` GEMM columns: one a column tile of the
 * narrowest tile, and a multiple of four so that a row of parts is read 16 bytes at a time. */
static inline int fused_parts(int64_t cols)
{
    int tiles = (int)((cols + 127) / 128);
    return (tiles + 3) / 4 * 4;
}

void fused_qkv(const FusedCall &call, Tensor qkv, Tensor x, Tensor w, RowNorm norm, Rope rope);
void fused_residual(const FusedCall &call, Tensor out, RowSums sumsq, Tensor xg, Tensor a, Tensor w,
                    Tensor residual, const float *gamma);
void fused_gate_up(const FusedCall &call, Tensor z, Tensor y, Tensor x1, Tensor w, RowNorm norm);
void fused_down_dx(const FusedCall &call, Tensor dz, Tensor y, RowSums zdz, Tensor dx, Tensor w, Tensor z,
                   RowNorm norm);
void fused_norm_dx(const FusedCall &call, Tensor out, Tensor dz, Tensor w, Tensor residual_grad, Tensor x,
                   RowNorm norm, RowSums zdz);
void fused_out_dx(const FusedCall &call, Tensor d_o, Tensor dx1, Tensor w);
void fused_dw(const FusedCall &call, Tensor grad, Tensor dy, Tensor a, bool accumulate, double *sumsq);
void fused_head(const FusedCall &call, const HeadChunk *h);
void fused_head_eval(const FusedCall &call, const HeadChunk *h);
void fused_head_dx(const FusedCall &call, Tensor dx, float *dgamma, const HeadChunk *h, const float *gamma,
                   bool accumulate);
