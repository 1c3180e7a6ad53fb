/* The progress line for people. */
#pragma once
#include "model/log.h"
#include <stddef.h>
#include <stdio.h>

typedef struct Progress {
    FILE   *out;                /* stderr */
    bool    terminal;           /* rewrite one line in place; otherwise plain lines, every log_every steps */
    int64_t steps, log_every;   /* of the whole run */
    int64_t mem_total;          /* bytes of the device or machine, 0 = unknown */
    int64_t first_step;         /* the first one shown by this process, -1 before it; the ETA's mean starts */
    double  first_time;         /* behind it, because a first step may tune and warm up */
    double  shown_time;         /* seconds, of the last line */
    bool    unfinished;         /* a line without its end stands on the terminal */
} Progress;

Progress progress_begin(FILE *out, int64_t steps, int64_t log_every, int64_t mem_total);
/* Shows a step: on a terminal every one, elsewhere every log_every-th, the first and the last. */
void progress_step(Progress *p, const LogStep *step);
/* A line of its own (validation, checkpoint saved, note): leaves the terminal's progress line whole. */
__attribute__((format(printf, 2, 3))) void progress_line(Progress *p, const char *format, ...);
/* Ends an unfinished line, before others write to the terminal. */
void progress_end(Progress *p);

/* "step 120/5000 | loss 4.8123 | gnorm 0.91 | lr 2.94e-04 | 41.2 ms | 795k tok/s | MFU 43.1% |
 * mem 18.3/139 GiB | eta 00:03:22"; MFU and totals only where known. eta_seconds < 0: left out. */
void progress_format(char *line, size_t size, const LogStep *step, int64_t steps, int64_t mem_total,
                     double eta_seconds);
