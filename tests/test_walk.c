/* The walk over the tiles of a product: each block of each tile's K is worked on once, by turns that all run
 * at the same time where one waits for another. */
#include "kernels/cuda/fused/walk.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static void check_walk(int tiles, int k_blocks, int steps)
{
    const TileWalk w = tile_walk(tiles, k_blocks, steps);
    uint8_t *covered = calloc((size_t)tiles * (size_t)k_blocks, 1);
    int *next_part = calloc((size_t)tiles, sizeof *next_part);
    assert_true(covered && next_part);
    assert_int_equal(tile_end(w), tiles);
    for (int turn = 0; turn < turn_end(w); turn++) {
        const TilePart p = tile_part(w, turn);
        assert_in_range(p.tile, 0, tiles - 1);
        assert_true(p.first < p.end && p.end <= k_blocks);
        /* owners are the turns before tile_end, in the order of tiles; parts are added in theirs */
        if (turn < tiles) assert_true(p.tile == turn && p.part == 0 && p.first == 0);
        else assert_true(p.part > 0);
        assert_int_equal(p.part, next_part[p.tile]++);
        if (p.end - p.first < k_blocks) {
            assert_true(p.end - p.first >= LEAST_PART);
            /* the last turn of its cluster, in the round of the tile's owner: nobody waits for a later turn */
            assert_true(turn + steps >= turn_end(w));
            assert_int_equal(turn / steps, p.tile / steps);
        }
        for (int k = p.first; k < p.end; k++) covered[(size_t)p.tile * (size_t)k_blocks + (size_t)k]++;
    }
    for (size_t i = 0; i < (size_t)tiles * (size_t)k_blocks; i++) assert_int_equal(covered[i], 1);
    /* no round more than without splitting */
    assert_int_equal((turn_end(w) + steps - 1) / steps, (tiles + steps - 1) / steps);
    free(covered), free(next_part);
}

static void every_block_is_covered_once(void **state)
{
    (void)state;
    for (int steps = 1; steps <= 9; steps++)
        for (int tiles = 1; tiles <= 40; tiles++)
            for (int k_blocks = 1; k_blocks <= 40; k_blocks++) check_walk(tiles, k_blocks, steps);
    for (int steps = 66; steps <= 132; steps *= 2)
        for (int tiles = 1; tiles < 400; tiles++) check_walk(tiles, 33, steps), check_walk(tiles, 64, steps);
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
