/* Between ways to compute an op: what is faster in one of two times only does not take the library's place. */
#include "kernels/cuda/decision.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void test_time_is_the_mean_of_both(void **state)
{
    (void)state;
    assert_float_equal(time_of((Times){8, 2}), 4, 1e-12);
    assert_float_equal(time_of((Times){7, 0}), 7, 1e-12);      /* alone was not measured */
}

/* Times of 70B's down_dx in ms: alone a large tile is as fast as the small one, in turn no faster than the library. */
static void test_large_tile_that_ties_alone_does_not_run(void **state)
{
    (void)state;
    const Times library = {6.22, 6.23}, ways[] = {{6.24, 5.85}, {5.63, 5.89}};
    assert_int_equal(better_than(library, ways, 2), 1);
    assert_int_equal(better_than(library, ways, 1), -1);
    assert_int_equal(fastest_of(ways, 2), 1);
}

static void test_fused_wins_both_ways_or_not_at_all(void **state)
{
    (void)state;
    const Times library = {10, 10};
    assert_int_equal(better_than(library, (Times[]){{9, 10}}, 1), -1);     /* a draw is no win */
    assert_int_equal(better_than(library, (Times[]){{10, 9}}, 1), -1);
    assert_int_equal(better_than(library, (Times[]){{8, 10.1}}, 1), -1);
    assert_int_equal(better_than(library, (Times[]){{9.9, 9.9}}, 1), 0);
    /* the fastest on the whole loses in turn: the next takes its place */
    assert_int_equal(better_than(library, (Times[]){{10.5, 7}, {9.5, 9.5}, {9.4, 9.4}}, 3), 2);
    assert_int_equal(better_than(library, NULL, 0), -1);
}

static void test_without_times_alone_turns_decide(void **state)
{
    (void)state;
    const Times library = {10, 0};
    assert_int_equal(better_than(library, (Times[]){{9, 0}, {8, 0}, {11, 0}}, 3), 1);
    assert_int_equal(better_than(library, (Times[]){{10, 0}}, 1), -1);
}

static void test_worst_ratio_is_what_it_lost_by(void **state)
{
    (void)state;
    assert_float_equal(worst_ratio((Times){11, 9}, (Times){10, 10}), 1.1, 1e-12);
    assert_float_equal(worst_ratio((Times){9, 12}, (Times){10, 10}), 1.2, 1e-12);
    assert_float_equal(worst_ratio((Times){12, 0}, (Times){10, 0}), 1.2, 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_time_is_the_mean_of_both),
        cmocka_unit_test(test_large_tile_that_ties_alone_does_not_run),
        cmocka_unit_test(test_fused_wins_both_ways_or_not_at_all),
        cmocka_unit_test(test_without_times_alone_turns_decide),
        cmocka_unit_test(test_worst_ratio_is_what_it_lost_by),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
