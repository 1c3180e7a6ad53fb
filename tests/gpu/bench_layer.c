/* One layer on random data, forward alone and forward with backward, each recorded in a graph, without fusion
 * and with. Each graph is timed on a card that is hot from the same work. A JSON line a width and mode.
 *
 *   bench_layer [--seq=2048] [--fusion=off,auto,on | --each] [--cache=DIR] [1b] [8b] [70b]
 *
 * --each: what each fused op gains where it runs: forward with backward, with one of the keys on, then with all at
 * auto, three times in turn with none. A JSON line a width and key: medians, that of the ratios, how far those differ.
 * --cache keeps the libraries' and the fused kernels' measured choices for the next run. */
#include "kernels/cuda/cuda.h"
#include "model/random.h"
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Width {
    const char *name;
    int64_t rows, hidden, ffn;
    int heads, kv_heads, head_dim;
} Width;

static const Width widths[] = {
    {"1b", 16384, 2048, 8192, 32, 8, 64},
    {"8b", 16384, 4096, 14336, 32, 8, 128},
    {"70b", 8192, 8192, 28672, 64, 8, 128},
};

static const char *const modes[] = {[FUSION_OFF] = "off", [FUSION_ON] = "on",
                                    [FUSION_AUTO] = "auto"};
enum { MODES = sizeof modes / sizeof *modes };

enum { WIDTHS = sizeof widths / sizeof *widths };

enum { MOST_RUNS = 40, RUNS_IN_TURN = 12, ROUNDS = 3 };

static const struct {
    const char *name;
    FusionKey key;
} layer_keys[] = {
    {"qkv", FUSE_QKV},         {"out", FUSE_OUT},               {"gate_up", FUSE_GATE_UP}, {"down", FUSE_DOWN},
    {"down_dx", FUSE_DOWN_DX}, {"gate_up_dx", FUSE_GATE_UP_DX}, {"qkv_dx", FUSE_QKV_DX},   {"dw", FUSE_DW},
};

enum { LAYER_KEYS = sizeof layer_keys / sizeof *layer_keys };

typedef struct Layer {
    OpContext ctx;
    AttentionShape attention;
    RowNorm norm, norm1;
    Rope rope;
    RowSums zdz, qkv_zdz, out_sums;
    Tensor x, qkv, o, x1, z, y, out, dx, dx1, dz, d_o, dqkv;
    Tensor wqkv, wo, w13, w2, gqkv, go, g13, g2;
    float *lse;
} Layer;

static void *take(size_t bytes)
{
    void *memory = cuda_device.alloc(bytes);
    if (!memory) {
        fprintf(stderr, "error: out of device memory\n");
        exit(1);
    }
    return memory;
}

static uint16_t half_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/* Normal numbers, drawn once on the host and repeated. */
static Tensor normal(Layer *l, int64_t rows, int64_t cols, float scale)
{
    enum { BLOCK = 1 << 20 };
    static uint64_t seed;
    uint16_t *block = malloc(BLOCK * sizeof *block);
    Tensor t = tensor(take((size_t)(rows * cols) * 2), rows, cols, DTYPE_BF16);
    seed++;
    for (int64_t i = 0; i < BLOCK; i++) block[i] = half_of(scale * (float)random_normal(seed, (uint64_t)i));
    for (int64_t done = 0; done < rows * cols; done += BLOCK) {
        int64_t n = rows * cols - done < BLOCK ? rows * cols - done : BLOCK;
        cuda_device.upload(l->ctx.stream, (uint16_t *)t.data + done, block, (size_t)n * 2);
    }
    cuda_device.wait(l->ctx.stream);
    free(block);
    return t;
}

static Tensor floats(int64_t rows, int64_t cols)
{
    return tensor(take((size_t)(rows * cols) * sizeof(float)), rows, cols, DTYPE_F32);
}

static void forward(const Layer *l)
{
    const Ops *op = &cuda_ops;
    const OpContext *c = &l->ctx;
    op->qkv(c, l->qkv, l->x, l->wqkv, l->norm, l->rope);
    op->attention(c, l->o, l->lse, l->qkv, l->attention);
    op->residual(c, OP_OUT, l->x1, l->norm1.sumsq, (Tensor){0}, l->o, l->wo, l->x, NULL);
    op->gate_up(c, l->z, l->y, l->x1, l->w13, l->norm1);
    op->residual(c, OP_DOWN, l->out, l->out_sums, (Tensor){0}, l->y, l->w2, l->x1, NULL);
}

/* dx stays as it is, so that every pass sees the same numbers. */
static void backward(const Layer *l)
{
    const Ops *op = &cuda_ops;
    const OpContext *c = &l->ctx;
    op->down_dx(c, l->dz, (Tensor){0}, l->zdz, l->dx, l->w2, l->z, l->norm1);
    op->dw(c, OP_DOWN_DW, l->g2, l->dx, l->y, false, NULL);
    op->norm_dx(c, OP_GATE_UP_DX, l->dx1, l->dz, l->w13, l->dx, l->x1, l->norm1, l->zdz);
    op->dw(c, OP_GATE_UP_DW, l->g13, l->dz, l->x1, false, NULL);
    op->out_dx(c, l->d_o, l->dx1, l->wo);
    op->dw(c, OP_OUT_DW, l->go, l->dx1, l->o, false, NULL);
    op->attention_bwd(c, l->dqkv, l->d_o, l->qkv, l->o, l->lse, l->attention);
    op->qkv_grad(c, l->dqkv, l->qkv_zdz, l->qkv, l->norm, l->rope);
    op->norm_dx(c, OP_QKV_DX, l->dx1, l->dqkv, l->wqkv, l->dx1, l->x, l->norm, l->qkv_zdz);
    op->dw(c, OP_QKV_DW, l->gqkv, l->dqkv, l->x, false, NULL);
}

typedef struct Fusion {
    FusionMode of[FUSE_COUNT];
} Fusion;

static Fusion all_keys(FusionMode mode)
{
    Fusion fusion;
    for (int key = 0; key < FUSE_COUNT; key++) fusion.of[key] = mode;
    return fusion;
}

static void *open_backend(Fusion fusion, const char *cache)
{
    Errors errors = {0};
    CudaOptions options = {.workspace_limit = (size_t)1 << 30, .cache_dir = cache};
    memcpy(options.fusion, fusion.of, sizeof options.fusion);
    void *backend = cuda_backend_open(&options, &errors);
    if (backend) return backend;
    errors_print(&errors, stderr);
    exit(1);
}

static Graph *record(const Layer *l, bool both)
{
    for (int plan = 0; plan < 2; plan++) {      /* the first makes the libraries' plans and measures */
        if (plan) cuda_device.capture_begin(l->ctx.stream);
        forward(l);
        if (both) backward(l);
    }
    return cuda_device.capture_end(l->ctx.stream);
}

static int by_size(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Before a pass counts: a card that was idle meanwhile clocks 1 or 2 % higher in the first second; one that is hot from
 * another pass settles at this one's clock. */
enum { HEAT_MS = 2000, SETTLE_MS = 300 };

/* Median milliseconds of a recorded pass that has run for `heat_ms` before, all passes queued at once. */
static double time_graph(Graph *graph, int runs, int heat_ms, void *stream)
{
    float times[MOST_RUNS], ms = 0;
    cudaEvent_t events[MOST_RUNS + 1];
    for (int i = 0; i <= runs; i++) cudaEventCreate(&events[i]);
    for (float heat = 0; heat < (float)heat_ms; heat += ms) {
        cudaEventRecord(events[0], stream);
        cuda_device.launch(graph, stream);
        cudaEventRecord(events[1], stream);
        cudaEventSynchronize(events[1]);
        cudaEventElapsedTime(&ms, events[0], events[1]);
    }
    for (int i = 0; i <= runs; i++) {       /* the first is under way while the others are queued */
        cuda_device.launch(graph, stream);
        cudaEventRecord(events[i], stream);
    }
    cuda_device.wait(stream);
    for (int i = 0; i < runs; i++) cudaEventElapsedTime(&times[i], events[i], events[i + 1]);
    for (int i = 0; i <= runs; i++) cudaEventDestroy(events[i]);
    qsort(times, (size_t)runs, sizeof *times, by_size);
    return times[runs / 2];
}

/* [T, parts] partial sums that add up to `total` in every row. */
static RowSums row_sums(Layer *l, int64_t T, int parts, float total)
{
    RowSums sums = {take((size_t)(T * parts) * sizeof(float)), parts};
    float *host = malloc((size_t)(T * parts) * sizeof *host);
    for (int64_t i = 0; i < T * parts; i++) host[i] = total / (float)parts;
    cuda_device.upload(l->ctx.stream, sums.data, host, (size_t)(T * parts) * sizeof *host);
    cuda_device.wait(l->ctx.stream);
    free(host);
    return sums;
}

/* A layer's data with a backend of its own and what is sized by that. */
static Layer open_layer(Layer l, const Width *w, Fusion fusion, const char *cache)
{
    int64_t T = w->rows, d = w->hidden, f = w->ffn;
    int64_t q = (int64_t)(w->heads + 2 * w->kv_heads) * w->head_dim;
    OpContext *c = &l.ctx;
    c->backend = open_backend(fusion, cache), c->stream = cuda_backend_stream(c->backend);
    c->workspace_bytes = cuda_ops.workspace_bytes(c, T, d, f, q, 1, 128, l.attention);
    c->workspace = take(c->workspace_bytes);
    int parts = cuda_ops.parts(c, OP_OUT, d);
    l.norm = (RowNorm){row_sums(&l, T, parts, (float)d), 1e-5f, d};
    l.norm1 = (RowNorm){row_sums(&l, T, parts, (float)d), 1e-5f, d};
    l.out_sums = row_sums(&l, T, parts, 0);
    l.zdz = row_sums(&l, T, cuda_ops.parts(c, OP_DOWN_DX, 2 * f), 0);
    l.qkv_zdz = row_sums(&l, T, cuda_ops.parts(c, OP_QKV_GRAD, q), 0);
    return l;
}

static void close_layer(const Layer *l)
{
    void *own[] = {l->norm.sumsq.data, l->norm1.sumsq.data, l->out_sums.data, l->zdz.data, l->qkv_zdz.data,
                   l->ctx.workspace};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) cuda_device.release(own[i]);
    cuda_backend_close(l->ctx.backend);
}

static void bench_mode(const Layer *data, const Width *w, int seq, int mode, const char *cache)
{
    const Layer l = open_layer(*data, w, all_keys(mode), cache);
    double ms[2];
    for (int both = 0; both < 2; both++) {
        Graph *graph = record(&l, both);
        ms[both] = time_graph(graph, MOST_RUNS, HEAT_MS, l.ctx.stream);
        cuda_device.graph_release(graph);
    }
    printf("{\"width\":\"%s\",\"fusion\":\"%s\",\"rows\":%lld,\"seq\":%d,\"fwd_ms\":%.3f,"
           "\"fwdbwd_ms\":%.3f}\n",
           w->name, modes[mode], (long long)w->rows, seq, ms[0], ms[1]);
    fflush(stdout);
    close_layer(&l);
}

/* One fusion in turn with none. */
static void bench_key(const Layer *off, Graph *off_graph, const Width *w, const char *key, Fusion fusion,
                      const char *cache)
{
    float off_ms[ROUNDS], on_ms[ROUNDS], ratio[ROUNDS];
    const Layer on = open_layer(*off, w, fusion, cache);
    Graph *graph = record(&on, true);
    for (int i = 0; i < ROUNDS; i++) {
        off_ms[i] = (float)time_graph(off_graph, RUNS_IN_TURN, i ? SETTLE_MS : HEAT_MS, off->ctx.stream);
        on_ms[i] = (float)time_graph(graph, RUNS_IN_TURN, SETTLE_MS, on.ctx.stream);
        ratio[i] = off_ms[i] / on_ms[i];
    }
    float *all[] = {off_ms, on_ms, ratio};
    for (int i = 0; i < 3; i++) qsort(all[i], ROUNDS, sizeof(float), by_size);
    printf("{\"width\":\"%s\",\"fused\":\"%s\",\"off_ms\":%.3f,\"fused_ms\":%.3f,\"ratio\":%.4f,"
           "\"spread\":%.4f}\n",
           w->name, key, off_ms[ROUNDS / 2], on_ms[ROUNDS / 2], ratio[ROUNDS / 2], ratio[ROUNDS - 1] - ratio[0]);
    fflush(stdout);
    cuda_device.graph_release(graph);
    close_layer(&on);
}

static void bench_each(const Layer *data, const Width *w, const char *cache)
{
    const Layer off = open_layer(*data, w, all_keys(FUSION_OFF), cache);
    Graph *graph = record(&off, true);
    for (int i = 0; i < LAYER_KEYS; i++) {
        Fusion fusion = all_keys(FUSION_OFF);
        fusion.of[layer_keys[i].key] = FUSION_ON;
        bench_key(&off, graph, w, layer_keys[i].name, fusion, cache);
    }
    bench_key(&off, graph, w, "auto", all_keys(FUSION_AUTO), cache);
    cuda_device.graph_release(graph);
    close_layer(&off);
}

static void bench(const Width *w, int seq, bool each, const int *chosen, int count, const char *cache)
{
    void *backend = open_backend(all_keys(FUSION_OFF), NULL);   /* its stream fills the tensors */
    Layer l = {.ctx = {.backend = backend, .stream = cuda_backend_stream(backend), .layer = -1}};
    int64_t T = w->rows, d = w->hidden, f = w->ffn, a = (int64_t)w->heads * w->head_dim;
    int64_t q = (int64_t)(w->heads + 2 * w->kv_heads) * w->head_dim;
    l.attention = (AttentionShape){.batch = (int)(T / seq),
                                   .seq = seq,
                                   .heads = w->heads,
                                   .kv_heads = w->kv_heads,
                                   .head_dim = w->head_dim};
    l.x = normal(&l, T, d, 1), l.qkv = normal(&l, T, q, 1), l.o = normal(&l, T, a, 1),
    l.x1 = normal(&l, T, d, 1);
    l.z = normal(&l, T, 2 * f, 1), l.y = normal(&l, T, f, 1), l.out = normal(&l, T, d, 1);
    l.dx = normal(&l, T, d, 1e-4f), l.dx1 = normal(&l, T, d, 1), l.dz = normal(&l, T, 2 * f, 1),
    l.d_o = normal(&l, T, a, 1), l.dqkv = normal(&l, T, q, 1);
    l.wqkv = normal(&l, q, d, 1.0f / sqrtf((float)d)), l.wo = normal(&l, d, a, 1.0f / sqrtf((float)a));
    l.w13 = normal(&l, 2 * f, d, 1.0f / sqrtf((float)d)), l.w2 = normal(&l, d, f, 1.0f / sqrtf((float)f));
    l.gqkv = floats(q, d), l.go = floats(d, a), l.g13 = floats(2 * f, d), l.g2 = floats(d, f);
    Tensor lse = floats(T, w->heads), table = floats(seq, w->head_dim), pos = floats(T, 1);
    float *angles = malloc((size_t)seq * w->head_dim * sizeof *angles);
    for (int p = 0, i = 0; p < seq; p++)
        for (int k = 0; k < w->head_dim / 2; k++, i += 2) {
            double angle = p * pow(500000, -2.0 * k / w->head_dim);
            angles[i] = (float)cos(angle), angles[i + 1] = (float)sin(angle);
        }
    cuda_device.upload(l.ctx.stream, table.data, angles, (size_t)seq * w->head_dim * sizeof *angles);
    int32_t *positions = malloc((size_t)T * sizeof *positions);
    for (int64_t i = 0; i < T; i++) positions[i] = (int32_t)(i % seq);
    cuda_device.upload(l.ctx.stream, pos.data, positions, (size_t)T * sizeof *positions);
    cuda_device.wait(l.ctx.stream);
    free(positions), free(angles);
    l.rope = (Rope){table.data, pos.data, w->head_dim, (int64_t)(w->heads + w->kv_heads) * w->head_dim};
    l.lse = lse.data;

    if (each) bench_each(&l, w, cache);
    else
        for (int m = 0; m < count; m++) bench_mode(&l, w, seq, chosen[m], cache);
    Tensor all[] = {l.x,    l.qkv, l.o,  l.x1, l.z,    l.y,  l.out, l.dx, l.dx1, l.dz,  l.d_o, l.dqkv,
                    l.wqkv, l.wo,  l.w13, l.w2, l.gqkv, l.go, l.g13, l.g2, lse,   table, pos};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) cuda_device.release(all[i].data);
    cuda_backend_close(backend);
}

/* The modes named in "off,auto,on", in that order; 0 where one is none. */
static int choose_modes(const char *list, int *chosen)
{
    int count = 0;
    while (*list) {
        size_t length = strcspn(list, ",");
        int mode = 0;
        while (mode < MODES && (strlen(modes[mode]) != length || strncmp(modes[mode], list, length))) mode++;
        if (mode == MODES || count == MODES) return 0;
        chosen[count++] = mode;
        list += length + (list[length] == ',');
    }
    return count;
}

int main(int argc, char **argv)
{
    int seq = 2048, chosen[MODES] = {FUSION_OFF, FUSION_AUTO}, count = 2;
    bool wanted[WIDTHS] = {false}, named = false, each = false, good = true;
    const char *cache = NULL;
    for (int i = 1; i < argc; i++) {
        bool known = false;
        for (int w = 0; w < WIDTHS; w++)
            if (!strcmp(argv[i], widths[w].name)) wanted[w] = named = known = true;
        if (!strncmp(argv[i], "--seq=", 6)) seq = atoi(argv[i] + 6), known = true;
        else if (!strncmp(argv[i], "--fusion=", 9)) count = choose_modes(argv[i] + 9, chosen), known = true;
        else if (!strcmp(argv[i], "--each")) each = known = true;
        else if (!strncmp(argv[i], "--cache=", 8)) cache = argv[i] + 8, known = true;
        good &= known;
    }
    for (int w = 0; w < WIDTHS; w++) good &= seq > 0 && widths[w].rows % seq == 0;
    if (!good || !count) {
        fprintf(stderr, "usage: bench_layer [--seq=N] [--fusion=off,auto,on | --each] [--cache=DIR] [1b] [8b] [70b]\n"
                        "       N divides 8192\n");
        return 2;
    }
    for (int w = 0; w < WIDTHS; w++)
        if (wanted[w] || !named) bench(&widths[w], seq, each, chosen, count, cache);
    return 0;
}
