#include "kernels/cuda/fused/autotune.h"
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>

enum { FUSED_TABLE_VERSION = 3 };           /* raise it where kernels change so that old times mean nothing */

static const double MEASURE_FLOPS = 2e9;    /* smaller products go the library's way */
static const double SECONDS_A_SHAPE = 1.2;  /* all shapes of a model in less than a minute */
static const float HEAT_MS = 100; /* of the same work before measuring: training runs on a hot card */
enum { LEAST_ROUNDS = 5, MOST_ROUNDS = 21 };

struct FusedTable {
    std::vector<FusedChoice> choices;       /* the latest of an op stands last */
    std::vector<bool> used;
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
    for (size_t i = 0; i < table->choices.size(); i++)
        if (same(table->choices[i].shape, c.shape)) {
            table->choices.erase(table->choices.begin() + (long)i);
            table->used.erase(table->used.begin() + (long)i);
            break;
        }
    table->choices.push_back(c);
    table->used.push_back(used);
}

bool fused_table_read_line(FusedTable *table, const char *line)
{
    char op[32], tile[16], runs[8];
    int end = 0;
    FusedChoice c = {};
    if (sscanf(line,
               "fused %31s %" SCNd64 " %" SCNd64 " %" SCNd64
               " %15s cluster %d group %d us %lf library %lf %7s%n",
               op, &c.shape.m, &c.shape.n, &c.shape.k, tile, &c.variant.cluster, &c.variant.group,
               &c.fused_us, &c.separate_us, runs, &end) != 10)
        return false;
    int id = 0, t = 0;
    while (id < OP_COUNT && strcmp(op, op_name((OpId)id))) id++;
    while (t < TILE_COUNT && strcmp(tile, fused_tile_name((FusedTile)t))) t++;
    c.fused = !strcmp(runs, "fused");
    if (id == OP_COUNT || t == TILE_COUNT || c.variant.cluster < 1 || c.variant.cluster > 2 ||
        c.variant.group < 1 || (!c.fused && strcmp(runs, "library")) || line[end + strspn(line + end, "\n")])
        return false;
    c.shape.op = (OpId)id;
    c.variant.tile = (FusedTile)t;
    put(table, c, false);
    return true;
}

std::string fused_table_text(const FusedTable *table)
{
    std::string text;
    for (size_t i = 0; i < table->choices.size(); i++)
        if (table->used[i]) text += line_of(table->choices[i]) + "\n";
    return text;
}

const FusedChoice *fused_last_choice(const FusedTable *table, OpId op)
{
    for (size_t i = table->choices.size(); i-- > 0;)
        if (table->choices[i].shape.op == op) return &table->choices[i];
    return nullptr;
}

FusedTable *fused_table_open(CudaBackend *backend)
{
    FusedTable *table = new FusedTable;
    cudaDeviceProp gpu;
    std::string name = backend->gpu;
    if (!backend->options.cache_dir) return table;
    if (backend->planning) {
        if (cudaGetDeviceProperties(&gpu, 0) != cudaSuccess) {
            cudaGetLastError();
            return table;
        }
        name = gpu.name;
    }
    for (char &c : name)
        if (!isalnum((unsigned char)c)) c = '-';
    table->file = std::string(backend->options.cache_dir) + "/fused-" + name + "-v" +
                  std::to_string(FUSED_TABLE_VERSION) + "-cublaslt-" + std::to_string(cublasLtGetVersion()) +
                  ".txt";
    if (FILE *f = fopen(table->file.c_str(), "rb")) {
        char line[256];
        while (fgets(line, sizeof line, f)) fused_table_read_line(table, line);
        fclose(f);
    }
    return table;
}

void fused_table_close(FusedTable *table) { delete table; }

static void keep(const FusedTable *table, const FusedChoice &c)
{
    if (table->file.empty()) return;
    if (FILE *f = fopen(table->file.c_str(), "ab")) {
        fprintf(f, "%s\n", line_of(c).c_str());
        fclose(f);
    }
}

/* Prompts have any length: few keys stand for all numbers of rows that are small. */
static int64_t rows_of_key(int64_t rows)
{
    int64_t key = 1;
    while (key < rows && key < 4096) key *= 2;
    return key < rows ? rows : key;
}

/* ---- measuring ----------------------------------------------------------------------------------------- */

static double median(std::vector<float> v)
{
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

/* Medians in microseconds of all runs, taken in turn so that the card is equally hot for each. The queue
 * never runs empty within a round, so that no time to launch is counted: an untimed run comes first. */
static std::vector<double> measure(const OpContext *ctx, const char *op,
                                   const std::vector<std::function<void()>> &runs)
{
    cudaStream_t stream = stream_of(ctx);
    std::vector<cudaEvent_t> events(runs.size() + 1);
    std::vector<std::vector<float>> times(runs.size());
    for (cudaEvent_t &event : events) CUDA_CHECK(op, cudaEventCreate(&event));
    runs[0]();      /* the library makes its own choice first */
    float heat = 0;
    int rounds = MOST_ROUNDS;
    for (int i = 0; i < rounds;) {
        runs.back()();
        for (size_t r = 0; r < runs.size(); r++) {
            CUDA_CHECK(op, cudaEventRecord(events[r], stream));
            runs[r]();
        }
        CUDA_CHECK(op, cudaEventRecord(events.back(), stream));
        CUDA_CHECK(op, cudaEventSynchronize(events.back()));
        bool hot = heat >= HEAT_MS;
        float round = 0, ms;
        for (size_t r = 0; r < runs.size(); r++) {
            CUDA_CHECK(op, cudaEventElapsedTime(&ms, events[r], events[r + 1]));
            if (hot) times[r].push_back(ms);
            round += ms;
        }
        i += hot;
        heat += round;
        rounds = std::clamp((int)(SECONDS_A_SHAPE * 1e3f / round), (int)LEAST_ROUNDS, (int)MOST_ROUNDS);
    }
    for (cudaEvent_t event : events) CUDA_CHECK(op, cudaEventDestroy(event));
    std::vector<double> medians;
    for (const auto &t : times) medians.push_back(median(t) * 1e3);
    return medians;
}

FusedChoice fused_choose(const OpContext *ctx, const FusedShape &real,
                         const std::vector<FusedVariant> &variants,
                         const std::function<void(const FusedCall &)> &fused,
                         const std::function<void()> &library)
{
    FusedTable *table = backend_of(ctx)->fused;
    FusedShape shape = real;
    shape.m = rows_of_key(real.m);
    FusedChoice choice = {shape, false, variants[0], 0, 0};
    if (2.0 * real.m * real.n * real.k < MEASURE_FLOPS) return choice;
    for (size_t i = 0; i < table->choices.size(); i++)
        if (same(table->choices[i].shape, shape)) {
            choice = table->choices[i];
            if (!table->used[i] || i + 1 < table->choices.size()) put(table, choice, true);
            return choice;
        }
    cudaStreamCaptureStatus capture;
    CUDA_CHECK(op_name(shape.op), cudaStreamIsCapturing(stream_of(ctx), &capture));
    bool measured = capture == cudaStreamCaptureStatusNone && fused;
    if (measured) {
        std::vector<std::function<void()>> runs = {library};
        for (FusedVariant v : variants) runs.push_back([=] { fused(FusedCall{ctx, shape.op, v}); });
        std::vector<double> us = measure(ctx, op_name(shape.op), runs);
        size_t best = (size_t)(std::min_element(us.begin() + 1, us.end()) - us.begin());
        choice.variant = variants[best - 1];
        choice.fused_us = us[best], choice.separate_us = us[0];
        choice.fused = choice.fused_us < choice.separate_us;
        keep(table, choice);
    }
    put(table, choice, true);   /* measured or not: a resumed run must decide as this one does */
    return choice;
}
