/* One layer on random data, forward alone and forward with backward, each recorded in a graph. A JSON line a
 * width.
 *
 *   bench_layer [--seq=2048] [1b] [8b] [70b] */
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

typedef struct Layer {
    OpContext ctx;
    AttentionShape attention;
    RowNorm norm, norm1;
    Rope rope;
    RowSums zdz, out_sums;
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

static float draw(uint64_t seed, int64_t i)
{
    double radius = sqrt(-2 * log(random_uniform(seed, 2 * (uint64_t)i)));
    return (float)(radius * cos(6.283185307179586 * random_uniform(seed, 2 * (uint64_t)i + 1)));
}

/* Normal numbers, drawn once on the host and repeated. */
static Tensor normal(Layer *l, int64_t rows, int64_t cols, float scale)
{
    enum { BLOCK = 1 << 20 };
    static uint64_t seed;
    uint16_t *block = malloc(BLOCK * sizeof *block);
    Tensor t = tensor(take((size_t)(rows * cols) * 2), rows, cols, DTYPE_BF16);
    seed++;
    for (int64_t i = 0; i < BLOCK; i++) block[i] = half_of(scale * draw(seed, i));
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
    op->qkv_grad(c, l->dqkv, l->zdz, l->qkv, l->norm, l->rope);
    op->norm_dx(c, OP_QKV_DX, l->dx1, l->dqkv, l->wqkv, l->dx1, l->x, l->norm, l->zdz);
    op->dw(c, OP_QKV_DW, l->gqkv, l->dqkv, l->x, false, NULL);
}

/* Median milliseconds of a recorded pass, on a card that has been busy with it for a while. */
static double time_pass(const Layer *l, bool both)
{
    enum { RUNS = 40, WARM = 20 };
    float times[RUNS], ms;
    cudaEvent_t start, end;
    cudaEventCreate(&start), cudaEventCreate(&end);
    for (int plan = 0; plan < 2; plan++) {      /* the first makes the libraries' plans */
        if (plan) cuda_device.capture_begin(l->ctx.stream);
        forward(l);
        if (both) backward(l);
    }
    Graph *graph = cuda_device.capture_end(l->ctx.stream);
    for (int i = 0; i < WARM + RUNS; i++) {
        cudaEventRecord(start, l->ctx.stream);
        cuda_device.launch(graph, l->ctx.stream);
        cudaEventRecord(end, l->ctx.stream);
        cudaEventSynchronize(end);
        cudaEventElapsedTime(&ms, start, end);
        if (i < WARM) continue;
        int at = i - WARM;
        for (; at && times[at - 1] > ms; at--) times[at] = times[at - 1];
        times[at] = ms;
    }
    cuda_device.graph_release(graph);
    cudaEventDestroy(start), cudaEventDestroy(end);
    return times[RUNS / 2];
}

static void bench(const Width *w, int seq, void *backend)
{
    Layer l = {.ctx = {.backend = backend, .stream = cuda_backend_stream(backend)}};
    int64_t T = w->rows, d = w->hidden, f = w->ffn, a = (int64_t)w->heads * w->head_dim;
    int64_t q = (int64_t)(w->heads + 2 * w->kv_heads) * w->head_dim;
    l.attention = (AttentionShape){.batch = (int)(T / seq),
                                   .seq = seq,
                                   .heads = w->heads,
                                   .kv_heads = w->kv_heads,
                                   .head_dim = w->head_dim};
    l.ctx.workspace_bytes = cuda_ops.workspace_bytes(&l.ctx, T, d, f, q, 1, 128, l.attention);
    l.ctx.workspace = take(l.ctx.workspace_bytes);
    l.x = normal(&l, T, d, 1), l.qkv = normal(&l, T, q, 1), l.o = normal(&l, T, a, 1),
    l.x1 = normal(&l, T, d, 1);
    l.z = normal(&l, T, 2 * f, 1), l.y = normal(&l, T, f, 1), l.out = normal(&l, T, d, 1);
    l.dx = normal(&l, T, d, 1e-4f), l.dx1 = normal(&l, T, d, 1), l.dz = normal(&l, T, 2 * f, 1),
    l.d_o = normal(&l, T, a, 1), l.dqkv = normal(&l, T, q, 1);
    l.wqkv = normal(&l, q, d, 1.0f / sqrtf((float)d)), l.wo = normal(&l, d, a, 1.0f / sqrtf((float)a));
    l.w13 = normal(&l, 2 * f, d, 1.0f / sqrtf((float)d)), l.w2 = normal(&l, d, f, 1.0f / sqrtf((float)f));
    l.gqkv = floats(q, d), l.go = floats(d, a), l.g13 = floats(2 * f, d), l.g2 = floats(d, f);
    Tensor lse = floats(T, w->heads), sums = floats(T, 4), table = floats(seq, w->head_dim),
           pos = floats(T, 1);
    float *host = malloc((size_t)T * 4 * sizeof *host);
    for (int64_t i = 0; i < 4 * T; i++) host[i] = (float)d;     /* rows of x have sum x^2 = d */
    cuda_device.upload(l.ctx.stream, sums.data, host, (size_t)T * 4 * sizeof *host);
    cuda_device.wait(l.ctx.stream);
    float *angles = malloc((size_t)seq * w->head_dim * sizeof *angles);
    for (int p = 0, i = 0; p < seq; p++)
        for (int k = 0; k < w->head_dim / 2; k++, i += 2) {
            double angle = p * pow(500000, -2.0 * k / w->head_dim);
            angles[i] = (float)cos(angle), angles[i + 1] = (float)sin(angle);
        }
    cuda_device.upload(l.ctx.stream, table.data, angles, (size_t)seq * w->head_dim * sizeof *angles);
    for (int64_t i = 0; i < T; i++) ((int32_t *)host)[i] = (int32_t)(i % seq);
    cuda_device.upload(l.ctx.stream, pos.data, host, (size_t)T * sizeof *host);
    cuda_device.wait(l.ctx.stream);
    free(host), free(angles);
    float *sum = sums.data;
    l.norm = (RowNorm){{sum, 1}, 1e-5f, d}, l.norm1 = (RowNorm){{sum + T, 1}, 1e-5f, d};
    l.out_sums = (RowSums){sum + 2 * T, 1}, l.zdz = (RowSums){sum + 3 * T, 1};
    l.rope = (Rope){table.data, pos.data, w->head_dim, (int64_t)(w->heads + w->kv_heads) * w->head_dim};
    l.lse = lse.data;

    double fwd = time_pass(&l, false), both = time_pass(&l, true);
    printf("{\"width\":\"%s\",\"rows\":%lld,\"seq\":%d,\"fwd_ms\":%.3f,\"fwdbwd_ms\":%.3f}\n", w->name,
           (long long)T, seq, fwd, both);
    fflush(stdout);
    Tensor all[] = {l.x,    l.qkv, l.o,   l.x1, l.z,    l.y,  l.out, l.dx, l.dx1, l.dz, l.d_o, l.dqkv,
                    l.wqkv, l.wo,  l.w13, l.w2, l.gqkv, l.go, l.g13, l.g2, lse,   sums, table, pos};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) cuda_device.release(all[i].data);
    cuda_device.release(l.ctx.workspace);
}

int main(int argc, char **argv)
{
    int seq = 2048;
    bool chosen = false;
    Errors errors = {0};
    CudaOptions options = {.workspace_limit = (size_t)1 << 30};
    void *backend = cuda_backend_open(&options, &errors);
    if (!backend) {
        errors_print(&errors, stderr);
        return 1;
    }
    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], "--seq=", 6)) seq = atoi(argv[i] + 6);
        else chosen = true;
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++) {
        bool wanted = !chosen;
        for (int i = 1; i < argc; i++) wanted |= !strcmp(argv[i], widths[w].name);
        if (wanted) bench(&widths[w], seq, backend);
    }
    cuda_backend_close(backend);
    return 0;
}
