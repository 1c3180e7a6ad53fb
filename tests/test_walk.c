/* The walk over the tiles of a product: each block of each tile's K is worked on once, by clusters that all run
 * at the same time where one waits for another. */
#include "kernels/cuda/fused/walk.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void check_walk(int tiles, int k_blocks, int clusters)
{
    const TileWalk w = tile_walk(tiles, k_blocks, clusters);
    uint8_t *covered = calloc((size_t)tiles * (size_t)k_blocks, 1);
    int *next_part = calloc((size_t)tiles, sizeof *next_part);
    assert_true(covered && next_part);
    assert_int_equal(tile_end(w), tiles);
    for (int step = 0; step < step_end(w); step++) {
        const TilePart p = tile_part(w, step);
        assert_in_range(p.tile, 0, tiles - 1);
        assert_true(p.first < p.end && p.end <= k_blocks);
        /* owners are the steps before tile_end, in the order of tiles; parts are added in theirs */
        if (step < tiles) assert_true(p.tile == step && p.part == 0 && p.first == 0);
        else assert_true(p.part > 0);
        assert_int_equal(p.part, next_part[p.tile]++);
        if (p.end - p.first < k_blocks) {
            assert_true(p.end - p.first >= LEAST_PART);
            /* the last step of its cluster, in the round of the tile's owner: nobody waits for a later step */
            assert_true(step + clusters >= step_end(w));
            assert_int_equal(step / clusters, p.tile / clusters);
        }
        for (int k = p.first; k < p.end; k++) covered[(size_t)p.tile * (size_t)k_blocks + (size_t)k]++;
    }
    for (size_t i = 0; i < (size_t)tiles * (size_t)k_blocks; i++) assert_int_equal(covered[i], 1);
    /* no round more than without splitting */
    assert_int_equal((step_end(w) + clusters - 1) / clusters, (tiles + clusters - 1) / clusters);
    free(covered), free(next_part);
}

static void every_block_is_covered_once(void **state)
{
    (void)state;
    for (int clusters = 1; clusters <= 9; clusters++)
        for (int tiles = 1; tiles <= 40; tiles++)
            for (int k_blocks = 1; k_blocks <= 40; k_blocks++) check_walk(tiles, k_blocks, clusters);
    for (int clusters = 66; clusters <= 132; clusters *= 2)
        for (int tiles = 1; tiles < 400; tiles++) check_walk(tiles, 33, clusters), check_walk(tiles, 64, clusters);
}

/* 8B width, QKV in tiles of 128 x 192 on 66 clusters: 31 rounds and two tiles; and the last rounds of less. */
static void last_rounds_are_split(void **state)
{
    (void)state;
    TileWalk w = tile_walk(2048, 64, 66);
    assert_true(w.whole == 2046 && w.split == 2 && w.parts == MOST_PARTS);
    w = tile_walk(688, 256, 66);
    assert_true(w.whole == 660 && w.split == 28 && w.parts == 2);
    w = tile_walk(660 + 34, 256, 66);       /* more than half of the clusters have a tile */
    assert_true(w.whole == 694 && w.split == 0 && w.parts == 1);
    w = tile_walk(660 + 22, 17, 66);        /* K is too short for three parts */
    assert_true(w.split == 22 && w.parts == 2);
    w = tile_walk(660, 256, 66);
    assert_true(w.whole == 660 && w.split == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_is_covered_once), cmocka_unit_test(last_rounds_are_split)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
