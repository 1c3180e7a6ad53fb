/* How the tiles of one product are shared out among the clusters of a grid, for the device and for the host:
 * tests/test_walk.c checks it without a GPU. */
#pragma once

#ifdef __CUDACC__
#define WALK_FN static __host__ __device__ __forceinline__
#else
#define WALK_FN static inline
#endif

enum {
    MOST_PARTS = 4,     /* of a split tile: its owner adds the sums of all */
    LEAST_PART = 8,     /* blocks of K: shorter parts gain less than adding costs */
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
