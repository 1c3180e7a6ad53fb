/* What the tests of single ops share: tensors with poisoned outputs and guarded strides, comparison with a
 * naive formulation in double precision, and central differences. */
#pragma once
#include "kernels/ops.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* Owns everything that a test allocates. */
typedef struct OpTest {
    OpContext ctx;          /* with scratch for any size that tests use */
    uint64_t  random;
    void    **blocks;
    int       count, capacity;
} OpTest;

int op_test_setup(void **state);        /* cmocka: *state becomes an OpTest */
int op_test_teardown(void **state);

/* Memory that lives as long as the test, filled with NaN. */
void *op_test_alloc(OpTest *test, size_t bytes);

double  random_uniform(OpTest *test);               /* [0, 1) */
double  random_normal(OpTest *test);
int32_t random_below(OpTest *test, int64_t n);

/* [rows, cols] of normal numbers times scale; rows lie `pad` elements further apart than they are long and
 * the gap holds a guard. */
Tensor random_tensor(OpTest *test, int64_t rows, int64_t cols, int64_t pad, double scale);
/* The same, filled with NaN: what an op does not write shows. */
Tensor output_tensor(OpTest *test, int64_t rows, int64_t cols, int64_t pad);
Tensor copy_tensor(OpTest *test, Tensor t);
float *random_floats(OpTest *test, int64_t n, double mean, double scale);
float *output_floats(OpTest *test, int64_t n);

static inline double at(Tensor t, int64_t i, int64_t k) { return ((const float *)t.data)[i * t.stride + k]; }

/* All elements as doubles, packed. */
double *doubles_of(OpTest *test, Tensor t);
double *doubles(OpTest *test, int64_t n);           /* zeros */

/* ||got - want|| <= tolerance * ||want||, no NaN, and the gaps between rows untouched. want: packed. */
void check_tensor(const char *what, Tensor got, const double *want, double tolerance);
void check_floats(const char *what, const float *got, const double *want, int64_t n, double tolerance);
void check_number(const char *what, double got, double want, double tolerance);     /* relative */
void check_same_bits(const char *what, Tensor got, Tensor want);

/* Sums of squares of the rows of x in `parts` pieces, as the op before would have left them. */
RowNorm row_norm_of(OpTest *test, Tensor x, int parts, float eps);
double  rstd_of(Tensor x, int64_t row, float eps);
RowSums output_sums(OpTest *test, int64_t rows);

/* Rotary table for positions below `positions`, base 100. */
float *rope_table_of(OpTest *test, int head_dim, int64_t positions);

/* order: rows sorted by ids, equal ids in row order. */
int32_t *order_of(OpTest *test, const int32_t *ids, int64_t n);

/* c = a b^T, all packed.  a: [m, k]  b: [n, k] */
void naive_nt(double *c, const double *a, const double *b, int64_t m, int64_t n, int64_t k);

/* Central differences of f at x[n] into grad[n]. */
void central_differences(double (*f)(void *arg), void *arg, double *x, int64_t n, double *grad);

/* Runs body(test) with 1, 2 and 3 threads. */
void with_threads(OpTest *test, void (*body)(OpTest *test));
