/* What measured times decide, for the device's code and for the host: tests/test_decision.c checks it without a GPU. */
#pragma once
#include "kernels/cuda/host_device.h"
#include <stdbool.h>

/* Of one way to compute an op, in microseconds. `turn`: in turn with the others, at one clock, which is what it needs of the
 * multiprocessors. `alone`: with the card to itself, at the clock that its power limit leaves for this one, which is what it
 * needs of power; 0 = not measured. */
typedef struct Times {
    double turn, alone;
} Times;

/* What counts: a large card that trains is at its power limit, so that a step takes as long as its energy. Two products that take
 * turns run at one clock, whatever each of them draws. */
HOST_DEVICE double time_of(Times t) { return t.alone > 0 ? t.alone : t.turn; }

/* Times that differ by less are even: looks are brief. */
static const double EVEN = 1.01;

/* Whether t takes a's place: it is faster both ways. */
HOST_DEVICE bool wins(Times t, Times a)
{
    return EVEN * t.turn < a.turn && (a.alone == 0 || EVEN * t.alone < a.alone);
}

/* How many times as long as a, in what it is worse at. */
HOST_DEVICE double worst_ratio(Times t, Times a)
{
    const double turn = t.turn / a.turn, alone = a.alone > 0 ? t.alone / a.alone : 0;
    return turn > alone ? turn : alone;
}
