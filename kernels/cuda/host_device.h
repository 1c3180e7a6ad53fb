/* For functions of the kernels that also compile for the host, where tests check them without a GPU. */
#pragma once

#ifdef __CUDACC__
#define HOST_DEVICE static __host__ __device__ __forceinline__
#else
#define HOST_DEVICE static inline
#endif
