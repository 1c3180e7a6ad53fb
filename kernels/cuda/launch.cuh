/* Starting a kernel: on Hopper its blocks may take their places while the last ones of the kernel before it still run
 * (programmatic dependent launch, CUDA C++ programming guide). */
#pragma once
#include "kernels/cuda/backend.h"

/* ---- in a kernel --------------------------------------------------------------------------------------- */

/* Waits until all that the previous kernels of the stream wrote can be read. */
static __device__ __forceinline__ void wait_for_previous_kernels()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next kernel of the stream start once every block has come here; its own wait keeps it from our memory. */
static __device__ __forceinline__ void dependents_may_launch()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Must be the first statement of a kernel that `launch` starts. */
static __device__ __forceinline__ void after_previous_kernel()
{
    wait_for_previous_kernels();
    dependents_may_launch();
}

/* ---- on the host --------------------------------------------------------------------------------------- */

static inline cudaLaunchAttribute may_overlap()
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    return attribute;
}

/* An op, and where in the code its kernel is launched. */
struct LaunchedOp {
    OpId id;
    const char *file;
    int line;
    LaunchedOp(OpId op, const char *in = __builtin_FILE(), int at = __builtin_LINE()) : id(op), file(in), line(at) {}
};

/* Starts an op's kernel. It overlaps where the code that runs was compiled for Hopper: the other code does not wait. What the
 * kernel reads may be written while it starts, so it must not be read as constant (__ldg, const __restrict__). */
template <class... Parameters, class... Arguments>
static void launch(const OpContext *ctx, LaunchedOp op, void (*kernel)(Parameters...), dim3 blocks, unsigned threads,
                   Arguments... arguments)
{
    cudaLaunchAttribute overlap = may_overlap();
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks, config.blockDim = threads, config.stream = stream_of(ctx);
    config.attrs = &overlap, config.numAttrs = backend_of(ctx)->overlap;
    const cudaError_t status = cudaLaunchKernelEx(&config, kernel, arguments...);
    if (status == cudaSuccess) return;
    const char *name = "a kernel";
    cudaFuncGetName(&name, (const void *)kernel);
    cuda_fail(op.file, op.line, op_name(op.id), name, cudaGetErrorString(status));
}
