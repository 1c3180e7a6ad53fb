/* Sampling: the limits of each setting, and frequencies against the softmax. */
#include "model/random.h"
#include "model/sampler.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static const float logits[5] = {1.0f, 3.0f, 2.0f, -1.0f, 3.0f - 1e-3f};

static Sampler make(double temperature, int64_t top_k, double top_p, uint64_t key)
{
    Sampler s;
    assert_true(sampler_init(&s, 5, temperature, top_k, top_p, key));
    return s;
}

static void zero_temperature_takes_the_best(void **state)
{
    (void)state;
    Sampler s = make(0, 0, 1, 7);
    for (int i = 0; i < 20; i++) assert_int_equal(sampler_next(&s, logits), 1);
    sampler_free(&s);
}

static void frequencies_follow_the_softmax(void **state)
{
    (void)state;
    enum { DRAWS = 200000 };
    Sampler s = make(0.8, 0, 1, 7);
    int count[5] = {0};
    double total = 0;
    for (int i = 0; i < DRAWS; i++) count[sampler_next(&s, logits)]++;
    for (int i = 0; i < 5; i++) total += exp(logits[i] / 0.8);
    for (int i = 0; i < 5; i++) {
        double p = exp(logits[i] / 0.8) / total, sigma = sqrt(p * (1 - p) / DRAWS);
        assert_true(fabs((double)count[i] / DRAWS - p) < 5 * sigma);
    }
    sampler_free(&s);
}

static void top_k_and_top_p_cut_the_tail(void **state)
{
    (void)state;
    Sampler k = make(1, 2, 1, 3), p = make(1, 0, 0.5, 3);
    for (int i = 0; i < 2000; i++) {
        int32_t id = sampler_next(&k, logits);
        assert_true(id == 1 || id == 4);
        id = sampler_next(&p, logits);      /* 1 alone holds 0.39, with 4 0.78 */
        assert_true(id == 1 || id == 4);
    }
    sampler_free(&k);
    sampler_free(&p);
}

static void same_key_same_text(void **state)
{
    (void)state;
    Sampler a = make(1, 0, 1, 11), b = make(1, 0, 1, 11), c = make(1, 0, 1, 12);
    int different = 0;
    for (int i = 0; i < 100; i++) {
        int32_t id = sampler_next(&a, logits);
        assert_int_equal(id, sampler_next(&b, logits));
        different += id != sampler_next(&c, logits);
    }
    assert_true(different > 10);
    sampler_free(&a), sampler_free(&b), sampler_free(&c);
}

/* The generator behind weights and samples: moments of a uniform number, and no simple correlation. */
static void uniform_numbers(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    double sum = 0, squares = 0, neighbours = 0, last = 0.5;
    for (uint64_t i = 0; i < N; i++) {
        double u = random_uniform(1, i);
        assert_true(u > 0 && u < 1);
        sum += u, squares += u * u, neighbours += (u - 0.5) * (last - 0.5), last = u;
    }
    assert_true(fabs(sum / N - 0.5) < 5 / sqrt(12.0 * N));
    assert_true(fabs(squares / N - 1.0 / 3) < 5 * sqrt(4.0 / 45 / N));
    assert_true(fabs(neighbours / N) < 5.0 / 12 / sqrt(N));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(zero_temperature_takes_the_best), cmocka_unit_test(frequencies_follow_the_softmax),
        cmocka_unit_test(top_k_and_top_p_cut_the_tail), cmocka_unit_test(same_key_same_text),
        cmocka_unit_test(uniform_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
