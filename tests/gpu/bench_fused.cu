/* Fused ops against the unfused ones on one GPU.
 *
 *   bench_fused check                    outputs at odd and real shapes: against the unfused op and against double precision
 *   bench_fused time WIDTH [OP] [quick]  alternating A/B at 1b, 8b or 70b width on a hot card: every variant of every op
 *
 * `time` prints unfused / fused: above 1 the fused op is faster. */
#include "kernels/cuda/fused/fused.h"
#include "kernels/cuda/vec.cuh"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

struct Sizes {
    const char *name;
    int64_t T, d, f, heads, kv_heads, head_dim, vocab, chunk;
    int pad;                /* elements between rows of every bf16 tensor */
    int64_t qkv() const { return (heads + 2 * kv_heads) * head_dim; }
    int64_t padded() const { return (vocab + 127) / 128 * 128; }
};

static const Sizes real_sizes[] = {
    {"1b", 16384, 2048, 8192, 32, 8, 64, 128256, 8192, 0},
    {"8b", 16384, 4096, 14336, 32, 8, 128, 128256, 8192, 0},
    {"70b", 8192, 8192, 28672, 64, 8, 128, 128256, 4096, 0},
};
static const Sizes odd_sizes[] = {
    {"tiny", 8, 8, 8, 1, 1, 8, 5, 8, 0},
    {"odd", 333, 136, 328, 3, 1, 40, 517, 77, 8},
    {"one tile over", 129, 200, 392, 5, 5, 24, 1009, 129, 16},
    {"several waves", 6200, 520, 1096, 7, 1, 72, 3001, 1531, 8},
};

static OpContext ctx;
static std::vector<void *> owned;

static cudaStream_t stream() { return (cudaStream_t)ctx.stream; }

static void wait_device() { CUDA_CHECK("bench", cudaStreamSynchronize(stream())); }

static void *take(size_t bytes)
{
    void *memory = cuda_device.alloc(bytes);
    if (!memory) cuda_fail(__FILE__, __LINE__, "bench", "alloc", "out of device memory");
    owned.push_back(memory);
    return memory;
}

static void release_all()
{
    wait_device();
    for (void *memory : owned) cuda_device.release(memory);
    owned.clear();
}

/* ---- data -------------------------------------------------------------------------------------------------- */

__global__ void fill_normal(void *to, Dtype dtype, int64_t rows, int64_t cols, int64_t stride, float scale, uint32_t seed)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < rows * cols; i += gridDim.x * (int64_t)blockDim.x) {
        uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull ^ seed * 0xD1B54A32D192ED03ull;
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
        x = (x ^ x >> 27) * 0x94D049BB133111EBull;
        float u = ((x >> 40) + 0.5f) * (1.0f / (1 << 24)), w = (uint32_t)x * 2.3283064e-10f;
        float v = scale * sqrtf(-2 * logf(u)) * cosf(6.2831853f * w);
        int64_t at = i / cols * stride + i % cols;
        if (dtype == DTYPE_BF16) ((bf16 *)to)[at] = __float2bfloat16(v);
        else ((float *)to)[at] = v;
    }
}

/* Everything outside the matrix's elements, TAIL bytes behind it included, holds 0xff. */
enum { TAIL = 4096 };

static size_t bytes_of(Tensor t) { return (size_t)(t.rows * t.stride) * dtype_bytes(t.dtype); }

static void poison(Tensor t) { CUDA_CHECK("bench", cudaMemsetAsync(t.data, 0xff, bytes_of(t) + TAIL, stream())); }

static Tensor make(int64_t rows, int64_t cols, int pad, Dtype dtype = DTYPE_BF16)
{
    Tensor t = tensor(nullptr, rows, cols, dtype);
    t.stride = cols + pad;
    t.data = take(bytes_of(t) + TAIL);
    poison(t);
    return t;
}

static void randomise(Tensor t, float scale)
{
    static uint32_t seed = 0;
    fill_normal<<<2048, 256, 0, stream()>>>(t.data, t.dtype, t.rows, t.cols, t.stride, scale, ++seed);
}

static Tensor normal(int64_t rows, int64_t cols, int pad, float scale, Dtype dtype = DTYPE_BF16)
{
    Tensor t = make(rows, cols, pad, dtype);
    randomise(t, scale);
    return t;
}

template <class T> static T *upload(const std::vector<T> &values)
{
    T *to = (T *)take(values.size() * sizeof(T));
    CUDA_CHECK("bench", cudaMemcpy(to, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
    return to;
}

__global__ void sums_of_squares(RowSums out, const bf16 *x, int64_t stride, int64_t cols)
{
    for (int part = threadIdx.x; part < out.parts; part += blockDim.x) {
        float sum = 0;
        for (int64_t c = part; c < cols; c += out.parts) {
            float v = __bfloat162float(x[blockIdx.x * stride + c]);
            sum += v * v;
        }
        out.data[blockIdx.x * (int64_t)out.parts + part] = sum;
    }
}

static RowSums make_sums(int64_t rows, int parts)
{
    RowSums sums = {(float *)take((size_t)rows * parts * sizeof(float)), parts};
    CUDA_CHECK("bench", cudaMemset(sums.data, 0xff, (size_t)rows * parts * sizeof(float)));
    return sums;
}

static RowNorm norm_of(Tensor x)
{
    RowNorm norm = {make_sums(x.rows, fused_parts(x.cols)), 1e-5f, x.cols};
    sums_of_squares<<<(unsigned)x.rows, 32, 0, stream()>>>(norm.sumsq, (const bf16 *)x.data, x.stride, x.cols);
    return norm;
}

/* ---- references in double precision, one row at a time --------------------------------------------------------- */

typedef std::vector<double> Row;

__global__ void product_row(double *out, GemmForm form, Tensor a, Tensor b, int64_t row, int64_t n, int64_t k)
{
    int64_t col = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (col >= n) return;
    const bf16 *x = (const bf16 *)a.data, *y = (const bf16 *)b.data;
    double sum = 0;
    for (int64_t i = 0; i < k; i++) {
        double left = __bfloat162float(form == GEMM_TN ? x[i * a.stride + row] : x[row * a.stride + i]);
        sum += left * __bfloat162float(form == GEMM_NT ? y[col * b.stride + i] : y[i * b.stride + col]);
    }
    out[col] = sum;
}

static Row product(GemmForm form, Tensor a, Tensor b, int64_t row)
{
    int64_t k = form == GEMM_TN ? a.rows : a.cols, n = form == GEMM_NT ? b.rows : b.cols;
    static double *to = nullptr;
    if (!to) CUDA_CHECK("bench", cudaMalloc(&to, 1 << 21));
    product_row<<<(unsigned)((n + 127) / 128), 128, 0, stream()>>>(to, form, a, b, row, n, k);
    Row out((size_t)n);
    CUDA_CHECK("bench", cudaMemcpyAsync(out.data(), to, (size_t)n * sizeof(double), cudaMemcpyDeviceToHost, stream()));
    wait_device();
    return out;
}

static Row row_of(Tensor t, int64_t row)
{
    std::vector<char> raw((size_t)t.cols * dtype_bytes(t.dtype));
    wait_device();
    CUDA_CHECK("bench", cudaMemcpy(raw.data(), (char *)t.data + row * t.stride * dtype_bytes(t.dtype), raw.size(),
                                   cudaMemcpyDeviceToHost));
    Row out((size_t)t.cols);
    for (int64_t i = 0; i < t.cols; i++)
        out[i] = t.dtype == DTYPE_BF16 ? (double)__bfloat162float(((bf16 *)raw.data())[i]) : (double)((float *)raw.data())[i];
    return out;
}

template <class T> static double value(const T *vector, int64_t i)
{
    T v;
    wait_device();
    CUDA_CHECK("bench", cudaMemcpy(&v, vector + i, sizeof v, cudaMemcpyDeviceToHost));
    return (double)v;
}

static double parts_of(RowSums sums, int64_t row)
{
    double total = 0;
    for (double v : row_of(tensor(sums.data, row + 1, sums.parts, DTYPE_F32), row)) total += v;
    return total;
}

static double rstd(RowNorm norm, int64_t row) { return 1 / sqrt(parts_of(norm.sumsq, row) / (double)norm.cols + norm.eps); }

/* ---- cases ------------------------------------------------------------------------------------------------------- */

/* A result of an op: `want` gives a row of it in double precision; empty: compared with the unfused op only.
 * A RowSums result is compared as the sum of its parts. */
struct Output {
    const char *name;
    Tensor t;
    bool sums;
    std::function<Row(int64_t)> want;
};

struct Case {
    std::string name;
    OpId op;
    double flops;
    std::vector<Output> outputs;
    std::function<void(const FusedCall &)> fused;
    std::function<void()> unfused;
    std::function<void()> prepare;      /* instead of poison, for outputs that are added to */
    bool small_tile;                    /* 128x128 is worth a try */
};

static Output sums_output(const char *name, RowSums sums, int64_t rows, std::function<double(int64_t)> want)
{
    return Output{name, tensor(sums.data, rows, sums.parts, DTYPE_F32), true, [=](int64_t i) { return Row{want(i)}; }};
}

static Case qkv_case(const Sizes &s)
{
    Tensor x = normal(s.T, s.d, s.pad, 1), w = normal(s.qkv(), s.d, s.pad, 1 / sqrtf(s.d)), out = make(s.T, s.qkv(), s.pad);
    RowNorm norm = norm_of(x);
    std::vector<int32_t> pos(s.T);
    std::vector<float> table(2048 * s.head_dim);
    for (int64_t i = 0; i < s.T; i++) pos[i] = (int32_t)(i * 7 % 2048);
    for (int64_t p = 0; p < 2048; p++)
        for (int64_t i = 0; i < s.head_dim / 2; i++) {
            double angle = p * pow(10000.0, -2.0 * i / s.head_dim);
            table[p * s.head_dim + 2 * i] = (float)cos(angle), table[p * s.head_dim + 2 * i + 1] = (float)sin(angle);
        }
    Rope rope = {upload(table), upload(pos), (int)s.head_dim, (s.heads + s.kv_heads) * s.head_dim};
    auto want = [=](int64_t row) {
        Row v = product(GEMM_NT, x, w, row);
        double r = rstd(norm, row);
        for (int64_t c = 0; c < (int64_t)v.size(); c += 2) {
            double a = r * v[c], b = r * v[c + 1];
            const float *angle = &table[pos[row] * s.head_dim + c % s.head_dim];
            bool turns = c < rope.rotated;
            v[c] = turns ? a * angle[0] - b * angle[1] : a, v[c + 1] = turns ? a * angle[1] + b * angle[0] : b;
        }
        return v;
    };
    return {"qkv", OP_QKV, 2.0 * s.T * s.qkv() * s.d, {{"qkv", out, false, want}},
            [=](const FusedCall &call) { fused_qkv(call, out, x, w, norm, rope); },
            [=] { cuda_qkv(&ctx, out, x, w, norm, rope); }, {}, false};
}

static Case residual_case(const Sizes &s, OpId op, int64_t k, bool with_xg)
{
    Tensor a = normal(s.T, k, s.pad, 1), w = normal(s.d, k, s.pad, 1 / sqrtf(k)), in = normal(s.T, s.d, s.pad, 1);
    Tensor out = make(s.T, s.d, s.pad), xg = with_xg ? make(s.T, s.d, s.pad) : Tensor{};
    RowSums sumsq = make_sums(s.T, fused_parts(s.d));
    Tensor gamma = normal(1, s.d, 0, 1, DTYPE_F32);
    auto sum = [=](int64_t row) {
        Row v = product(GEMM_NT, a, w, row), r = row_of(in, row);
        for (size_t i = 0; i < v.size(); i++) v[i] += r[i];
        return v;
    };
    Case c = {with_xg ? "down, last" : op_name(op), op, 2.0 * s.T * s.d * k, {{"out", out, false, sum}}, {}, {}, {}, false};
    c.outputs.push_back(sums_output("sumsq", sumsq, s.T, [=](int64_t row) {
        double total = 0;
        for (double v : sum(row)) total += v * v;
        return total;
    }));
    if (with_xg) c.outputs.push_back({"xg", xg, false, [=](int64_t row) {
        Row v = sum(row), g = row_of(gamma, 0);
        for (size_t i = 0; i < v.size(); i++) v[i] *= g[i];
        return v;
    }});
    const float *g = with_xg ? (const float *)gamma.data : nullptr;
    c.fused = [=](const FusedCall &call) { fused_residual(call, out, sumsq, xg, a, w, in, g); };
    c.unfused = [=] { cuda_residual(&ctx, op, out, sumsq, xg, a, w, in, g); };
    return c;
}

static double silu(double x) { return x / (1 + exp(-x)); }

static Case gate_up_case(const Sizes &s)
{
    Tensor x = normal(s.T, s.d, s.pad, 1), w = normal(2 * s.f, s.d, s.pad, 1 / sqrtf(s.d));
    Tensor z = make(s.T, 2 * s.f, s.pad), y = make(s.T, s.f, s.pad);
    RowNorm norm = norm_of(x);
    auto want_z = [=](int64_t row) {
        Row v = product(GEMM_NT, x, w, row);
        double r = rstd(norm, row);
        for (double &e : v) e *= r;
        return v;
    };
    auto want_y = [=](int64_t row) {
        Row v = want_z(row), out(v.size() / 2);
        for (size_t i = 0; i < out.size(); i++) out[i] = silu(v[i / 8 * 16 + i % 8]) * v[i / 8 * 16 + 8 + i % 8];
        return out;
    };
    return {"gate_up", OP_GATE_UP, 4.0 * s.T * s.f * s.d, {{"z", z, false, want_z}, {"y", y, false, want_y}},
            [=](const FusedCall &call) { fused_gate_up(call, z, y, x, w, norm); },
            [=] { cuda_gate_up(&ctx, z, y, x, w, norm); }, {}, false};
}

static Case down_dx_case(const Sizes &s, bool with_y)
{
    Tensor dx = normal(s.T, s.d, s.pad, 1), w = normal(s.d, s.f, s.pad, 1 / sqrtf(s.d)), z = normal(s.T, 2 * s.f, s.pad, 1);
    Tensor dz = make(s.T, 2 * s.f, s.pad), y = with_y ? make(s.T, s.f, s.pad) : Tensor{};
    RowNorm norm = norm_of(dx);     /* any will do */
    RowSums zdz = make_sums(s.T, fused_parts(s.f));
    auto grad = [=](int64_t row) {  /* not yet scaled by r */
        Row dy = product(GEMM_NN, dx, w, row), v = row_of(z, row), out(v.size());
        for (size_t i = 0; i < dy.size(); i++) {
            size_t at = i / 8 * 16 + i % 8;
            double g = v[at], u = v[at + 8], sig = 1 / (1 + exp(-g));
            out[at] = dy[i] * u * sig * (1 + g * (1 - sig)), out[at + 8] = dy[i] * g * sig;
        }
        return out;
    };
    Case c = {with_y ? "down_dx, y again" : "down_dx", OP_DOWN_DX, 2.0 * s.T * s.f * s.d, {}, {}, {}, {}, true};
    c.outputs.push_back({"dz", dz, false, [=](int64_t row) {
        Row v = grad(row);
        double r = rstd(norm, row);
        for (double &e : v) e *= r;
        return v;
    }});
    c.outputs.push_back(sums_output("zdz", zdz, s.T, [=](int64_t row) {
        Row g = grad(row), v = row_of(z, row);
        double total = 0;
        for (size_t i = 0; i < g.size(); i++) total += g[i] * v[i];
        return total;
    }));
    if (with_y) c.outputs.push_back({"y", y, false, [=](int64_t row) {
        Row v = row_of(z, row), out(v.size() / 2);
        for (size_t i = 0; i < out.size(); i++) out[i] = silu(v[i / 8 * 16 + i % 8]) * v[i / 8 * 16 + 8 + i % 8];
        return out;
    }});
    c.fused = [=](const FusedCall &call) { fused_down_dx(call, dz, y, zdz, dx, w, z, norm); };
    c.unfused = [=] { cuda_down_dx(&ctx, dz, y, zdz, dx, w, z, norm); };
    return c;
}

static Case norm_dx_case(const Sizes &s, OpId op, int64_t n)
{
    Tensor dz = normal(s.T, n, s.pad, 1), w = normal(n, s.d, s.pad, 1 / sqrtf(n)), x = normal(s.T, s.d, s.pad, 1);
    Tensor residual = normal(s.T, s.d, s.pad, 1), out = make(s.T, s.d, s.pad);
    RowNorm norm = norm_of(x);
    RowSums zdz = make_sums(s.T, fused_parts(n));
    randomise(tensor(zdz.data, s.T, zdz.parts, DTYPE_F32), sqrtf((float)s.d));
    auto want = [=](int64_t row) {
        Row v = product(GEMM_NN, dz, w, row), e = row_of(x, row), d = row_of(residual, row);
        double r = rstd(norm, row), pull = r * r * parts_of(zdz, row) / (double)s.d;
        for (size_t i = 0; i < v.size(); i++) v[i] += d[i] - pull * e[i];
        return v;
    };
    return {op_name(op), op, 2.0 * s.T * s.d * n, {{"dx", out, false, want}},
            [=](const FusedCall &call) { fused_norm_dx(call, out, dz, w, residual, x, norm, zdz); },
            [=] { cuda_norm_dx(&ctx, op, out, dz, w, residual, x, norm, zdz); }, {}, false};
}

static Case out_dx_case(const Sizes &s)
{
    int64_t n = s.heads * s.head_dim;
    Tensor dx = normal(s.T, s.d, s.pad, 1), w = normal(s.d, n, s.pad, 1 / sqrtf(s.d)), out = make(s.T, n, s.pad);
    return {"out_dx", OP_OUT_DX, 2.0 * s.T * s.d * n, {{"do", out, false, [=](int64_t row) { return product(GEMM_NN, dx, w, row); }}},
            [=](const FusedCall &call) { fused_out_dx(call, out, dx, w); }, [=] { cuda_out_dx(&ctx, out, dx, w); }, {}, false};
}

__global__ void to_float(float *to, const double *from) { *to = (float)*from; }

static Case dw_case(const Sizes &s, OpId op, int64_t n, int64_t k, bool accumulate, bool with_sum)
{
    Tensor dy = normal(s.T, n, s.pad, 1), a = normal(s.T, k, s.pad, 1), grad = make(n, k, accumulate ? 0 : s.pad, DTYPE_F32);
    Tensor before = accumulate ? normal(n, k, 0, sqrtf((float)s.T), DTYPE_F32) : Tensor{};
    double *sumsq = with_sum ? (double *)take(sizeof(double)) : nullptr;
    Tensor shown = make(1, 1, 0, DTYPE_F32);     /* the sum, as a tensor */
    auto show = [=] { if (with_sum) to_float<<<1, 1, 0, stream()>>>((float *)shown.data, sumsq); };
    if (with_sum) grad.stride = k;  /* cuda_sum_squares wants a packed matrix */
    auto want = [=](int64_t row) {
        Row v = product(GEMM_TN, dy, a, row);
        if (accumulate) {
            Row b = row_of(before, row);
            for (size_t i = 0; i < v.size(); i++) v[i] += b[i];
        }
        return v;
    };
    Case c = {std::string(op_name(op)) + (accumulate ? ", add" : "") + (with_sum ? ", sum" : ""), op, 2.0 * s.T * n * k,
              {{"grad", grad, false, want}}, {}, {}, {}, false};
    if (with_sum) c.outputs.push_back({"sumsq", shown, false, {}});
    c.fused = [=](const FusedCall &call) { fused_dw(call, grad, dy, a, accumulate, sumsq), show(); };
    c.unfused = [=] { cuda_dw(&ctx, op, grad, dy, a, accumulate, sumsq), show(); };
    if (accumulate) c.prepare = [=] {
        CUDA_CHECK("bench", cudaMemcpyAsync(grad.data, before.data, bytes_of(before), cudaMemcpyDeviceToDevice, stream()));
    };
    return c;
}

/* A chunk of the head: inputs random, what head and head_loss write poisoned. */
static HeadChunk head_chunk(const Sizes &s, float sharpness)
{
    HeadChunk h = {};
    h.x = normal(s.chunk, s.d, s.pad, 1);
    h.xg = normal(s.chunk, s.d, s.pad, 1);
    h.norm = norm_of(h.x);
    h.table = make(s.padded(), s.d, s.pad);
    randomise(tensor_rows(h.table, 0, s.vocab), sharpness / sqrtf((float)s.d));
    Tensor rest = tensor_rows(h.table, s.vocab, s.padded() - s.vocab);
    if (rest.rows) CUDA_CHECK("bench", cudaMemsetAsync(rest.data, 0, bytes_of(rest), stream()));
    h.vocab = s.vocab;
    std::vector<int32_t> targets(s.chunk), order(s.chunk);
    for (int64_t i = 0; i < s.chunk; i++) targets[i] = (int32_t)((uint64_t)i * 7919 % s.vocab), order[i] = (int32_t)i;
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return targets[a] < targets[b]; });
    h.targets = upload(targets), h.order = upload(order);
    h.weights = upload(std::vector<float>(s.chunk, 1.0f / s.chunk));
    h.e = make(s.chunk, s.padded(), 0);
    h.d = make_sums(s.chunk, fused_parts(s.padded())), h.q = make_sums(s.chunk, fused_parts(s.padded()));
    for (float **v : {&h.anchor, &h.loss, &h.alpha, &h.beta, &h.s}) *v = (float *)make(1, s.chunk, 0, DTYPE_F32).data;
    h.axg = make(s.chunk, s.d, s.pad);
    return h;
}

/* logit - the target's, of every column that counts, for row i. */
static Row shifted_logits(const HeadChunk &h, int64_t row, double *anchor)
{
    Row v = product(GEMM_NT, h.xg, h.table, row);
    double r = rstd(h.norm, row);
    int64_t target = (int64_t)value(h.targets, row);
    *anchor = r * v[target];
    for (size_t i = 0; i < v.size(); i++) v[i] = (int64_t)i < h.vocab && (int64_t)i != target ? r * v[i] - *anchor : -INFINITY;
    return v;
}

static Case head_case(const Sizes &s)
{
    HeadChunk h = head_chunk(s, 1);
    auto sum = [=](int64_t row, bool q) {
        double anchor, total = 0;
        for (double v : shifted_logits(h, row, &anchor))
            if (v > -INFINITY) total += exp(std::min(v, 60.0)) * (q ? std::min(v, 60.0) : 1);
        return total;
    };
    Case c = {"head", OP_HEAD, 2.0 * s.chunk * s.padded() * s.d, {}, {}, {}, {}, false};
    c.outputs.push_back({"e", h.e, false, [=](int64_t row) {
        double anchor;
        Row v = shifted_logits(h, row, &anchor);
        for (double &e : v) e = exp(std::min(e, 60.0));
        return v;
    }});
    c.outputs.push_back(sums_output("d", h.d, s.chunk, [=](int64_t row) { return sum(row, false); }));
    c.outputs.push_back(sums_output("q", h.q, s.chunk, [=](int64_t row) { return sum(row, true); }));
    c.fused = [=](const FusedCall &call) { fused_head(call, &h); };
    c.unfused = [=] { cuda_head(&ctx, &h); };
    return c;
}

static Case head_eval_case(const Sizes &s)
{
    HeadChunk h = head_chunk(s, 4);
    Tensor loss = tensor(h.loss, s.chunk, 1, DTYPE_F32);
    return {"head_eval", OP_HEAD_EVAL, 2.0 * s.chunk * s.padded() * s.d, {{"loss", loss, false, [=](int64_t row) {
        double anchor, total = 0;
        for (double v : shifted_logits(h, row, &anchor)) total += exp(v);
        return Row{log1p(total)};
    }}}, [=](const FusedCall &call) { fused_head_eval(call, &h); }, [=] { cuda_head_eval(&ctx, &h); }, {}, false};
}

static Case head_dx_case(const Sizes &s)
{
    HeadChunk h = head_chunk(s, 1);
    randomise(h.e, 1);
    for (float *v : {h.alpha, h.beta, h.s}) randomise(tensor(v, 1, s.chunk, DTYPE_F32), 1);
    Tensor gamma = normal(1, s.d, 0, 1, DTYPE_F32), dgamma = make(1, s.d, 0, DTYPE_F32), dx = make(s.chunk, s.d, s.pad);
    auto want = [=](int64_t row) {
        Row v = product(GEMM_NN, h.e, h.table, row), w = row_of(h.table, (int64_t)value(h.targets, row));
        Row x = row_of(h.x, row), g = row_of(gamma, 0);
        double alpha = value(h.alpha, row), beta = value(h.beta, row), pull = value(h.s, row);
        for (size_t i = 0; i < v.size(); i++) v[i] = (alpha * v[i] - beta * w[i]) * g[i] - pull * x[i];
        return v;
    };
    return {"head_dx", OP_HEAD_DX, 2.0 * s.chunk * s.padded() * s.d, {{"dx", dx, false, want}, {"dgamma", dgamma, false, {}}},
            [=](const FusedCall &call) { fused_head_dx(call, dx, (float *)dgamma.data, &h, (const float *)gamma.data, false); },
            [=] { cuda_head_dx(&ctx, dx, (float *)dgamma.data, &h, (const float *)gamma.data, false); }, {}, false};
}

typedef std::function<Case(const Sizes &)> CaseMaker;

static const std::vector<std::pair<const char *, CaseMaker>> case_makers = {
    {"qkv", qkv_case},
    {"out", [](const Sizes &s) { return residual_case(s, OP_OUT, s.heads * s.head_dim, false); }},
    {"gate_up", gate_up_case},
    {"down", [](const Sizes &s) { return residual_case(s, OP_DOWN, s.f, false); }},
    {"down_xg", [](const Sizes &s) { return residual_case(s, OP_DOWN, s.f, true); }},
    {"down_dx", [](const Sizes &s) { return down_dx_case(s, false); }},
    {"down_dx_y", [](const Sizes &s) { return down_dx_case(s, true); }},
    {"gate_up_dx", [](const Sizes &s) { return norm_dx_case(s, OP_GATE_UP_DX, 2 * s.f); }},
    {"qkv_dx", [](const Sizes &s) { return norm_dx_case(s, OP_QKV_DX, s.qkv()); }},
    {"out_dx", out_dx_case},
    {"gate_up_dw", [](const Sizes &s) { return dw_case(s, OP_GATE_UP_DW, 2 * s.f, s.d, false, false); }},
    {"gate_up_dw_add", [](const Sizes &s) { return dw_case(s, OP_GATE_UP_DW, 2 * s.f, s.d, true, false); }},
    {"down_dw_sum", [](const Sizes &s) { return dw_case(s, OP_DOWN_DW, s.d, s.f, false, true); }},
    {"down_dw_add_sum", [](const Sizes &s) { return dw_case(s, OP_DOWN_DW, s.d, s.f, true, true); }},
    {"qkv_dw", [](const Sizes &s) { return dw_case(s, OP_QKV_DW, s.qkv(), s.d, false, false); }},
    {"out_dw", [](const Sizes &s) { return dw_case(s, OP_OUT_DW, s.d, s.heads * s.head_dim, false, false); }},
    {"head", head_case},
    {"head_eval", head_eval_case},
    {"head_dx", head_dx_case},
};

static std::vector<FusedVariant> variants_of(const Case &c, bool few)
{
    std::vector<FusedVariant> all;
    for (int tile = 0; tile < (c.small_tile ? TILE_COUNT : TILE_128x128); tile++)
        for (int cluster = 1; cluster <= 2; cluster++)
            for (int group : {8, 16})
                if (!few || group == 16) all.push_back(FusedVariant{(FusedTile)tile, cluster, group});
    return all;
}

static const char *variant_name(FusedVariant v)
{
    static char text[32];
    static const char *const tiles[] = {"128x192", "192x128", "128x128"};
    snprintf(text, sizeof text, "%s c%d g%-2d", tiles[v.tile], v.cluster, v.group);
    return text;
}

/* ---- check --------------------------------------------------------------------------------------------------------- */

__global__ void compare(double *sums, Tensor got, Tensor want)
{
    double diff = 0, norm = 0;
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < got.rows * got.cols; i += gridDim.x * (int64_t)blockDim.x) {
        int64_t at = i / got.cols * got.stride + i % got.cols;
        bool half = got.dtype == DTYPE_BF16;
        double a = half ? __bfloat162float(((bf16 *)got.data)[at]) : ((float *)got.data)[at];
        double b = half ? __bfloat162float(((bf16 *)want.data)[at]) : ((float *)want.data)[at];
        diff += (a - b) * (a - b), norm += b * b;
    }
    diff = block_sum(diff), norm = block_sum(norm);
    if (threadIdx.x == 0) atomicAdd(&sums[0], diff), atomicAdd(&sums[1], norm);
}

/* Bytes outside the elements that no longer hold poison. width: bytes a row, used: of elements. */
__global__ void count_strays(unsigned long long *count, const uint8_t *data, int64_t rows, int64_t width, int64_t used)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < rows * width + TAIL; i += gridDim.x * (int64_t)blockDim.x)
        if ((i >= rows * width || i % width >= used) && data[i] != 0xff) atomicAdd(count, 1ull);
}

static unsigned long long strays(Tensor t)
{
    static unsigned long long *count = nullptr;
    unsigned long long found;
    if (!count) CUDA_CHECK("bench", cudaMalloc(&count, sizeof found));
    CUDA_CHECK("bench", cudaMemsetAsync(count, 0, sizeof found, stream()));
    int64_t bytes = (int64_t)dtype_bytes(t.dtype);
    count_strays<<<512, 256, 0, stream()>>>(count, (const uint8_t *)t.data, t.rows, t.stride * bytes, t.cols * bytes);
    wait_device();
    CUDA_CHECK("bench", cudaMemcpy(&found, count, sizeof found, cudaMemcpyDeviceToHost));
    return found;
}

static double relative_difference(const Output &o, Tensor want)
{
    static double *sums = nullptr;
    double host[2];
    if (!sums) CUDA_CHECK("bench", cudaMalloc(&sums, sizeof host));
    if (o.sums) {
        double diff = 0, norm = 0;
        for (int64_t i = 0; i < o.t.rows; i += 1 + o.t.rows / 200) {
            double a = parts_of(RowSums{(float *)o.t.data, (int)o.t.cols}, i);
            double b = parts_of(RowSums{(float *)want.data, (int)o.t.cols}, i);
            diff += (a - b) * (a - b), norm += b * b;
        }
        return sqrt(diff / norm);
    }
    CUDA_CHECK("bench", cudaMemsetAsync(sums, 0, sizeof host, stream()));
    compare<<<512, 256, 0, stream()>>>(sums, o.t, want);
    wait_device();
    CUDA_CHECK("bench", cudaMemcpy(host, sums, sizeof host, cudaMemcpyDeviceToHost));
    return sqrt(host[0] / host[1]);
}

static double error_of(const Output &o, const std::vector<int64_t> &rows, const std::vector<Row> &want)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < rows.size(); i++) {
        Row got = o.sums ? Row{parts_of(RowSums{(float *)o.t.data, (int)o.t.cols}, rows[i])} : row_of(o.t, rows[i]);
        for (size_t j = 0; j < got.size(); j++) diff += (got[j] - want[i][j]) * (got[j] - want[i][j]), norm += want[i][j] * want[i][j];
    }
    return sqrt(diff / norm);
}

static void prepare(const Case &c)
{
    for (const Output &o : c.outputs) {
        if (!o.sums) poison(o.t);
        else CUDA_CHECK("bench", cudaMemsetAsync(o.t.data, 0xff, bytes_of(o.t), stream()));
    }
    if (c.prepare) c.prepare();
}

static int check_case(const Sizes &s, const Case &c)
{
    std::vector<std::vector<Row>> want;
    std::vector<std::vector<int64_t>> rows;
    std::vector<double> unfused_error;
    std::vector<Tensor> shadow;
    int failed = 0;
    prepare(c);
    c.unfused();
    for (const Output &o : c.outputs) {
        std::vector<int64_t> sample;
        for (int64_t i = 0; i < 12; i++) sample.push_back(i * (o.t.rows - 1) / 11);
        std::vector<Row> w;
        for (int64_t row : sample)
            if (o.want) w.push_back(o.want(row));
        unfused_error.push_back(o.want ? error_of(o, sample, w) : 0);
        want.push_back(w), rows.push_back(sample);
        Tensor copy = o.t;
        copy.data = take(bytes_of(o.t));
        CUDA_CHECK("bench", cudaMemcpyAsync(copy.data, o.t.data, bytes_of(o.t), cudaMemcpyDeviceToDevice, stream()));
        shadow.push_back(copy);
    }
    for (FusedVariant v : variants_of(c, true)) {
        prepare(c);
        c.fused(FusedCall{&ctx, c.op, v});
        wait_device();
        for (size_t i = 0; i < c.outputs.size(); i++) {
            const Output &o = c.outputs[i];
            double against = relative_difference(o, shadow[i]), error = o.want ? error_of(o, rows[i], want[i]) : 0;
            unsigned long long touched = o.sums ? 0 : strays(o.t);
            bool good = against < 1e-2 && error <= 1.1 * unfused_error[i] + 2e-6 && !touched;
            failed += !good;
            if (!good || (v.tile == TILE_128x192 && v.cluster == 1))
                printf("%s %-14s %-16s %-6s %s  against unfused %.1e, error %.2e, unfused %.2e, strays %llu\n",
                       good ? "ok    " : "NOT OK", s.name, c.name.c_str(), o.name, variant_name(v), against, error,
                       unfused_error[i], touched);
        }
    }
    fflush(stdout);
    return failed;
}

/* ---- time ------------------------------------------------------------------------------------------------------------- */

static double median(std::vector<double> v)
{
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

/* Medians of alternating runs on a hot card: at least 0.25 s of the same work first. */
static void time_pair(const std::function<void()> &a, const std::function<void()> &b, int rounds, double *ms_a, double *ms_b)
{
    cudaEvent_t e[3];
    std::vector<double> times_a, times_b;
    for (cudaEvent_t &event : e) CUDA_CHECK("bench", cudaEventCreate(&event));
    for (float heat = 0; heat < 250;) {
        CUDA_CHECK("bench", cudaEventRecord(e[0], stream()));
        for (int i = 0; i < 8; i++) a(), b();
        CUDA_CHECK("bench", cudaEventRecord(e[1], stream()));
        CUDA_CHECK("bench", cudaEventSynchronize(e[1]));
        float ms;
        CUDA_CHECK("bench", cudaEventElapsedTime(&ms, e[0], e[1]));
        heat += ms;
    }
    for (int i = 0; i < rounds; i++) {
        float ms;
        CUDA_CHECK("bench", cudaEventRecord(e[0], stream()));
        a();
        CUDA_CHECK("bench", cudaEventRecord(e[1], stream()));
        b();
        CUDA_CHECK("bench", cudaEventRecord(e[2], stream()));
        CUDA_CHECK("bench", cudaEventSynchronize(e[2]));
        CUDA_CHECK("bench", cudaEventElapsedTime(&ms, e[0], e[1]));
        times_a.push_back(ms);
        CUDA_CHECK("bench", cudaEventElapsedTime(&ms, e[1], e[2]));
        times_b.push_back(ms);
    }
    for (cudaEvent_t &event : e) CUDA_CHECK("bench", cudaEventDestroy(event));
    *ms_a = median(times_a), *ms_b = median(times_b);
}

static void time_case(const Sizes &s, const Case &c, bool quick)
{
    double best = 0;
    std::string best_line;
    prepare(c);
    c.unfused();
    for (FusedVariant v : variants_of(c, quick)) {
        double fused, unfused;
        time_pair([&] { c.fused(FusedCall{&ctx, c.op, v}); }, c.unfused, quick ? 20 : 60, &fused, &unfused);
        char line[160];
        snprintf(line, sizeof line, "%-4s %-16s %s  fused %7.3f ms %4.0f TFLOP/s  unfused %7.3f ms  unfused/fused %.3f", s.name,
                 c.name.c_str(), variant_name(v), fused, c.flops / fused * 1e-9, unfused, unfused / fused);
        printf("%s\n", line);
        fflush(stdout);
        if (unfused / fused > best) best = unfused / fused, best_line = line;
    }
    printf("best %s\n", best_line.c_str());
    fflush(stdout);
}

int main(int argc, char **argv)
{
    Errors errors = {};
    CudaOptions options = {};
    options.workspace_limit = (size_t)GEMM_WORKSPACE;
    ctx.backend = cuda_backend_open(&options, &errors);
    if (!ctx.backend) return fprintf(stderr, "%s\n", errors.count ? errors.text[0] : "no backend"), 1;
    ctx.stream = cuda_backend_stream(ctx.backend);
    ctx.workspace_bytes = GEMM_WORKSPACE + (1ull << 30);
    ctx.layer = -1;
    if (cudaMalloc(&ctx.workspace, ctx.workspace_bytes) != cudaSuccess) return 1;

    bool check = argc == 2 && !strcmp(argv[1], "check"), timing = argc >= 3 && !strcmp(argv[1], "time");
    if (!check && !timing) return fprintf(stderr, "usage: bench_fused check | time WIDTH [OP] [quick]\n"), 2;
    int failed = 0, done = 0;
    if (check) {
        std::vector<Sizes> all(odd_sizes, odd_sizes + sizeof odd_sizes / sizeof *odd_sizes);
        all.push_back(real_sizes[0]);
        for (const Sizes &s : all)
            for (const auto &maker : case_makers) {
                failed += check_case(s, maker.second(s));
                release_all();
            }
        printf("%s\n", failed ? "FAILED" : "all agree");
        return failed != 0;
    }
    bool quick = !strcmp(argv[argc - 1], "quick");
    const char *only = argc > 3 && strcmp(argv[3], "quick") ? argv[3] : nullptr;
    for (const Sizes &s : real_sizes)
        for (const auto &maker : case_makers)
            if (!strcmp(argv[2], s.name) && (!only || !strcmp(only, maker.first))) {
                time_case(s, maker.second(s), quick);
                release_all();
                done++;
            }
    return done ? 0 : (fprintf(stderr, "bench_fused: no such width or op\n"), 2);
}
