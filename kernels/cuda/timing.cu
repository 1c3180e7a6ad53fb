#include "kernels/cuda/timing.h"
#include <algorithm>
#include <chrono>
#include <cstdio>

/* How long a run settles before it is measured, and for how long: first all of them, then PASSES times what is near the
 * best. A window of 60 ms on a card at its power limit differs from the next by up to 2 %. */
struct Window {
    float settle_ms, ms;
};
static const Window FIRST = {30, 30}, NEXT = {40, 100};
enum { PASSES = 2, NEAREST = 3 };   /* so that all shapes of a model take less than a minute */
static const double NEAR = 1.04;    /* times the best */
static const float SHORT_MS = 1;    /* shorter runs are recorded, as many as take so long */
static const float LEAST_MS = 1e-3f;    /* what events can tell apart */
static const double ENOUGH_S = 40;  /* of measuring at a start */
enum { MOST_RUNS = 200 };           /* of each part: runs that are short do not come near the power limit */

namespace {

struct Events {
    const char *op;
    std::vector<cudaEvent_t> all;

    Events(const Events &) = delete;
    Events(const char *name, size_t count) : op(name), all(count)
    {
        for (cudaEvent_t &event : all) CUDA_CHECK(op, cudaEventCreate(&event));
    }
    ~Events()
    {
        for (cudaEvent_t event : all) cudaEventDestroy(event);
    }
    void record(size_t i, cudaStream_t stream) { CUDA_CHECK(op, cudaEventRecord(all[i], stream)); }

    /* Milliseconds from event i to the next one, once that is reached. */
    float ms(size_t i)
    {
        float ms;
        CUDA_CHECK(op, cudaEventSynchronize(all[i + 1]));
        CUDA_CHECK(op, cudaEventElapsedTime(&ms, all[i], all[i + 1]));
        return ms;
    }
};

/* Measures runs of one op one behind the other. */
struct Clock {
    cudaStream_t stream;
    Events events;

    float ms(const Run &run, int count)
    {
        events.record(0, stream);
        for (int i = 0; i < count; i++) run();
        events.record(1, stream);
        return events.ms(0);
    }

    /* Milliseconds of a run that takes about `once`, after it has settled. */
    double settled(const Run &run, float once, Window window, float most_ms)
    {
        const auto runs_in = [&](float part_ms) { return (int)(std::min(part_ms, most_ms) / once) + 1; };
        for (int i = 0, count = runs_in(window.settle_ms); i < count; i++) run();
        const int count = runs_in(window.ms);
        return (double)ms(run, count) / count;
    }

    double alone(const Run &run, Window window)
    {
        run();      /* whatever its first call makes */
        const float once = std::max(ms(run, 1), LEAST_MS), most_ms = MOST_RUNS * once;
        if (once >= SHORT_MS) return settled(run, once, window, most_ms);
        const int count = (int)(SHORT_MS / once) + 1;
        cuda_device.capture_begin(stream);
        for (int i = 0; i < count; i++) run();
        Graph *graph = cuda_device.capture_end(stream);
        const double all =
            settled([&] { cuda_device.launch(graph, stream); }, once * (float)count, window, most_ms);
        cuda_device.graph_release(graph);
        return all / count;
    }
};

}

static double now_s()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Measuring::Measuring(CudaBackend *of) : backend(of), begin(now_s()), inside(of->measuring)
{
    const char *folder = backend->options.cache_dir;
    if (!backend->said_measuring)
        fprintf(stderr, "note: measuring which kernels are fastest at these sizes, up to a minute%s%s\n",
                folder ? "; for later starts kept in " : "", folder ? folder : "");
    backend->said_measuring = backend->measuring = true;
}

Measuring::~Measuring()
{
    if (inside) return;     /* a fused op's choice makes those of its library's products */
    backend->measured_s += now_s() - begin;
    backend->measuring = false;
}

std::vector<double> time_alone(const OpContext *ctx, const char *op, const std::vector<Run> &runs)
{
    Clock clock = {stream_of(ctx), Events(op, 2)};
    std::vector<double> us;
    std::vector<size_t> near;   /* the fastest first */
    for (size_t i = 0; i < runs.size(); i++) us.push_back(clock.alone(runs[i], FIRST) * 1e3), near.push_back(i);
    std::sort(near.begin(), near.end(), [&](size_t x, size_t y) { return us[x] < us[y]; });
    const double limit = NEAR * us[near[0]];
    while (near.size() > NEAREST || us[near.back()] > limit) near.pop_back();
    if (near.size() < 2 || backend_of(ctx)->measured_s > ENOUGH_S) return us;
    for (size_t i : near) us[i] = 0;
    for (int pass = 0; pass < PASSES; pass++, std::reverse(near.begin(), near.end()))
        for (size_t i : near) us[i] += clock.alone(runs[i], NEXT) * 1e3 / PASSES;
    return us;
}

std::vector<double> time_in_turn(const OpContext *ctx, const char *op, const std::vector<Run> &runs, int rounds)
{
    const size_t count = runs.size() * (size_t)rounds;
    Events events(op, count + 1);
    events.record(0, stream_of(ctx));
    for (size_t i = 0; i < count; i++) {
        runs[i % runs.size()]();
        events.record(i + 1, stream_of(ctx));
    }
    std::vector<std::vector<double>> times(runs.size());
    for (size_t i = 0; i < count; i++) times[i % runs.size()].push_back(events.ms(i) * 1e3);
    std::vector<double> medians;
    for (auto &t : times) {
        std::sort(t.begin(), t.end());
        medians.push_back(t[(t.size() - 1) / 2]);
    }
    return medians;
}
