/* How choices between kernels are measured. */
#pragma once
#include "kernels/cuda/backend.h"
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

/* Microseconds of each run, as it takes when nothing else runs: the card settles at the clock that its power limit
 * leaves for this kernel. Taken in turns with others, all would run at one clock, and what a kernel needs of power,
 * which is what a training step pays for, would not show. Short ones are recorded as a step is, so that no time to
 * launch counts. What is near the best runs for longer, in one order and in the reverse. Takes 60 ms a run and 0.3 s
 * for each that is near, up to three, and more where a single one takes more than 10 ms. Once a backend's choices have taken
 * 40 s, the first look decides, so that a start takes about a minute at most. */
std::vector<double> time_alone(const OpContext *ctx, const char *op, const std::vector<Run> &runs);

/* Median microseconds of each run over so many rounds, taken in turn, all queued at once. */
std::vector<double> time_in_turn(const OpContext *ctx, const char *op, const std::vector<Run> &runs, int rounds);
