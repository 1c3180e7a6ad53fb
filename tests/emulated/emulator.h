/* Blocks of kernels on the CPU, as far as the order of things goes: each thread is a fibre, and which one goes on is drawn by
 * lot wherever they meet, wait or touch shared memory. Copies arrive when the lot falls on them, products happen when they are
 * waited for, which is as late as the hardware may be. Shared memory is real, but of a tile that a copy brings it holds only
 * which one it is: a tag at every 1024 bytes. The headers beside this one stand in for those of the same names. */
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <ucontext.h>
#include <vector>

#define __device__
#define __global__
#define __shared__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __align__(bytes)

struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct int2 { int x, y; };
static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
using std::max;
using std::min;

/* What a box of a tensor map takes in shared memory. */
struct CUtensorMap {
    int bytes;
};

enum {
    BLOCK_THREADS = 384,
    SHARED_BYTES = 1 << 18,
    DYNAMIC_AT = 1024,          /* where dynamic shared memory begins: behind what the driver keeps */
    TAG_BYTES = 1024,
    STACK_BYTES = 32 << 10,
    ADDRESS_BITS = 24,          /* a shared address is the block's rank above, the place in its memory below */
};

#define FAIL(...) (printf("not ok - "), printf(__VA_ARGS__), printf("\n"), exit(1))

struct Fibre;

/* Those who wait for something; all are woken to look again. */
struct Waiting {
    std::vector<Fibre *> fibres;
};

struct MBarrier {
    int count = 0, pending = 0;
    int64_t bytes = 0;
    uint32_t phase = 0;
    Waiting waiting;
};

/* A barrier at which a number of threads meet. */
struct Meeting {
    int arrived = 0;
    unsigned generation = 0;
    Waiting waiting;
};

struct Cluster;

/* One of a stream: it starts once all blocks of the one before allow it, and may still find them running. */
struct Kernel {
    int threads, blocks;
    int left = 0, allowing = 0;     /* threads that have ended, blocks that let the next kernel start */
    Kernel *before = nullptr;
    std::vector<Fibre *> next;      /* the next kernel's */
    Waiting end;
};

struct Block {
    Cluster *cluster;
    int rank, left = 0;         /* threads that have ended: then nobody may reach into it any more */
    bool allows = false;        /* the next kernel to start */
    std::vector<uint8_t> memory = std::vector<uint8_t>(SHARED_BYTES, 0xa5);
    std::map<uint32_t, MBarrier> barriers;
    Meeting named[16], warps[BLOCK_THREADS / 32], warpgroups[BLOCK_THREADS / 128], all;
    int shuffled[BLOCK_THREADS];
};

struct Cluster {
    Kernel *kernel;
    std::vector<std::unique_ptr<Block>> blocks;
    Meeting meeting;
};

/* A product that is under way, and how many groups were committed before the one that it is in. */
struct Product {
    std::function<void()> run;
    int group;
};

struct Fibre {
    ucontext_t context;
    std::vector<char> stack = std::vector<char>(STACK_BYTES);
    Block *block;
    int thread;
    bool ready = false, done = false;
    std::vector<Product> products;
    int groups = 0;             /* committed */
    std::vector<std::function<void()>> stores;      /* that read shared memory until they are waited for */
};

struct Emulator {
    std::mt19937_64 lot;
    std::vector<Fibre *> ready;
    std::vector<std::function<void()>> copies;      /* on their way */
    Fibre *now = nullptr;
    ucontext_t main;
    int blocks = 0, cluster = 1;
};

extern Emulator emulator;

/* ---- fibres -------------------------------------------------------------------------------------------- */

static inline Fibre *me() { return emulator.now; }

static inline void wake(Fibre *fibre)
{
    if (fibre->ready || fibre->done) return;
    fibre->ready = true;
    emulator.ready.push_back(fibre);
}

static inline void wake(Waiting *waiting)
{
    for (Fibre *fibre : waiting->fibres) wake(fibre);
    waiting->fibres.clear();
}

static inline void sleep_fibre()
{
    Fibre *fibre = me();
    swapcontext(&fibre->context, &emulator.main);
}

/* Others may come first, once in `one_in` times. */
static inline void others_first(int one_in)
{
    if (emulator.lot() % one_in) return;
    wake(me());
    sleep_fibre();
}

static inline void meet(Meeting *m, int count, bool stay = true)
{
    const unsigned generation = m->generation;
    if (++m->arrived > count) FAIL("more threads than %d meet", count);
    if (m->arrived == count) {
        m->arrived = 0, m->generation++;
        wake(&m->waiting);
    } else if (stay) {
        while (m->generation == generation) m->waiting.fibres.push_back(me()), sleep_fibre();
    }
}

static inline Meeting *my_warp() { return &me()->block->warps[me()->thread / 32]; }
static inline Meeting *my_warpgroup() { return &me()->block->warpgroups[me()->thread / 128]; }

/* ---- shared memory and its barriers -------------------------------------------------------------------- */

static inline Block *block_of(uint32_t address) { return me()->block->cluster->blocks[address >> ADDRESS_BITS].get(); }

static inline void check_is_there(const Block *block)
{
    if (block->left == BLOCK_THREADS) FAIL("a block has left whose shared memory is still in use");
}

static inline uint8_t *shared_at(Block *block, uint32_t address)
{
    const uint32_t place = address & ((1u << ADDRESS_BITS) - 1);
    check_is_there(block);
    if (place + 16 > SHARED_BYTES) FAIL("shared memory is accessed at %u", place);
    return block->memory.data() + place;
}

/* Of the tile whose rows begin at `address`: its first row and column. */
static inline int2 &tag_at(Block *block, uint32_t address)
{
    return *reinterpret_cast<int2 *>(shared_at(block, address / TAG_BYTES * TAG_BYTES));
}

static inline MBarrier *barrier_at(Block *block, uint32_t address)
{
    const auto at = block->barriers.find(address & ((1u << ADDRESS_BITS) - 1));
    check_is_there(block);
    if (at == block->barriers.end()) FAIL("there is no barrier at %x", address);
    return &at->second;
}

static inline void end_phase(MBarrier *m)
{
    if (m->pending || m->bytes) return;
    m->phase++;
    m->pending = m->count;
    wake(&m->waiting);
}

static inline void arrive(MBarrier *m)
{
    if (--m->pending < 0) FAIL("a barrier for %d has more arrivals", m->count);
    end_phase(m);
}

/* ---- what CUDA has without a header -------------------------------------------------------------------- */

struct Index {
    unsigned x;
};
#define threadIdx (Index{(unsigned)me()->thread})
#define gridDim (Index{(unsigned)emulator.blocks})

static inline void __syncwarp()
{
    meet(my_warp(), 32);
    others_first(4);
}

static inline void __syncthreads() { meet(&me()->block->all, BLOCK_THREADS); }

static inline int __shfl_sync(unsigned, int value, int lane)
{
    me()->block->shuffled[me()->thread] = value;
    meet(my_warp(), 32);
    const int got = me()->block->shuffled[me()->thread / 32 * 32 + lane];
    meet(my_warp(), 32);
    return got;
}

static inline float __shfl_xor_sync(unsigned, float value, int mask)
{
    int bits;
    memcpy(&bits, &value, 4);
    bits = __shfl_sync(0, bits, me()->thread % 32 ^ mask);
    memcpy(&value, &bits, 4);
    return value;
}

static inline unsigned atomicAdd(unsigned *p, unsigned value)
{
    others_first(2);
    const unsigned before = *p;
    *p += value;
    return before;
}

static inline void __trap() { FAIL("trap"); }
static inline void __nanosleep(unsigned) { others_first(1); }
static inline void __stcg(float4 *to, float4 value) { *to = value; }
static inline float4 __ldcg(const float4 *from) { return *from; }

static inline void *__cvta_shared_to_generic(size_t address)
{
    others_first(3);
    return shared_at(block_of((uint32_t)address), (uint32_t)address);
}
