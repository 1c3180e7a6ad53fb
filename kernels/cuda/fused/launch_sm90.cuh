/* From tensors to a launch of mainloop_sm90.cuh. */
#pragma once
#include "kernels/cuda/fused/fused.h"
#include "kernels/cuda/fused/mainloop_sm90.cuh"
#include "kernels/cuda/fused/tensor_map.h"
#include "kernels/cuda/fused/walk_choice.h"
#include <algorithm>

enum { MOST_BUFFERS = 6 };      /* more would never be in flight */

/* D [m, n] over k, as G was compiled; a and b as they are stored. */
template <class G>
static void launch_gemm(const FusedCall &call, Tensor a, Tensor b, int64_t m, int64_t n, int64_t k,
                        const typename G::Program::Params &p)
{
    const char *op = op_name(call.op);
    CudaBackend *backend = backend_of(call.ctx);
    const int cluster = call.variant.cluster;
    GemmArgs g = {};
    g.m = (int)m, g.n = (int)n;
    g.cluster = cluster;
    g.tiles_m = (int)((m + G::BM * cluster - 1) / (G::BM * cluster));
    g.tiles_n = (int)((n + G::BN - 1) / G::BN);
    g.group = std::max(1, call.variant.group / cluster);
    if (!fused_tiles_fit(m, n)) cuda_fail(__FILE__, __LINE__, op, "fused_tiles_fit", "too many tiles");
    const int most = walk_clusters(g.tiles_m * g.tiles_n, backend->multiprocessors / cluster);
    g.walk = tile_walk(g.tiles_m * g.tiles_n, (int)((k + BLOCK_K - 1) / BLOCK_K), most);
    const int clusters = std::min(step_end(g.walk), most);
    g.sums = (float *)call.ctx->workspace;
    g.arrived = backend->parts_arrived;
    const int64_t parts = (int64_t)g.walk.split * (g.walk.parts - 1) * cluster * CONSUMERS;
    if (parts * PartSums<G>::FLOATS * (int64_t)sizeof(float) > GEMM_WORKSPACE)
        cuda_fail(__FILE__, __LINE__, op, "tile_walk", "the sums of split tiles do not fit into the workspace");

    Gpcs *gpcs = &backend->gpcs;
    g.places = places_of(gpcs->count, gpcs->multiprocessors, clusters);
    g.gpc_of = gpcs->of;
    g.counts = gpcs_counts(gpcs, stream_of(call.ctx));

    CUtensorMap map_a = tensor_map(op, a, 64, G::A_ROWS ? 64 : G::BM);
    CUtensorMap map_b = tensor_map(op, b, 64, G::B_ROWS ? 64 : G::BN / G::B_PIECES);

    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim = {(unsigned)cluster, 1, 1};
    attributes[1] = may_overlap();
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(clusters * cluster));
    config.blockDim = dim3(GEMM_THREADS);
    config.dynamicSmemBytes = G::SHARED;
    config.stream = stream_of(call.ctx);
    config.attrs = attributes;
    config.numAttrs = 2;
    static const cudaError_t allowed =      /* once a kernel */
        cudaFuncSetAttribute(gemm_sm90<G>, cudaFuncAttributeMaxDynamicSharedMemorySize, G::SHARED);
    CUDA_CHECK(op, allowed);
    CUDA_CHECK(op, cudaLaunchKernelEx(&config, gemm_sm90<G>, map_a, map_b, g, p));
}

/* Chunk buffers that fit beside all else. */
template <class Program, Share SHARE, int BM, int BN, int STAGES> constexpr int buffers_beside()
{
    if constexpr (Program::BUFFER == 0) return 0;
    typedef Gemm<Program, false, false, SHARE, BM, BN, STAGES, 1> With1;
    return std::min((int)MOST_BUFFERS, 1 + (SHARED_LIMIT - With1::SHARED) / With1::A_BUFFER);
}

template <class Program, bool A_ROWS, bool B_ROWS, Share SHARE, int BM, int BN, int STAGES = 4>
using TiledGemm = Gemm<Program, A_ROWS, B_ROWS, SHARE, BM, BN, STAGES, buffers_beside<Program, SHARE, BM, BN, STAGES>()>;

/* The same for the tile that the call asks for. */
template <class Program, bool A_ROWS, bool B_ROWS>
static void launch_program(const FusedCall &call, Tensor a, Tensor b, int64_t m, int64_t n, int64_t k,
                           const typename Program::Params &p)
{
    switch (call.variant.tile) {
    case TILE_192x128:
        return launch_gemm<TiledGemm<Program, A_ROWS, B_ROWS, IN_TURNS, 192, 128>>(call, a, b, m, n, k, p);
    case TILE_128x192:
        return launch_gemm<TiledGemm<Program, A_ROWS, B_ROWS, IN_TURNS, 128, 192>>(call, a, b, m, n, k, p);
    case TILE_256x128:
        if constexpr (Program::LONG_K)
            return launch_gemm<TiledGemm<Program, A_ROWS, B_ROWS, HALF_ROWS, 256, 128>>(call, a, b, m, n, k, p);
        break;
    case TILE_256x192:
        if constexpr (Program::LONG_K)
            return launch_gemm<TiledGemm<Program, A_ROWS, B_ROWS, HALF_ROWS, 256, 192, 3>>(call, a, b, m, n, k, p);
        break;
    case TILE_192x256:
        if constexpr (Program::LONG_K)
            return launch_gemm<TiledGemm<Program, A_ROWS, B_ROWS, HALF_COLUMNS, 192, 256, 3>>(call, a, b, m, n, k, p);
        break;
    default: break;
    }
    cuda_fail(__FILE__, __LINE__, op_name(call.op), fused_tile_name(call.variant.tile), "no such tile of this op");
}
