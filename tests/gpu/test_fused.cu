/* Every fused op at odd and real sizes, in every tile and cluster: against double precision, where its error
 * may be 1.1 times the unfused op's, against the unfused op itself, and with poison around the outputs.
 * Weight gradients too small for dispatch only show that tails are right: their FP32 error may be 1e-5.
 *
 *   test_fused [odd|tiny] [OP]     odd sizes only, or the smallest of them only: for compute-sanitizer; one case of
 *                                  fused_cases.cuh only */
#include "tests/gpu/fused_cases.cuh"

enum { PATCH = 64 };     /* rows and columns of what is compared at a time: no tile of a kernel is smaller */

/* Sums of squares over a patch. */
struct Distance {
    double diff, norm;
};

/* One block a patch, [rows / PATCH, cols / PATCH] of them. */
__global__ void compare(Distance *patches, Tensor got, Tensor want)
{
    double diff = 0, norm = 0;
    for (int i = threadIdx.x; i < PATCH * PATCH; i += blockDim.x) {
        const int64_t row = blockIdx.y * (int64_t)PATCH + i / PATCH, col = blockIdx.x * (int64_t)PATCH + i % PATCH;
        if (row >= got.rows || col >= got.cols) continue;
        const int64_t at = row * got.stride + col;
        bool half = got.dtype == DTYPE_BF16;
        double a = half ? __bfloat162float(((bf16 *)got.data)[at]) : ((float *)got.data)[at];
        double b = half ? __bfloat162float(((bf16 *)want.data)[at]) : ((float *)want.data)[at];
        diff += (a - b) * (a - b), norm += b * b;
    }
    diff = block_sum(diff), norm = block_sum(norm);
    if (threadIdx.x == 0) patches[blockIdx.y * (int64_t)gridDim.x + blockIdx.x] = Distance{diff, norm};
}

/* Bytes outside the elements that no longer hold poison. width: bytes a row, used: of elements. */
__global__ void count_strays(unsigned long long *count, const uint8_t *data, int64_t rows, int64_t width,
                             int64_t used)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < rows * width + TAIL;
         i += gridDim.x * (int64_t)blockDim.x)
        if ((i >= rows * width || i % width >= used) && data[i] != 0xff) atomicAdd(count, 1ull);
}

static unsigned long long strays(Tensor t)
{
    static unsigned long long *count = nullptr;
    unsigned long long found;
    if (!count) CUDA_CHECK("bench", cudaMalloc(&count, sizeof found));
    CUDA_CHECK("bench", cudaMemsetAsync(count, 0, sizeof found, stream()));
    int64_t bytes = (int64_t)dtype_bytes(t.dtype);
    count_strays<<<512, 256, 0, stream()>>>(count, (const uint8_t *)t.data, t.rows, t.stride * bytes,
                                            t.cols * bytes);
    wait_device();
    CUDA_CHECK("bench", cudaMemcpy(&found, count, sizeof found, cudaMemcpyDeviceToHost));
    return found;
}

/* How far a result is from another one: as a whole, and in the worst of its patches. */
struct Apart {
    double all, worst;
};

static Apart relative_difference(const Output &o, Tensor want)
{
    if (o.sums) {
        double diff = 0, norm = 0;
        for (int64_t i = 0; i < o.t.rows; i += 1 + o.t.rows / 200) {
            double a = parts_of(RowSums{(float *)o.t.data, (int)o.t.cols}, i);
            double b = parts_of(RowSums{(float *)want.data, (int)o.t.cols}, i);
            diff += (a - b) * (a - b), norm += b * b;
        }
        return Apart{sqrt(diff / norm), 0};
    }
    const dim3 grid((unsigned)((o.t.cols + PATCH - 1) / PATCH), (unsigned)((o.t.rows + PATCH - 1) / PATCH));
    std::vector<Distance> patches((size_t)grid.x * grid.y);
    Distance *device, all = {0, 0};
    CUDA_CHECK("bench", cudaMalloc(&device, patches.size() * sizeof *device));
    compare<<<grid, 256, 0, stream()>>>(device, o.t, want);
    wait_device();
    CUDA_CHECK("bench", cudaMemcpy(patches.data(), device, patches.size() * sizeof *device, cudaMemcpyDeviceToHost));
    CUDA_CHECK("bench", cudaFree(device));
    for (const Distance &p : patches) all.diff += p.diff, all.norm += p.norm;
    /* a patch at the edge may have but one element, and that may be next to nothing: so a quarter of a usual patch beside */
    const double beside = all.norm / (double)(o.t.rows * o.t.cols) * PATCH * PATCH / 4;
    double worst = 0;
    for (const Distance &p : patches) worst = std::max(worst, p.diff / (p.norm + beside));
    return Apart{sqrt(all.diff / all.norm), sqrt(worst)};
}

static double error_of(const Output &o, const std::vector<int64_t> &rows, const std::vector<Row> &want)
{
    double diff = 0, norm = 0;
    for (size_t i = 0; i < rows.size(); i++) {
        Row got =
            o.sums ? Row{parts_of(RowSums{(float *)o.t.data, (int)o.t.cols}, rows[i])} : row_of(o.t, rows[i]);
        for (size_t j = 0; j < got.size(); j++)
            diff += (got[j] - want[i][j]) * (got[j] - want[i][j]), norm += want[i][j] * want[i][j];
    }
    return sqrt(diff / norm);
}

/* Launches that overlap leave the same bits, also among those of another variant, which has other clusters. */
static int check_again(const Sizes &s, const Case &c, const FusedCall &call, const FusedVariant &other)
{
    std::vector<Tensor> before;
    bool good = true;
    for (const Output &o : c.outputs) {
        Tensor copy = o.t;
        CUDA_CHECK("bench", cudaMalloc(&copy.data, bytes_of(o.t)));
        CUDA_CHECK("bench",
                   cudaMemcpyAsync(copy.data, o.t.data, bytes_of(o.t), cudaMemcpyDeviceToDevice, stream()));
        before.push_back(copy);
    }
    for (int i = 0; i < 3; i++) c.fused(FusedCall{&ctx, c.op, other}), c.fused(call);
    if (c.prepare) c.prepare();
    c.fused(call);
    wait_device();
    for (size_t i = 0; i < before.size(); i++) {
        good &= relative_difference(c.outputs[i], before[i]).all == 0;
        CUDA_CHECK("bench", cudaFree(before[i].data));
    }
    printf("%s - %s, %s again, %s\n", good ? "ok" : "not ok", s.name, c.name.c_str(), variant_name(call.variant));
    return !good;
}

/* Of a fused result from the unfused one, which rounds more often: three of BF16's last digit. */
static const double MOST_APART = 1.2e-2;

/* In the worst patch. One exponential may stand out in it, and the unfused head rounds the logit: half of a last
 * digit between 8 and 16 is 3.1e-2. */
static double most_apart_in_a_patch(const Case &c) { return (c.op == OP_HEAD ? 4 : 2) * MOST_APART; }

/* Of a sum in FP32: below it, which of two is nearer is chance. */
static const double SUM_ERROR = 1e-6;

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
        /* A row has but one sum, and which of two root mean squares of a hundred is 10 % larger is still chance:
         * the library's product may round otherwise. The head's sums take long, and their errors are far apart. */
        const int64_t count = std::min<int64_t>(o.t.rows, !o.sums ? 12 : c.op == OP_HEAD ? 100 : 1000);
        for (int64_t i = 0; i < count; i++) sample.push_back(i * (o.t.rows - 1) / std::max<int64_t>(1, count - 1));
        std::vector<Row> w;
        for (int64_t row : sample)
            if (o.want) w.push_back(o.want(row));
        unfused_error.push_back(o.want ? error_of(o, sample, w) : 0);
        want.push_back(w), rows.push_back(sample);
        Tensor copy = o.t;
        copy.data = take(bytes_of(o.t));
        CUDA_CHECK("bench",
                   cudaMemcpyAsync(copy.data, o.t.data, bytes_of(o.t), cudaMemcpyDeviceToDevice, stream()));
        shadow.push_back(copy);
    }
    std::vector<FusedVariant> variants = variants_of(c);
    const size_t count = variants.size();
    for (size_t i = 0; i < count; i++)     /* groups that end within a round, too */
        variants.push_back({variants[i].tile, variants[i].cluster, variants[i].group == 16 ? 6 : 16});
    for (FusedVariant v : variants) {
        const FusedCall call = {&ctx, c.op, v};
        prepare(c);
        /* sums of split tiles that are read too early are NaN */
        CUDA_CHECK("bench", cudaMemsetAsync(ctx.workspace, 0xff, GEMM_WORKSPACE, stream()));
        c.fused(call);
        wait_device();
        for (size_t i = 0; i < c.outputs.size(); i++) {
            const Output &o = c.outputs[i];
            const Apart apart = relative_difference(o, shadow[i]);
            const double error = o.want ? error_of(o, rows[i], want[i]) : 0;
            unsigned long long touched = strays(o.t);
            double bar = c.bar ? c.bar : c.left ? 1e-5 : std::max(1.1 * unfused_error[i], SUM_ERROR);
            const bool near = apart.all < MOST_APART && apart.worst < most_apart_in_a_patch(c);
            const bool good = (near || c.bar) && error <= bar && !touched;
            failed += !good;
            printf("%s - %s, %s %s, %s: error %.2e, unfused %.2e, apart %.1e, a patch %.1e, strays %llu\n",
                   good ? "ok" : "not ok", s.name, c.name.c_str(), o.name, variant_name(v), error,
                   unfused_error[i], apart.all, apart.worst, touched);
        }
        failed += check_again(s, c, call, variants[v.cluster == variants[0].cluster ? count - 1 : 0]);
    }
    fflush(stdout);
    return failed;
}

/* A line that was cut off, or that another follows without an end, must not pass for a choice. */
static int check_lines()
{
    FusedTable *table = backend_of(&ctx)->fused;
    const std::string line = "fused down 7 2048 8192 128x192 cluster 2 group 16 us 812.3 library 851.0 fused";
    auto reads = [&](const std::string &text) { return fused_table_read_line(table, text.c_str(), false); };
    bool good = reads(line) && reads(line + "\n");
    for (size_t length = 1; length < line.size(); length++)
        good &= !reads(line.substr(0, length)) && !reads(line.substr(0, length) + line);
    for (const char *wrong : {"fused down 7 2048 8192 128x192 cluster 3 group 16 us 1.0 library 2.0 fused",
                              "fused down 7 2048 8192 128x192 cluster 4294967298 group 16 us 1.0 library 2.0 fused",
                              "fused down 7 2048 8192 128x192 cluster 2 group 2147483647 us 1.0 library 2.0 fused",
                              "fused down -7 2048 8192 128x192 cluster 2 group 16 us 1.0 library 2.0 fused",
                              "fused down 7 2048 8192 128x192 cluster 2 group 16 us nan library 2.0 fused",
                              "fused down 7 2048 8192 128x192 cluster 2 group 16 us 1.0 library 1e300 fused",
                              "fused gate_up 7 2048 8192 256x128 cluster 2 group 16 us 1.0 library 2.0 fused",
                              "fused head 7 2048 8192 192x256 cluster 2 group 16 us 1.0 library 2.0 fused"})
        good &= !reads(wrong);
    printf("%s - only whole lines of possible choices are read\n", good ? "ok" : "not ok");
    return !good;
}

int main(int argc, char **argv)
{
    const bool tiny = argc > 1 && !strcmp(argv[1], "tiny"), odd = argc > 1 && !strcmp(argv[1], "odd");
    const char *only = argc == 2 + (tiny || odd) ? argv[argc - 1] : nullptr;
    auto wanted = [&](const char *name) { return !only || !strcmp(only, name); };
    if (argc > 3 || (only && std::none_of(case_makers.begin(), case_makers.end(),
                                          [&](const auto &maker) { return wanted(maker.first); }))) {
        fprintf(stderr, "usage: test_fused [odd|tiny] [OP], where OP is one of\n");
        for (const auto &maker : case_makers) fprintf(stderr, "  %s\n", maker.first);
        return 2;
    }
    open_backend();
    if (!backend_of(&ctx)->sm90) {
        printf("not checked: the fused kernels need a Hopper GPU (sm_90)\n");
        return 0;
    }
    std::vector<Sizes> sizes(odd_sizes, odd_sizes + sizeof odd_sizes / sizeof *odd_sizes);
    if (tiny) sizes.resize(1);
    const size_t odd_count = sizes.size();
    if (!tiny && !odd) sizes.insert(sizes.end(), real_sizes, real_sizes + sizeof real_sizes / sizeof *real_sizes);
    int failed = check_lines();
    auto check = [&](const Sizes &s, const Case &c) {
        failed += check_case(s, c);
        release_all();
    };
    for (const Sizes &s : sizes) {
        for (const auto &maker : case_makers)
            if (wanted(maker.first)) check(s, maker.second(s));
        if (wanted("qkv_dx")) check(s, norm_dx_case(s, OP_QKV_DX, s.qkv(), true));
        if (wanted("gate_up_dx")) check(s, norm_dx_case(s, OP_GATE_UP_DX, 2 * s.f, true));
    }
    /* the first size is too small to compare errors of single roundings */
    for (size_t i = 1; i < odd_count; i++)
        for (float lift : {-3.0f, 0.0f, 6.0f, 12.0f, 18.0f, 20.0f})
            if (wanted("head_dw")) check(sizes[i], head_dw_case(sizes[i], lift));
    return failed != 0;
}
