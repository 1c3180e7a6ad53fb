/* Matrix products by cublasLt. Each shape gets descriptors once and the fastest of the algorithms that the
 * library proposes for it, measured on the operands of its first call and kept on disk. */
#include "kernels/cuda/timing.h"
#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

enum {
    PROPOSALS = 24,             /* algorithms tried a shape */
    LOOKED_AT = 8,              /* that are measured with the card to themselves */
};

static const double NEAR_BEST = 1.1;    /* of them: in turn, times the best; one that draws less power may be fastest alone */

struct GemmShape {
    GemmForm form;
    Dtype    out;
    bool     add;               /* a second bf16 matrix is added */
    int64_t  m, n, k, ld_d, ld_a, ld_b;
};

struct GemmEntry {
    GemmShape shape;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;     /* as cublasLt sees them: column-major, so operands swap places */
    cublasLtMatmulAlgo_t algo;
    bool separate;                      /* the second matrix is left to the kernel behind the GEMM */
    double microseconds;                /* as measured; 0 = not measured */
    bool ready;                         /* descriptors exist and the algorithm has been checked */
    bool restored;                      /* from a checkpoint: another algorithm changes the bits */
};

struct GemmTable {
    std::vector<GemmEntry> entries;
    std::string file;                   /* choices of earlier starts; empty = none kept */
};

static const char *const form_names[] = {"NT", "NN", "TN"};

#define LT_CHECK(op, call)                                                                        \
    do {                                                                                          \
        cublasStatus_t status_ = (call);                                                          \
        if (status_ != CUBLAS_STATUS_SUCCESS)                                                     \
            cuda_fail(__FILE__, __LINE__, op, #call, cublasLtGetStatusString(status_));           \
    } while (0)

/* ---- choices as text: one line a shape ---------------------------------------------------------------- */

static bool same_shape(const GemmShape &x, const GemmShape &y)
{
    return x.form == y.form && x.out == y.out && x.add == y.add && x.m == y.m && x.n == y.n && x.k == y.k &&
           x.ld_d == y.ld_d && x.ld_a == y.ld_a && x.ld_b == y.ld_b;
}

/* "NT bf16 + 16384 3072 2048 ld 3072 2048 2048 us 312.5 algo 0011...": the algorithm is cublasLt's own 64
 * bytes, valid for one version of it. '+': adds a matrix, '&': leaves it to the kernel behind, '-': has none. */
static std::string entry_line(const GemmEntry &e)
{
    char text[256];
    const GemmShape &s = e.shape;
    snprintf(text, sizeof text,
             "%s %s %c %" PRId64 " %" PRId64 " %" PRId64 " ld %" PRId64 " %" PRId64 " %" PRId64
             " us %.1f algo ",
             form_names[s.form], s.out == DTYPE_F32 ? "f32" : "bf16", e.separate ? '&' : s.add ? '+' : '-',
             s.m, s.n, s.k, s.ld_d, s.ld_a, s.ld_b, e.microseconds);
    std::string line = text;
    const unsigned char *bytes = (const unsigned char *)&e.algo;
    for (size_t i = 0; i < sizeof e.algo; i++) {
        snprintf(text, sizeof text, "%02x", bytes[i]);
        line += text;
    }
    return line;
}

static bool parse_line(const char *line, GemmEntry *e)
{
    char form[3], out[5], add, hex[2 * sizeof(cublasLtMatmulAlgo_t) + 1];
    GemmShape s = {};
    if (sscanf(line,
               "%2s %4s %c %" SCNd64 " %" SCNd64 " %" SCNd64 " ld %" SCNd64 " %" SCNd64 " %" SCNd64
               " us %lf algo %128[0-9a-f]",
               form, out, &add, &s.m, &s.n, &s.k, &s.ld_d, &s.ld_a, &s.ld_b, &e->microseconds, hex) != 11 ||
        strlen(hex) != sizeof hex - 1)
        return false;
    int f = 0;
    while (f < 3 && strcmp(form, form_names[f])) f++;
    if (f == 3 || (strcmp(out, "f32") && strcmp(out, "bf16")) || !strchr("+&-", add)) return false;
    s.form = (GemmForm)f, s.out = strcmp(out, "f32") ? DTYPE_BF16 : DTYPE_F32, s.add = add != '-';
    e->separate = add == '&';
    e->shape = s;
    e->ready = false;
    unsigned char *bytes = (unsigned char *)&e->algo;
    for (size_t i = 0; i < sizeof e->algo; i++) {
        unsigned byte;
        sscanf(hex + 2 * i, "%2x", &byte);
        bytes[i] = (unsigned char)byte;
    }
    return true;
}

/* Lines of text become entries; false where one does not read. Later lines win. */
static bool read_lines(GemmTable *table, const char *text, bool restored)
{
    bool all = true;
    for (const char *line = text; *line;) {
        size_t length = strcspn(line, "\n");
        GemmEntry e = {};
        std::string one(line, length);
        if (parse_line(one.c_str(), &e)) {
            bool known = false;
            e.restored = restored;
            for (GemmEntry &old : table->entries)
                if (same_shape(old.shape, e.shape)) old = e, known = true;
            if (!known) table->entries.push_back(e);
        } else if (length) {
            all = false;
        }
        line += length + (line[length] == '\n');
    }
    return all;
}

GemmTable *gemm_table_open(CudaBackend *backend)
{
    GemmTable *table = new GemmTable;
    table->file = cache_file(backend, "gemm-v6");
    read_lines(table, cache_read(table->file).c_str(), false);
    return table;
}

static void release(GemmEntry *e)
{
    if (!e->ready) return;
    cublasLtMatrixLayoutDestroy(e->a);
    cublasLtMatrixLayoutDestroy(e->b);
    cublasLtMatrixLayoutDestroy(e->d);
    cublasLtMatmulDescDestroy(e->desc);
    e->ready = false;
}

void gemm_table_close(GemmTable *table)
{
    for (GemmEntry &e : table->entries) release(&e);
    delete table;
}

char *gemm_table_text(const GemmTable *table)
{
    std::string text;
    for (const GemmEntry &e : table->entries)
        if (e.ready || e.restored) text += entry_line(e) + "\n";
    return strdup(text.c_str());
}

bool gemm_table_restore(CudaBackend *backend, const char *text, Errors *errors)
{
    if (read_lines(backend->gemms, text, true)) return true;
    errors_add(errors, "the checkpoint's GEMM choices do not read; the run measures its own, not bitwise");
    return false;
}

/* ---- one product --------------------------------------------------------------------------------------- */

/* Row-major d = op(a) op(b) is, seen column-major, d^T = op(b)^T op(a)^T: b comes first, and a matrix that is
 * contiguous along K counts as transposed when it is cublasLt's first operand. */
static void describe(GemmEntry *e, const char *op)
{
    const GemmShape &s = e->shape;
    cublasOperation_t first = s.form == GEMM_NT ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = s.form == GEMM_TN ? CUBLAS_OP_T : CUBLAS_OP_N;
    cudaDataType_t out = s.out == DTYPE_F32 ? CUDA_R_32F : CUDA_R_16BF;
    LT_CHECK(op, cublasLtMatmulDescCreate(&e->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    LT_CHECK(op, cublasLtMatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    LT_CHECK(op,
             cublasLtMatmulDescSetAttribute(e->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    LT_CHECK(op, s.form == GEMM_NT ? cublasLtMatrixLayoutCreate(&e->b, CUDA_R_16BF, s.k, s.n, s.ld_b)
                                   : cublasLtMatrixLayoutCreate(&e->b, CUDA_R_16BF, s.n, s.k, s.ld_b));
    LT_CHECK(op, s.form == GEMM_TN ? cublasLtMatrixLayoutCreate(&e->a, CUDA_R_16BF, s.m, s.k, s.ld_a)
                                   : cublasLtMatrixLayoutCreate(&e->a, CUDA_R_16BF, s.k, s.m, s.ld_a));
    LT_CHECK(op, cublasLtMatrixLayoutCreate(&e->d, out, s.n, s.m, s.ld_d));
    e->ready = true;
}

static cublasStatus_t multiply(const OpContext *ctx, const GemmEntry &e, const cublasLtMatmulAlgo_t *algo,
                               void *d, const void *a, const void *b, const void *c)
{
    float one = 1.0f, beta = c ? 1.0f : 0.0f;
    return cublasLtMatmul(backend_of(ctx)->lt, e.desc, &one, b, e.b, a, e.a, &beta, c ? c : d, e.d, d, e.d,
                          algo, ctx->workspace, GEMM_WORKSPACE, stream_of(ctx));
}

/* Largest power of two up to 16 that divides both the address and the row pitch. */
static uint32_t alignment(const void *data, int64_t pitch_bytes)
{
    uint32_t bits = (uint32_t)(uintptr_t)data | (uint32_t)pitch_bytes | 16u;
    return bits & (~bits + 1);
}

static std::vector<cublasLtMatmulAlgo_t>
propose(const OpContext *ctx, const char *op, const GemmEntry &e, const Tensor &d, const Tensor &a,
        const Tensor &b, const Tensor &c)
{
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t found[PROPOSALS];
    size_t workspace = GEMM_WORKSPACE;
    uint32_t reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;    /* parts of a split K are added in f32 */
    int count = 0;
    uint32_t align_d = alignment(d.data, d.stride * dtype_bytes(d.dtype));
    uint32_t align_a = alignment(a.data, a.stride * 2), align_b = alignment(b.data, b.stride * 2);
    uint32_t align_c = c.data ? alignment(c.data, c.stride * dtype_bytes(c.dtype)) : align_d;
    LT_CHECK(op, cublasLtMatmulPreferenceCreate(&preference));
    auto set = [&](cublasLtMatmulPreferenceAttributes_t what, const void *value, size_t size) {
        LT_CHECK(op, cublasLtMatmulPreferenceSetAttribute(preference, what, value, size));
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace);
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_b, sizeof align_b);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_a, sizeof align_a);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_c, sizeof align_c);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_d, sizeof align_d);
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(backend_of(ctx)->lt, e.desc, e.b, e.a, e.d, e.d,
                                                           preference, PROPOSALS, found, &count);
    cublasLtMatmulPreferenceDestroy(preference);
    std::vector<cublasLtMatmulAlgo_t> algos;
    for (int i = 0; i < count && status == CUBLAS_STATUS_SUCCESS; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS) algos.push_back(found[i].algo);
    if (algos.empty()) {
        const GemmShape &s = e.shape;
        char cause[256];
        snprintf(cause, sizeof cause,
                 "cublasLt knows no algorithm for %s [%" PRId64 ", %" PRId64 "] over %" PRId64,
                 form_names[s.form], s.m, s.n, s.k);
        cuda_fail(__FILE__, __LINE__, op, "cublasLtMatmulAlgoGetHeuristic", cause);
    }
    return algos;
}

struct Candidate {
    cublasLtMatmulAlgo_t algo;
    bool add;               /* inside the GEMM */
    double us;
};

/* Microseconds that the kernel behind the GEMM spends more when it adds the matrix: it reads that too, and
 * writes its sum. 80 % of the memory's peak rate. */
static double separate_us(const char *op, size_t bytes)
{
    int device, khz, bits;
    CUDA_CHECK(op, cudaGetDevice(&device));
    CUDA_CHECK(op, cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, device));
    CUDA_CHECK(op, cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, device));
    return 2.0 * bytes / (0.8 * 2.0 * khz * 1e3 * bits / 8) * 1e6;
}

/* Measures into `target` and keeps what is fastest. */
static void choose_fastest(const OpContext *ctx, const char *op, GemmEntry *e,
                           const std::vector<cublasLtMatmulAlgo_t> &algos, void *target, Tensor a, Tensor b,
                           Tensor c, size_t bytes)
{
    std::vector<Candidate> list;
    auto product = [&](const Candidate &t) {
        return multiply(ctx, *e, &t.algo, target, a.data, b.data, t.add ? c.data : nullptr);
    };
    const double penalty = e->shape.add ? separate_us(op, bytes) : 0;
    auto total = [&](const Candidate &t) { return t.us + (e->shape.add && !t.add ? penalty : 0); };
    auto runs = [&] {
        std::vector<Run> all;
        for (size_t i = 0; i < list.size(); i++) all.push_back([&, i] { LT_CHECK(op, product(list[i])); });
        return all;
    };

    const bool inside = c.data, behind = !c.data || e->shape.add;
    for (const cublasLtMatmulAlgo_t &algo : algos)
        for (bool add : {true, false}) {
            if (!(add ? inside : behind)) continue;
            list.push_back({algo, add, 0});
            if (product(list.back()) != CUBLAS_STATUS_SUCCESS) list.pop_back();
        }
    if (list.empty()) cuda_fail(__FILE__, __LINE__, op, "cublasLtMatmul", "the library runs none of its own proposals");
    auto keep = [&](const std::vector<double> &us, size_t most) {
        for (size_t i = 0; i < list.size(); i++) list[i].us = us[i];
        keep_fastest(&list, most, NEAR_BEST, total);
    };
    keep(time_turns(ctx, op, runs(), measured_enough(ctx) ? TURNS_MS : 0), LOOKED_AT);
    for (float ms : LOOKS_MS)
        if (list.size() > 1 && !measured_enough(ctx)) keep(time_alone(ctx, op, runs(), ms), LAST_LOOK_AT);
    e->algo = list[0].algo;
    e->separate = e->shape.add && !list[0].add;
    e->microseconds = list[0].us;
}

/* Measuring must not change what the op adds to: a sum in place is measured into the op's scratch. */
static void choose(const OpContext *ctx, const char *op, GemmEntry *e, Tensor d, Tensor a, Tensor b, Tensor c)
{
    std::vector<cublasLtMatmulAlgo_t> algos = propose(ctx, op, *e, d, a, b, c);
    cudaStreamCaptureStatus capture;
    CUDA_CHECK(op, cudaStreamIsCapturing(stream_of(ctx), &capture));
    const GemmShape &s = e->shape;
    size_t bytes = (size_t)((s.m - 1) * s.ld_d + s.n) * dtype_bytes(s.out);
    bool in_place = c.data && c.data == d.data;
    e->algo = algos[0];
    e->separate = false;
    e->microseconds = 0;
    if (capture != cudaStreamCaptureStatusNone || (in_place && op_scratch_bytes(ctx) < bytes) ||
        !worth_measuring(s.form == GEMM_TN ? s.k : s.m, 2.0 * s.m * s.n * s.k))
        return;
    const Measuring measuring(backend_of(ctx));
    choose_fastest(ctx, op, e, algos, in_place ? op_scratch(ctx) : d.data, a, b, c, bytes);
    cache_append(&backend_of(ctx)->gemms->file, entry_line(*e));
}

/* The entry of these operands' shape, with descriptors and an algorithm. */
static GemmEntry *
entry_of(const OpContext *ctx, const char *op, GemmForm form, Tensor d, Tensor a, Tensor b, Tensor c)
{
    GemmShape s = {};
    s.form = form, s.out = d.dtype;
    s.add = c.data && c.dtype == DTYPE_BF16;    /* an f32 accumulator is always added inside */
    s.m = d.rows, s.n = d.cols, s.k = form == GEMM_TN ? a.rows : a.cols;
    s.ld_d = d.stride, s.ld_a = a.stride, s.ld_b = b.stride;

    std::vector<GemmEntry> &entries = backend_of(ctx)->gemms->entries;
    auto at = std::find_if(entries.begin(), entries.end(), [&](const GemmEntry &e) { return same_shape(e.shape, s); });
    const bool known = at != entries.end();     /* from this run or from a file */
    if (!known) {
        entries.push_back({});
        at = entries.end() - 1;
        at->shape = s;
    }
    GemmEntry *e = &*at;
    if (e->ready) return e;
    describe(e, op);
    if (known) {
        cublasLtMatmulHeuristicResult_t result;
        if (cublasLtMatmulAlgoCheck(backend_of(ctx)->lt, e->desc, e->b, e->a, e->d, e->d, &e->algo, &result) ==
                CUBLAS_STATUS_SUCCESS &&
            result.workspaceSize <= GEMM_WORKSPACE)
            return e;
        if (e->restored)
            fprintf(stderr,
                    "note: %s: cublasLt %zu refuses the checkpoint's algorithm for %s [%" PRId64 ", %" PRId64
                    "] over %" PRId64 ": another takes its place, so the run continues, but not bitwise\n",
                    op, cublasLtGetVersion(), form_names[s.form], s.m, s.n, s.k);
    }
    choose(ctx, op, e, d, a, b, c);
    return e;
}

void gemm(const OpContext *ctx, OpId id, GemmForm form, Tensor d, Tensor a, Tensor b, bool accumulate)
{
    const char *op = op_name(id);
    const Tensor c = accumulate ? d : Tensor{};
    GemmEntry *e = entry_of(ctx, op, form, d, a, b, c);
    LT_CHECK(op, multiply(ctx, *e, &e->algo, d.data, a.data, b.data, c.data));
}

Tensor gemm_add(const OpContext *ctx, OpId id, Tensor d, Tensor a, Tensor b, Tensor c, bool *added)
{
    const char *op = op_name(id);
    GemmEntry *e = entry_of(ctx, op, GEMM_NT, d, a, b, c);
    *added = !e->separate;
    if (e->separate && c.data == d.data) d.data = op_scratch(ctx);
    LT_CHECK(op, multiply(ctx, *e, &e->algo, d.data, a.data, b.data, *added ? c.data : nullptr));
    return d;
}
