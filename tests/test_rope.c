/* Rotary frequencies against the golden values of docs/FORMATS.md (float64, Llama 3.1 and 3.2). */
#include "model/rope.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static Config llama3(double factor)
{
    Config c = {0};
    c.model.rope_theta = 500000;
    c.model.rope_scaling = ROPE_LLAMA3;
    c.model.rope_factor = factor;
    c.model.rope_low_freq_factor = 1;
    c.model.rope_high_freq_factor = 4;
    c.model.rope_original_max_position = 8192;
    return c;
}

static void check(const Config *c, int head_dim, int i, double golden)
{
    double f[head_dim / 2];
    rope_inverse_frequencies(c, head_dim, f);
    if (fabs(f[i] / golden - 1) > 1e-9) fail_msg("inv_freq[%d] is %.9e, golden %.9e", i, f[i], golden);
}

static void golden_64_by_32(void **state)
{
    (void)state;
    Config c = llama3(32);
    const struct { int i; double f; } golden[] = {
        {14, 3.211445995e-03}, {15, 1.290547928e-03}, {16, 4.295567966e-04},
        {17, 9.708287803e-05}, {18, 1.946163818e-05}, {31, 9.418306725e-08}};
    for (int n = 0; n < 6; n++) check(&c, 64, golden[n].i, golden[n].f);
}

static void golden_128_by_8(void **state)
{
    (void)state;
    Config c = llama3(8);
    const struct { int i; double f; } golden[] = {
        {28, 3.211445995e-03}, {29, 2.166570764e-03}, {30, 1.371893568e-03},
        {31, 8.567514129e-04}, {32, 5.248461610e-04}, {33, 3.126937504e-04},
        {34, 1.785078128e-04}, {35, 9.556212354e-05}, {63, 3.068925989e-07}};
    for (int n = 0; n < 9; n++) check(&c, 128, golden[n].i, golden[n].f);
}

/* Llama 3.2 1B: 15 frequencies are kept, 3 blended, 14 stretched. */
static void counts_of_kept_and_stretched(void **state)
{
    (void)state;
    Config scaled = llama3(32), plain = scaled;
    plain.model.rope_scaling = ROPE_NONE;
    double f[32], g[32];
    int kept = 0, stretched = 0;
    rope_inverse_frequencies(&scaled, 64, f);
    rope_inverse_frequencies(&plain, 64, g);
    for (int i = 0; i < 32; i++) kept += f[i] == g[i], stretched += fabs(f[i] * 32 / g[i] - 1) < 1e-12;
    assert_int_equal(kept, 15);
    assert_int_equal(stretched, 14);
}

/* Far positions keep float32's accuracy: the angle is reduced in double. */
static void table_of_far_positions(void **state)
{
    (void)state;
    Config c = {0};
    c.model.rope_theta = 10000;
    enum { POSITIONS = 8193, HEAD = 6 };
    static float table[POSITIONS * HEAD];
    rope_table(&c, HEAD, POSITIONS, table);
    for (int i = 0; i < HEAD / 2; i++) {
        long double angle = 8192.0L * powl(10000.0L, -2.0L * i / HEAD);
        assert_true(fabsl(table[(8192 * (HEAD / 2) + i) * 2] - cosl(angle)) < 1e-7L);
        assert_true(fabsl(table[(8192 * (HEAD / 2) + i) * 2 + 1] - sinl(angle)) < 1e-7L);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_64_by_32), cmocka_unit_test(golden_128_by_8),
        cmocka_unit_test(counts_of_kept_and_stretched), cmocka_unit_test(table_of_far_positions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
