/* One case for each fused op, for test_fused.cu and bench_fused.cu: operands, both implementations, and each
 * row of the results in double precision. */
#pragma once
#include "tests/gpu/fused_testing.cuh"

/* A result of an op: `want` gives a row of it in double precision; empty: compared with the unfused op only.
 * A RowSums result is compared as the sum of its parts. */
struct Output {
    const char *name;
    Tensor t;
    bool sums;
    std::function<Row(int64_t)> want;
};

/* The GEMM alone: d = op(a) op(b). */
struct Product {
    GemmForm form;
    Tensor d, a, b;
};

struct Case {
    std::string name;
    OpId op;                            /* names it in messages and for a profiler */
    double flops;
    std::vector<Output> outputs;
    std::function<void(const FusedCall &)> fused;
    std::function<void()> unfused;      /* its error is the bar */
    std::function<void()> prepare;      /* instead of poison, for outputs that are added to */
    bool left;                          /* dispatch leaves this size to the library */
    Product product;
    double bar;                         /* instead, where the unfused op is off by more than rounding; else 0 */
};

/* A number that the whole product goes into has a reference where that is small: it takes minutes for a real one. */
static std::function<Row(int64_t)> where_small(double flops, const std::function<Row(int64_t)> &want)
{
    return flops < 1e11 ? want : nullptr;
}

static Output sums_output(const char *name, RowSums sums, int64_t rows, std::function<double(int64_t)> want)
{
    return Output{name, tensor(sums.data, rows, sums.parts, DTYPE_F32), true,
                  [=](int64_t i) { return Row{want(i)}; }};
}

static Case qkv_case(const Sizes &s)
{
    Tensor x = normal(s.T, s.d, s.pad, 1), w = normal(s.qkv(), s.d, s.pad, 1 / sqrtf(s.d)),
           out = make(s.T, s.qkv(), s.pad);
    RowNorm norm = norm_of(x);
    std::vector<int32_t> pos(s.T);
    std::vector<float> table(2048 * s.head_dim);
    for (int64_t i = 0; i < s.T; i++) pos[i] = (int32_t)(i * 7 % 2048);
    for (int64_t p = 0; p < 2048; p++)
        for (int64_t i = 0; i < s.head_dim / 2; i++) {
            double angle = p * pow(10000.0, -2.0 * i / s.head_dim);
            table[p * s.head_dim + 2 * i] = (float)cos(angle),
                                       table[p * s.head_dim + 2 * i + 1] = (float)sin(angle);
        }
    Rope rope = {upload(table), upload(pos), (int)s.head_dim, (s.heads + s.kv_heads) * s.head_dim};
    auto want = [=](int64_t row) {
        Row v = product(GEMM_NT, x, w, row);
        double r = rstd(norm, row);
        for (int64_t c = 0; c < (int64_t)v.size(); c += 2) {
            double a = r * v[c], b = r * v[c + 1];
            const float *angle = &table[pos[row] * s.head_dim + c % s.head_dim];
            bool turns = c < rope.rotated;
            v[c] = turns ? a * angle[0] - b * angle[1] : a,
            v[c + 1] = turns ? a * angle[1] + b * angle[0] : b;
        }
        return v;
    };
    return {"qkv", OP_QKV, 2.0 * s.T * s.qkv() * s.d, {{"qkv", out, false, want}},
            [=](const FusedCall &call) { fused_qkv(call, out, x, w, norm, rope); },
            [=] { cuda_qkv(&ctx, out, x, w, norm, rope); }, {}, false,
            {GEMM_NT, out, x, w}};
}

static Case residual_case(const Sizes &s, OpId op, int64_t k, bool with_xg)
{
    Tensor a = normal(s.T, k, s.pad, 1), w = normal(s.d, k, s.pad, 1 / sqrtf(k)),
           in = normal(s.T, s.d, s.pad, 1);
    Tensor out = make(s.T, s.d, s.pad), xg = with_xg ? make(s.T, s.d, s.pad) : Tensor{};
    RowSums sumsq = make_sums(s.T, fused_parts(s.d));
    Tensor gamma = normal(1, s.d, 0, 1, DTYPE_F32);
    auto sum = [=](int64_t row) {
        Row v = product(GEMM_NT, a, w, row), r = row_of(in, row);
        for (size_t i = 0; i < v.size(); i++) v[i] += r[i];
        return v;
    };
    Case c = {with_xg ? "down, last" : op_name(op),
              op,
              2.0 * s.T * s.d * k,
              {{"out", out, false, sum}},
              {},
              {},
              {},
              false,
              {}};
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
    c.product = {GEMM_NT, out, a, w};
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
        for (size_t i = 0; i < out.size(); i++)
            out[i] = silu(v[i / 8 * 16 + i % 8]) * v[i / 8 * 16 + 8 + i % 8];
        return out;
    };
    return {"gate_up", OP_GATE_UP, 4.0 * s.T * s.f * s.d, {{"z", z, false, want_z}, {"y", y, false, want_y}},
            [=](const FusedCall &call) { fused_gate_up(call, z, y, x, w, norm); },
            [=] { cuda_gate_up(&ctx, z, y, x, w, norm); }, {}, false,
            {GEMM_NT, z, x, w}};
}

static Case down_dx_case(const Sizes &s, bool with_y)
{
    Tensor dx = normal(s.T, s.d, s.pad, 1), w = normal(s.d, s.f, s.pad, 1 / sqrtf(s.d)),
           z = normal(s.T, 2 * s.f, s.pad, 1);
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
    Case c = {with_y ? "down_dx, y again" : "down_dx", OP_DOWN_DX, 2.0 * s.T * s.f * s.d, {}, {}, {}, {},
              false, {}};
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
        for (size_t i = 0; i < out.size(); i++)
            out[i] = silu(v[i / 8 * 16 + i % 8]) * v[i / 8 * 16 + 8 + i % 8];
        return out;
    }});
    c.fused = [=](const FusedCall &call) { fused_down_dx(call, dz, y, zdz, dx, w, z, norm); };
    c.unfused = [=] { cuda_down_dx(&ctx, dz, y, zdz, dx, w, z, norm); };
    Tensor dy = dz;
    dy.cols = s.f;
    c.product = {GEMM_NN, dy, dx, w};
    return c;
}

/* in_place: as training runs it, the sum goes where the residual gradient was. */
static Case norm_dx_case(const Sizes &s, OpId op, int64_t n, bool in_place = false)
{
    Tensor dz = normal(s.T, n, s.pad, 1), w = normal(n, s.d, s.pad, 1 / sqrtf(n)),
           x = normal(s.T, s.d, s.pad, 1);
    Tensor before = normal(s.T, s.d, s.pad, 1), out = make(s.T, s.d, s.pad);
    Tensor residual = in_place ? out : before;
    RowNorm norm = norm_of(x);
    RowSums zdz = make_sums(s.T, fused_parts(n));
    randomise(tensor(zdz.data, s.T, zdz.parts, DTYPE_F32), sqrtf((float)s.d));
    auto want = [=](int64_t row) {
        Row v = product(GEMM_NN, dz, w, row), e = row_of(x, row), d = row_of(before, row);
        double r = rstd(norm, row), pull = r * r * parts_of(zdz, row) / (double)s.d;
        for (size_t i = 0; i < v.size(); i++) v[i] += d[i] - pull * e[i];
        return v;
    };
    std::function<void()> prepare;
    if (in_place) prepare = [=] {
        CUDA_CHECK("bench", cudaMemcpyAsync(out.data, before.data, bytes_of(before), cudaMemcpyDeviceToDevice,
                                            stream()));
    };
    return {std::string(op_name(op)) + (in_place ? ", in place" : ""), op, 2.0 * s.T * s.d * n,
            {{"dx", out, false, want}},
            [=](const FusedCall &call) { fused_norm_dx(call, out, dz, w, residual, x, norm, zdz); },
            [=] { cuda_norm_dx(&ctx, op, out, dz, w, residual, x, norm, zdz); }, prepare, false,
            {GEMM_NN, out, dz, w}};
}

static Case out_dx_case(const Sizes &s)
{
    int64_t n = s.heads * s.head_dim;
    Tensor dx = normal(s.T, s.d, s.pad, 1), w = normal(s.d, n, s.pad, 1 / sqrtf(s.d)),
           out = make(s.T, n, s.pad);
    return {"out_dx",
            OP_OUT_DX,
            2.0 * s.T * s.d * n,
            {{"do", out, false, [=](int64_t row) { return product(GEMM_NN, dx, w, row); }}},
            [=](const FusedCall &call) { fused_out_dx(call, out, dx, w); },
            [=] { cuda_out_dx(&ctx, out, dx, w); },
            {},
            false,
            {GEMM_NN, out, dx, w}};
}

__global__ void to_float(float *to, const double *from) { *to = (float)*from; }

static Case dw_case(const Sizes &s, OpId op, int64_t n, int64_t k, bool accumulate, bool with_sum)
{
    Tensor dy = normal(s.T, n, s.pad, 1), a = normal(s.T, k, s.pad, 1),
           grad = make(n, k, accumulate ? 0 : s.pad, DTYPE_F32);
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
    Case c = {std::string(op_name(op)) + (accumulate ? ", add" : "") + (with_sum ? ", sum" : ""),
              op,
              2.0 * s.T * n * k,
              {{"grad", grad, false, want}},
              {},
              {},
              {},
              !fused_dw_fits(n, k, backend_of(&ctx)->multiprocessors),
              {GEMM_TN, grad, dy, a}};
    auto want_sum = [=](int64_t) {
        double sum = 0;
        for (int64_t row = 0; row < n; row++)
            for (double v : want(row)) sum += v * v;
        return Row{sum};
    };
    if (with_sum) c.outputs.push_back({"sumsq", shown, false, where_small(c.flops, want_sum)});
    c.fused = [=](const FusedCall &call) { fused_dw(call, grad, dy, a, accumulate, sumsq), show(); };
    c.unfused = [=] { cuda_dw(&ctx, op, grad, dy, a, accumulate, sumsq), show(); };
    if (accumulate)
        c.prepare = [=] {
            CUDA_CHECK("bench", cudaMemcpyAsync(grad.data, before.data, bytes_of(before),
                                                cudaMemcpyDeviceToDevice, stream()));
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
    for (int64_t i = 0; i < s.chunk; i++)
        targets[i] = (int32_t)((uint64_t)i * 7919 % s.vocab), order[i] = (int32_t)i;
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return targets[a] < targets[b]; });
    h.targets = upload(targets), h.order = upload(order);
    h.weights = upload(std::vector<float>(s.chunk, 1.0f / s.chunk));
    h.e = make(s.chunk, s.padded(), 0);
    h.d = make_sums(s.chunk, fused_parts(s.padded())), h.q = make_sums(s.chunk, fused_parts(s.padded()));
    for (float **v : {&h.anchor, &h.loss, &h.alpha, &h.beta, &h.s})
        *v = (float *)make(1, s.chunk, 0, DTYPE_F32).data;
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
    for (size_t i = 0; i < v.size(); i++)
        v[i] = (int64_t)i < h.vocab && (int64_t)i != target ? r * v[i] - *anchor : -INFINITY;
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
    Case c = {"head", OP_HEAD, 2.0 * s.chunk * s.padded() * s.d, {}, {}, {}, {}, false, {}};
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
    c.product = {GEMM_NT, h.e, h.xg, h.table};
    return c;
}

/* xg[i] += lift table[target]: how sure the model is of each target. */
__global__ void lift_targets(HeadChunk h, float lift)
{
    for (int64_t c = threadIdx.x; c < h.xg.cols; c += blockDim.x) {
        bf16 *x = (bf16 *)h.xg.data + blockIdx.x * h.xg.stride + c;
        float w = __bfloat162float(((bf16 *)h.table.data)[h.targets[blockIdx.x] * h.table.stride + c]);
        *x = __float2bfloat16(__bfloat162float(*x) + lift * w);
    }
}

/* The head's weight gradient, from the logits on: with p rounded to BF16 before the target's 1 is taken off,
 * nothing would be left of it at a tiny loss. The unfused op rounds logits: at a tiny loss, where they are
 * large, it is off by some percent, so the bar is a number, the same for losses from 11 to 4e-6: what the two
 * roundings to BF16, of e and of axg, are off by at most. Where the loss comes from few rows, one element counts. */
static Case head_dw_case(const Sizes &s, float lift)
{
    HeadChunk h = head_chunk(s, 1);
    lift_targets<<<(unsigned)s.chunk, 128, 0, stream()>>>(h, lift);
    Tensor grad = make(s.padded(), s.d, 0, DTYPE_F32);
    StepStats *stats = (StepStats *)take(sizeof(StepStats));
    CUDA_CHECK("bench", cudaMemsetAsync(stats, 0, sizeof *stats, stream()));
    std::vector<Row> share, xg;     /* [chunk]: d loss / d logits, rows of xg times r */
    double loss = 0;
    for (int64_t i = 0; i < s.chunk; i++) {
        double anchor, others = 0, r = rstd(h.norm, i), weight = value(h.weights, i);
        Row p = shifted_logits(h, i, &anchor), x = row_of(h.xg, i);
        for (double &e : p) others += e = exp(e);
        for (double &e : p) e *= weight / (1 + others);
        p[value(h.targets, i)] = -weight * others / (1 + others);
        for (double &e : x) e *= r;
        share.push_back(p), xg.push_back(x);
        loss += weight * log1p(others);
    }
    auto want = [=](int64_t row) {
        Row out((size_t)s.d);
        for (size_t i = 0; i < share.size(); i++)
            for (size_t c = 0; c < out.size(); c++) out[c] += share[i][row] * xg[i][c];
        return out;
    };
    char name[48];
    snprintf(name, sizeof name, "head to head_dw, loss %.2g", loss);
    return {name,
            OP_HEAD_DW,
            2.0 * s.chunk * s.padded() * s.d,
            {{"grad", grad, false, want}},
            [=](const FusedCall &call) {
                FusedCall head = call;
                if (!fused_tile_fits(OP_HEAD, head.variant.tile)) head.variant.tile = TILE_128x192;
                fused_head(head, &h);
                cuda_head_loss(&ctx, &h, stats);
                fused_dw(call, grad, h.e, h.axg, false, nullptr);
                cuda_head_dw_targets(&ctx, grad, &h);
            },
            [=] {
                cuda_head(&ctx, &h);
                cuda_head_loss(&ctx, &h, stats);
                cuda_head_dw(&ctx, grad, &h, false);
            },
            {},
            false,
            {GEMM_TN, grad, h.e, h.axg},
            2.0 / 512};
}

static Case head_eval_case(const Sizes &s)
{
    HeadChunk h = head_chunk(s, 4);
    Tensor loss = tensor(h.loss, s.chunk, 1, DTYPE_F32);
    return {"head_eval",
            OP_HEAD_EVAL,
            2.0 * s.chunk * s.padded() * s.d,
            {{"loss", loss, false,
              [=](int64_t row) {
                  double anchor, total = 0;
                  for (double v : shifted_logits(h, row, &anchor)) total += exp(v);
                  return Row{log1p(total)};
              }}},
            [=](const FusedCall &call) { fused_head_eval(call, &h); },
            [=] { cuda_head_eval(&ctx, &h); },
            {},
            false,
            {GEMM_NT, h.e, h.xg, h.table}};
}

static Case head_dx_case(const Sizes &s)
{
    HeadChunk h = head_chunk(s, 1);
    randomise(h.e, 1);
    for (float *v : {h.alpha, h.beta, h.s}) randomise(tensor(v, 1, s.chunk, DTYPE_F32), 1);
    Tensor gamma = normal(1, s.d, 0, 1, DTYPE_F32), dgamma = make(1, s.d, 0, DTYPE_F32),
           dx = make(s.chunk, s.d, s.pad);
    auto pulled = [=](int64_t row) {    /* u of docs/MATH.md */
        Row v = product(GEMM_NN, h.e, h.table, row), w = row_of(h.table, (int64_t)value(h.targets, row));
        double alpha = value(h.alpha, row), beta = value(h.beta, row);
        for (size_t i = 0; i < v.size(); i++) v[i] = alpha * v[i] - beta * w[i];
        return v;
    };
    auto want = [=](int64_t row) {
        Row v = pulled(row), x = row_of(h.x, row), g = row_of(gamma, 0);
        double pull = value(h.s, row);
        for (size_t i = 0; i < v.size(); i++) v[i] = v[i] * g[i] - pull * x[i];
        return v;
    };
    auto want_dgamma = [=](int64_t) {
        Row sum((size_t)s.d);
        for (int64_t row = 0; row < s.chunk; row++) {
            Row u = pulled(row), x = row_of(h.x, row);
            for (size_t i = 0; i < u.size(); i++) sum[i] += u[i] * x[i];
        }
        return sum;
    };
    return {"head_dx",
            OP_HEAD_DX,
            2.0 * s.chunk * s.padded() * s.d,
            {{"dx", dx, false, want}, {"dgamma", dgamma, false, where_small(2.0 * s.chunk * s.padded() * s.d, want_dgamma)}},
            [=](const FusedCall &call) {
                fused_head_dx(call, dx, (float *)dgamma.data, &h, (const float *)gamma.data, false);
            },
            [=] { cuda_head_dx(&ctx, dx, (float *)dgamma.data, &h, (const float *)gamma.data, false); },
            {},
            false,
            {GEMM_NN, dx, h.e, h.table}};
}

/* down_dx's product without its epilogue: what the mainloop alone takes. */
static Case bare_case(const Sizes &s)
{
    Tensor dx = normal(s.T, s.d, s.pad, 1), w = normal(s.d, s.f, s.pad, 1 / sqrtf(s.d)),
           out = make(s.T, s.f, s.pad);
    return {"down_dx, bare",
            OP_OUT_DX,
            2.0 * s.T * s.d * s.f,
            {{"dy", out, false, [=](int64_t row) { return product(GEMM_NN, dx, w, row); }}},
            [=](const FusedCall &call) { fused_out_dx(call, out, dx, w); },
            [=] { cuda_out_dx(&ctx, out, dx, w); },
            {},
            false,
            {GEMM_NN, out, dx, w}};
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
    {"bare", bare_case},
    {"gate_up_dx", [](const Sizes &s) { return norm_dx_case(s, OP_GATE_UP_DX, 2 * s.f); }},
    {"qkv_dx", [](const Sizes &s) { return norm_dx_case(s, OP_QKV_DX, s.qkv()); }},
    {"out_dx", out_dx_case},
    {"gate_up_dw", [](const Sizes &s) { return dw_case(s, OP_GATE_UP_DW, 2 * s.f, s.d, false, false); }},
    {"gate_up_dw_add", [](const Sizes &s) { return dw_case(s, OP_GATE_UP_DW, 2 * s.f, s.d, true, false); }},
    {"down_dw_sum", [](const Sizes &s) { return dw_case(s, OP_DOWN_DW, s.d, s.f, false, true); }},
    {"down_dw_add_sum", [](const Sizes &s) { return dw_case(s, OP_DOWN_DW, s.d, s.f, true, true); }},
    {"qkv_dw", [](const Sizes &s) { return dw_case(s, OP_QKV_DW, s.qkv(), s.d, false, false); }},
    {"out_dw", [](const Sizes &s) { return dw_case(s, OP_OUT_DW, s.d, s.heads * s.head_dim, false, false); }},
    {"head_dw", [](const Sizes &s) {
        Sizes chunk = s;
        chunk.T = s.chunk;
        return dw_case(chunk, OP_HEAD_DW, s.padded(), s.d, false, false);
    }},
    {"head", head_case},
    {"head_eval", head_eval_case},
    {"head_dx", head_dx_case},
};

static FusedShape shape_of(const Case &c)
{
    const Product &p = c.product;
    return FusedShape{c.op, p.d.rows, p.d.cols, p.form == GEMM_TN ? p.a.rows : p.a.cols};
}

static std::vector<FusedVariant> variants_of(const Case &c) { return fused_variants(backend_of(&ctx), shape_of(c)); }

static const char *variant_name(FusedVariant v)
{
    static char text[32];
    snprintf(text, sizeof text, "%s c%d g%-2d", fused_tile_name(v.tile), v.cluster, v.group);
    return text;
}

static void prepare(const Case &c)
{
    for (const Output &o : c.outputs) {
        poison(o.t);
    }
    if (c.prepare) c.prepare();
}

