/* Choices as text, the table and file that keep them, and measuring. */
#include "kernels/cuda/fused/autotune.h"
#include "kernels/cuda/fused/walk_choice.h"
#include "kernels/cuda/timing.h"
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>

enum { LARGEST_GROUP = 4096 };              /* what a line of text may say */
static const double MOST_US = 1e9;

enum { LOOKED_AT = 4 };                     /* variants that are measured alone, too */
static const double NEAR_BEST = 1.06;       /* in turn, times the best of them */

struct FusedEntry {
    FusedChoice choice;
    bool used;                              /* by this run, or by the one it resumes */
};

struct FusedTable {
    std::vector<FusedEntry> entries;        /* the latest of an op stands last */
    std::string file;                       /* empty = none kept */
};

static bool same(const FusedShape &a, const FusedShape &b)
{
    return a.op == b.op && a.m == b.m && a.n == b.n && a.k == b.k;
}

/* ---- as text ------------------------------------------------------------------------------------------- */

/* "fused down 16384 2048 8192 128x192 cluster 2 group 16 us 812.3 library 851.0 fused": the last word says
 * which of them runs. Both times are 0 where nothing could be measured. */
static std::string line_of(const FusedChoice &c)
{
    char text[256];
    snprintf(text, sizeof text,
             "fused %s %" PRId64 " %" PRId64 " %" PRId64 " %s cluster %d group %d us %.1f library %.1f %s",
             op_name(c.shape.op), c.shape.m, c.shape.n, c.shape.k, fused_tile_name(c.variant.tile),
             c.variant.cluster, c.variant.group, c.fused_us, c.separate_us, c.fused ? "fused" : "library");
    return text;
}

static void put(FusedTable *table, const FusedChoice &c, bool used)
{
    auto &all = table->entries;
    all.erase(std::remove_if(all.begin(), all.end(),
                             [&](const FusedEntry &e) { return same(e.choice.shape, c.shape); }),
              all.end());
    all.push_back({c, used});
}

bool fused_table_read_line(FusedTable *table, const char *line, bool restored)
{
    char op[32], tile[16], runs[8];
    int end = 0, id = 0, t = 0;
    int64_t cluster, group;
    FusedChoice c = {};
    if (sscanf(line,
               "fused %31s %" SCNd64 " %" SCNd64 " %" SCNd64 " %15s cluster %" SCNd64 " group %" SCNd64
               " us %lf library %lf %7s%n",
               op, &c.shape.m, &c.shape.n, &c.shape.k, tile, &cluster, &group, &c.fused_us, &c.separate_us,
               runs, &end) != 10)
        return false;
    while (id < OP_COUNT && strcmp(op, op_name((OpId)id))) id++;
    while (t < TILE_COUNT && strcmp(tile, fused_tile_name((FusedTile)t))) t++;
    c.fused = !strcmp(runs, "fused");
    if (id == OP_COUNT || t == TILE_COUNT || !fused_tile_fits((OpId)id, (FusedTile)t) || cluster < 1 ||
        cluster > 2 || group < 1 || group > LARGEST_GROUP || (!c.fused && strcmp(runs, "library")) ||
        line[end + strspn(line + end, "\n")] || c.shape.m < 1 || c.shape.n < 1 || c.shape.k < 1 ||
        !(c.fused_us >= 0 && c.fused_us < MOST_US && c.separate_us >= 0 && c.separate_us < MOST_US))
        return false;
    c.shape.op = (OpId)id;
    c.variant = {(FusedTile)t, (int)cluster, (int)group};
    put(table, c, restored);
    return true;
}

std::string fused_table_text(const FusedTable *table)
{
    std::string text;
    for (const FusedEntry &e : table->entries)
        if (e.used) text += line_of(e.choice) + "\n";
    return text;
}

const FusedChoice *fused_last_choice(const FusedTable *table, OpId op)
{
    for (size_t i = table->entries.size(); i-- > 0;)
        if (table->entries[i].used && table->entries[i].choice.shape.op == op) return &table->entries[i].choice;
    return nullptr;
}

FusedTable *fused_table_open(CudaBackend *backend)
{
    FusedTable *table = new FusedTable;
    if (backend->planning) return table;    /* which GPU, it does not know */
    table->file = cache_file(backend, ("fused-v" + std::to_string(FUSED_TABLE_VERSION)).c_str());
    const std::string text = cache_read(table->file);
    for (size_t at = 0, end; at < text.size(); at = end + 1) {
        end = std::min(text.find('\n', at), text.size());
        fused_table_read_line(table, text.substr(at, end - at).c_str(), false);
    }
    return table;
}

void fused_table_close(FusedTable *table) { delete table; }

/* What is contracted over in a weight gradient is rows elsewhere: tokens. */
static bool over_tokens(OpId op)
{
    switch (op) {
    case OP_DOWN_DW: case OP_GATE_UP_DW: case OP_OUT_DW: case OP_QKV_DW: case OP_HEAD_DW: return true;
    default: return false;
    }
}

/* Prompts have any length: few keys stand for all numbers of rows that are small. */
static int64_t rows_of_key(int64_t rows)
{
    int64_t key = 1;
    while (key < rows && key < 4096) key *= 2;
    return key < rows ? rows : key;
}

/* ---- variants ------------------------------------------------------------------------------------------ */

static int group_of(const CudaBackend *b, const FusedShape &s, FusedTile tile, int cluster)
{
    const int rows = fused_tile_rows(tile) * cluster, cols = fused_tile_cols(tile);
    const double bytes_of_k = 2.0 * (double)s.k;   /* BF16 */
    const TileGrid grid = {(int)((s.m + rows - 1) / rows), (int)((s.n + cols - 1) / cols), PATCH_ROWS / cluster,
                           rows * bytes_of_k, cols * bytes_of_k};
    return cluster * walk_group(grid, walk_clusters(grid.rows * grid.columns, b->multiprocessors / cluster),
                                0.25 * (double)b->cache_bytes);  /* its halves hold copies, and other data pass through */
}

std::vector<FusedVariant> fused_variants(const CudaBackend *backend, const FusedShape &shape)
{
    std::vector<FusedVariant> all;
    for (int cluster = 2; cluster >= 1; cluster--)
        for (int t = 0; t < TILE_COUNT; t++)
            if (fused_tile_fits(shape.op, (FusedTile)t))
                all.push_back({(FusedTile)t, cluster, group_of(backend, shape, (FusedTile)t, cluster)});
    return all;
}

/* ---- choosing ------------------------------------------------------------------------------------------ */

/* A choice for the same op at another number of rows, as the last chunk of the head has. */
static const FusedChoice *alike(const FusedTable *table, const FusedShape &shape)
{
    for (size_t i = table->entries.size(); i-- > 0;) {
        const FusedShape &s = table->entries[i].choice.shape;
        if (table->entries[i].used && s.op == shape.op &&
            (s.m == shape.m) + (s.n == shape.n) + (s.k == shape.k) >= 2)
            return &table->entries[i].choice;
    }
    return nullptr;
}

struct FusedWay {
    FusedVariant variant;
    Run run;
    Times times;
};

/* What runs fused is faster than the library both ways: so only what is in turn is measured alone. */
static void measure(const OpContext *ctx, FusedChoice *choice, const std::vector<FusedVariant> &variants,
                    const std::function<void(const FusedCall &)> &fused, const Run &run_library)
{
    const OpId op = choice->shape.op;
    const char *const name = op_name(op);
    FusedWay library = {{}, run_library, {}};
    std::vector<FusedWay> ways;
    std::vector<Run> runs = {library.run};  /* in turn with it, so that all are timed at the clock at which it is */
    for (FusedVariant v : variants) ways.push_back({v, [=] { fused(FusedCall{ctx, op, v}); }, {}});
    for (const FusedWay &way : ways) runs.push_back(way.run);
    const std::vector<double> turn = time_turns(ctx, name, runs, TURNS_MS);
    library.times.turn = turn[0];
    for (size_t i = 0; i < ways.size(); i++) ways[i].times.turn = turn[i + 1];

    const auto us = [](const FusedWay &way) { return time_of(way.times); };
    keep_fastest(&ways, LOOKED_AT, NEAR_BEST, us);
    const FusedWay first = ways[0];
    while (!ways.empty() && ways.back().times.turn >= library.times.turn) ways.pop_back();
    for (float ms : LOOKS_MS) {
        if (ways.empty() || measured_enough(ctx)) break;
        runs = {library.run};
        for (const FusedWay &way : ways) runs.push_back(way.run);
        const std::vector<double> alone = time_alone(ctx, name, runs, ms);
        library.times.alone = alone[0];
        for (size_t i = 0; i < ways.size(); i++) ways[i].times.alone = alone[i + 1];
        keep_fastest(&ways, LAST_LOOK_AT, NEAR_BEST, us);
    }

    choice->fused = !ways.empty() && wins(ways[0].times, library.times);
    const FusedWay &shown = ways.empty() ? first : ways[0];
    choice->variant = shown.variant;
    choice->separate_us = time_of(library.times);
    choice->fused_us = choice->fused ? time_of(shown.times) : choice->separate_us * worst_ratio(shown.times, library.times);
}

FusedChoice fused_choose(const OpContext *ctx, const FusedShape &real,
                         const std::function<void(const FusedCall &)> &fused, const Run &library)
{
    CudaBackend *backend = backend_of(ctx);
    FusedTable *table = backend->fused;
    FusedShape shape = real;
    if (!over_tokens(real.op)) shape.m = rows_of_key(real.m);
    for (size_t i = 0; i < table->entries.size(); i++)
        if (same(table->entries[i].choice.shape, shape)) {
            const FusedChoice choice = table->entries[i].choice;
            if (!table->entries[i].used || i + 1 < table->entries.size()) put(table, choice, true);
            return choice;
        }
    const std::vector<FusedVariant> variants = fused_variants(backend, real);
    FusedChoice choice = {shape, false, variants[0], 0, 0};
    if (!worth_measuring(over_tokens(real.op) ? real.k : real.m, 2.0 * real.m * real.n * real.k)) return choice;
    cudaStreamCaptureStatus capture;
    CUDA_CHECK(op_name(shape.op), cudaStreamIsCapturing(stream_of(ctx), &capture));
    if (capture == cudaStreamCaptureStatusNone && fused) {
        const Measuring measuring(backend);
        measure(ctx, &choice, variants, fused, library);
        cache_append(&table->file, line_of(choice));
    } else if (const FusedChoice *like = alike(table, shape)) {
        choice = *like;
        choice.shape = shape, choice.fused_us = choice.separate_us = 0;
    }
    put(table, choice, true);   /* measured or not: a resumed run must decide as this one does */
    return choice;
}
