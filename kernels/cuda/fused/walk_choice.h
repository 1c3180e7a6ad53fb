/* How many clusters walk over a product's tiles, and in groups of how many rows (walk.h). */
#pragma once
#include "kernels/cuda/fused/walk.h"
#include <math.h>
#include <stdlib.h>

enum {
    USUAL_GROUP = 8,    /* rows of tiles, where other numbers gain nothing */
    MOST_GROUP = 32,
};

/* Of `most` clusters as many as it takes for the same number of rounds, unless the last one is split: where they
 * divide the tiles evenly, a round covers whole groups, and no operand is read twice for stragglers. */
static inline int walk_clusters(int tiles, int most)
{
    const int rounds = (tiles + most - 1) / most;
    return tiles % most * 2 > most ? (tiles + rounds - 1) / rounds : most;
}

/* A product's tiles, and the bytes of operands for a row and for a column of them, over all of K. */
typedef struct TileGrid {
    int rows, columns, patch_rows;
    double row_bytes, column_bytes;
} TileGrid;

/* Bytes that come from memory. Clusters that run at once read what they share once. What fits into `cache` bytes stays
 * there: a group's rows, all columns. Infinite when there is no room to count. */
static inline double walk_bytes(TileGrid g, int clusters, int group, double cache)
{
    const bool rows_stay = group * g.row_bytes <= cache, columns_stay = g.columns * g.column_bytes <= cache;
    int *row_read = (int *)calloc((size_t)(g.rows + g.columns), sizeof *row_read);
    if (!row_read) return INFINITY;
    int *column_read = row_read + g.rows;
    double bytes = 0;
    for (int t = 0; t < g.rows * g.columns; t++) {
        const int round = 1 + t / clusters;
        const TileSpot at = tile_spot(g.rows, g.columns, group, g.patch_rows, t);
        if (rows_stay ? !row_read[at.row] : row_read[at.row] < round) bytes += g.row_bytes;
        if (columns_stay ? !column_read[at.column] : column_read[at.column] < round) bytes += g.column_bytes;
        row_read[at.row] = column_read[at.column] = round;
    }
    free(row_read);
    return bytes;
}

/* What moving operands costs, in bytes from memory: those, and a quarter of what L2 is read for, by a patch of tiles at a
 * time, which is about what one GPC has. A quarter: a copy draws 0.13 nJ for a byte in memory, of which 0.07 are also drawn
 * by a byte in L2 (docs/FUSED.md), but most of those on its way to the multiprocessors, which no order of tiles shortens. */
static inline double walk_cost(TileGrid g, int clusters, int group, double cache)
{
    return walk_bytes(g, clusters, group, cache) + 0.25 * walk_bytes(g, g.patch_rows * PATCH_COLUMNS, group, 0);
}

/* Rows of tiles a group for the least cost; the usual number where no other saves a hundredth. That counts even where
 * bandwidth is to spare: reading takes power, and power is what limits large products. */
static inline int walk_group(TileGrid g, int clusters, double cache)
{
    int best = USUAL_GROUP;
    double least_cost = 0.99 * walk_cost(g, clusters, best, cache);
    for (int group = 1; group <= MOST_GROUP && group <= g.rows; group++) {
        const double cost = walk_cost(g, clusters, group, cache);
        if (cost < least_cost) best = group, least_cost = cost;
    }
    return best;
}
