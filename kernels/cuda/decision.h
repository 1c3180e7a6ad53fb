/* What measured times decide, for the device's code and for the host: tests/test_decision.c checks it without a GPU. */
#pragma once
#include "kernels/cuda/host_device.h"
#include <math.h>

/* Of one way to compute an op, in microseconds. `turn`: in turn with the others, at one clock, which is what they need of the
 * multiprocessors. `alone`: with the card to itself, at the clock that its power limit leaves for this one, which is what it
 * needs of power; 0 = not measured. A training step has something of both, and either misleads: alone, windows scatter by 2 %,
 * and a kernel may draw level with one that is 10 % faster in turn. */
typedef struct Times {
    double turn, alone;
} Times;

/* Microseconds that stand for both: their geometric mean. */
HOST_DEVICE double time_of(Times t) { return t.alone > 0 ? sqrt(t.turn * t.alone) : t.turn; }

HOST_DEVICE int fastest_of(const Times *ways, int count)
{
    int best = 0;
    for (int i = 1; i < count; i++)
        if (time_of(ways[i]) < time_of(ways[best])) best = i;
    return best;
}

/* Which of `count` ways is to take a's place: the fastest of those that are faster both ways; -1 = none is. */
HOST_DEVICE int better_than(Times a, const Times *ways, int count)
{
    int best = -1;
    for (int i = 0; i < count; i++) {
        const int wins = ways[i].turn < a.turn && (a.alone == 0 || ways[i].alone < a.alone);
        if (wins && (best < 0 || time_of(ways[i]) < time_of(ways[best]))) best = i;
    }
    return best;
}

/* How many times as long as a, in what it is worse at. */
HOST_DEVICE double worst_ratio(Times t, Times a)
{
    const double turn = t.turn / a.turn, alone = a.alone > 0 ? t.alone / a.alone : 0;
    return turn > alone ? turn : alone;
}
