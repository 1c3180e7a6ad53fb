/* Which multiprocessors form a GPC. */
#pragma once
#include "kernels/cuda/fused/places.h"
#include <cuda_runtime.h>

struct Gpcs {
    int count;                      /* one with all multiprocessors where they cannot be told apart */
    int multiprocessors[MOST_GPCS]; /* of each */
    uint8_t *of;                    /* device, [MOST_MULTIPROCESSORS] by %smid */
    ClusterCounts *counts;          /* device, [4]: see gpcs_counts */
    int turn[2];                    /* of kernels that are launched, and that are recorded into graphs */
};

/* CUDA does not tell: launches clusters, which never extend over two GPCs, and looks where their blocks are. Takes a
 * millisecond. */
Gpcs gpcs_open(int multiprocessors, cudaStream_t stream);

/* Counts for the next kernel on `stream`. A kernel takes its places while the one before it may still run, so neighbours must
 * not share counts: kernels take turns at two of them, and recorded ones at two others. That is enough because each kernel
 * that lets the next one begin early first waits for the end of the one before it, and because nothing begins before a graph
 * that is launched ahead of it has ended, nor the graph before what is ahead of it. One stream only. */
ClusterCounts *gpcs_counts(Gpcs *gpcs, cudaStream_t stream);

void gpcs_close(const Gpcs *gpcs);
