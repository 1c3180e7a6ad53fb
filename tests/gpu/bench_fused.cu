/* Fused ops against the unfused ones and against cublasLt's product alone, on a hot card: by the fastest
 * algorithm that it proposes, which the unfused op uses ("free epilogue": the gain if the epilogue cost
 * nothing), and by the one that it chooses itself (fused/product). Fused and unfused alternate; then, fewer times,
 * both take turns with the two products. What takes turns here uses the algorithms that are fastest in turn; training,
 * and what is timed alone, those that are fastest alone.
 *
 *   bench_fused [--cache=DIR] WIDTH [OP]   1b, 8b or 70b: of each op the variant that auto chooses, and whether auto
 *                                   runs it; --cache keeps choices for the next process
 *   bench_fused WIDTH OP variants   every variant in turn with the unfused op and both products
 *   bench_fused WIDTH OP alone      every variant, the unfused op and both products with the card to themselves,
 *                                   one of the two ways in which auto measures; the lowest and the highest of three times
 *   bench_fused WIDTH OP once       every variant and the unfused op once, for a profiler */
#include "kernels/cuda/timing.h"
#include "tests/gpu/fused_cases.cuh"
#include <map>

enum { ROUNDS = 60, PRODUCT_ROUNDS = 20 };
static const double HOT_US = 250e3;     /* of the same work before anything counts */
static CudaBackend *of_turns;           /* a backend whose library has the algorithms that are fastest in turn */

/* Median milliseconds of each run, taken in turn on a hot card. */
static std::vector<double> hot_times(const std::vector<Run> &runs)
{
    for (double heat = 0; heat < HOT_US;)
        for (double us : time_in_turn(&ctx, "bench", runs, 2)) heat += 2 * us;
    std::vector<double> ms = time_in_turn(&ctx, "bench", runs, ROUNDS);
    for (double &t : ms) t *= 1e-3;
    return ms;
}

struct Contender {
    std::string name;
    Run run;
};

/* The same with the choices of another backend. */
static Run with_backend(void *backend, const Run &run)
{
    return [=] {
        void *const usual = ctx.backend;
        ctx.backend = backend;
        run();
        ctx.backend = usual;
    };
}

/* The unfused op, cublasLt's own choice of a product, and the fastest, by the choices of a backend, which it has made. */
static std::vector<Contender> not_fused(const Case &c, void *backend)
{
    const Product p = c.product;
    std::vector<Contender> all = {
        {"unfused", with_backend(backend, c.unfused)},
        {"product", default_product(p.form, p.d, p.a, p.b)},
        {"best product", with_backend(backend, [=, &c] { gemm(&ctx, c.op, p.form, p.d, p.a, p.b); })}};
    prepare(c);
    for (const Contender &each : all) each.run();
    return all;
}

/* Every variant, then what is not fused, by the choices of a backend. */
static std::vector<Contender> contenders(const Case &c, void *backend)
{
    std::vector<Contender> all;
    for (FusedVariant v : variants_of(c))
        all.push_back({variant_name(v), [&c, v] { c.fused(FusedCall{&ctx, c.op, v}); }});
    for (const Contender &each : not_fused(c, backend)) all.push_back(each);
    return all;
}

static std::vector<Run> runs_of(const std::vector<Contender> &all)
{
    std::vector<Run> runs;
    for (const Contender &each : all) runs.push_back(each.run);
    return runs;
}

static void time_case(const Sizes &s, const Case &c)
{
    std::vector<Contender> all = not_fused(c, of_turns);
    backend_of(&ctx)->measured_s = 0;       /* as the first op of a start: measured_enough */
    const FusedChoice choice = fused_choose(&ctx, shape_of(c), c.fused, c.unfused);
    all.insert(all.begin(), {variant_name(choice.variant), [&] { c.fused(FusedCall{&ctx, c.op, choice.variant}); }});
    const std::vector<double> ms = hot_times({all[0].run, all[1].run});
    const std::vector<double> beside = time_in_turn(&ctx, "bench", runs_of(all), PRODUCT_ROUNDS);
    printf("%-4s %-17s %s  fused %7.3f ms %4.0f TFLOP/s  unfused %7.3f ms  unfused/fused %.3f  free epilogue %.3f  "
           "fused/product %.3f  auto runs %s\n",
           s.name, c.name.c_str(), all[0].name.c_str(), ms[0], c.flops / ms[0] * 1e-9, ms[1], ms[1] / ms[0],
           beside[1] / beside[3], beside[0] / beside[2], choice.fused ? "fused" : "library");
    fflush(stdout);
}

static void time_variants(const Sizes &s, const Case &c)
{
    const std::vector<Contender> all = contenders(c, of_turns);
    const std::vector<double> ms = hot_times(runs_of(all));
    for (size_t i = 0; i < all.size(); i++)
        printf("%-4s %-17s %-14s %7.3f ms  %.3f of the best product\n", s.name, c.name.c_str(), all[i].name.c_str(),
               ms[i], ms[i] / ms.back());
    fflush(stdout);
}

static void time_each_alone(const Sizes &s, const Case &c)
{
    const std::vector<Contender> all = contenders(c, ctx.backend);
    const std::vector<Run> runs = runs_of(all);
    std::vector<std::vector<double>> us(all.size());
    for (int pass = 0; pass < 3; pass++) {
        const std::vector<double> now = time_alone(&ctx, "bench", runs, LOOKS_MS[1]);
        for (size_t i = 0; i < all.size(); i++) us[i].push_back(now[i]);
    }
    for (size_t i = 0; i < all.size(); i++) {
        std::sort(us[i].begin(), us[i].end());
        printf("%-4s %-17s %-14s %7.3f ms  %.3f to %.3f  %4.0f TFLOP/s\n", s.name, c.name.c_str(),
               all[i].name.c_str(), us[i][1] * 1e-3, us[i][0] * 1e-3, us[i][2] * 1e-3, c.flops / us[i][1] * 1e-6);
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
    const char *cache = nullptr;
    if (argc > 1 && !strncmp(argv[1], "--cache=", 8)) cache = argv[1] + 8, argv++, argc--;
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: bench_fused [--cache=DIR] 1b|8b|70b [OP] [variants|alone|once]\n");
        return 2;
    }
    const std::map<std::string, std::function<void(const Sizes &, const Case &)>> modes = {
        {"variants", time_variants}, {"alone", time_each_alone},
        {"once", [](const Sizes &, const Case &c) { run_once(c); }}};
    const auto mode = modes.find(argv[argc - 1]);
    const bool named = argc == (mode == modes.end() ? 3 : 4);
    if (argc == 4 && !named) {
        fprintf(stderr, "bench_fused: no such mode: %s\n", argv[3]);
        return 2;
    }
    const char *only = named ? argv[2] : nullptr;
    int done = 0;
    open_backend(cache);
    of_turns = (CudaBackend *)new_backend(nullptr);
    of_turns->measured_s = INFINITY;        /* measured_enough */
    if (!backend_of(&ctx)->sm90) {
        fprintf(stderr, "bench_fused: the fused kernels need a Hopper GPU (sm_90)\n");
        return 2;
    }
    for (const Sizes &s : real_sizes)
        for (const auto &maker : case_makers)
            if (!strcmp(argv[1], s.name) && (!only || !strcmp(only, maker.first))) {
                const Case c = maker.second(s);
                mode == modes.end() ? time_case(s, c) : mode->second(s, c);
                release_all();
                done++;
            }
    return done ? 0 : (fprintf(stderr, "bench_fused: no such width or op\n"), 2);
}
