/* Between ways to compute an op: what is faster in one of two times only does not take the library's place. */
#include "kernels/cuda/decision.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

/* Of 70B's gradient of wgate and wup, in milliseconds: cublasLt's tile of 256x128, and a smaller one that draws more power. */
static void test_time_alone_counts(void **state)
{
    (void)state;
    assert_true(time_of((Times){11.77, 11.51}) < time_of((Times){11.58, 12.28}));
    assert_float_equal(time_of((Times){7, 0}), 7, 1e-12);      /* alone was not measured */
}

/* Of 70B's down_dx: alone a large tile is faster than the library, in turn it is not. */
static void test_large_tile_that_loses_in_turn_does_not_run(void **state)
{
    (void)state;
    const Times library = {6.22, 6.23};
    assert_false(wins((Times){6.24, 5.85}, library));
    assert_true(wins((Times){5.63, 5.89}, library));
}

static void test_fused_wins_both_ways_or_not_at_all(void **state)
{
    (void)state;
    const Times library = {10, 10};
    assert_false(wins((Times){9, 10}, library));       /* a draw is no win */
    assert_false(wins((Times){10, 9}, library));
    assert_false(wins((Times){8, 10.1}, library));
    assert_false(wins((Times){9.95, 9}, library));     /* even, within what times scatter */
    assert_false(wins((Times){9, 9.95}, library));
    assert_true(wins((Times){9.89, 9.89}, library));
}

static void test_without_times_alone_turns_decide(void **state)
{
    (void)state;
    const Times library = {10, 0};
    assert_true(wins((Times){9, 0}, library));
    assert_false(wins((Times){10, 0}, library));
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
        cmocka_unit_test(test_time_alone_counts),
        cmocka_unit_test(test_large_tile_that_loses_in_turn_does_not_run),
        cmocka_unit_test(test_fused_wins_both_ways_or_not_at_all),
        cmocka_unit_test(test_without_times_alone_turns_decide),
        cmocka_unit_test(test_worst_ratio_is_what_it_lost_by),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
