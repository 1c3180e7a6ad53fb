/* What epilogue programs are made of (docs/EPILOGUES.md). A program works on 64 rows of a tile at a time, in
 * chunks of columns; a thread of the warpgroup holds, of every 16 columns ("slice"), four pairs:
 *
 *   pair p   row  first + 8 (p % 2)   columns  16 slice + 8 (p / 2) + 2 (lane % 4), and the next
 *
 * accumulators 8 slice + 2 p and + 1. `first` is Rows.first, so a thread ever sees two rows only.
 *
 *   map              plain arithmetic on pairs, from formulas.h
 *   vector load      sum_of_row, rstd_of_row, column_pair
 *   tile load/store  Tile16, and Tile32 with load_pair and store_pair, over chunk buffers that the copy engine
 *                    fills and empties; gathered_pair
 *   tile reduction   RowSum (partial sums a row and column tile), column_sum
 *   stateful         RowRunningSum: maximum and sum of exponentials from chunk to chunk */
#pragma once
#include "kernels/cuda/bf16.cuh"
#include "kernels/cuda/formulas.h"
#include "kernels/cuda/fused/ptx_sm90.cuh"
#include "kernels/tensor.h"

/* This thread's two rows of the matrix: first and first + 8, where they are below `count`. */
struct Rows {
    int first, count;
};

/* Where a tile stands among the column tiles of its matrix. */
struct ColumnTile {
    int index, count;
};

PTX int lane_of_warp() { return threadIdx.x % 32; }
PTX int fragment_row() { return threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4; }
PTX int pair_column(int slice, int pair) { return 16 * slice + 8 * (pair / 2) + threadIdx.x % 4 * 2; }

PTX float quad_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* What a program may leave out. */
struct Epilogue {
    struct Row {};                              /* what `ahead` finds out about one row */
    static constexpr int LOAD_BYTES = 0;        /* bytes that fetch loads a chunk */
    static constexpr bool LONG_K = true;        /* cooperative tiles, whose epilogue does not hide, too */

    struct LeftOut {};                          /* by what these return, Gemm knows them from a program's own */

    template <class Params> static __device__ LeftOut fetch(const Params &, uint32_t, uint32_t, int, int) { return {}; }
    __device__ void begin(const Row (&)[2]) {}  /* whoever has another Row must have this, too */
    template <class Params> static __device__ LeftOut store(const Params &, uint32_t, int, int) { return {}; }
    template <class Params> __device__ void end(const Params &, Rows, ColumnTile) {}
    template <class Params> static __device__ void finish(const Params &, uint32_t) {}
};

/* ---- vector load --------------------------------------------------------------------------------------- */

/* Two neighbouring values of a vector over columns; 0 beyond its end. */
PTX float2 column_pair(const float *vector, int col, int cols)
{
    return col < cols ? *reinterpret_cast<const float2 *>(vector + col) : make_float2(0, 0);
}

/* The sum of a row's parts. */
PTX float sum_of_row(RowSums sums, int row)
{
    const float *part = sums.data + (int64_t)row * sums.parts, *const end = part + sums.parts;
    float total = 0;
    if (sums.parts % 4 == 0) {
#pragma unroll 2
        for (; part < end; part += 4) {
            const float4 v = *reinterpret_cast<const float4 *>(part);
            total += v.x + v.y + (v.z + v.w);
        }
    } else {
#pragma unroll 1
        for (; part < end; part++) total += *part;
    }
    return total;
}

PTX float rstd_of_row(RowNorm norm, int row)
{
    return norm_rstd(sum_of_row(norm.sumsq, row), (float)norm.cols, norm.eps);
}

/* ---- tile load and store ------------------------------------------------------------------------------- */

/* A tile of 64 rows x WIDTH bf16 in a chunk buffer, swizzled as its tensor map says: for that it begins at a
 * multiple of 1024 bytes (512 for 32 columns). */
template <int WIDTH> struct Tile16 {
    static_assert(WIDTH == 64 || WIDTH == 32, "rows of 128 or 64 bytes");
    static constexpr int COLS = WIDTH, BYTES = 64 * WIDTH * 2;

    /* Address of 16 bytes: row of the tile, and which 8 columns. */
    static __device__ __forceinline__ uint32_t at(uint32_t tile, int row, int eighth)
    {
        return WIDTH == 64 ? tile + row * 128 + ((eighth ^ (row % 8)) << 4)
                           : tile + row * 64 + ((eighth ^ (row / 2 % 4)) << 4);
    }

    /* The same in this thread's row of its warp's 16; going to other columns is one instruction. */
    static __device__ __forceinline__ uint32_t mine(uint32_t tile, int eighth)
    {
        return at(tile, threadIdx.x % 128 / 32 * 16 + threadIdx.x % 16, 0) ^ eighth << 4;
    }

    /* This thread's pairs of a slice, packed; lanes 0-15 address the left eight columns, 16-31 the right. */
    static __device__ __forceinline__ uint32_t address(uint32_t tile, int slice)
    {
        return mine(tile, threadIdx.x % 32 / 16) ^ slice << 5;
    }
    static __device__ __forceinline__ void load(uint32_t (&pairs)[4], uint32_t tile, int slice)
    {
        load_matrices(address(tile, slice), pairs);
    }

    /* All slices at once: shared memory is busy with the other consumer's operands, so that each load takes
     * long, and a store between them would keep the next from being issued. */
    static __device__ __forceinline__ void load(uint32_t (&pairs)[WIDTH / 16][4], uint32_t tile)
    {
#pragma unroll
        for (int slice = 0; slice < WIDTH / 16; slice++) load(pairs[slice], tile, slice);
    }
    static __device__ __forceinline__ void store(uint32_t tile, int slice, const uint32_t (&pairs)[4])
    {
        store_matrices(address(tile, slice), pairs);
    }

    /* Half a slice: eight columns, one pair a row. */
    static __device__ __forceinline__ void store(uint32_t tile, int eighth, const uint32_t (&pairs)[2])
    {
        store_matrices(mine(tile, eighth), pairs);
    }
};

/* The same for 64 rows x 32 f32. */
struct Tile32 {
    static constexpr int COLS = 32, BYTES = 64 * 32 * 4;

    static __device__ __forceinline__ uint32_t address(uint32_t tile, int slice, int pair)
    {
        int row = fragment_row() + 8 * (pair % 2), col = pair_column(slice, pair);
        return tile + row * 128 + ((col / 4 ^ (row % 8)) << 4) + col % 4 * 4;
    }
};

/* Two neighbouring values of a row of `table`, chosen by index. */
PTX float2 gathered_pair(const bf16 *table, int64_t stride, int row, int col)
{
    return unpack(*reinterpret_cast<const uint32_t *>(table + row * stride + col));
}

/* ---- tile reduction ------------------------------------------------------------------------------------ */

/* One sum for each of this thread's two rows, over the columns of a tile. */
struct RowSum {
    float half[2];

    __device__ __forceinline__ void clear() { half[0] = half[1] = 0; }
    __device__ __forceinline__ void add(int pair, float x) { half[pair % 2] += x; }

    /* Leaves the tile's part of each row; the last column tile also clears parts that no tile writes. */
    __device__ __forceinline__ void put(RowSums sums, Rows rows, ColumnTile tile) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float total = quad_sum(half[h]);
            int row = rows.first + 8 * h;
            if (threadIdx.x % 4 || row >= rows.count) continue;
            float *part = sums.data + (int64_t)row * sums.parts;
            part[tile.index] = total;
            if (tile.index + 1 == tile.count)
                for (int i = tile.count; i < sums.parts; i++) part[i] = 0;
        }
    }
};

/* Sum over a warp's 16 rows; x: this thread's value for its first row plus that for its second. */
PTX float column_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 4);
    x += __shfl_xor_sync(~0u, x, 8);
    return x + __shfl_xor_sync(~0u, x, 16);
}

/* ---- stateful transform -------------------------------------------------------------------------------- */

/* Maximum and sum of exponentials of each row, carried from chunk to chunk of a tile. */
struct RowRunningSum {
    RunningSum half[2];

    __device__ __forceinline__ void clear() { half[0] = half[1] = RunningSum{-INFINITY, 0}; }

    template <int COUNT> __device__ __forceinline__ void add(int h, const float (&x)[COUNT])
    {
        half[h] = running_add(half[h], x, COUNT);
    }

    /* Leaves the tile's maximum and sum of each row, as RowSum does. */
    __device__ __forceinline__ void put(RowSums most, RowSums sum, Rows rows, ColumnTile tile) const
    {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            RunningSum total = half[h];
#pragma unroll
            for (int mask = 1; mask < 4; mask *= 2)
                total = running_merge(total, RunningSum{__shfl_xor_sync(~0u, total.most, mask),
                                                        __shfl_xor_sync(~0u, total.sum, mask)});
            int row = rows.first + 8 * h;
            if (threadIdx.x % 4 || row >= rows.count) continue;
            int64_t at = (int64_t)row * sum.parts;
            most.data[at + tile.index] = total.most;
            sum.data[at + tile.index] = total.sum;
            if (tile.index + 1 == tile.count)
                for (int i = tile.count; i < sum.parts; i++) most.data[at + i] = sum.data[at + i] = 0;
        }
    }
};
