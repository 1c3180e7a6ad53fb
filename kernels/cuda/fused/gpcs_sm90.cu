#include "kernels/cuda/fused/gpcs.h"
#include "kernels/cuda/backend.h"
#include <algorithm>
#include <vector>

static const int BLOCK_BYTES = 200 << 10;   /* of shared memory: one block a multiprocessor */
enum { RUNS = 3 };

__global__ void where_blocks_are(int *where)
{
    int multiprocessor;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
    where[blockIdx.x] = multiprocessor;
    __nanosleep(20000);     /* until the others have started, too */
}

/* Multiprocessors of the blocks of one launch in clusters of `size`, cluster by cluster. None where the GPU has no such
 * clusters. */
static std::vector<int> blocks_of_clusters(int multiprocessors, int size, int *device_where, cudaStream_t stream)
{
    std::vector<int> where((size_t)(multiprocessors / size * size));
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {(unsigned)size, 1, 1};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)where.size());
    config.blockDim = dim3(1);
    config.dynamicSmemBytes = BLOCK_BYTES;
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    if (cudaLaunchKernelEx(&config, where_blocks_are, device_where) != cudaSuccess) {
        cudaGetLastError();
        return {};
    }
    CUDA_CHECK("open", cudaMemcpyAsync(where.data(), device_where, where.size() * sizeof(int), cudaMemcpyDeviceToHost,
                                       stream));
    CUDA_CHECK("open", cudaStreamSynchronize(stream));
    return where;
}

/* For each multiprocessor one that stands for its GPC; -1 for numbers that no block has seen. Empty when there are larger
 * numbers than expected. */
static std::vector<int> find_gpcs(int multiprocessors, cudaStream_t stream)
{
    int *where;
    std::vector<int> gpc(MOST_MULTIPROCESSORS, -1);
    CUDA_CHECK("open", cudaMalloc(&where, (size_t)multiprocessors * sizeof *where));
    CUDA_CHECK("open", cudaFuncSetAttribute(where_blocks_are, cudaFuncAttributeMaxDynamicSharedMemorySize, BLOCK_BYTES));
    CUDA_CHECK("open", cudaFuncSetAttribute(where_blocks_are, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
    for (int size : {16, 8, 6, 4, 2})
        for (int run = 0; run < RUNS; run++) {
            const std::vector<int> blocks = blocks_of_clusters(multiprocessors, size, where, stream);
            if (std::any_of(blocks.begin(), blocks.end(), [](int at) { return at >= MOST_MULTIPROCESSORS; })) gpc.clear();
            for (size_t i = 0; !gpc.empty() && i < blocks.size(); i++) {
                const int at = blocks[i], first = blocks[i / size * size];
                if (gpc[at] < 0) gpc[at] = at;
                std::replace(gpc.begin(), gpc.end(), gpc[at], gpc[first]);
            }
        }
    CUDA_CHECK("open", cudaFree(where));
    return gpc;
}

Gpcs gpcs_open(int multiprocessors, cudaStream_t stream)
{
    Gpcs gpcs = {};
    const std::vector<int> gpc = find_gpcs(multiprocessors, stream);
    std::vector<uint8_t> of(MOST_MULTIPROCESSORS);
    std::vector<int> names;
    for (size_t i = 0; i < gpc.size(); i++) {
        if (gpc[i] < 0) continue;
        const size_t found = std::find(names.begin(), names.end(), gpc[i]) - names.begin();
        if (found == names.size()) names.push_back(gpc[i]);
        of[i] = (uint8_t)found;
        if (found < MOST_GPCS) gpcs.multiprocessors[found]++;
    }
    gpcs.count = (int)names.size();
    if (gpcs.count == 0 || gpcs.count > MOST_GPCS) {
        gpcs.count = 1, gpcs.multiprocessors[0] = multiprocessors;
        std::fill(of.begin(), of.end(), 0);
    }
    CUDA_CHECK("open", cudaMalloc(&gpcs.of, of.size()));
    CUDA_CHECK("open", cudaMalloc(&gpcs.counts, 4 * sizeof *gpcs.counts));
    CUDA_CHECK("open", cudaMemsetAsync(gpcs.counts, 0, 4 * sizeof *gpcs.counts, stream));
    CUDA_CHECK("open", cudaMemcpyAsync(gpcs.of, of.data(), of.size(), cudaMemcpyHostToDevice, stream));
    CUDA_CHECK("open", cudaStreamSynchronize(stream));
    return gpcs;
}

ClusterCounts *gpcs_counts(Gpcs *gpcs, cudaStream_t stream)
{
    cudaStreamCaptureStatus status;
    CUDA_CHECK("gpcs", cudaStreamIsCapturing(stream, &status));
    const int recorded = status != cudaStreamCaptureStatusNone;
    return gpcs->counts + 2 * recorded + (gpcs->turn[recorded] ^= 1);
}

void gpcs_close(const Gpcs *gpcs)
{
    cudaFree(gpcs->of);
    cudaFree(gpcs->counts);
}
