/* Learning-rate schedules against numbers worked out by hand. */
#include "model/schedule.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static Config base(ScheduleKind kind)
{
    Config c = {0};
    c.train.steps = 101;
    c.train.warmup_steps = 10;
    c.train.lr = 1;
    c.train.min_lr_ratio = 0.1;
    c.train.schedule = kind;
    c.train.decay_fraction = 0.2;
    return c;
}

static void close_to(double value, double expected)
{
    if (fabs(value - expected) > 1e-12) fail_msg("%.15g instead of %.15g", value, expected);
}

static void warmup_is_linear_and_ends_at_lr(void **state)
{
    (void)state;
    for (int kind = SCHEDULE_COSINE; kind <= SCHEDULE_WSD; kind++) {
        Config c = base((ScheduleKind)kind);
        close_to(schedule_lr(&c, 0), 0.1);
        close_to(schedule_lr(&c, 4), 0.5);
        close_to(schedule_lr(&c, 9), 1.0);
        close_to(schedule_lr(&c, 10), 1.0);
    }
}

static void cosine(void **state)
{
    (void)state;
    Config c = base(SCHEDULE_COSINE);
    close_to(schedule_lr(&c, 55), 0.55);             /* half way: the mean of both ends */
    close_to(schedule_lr(&c, 40), 0.1 + 0.9 * 0.75); /* a third: cos 60 degrees = 1/2 */
    close_to(schedule_lr(&c, 100), 0.1);
}

static void linear(void **state)
{
    (void)state;
    Config c = base(SCHEDULE_LINEAR);
    close_to(schedule_lr(&c, 55), 0.55);
    close_to(schedule_lr(&c, 28), 1 - 0.9 * 0.2);
    close_to(schedule_lr(&c, 100), 0.1);
}

static void constant(void **state)
{
    (void)state;
    Config c = base(SCHEDULE_CONSTANT);
    close_to(schedule_lr(&c, 60), 1);
    close_to(schedule_lr(&c, 100), 1);
}

static void wsd(void **state)
{
    (void)state;
    Config c = base(SCHEDULE_WSD);
    close_to(schedule_lr(&c, 80), 1);       /* 101 - round(20.2) = 81 is where the decay begins */
    close_to(schedule_lr(&c, 81), 1);
    close_to(schedule_lr(&c, 100), 0.1);
    c.train.steps = 96, c.train.decay_fraction = 0.21875;                   /* 21 steps: 75 .. 95 */
    close_to(schedule_lr(&c, 85), 0.55);
    c.train.decay_shape = DECAY_SQRT;
    close_to(schedule_lr(&c, 80), 1 - 0.9 * 0.5);                           /* a quarter: its root is 1/2 */
    close_to(schedule_lr(&c, 95), 0.1);
}

static void edges(void **state)
{
    (void)state;
    for (int kind = SCHEDULE_COSINE; kind <= SCHEDULE_WSD; kind++) {
        Config c = base((ScheduleKind)kind);
        c.train.steps = 1, c.train.warmup_steps = 0;
        assert_true(isfinite(schedule_lr(&c, 0)));
        c.train.steps = 10, c.train.warmup_steps = 10;
        close_to(schedule_lr(&c, 9), 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warmup_is_linear_and_ends_at_lr), cmocka_unit_test(cosine), cmocka_unit_test(linear),
        cmocka_unit_test(constant), cmocka_unit_test(wsd), cmocka_unit_test(edges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
