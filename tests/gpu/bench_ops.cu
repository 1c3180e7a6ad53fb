/* How close the separate kernels come to the copy bandwidth, and what the GEMMs beside them reach.
 *
 *   bench_ops [1b | 8b | 70b [OP]]
 *
 * Each op is recorded once; every kernel of the recording that is ours is then timed by itself, so the table
 * shows the kernels exactly as the ops launch them, in turn with a copy of 2 GiB and one that moves as many
 * bytes as the kernel: starting and ending takes either some microseconds. A kernel follows itself, so on Hopper it starts
 * while the one before it ends (launch.cuh), which copies do not. Bytes are what a kernel must read and write at least. */
#include "kernels/cuda/vec.cuh"
#include "tests/gpu/gpu_data.cuh"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <string>

/* Median seconds of each run, taken in turn; three rounds before anything counts. */
static std::vector<double> seconds_of(const std::vector<Run> &runs, int rounds)
{
    time_in_turn(&ctx, "bench", runs, 3);
    std::vector<double> times = time_in_turn(&ctx, "bench", runs, rounds);
    for (double &t : times) t *= 1e-6;
    return times;
}

static std::vector<int32_t> counting(int64_t n)
{
    std::vector<int32_t> numbers(n);
    std::iota(numbers.begin(), numbers.end(), 0);
    return numbers;
}

/* Token ids as text has them: their frequency falls as 1 / (id + 1) (Zipf), so runs of one id are short and
 * long. */
struct Ids {
    int32_t *id, *order;    /* device: [n]; rows sorted by id, stable */
    int64_t distinct;
};

static Ids zipf_ids(int64_t n, int64_t limit)
{
    std::vector<int32_t> id(n), order = counting(n);
    std::vector<bool> seen(limit);
    uint64_t x = 1;
    for (int32_t &each : id) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        each = (int32_t)std::pow((double)limit, (x >> 11) * 0x1p-53) - 1;
        seen[each] = true;
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return id[a] < id[b]; });
    return {upload(id), upload(order), std::count(seen.begin(), seen.end(), true)};
}

enum { LAUNCHES = 8 };      /* of a kernel, back to back, as a recorded step has them */
static Tensor copy_from, copy_to;
static const char *only;    /* the op to time, NULL for all */
static int timed;           /* ops */

static double copy_limit() { return 2.0 * (double)(copy_from.rows * copy_from.cols) * sizeof(bf16); }

/* Reads and writes so many bytes in all, at most copy_limit(). */
static void copy(double bytes)
{
    CUDA_CHECK("bench", cudaMemcpyAsync(copy_to.data, copy_from.data, (size_t)(bytes / 2),
                                        cudaMemcpyDeviceToDevice, stream()));
}

/* As `launch` does. */
static void launch_again(const cudaKernelNodeParams &p)
{
    cudaLaunchAttribute overlap = may_overlap();
    cudaLaunchConfig_t config = {};
    config.gridDim = p.gridDim, config.blockDim = p.blockDim, config.dynamicSmemBytes = p.sharedMemBytes;
    config.stream = stream();
    config.attrs = &overlap, config.numAttrs = backend_of(&ctx)->overlap;
    CUDA_CHECK("bench", cudaLaunchKernelExC(&config, p.func, p.kernelParams));
}

/* One op: its time, each of its own kernels, and the rate of what is left, the GEMM. */
static void report(const char *name, const std::map<std::string, double> &bytes, double flops,
                   const std::function<void()> &op)
{
    if (only && strcmp(only, name)) return;
    timed++;
    op();   /* plans are made */
    CUDA_CHECK(name, cudaStreamSynchronize(stream()));
    double whole = seconds_of({op}, 12)[0], own = 0;
    cudaGraph_t graph;
    CUDA_CHECK(name, cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal));
    op();
    CUDA_CHECK(name, cudaStreamEndCapture(stream(), &graph));
    size_t count = 0;
    CUDA_CHECK(name, cudaGraphGetNodes(graph, nullptr, &count));
    std::vector<cudaGraphNode_t> nodes(count);
    CUDA_CHECK(name, cudaGraphGetNodes(graph, nodes.data(), &count));
    for (cudaGraphNode_t node : nodes) {
        cudaGraphNodeType type;
        cudaKernelNodeParams params;
        const char *symbol;
        CUDA_CHECK(name, cudaGraphNodeGetType(node, &type));
        if (type != cudaGraphNodeTypeKernel) continue;
        if (cudaGraphKernelNodeGetParams(node, &params) != cudaSuccess ||
            cudaFuncGetName(&symbol, params.func) != cudaSuccess) {
            cudaGetLastError();     /* a library's kernel */
            continue;
        }
        for (auto &known : bytes) {
            if (!strstr(symbol, known.first.c_str())) continue;
            const double most = copy_limit(), as_many = std::min(known.second, most);
            auto repeated = [](const Run &run) { return [=] { for (int i = 0; i < LAUNCHES; i++) run(); }; };
            std::vector<double> seconds = seconds_of(
                {[=] { copy(most); }, repeated([=] { copy(as_many); }), repeated([&] { launch_again(params); })}, 20);
            double large = most / seconds[0], alike = as_many * LAUNCHES / seconds[1];
            double own_seconds = seconds[2] / LAUNCHES, rate = known.second / own_seconds;
            own += own_seconds;
            std::string shown = known.first.substr(0, known.first.find('I'));
            printf("%-18s %-16s %8.1f us  %6.0f GB/s  %5.1f %% of copy  %5.1f %% of a copy as small\n", name,
                   shown.c_str(), own_seconds * 1e6, rate * 1e-9, 100 * rate / large, 100 * rate / alike);
        }
    }
    CUDA_CHECK(name, cudaGraphDestroy(graph));
    if (flops > 0)
        printf("%-18s %-16s %8.1f us  GEMM %4.0f TFLOP/s  kernels are %.1f %% of the op\n", name, "whole",
               whole * 1e6, flops / (whole - own) * 1e-12, 100 * own / whole);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    const Sizes *w = argc > 1 ? nullptr : &real_sizes[1];
    for (const Sizes &each : real_sizes)
        if (argc > 1 && !strcmp(argv[1], each.name)) w = &each;
    if (!w || argc > 3) {
        fprintf(stderr, "usage: bench_ops [1b | 8b | 70b [OP]]\n");
        return 2;
    }
    only = argc > 2 ? argv[2] : nullptr;
    open_backend();

    int64_t T = w->T, d = w->d, f = w->f, C = w->chunk, Vp = w->padded(), q = w->qkv(), a = w->heads * w->head_dim;
    copy_from = normal(1 << 15, 1 << 15, 0, 1);
    copy_to = normal(1 << 15, 1 << 15, 0, 1);
    printf("%s\n%s width, %lld rows; copy bandwidth %.0f GB/s\n", cuda_backend_versions(ctx.backend), w->name,
           (long long)T, copy_limit() / seconds_of({[] { copy(copy_limit()); }}, 20)[0] * 1e-9);

    Tensor none = {}, x = normal(T, d, 0, 1), out = normal(T, d, 0, 1);
    Tensor z = normal(T, 2 * f, 0, 1), dz = normal(T, 2 * f, 0, 1);
    Tensor y = normal(T, f, 0, 1), qkv = normal(T, q, 0, 1);
    Tensor dqkv = normal(T, q, 0, 1), o = normal(T, a, 0, 1);
    Tensor wqkv = normal(q, d, 0, 0.02f), wo = normal(d, a, 0, 0.02f);
    Tensor w13 = normal(2 * f, d, 0, 0.02f), w2 = normal(d, f, 0, 0.02f);
    Tensor g13 = normal(2 * f, d, 0, 1e-3f, DTYPE_F32);
    Tensor sums = normal(T, 1, 0, 0, DTYPE_F32), zdz = normal(T, 1, 0, 0, DTYPE_F32);
    Tensor gamma = normal(1, d, 0, 1, DTYPE_F32), dgamma = normal(1, d, 0, 1, DTYPE_F32);
    Tensor table = normal(T, w->head_dim, 0, 1, DTYPE_F32);
    RowNorm norm = {{(float *)sums.data, 1}, 1.0f, d};
    RowSums row_sums = {(float *)zdz.data, 1};
    Rope rope = {(const float *)table.data, upload(counting(T)), (int)w->head_dim,
                 (int64_t)(w->heads + w->kv_heads) * w->head_dim};
    double row = 2.0 * T * d, wide = 2.0 * T * f, packed = 2.0 * T * q;

    /* With Lb1 in its name it adds the residual too, where the GEMM left it out. */
    std::map<std::string, double> sumsq = {{"residual_sumsqILi8ELb0", row},
                                           {"residual_sumsqILi8ELb1", 3 * row}};
    std::map<std::string, double> norm_bwd = {{"norm_bwd", 4 * row}};
    report("qkv", {{"qkv_rope_fwd", 2 * packed}}, 2.0 * T * q * d,
           [&] { cuda_qkv(&ctx, qkv, x, wqkv, norm, rope); });
    report("out", sumsq, 2.0 * T * a * d,
           [&] { cuda_residual(&ctx, OP_OUT, out, row_sums, none, o, wo, x, nullptr); });
    report("out alone", {}, 2.0 * T * a * d, [&] { gemm(&ctx, OP_OUT, GEMM_NT, out, o, wo); });
    report("gate_up", {{"gate_up_scale", 2 * row}, {"swiglu_fwd", 3 * wide}}, 4.0 * T * f * d,
           [&] { cuda_gate_up(&ctx, z, y, x, w13, norm); });
    report("down", sumsq, 2.0 * T * f * d,
           [&] { cuda_residual(&ctx, OP_DOWN, out, row_sums, none, y, w2, x, nullptr); });
    report("down alone", {}, 2.0 * T * f * d, [&] { gemm(&ctx, OP_DOWN, GEMM_NT, out, y, w2); });
    report("down_dx", {{"swiglu_bwd", 5 * wide}}, 2.0 * T * f * d,
           [&] { cuda_down_dx(&ctx, dz, none, row_sums, x, w2, z, norm); });
    report("down_dx + y", {{"swiglu_bwd", 6 * wide}}, 2.0 * T * f * d,
           [&] { cuda_down_dx(&ctx, dz, y, row_sums, x, w2, z, norm); });
    report("gate_up_dx", norm_bwd, 4.0 * T * f * d,
           [&] { cuda_norm_dx(&ctx, OP_GATE_UP_DX, out, z, w13, out, x, norm, row_sums); });
    report("gate_up_dx alone", {}, 4.0 * T * f * d, [&] { gemm(&ctx, OP_GATE_UP_DX, GEMM_NN, out, z, w13); });
    report("out_dx", {}, 2.0 * T * a * d, [&] { cuda_out_dx(&ctx, o, x, wo); });
    report("qkv_grad", {{"qkv_rope_bwd", 3 * packed}}, 0,
           [&] { cuda_qkv_grad(&ctx, dqkv, row_sums, qkv, norm, rope); });
    report("qkv_dx", norm_bwd, 2.0 * T * q * d,
           [&] { cuda_norm_dx(&ctx, OP_QKV_DX, out, qkv, wqkv, out, x, norm, row_sums); });
    report("gate_up_dw", {}, 4.0 * T * f * d,
           [&] { cuda_dw(&ctx, OP_GATE_UP_DW, g13, z, x, false, nullptr); });
    Tensor part = g13;
    part.rows = d, part.cols = part.stride = f;
    report("down_dw", {}, 2.0 * T * f * d, [&] { cuda_dw(&ctx, OP_DOWN_DW, part, x, y, false, nullptr); });
    part.rows = d, part.cols = part.stride = a;
    report("out_dw", {}, 2.0 * T * a * d, [&] { cuda_dw(&ctx, OP_OUT_DW, part, x, o, false, nullptr); });
    part.rows = q, part.cols = part.stride = d;
    report("qkv_dw", {}, 2.0 * T * q * d, [&] { cuda_dw(&ctx, OP_QKV_DW, part, qkv, x, false, nullptr); });

    /* The weight pass on gate/up, the largest. */
    Weight weight = {};
    weight.master = normal(2 * f, d, 0, 0.02f, DTYPE_F32),
    weight.m = normal(2 * f, d, 0, 0, DTYPE_F32);
    weight.v = normal(2 * f, d, 0, 0, DTYPE_F32), weight.grad = g13, weight.working = w13;
    weight.rows.order = ROWS_GATE_UP, weight.rows.ffn = f;
    weight.gamma = weight.gamma_before = (float *)gamma.data, weight.dgamma = (float *)dgamma.data;
    Hyper hyper = {1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.5f, 0.5f, 1, 1, 1},
          *device_hyper = (Hyper *)take(sizeof hyper);
    StepStats stats = {}, *device_stats = (StepStats *)take(sizeof stats);
    stats.clip_factor = 1;
    CUDA_CHECK("bench", cudaMemcpy(device_hyper, &hyper, sizeof hyper, cudaMemcpyHostToDevice));
    CUDA_CHECK("bench", cudaMemcpy(device_stats, &stats, sizeof stats, cudaMemcpyHostToDevice));
    double parameters = 2.0 * f * d;
    double *square = (double *)take(sizeof *square);
    report("grad_norm", {{"weight_norm", 8 * parameters}}, 0, [&] { cuda_grad_norm(&ctx, &weight, square); });
    report("adamw", {{"weight_adamw", 30 * parameters}}, 0,
           [&] { cuda_adamw(&ctx, &weight, device_hyper, device_stats); });
    weight.m.dtype = weight.v.dtype = DTYPE_BF16;     /* halves of floats would be any number, NaN too */
    CUDA_CHECK("bench", cudaMemsetAsync(weight.m.data, 0, (size_t)(4 * parameters), stream()));
    CUDA_CHECK("bench", cudaMemsetAsync(weight.v.data, 0, (size_t)(4 * parameters), stream()));
    report("adamw bf16", {{"weight_adamw", 22 * parameters}}, 0,
           [&] { cuda_adamw(&ctx, &weight, device_hyper, device_stats); });
    report("fold", {{"weight_fold", 6 * parameters}}, 0, [&] { cuda_fold(&ctx, &weight); });
    for (Tensor *t : {&z, &dz, &weight.master, &weight.m, &weight.v, &g13}) cuda_device.release(t->data);

    HeadChunk h = {};
    Tensor head_grad = normal(Vp, d, 0, 0, DTYPE_F32), vectors = normal(7, C, 0, 0, DTYPE_F32);
    float *vector = (float *)vectors.data;
    h.xg = out, h.x = x, h.xg.rows = h.x.rows = C, h.norm = norm;
    h.table = normal(Vp, d, 0, 0.02f), h.vocab = w->vocab;
    Ids targets = zipf_ids(C, w->vocab);
    h.targets = targets.id, h.order = targets.order;
    h.weights = upload(std::vector<float>(C, 1.0f / (float)C));
    h.e = normal(C, Vp, 0, 1), h.axg = normal(C, d, 0, 1);
    h.d = {vector, 1}, h.q = {vector + C, 1}, h.anchor = vector + 2 * C, h.loss = vector + 3 * C;
    h.alpha = vector + 4 * C, h.beta = vector + 5 * C, h.s = vector + 6 * C;
    Tensor head_out = o;
    head_out.rows = C, head_out.cols = head_out.stride = d;
    double logits = 2.0 * C * Vp, head_row = 2.0 * C * d, head_flops = 2.0 * C * Vp * d;
    double target_rows = 2.0 * targets.distinct * d;
    report("head", {{"head_softmax", 2 * logits}}, head_flops, [&] { cuda_head(&ctx, &h); });
    report("head_eval", {{"head_logsumexp", logits}}, head_flops, [&] { cuda_head_eval(&ctx, &h); });
    report("head_loss", {{"head_rows", 2 * head_row}}, 0, [&] { cuda_head_loss(&ctx, &h, device_stats); });
    report("head_dx", {{"head_dx_rows", 3 * head_row + target_rows}}, head_flops,
           [&] { cuda_head_dx(&ctx, head_out, (float *)dgamma.data, &h, (float *)gamma.data, false); });
    report("head_dw", {{"head_dw_targets", head_row + 4 * target_rows}}, head_flops,
           [&] { cuda_head_dw(&ctx, head_grad, &h, false); });
    HeadChunk apart_chunk = h;
    apart_chunk.targets = upload(counting(C)), apart_chunk.order = upload(counting(C));
    report("head_dw, distinct", {{"head_dw_targets", 5 * head_row}}, 0,
           [&] { cuda_head_dw(&ctx, head_grad, &apart_chunk, false); });

    Ids tokens = zipf_ids(T, w->vocab), apart = {upload(counting(T)), upload(counting(T)), T};
    for (const Ids &ids : {tokens, apart}) {
        std::string suffix = ids.distinct == T ? ", distinct" : "";
        double token_rows = 2.0 * ids.distinct * d;
        report(("embed" + suffix).c_str(), {{"embed_fwd", row + token_rows}}, 0,
               [&] { cuda_embed(&ctx, x, row_sums, ids.id, h.table); });
        report(("embed_dw" + suffix).c_str(), {{"embed_bwd", row + 4 * token_rows}}, 0,
               [&] { cuda_embed_dw(&ctx, head_grad, ids.id, ids.order, x, true); });
    }
    cuda_backend_close(ctx.backend);
    if (!timed) fprintf(stderr, "bench_ops: no op %s; without a name it shows all\n", only);
    return timed ? 0 : 2;
}
