/* Fused ops against the unfused ones: medians of alternating runs on a hot card.
 *
 *   bench_fused WIDTH [OP] [quick]       1b, 8b or 70b: every variant of every op; above 1 the fused op is
 * faster bench_fused WIDTH OP once            each variant and the unfused op once, for a profiler */
#include "tests/gpu/fused_cases.cuh"

static double median(std::vector<double> v)
{
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

/* Medians of alternating runs on a hot card: at least 0.25 s of the same work first. */
static void time_pair(const std::function<void()> &a, const std::function<void()> &b, int rounds,
                      float heat_ms, double *ms_a, double *ms_b)
{
    cudaEvent_t e[3];
    std::vector<double> times_a, times_b;
    for (cudaEvent_t &event : e) CUDA_CHECK("bench", cudaEventCreate(&event));
    for (float heat = 0; heat < heat_ms;) {
        CUDA_CHECK("bench", cudaEventRecord(e[0], stream()));
        for (int i = 0; i < 4; i++) a(), b();
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
    std::vector<int> groups = {16};
    if (!quick || c.op == OP_HEAD) groups = {8, 16, 64};
    prepare(c);
    c.unfused();
    for (FusedVariant v : variants_of(c, groups)) {
        double fused, unfused;
        time_pair(
            [&] {
                c.fused(FusedCall{&ctx, c.op, v});
            },
            c.unfused, quick ? 15 : 60, quick ? 80 : 250, &fused, &unfused);
        char line[160];
        snprintf(line, sizeof line,
                 "%-4s %-16s %s  fused %7.3f ms %4.0f TFLOP/s  unfused %7.3f ms  unfused/fused %.3f", s.name,
                 c.name.c_str(), variant_name(v), fused, c.flops / fused * 1e-9, unfused, unfused / fused);
        printf("%s\n", line);
        fflush(stdout);
        if (unfused / fused > best) best = unfused / fused, best_line = line;
    }
    printf("best %s\n", best_line.c_str());
    fflush(stdout);
}

static void run_once(const Case &c)
{
    prepare(c);
    c.unfused();    /* measures the library's algorithms the first time */
    wait_device();
    cuda_profiler(true);
    c.unfused();
    for (FusedVariant v : variants_of(c, {16})) c.fused(FusedCall{&ctx, c.op, v});
    wait_device();
    cuda_profiler(false);
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 4) return fprintf(stderr, "usage: bench_fused 1b|8b|70b [OP] [quick|once]\n"), 2;
    bool quick = !strcmp(argv[argc - 1], "quick"), once = !strcmp(argv[argc - 1], "once");
    const char *only = argc == 4 || (argc == 3 && !quick && !once) ? argv[2] : nullptr;
    int done = 0;
    open_backend();
    for (const Sizes &s : real_sizes)
        for (const auto &maker : case_makers)
            if (!strcmp(argv[1], s.name) && (!only || !strcmp(only, maker.first))) {
                Case c = maker.second(s);
                if (once) run_once(c);
                else time_case(s, c, quick);
                release_all();
                done++;
            }
    return done ? 0 : (fprintf(stderr, "bench_fused: no such width or op\n"), 2);
}
