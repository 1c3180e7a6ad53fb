#include "model/report_plot.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WIDE_WIDTH 1096
#define WIDE_HEIGHT 340
#define HALF_WIDTH 536
#define HALF_HEIGHT 240
#define LEFT 58         /* room for the labels of the y axis */
#define RIGHT 14
#define TOP 10
#define BOTTOM 34
#define MAX_TICKS 24

typedef struct Frame {
    double x0, x1, y0, y1;          /* ranges of values; y as log10 when log_y */
    double left, top, width, height; /* of the plotted area */
    bool   log_y;
} Frame;

void html_text(FILE *out, const char *text)
{
    for (const char *s = text; *s; s++) {
        switch (*s) {
        case '&': fputs("&amp;", out); break;
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '"': fputs("&quot;", out); break;
        default:
            if ((unsigned char)*s >= 0x20 || *s == '\n' || *s == '\t') fputc(*s, out);
        }
    }
}

/* ---- numbers ------------------------------------------------------------------------------------- */

/* Cuts the zeros at the end of decimals: "2.50" -> "2.5", "3.00" -> "3". */
static void cut_zeros(char *text)
{
    if (!strchr(text, '.')) return;
    size_t n = strlen(text);
    while (text[n - 1] == '0') text[--n] = 0;
    if (text[n - 1] == '.') text[--n] = 0;
}

static void format_value(char *text, size_t size, double value, int digits)
{
    const double a = fabs(value);
    static const struct { double from, factor; const char *name; } units[] = {
        {999.95e9, 1e12, "T"}, {999.95e6, 1e9, "G"}, {999.95e3, 1e6, "M"}, {9999.5, 1e3, "k"}, {0, 1, ""}};
    int unit = 0;
    while (a < units[unit].from) unit++;
    char number[32];
    double scaled = value / units[unit].factor, b = fabs(scaled);
    int whole = b > 0 ? (int)floor(log10(b)) + 1 : 1, decimals = digits - whole;
    if (a != 0 && a < 1e-4) {
        snprintf(number, sizeof number, "%.*e", digits - 1, value);
        char *e = strchr(number, 'e');
        int exponent = atoi(e + 1);
        *e = 0;
        cut_zeros(number);
        snprintf(text, size, "%se%d", number, exponent);
    } else if (b >= 1e6) {
        snprintf(text, size, "%.*e", digits - 1, value);
    } else {
        snprintf(number, sizeof number, "%.*f", decimals > 0 ? decimals : 0, scaled);
        cut_zeros(number);
        snprintf(text, size, "%s%s", number, units[unit].name);
    }
}

void plot_value(char *text, size_t size, double value)
{
    if (isfinite(value)) format_value(text, size, value, 4);
    else snprintf(text, size, "–");
}

int plot_ticks(double lo, double hi, int wanted, double *ticks, int room)
{
    if (!(hi > lo)) return 0;
    double rough = (hi - lo) / wanted, power = pow(10, floor(log10(rough))), step = power;
    const double multiples[] = {1, 2, 5, 10};
    for (int i = 0; i < 4; i++) {
        step = multiples[i] * power;
        if (step >= rough * 0.999) break;
    }
    int count = 0;
    for (double i = ceil(lo / step - 1e-9); i * step <= hi + 1e-9 * step && count < room; i++) {
        ticks[count++] = i * step + 0.0;        /* never -0 */
    }
    return count;
}

int plot_log_ticks(double lo, double hi, int wanted, double *ticks, int room)
{
    static const double sets[][9] = {{1}, {1, 3}, {1, 2, 5}, {1, 1.5, 2, 3, 5, 7}};
    static const int sizes[] = {1, 2, 3, 6};
    int count = 0, best = 0;
    for (int s = 0; s < 4; s++) {
        double found[MAX_TICKS];
        count = 0;
        for (int decade = (int)floor(log10(lo)); decade <= (int)ceil(log10(hi)); decade++) {
            for (int i = 0; i < sizes[s]; i++) {
                double tick = sets[s][i] * pow(10, decade);
                if (tick >= lo * 0.9999 && tick <= hi * 1.0001 && count < MAX_TICKS) found[count++] = tick;
            }
        }
        if (count > room) break;
        if (s > 0 && abs(count - wanted) > abs(best - wanted)) break;
        memcpy(ticks, found, (size_t)count * sizeof *ticks);
        best = count;
        if (count >= wanted) break;
    }
    /* Less than a factor of two or so: evenly spaced values say more. */
    return best >= 3 ? best : plot_ticks(lo, hi, wanted, ticks, room);
}

/* ---- the frame ----------------------------------------------------------------------------------- */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The largest value of a series, or less where a few values are far outside of its bulk. */
static double upper_end(const PlotSeries *s, bool robust)
{
    if (s->count < 1) return -INFINITY;
    double *sorted = malloc((size_t)s->count * sizeof *sorted), top = -INFINITY;
    int n = 0;
    for (int i = 0; i < s->count; i++) {
        if (!isfinite(s->y[i])) continue;
        if (s->y[i] > top) top = s->y[i];
        if (sorted) sorted[n++] = s->y[i];
    }
    if (robust && n >= 10) {
        qsort(sorted, (size_t)n, sizeof *sorted, compare_doubles);
        double bulk = sorted[n - 1 - n / 50 - 1];
        if (top > 2 * bulk && bulk > 0) top = 1.3 * bulk;
    }
    free(sorted);
    return top;
}

static bool make_frame(const Plot *plot, Frame *f)
{
    double x0 = INFINITY, x1 = -INFINITY, y0 = INFINITY, y1 = -INFINITY;
    for (int k = 0; k < plot->series_count; k++) {
        const PlotSeries *s = &plot->series[k];
        for (int i = 0; i < s->count; i++) {
            if (!isfinite(s->y[i])) continue;
            x0 = fmin(x0, s->x[i]);
            x1 = fmax(x1, s->x[i]);
            y0 = fmin(y0, s->y[i]);
        }
        y1 = fmax(y1, upper_end(s, plot->robust));
    }
    if (!(x1 >= x0)) return false;
    if (isfinite(plot->reference)) {
        y0 = fmin(y0, plot->reference);
        y1 = fmax(y1, plot->reference);
    }
    if (x0 > 0 && x0 < 0.5 * x1) x0 = 0;        /* a run starts there; what was resumed may not */
    bool log_y = plot->log_y && y0 > 0 && y1 >= 3 * y0;
    if (log_y) {
        y0 = log10(y0);
        y1 = log10(y1);
    } else if (y0 > 0 && y0 < 0.5 * y1) {
        y0 = 0;     /* near enough to zero to show it */
    }
    double margin = y1 > y0 ? 0.05 * (y1 - y0) : fmax(0.05 * fabs(y1), 1e-9);
    *f = (Frame){.x0 = x0, .x1 = x1 > x0 ? x1 : x0 + 1, .y0 = y0 == 0 && !log_y ? 0 : y0 - margin,
                 .y1 = y1 + margin, .left = LEFT, .top = TOP, .log_y = log_y,
                 .width = (plot->wide ? WIDE_WIDTH : HALF_WIDTH) - LEFT - RIGHT,
                 .height = (plot->wide ? WIDE_HEIGHT : HALF_HEIGHT) - TOP - BOTTOM};
    return true;
}

static double x_at(const Frame *f, double x)
{
    return f->left + (x - f->x0) / (f->x1 - f->x0) * f->width;
}

static double y_at(const Frame *f, double y)
{
    double v = f->log_y ? log10(y) : y;
    return f->top + (f->y1 - v) / (f->y1 - f->y0) * f->height;
}

static void write_axes(FILE *out, const Frame *f, bool wide)
{
    double ticks[MAX_TICKS];
    char label[48];
    double lo = f->log_y ? pow(10, f->y0) : f->y0, hi = f->log_y ? pow(10, f->y1) : f->y1;
    int wanted = wide ? 6 : 4, n;
    if (f->log_y) n = plot_log_ticks(lo, hi, wanted, ticks, MAX_TICKS);
    else n = plot_ticks(lo, hi, wanted, ticks, MAX_TICKS);
    for (int i = 0; i < n; i++) {
        double y = y_at(f, ticks[i]);
        plot_value(label, sizeof label, fabs(ticks[i]) < 1e-9 * fabs(hi) ? 0 : ticks[i]);
        fprintf(out, "<path class=\"grid\" d=\"M%.1f %.1fh%.1f\"/><text class=\"tick\" x=\"%.1f\" y=\"%.1f\" "
                "text-anchor=\"end\">%s</text>\n", f->left, y, f->width, f->left - 8, y + 4, label);
    }
    n = plot_ticks(f->x0, f->x1, wide ? 9 : 5, ticks, MAX_TICKS);
    for (int i = 0; i < n; i++) {
        double x = x_at(f, ticks[i]), bottom = f->top + f->height;
        if (ticks[i] != floor(ticks[i])) continue;      /* there are no half steps */
        plot_value(label, sizeof label, ticks[i]);
        fprintf(out, "<path class=\"mark\" d=\"M%.1f %.1fv4\"/><text class=\"tick\" x=\"%.1f\" y=\"%.1f\" "
                "text-anchor=\"middle\">%s</text>\n", x, bottom, x, bottom + 18, label);
    }
    fprintf(out, "<path class=\"axis\" d=\"M%.1f %.1fh%.1f\"/><text class=\"tick\" x=\"%.1f\" y=\"%.1f\" "
            "text-anchor=\"start\">step</text>\n", f->left, f->top + f->height, f->width, 2.0, f->top + f->height + 18);
}

/* ---- lines --------------------------------------------------------------------------------------- */

/* Writes the indices of at most about 2 * columns values that stand for all: the lowest and the highest of
 * each column, so that no spike is lost. Values that are not finite stand for themselves. */
static int decimate(const PlotSeries *s, int columns, int *index)
{
    int count = 0;
    if (s->count <= 2 * columns) {
        for (int i = 0; i < s->count; i++) index[count++] = i;
        return count;
    }
    for (int c = 0; c < columns; c++) {
        int from = (int)((int64_t)s->count * c / columns), to = (int)((int64_t)s->count * (c + 1) / columns);
        int lowest = from, highest = from;
        for (int i = from; i < to; i++) {
            if (!isfinite(s->y[i])) continue;
            if (!isfinite(s->y[lowest]) || s->y[i] < s->y[lowest]) lowest = i;
            if (!isfinite(s->y[highest]) || s->y[i] > s->y[highest]) highest = i;
        }
        index[count++] = lowest < highest ? lowest : highest;
        if (lowest != highest) index[count++] = lowest < highest ? highest : lowest;
    }
    return count;
}

static void write_numbers(FILE *out, const char *name, const double *values, const int *index, int count)
{
    fprintf(out, " data-%s=\"", name);
    for (int i = 0; i < count; i++) {
        double v = values[index[i]];
        fprintf(out, isfinite(v) ? "%s%.6g" : "%s", i ? "," : "", v);
    }
    fputc('"', out);
}

static void write_series(FILE *out, const Frame *f, const PlotSeries *s)
{
    int columns = (int)f->width, *index = malloc((size_t)(2 * columns + 2) * sizeof *index);
    if (!index) return;
    int count = decimate(s, columns, index);
    fprintf(out, "<path class=\"%s c%d\" data-name=\"", s->style == PLOT_RAW ? "raw" : "line", s->color);
    html_text(out, s->name);
    fputc('"', out);
    write_numbers(out, "x", s->x, index, count);
    write_numbers(out, "y", s->y, index, count);
    fputs(" d=\"", out);
    bool pen = false;
    for (int i = 0; i < count; i++) {
        double x = s->x[index[i]], y = s->y[index[i]];
        bool drawn = isfinite(y) && (!f->log_y || y > 0);
        /* A zero-length stroke makes a lone value visible. */
        if (drawn) fprintf(out, pen ? "L%.1f %.1f" : "M%.1f %.1fh0", x_at(f, x), y_at(f, y));
        pen = drawn;
    }
    fputs("\"/>\n", out);
    for (int i = 0; i < count && s->style == PLOT_POINTS && count <= 200; i++) {
        double y = s->y[index[i]];
        if (!isfinite(y) || (f->log_y && y <= 0)) continue;
        fprintf(out, "<circle class=\"dot c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\"/>\n", s->color,
                x_at(f, s->x[index[i]]), y_at(f, y));
    }
    free(index);
}

static double last_finite(const PlotSeries *s)
{
    for (int i = s->count - 1; i >= 0; i--) {
        if (isfinite(s->y[i])) return s->y[i];
    }
    return NAN;
}

static void write_legend(FILE *out, const Plot *plot)
{
    char value[48];
    fputs("<figcaption><b>", out);
    html_text(out, plot->title);
    fputs("</b><span class=\"legend\">", out);
    for (int k = 0; k < plot->series_count; k++) {
        const PlotSeries *s = &plot->series[k];
        double last = last_finite(s);
        if (s->style == PLOT_RAW || !isfinite(last)) continue;
        plot_value(value, sizeof value, last);
        fprintf(out, "<span><i class=\"c%d\"></i>", s->color);
        html_text(out, s->name);
        fprintf(out, " <em>%s%s</em></span>", value, plot->unit);
    }
    if (isfinite(plot->reference)) {
        plot_value(value, sizeof value, plot->reference);
        fputs("<span><i class=\"ref\"></i>", out);
        html_text(out, plot->reference_label);
        fprintf(out, " <em>%s%s</em></span>", value, plot->unit);
    }
    fputs("</span></figcaption>\n", out);
}

void plot_write(FILE *out, const Plot *plot)
{
    Frame f;
    if (!make_frame(plot, &f)) return;
    int width = plot->wide ? WIDE_WIDTH : HALF_WIDTH, height = plot->wide ? WIDE_HEIGHT : HALF_HEIGHT;
    fprintf(out, "<figure%s>", plot->wide ? " class=\"wide\"" : "");
    write_legend(out, plot);
    fprintf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", width, height);
    html_text(out, plot->title);
    fprintf(out, "\" data-frame=\"%.9g,%.9g,%.9g,%.9g,%g,%g,%g,%g,%d\" data-unit=\"%s\">\n", f.x0, f.x1, f.y0,
            f.y1, f.left, f.top, f.width, f.height, f.log_y, plot->unit);
    write_axes(out, &f, plot->wide);
    /* A nested svg clips what leaves the frame. */
    double left = f.left - 6, top = f.top - 4, wide = f.width + RIGHT + 6, high = f.height + 8;
    fprintf(out, "<svg x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\" viewBox=\"%g %g %g %g\">\n", left, top,
            wide, high, left, top, wide, high);
    if (isfinite(plot->reference)) {
        double y = y_at(&f, plot->reference);
        fprintf(out, "<path class=\"ref\" d=\"M%.1f %.1fh%.1f\"/>\n", f.left, y, f.width);
    }
    for (int k = 0; k < plot->series_count; k++) write_series(out, &f, &plot->series[k]);
    fputs("</svg><g class=\"cursor\"></g></svg>", out);
    if (plot->note) {
        fputs("<p>", out);
        html_text(out, plot->note);
        fputs("</p>", out);
    }
    fputs("</figure>\n", out);
}
