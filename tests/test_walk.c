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
        for (int tiles = 1; tiles < 400; tiles++) {
            check_walk(tiles, 33, clusters), check_walk(tiles, 64, clusters);
            const int fewer = walk_clusters(tiles, clusters);
            assert_true(fewer <= clusters && (tiles + fewer - 1) / fewer == (tiles + clusters - 1) / clusters);
            check_walk(tiles, 64, fewer);
        }
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

/* What one round after the other reads, tile by tile, when nothing stays from round to round. */
static double counted_bytes(int tiles_m, int tiles_n, int clusters, int group, double row_bytes, double col_bytes)
{
    double bytes = 0;
    for (int first = 0; first < tiles_m * tiles_n; first += clusters) {
        char row_read[64] = {0}, column_read[64] = {0};
        for (int t = first; t < first + clusters && t < tiles_m * tiles_n; t++) {
            int above = t / (group * tiles_n) * group;
            int height = tiles_m - above < group ? tiles_m - above : group, within = t - above * tiles_n;
            int row = above + within % height, column = within / height;
            if (!row_read[row]++) bytes += row_bytes;
            if (!column_read[column]++) bytes += col_bytes;
        }
    }
    return bytes;
}

static void bytes_are_those_of_each_round(void **state)
{
    (void)state;
    for (int tiles_m = 1; tiles_m <= 13; tiles_m++)
        for (int tiles_n = 1; tiles_n <= 11; tiles_n++)
            for (int clusters = 1; clusters <= 30; clusters++)
                for (int group = 1; group <= tiles_m; group++) {
                    double got = walk_bytes(tiles_m, tiles_n, clusters, group, 3, 1000, 0);
                    double want = counted_bytes(tiles_m, tiles_n, clusters, group, 3, 1000);
                    /* a round that goes from a group's last columns to the next group's first ones may count
                     * a column twice */
                    assert_true(got >= want && got <= want + 1000.0 * (tiles_m * tiles_n / clusters + 1));
                    if (group * tiles_n % clusters == 0) assert_true(got == want);
                }
}

/* Everything fits: each operand is read once, however tiles are walked. */
static void what_stays_is_read_once(void **state)
{
    (void)state;
    for (int group = 1; group <= 9; group++)
        for (int clusters = 1; clusters <= 70; clusters++) {
            assert_true(walk_bytes(9, 7, clusters, group, 2, 5, 1e9) == 9 * 2 + 7 * 5);
            /* rows alone do, and a group spans the whole height: every column is entered once */
            if (group == 9) assert_true(walk_bytes(9, 7, clusters, group, 2, 5, 20) == 9 * 2 + 7 * 5);
        }
}

/* 1B width, gate/up's dX, 16,384 tokens, K = 16,384: tiles of 128 x 192 in pairs, 64 x 11 of them. */
static void groups_fill_rounds(void **state)
{
    (void)state;
    const double row = 256 * 16384 * 2, column = 192 * 16384 * 2, cache = 25 << 20;
    assert_int_equal(walk_clusters(64 * 11, 66), 64);       /* 11 rounds of 64, instead of 10 and 44 left over */
    assert_int_equal(walk_clusters(64 * 8, 66), 64);
    assert_int_equal(walk_clusters(660 + 28, 66), 66);      /* the last round is split instead */
    assert_int_equal(walk_clusters(20, 66), 66);
    assert_int_equal(walk_clusters(50, 66), 50);
    int group = walk_group(60, 11, 66, row, column, cache); /* 66 = 6 x 11 */
    assert_true(walk_bytes(60, 11, 66, group, row, column, cache) == 10 * (6 * row + 11 * column));
    group = walk_group(64, 8, 64, 256 * 16384.0 * 2, 256 * 16384.0 * 2, cache);
    assert_int_equal(group, 8);
    /* K = 2,048: a group's rows stay while it walks on, so more of them are better */
    assert_true(walk_group(64, 86, 66, 256 * 2048.0 * 2, 192 * 2048.0 * 2, cache) > USUAL_GROUP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_is_covered_once), cmocka_unit_test(last_rounds_are_split),
        cmocka_unit_test(bytes_are_those_of_each_round), cmocka_unit_test(what_stays_is_read_once),
        cmocka_unit_test(groups_fill_rounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
