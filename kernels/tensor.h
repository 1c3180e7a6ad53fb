/* Tensors as the kernels see them: a pointer with its shape and dtype, nothing owned. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef enum Dtype { DTYPE_F32, DTYPE_BF16, DTYPE_E4M3, DTYPE_E5M2 } Dtype;

static inline size_t dtype_bytes(Dtype t) { return t == DTYPE_F32 ? 4 : t == DTYPE_BF16 ? 2 : 1; }

/* A row-major matrix. data == NULL means "not wanted" where an op allows it. */
typedef struct Tensor {
    void   *data;       /* [rows, cols] of dtype, consecutive rows `stride` elements apart */
    int64_t rows, cols;
    int64_t stride;     /* elements; cols when packed */
    Dtype   dtype;
    /* The rest is used by FP8 only and NULL otherwise. All three live on the device. */
    float  *scale;      /* [1]: real value = stored value * scale, known before the op runs */
    float  *amax;       /* [1]: the op raises it to max |real value| */
    void   *transposed; /* [cols, rows] of dtype: the second copy, for the weight-gradient GEMM */
} Tensor;

/* Partial row sums: a fused tile leaves one part per column tile, other ops leave one in all. The
 * consumer adds the parts of a row. */
typedef struct RowSums {
    float *data;        /* [rows, parts] f32 */
    int    parts;
} RowSums;

/* What turns a residual stream x into its RMSNorm: r = rstd(x) = 1 / sqrt(sum(sumsq) / cols + eps). */
typedef struct RowNorm {
    RowSums sumsq;      /* partial sums of x^2 */
    float   eps;
    int64_t cols;       /* width of x, which not every op that needs r is given */
} RowNorm;

/* Working weights keep rows in the order that epilogues want; masters keep Hugging Face's order.
 *   ROWS_PLAIN     the same
 *   ROWS_QKV       within each head of q and k, row 2i is master row i and row 2i+1 is master row
 *                  i + head_dim/2, so that rotary pairs are neighbours; v is unchanged
 *   ROWS_GATE_UP   blocks of 16 rows: eight gates, then their eight ups; the master has all gates, then
 *                  all ups (docs/MATH.md, section 1) */
typedef enum RowOrder { ROWS_PLAIN, ROWS_QKV, ROWS_GATE_UP } RowOrder;

typedef struct RowLayout {
    RowOrder order;
    int      head_dim;  /* ROWS_QKV */
    int64_t  rotated;   /* ROWS_QKV: rows of q and k together, (heads + kv_heads) * head_dim */
    int64_t  ffn;       /* ROWS_GATE_UP: a multiple of 8 */
} RowLayout;

#define GATE_UP_BLOCK 8

#ifdef __CUDACC__
#define TENSOR_FN static inline __host__ __device__
#else
#define TENSOR_FN static inline
#endif

/* The master row behind a working row. The one definition of both permutations. */
TENSOR_FN int64_t master_row(RowLayout l, int64_t row)
{
    if (l.order == ROWS_QKV && row < l.rotated) {
        int64_t head = row / l.head_dim, i = row % l.head_dim;
        return head * l.head_dim + i / 2 + (i % 2) * (l.head_dim / 2);
    }
    if (l.order == ROWS_GATE_UP) {
        int64_t block = row / (2 * GATE_UP_BLOCK), i = row % (2 * GATE_UP_BLOCK);
        return block * GATE_UP_BLOCK + i % GATE_UP_BLOCK + (i >= GATE_UP_BLOCK ? l.ffn : 0);
    }
    return row;
}

static inline Tensor tensor(void *data, int64_t rows, int64_t cols, Dtype dtype)
{
    return (Tensor){.data = data, .rows = rows, .cols = cols, .stride = cols, .dtype = dtype};
}

/* Rows [first, first + rows) of t, not for FP8. */
static inline Tensor tensor_rows(Tensor t, int64_t first, int64_t rows)
{
    if (t.data) t.data = (char *)t.data + (size_t)(first * t.stride) * dtype_bytes(t.dtype);
    t.rows = rows;
    return t;
}
