/* How the tiles of one product are shared out among the clusters of a grid, for the device and for the host:
 * tests/test_walk.c checks it without a GPU. */
#pragma once
#include "kernels/cuda/host_device.h"
#include <stdbool.h>

enum {
    MOST_PARTS = 4,     /* of a split tile: its owner adds the sums of all */
    LEAST_PART = 8,     /* blocks of K: shorter parts gain less than adding costs */
    MOST_TILES = 1 << 20,   /* of a product: see quotient */
    PATCH_ROWS = 4,     /* tiles of blocks: see tile_spot */
    PATCH_COLUMNS = 4,
    PACED_BLOCKS = 128, /* tiles with at least so many blocks of K have stops (stops_of) */
    PACE_BLOCKS = 32,   /* from one stop to the next */
    ARRIVE_AT = 16,     /* the block of these at which a cluster tells that it comes */
    WAIT_AT = 24,       /* the one at which it waits for the others; by then most have told */
};

/* Of `clusters`, c takes steps c, c + clusters, ... Steps are whole tiles first. Where the last round has tiles
 * for at most half of the clusters, those are split along K: first come their first parts, then all second
 * ones, and so on. So step t begins tile t, and the steps behind the last tile are further parts, which have no
 * epilogue. */
typedef struct TileWalk {
    int k_blocks;           /* of a tile */
    int whole;              /* tiles that are not split */
    int split, parts;       /* tiles that are, and in how many parts each */
} TileWalk;

/* Blocks [first, end) of a tile's K. */
typedef struct TilePart {
    int tile, part, first, end;
} TilePart;

HOST_DEVICE TileWalk tile_walk(int tiles, int k_blocks, int clusters)
{
    TileWalk w;
    const int rest = tiles % clusters;
    w.k_blocks = k_blocks;
    w.parts = rest ? clusters / rest : 1;
    if (w.parts > MOST_PARTS) w.parts = MOST_PARTS;
    if (w.parts > k_blocks / LEAST_PART) w.parts = k_blocks / LEAST_PART;
    if (w.parts < 2) w.parts = 1;
    w.split = w.parts > 1 ? rest : 0;
    w.whole = tiles - w.split;
    return w;
}

HOST_DEVICE int tile_end(TileWalk w) { return w.whole + w.split; }
HOST_DEVICE int step_end(TileWalk w) { return w.whole + w.split * w.parts; }

HOST_DEVICE TilePart tile_part(TileWalk w, int step)
{
    TilePart p = {step, 0, 0, w.k_blocks};
    if (step < w.whole) return p;
    p.part = (step - w.whole) / w.split;
    p.tile = step - p.part * w.split;
    p.first = p.part * w.k_blocks / w.parts;
    p.end = (p.part + 1) * w.k_blocks / w.parts;
    return p;
}

HOST_DEVICE int least(int a, int b) { return a < b ? a : b; }

/* a / b where a is less than MOST_TILES: what moves data looks for a tile while others wait for it, and an integer's division
 * takes it several times as long. The half keeps what is rounded off from a whole number. */
HOST_DEVICE int quotient(int a, int b)
{
#ifdef __CUDA_ARCH__
    return (int)__fdividef((float)a + 0.5f, (float)b);
#else
    return (int)(((float)a + 0.5f) / (float)b);
#endif
}

typedef struct TileSpot {
    int row, column;
} TileSpot;

/* Where tile t is. Groups of `group` rows, from left to right, PATCH_COLUMNS columns at a time, and those in patches of
 * patch_rows rows from top to bottom: PATCH_ROWS, or half of it for pairs of blocks, whose tiles are twice as high. So a round
 * covers about as many rows as columns, and so does what one GPC has of it (places.h), which is a patch or parts of two. */
HOST_DEVICE TileSpot tile_spot(int tiles_m, int tiles_n, int group, int patch_rows, int t)
{
    TileSpot spot;
    const int above = quotient(t, group * tiles_n) * group, height = least(group, tiles_m - above);
    const int in_group = t - above * tiles_n, left = quotient(in_group, height * PATCH_COLUMNS) * PATCH_COLUMNS;
    const int width = least(PATCH_COLUMNS, tiles_n - left);
    const int in_columns = in_group - left * height, down = quotient(in_columns, patch_rows * width) * patch_rows;
    const int rows = least(patch_rows, height - down), in_patch = in_columns - down * width;
    const int in_row = quotient(in_patch, rows);
    spot.column = left + in_row;
    spot.row = above + down + in_patch - in_row * rows;
    return spot;
}

/* Long tiles have stops, where clusters wait until all others of the round are near: what they share is read from memory
 * once only while it is in L2, and without stops they drift apart. */
HOST_DEVICE int stops_of(TileWalk w)
{
    return w.k_blocks < PACED_BLOCKS ? 0 : (w.k_blocks + PACE_BLOCKS - 1 - WAIT_AT) / PACE_BLOCKS;
}

/* The next block behind `block` at which a cluster tells or waits. */
HOST_DEVICE int next_event(int block)
{
    const int at = block % PACE_BLOCKS;
    return block - at + (at < ARRIVE_AT ? ARRIVE_AT : at < WAIT_AT ? WAIT_AT : PACE_BLOCKS + ARRIVE_AT);
}

/* Arrivals in all when the last cluster has arrived at stop `stop` of the tile of `step`, which is not split. */
HOST_DEVICE int arrivals(TileWalk w, int clusters, int step, int stop)
{
    const int before = step / clusters * clusters;
    return before * stops_of(w) + (stop + 1) * least(clusters, w.whole - before);
}
