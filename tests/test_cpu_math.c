/* The CPU's own exponential and sigmoid against the C library in double precision, and host memory as a
 * device. */
#include "kernels/cpu/math.h"
#include "kernels/device.h"
#include "tests/op_testing.h"

static void test_exp(void **state)
{
    (void)state;
    double worst = 0;
    /* every 509th float of [-87.3, 88.3], and all around zero */
    for (uint32_t bits = 0; bits < 0x42B09999u; bits += 509)
        for (int sign = 0; sign < 2; sign++) {
            float x = float_from_bits(bits | (uint32_t)sign << 31);
            if (x < -87.3f || x > 88.3f) continue;
            double want = exp((double)x), error = fabs((double)fast_exp(x) - want) / want;
            if (error > worst) worst = error;
        }
    if (worst > 1.2e-7) fail_msg("relative error of fast_exp is %g", worst);
    assert_true(fast_exp(0) == 1 && fast_exp(-0.0f) == 1);
    assert_true(fast_exp(-87.4f) == 0 && fast_exp(-1e30f) == 0 && fast_exp(-INFINITY) == 0);
    assert_true(isinf(fast_exp(88.8f)) && isinf(fast_exp(1e30f)) && isinf(fast_exp(INFINITY)));
    assert_true(isnan(fast_exp(NAN)));
}

/* The loops that use it are vectorised; they must give what single calls give. */
static void test_exp_in_a_loop(void **state)
{
    (void)state;
    enum { N = 1003 };
    float x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = 0.21f * (float)(i - 600);
    x[17] = NAN, x[18] = INFINITY, x[19] = -INFINITY;
#pragma omp simd
    for (int i = 0; i < N; i++) y[i] = fast_exp(x[i]);
    for (int i = 0; i < N; i++) {
        double want = exp((double)x[i]);
        if (x[i] < -87.3f) want = 0;
        if (x[i] > 88.37f) want = INFINITY;
        if (isnan(want)) assert_true(isnan(y[i]));
        else assert_true((double)y[i] == want || fabs((double)y[i] - want) <= 1.2e-7 * want);
    }
}

static void test_sigmoid(void **state)
{
    (void)state;
    for (float g = -86.9f; g < 87; g += 0.0137f) {
        Sigmoid s = sigmoid(g);
        double yes = 1 / (1 + exp(-(double)g)), no = 1 / (1 + exp((double)g));
        check_number("sigmoid", (double)s.yes, yes, 4e-7);
        check_number("1 - sigmoid", (double)s.no, no, 4e-7);
    }
    assert_true(sigmoid(1e30f).yes == 1 && sigmoid(1e30f).no == 0);
    assert_true(sigmoid(-INFINITY).yes == 0 && sigmoid(-INFINITY).no == 1);
    assert_true(isnan(sigmoid(NAN).yes) && isnan(sigmoid(NAN).no));
}

static void test_device(void **state)
{
    (void)state;
    assert_string_equal(cpu_device.name, "cpu");
    assert_true(cpu_device.host_memory);
    char *memory = cpu_device.alloc(1001), text[8] = "";
    assert_non_null(memory);
    assert_int_equal((uintptr_t)memory % 256, 0);
    cpu_device.upload(NULL, memory, "abcdefg", 8);
    cpu_device.zero(NULL, memory + 2, 2);
    cpu_device.download(NULL, text, memory, 8);
    cpu_device.wait(NULL);
    assert_memory_equal(text, "ab\0\0efg", 8);
    cpu_device.release(memory);
    assert_null(cpu_device.alloc(SIZE_MAX - 5));
    assert_null(cpu_device.alloc((size_t)1 << 62));
    assert_false(cpu_device.capture_begin(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp), cmocka_unit_test(test_exp_in_a_loop), cmocka_unit_test(test_sigmoid),
        cmocka_unit_test(test_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
