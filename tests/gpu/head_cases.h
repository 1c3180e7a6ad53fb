/* Cases of test_gpu_ops that concern the head. Each takes test->size. */
#pragma once
#include "tests/gpu/gpu_testing.h"

void test_head(GpuTest *test);
void test_head_forward_only(GpuTest *test);
void test_head_extremes(GpuTest *test);
void test_head_nan(GpuTest *test);
void test_head_zero_row(GpuTest *test);
