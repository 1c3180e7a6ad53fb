/* Stands in for the real one: the same functions for the emulator. */
#pragma once
#include "emulator.h"

#define PTX static inline

PTX uint32_t shared_address(const void *) { return (uint32_t)me()->block->rank << ADDRESS_BITS | DYNAMIC_AT; }

PTX void mbarrier_init(uint32_t barrier, int arrivals)
{
    MBarrier fresh;
    fresh.count = fresh.pending = arrivals;
    if (!me()->block->barriers.emplace(barrier & ((1u << ADDRESS_BITS) - 1), fresh).second)
        FAIL("two barriers are at %x", barrier);
}
PTX void mbarrier_init_fence() {}
PTX void mbarrier_arrive(uint32_t barrier)
{
    arrive(barrier_at(me()->block, barrier));
    others_first(3);
}
PTX uint32_t barrier_of_block(uint32_t barrier, uint32_t rank)
{
    return (barrier & ((1u << ADDRESS_BITS) - 1)) | rank << ADDRESS_BITS;
}
PTX void mbarrier_arrive_remote(uint32_t barrier) { arrive(barrier_at(block_of(barrier), barrier)); }
PTX void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes)
{
    barrier_at(me()->block, barrier)->bytes += bytes;
    mbarrier_arrive(barrier);
}
PTX void mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    MBarrier *m = barrier_at(me()->block, barrier);
    others_first(6);
    while (m->phase % 2 == parity) m->waiting.fibres.push_back(me()), sleep_fibre();
}

PTX void named_barrier_sync(int id, int threads) { meet(&me()->block->named[id], threads); }
PTX void named_barrier_arrive(int id, int threads) { meet(&me()->block->named[id], threads, false); }

PTX void add_release(unsigned *p, unsigned value) { *p += value; }
PTX unsigned load_acquire(const unsigned *p) { return *p; }

PTX uint32_t cluster_rank() { return (uint32_t)me()->block->rank; }
PTX uint32_t multiprocessor() { return 0; }
PTX uint32_t load_of_block(uint32_t here, uint32_t rank)
{
    uint32_t word;
    memcpy(&word, shared_at(me()->block->cluster->blocks[rank].get(), here), sizeof word);
    return word;
}
PTX void cluster_sync() { meet(&me()->block->cluster->meeting, BLOCK_THREADS * emulator.cluster); }

PTX void tensor_map_prefetch(const CUtensorMap *) {}
PTX void tma_load_multicast(uint32_t to, const CUtensorMap *map, uint32_t barrier, int col, int row, uint16_t blocks)
{
    const int bytes = map->bytes;
    Cluster *cluster = me()->block->cluster;
    for (size_t rank = 0; rank < cluster->blocks.size(); rank++) {
        Block *block = cluster->blocks[rank].get();
        if (blocks >> rank & 1)
            emulator.copies.push_back([=] {
                for (int at = 0; at < bytes; at += TAG_BYTES) tag_at(block, to + at) = int2{row + at / 128, col};
                MBarrier *m = barrier_at(block, barrier);
                m->bytes -= bytes;
                end_phase(m);
            });
    }
}
PTX void tma_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int col, int row)
{
    tma_load_multicast(to, map, barrier, col, row, (uint16_t)(1 << me()->block->rank));
}
PTX void tma_store_commit() {}
PTX void tma_store_wait_read()
{
    others_first(1);
    for (const auto &store : me()->stores) store();
    me()->stores.clear();
}
PTX void fence_for_copy_engine() {}

PTX void wgmma_fence() {}
PTX void wgmma_commit() { me()->groups++; }
/* Threads of a warpgroup do not go on before all of its products are done, as the mainloop takes for granted. */
template <int PENDING> PTX void wgmma_wait()
{
    std::vector<Product> left;
    for (const Product &product : me()->products)
        if (product.group < me()->groups - PENDING) product.run();
        else left.push_back(product);
    me()->products = left;
    others_first(8);
    meet(my_warpgroup(), 128);
}
template <int COUNT> PTX void registers_take() { meet(my_warpgroup(), 128); }
template <int COUNT> PTX void registers_give() { meet(my_warpgroup(), 128); }

PTX uint32_t sixteens_of(uint32_t address) { return (address & 0x3ffff) >> 4; }
PTX uint64_t operand_descriptor(uint32_t sixteens, uint32_t, uint32_t) { return sixteens; }

PTX void load_matrices(uint32_t, uint32_t (&)[4]) {}
PTX void store_matrices(uint32_t, const uint32_t (&)[4]) {}
PTX void store_matrices(uint32_t, const uint32_t (&)[2]) {}

PTX int2 load_ints(uint32_t address)
{
    int2 v;
    memcpy(&v, shared_at(me()->block, address), sizeof v);
    return v;
}
PTX void store_ints(uint32_t address, int row, int col)
{
    const int2 v = {row, col};
    memcpy(shared_at(me()->block, address), &v, sizeof v);
}
