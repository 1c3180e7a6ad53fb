#include "kernels/cuda/fused/tensor_map.h"
#include "kernels/cuda/backend.h"
#include <cstdio>
#include <cudaTypedefs.h>

/* Through the runtime, so that the program starts where there is no driver library. */
static PFN_cuTensorMapEncodeTiled_v12000 find_encoder()
{
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    CUDA_CHECK("tensor map", cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                              cudaEnableDefault, &found));
    return found == cudaDriverEntryPointSuccess ? (PFN_cuTensorMapEncodeTiled_v12000)entry : nullptr;
}

CUtensorMap tensor_map(const char *op, Tensor t, int box_cols, int box_rows)
{
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = find_encoder();
    const cuuint64_t size[2] = {(cuuint64_t)t.cols, (cuuint64_t)t.rows};
    const cuuint64_t pitch[1] = {(cuuint64_t)t.stride * dtype_bytes(t.dtype)};
    const cuuint32_t box[2] = {(cuuint32_t)box_cols, (cuuint32_t)box_rows}, step[2] = {1, 1};
    const bool narrow = box_cols * dtype_bytes(t.dtype) <= 64;
    CUtensorMap map;
    CUresult result = !encode ? CUDA_ERROR_NOT_SUPPORTED
                              : encode(&map,
                                       t.dtype == DTYPE_F32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                                            : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                                       2, t.data, size, pitch, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                       narrow ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
                                       CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result != CUDA_SUCCESS) {
        char cause[160];
        snprintf(cause, sizeof cause, "the driver refuses [%lld, %lld], %lld elements a row (error %d)",
                 (long long)t.rows, (long long)t.cols, (long long)t.stride, (int)result);
        cuda_fail(__FILE__, __LINE__, op, "cuTensorMapEncodeTiled", cause);
    }
    return map;
}
