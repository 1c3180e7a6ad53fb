/* How the tiles of one product are shared out among the clusters of a grid, for the device and for the host:
 * tests/test_walk.c checks it without a GPU. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define WALK_FN static __host__ __device__ __forceinline__
#else
#define WALK_FN static inline
#endif

enum {
    MOST_PARTS = 4,     /* of a split tile: its owner adds the sums of all */
    LEAST_PART = 8,     /* blocks of K: shorter parts gain less than adding costs */
    USUAL_GROUP = 8,    /* rows of tiles in a group, where other numbers gain nothing */
    MOST_GROUP = 32,
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

WALK_FN TileWalk tile_walk(int tiles, int k_blocks, int clusters)
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

/* Of `most` clusters as many as it takes for the same number of rounds, unless the last one is split: where they
 * divide the tiles evenly, a round covers whole groups, and no operand is read twice for stragglers. */
static inline int walk_clusters(int tiles, int most)
{
    const int rounds = (tiles + most - 1) / most;
    return tiles % most * 2 > most ? (tiles + rounds - 1) / rounds : most;
}

/* Bytes of operands that come from memory when tiles are walked in groups of `group` rows, column by column in
 * each. Clusters that run at once read what they share once. row_bytes, col_bytes: a row's, a column's of tiles,
 * over all of K. What fits into `cache` bytes stays there: a group's rows, all columns. */
static inline double walk_bytes(int tiles_m, int tiles_n, int clusters, int group, double row_bytes, double col_bytes,
                                double cache)
{
    const int tiles = tiles_m * tiles_n, area = group * tiles_n;
    const bool rows_stay = group * row_bytes <= cache, columns_stay = tiles_n * col_bytes <= cache;
    double bytes = columns_stay ? tiles_n * col_bytes : 0;
    for (int first = 0; first < tiles; first += clusters) {
        const int end = first + clusters < tiles ? first + clusters : tiles;
        int columns = 0;
        for (int t = first, next; t < end; t = next) {
            const int begin = t / area * area, from = t - begin, left = tiles_m - t / area * group;
            const int height = left < group ? left : group;
            next = begin + area < end ? begin + area : end;
            const int to = next - begin;
            int rows = to - from < height ? to - from : height;
            if (rows_stay) rows = from >= height ? 0 : (to < height ? to : height) - from;
            bytes += rows * row_bytes;
            const int entered = rows_stay && from > 0 ? (from - 1) / height + 1 : from / height;
            columns += (to - 1) / height + 1 - entered;
        }
        if (!columns_stay) bytes += (columns < tiles_n ? columns : tiles_n) * col_bytes;
    }
    return bytes;
}

/* Rows of tiles a group for the fewest bytes. That counts even where bandwidth is to spare: reading memory takes
 * power, and power is what limits large products. */
static inline int walk_group(int tiles_m, int tiles_n, int clusters, double row_bytes, double col_bytes, double cache)
{
    int best = USUAL_GROUP;
    double least = 0.99 * walk_bytes(tiles_m, tiles_n, clusters, best, row_bytes, col_bytes, cache);
    for (int group = 1; group <= MOST_GROUP && group <= tiles_m; group++) {
        const double bytes = walk_bytes(tiles_m, tiles_n, clusters, group, row_bytes, col_bytes, cache);
        if (bytes < least) best = group, least = bytes;
    }
    return best;
}

WALK_FN int tile_end(TileWalk w) { return w.whole + w.split; }
WALK_FN int step_end(TileWalk w) { return w.whole + w.split * w.parts; }

WALK_FN TilePart tile_part(TileWalk w, int step)
{
    TilePart p;
    p.part = step < w.whole ? 0 : (step - w.whole) / w.split;
    p.tile = step - p.part * w.split;
    const int parts = step < w.whole ? 1 : w.parts;
    p.first = p.part * w.k_blocks / parts;
    p.end = (p.part + 1) * w.k_blocks / parts;
    return p;
}
