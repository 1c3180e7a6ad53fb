/* Hopper's instructions under names: barriers in shared memory, bulk tensor copies, warpgroup products,
 * matrix moves between registers and shared memory. mainloop_sm90.cuh says how they are used. */
#pragma once
#include <cstdint>
#include <cuda.h>
#include <cuda_bf16.h>

#define PTX static __device__ __forceinline__

PTX uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* ---- mbarrier: a phase completes when its arrivals and its expected bytes are all in ------------------- */

PTX void mbarrier_init(uint32_t barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

/* Makes initialised barriers visible to the copy engine and to the cluster. */
PTX void mbarrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

PTX void mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* Where the barrier at the same place in block `rank` of the cluster is. */
PTX uint32_t barrier_of_block(uint32_t barrier, uint32_t rank)
{
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(barrier), "r"(rank));
    return there;
}

/* Takes what barrier_of_block returned. It carries no fence of cluster scope: one would order all earlier
 * stores of the block, which costs a quarter of the GEMM. */
PTX void mbarrier_arrive_remote(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}

PTX void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* The hint, in nanoseconds, lets a waiting thread sleep instead of asking again and again: polling takes
 * issue slots and power from the warps that multiply. */
PTX void mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "AGAIN_%=:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1, %2;\n"
                 "@done bra.uni DONE_%=;\n"
                 "bra.uni AGAIN_%=;\n"
                 "DONE_%=:\n"
                 "}" ::"r"(barrier), "r"(parity), "r"(1000000) : "memory");
}

/* ---- named barriers: waiting threads sleep ------------------------------------------------------------- */

PTX void named_barrier_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Whether any of the threads that meet says so. */
PTX bool named_barrier_any(int id, int threads, bool mine)
{
    uint32_t any;
    asm volatile("{\n\t"
                 ".reg .pred mine, any;\n\t"
                 "setp.ne.u32 mine, %3, 0;\n\t"
                 "bar.red.or.pred any, %1, %2, mine;\n\t"
                 "selp.u32 %0, 1, 0, any;\n\t"
                 "}"
                 : "=r"(any)
                 : "r"(id), "r"(threads), "r"((uint32_t)mine)
                 : "memory");
    return any;
}

PTX void named_barrier_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* For one thread behind a barrier: what its block wrote before can be read by whoever sees the sum. */
PTX void add_release(unsigned *p, unsigned value)
{
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(value) : "memory");
}

/* What other blocks wrote before their add_release can be read afterwards. */
PTX unsigned load_acquire(const unsigned *p)
{
    unsigned value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(p) : "memory");
    return value;
}

/* ---- clusters ------------------------------------------------------------------------------------------ */

PTX uint32_t cluster_rank()
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/* The multiprocessor that this block is on. */
PTX uint32_t multiprocessor()
{
    uint32_t id;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(id));
    return id;
}

/* A word at the same place in shared memory of block `rank` of the cluster. */
PTX uint32_t load_of_block(uint32_t here, uint32_t rank)
{
    uint32_t word;
    asm volatile("{\n\t"
                 ".reg .u32 there;\n\t"
                 "mapa.shared::cluster.u32 there, %1, %2;\n\t"
                 "ld.shared::cluster.u32 %0, [there];\n\t"
                 "}"
                 : "=r"(word)
                 : "r"(here), "r"(rank));
    return word;
}

PTX void cluster_sync()
{
    asm volatile("barrier.cluster.arrive;\n"
                 "barrier.cluster.wait;" ::: "memory");
}

/* ---- bulk tensor copies -------------------------------------------------------------------------------- */

PTX void tensor_map_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* The box of `map` at (col, row) of the matrix. What lies outside is filled with zeros. */
PTX void tma_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int col, int row)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(col), "r"(row)
                 : "memory");
}

/* The same into every block of the cluster in `blocks`, at one place and on one barrier. */
PTX void tma_load_multicast(uint32_t to, const CUtensorMap *map, uint32_t barrier, int col, int row,
                            uint16_t blocks)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
        "l"(map), "r"(barrier), "r"(col), "r"(row), "h"(blocks)
        : "memory");
}

/* What lies outside the matrix is not stored. */
PTX void tma_store(const CUtensorMap *map, uint32_t from, int col, int row)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
        "r"(from), "r"(col), "r"(row)
        : "memory");
}

PTX void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }

/* Until the copy engine has read the shared memory of all stores that this thread committed. */
PTX void tma_store_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

/* Orders this thread's earlier accesses to shared memory before those of the copy engine that follow a
 * barrier. */
PTX void fence_for_copy_engine() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* ---- warpgroup products -------------------------------------------------------------------------------- */

PTX void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
PTX void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> PTX void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

template <int COUNT> PTX void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> PTX void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}

/* A shared address as descriptors want it. Its upper bits, which name the block of the cluster, are cut off:
 * they would end up among the distances. */
PTX uint32_t sixteens_of(uint32_t address) { return (address & 0x3ffff) >> 4; }

/* Operand in shared memory, 128-byte swizzle, at sixteens_of its address: steps to the next are then
 * constants and cost one addition. Both distances in bytes; their meaning depends on the storage form
 * (mainloop_sm90.cuh). */
PTX uint64_t operand_descriptor(uint32_t sixteens, uint32_t leading, uint32_t stride)
{
    const uint32_t swizzle_128 = 1u << 30, low = sixteens + (leading >> 4 << 16);
    return (uint64_t)(swizzle_128 | stride >> 4) << 32 | low;
}

/* ---- 8 x 8 matrices of 16-bit values between registers and shared memory ------------------------------- */

PTX void load_matrices(uint32_t address, uint32_t (&m)[4])
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address) : "memory");
}

PTX void store_matrices(uint32_t address, const uint32_t (&m)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(m[0]),
                 "r"(m[1]), "r"(m[2]), "r"(m[3]) : "memory");
}

PTX void store_matrices(uint32_t address, const uint32_t (&m)[2])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(m[0]),
                 "r"(m[1])
                 : "memory");
}

PTX float2 load_pair(uint32_t address)
{
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
    return v;
}

PTX void store_pair(uint32_t address, float2 v)
{
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
}

PTX int2 load_ints(uint32_t address)
{
    int2 v;
    asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
    return v;
}

PTX void store_ints(uint32_t address, int row, int col)
{
    asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(address), "r"(row), "r"(col) : "memory");
}
