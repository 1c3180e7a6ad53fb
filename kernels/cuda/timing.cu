#include "kernels/cuda/timing.h"
#include <algorithm>

static const float PART_MS = 60;    /* to settle, and to measure: all shapes of a model in less than a minute */
static const float SHORT_MS = 1;    /* shorter runs are recorded, as many as take so long */
static const float LEAST_MS = 1e-3f;    /* what events can tell apart */
enum { MOST_RUNS = 200 };           /* of each part: runs that are short do not come near the power limit */
static const double NEAR = 1.04;    /* times the best: what drifts meanwhile is less */

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

    /* Milliseconds of a run that takes about `once`, after as long a time as is measured. */
    double settled(const Run &run, float once, float part)
    {
        const int count = (int)(part / once) + 1;
        for (int i = 0; i < count; i++) run();
        return (double)ms(run, count) / count;
    }

    double alone(const Run &run)
    {
        run();      /* whatever its first call makes */
        const float once = std::max(ms(run, 1), LEAST_MS), part = std::min(PART_MS, MOST_RUNS * once);
        if (once >= SHORT_MS) return settled(run, once, part);
        const int count = (int)(SHORT_MS / once) + 1;
        cuda_device.capture_begin(stream);
        for (int i = 0; i < count; i++) run();
        Graph *graph = cuda_device.capture_end(stream);
        const double all = settled([&] { cuda_device.launch(graph, stream); }, once * (float)count, part);
        cuda_device.graph_release(graph);
        return all / count;
    }
};

}

std::vector<double> time_alone(const OpContext *ctx, const char *op, const std::vector<Run> &runs)
{
    Clock clock = {stream_of(ctx), Events(op, 2)};
    std::vector<double> us;
    for (const Run &run : runs) us.push_back(clock.alone(run) * 1e3);
    const double near = NEAR * *std::min_element(us.begin(), us.end());
    for (size_t r = runs.size(); r-- > 0;)
        if (us[r] <= near) us[r] = (us[r] + clock.alone(runs[r]) * 1e3) / 2;
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
        medians.push_back(t[t.size() / 2]);
    }
    return medians;
}
