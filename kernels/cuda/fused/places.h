/* Which places of the walk (walk.h) the clusters of a GPC take: for the device and for the host, where
 * tests/test_walk.c checks it.
 *
 * Multiprocessors come in groups of 16 or 18, GPCs, and what several of one GPC ask of L2 at about the same time is
 * read there once. So clusters that share operands should sit in one GPC. Which cluster starts where is up to the
 * hardware; each therefore looks where it is, and takes the next place of its GPC. */
#pragma once
#include "kernels/cuda/host_device.h"
#include <stdint.h>

enum { MOST_GPCS = 16, MOST_MULTIPROCESSORS = 256 };

/* GPC i has the places [first[i], first[i] + count[i]). */
typedef struct Places {
    int gpcs;
    uint8_t first[MOST_GPCS], count[MOST_GPCS];
} Places;

/* `clusters` places, at most 255, shared out by how many multiprocessors each GPC has. */
static inline Places places_of(int gpcs, const int *multiprocessors, int clusters)
{
    Places p = {gpcs, {0}, {0}};
    int all = 0, seen = 0, given = 0;
    for (int i = 0; i < gpcs; i++) all += multiprocessors[i];
    for (int i = 0; i < gpcs; i++) {
        seen += multiprocessors[i];
        const int end = clusters * seen / all;
        p.first[i] = (uint8_t)given;
        p.count[i] = (uint8_t)(end - given);
        given = end;
    }
    return p;
}

/* What the clusters of one kernel count together. Zeros before it; the last to leave sets them back. */
typedef struct ClusterCounts {
    unsigned asked[MOST_GPCS];      /* for a place: take_place */
    unsigned arrived;               /* at stops of the walk: arrivals() in walk.h */
    unsigned left;
} ClusterCounts;

/* Adds one to *count and returns what it was. */
typedef unsigned (*CountUp)(unsigned *count);

/* A place that nobody else has, of `gpc` while it has any. asked: [MOST_GPCS] how often each GPC has been. As many
 * clusters as there are places find all of them, in whatever order they ask and wherever they are. */
HOST_DEVICE int take_place(const Places *p, unsigned *asked, int gpc, CountUp count_up)
{
    for (;; gpc = gpc + 1 < p->gpcs ? gpc + 1 : 0) {
        const unsigned place = count_up(asked + gpc);
        if (place < p->count[gpc]) return p->first[gpc] + (int)place;
    }
}
