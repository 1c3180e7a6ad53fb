/* Fused ops against the unfused ones and against cublasLt's product alone, on a hot card: by the fastest
 * algorithm that it proposes, which the unfused op uses ("free epilogue": the gain if the epilogue cost
 * nothing), and by the one that it chooses itself (fused/product).
 *
 *   bench_fused WIDTH [OP]          1b, 8b or 70b: of each op the variant that a selection finds fastest
 *   bench_fused WIDTH OP variants   what the selection saw
 *   bench_fused WIDTH OP alone      each variant, the unfused op and both products with the card to themselves:
 *                                   at the clock that the power limit leaves for this kernel, as autotune.cu
 *                                   measures; the lowest and the highest of three times
 *   bench_fused WIDTH OP once       each variant and the unfused op once, for a profiler */
#include "tests/gpu/fused_cases.cuh"

typedef std::function<void()> Run;

enum { ROUNDS = 60, FIRST_ROUNDS = 13 };
static const double HOT_MS = 250, FIRST_HOT_MS = 60;    /* of the same work before anything counts */
static const double ALONE_HOT_MS = 160, ALONE_MS = 320;

static double median(std::vector<double> v)
{
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

/* Median milliseconds of each run, taken in turn, all queued at once so that no time to launch is counted;
 * rounds before the card is hot do not count. */
static std::vector<double> time_runs(const std::vector<Run> &runs, int rounds, double hot_ms)
{
    std::vector<double> medians;
    for (double heat = 0;;) {
        int now = heat < hot_ms ? 2 : rounds;
        std::vector<cudaEvent_t> events(now * runs.size() + 1);
        for (cudaEvent_t &event : events) CUDA_CHECK("bench", cudaEventCreate(&event));
        runs.back()();
        CUDA_CHECK("bench", cudaEventRecord(events[0], stream()));
        for (size_t i = 1; i < events.size(); i++) {
            runs[(i - 1) % runs.size()]();
            CUDA_CHECK("bench", cudaEventRecord(events[i], stream()));
        }
        wait_device();
        std::vector<std::vector<double>> times(runs.size());
        for (size_t i = 1; i < events.size(); i++) {
            float ms;
            CUDA_CHECK("bench", cudaEventElapsedTime(&ms, events[i - 1], events[i]));
            times[(i - 1) % runs.size()].push_back(ms);
        }
        for (cudaEvent_t event : events) CUDA_CHECK("bench", cudaEventDestroy(event));
        if (heat >= hot_ms) {
            for (const auto &t : times) medians.push_back(median(t));
            return medians;
        }
        for (const auto &t : times)
            for (double ms : t) heat += ms;
    }
}

struct Contender {
    std::string name;
    Run run;
};

/* Fused variants, and behind them the unfused op, cublasLt's own choice of a product, the fastest. */
enum { NOT_FUSED = 3 };
static std::vector<Contender> contenders_of(const Case &c)
{
    std::vector<Contender> all;
    for (FusedVariant v : variants_of(c))
        all.push_back({variant_name(v), [&c, v] { c.fused(FusedCall{&ctx, c.op, v}); }});
    const Product &p = c.product;
    all.push_back({"unfused", c.unfused});
    all.push_back({"product", default_product(p.form, p.d, p.a, p.b)});
    all.push_back({"best product", [&c] {
                       const Product &best = c.product;
                       gemm(&ctx, c.op, best.form, best.d, best.a, best.b, Tensor{});
                   }});
    prepare(c);
    for (size_t i = all.size() - NOT_FUSED; i < all.size(); i++) all[i].run();     /* the library makes its choices */
    return all;
}

static void time_case(const Sizes &s, const Case &c, bool show)
{
    const std::vector<Contender> all = contenders_of(c);
    const size_t variants = all.size() - NOT_FUSED;
    std::vector<Run> runs;
    for (size_t i = 0; i < variants; i++) runs.push_back(all[i].run);
    std::vector<double> first = time_runs(runs, FIRST_ROUNDS, FIRST_HOT_MS);
    size_t at = (size_t)(std::min_element(first.begin(), first.end()) - first.begin());
    for (size_t i = 0; show && i < variants; i++)
        printf("%-4s %-17s %s  %7.3f ms\n", s.name, c.name.c_str(), all[i].name.c_str(), first[i]);

    runs = {runs[at]};
    for (size_t i = variants; i < all.size(); i++) runs.push_back(all[i].run);
    std::vector<double> ms = time_runs(runs, ROUNDS, HOT_MS);
    printf("%-4s %-17s %s  fused %7.3f ms %4.0f TFLOP/s  unfused %7.3f ms  unfused/fused %.3f  "
           "free epilogue %.3f  fused/product %.3f\n",
           s.name, c.name.c_str(), all[at].name.c_str(), ms[0], c.flops / ms[0] * 1e-9, ms[1], ms[1] / ms[0],
           ms[1] / ms[3], ms[0] / ms[2]);
    fflush(stdout);
}

static void time_alone(const Sizes &s, const Case &c)
{
    const std::vector<Contender> all = contenders_of(c);
    std::vector<std::vector<double>> ms(all.size());
    for (int pass = 0; pass < 3; pass++)
        for (size_t i = 0; i < all.size(); i++) {
            const size_t at = pass % 2 ? all.size() - 1 - i : i;
            const double once = c.flops / 600e12 * 1e3;     /* about */
            ms[at].push_back(time_runs({all[at].run}, (int)(ALONE_MS / once) + 1, ALONE_HOT_MS)[0]);
        }
    for (size_t i = 0; i < all.size(); i++) {
        std::sort(ms[i].begin(), ms[i].end());
        printf("%-4s %-17s %-14s %7.3f ms  %.3f to %.3f  %4.0f TFLOP/s\n", s.name, c.name.c_str(),
               all[i].name.c_str(), ms[i][1], ms[i][0], ms[i][2], c.flops / ms[i][1] * 1e-9);
    }
    fflush(stdout);
}

static void run_once(const Case &c)
{
    prepare(c);
    c.unfused();    /* measures the library's algorithms the first time */
    wait_device();
    cuda_profiler(true);
    c.unfused();
    for (FusedVariant v : variants_of(c)) c.fused(FusedCall{&ctx, c.op, v});
    wait_device();
    cuda_profiler(false);
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: bench_fused 1b|8b|70b [OP] [variants|alone|once]\n");
        return 2;
    }
    bool show = !strcmp(argv[argc - 1], "variants"), once = !strcmp(argv[argc - 1], "once"),
         alone = !strcmp(argv[argc - 1], "alone");
    const char *only = argc == 4 || (argc == 3 && !show && !once && !alone) ? argv[2] : nullptr;
    int done = 0;
    open_backend();
    for (const Sizes &s : real_sizes)
        for (const auto &maker : case_makers)
            if (!strcmp(argv[1], s.name) && (!only || !strcmp(only, maker.first))) {
                Case c = maker.second(s);
                if (once) run_once(c);
                else if (alone) time_alone(s, c);
                else time_case(s, c, show);
                release_all();
                done++;
            }
    return done ? 0 : (fprintf(stderr, "bench_fused: no such width or op\n"), 2);
}
