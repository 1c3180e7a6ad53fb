#include "kernels/cuda/time_alone.h"
#include <algorithm>

static const float SETTLE_MS = 60, MEASURE_MS = 60;     /* all shapes of a model in less than a minute */
enum {
    PASSES = 2,
    MOST_RUNS = 200,    /* of each part: small models, whose runs are short, do not come near the power limit */
};

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
    std::vector<double> us(runs.size(), 0);
    for (int pass = 0; pass < PASSES; pass++)
        for (size_t i = 0; i < runs.size(); i++) {
            const size_t r = pass % 2 ? runs.size() - 1 - i : i;
            const float once = time_runs(op, stream_of(ctx), events, 1, 1, runs[r]);
            const int warm = runs_in(SETTLE_MS, once), count = runs_in(MEASURE_MS, once);
            us[r] += time_runs(op, stream_of(ctx), events, warm, count, runs[r]) * 1e3 / count / PASSES;
        }
    for (cudaEvent_t &event : events) CUDA_CHECK(op, cudaEventDestroy(event));
    return us;
}
