/* The CUDA backend as the host sees it: device, ops, and the state that stands behind OpContext.backend. */
#pragma once
#include "kernels/device.h"
#include "kernels/fusion.h"
#include "kernels/ops.h"
#include "model/errors.h"

typedef enum CudaAttention { CUDA_ATTENTION_CUDNN, CUDA_ATTENTION_REFERENCE } CudaAttention;

typedef struct CudaOptions {
    CudaAttention attention;
    FusionMode    fusion[FUSE_COUNT];   /* by FusionKey */
    const char   *cache_dir;            /* measured choices are kept here; NULL = measure at each start */
    size_t        workspace_limit;      /* bytes: GEMM_WORKSPACE, and what is left is for attention */
} CudaOptions;

extern const Ops cuda_ops;
extern const Device cuda_device;

/* Whether training can run here: a driver, a device, and code in this binary for it. Otherwise false, with
 * one sentence in why[size] that says what is missing and what mends it. Needs no driver to be called. */
bool cuda_usable(char *why, size_t size);

/* State for OpContext.backend. Uses the current device. NULL with an error added on failure. */
void *cuda_backend_open(const CudaOptions *options, Errors *errors);

/* The same for planning only: parts, workspace_bytes and choice work with it, on any machine. */
void *cuda_backend_describe(const CudaOptions *options);

void cuda_backend_close(void *backend);

/* The stream that all work of this backend runs on: OpContext.stream. */
void *cuda_backend_stream(void *backend);

/* Device, driver and library versions in one line. Bits are reproducible only where it is the same. */
const char *cuda_backend_versions(const void *backend);

/* Name of the GPU: "NVIDIA H200". */
const char *cuda_backend_gpu(const void *backend);

/* Bytes of device memory in use by this process and others, and in all. */
void cuda_backend_memory(size_t *used, size_t *total);

/* The choices made so far, of GEMM algorithms and between library and fused kernels, one a line, for the
 * checkpoint. Caller frees. */
char *cuda_backend_choices(const void *backend);

/* Uses the choices of a checkpoint instead of measuring. Call before the first op. False, with an error
 * added, where a line does not read: the run continues, but not bitwise. An algorithm that cublasLt refuses
 * here is found out at its first use, and a note on stderr says so. */
bool cuda_backend_restore(void *backend, const char *choices, Errors *errors);

/* From here on every op is timed by itself (but not while a graph is being captured, nor when one runs). */
void cuda_backend_time_ops(void *backend);

/* Milliseconds in all and number of calls of op since then. Waits for the device. */
double cuda_backend_op_ms(void *backend, OpId op, int *calls);

/* Nsight's capture range: cudaProfilerStart and cudaProfilerStop. */
void cuda_profiler(bool on);
