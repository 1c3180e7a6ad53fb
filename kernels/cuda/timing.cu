#include "kernels/cuda/timing.h"
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <numeric>

static const float HEAT_MS = 100;       /* of rounds in turn, until the card is hot */
enum { LEAST_ROUNDS = 3, MOST_ROUNDS = 60 };
static const double FAR = 1.15;         /* times the best: not looked at again once the card is hot */
static const float SHORT_MS = 1;        /* shorter runs are recorded, as many as take so long */
static const float LEAST_MS = 1e-3f;    /* what events can tell apart */
static const double ENOUGH_S = 45;      /* of measuring at a start */
enum { MOST_RUNS = 200 };               /* of each part: runs that are short do not come near the power limit */

static double median(std::vector<double> *times)
{
    std::sort(times->begin(), times->end());
    return (*times)[(times->size() - 1) / 2];
}

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

/* What is timed at once: one run, or as many of a short one as take SHORT_MS. */
class Batch {
public:
    Batch(const Batch &) = delete;
    Batch(Events *events, cudaStream_t on, const Run *of) : stream(on), run(of)
    {
        (*run)();   /* whatever its first call makes */
        events->record(0, stream);
        (*run)();
        events->record(1, stream);
        once_ms = std::max(events->ms(0), LEAST_MS);
        if (once_ms >= SHORT_MS) return;
        count = (int)(SHORT_MS / once_ms) + 1;
        cuda_device.capture_begin(stream);
        for (int i = 0; i < count; i++) (*run)();
        graph = cuda_device.capture_end(stream);
        events->record(0, stream);
        go();
        events->record(1, stream);
        once_ms = std::max(events->ms(0) / (float)count, LEAST_MS);     /* without the host's launches */
    }
    ~Batch()
    {
        if (graph) cuda_device.graph_release(graph);
    }
    void go() const
    {
        if (graph) cuda_device.launch(graph, stream);
        else (*run)();
    }
    /* Batches that take about so long, within MOST_RUNS. */
    int in(float part_ms) const { return (int)(std::min(part_ms, MOST_RUNS * once_ms) / (once_ms * (float)count)) + 1; }

    int count = 1;      /* of runs */
    float once_ms;

private:
    cudaStream_t stream;
    const Run *run;
    Graph *graph = nullptr;
};

/* Measures runs of one op. */
class Clock {
public:
    Clock(const OpContext *ctx, const char *op, const std::vector<Run> &runs) : stream(stream_of(ctx)), events(op, 2), name(op)
    {
        for (const Run &run : runs) batches.emplace_back(new Batch(&events, stream, &run));
    }

    /* Median microseconds of each run over rounds in which all take turns. A run that is far from the best once the card is hot
     * keeps what it took until then. */
    std::vector<double> in_turn(float ms)
    {
        std::vector<double> us(batches.size());
        std::vector<size_t> all(batches.size()), near;
        std::iota(all.begin(), all.end(), 0);
        rounds(all, HEAT_MS, 1, &us);
        if (ms == 0) return us;
        const double best = *std::min_element(us.begin(), us.end());
        for (size_t i : all)
            if (us[i] <= FAR * best) near.push_back(i);
        rounds(near, ms, LEAST_ROUNDS, &us);
        return us;
    }

    /* Microseconds of run i with the card to itself. */
    double alone(size_t i, float ms)
    {
        const Batch &batch = *batches[i];
        for (int left = batch.in(ms / 3); left > 0; left--) batch.go();
        const int count = batch.in(ms);
        events.record(0, stream);
        for (int left = count; left > 0; left--) batch.go();
        events.record(1, stream);
        return events.ms(0) * 1e3 / ((double)count * batch.count);
    }

private:
    void rounds(const std::vector<size_t> &which, float part_ms, int least, std::vector<double> *us)
    {
        float round_ms = 0, most_ms = 0;
        for (size_t i : which) {
            const float ms = batches[i]->once_ms * (float)batches[i]->count;
            round_ms += ms, most_ms += MOST_RUNS * batches[i]->once_ms;
        }
        const int count = std::clamp((int)(std::min(part_ms, most_ms) / round_ms), least, (int)MOST_ROUNDS);
        Events marks(name, which.size() * (size_t)count + 1);
        marks.record(0, stream);
        for (size_t n = 0; n + 1 < marks.all.size(); n++) {
            batches[which[n % which.size()]]->go();
            marks.record(n + 1, stream);
        }
        for (size_t w = 0; w < which.size(); w++) {
            std::vector<double> times;
            for (size_t n = w; n + 1 < marks.all.size(); n += which.size())
                times.push_back(marks.ms(n) * 1e3 / batches[which[w]]->count);
            (*us)[which[w]] = median(&times);
        }
    }

    cudaStream_t stream;
    Events events;
    const char *name;
    std::vector<std::unique_ptr<Batch>> batches;
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

std::vector<double> time_turns(const OpContext *ctx, const char *op, const std::vector<Run> &runs, float ms)
{
    return Clock(ctx, op, runs).in_turn(ms);
}

std::vector<double> time_alone(const OpContext *ctx, const char *op, const std::vector<Run> &runs, float ms)
{
    Clock clock(ctx, op, runs);
    std::vector<double> us(runs.size());
    for (size_t i = 0; i < runs.size(); i++) us[i] = clock.alone(i, ms);
    return us;
}

bool measured_enough(const OpContext *ctx) { return backend_of(ctx)->measured_s > ENOUGH_S; }

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
    for (auto &t : times) medians.push_back(median(&t));
    return medians;
}
