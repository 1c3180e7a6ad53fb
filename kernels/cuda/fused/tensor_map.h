/* Descriptions of matrices for the copy engine. */
#pragma once
#include "kernels/tensor.h"
#include <cuda.h>

/* t in boxes of box_cols x box_rows elements, which lie in shared memory row by row, swizzled over 128 bytes,
 * or over 64 where a row of the box has no more. Needs 16-byte aligned rows. Ends the process where the
 * driver refuses. */
CUtensorMap tensor_map(const char *op, Tensor t, int box_cols, int box_rows);
