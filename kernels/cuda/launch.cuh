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

/* Starts an op's kernel. Only on Hopper does it overlap: elsewhere code for older GPUs may run, which does not wait. */
template <class... Parameters, class... Arguments>
static void launch(const OpContext *ctx, OpId op, void (*kernel)(Parameters...), dim3 blocks, unsigned threads,
                   Arguments... arguments)
{
    cudaLaunchAttribute overlap = {};
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = blocks, config.blockDim = threads, config.stream = stream_of(ctx);
    config.attrs = &overlap, config.numAttrs = backend_of(ctx)->sm90;
    CUDA_CHECK(op_name(op), cudaLaunchKernelEx(&config, kernel, arguments...));
}
