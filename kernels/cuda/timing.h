/* How choices between kernels are measured. */
#pragma once
#include "kernels/cuda/backend.h"
#include "kernels/cuda/decision.h"
#include <algorithm>
#include <functional>
#include <vector>

typedef std::function<void()> Run;

/* Stands around the measuring for one choice. The first of a backend says on stderr that the start takes longer. */
struct Measuring {
    explicit Measuring(CudaBackend *backend);
    ~Measuring();
    CudaBackend *backend;
    double begin;
    bool inside;    /* another one */
};

/* Microseconds of each run, in turn with the others on a hot card: 0.1 s to heat it, then ms milliseconds, and at least three
 * rounds of those that are not far from the best; where ms is 0, what heated it counts. Short ones are recorded as a step is, so
 * that no time to launch counts. */
std::vector<double> time_turns(const OpContext *ctx, const char *op, const std::vector<Run> &runs, float ms);

/* Microseconds of each run with the card to itself, over ms milliseconds, once it has settled for a third of that at the clock
 * that its power limit leaves for this one. */
std::vector<double> time_alone(const OpContext *ctx, const char *op, const std::vector<Run> &runs, float ms);

/* Whether choices have taken so long at this start that others must do with times in turn: it should take a minute at most. */
bool measured_enough(const OpContext *ctx);

/* Milliseconds in turn where that counts, and of looks at ways that have the card to themselves: at all that come into question,
 * then at the best of them, for what is looked at so briefly scatters by 2 %. */
static const float TURNS_MS = 300, LOOKS_MS[] = {80, 240};
enum { LAST_LOOK_AT = 2 };

/* Leaves the fastest ways, the fastest first: at most `most`, and none that takes more than `factor` times as long as it.
 * us(way): microseconds. */
template <class Way, class Time> void keep_fastest(std::vector<Way> *ways, size_t most, double factor, const Time &us)
{
    std::sort(ways->begin(), ways->end(), [&](const Way &x, const Way &y) { return us(x) < us(y); });
    while (ways->size() > most || (ways->size() > 1 && us(ways->back()) > factor * us(ways->front()))) ways->pop_back();
}

/* Median microseconds of each run over so many rounds, taken in turn, all queued at once. */
std::vector<double> time_in_turn(const OpContext *ctx, const char *op, const std::vector<Run> &runs, int rounds);
