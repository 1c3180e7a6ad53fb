/* Which multiprocessors form a GPC, and what the blocks of a kernel count together. */
#pragma once
#include "kernels/cuda/fused/places.h"
#include <cuda_runtime.h>

/* Of one kernel's clusters. Zeros before it; the last to leave sets them back. */
struct ClusterCounts {
    unsigned asked[MOST_GPCS];      /* for a place: take_place */
    unsigned arrived;               /* at stops of the walk: arrivals() */
    unsigned left;
};

struct Gpcs {
    int count;                      /* one with all multiprocessors where they cannot be told apart */
    int multiprocessors[MOST_GPCS]; /* of each */
    uint8_t *of;                    /* device, by %smid */
    ClusterCounts *counts;          /* device, [2], for kernels in turn: one may begin before the previous one has ended */
    int turn;
};

/* CUDA does not tell: launches clusters, which never extend over two GPCs, and looks where their blocks are. Takes a
 * millisecond. */
Gpcs gpcs_open(int multiprocessors, cudaStream_t stream);
void gpcs_close(const Gpcs *gpcs);
