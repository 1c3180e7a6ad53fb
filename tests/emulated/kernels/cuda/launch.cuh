/* Stands in for the real one: kernels that overlap, in the emulator. */
#pragma once
#include "emulator.h"

static inline void wait_for_previous_kernels()
{
    Kernel *before = me()->block->cluster->kernel->before;
    others_first(2);
    while (before && before->left < before->threads) before->end.fibres.push_back(me()), sleep_fibre();
}

/* For its whole block, whichever thread comes first. */
static inline void dependents_may_launch()
{
    Block *block = me()->block;
    Kernel *kernel = block->cluster->kernel;
    if (block->allows) return;
    block->allows = true;
    if (++kernel->allowing == kernel->blocks)
        for (Fibre *fibre : kernel->next) wake(fibre);
}
