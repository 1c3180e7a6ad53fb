/* The mainloop of the fused kernels on the CPU (emulated/emulator.h): its barriers, the order of copies, products and stores,
 * and who works on what, over many walks, each with a lot of its own. Each product must be of operands that belong together
 * and be whole when it is read, each chunk of the matrix be stored once, and by then hold what was loaded for it; whoever waits
 * for what never comes, or arrives too often, is found. Numbers are left to the tests on a GPU. Prints "ok - " lines. */
#include "emulator.h"

#include "kernels/cuda/fused/mainloop_sm90.cuh"
#include "kernels/cuda/fused/walk_choice.h"

Emulator emulator;

/* The matrix of this walk, and how often each 64 rows of each chunk of columns have been stored. */
static struct {
    int rows, cols, k_blocks;
    std::vector<std::vector<int>> stored;
} matrix;

static void count_chunk(int row, int chunk)
{
    if (row < matrix.rows && chunk < (int)matrix.stored[(size_t)row / 64].size()) matrix.stored[(size_t)row / 64][(size_t)chunk]++;
}

/* A program that checks what it is given. CN: columns of a consumer's tile. */
template <int BUFFER_, bool LOADS, bool ROWS, int COLUMNS_, int CN> struct Probe : Epilogue {
    static constexpr int COLUMNS = COLUMNS_, BUFFER = BUFFER_, LOAD_BYTES = LOADS ? BUFFER_ : 0;
    struct Params {
        CUtensorMap map;
    };
    struct Known {
        int row, salt, third;
    };
    typedef std::conditional_t<ROWS, Known, Epilogue::Row> Row;

    Known known[2];

    static int salt(int row) { return row * 7919 + 13; }

    static Row ahead(const Params &, int row)
    {
        if (row < 0 || row >= matrix.rows) FAIL("row %d of %d is asked for", row, matrix.rows);
        others_first(4);
        if constexpr (ROWS) return Row{row, salt(row), ~row};
        else return Row{};
    }

    static void fetch(const Params &p, uint32_t buffer, uint32_t ready, int row, int col)
    {
        tma_load(buffer, &p.map, ready, col, row);
    }

    void begin(const Row (&row)[2])
    {
        if constexpr (ROWS) known[0] = row[0], known[1] = row[1];
    }

    void chunk(const Params &, float (&acc)[COLUMNS / 2], uint32_t buffer, Rows rows, int col)
    {
        const int first = rows.first - fragment_row();
        others_first(5);
        if (col % CN == 0) check_sums(acc, first, col);
        for (int h = 0; ROWS && h < 2; h++) check_row(known[h], rows.first + 8 * h);
        if (BUFFER && threadIdx.x % 32 == 0) leave(buffer, first, col);
        if (!BUFFER && threadIdx.x % 128 == 0) count_chunk(first, col / COLUMNS);
    }

    static void store(const Params &, uint32_t buffer, int row, int col)
    {
        Block *block = me()->block;
        me()->stores.push_back([=] {
            for (int warp = 0; warp < 4; warp++) {
                const int2 tag = tag_at(block, buffer + warp * BUFFER / 4);
                if (tag.x != ~row || tag.y != ~col) FAIL("a chunk at %d, %d is stored that is not finished", row, col);
            }
            count_chunk(row, col / COLUMNS);
        });
    }

private:
    static void check_sums(const float *acc, int row, int col)
    {
        const int count = matrix.k_blocks * 4;
        if (acc[3] != count || acc[2] != count * (count + 1) / 2) FAIL("%g of %d products are in a sum", acc[3], count);
        if (acc[0] != (float)count * row || acc[1] != (float)count * col)
            FAIL("a tile at %d, %d holds %g, %g", row, col, acc[0] / count, acc[1] / count);
    }

    static void check_row(const Known &k, int row)
    {
        const bool inside = row < matrix.rows;
        if (inside ? k.row != row || k.salt != salt(row) || k.third != ~row : k.row || k.salt || k.third)
            FAIL("what is known of row %d is said of row %d", k.row, row);
    }

    /* A warp's part of the chunk: what was loaded must be there, and gives way to what is to be stored. */
    static void leave(uint32_t buffer, int row, int col)
    {
        const int part = threadIdx.x % 128 / 32 * BUFFER / 4;
        int2 &tag = tag_at(me()->block, buffer + part);
        if (LOADS && (tag.x != row + part / TAG_BYTES * TAG_BYTES / 128 || tag.y != col))
            FAIL("%d, %d was loaded for a chunk at %d, %d", tag.x, tag.y, row, col);
        tag = int2{~row, ~col};
    }
};

enum { MOST_KERNELS = 3, MOST_TURNS = 30000000 };

/* What launches of one kernel have, but for the counts that they take turns at; their fibres begin in `enter`. */
template <class G> struct Launches {
    static inline GemmArgs args;
    static inline ClusterCounts counts[2];
    static inline Kernel kernels[MOST_KERNELS];
    static inline typename G::Program::Params params;
    static inline CUtensorMap a, b;

    static void enter()
    {
        Kernel *kernel = me()->block->cluster->kernel;
        GemmArgs mine = args;
        mine.counts = &counts[(kernel - kernels) % 2];
        gemm_sm90<G>(a, b, mine, params);
        me()->done = true;
        me()->block->left++;
        if (++kernel->left == kernel->threads) wake(&kernel->end);
        sleep_fibre();
    }
};

static std::unique_ptr<Fibre> fibre_of(Block *block, int thread, void (*enter)())
{
    std::unique_ptr<Fibre> fibre(new Fibre);
    fibre->block = block, fibre->thread = thread;
    getcontext(&fibre->context);
    fibre->context.uc_stack.ss_sp = fibre->stack.data();
    fibre->context.uc_stack.ss_size = fibre->stack.size();
    makecontext(&fibre->context, enter, 0);
    return fibre;
}

struct Shape {
    int m, n, k_blocks, cluster, multiprocessors, group, kernels;
};

/* Runs fibres and copies by lot until nothing is left to do. slow: a warp that has its turn less often. */
static void run_to_end(int slow, unsigned copies_rest)
{
    Emulator &e = emulator;
    int64_t turns = 0;
    while (!e.ready.empty() || !e.copies.empty()) {
        if (!e.copies.empty() && (e.ready.empty() || e.lot() % copies_rest == 0)) {
            std::swap(e.copies[e.lot() % e.copies.size()], e.copies.back());
            const auto copy = e.copies.back();
            e.copies.pop_back();
            copy();
            continue;
        }
        size_t i = e.lot() % e.ready.size();
        for (int again = 0; again < 4 && e.ready[i]->thread / 32 == slow; again++) i = e.lot() % e.ready.size();
        if (++turns == MOST_TURNS) FAIL("threads go round and round");
        e.now = e.ready[i];
        e.ready[i] = e.ready.back();
        e.ready.pop_back();
        e.now->ready = false;
        swapcontext(&e.main, &e.now->context);
    }
}

template <class G> static void walk(const Shape &s, uint64_t seed)
{
    typedef Launches<G> L;
    Emulator &e = emulator;
    e = Emulator();
    e.lot.seed(seed);
    GemmArgs &g = L::args;
    g = GemmArgs();
    g.m = s.m, g.n = s.n, g.cluster = s.cluster;
    g.tiles_m = (s.m + G::BM * s.cluster - 1) / (G::BM * s.cluster);
    g.tiles_n = (s.n + G::BN - 1) / G::BN;
    g.group = s.group;
    const int most = walk_clusters(g.tiles_m * g.tiles_n, s.multiprocessors / s.cluster);
    g.walk = tile_walk(g.tiles_m * g.tiles_n, s.k_blocks, most);
    const int count = least(step_end(g.walk), most), parts = g.walk.split * s.cluster * CONSUMERS;
    std::vector<float> sums((size_t)(parts * (g.walk.parts - 1)) * PartSums<G>::FLOATS + 1);
    std::vector<unsigned> arrived((size_t)parts + 1);
    const std::vector<uint8_t> gpc_of(1);
    L::counts[0] = L::counts[1] = {};
    g.sums = sums.data(), g.arrived = arrived.data(), g.gpc_of = gpc_of.data();
    g.places = places_of(1, &s.multiprocessors, count);
    L::params = {{G::Program::LOAD_BYTES}};
    L::a = {G::A_ROWS ? 64 * 128 : G::A_BYTES};
    L::b = {G::B_PIECE_BYTES};
    matrix = {s.m, s.n, s.k_blocks, {}};
    matrix.stored.assign((size_t)(s.m + 63) / 64, std::vector<int>((size_t)(s.n + G::COLUMNS - 1) / G::COLUMNS));

    std::vector<Cluster> clusters((size_t)(count * s.kernels));
    std::vector<std::unique_ptr<Fibre>> fibres;
    e.cluster = s.cluster, e.blocks = count * s.cluster;
    for (int k = 0; k < s.kernels; k++) L::kernels[k] = Kernel{e.blocks * BLOCK_THREADS, e.blocks};
    for (int k = 1; k < s.kernels; k++) L::kernels[k].before = &L::kernels[k - 1];
    for (size_t i = 0; i < clusters.size(); i++)
        for (int rank = 0; rank < s.cluster; rank++) {
            Cluster &cluster = clusters[i];
            cluster.kernel = &L::kernels[i / (size_t)count];
            cluster.blocks.emplace_back(new Block);
            Block *block = cluster.blocks.back().get();
            block->cluster = &cluster, block->rank = rank;
            for (int thread = 0; thread < BLOCK_THREADS; thread++) {
                fibres.push_back(fibre_of(block, thread, L::enter));
                if (cluster.kernel->before) cluster.kernel->before->next.push_back(fibres.back().get());
                else wake(fibres.back().get());
            }
        }
    const int warps = BLOCK_THREADS / 32;
    run_to_end((int)(seed % (unsigned)(warps + 2)), 1 + (unsigned)(seed / 14 % 3) * 20);

    const auto waits = std::count_if(fibres.begin(), fibres.end(), [](const auto &fibre) { return !fibre->done; });
    if (waits) FAIL("%d threads wait for ever: [%d, %d], %d blocks of K, clusters of %d", (int)waits, s.m, s.n, s.k_blocks, s.cluster);
    for (const auto &row : matrix.stored)
        for (int times : row)
            if (times != s.kernels)
                FAIL("a chunk is stored %d times by %d kernels: [%d, %d], %d blocks of K", times, s.kernels, s.m, s.n, s.k_blocks);
    const ClusterCounts zero = {};
    for (const ClusterCounts &counts : L::counts)
        if (memcmp(&counts, &zero, sizeof zero)) FAIL("counts are not zero again");
    if (std::count(arrived.begin(), arrived.end(), 0u) != (long)arrived.size()) FAIL("counts of parts are not zero again");
}

/* Few tiles and many, for all multiprocessors and for some, with tails; tiles that are split, and tiles with stops; a kernel
 * by itself, and several that overlap. */
template <class G> static void check_walks(const char *name, int walks, uint64_t seed)
{
    std::mt19937_64 lot(seed);
    const auto upto = [&](int most) { return 1 + (int)(lot() % (unsigned)most); };
    for (int i = 0; i < walks; i++) {
        Shape s = {};
        s.cluster = 1 + i % 2;
        s.multiprocessors = s.cluster * upto(5);
        s.m = i % 7 ? upto(G::BM * s.cluster * 3) : G::BM * s.cluster * upto(3);
        s.n = 8 * upto(G::BN * 3 / 8);
        s.k_blocks = i % 3 ? upto(4) : 15 + upto(24);
        if (i % 13 == 6) s.k_blocks = PACED_BLOCKS + upto(10);
        if (i % 11 == 5) s.m = upto(60), s.n = 8;
        s.group = upto(4);
        s.kernels = upto(3) == 3 ? MOST_KERNELS : 1;
        walk<G>(s, seed * 1000 + (uint64_t)i);
    }
    printf("ok - mainloop: %s\n", name);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const int walks = argc > 1 ? atoi(argv[1]) : 14;
    const uint64_t seed = argc > 2 ? strtoull(argv[2], nullptr, 10) : 1;
    /* buffer, loads, rows, columns of a chunk, columns of a consumer */
    check_walks<Gemm<Probe<8192, true, true, 64, 128>, false, false, IN_TURNS, 192, 128, 4, 3>>("in turns", walks, seed);
    check_walks<Gemm<Probe<4096, false, true, 32, 192>, false, true, IN_TURNS, 128, 192, 4, 1>>(
        "in turns, one buffer, nothing loaded", walks, seed + 1);
    check_walks<Gemm<Probe<0, false, true, 64, 192>, false, false, IN_TURNS, 128, 192, 4, 0>>(
        "in turns, no buffers", walks, seed + 2);
    check_walks<Gemm<Probe<4096, true, false, 32, 128>, true, true, IN_TURNS, 192, 128, 4, 6>>(
        "in turns, nothing known of rows", walks, seed + 3);
    check_walks<Gemm<Probe<4096, false, true, 32, 128>, false, true, HALF_ROWS, 256, 128, 4, 2>>(
        "half the rows, nothing loaded", walks, seed + 4);
    check_walks<Gemm<Probe<8192, true, true, 64, 192>, true, true, HALF_ROWS, 256, 192, 3, 2>>("half the rows", walks, seed + 5);
    check_walks<Gemm<Probe<4096, true, true, 32, 128>, false, true, HALF_COLUMNS, 192, 256, 3, 1>>(
        "half the columns, one buffer", walks, seed + 6);
    check_walks<Gemm<Probe<0, false, false, 64, 128>, false, false, HALF_COLUMNS, 192, 256, 3, 0>>(
        "half the columns, no buffers, nothing known of rows", walks, seed + 7);
    return 0;
}
