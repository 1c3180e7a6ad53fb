/* How choices between kernels are measured. */
#pragma once
#include "kernels/cuda/backend.h"
#include "kernels/cuda/decision.h"
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

/* Microseconds of each run, in turn with the others on a hot card: 0.1 s to heat it, then 0.3 s, and at least three rounds of
 * those that are not far from the best. Short ones are recorded as a step is, so that no time to launch counts. */
std::vector<double> time_first(const OpContext *ctx, const char *op, const std::vector<Run> &runs);

/* Times the best of those: what is measured again. */
static const double NEAR_BEST = 1.04;

/* Of the best of them, again in turn, and alone (0.14 s each, in one order and in the reverse). Once a backend's choices have
 * taken 40 s, in turn only, so that a start takes about a minute at most. */
std::vector<Times> time_finalists(const OpContext *ctx, const char *op, const std::vector<Run> &runs);

/* Microseconds of each run with the card to itself, once it has settled at the clock that its power limit leaves for it. */
std::vector<double> time_alone(const OpContext *ctx, const char *op, const std::vector<Run> &runs);

/* Median microseconds of each run over so many rounds, taken in turn, all queued at once. */
std::vector<double> time_in_turn(const OpContext *ctx, const char *op, const std::vector<Run> &runs, int rounds);
