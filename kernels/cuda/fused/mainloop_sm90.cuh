/* Matrix product on Hopper whose epilogue is a program (primitives.cuh): D = epilogue(A B), BF16 operands,
 * FP32 sums.
 *
 * One block a multiprocessor walks over tiles. Its three warpgroups:
 *   0     moves data. Warp 0 loads operands by TMA into a ring of STAGES. Warps 1 and 2 serve one consumer
 *         each: they load what its epilogue needs into chunk buffers long before, and store what it leaves.
 *         Warp 3 finds out what the epilogues need to know of each row, while the tile is being multiplied.
 *   1, 2  consume. In turns, each a tile of its own ("ping-pong"): while one multiplies, the other runs its
 *         epilogue, which costs no time as long as it is shorter. Or together, each half the rows or columns
 *         of one tile ("cooperative"): the tile may be larger, so that operands are read less often, but the
 *         tensor cores wait for the epilogue: for a long K.
 *
 * A chunk is 64 rows x Program::COLUMNS accumulator columns. A chunk buffer is filled (or just handed over,
 * where a program loads nothing), worked on in place, and stored: `loaded` and `finished` are its two barriers.
 *
 * Storage forms, 64 of K a stage, 128-byte swizzle, blocks of 64 rows x 128 bytes:
 *   K contiguous        descriptor stride 1024 (next 8 rows); 16 of K are 32 bytes on
 *   M or N contiguous   a block every 64 columns: leading 8192 (next block), stride 1024; 16 of K are 2048 on
 *
 * Tails need no code: TMA fills zeros where it reads outside, and stores nothing outside.
 *
 * Tiles of the last round, where they are too few for all multiprocessors, are split along K: the other blocks
 * leave their sums in memory, and the tile's owner, which has the first part, adds them in order.
 *
 * The two blocks of a cluster share their columns of B: they take turns at loading pieces of it for both.
 *
 * tests/test_mainloop.cpp runs this file on the CPU, each thread a fibre, to check who waits for whom.
 *
 * What limits large products is power, and operands on their way take some: so clusters that share them sit in one GPC
 * (places.h), keep pace along K, and every other round walks K backwards, from what is still in L2. */
#pragma once
#include "kernels/cuda/fused/places.h"
#include "kernels/cuda/fused/primitives.cuh"
#include "kernels/cuda/fused/walk.h"
#include "kernels/cuda/fused/wgmma_sm90.cuh"
#include "kernels/cuda/launch.cuh"
#include <type_traits>
#include <utility>

enum {
    BLOCK_K = 64,               /* of K in one stage: 128 bytes */
    CONSUMERS = 2,
    GEMM_THREADS = 128 * (1 + CONSUMERS),
    LOADER_REGISTERS = 24,      /* and the consumers what is left of 65536 */
    CONSUMER_REGISTERS = 240,
    BARRIER_TURN = 1,           /* named barriers 1 and 2: whose turn it is to multiply */
    BARRIER_FINISH = 3,         /* both consumers are done */
    BARRIER_PART = 4,           /* and 5: all threads of a consumer have left or may read a part's sums */
    MOST_LOOKS = 300,           /* for others at a stop: 0.2 ms, far more than they need */
    SHARED_LIMIT = 227 * 1024,  /* all that a block may ask for */
};

struct GemmArgs {
    int m, n;
    int tiles_m, tiles_n;       /* tiles_m counts clusters */
    int group;                  /* rows of clusters that are walked together: tile_spot */
    int cluster;                /* blocks a cluster: 1 or 2 along M */
    TileWalk walk;
    float *sums;                /* of all parts but the first, see part_sums */
    unsigned *arrived;          /* [split, cluster, CONSUMERS]: parts that are there; 0 between kernels */
    Places places;
    const uint8_t *gpc_of;      /* by multiprocessor */
    ClusterCounts *counts;      /* this kernel's */
};

/* What shared memory holds of each row: nothing where Row is empty. */
template <class Program> constexpr int row_bytes()
{
    return std::is_empty<typename Program::Row>::value ? 0 : (int)sizeof(typename Program::Row);
}

/* Whether it has a fetch or store of its own. */
template <class Program> constexpr bool has_fetch()
{
    typedef decltype(Program::fetch(std::declval<const typename Program::Params &>(), 0u, 0u, 0, 0)) Returned;
    return !std::is_same<Returned, Epilogue::LeftOut>::value;
}

template <class Program> constexpr bool has_store()
{
    typedef decltype(Program::store(std::declval<const typename Program::Params &>(), 0u, 0, 0)) Returned;
    return !std::is_same<Returned, Epilogue::LeftOut>::value;
}

/* How the two consumers share tiles: they take turns, or each works on half of one. */
enum Share { IN_TURNS, HALF_ROWS, HALF_COLUMNS };

/* Tiles of BM x BN. A_ROWS, B_ROWS: the operand is stored with M (N) contiguous. */
template <class Program_, bool A_ROWS_, bool B_ROWS_, Share SHARE_, int BM_, int BN_, int STAGES_, int BUFFERS_>
struct Gemm {
    typedef Program_ Program;
    static constexpr bool A_ROWS = A_ROWS_, B_ROWS = B_ROWS_, TOGETHER = SHARE_ != IN_TURNS;
    static constexpr int BM = BM_, BN = BN_, STAGES = STAGES_, BUFFERS = BUFFERS_;
    /* a consumer's rows and columns of a tile, and how far consumer 1's are from 0's */
    static constexpr int CM = SHARE_ == HALF_ROWS ? BM / 2 : BM, CN = SHARE_ == HALF_COLUMNS ? BN / 2 : BN;
    static constexpr int ROWS_APART = BM - CM, COLUMNS_APART = BN - CN;
    static constexpr int ROWS64 = CM / 64;
    static constexpr int TURNS = TOGETHER ? 1 : CONSUMERS;  /* every how many steps it is a consumer's turn */

    static constexpr int A_BYTES = BM * 128, B_BYTES = BN * 128;
    static constexpr int B_PIECES = B_ROWS ? BN / 64 : 2, B_PIECE_BYTES = B_BYTES / B_PIECES;
    static constexpr int COLUMNS = Program::COLUMNS, ROW_BYTES = row_bytes<Program>();

    /* shared memory, which begins at a multiple of 1024 */
    static constexpr int AT_B = STAGES * A_BYTES, AT_CHUNKS = AT_B + STAGES * B_BYTES;
    static constexpr int AT_BARRIERS = AT_CHUNKS + CONSUMERS * BUFFERS * Program::BUFFER;
    static constexpr int BARRIERS = 2 * STAGES + 2 * CONSUMERS * (BUFFERS + 1);
    static constexpr int AT_CORNERS = AT_BARRIERS + 8 * BARRIERS;
    static constexpr int AT_PLACE = AT_CORNERS + 8 * CONSUMERS * BUFFERS, AT_ROWS = AT_PLACE + 16;
    static constexpr int SHARED = AT_ROWS + CONSUMERS * CM * ROW_BYTES;
    static constexpr int A_BUFFER = CONSUMERS * (Program::BUFFER + 8 * 3);  /* with its barriers and corner */

    static_assert(SHARED <= SHARED_LIMIT,
                  "too many stages or chunk buffers; where there is but one: fewer COLUMNS, or LONG_K = false");
    static_assert(alignof(typename Program::Row) <= 8, "rows lie behind words of eight bytes");
    static_assert(Program::BUFFER == 0 || BUFFERS > 0, "chunk buffers");
    static_assert(Program::BUFFER % 1024 == 0, "tiles in chunk buffers begin where the swizzle does");
    static_assert(COLUMNS == 32 || COLUMNS == 64, "COLUMNS of a chunk: 32 or 64");
    static_assert(Program::LOAD_BYTES <= Program::BUFFER, "LOAD_BYTES: what fetch loads lies in a chunk's BUFFER bytes");
    static_assert(has_fetch<Program>() || Program::LOAD_BYTES == 0, "LOAD_BYTES without fetch: loads would never arrive");
    static_assert(!has_fetch<Program>() || &Program::LOAD_BYTES != &Epilogue::LOAD_BYTES,
                  "fetch without LOAD_BYTES is never called");
    static_assert(has_store<Program>() || Program::BUFFER == 0, "BUFFER without store: what lies in it would go nowhere");
    static_assert(CM % 64 == 0 && CN % 64 == 0 && ROWS64 * CN <= 384, "tile");
};

/* Addresses of one block's barriers and buffers. */
template <class G> struct Shared {
    uint32_t base;

    __device__ uint32_t a(int stage) const { return base + stage * G::A_BYTES; }
    __device__ uint32_t b(int stage) const { return base + G::AT_B + stage * G::B_BYTES; }
    __device__ uint32_t chunk(int consumer, int buffer) const
    {
        return base + G::AT_CHUNKS + (consumer * G::BUFFERS + buffer) * G::Program::BUFFER;
    }
    __device__ uint32_t full(int stage) const { return base + G::AT_BARRIERS + 8 * stage; }
    __device__ uint32_t empty(int stage) const { return full(G::STAGES + stage); }
    __device__ uint32_t loaded(int consumer, int buffer) const
    {
        return full(2 * G::STAGES + consumer * G::BUFFERS + buffer);
    }
    __device__ uint32_t finished(int consumer, int buffer) const { return loaded(CONSUMERS + consumer, buffer); }
    __device__ uint32_t known(int consumer) const { return full(2 * G::STAGES + 2 * CONSUMERS * G::BUFFERS + consumer); }
    __device__ uint32_t taken(int consumer) const { return known(CONSUMERS + consumer); }
    __device__ uint32_t corner(int consumer, int buffer) const
    {
        return base + G::AT_CORNERS + 8 * (consumer * G::BUFFERS + buffer);
    }
    __device__ uint32_t place() const { return base + G::AT_PLACE; }
    /* What is known of row `row` of a consumer's rows of a tile. */
    __device__ typename G::Program::Row &row(int consumer, int row) const
    {
        void *at = __cvta_shared_to_generic(base + G::AT_ROWS + (consumer * G::CM + row) * G::ROW_BYTES);
        return *reinterpret_cast<typename G::Program::Row *>(at);
    }
};

/* A place in a ring of SLOTS and the parity of the barrier phase that belongs to this time round. */
template <int SLOTS> struct Ring {
    int slot = 0;
    uint32_t parity = 0;

    __device__ void next()
    {
        if (++slot == SLOTS) slot = 0, parity ^= 1;
    }
    __device__ void skip(int count)
    {
        slot += count;
        parity ^= slot / SLOTS & 1;
        slot %= SLOTS;
    }
};

/* The first row and column of a tile or a chunk. */
struct Corner {
    int row, col;
};

template <class G> PTX Corner tile_corner(const GemmArgs &g, int tile)
{
    int group = g.group;
    asm volatile("" : "+r"(group));     /* or what quotients by it need stays in registers while products run */
    const TileSpot spot = tile_spot(g.tiles_m, g.tiles_n, group, PATCH_ROWS / g.cluster, tile);
    return Corner{(spot.row * g.cluster + (int)cluster_rank()) * G::BM, spot.column * G::BN};
}

/* ---- what clusters do together ------------------------------------------------------------------------- */

PTX unsigned add_one(unsigned *count) { return atomicAdd(count, 1); }

/* Where the cluster begins in the walk: its first block has written that down. */
template <class G> PTX int first_step(Shared<G> s) { return (int)load_of_block(s.place(), 0); }

/* Remains a division: with clusters counted by the host single blocks were slower, docs/FUSED.md, "Finding the next tile". */
PTX int step_stride(const GemmArgs &g) { return gridDim.x / g.cluster; }

/* At block `block` of a tile that is not split: see stops_of. False when others have not come for long: then they do not run
 * beside this cluster, and it need not stop for them any more. */
PTX bool keep_pace(const GemmArgs &g, int step, int block)
{
    const int stop = block / PACE_BLOCKS;
    if (stop >= stops_of(g.walk)) return true;
    if (block % PACE_BLOCKS == ARRIVE_AT) add_one(&g.counts->arrived);
    if (block % PACE_BLOCKS != WAIT_AT) return true;
    const int all = arrivals(g.walk, step_stride(g), step, stop);
    for (int i = 0; i < MOST_LOOKS; i++) {
        if ((int)load_acquire(&g.counts->arrived) >= all) return true;
        __nanosleep(40);
    }
    return false;
}

/* The last cluster to leave makes the counts zero again, for the kernel after the next. */
PTX void leave(ClusterCounts *counts, unsigned clusters)
{
    if (add_one(&counts->left) + 1 == clusters) *counts = {};
}

/* ---- warp 0: operands ---------------------------------------------------------------------------------- */

template <class G>
PTX void load_operands(const GemmArgs &g, const CUtensorMap *a, const CUtensorMap *b, Shared<G> s)
{
    Ring<G::STAGES> ring;
    const int rank = cluster_rank();
    bool paced = rank == 0 && stops_of(g.walk) > 0;
    bool backwards = false;     /* every other round: it begins with what the last one has left in L2 */
    for (int step = first_step(s); step < step_end(g.walk); step += step_stride(g), backwards = !backwards) {
        const TilePart part = tile_part(g.walk, step);
        const Corner tile = tile_corner<G>(g, part.tile);
        int k = (backwards ? part.end - 1 : part.first) * BLOCK_K;
        paced &= step < g.walk.whole;
        for (int block = part.first, end; block < part.end; block = end) {
            if (paced) paced = keep_pace(g, step, block);
            end = min(part.end, paced ? next_event(block) : part.end);
#pragma unroll 1
            for (int left = end - block; left > 0; left--, ring.next()) {
                const uint32_t full = s.full(ring.slot);
                mbarrier_wait(s.empty(ring.slot), ring.parity ^ 1);
                mbarrier_arrive_expect(full, G::A_BYTES + G::B_BYTES);  /* what the other block loads of B included */
                if constexpr (G::A_ROWS) {
#pragma unroll
                    for (int i = 0; i < G::BM / 64; i++)
                        tma_load(s.a(ring.slot) + i * 8192, a, full, tile.row + i * 64, k);
                } else {
                    tma_load(s.a(ring.slot), a, full, k, tile.row);
                }
#pragma unroll
                for (int i = 0; i < G::B_PIECES; i++) {
                    const uint32_t to = s.b(ring.slot) + i * G::B_PIECE_BYTES;
                    const int n = tile.col + i * (G::BN / G::B_PIECES);
                    const int col = G::B_ROWS ? n : k, row = G::B_ROWS ? k : n;
                    if (g.cluster == 1) tma_load(to, b, full, col, row);
                    else if (i % 2 == rank) tma_load_multicast(to, b, full, col, row, 3);
                }
                k += backwards ? -BLOCK_K : BLOCK_K;
            }
        }
    }
}

/* Where a consumer's share of a tile begins. */
template <class G> PTX Corner consumers_corner(Corner tile, int consumer)
{
    return Corner{tile.row + consumer * G::ROWS_APART, tile.col + consumer * G::COLUMNS_APART};
}

/* ---- warps 1 and 2: chunks ----------------------------------------------------------------------------- */

/* The chunks of one consumer in the order in which it works on them, at least one a tile for each 64 rows, even if it is
 * outside. Before tile_end, step t is tile t. */
template <class G> struct ChunkWalk {
    int tile, row, row_end, col, col_first, col_end;

    __device__ void enter(const GemmArgs &g, int consumer)
    {
        const Corner corner = consumers_corner<G>(tile_corner<G>(g, tile), consumer);
        row = corner.row, row_end = row + G::CM;
        col = col_first = corner.col, col_end = min(col + G::CN, g.n);
    }
    /* False where the tile ends. */
    __device__ bool next()
    {
        if ((col += G::COLUMNS) < col_end) return true;
        col = col_first;
        return (row += 64) < row_end;
    }
};

template <class G> PTX Corner corner_of_chunk(Shared<G> s, int consumer, int buffer)
{
    const int2 corner = load_ints(s.corner(consumer, buffer));
    return Corner{corner.x, corner.y};
}

/* While a buffer is free and a chunk is left, it is handed over; otherwise the oldest is waited for and stored. Where a chunk
 * is stays beside its buffer: this warp has too few registers to find it twice. */
template <class G>
PTX void move_chunks(const GemmArgs &g, const typename G::Program::Params &p, Shared<G> s, int consumer)
{
    typedef typename G::Program Program;
    ChunkWalk<G> ahead;
    Ring<G::BUFFERS> ring;      /* of the buffers to wait for */
    int on_the_way = 0;
    bool inside = false;
    ahead.tile = first_step(s) + (G::TOGETHER ? 0 : consumer * step_stride(g));
#pragma unroll 1
    for (;;) {
        if (!inside && ahead.tile < tile_end(g.walk)) ahead.enter(g, consumer), inside = true;
        if (inside && on_the_way < G::BUFFERS) {
            const int buffer = (ring.slot + on_the_way) % G::BUFFERS;
            store_ints(s.corner(consumer, buffer), ahead.row, ahead.col);
            if constexpr (Program::LOAD_BYTES > 0) {
                mbarrier_arrive_expect(s.loaded(consumer, buffer), Program::LOAD_BYTES);
                Program::fetch(p, s.chunk(consumer, buffer), s.loaded(consumer, buffer), ahead.row, ahead.col);
            } else {
                mbarrier_arrive(s.loaded(consumer, buffer));
            }
            on_the_way++;
            inside = ahead.next();
            if (!inside) ahead.tile += G::TURNS * step_stride(g);
            continue;
        }
        if (on_the_way == 0) return;
        const Corner done = corner_of_chunk(s, consumer, ring.slot);
        mbarrier_wait(s.finished(consumer, ring.slot), ring.parity);
        Program::store(p, s.chunk(consumer, ring.slot), done.row, done.col);
        tma_store_commit();
        tma_store_wait_read();
        on_the_way--;
        ring.next();
    }
}

/* ---- warp 3: rows -------------------------------------------------------------------------------------- */

/* A lane finds out about one row at a time, and says itself that it has. Those of a consumer's next tile take the place of its
 * last one's, once all its threads have read theirs: `known` and `taken` are the two barriers. */
template <class G> PTX void look_ahead(const GemmArgs &g, const typename G::Program::Params &p, Shared<G> s)
{
    int consumer = 0;
    uint32_t parity = 0;
#pragma unroll 1
    for (int tile = first_step(s); tile < tile_end(g.walk);) {
        const int first = consumers_corner<G>(tile_corner<G>(g, tile), consumer).row;
        mbarrier_wait(s.taken(consumer), parity ^ 1);
#pragma unroll 1
        for (int row = lane_of_warp(); row < G::CM; row += 32)
            s.row(consumer, row) = first + row < g.m ? G::Program::ahead(p, first + row) : typename G::Program::Row{};
        mbarrier_arrive(s.known(consumer));
        if (!G::TOGETHER || consumer) tile += step_stride(g);
        parity ^= consumer, consumer ^= 1;
    }
}

/* ---- consumers ----------------------------------------------------------------------------------------- */

/* One stage of products into acc; the very first of a tile overwrites. a, b: addresses. */
template <class G>
PTX void multiply_stage(float (&acc)[G::ROWS64][G::CN / 2], uint32_t a, uint32_t b, bool accumulate)
{
    a = sixteens_of(a), b = sixteens_of(b);
#pragma unroll
    for (int k = 0; k < BLOCK_K / 16; k++) {
        const uint64_t right = G::B_ROWS ? operand_descriptor(b + k * 2048 / 16, 8192, 1024)
                                         : operand_descriptor(b + k * 32 / 16, 0, 1024);
#pragma unroll
        for (int i = 0; i < G::ROWS64; i++) {
            const uint32_t rows = a + i * 8192 / 16;
            const uint64_t left = G::A_ROWS ? operand_descriptor(rows + k * 2048 / 16, 8192, 1024)
                                            : operand_descriptor(rows + k * 32 / 16, 0, 1024);
            Wgmma<G::CN, G::A_ROWS, G::B_ROWS>::multiply(acc[i], left, right, accumulate || k > 0);
        }
    }
}

/* Sums of a consumer's rows of a tile: a thread's own, four by four, 128 threads beside each other. */
template <class G> struct PartSums {
    static constexpr int COUNT = G::ROWS64 * G::CN / 2;
    static constexpr int64_t FLOATS = COUNT * 128;
};

template <class G> PTX float4 *part_sums(const GemmArgs &g, const TilePart &part, int consumer)
{
    const int tile = (part.part - 1) * g.walk.split + part.tile - g.walk.whole;
    const int64_t place = (tile * g.cluster + (int)cluster_rank()) * CONSUMERS + consumer;
    return reinterpret_cast<float4 *>(g.sums + place * PartSums<G>::FLOATS) + threadIdx.x % 128;
}

PTX unsigned *parts_arrived(const GemmArgs &g, const TilePart &part, int consumer)
{
    return g.arrived + ((part.tile - g.walk.whole) * g.cluster + (int)cluster_rank()) * CONSUMERS + consumer;
}

template <class G>
PTX void give_sums(const GemmArgs &g, const TilePart &part, int consumer,
                   const float (&acc)[PartSums<G>::COUNT])
{
    float4 *to = part_sums<G>(g, part, consumer);
#pragma unroll
    for (int i = 0; i < PartSums<G>::COUNT; i += 4)
        __stcg(to + i / 4 * 128, make_float4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3]));
    named_barrier_sync(BARRIER_PART + consumer, 128);
    if (threadIdx.x % 128 == 0) add_release(parts_arrived(g, part, consumer), 1);
}

/* Whoever has a further part waits for nobody there, and at earlier stops not for long. So all parts arrive, in whatever
 * order blocks start, as long as more of them run at once than tiles are split: at most half of the grid, which has a block a
 * multiprocessor. */
template <class G>
PTX void take_sums(const GemmArgs &g, TilePart part, int consumer, float (&acc)[PartSums<G>::COUNT])
{
    if (threadIdx.x % 128 == 0) {
        unsigned *arrived = parts_arrived(g, part, consumer);
        while (load_acquire(arrived) < (unsigned)g.walk.parts - 1) __nanosleep(100);
        *arrived = 0;
    }
    named_barrier_sync(BARRIER_PART + consumer, 128);
    for (part.part = 1; part.part < g.walk.parts; part.part++) {
        const float4 *from = part_sums<G>(g, part, consumer);
#pragma unroll
        for (int i = 0; i < PartSums<G>::COUNT; i += 4) {
            const float4 sum = __ldcg(from + i / 4 * 128);
            acc[i] += sum.x, acc[i + 1] += sum.y, acc[i + 2] += sum.z, acc[i + 3] += sum.w;
        }
    }
}

/* Of a tile, where it is a consumer's turn. The warp that moves chunks has written it down. Of each warp only the lane reads it
 * that later says that the buffer is finished, whereupon the next one is written there. */
template <class G>
PTX Corner first_chunk(const GemmArgs &g, Shared<G> s, int tile, int consumer, Ring<G::BUFFERS ? G::BUFFERS : 1> buffer)
{
    if constexpr (G::BUFFERS > 0) {
        mbarrier_wait(s.loaded(consumer, buffer.slot), buffer.parity);
        Corner corner = {};
        if (lane_of_warp() == 0) corner = corner_of_chunk(s, consumer, buffer.slot);
        return Corner{__shfl_sync(~0u, corner.row, 0), __shfl_sync(~0u, corner.col, 0)};
    } else {
        return consumers_corner<G>(tile_corner<G>(g, tile), consumer);
    }
}

template <class G>
PTX void consume(const GemmArgs &g, const typename G::Program::Params &p, Shared<G> s, int consumer)
{
    typedef typename G::Program Program;
    Ring<G::STAGES> stage;
    Ring<G::BUFFERS ? G::BUFFERS : 1> buffer;
    float acc[G::ROWS64][G::CN / 2];
    int turn = 0;
    uint32_t rows_parity = 0;
    /* a stage has been read: one thread tells each block of the cluster, whose loads fill ours too */
    const int thread = threadIdx.x % 128;
    const uint32_t empty = barrier_of_block(s.empty(0), thread < g.cluster ? thread : 0);
    auto release = [&](int slot) {
        if (thread < g.cluster) mbarrier_arrive_remote(empty + 8 * slot);
    };
    if (!G::TOGETHER && consumer == 1) named_barrier_arrive(BARRIER_TURN, 256);     /* consumer 0 begins */

    for (int step = first_step(s); step < step_end(g.walk); step += step_stride(g), turn ^= 1) {
        const TilePart here = tile_part(g.walk, step);
        const int k_blocks = here.end - here.first;
        if (!G::TOGETHER && turn != consumer) {
            stage.skip(k_blocks);
            continue;
        }
        if (!G::TOGETHER) named_barrier_sync(BARRIER_TURN + consumer, 256);
        int previous = 0;
        for (int k = 0; k < k_blocks; k++, stage.next()) {
            mbarrier_wait(s.full(stage.slot), stage.parity);
            wgmma_fence();
            multiply_stage<G>(acc, s.a(stage.slot) + consumer * G::ROWS_APART * 128,
                              s.b(stage.slot) + consumer * G::COLUMNS_APART * 128, k > 0);
            wgmma_commit();
            wgmma_wait<1>();    /* the stage before this one has been read */
            if (k > 0) release(previous);
            previous = stage.slot;
        }
        if (!G::TOGETHER)
            named_barrier_arrive(BARRIER_TURN + (consumer ^ 1), 256); /* it queues behind our last product */
        wgmma_wait<0>();
        release(previous);

        if (k_blocks < g.walk.k_blocks) {
            float(&all)[PartSums<G>::COUNT] = *reinterpret_cast<float(*)[PartSums<G>::COUNT]>(acc);
            if (here.part) {
                give_sums<G>(g, here, consumer, all);
                continue;
            }
            take_sums<G>(g, here, consumer, all);
        }
        const Corner first = first_chunk<G>(g, s, here.tile, consumer, buffer);
        const int chunks = max(1, (min(G::CN, g.n - first.col) + G::COLUMNS - 1) / G::COLUMNS);
#pragma unroll
        for (int i = 0; i < G::ROWS64; i++) {
            const Rows rows = {first.row + i * 64 + fragment_row(), g.m};
            Program program;
            typename Program::Row row[2];
            if constexpr (G::ROW_BYTES > 0) {
                if (i == 0) mbarrier_wait(s.known(consumer), rows_parity);
#pragma unroll
                for (int h = 0; h < 2; h++) row[h] = s.row(consumer, i * 64 + fragment_row() + 8 * h);
                if (i + 1 == G::ROWS64) mbarrier_arrive(s.taken(consumer)), rows_parity ^= 1;
            }
            program.begin(row);
#pragma unroll
            for (int c = 0; c < G::CN / G::COLUMNS; c++) {
                if (c >= chunks) continue;
                float(&columns)[G::COLUMNS / 2] =
                    *reinterpret_cast<float(*)[G::COLUMNS / 2]>(&acc[i][c * G::COLUMNS / 2]);
                if constexpr (G::BUFFERS > 0) mbarrier_wait(s.loaded(consumer, buffer.slot), buffer.parity);
                program.chunk(p, columns, s.chunk(consumer, buffer.slot), rows, first.col + c * G::COLUMNS);
                if constexpr (G::BUFFERS > 0) {
                    fence_for_copy_engine();
                    __syncwarp();
                    if (lane_of_warp() == 0) mbarrier_arrive(s.finished(consumer, buffer.slot));
                    buffer.next();
                }
            }
            if (first.col < g.n) program.end(p, rows, ColumnTile{first.col / G::CN, (g.n + G::CN - 1) / G::CN});
        }
    }
    Program::finish(p, s.a(0));
}

/* ---- the kernel ---------------------------------------------------------------------------------------- */

template <class G>
__global__ void __launch_bounds__(GEMM_THREADS, 1)
gemm_sm90(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
          const __grid_constant__ GemmArgs g, const __grid_constant__ typename G::Program::Params p)
{
    extern __shared__ __align__(1024) uint8_t memory[];
    const Shared<G> s = {shared_address(memory)};
    if (s.base % 1024) __trap();    /* a program has shared memory of its own */
    const bool first_block = cluster_rank() == 0;
    if (threadIdx.x == 0) {
        tensor_map_prefetch(&a);
        tensor_map_prefetch(&b);
        for (int i = 0; i < G::STAGES; i++) {
            mbarrier_init(s.full(i), 1);
            mbarrier_init(s.empty(i), g.cluster * (G::TOGETHER ? CONSUMERS : 1));
        }
        for (int i = 0; i < CONSUMERS * G::BUFFERS; i++) {
            mbarrier_init(s.loaded(0, i), 1);
            mbarrier_init(s.finished(0, i), 4);   /* warps of a consumer */
        }
        for (int i = 0; i < CONSUMERS; i++) {
            mbarrier_init(s.known(i), 32);
            mbarrier_init(s.taken(i), 128);
        }
        mbarrier_init_fence();
        if (first_block) store_ints(s.place(), take_place(&g.places, g.counts->asked, g.gpc_of[multiprocessor()], add_one), 0);
    }
    __syncthreads();
    if (g.cluster > 1) cluster_sync();
    wait_for_previous_kernels();
    dependents_may_launch();

    /* through a shuffle, so that the compiler knows them, and what follows from them, to be one for a warp */
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), warpgroup = warp / 4;
    if (warpgroup == 0) {
        registers_give<LOADER_REGISTERS>();
        if (warp > CONSUMERS) {
            if constexpr (G::ROW_BYTES > 0) look_ahead<G>(g, p, s);
        } else if (lane_of_warp() == 0) {
            if (warp == 0) load_operands<G>(g, &a, &b, s);
            else if constexpr (G::BUFFERS > 0) move_chunks<G>(g, p, s, warp - 1);
        }
        __syncwarp();   /* the other lanes sleep meanwhile */
    } else {
        registers_take<CONSUMER_REGISTERS>();
        consume<G>(g, p, s, warpgroup - 1);
    }
    if (g.cluster > 1) cluster_sync();  /* no block may leave while another signals or loads into it */
    if (first_block && threadIdx.x == 0) leave(g.counts, step_stride(g));
}
