/* The walk over the tiles of a product: each block of each tile's K is worked on once, by clusters that all run
 * at the same time where one waits for another; and where clusters begin in it. */
#include "kernels/cuda/fused/places.h"
#include "kernels/cuda/fused/walk_choice.h"
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

/* Every tile has one spot, a patch's tiles follow each other, and a group's end before the next one's begin. */
static void every_tile_has_its_spot(void **state)
{
    (void)state;
    enum { MOST = 23 };
    for (int rows = 1; rows <= MOST; rows++)
        for (int columns = 1; columns <= MOST; columns++)
            for (int group = 1; group <= rows; group++)
                for (int high = 1; high <= PATCH_ROWS; high *= 2) {
                    char found[MOST][MOST] = {{0}};
                    int patch = 0, last_patch = -1;     /* among those of a group, from left to right and down */
                    for (int t = 0; t < rows * columns; t++) {
                        const TileSpot at = tile_spot(rows, columns, group, high, t);
                        assert_in_range(at.row, 0, rows - 1);
                        assert_in_range(at.column, 0, columns - 1);
                        assert_int_equal(found[at.row][at.column]++, 0);
                        assert_int_equal(at.row / group, t / (group * columns));
                        patch = (at.row / group * MOST + at.column / PATCH_COLUMNS) * MOST + at.row % group / high;
                        assert_true(patch >= last_patch);
                        last_patch = patch;
                    }
                }
}

/* Also where the division is off by what the device's may be: two units in the last place (CUDA C++ programming guide,
 * __fdividef). */
static void quotients_are_whole(void **state)
{
    (void)state;
    for (int b = 1; b < MOST_TILES; b += 1 + b / 64)
        for (int64_t multiple = b; multiple <= MOST_TILES; multiple += b)
            for (int a = (int)multiple - 1; a <= multiple && a < MOST_TILES; a++) {
                assert_int_equal(quotient(a, b), a / b);
                const double exact = (a + 0.5) / b, off = exact * ldexp(1, -22);
                assert_true((int)(exact - off) == a / b && (int)(exact + off) == a / b);
            }
}

/* Clusters arrive at their stops and wait there one at a time, in any order: all get to the end, and none passes a stop
 * before all others that have it have arrived. */
static void check_stops(int tiles, int k_blocks, int clusters, int stride)
{
    const TileWalk w = tile_walk(tiles, k_blocks, clusters);
    const int stops = stops_of(w);
    int *arrived = calloc((size_t)clusters, sizeof *arrived), *passed = calloc((size_t)clusters, sizeof *passed);
    int *all = calloc((size_t)clusters, sizeof *all), count = 0, moved = 1;
    assert_true(arrived && passed && all && stops > 0);
    for (int c = 0; c < w.whole; c++) all[c % clusters] += stops;
    while (moved) {
        moved = 0;
        for (int i = 0; i < clusters; i++) {
            const int c = i * stride % clusters, stop = passed[c];
            if (stop == all[c]) continue;
            if (arrived[c] == stop) {
                arrived[c]++, count++, moved = 1;
            } else if (count >= arrivals(w, clusters, c + stop / stops * clusters, stop % stops)) {
                for (int other = 0; other < clusters; other++)
                    assert_true(arrived[other] > stop || passed[other] == all[other]);
                passed[c]++, moved = 1;
            }
        }
    }
    assert_memory_equal(passed, all, (size_t)clusters * sizeof *all);
    free(arrived), free(passed), free(all);
}

static void nobody_runs_ahead_or_waits_for_ever(void **state)
{
    (void)state;
    for (int stride = 1; stride <= 7; stride += 6)      /* numbers of clusters are no multiples of 7 */
        for (int tiles = 1; tiles < 400; tiles += 3) {
            check_stops(tiles, PACED_BLOCKS, 66, stride);
            check_stops(tiles, PACED_BLOCKS + WAIT_AT + 1, 132, stride);
            check_stops(tiles, PACED_BLOCKS + WAIT_AT, 9, stride);
        }
    /* a block at which something happens is missed by none who go from one to the next */
    for (int block = 0, next = next_event(0); block < 300; block++) {
        const bool event = block % PACE_BLOCKS == ARRIVE_AT || block % PACE_BLOCKS == WAIT_AT;
        assert_int_equal(event, block == next);
        if (event) next = next_event(block);
    }
    /* the last stop is within the tile */
    for (int k_blocks = 1; k_blocks < 300; k_blocks++) {
        const int stops = stops_of(tile_walk(1, k_blocks, 1));
        assert_true(stops == 0 || (stops - 1) * PACE_BLOCKS + WAIT_AT < k_blocks);
        assert_true(k_blocks < PACED_BLOCKS ? stops == 0 : stops * PACE_BLOCKS + WAIT_AT >= k_blocks);
    }
}

/* A round reads each row and each column that it has tiles of. */
static void bytes_are_those_of_each_round(void **state)
{
    (void)state;
    const double row = 3, column = 1000;
    /* 12 x 8 tiles, 24 at a time, in groups of 6 rows: 6 rows and 4 columns each time; in one group: 12 and 4 */
    TileGrid g = {12, 8, PATCH_ROWS, row, column};
    assert_true(walk_bytes(g, 24, 6, 0) == 4 * (6 * row + 4 * column));
    assert_true(walk_bytes(g, 48, 12, 0) == 2 * (12 * row + 4 * column));
    assert_true(walk_bytes(g, 96, 6, 0) == 12 * row + 8 * column);
    assert_true(walk_bytes(g, 1, 6, 0) == 96 * (row + column));
    /* a group's rows stay: only columns are read again */
    assert_true(walk_bytes(g, 24, 6, 6 * row) == 12 * row + 16 * column);
}

/* Everything fits: each operand is read once, however tiles are walked. */
static void what_stays_is_read_once(void **state)
{
    (void)state;
    const TileGrid g = {9, 7, PATCH_ROWS, 2, 5};
    for (int group = 1; group <= 9; group++)
        for (int clusters = 1; clusters <= 70; clusters++)
            assert_true(walk_bytes(g, clusters, group, 1e9) == 9 * 2 + 7 * 5);
}

/* 1B width, gate/up's dX, 16,384 tokens, K = 16,384: tiles of 128 x 192. */
static void groups_fill_rounds(void **state)
{
    (void)state;
    const double row = 128 * 16384 * 2, column = 192 * 16384 * 2, cache = 12.5 * (1 << 20);
    assert_int_equal(walk_clusters(64 * 11, 66), 64);       /* 11 rounds of 64, instead of 10 and 44 left over */
    assert_int_equal(walk_clusters(64 * 8, 66), 64);
    assert_int_equal(walk_clusters(660 + 28, 66), 66);      /* the last round is split instead */
    assert_int_equal(walk_clusters(20, 66), 66);
    assert_int_equal(walk_clusters(50, 66), 50);
    const TileGrid wide = {128, 44, PATCH_ROWS, row, column};
    assert_int_equal(walk_group(wide, 132, cache), 12);     /* 11 rows x 12 columns are 132, but patches have 4 rows */
    const TileGrid narrow = {128, 11, PATCH_ROWS, row, column};
    assert_int_equal(walk_group(narrow, 128, cache), 4);    /* all columns at once: patches rather than single rows */
    /* K = 2,048: a group's rows stay while it walks on, so more of them are better */
    const TileGrid flat = {128, 86, PATCH_ROWS, row / 8, column / 8};
    assert_true(walk_group(flat, 132, cache) > USUAL_GROUP);
}

static unsigned add_one(unsigned *count) { return (*count)++; }

/* An H200's GPCs have 16 or 18 multiprocessors; clusters of two, on all of them, or on some that the hardware chose. */
static void every_cluster_finds_a_place(void **state)
{
    (void)state;
    enum { GPCS = 8, ALL = 132, STEP = 7 };
    static const int multiprocessors[GPCS] = {16, 16, 18, 16, 16, 16, 18, 16};
    for (int cluster = 1; cluster <= 2; cluster++)
        for (int clusters = 1; clusters <= ALL / cluster; clusters++)
            for (int shift = 0; shift < 3; shift++) {
                const Places p = places_of(GPCS, multiprocessors, clusters);
                unsigned asked[MOST_GPCS] = {0};
                uint8_t found[ALL] = {0};
                int at_home = 0;
                for (int i = 0; i < clusters; i++) {
                    /* shift 0: evenly over all; 1: only on the first GPCs; 2: all on the last one */
                    int gpc = shift == 2 ? GPCS - 1 : 0;
                    int at = shift ? i * cluster : (i * STEP % clusters) * ALL / clusters;
                    for (; shift < 2 && at >= multiprocessors[gpc]; gpc++) at -= multiprocessors[gpc];
                    const int place = take_place(&p, asked, gpc, add_one);
                    assert_in_range(place, 0, clusters - 1);
                    assert_int_equal(found[place]++, 0);
                    at_home += place >= p.first[gpc] && place < p.first[gpc] + p.count[gpc];
                }
                if (clusters == ALL / cluster && shift < 2) assert_int_equal(at_home, clusters);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_block_is_covered_once), cmocka_unit_test(last_rounds_are_split),
        cmocka_unit_test(every_tile_has_its_spot), cmocka_unit_test(quotients_are_whole),
        cmocka_unit_test(nobody_runs_ahead_or_waits_for_ever),
        cmocka_unit_test(bytes_are_those_of_each_round), cmocka_unit_test(what_stays_is_read_once),
        cmocka_unit_test(groups_fill_rounds), cmocka_unit_test(every_cluster_finds_a_place)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
