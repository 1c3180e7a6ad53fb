#include "kernels/cuda/time_alone.h"
#include <algorithm>

static const float SETTLE_MS = 60, MEASURE_MS = 60;     /* all shapes of a model in less than a minute */
enum { MOST_RUNS = 200 };   /* of each part: small models, whose runs are short, do not come near the power limit */
static const double NEAR = 1.04;    /* times the best: what drifts meanwhile is less */

static int runs_in(float ms, float once) { return std::min((int)(ms / once) + 1, (int)MOST_RUNS); }

/* Milliseconds of so many runs one behind the other. */
static float time_runs(const char *op, cudaStream_t stream, const cudaEvent_t (&events)[2], int warm, int count,
                       const std::function<void()> &run)
{
    for (int i = 0; i < warm; i++) run();
    CUDA_CHECK(op, cudaEventRecord(events[0], stream));
    for (int i = 0; i < count; i++) run();
    CUDA_CHECK(op, cudaEventRecord(events[1], stream));
    CUDA_CHECK(op, cudaEventSynchronize(events[1]));
    float ms;
    CUDA_CHECK(op, cudaEventElapsedTime(&ms, events[0], events[1]));
    return ms;
}

std::vector<double> time_alone(const OpContext *ctx, const char *op, const std::vector<std::function<void()>> &runs)
{
    cudaEvent_t events[2];
    for (cudaEvent_t &event : events) CUDA_CHECK(op, cudaEventCreate(&event));
    auto measure = [&](const std::function<void()> &run) {
        const float once = time_runs(op, stream_of(ctx), events, 1, 1, run);
        const int warm = runs_in(SETTLE_MS, once), count = runs_in(MEASURE_MS, once);
        return time_runs(op, stream_of(ctx), events, warm, count, run) * 1e3 / count;
    };
    std::vector<double> us;
    for (const auto &run : runs) us.push_back(measure(run));
    const double near = NEAR * *std::min_element(us.begin(), us.end());
    for (size_t r = runs.size(); r-- > 0;)
        if (us[r] <= near) us[r] = (us[r] + measure(runs[r])) / 2;
    for (cudaEvent_t &event : events) CUDA_CHECK(op, cudaEventDestroy(event));
    return us;
}
