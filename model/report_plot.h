/* A line plot as inline SVG. Private to model/report*.c. */
#pragma once
#include <stdbool.h>
#include <stdio.h>

typedef enum PlotStyle {
    PLOT_RAW,           /* thin and pale, under its smoothed line; not in the legend */
    PLOT_LINE,
    PLOT_POINTS         /* a line with a dot at each value */
} PlotStyle;

typedef struct PlotSeries {
    const char   *name;
    PlotStyle     style;
    int           color;            /* 0..3: --c0 ... --c3 of the style sheet */
    const double *x, *y;            /* [count], x rising; NAN where there is no value */
    int           count;
} PlotSeries;

#define PLOT_SERIES 4

typedef struct Plot {
    const char *title, *unit;       /* unit: behind the values, may be "" */
    bool        wide;               /* the width of the page instead of half of it */
    bool        log_y;              /* used when the values span a factor of 3 or more and are positive */
    bool        robust;             /* a few far outliers may leave the frame */
    PlotSeries  series[PLOT_SERIES];
    int         series_count;
    double      reference;          /* horizontal line, NAN = none */
    const char *reference_label;
    const char *note;               /* a sentence under the curves; NULL = none */
} Plot;

/* Writes a <figure>; nothing when no series has a finite value. */
void plot_write(FILE *out, const Plot *plot);

/* At least two and about `wanted` round numbers in [lo, hi]; returns their count, at most `room`. */
int plot_ticks(double lo, double hi, int wanted, double *ticks, int room);
int plot_log_ticks(double lo, double hi, int wanted, double *ticks, int room);

/* 4 significant digits with k, M, G where apt: "795k", "0.1493", "2.94e-4". */
void plot_value(char *text, size_t size, double value);

/* Text with &, <, > and quotes escaped; control characters other than tab and newline are left out. */
void html_text(FILE *out, const char *text);
