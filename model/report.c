#include "model/report.h"
#include "model/files.h"
#include "model/report_log.h"
#include "model/report_plot.h"
#include "model/report_style.h"
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES_SHOWN 4         /* the rest is folded away */
#define NOTES_SHOWN 50

/* ---- columns of the log -------------------------------------------------------------------------- */

typedef enum Column {
    STEP, LR, LOSS, LOSS_SMOOTH, GRAD_NORM, GRAD_NORM_SMOOTH, TOK_PER_S, TOK_PER_S_SMOOTH, STEP_MS,
    STEP_MS_SMOOTH, COLUMNS
} Column;

typedef struct Columns {
    double *step[COLUMNS];      /* [step_count] each, in one allocation behind step[STEP] */
    double *val_step, *val_loss, *val_bits;     /* [validation_count] each */
} Columns;

/* Mean over a window that is short at the beginning, where curves fall steeply, and n / 30 at most. */
static void smooth(double *to, const double *from, int n, double *sums, int *counts)
{
    sums[0] = 0;
    counts[0] = 0;
    for (int i = 0; i < n; i++) {
        bool ok = isfinite(from[i]);
        sums[i + 1] = sums[i] + (ok ? from[i] : 0);
        counts[i + 1] = counts[i] + ok;
    }
    for (int i = 0; i < n; i++) {
        int half = i / 8 < n / 60 ? i / 8 : n / 60;
        int a = i - half, b = i + half + 1 < n ? i + half + 1 : n, count = counts[b] - counts[a];
        to[i] = count ? (sums[b] - sums[a]) / count : NAN;
    }
}

static bool make_columns(const ReportLog *log, Columns *c)
{
    int n = log->step_count, v = log->validation_count;
    double *steps = malloc((size_t)(n + 1) * COLUMNS * sizeof *steps);
    double *vals = malloc((size_t)(v + 1) * 3 * sizeof *vals);
    double *sums = malloc((size_t)(n + 1) * sizeof *sums);
    int *counts = malloc((size_t)(n + 1) * sizeof *counts);
    bool ok = steps && vals && sums && counts;
    for (int k = 0; ok && k < COLUMNS; k++) c->step[k] = steps + (size_t)k * (size_t)(n + 1);
    for (int i = 0; ok && i < n; i++) {
        const LogStep *s = &log->steps[i];
        c->step[STEP][i] = (double)s->step;
        c->step[LOSS][i] = s->loss;
        c->step[LR][i] = s->lr;
        c->step[GRAD_NORM][i] = s->grad_norm;
        c->step[TOK_PER_S][i] = s->tok_per_s;
        c->step[STEP_MS][i] = s->step_ms;
    }
    c->val_step = vals;
    if (ok) {
        c->val_loss = vals + v;
        c->val_bits = vals + 2 * v;
    }
    for (int i = 0; ok && i < v; i++) {
        c->val_step[i] = (double)log->validations[i].step;
        c->val_loss[i] = log->validations[i].loss;
        c->val_bits[i] = log->validations[i].bits_per_byte;
    }
    const Column raw[] = {LOSS, GRAD_NORM, TOK_PER_S, STEP_MS};
    for (int k = 0; ok && k < 4; k++) smooth(c->step[raw[k] + 1], c->step[raw[k]], n, sums, counts);
    free(sums);
    free(counts);
    if (ok) return true;
    free(steps);
    free(vals);
    return false;
}

/* ---- plots --------------------------------------------------------------------------------------- */

static PlotSeries column(const ReportLog *log, const Columns *c, Column which, const char *name,
                         PlotStyle style, int color)
{
    return (PlotSeries){name, style, color, c->step[STEP], c->step[which], log->step_count};
}

/* A raw column and its smoothed line. */
static void plot_pair(FILE *out, const ReportLog *log, const Columns *c, Column which, Plot plot,
                      const char *name, int color)
{
    plot.series[0] = column(log, c, which, "single step", PLOT_RAW, color);
    plot.series[1] = column(log, c, which + 1, name, PLOT_LINE, color);
    plot.series_count = 2;
    plot.reference = NAN;
    plot_write(out, &plot);
}

/* Where validation is easier than training by how rows begin, or NULL. */
static const char *note_on_rows(const ReportLog *log)
{
    const cJSON *config = cJSON_GetObjectItemCaseSensitive(log->header, "config");
    const char *train = report_text(cJSON_GetObjectItemCaseSensitive(config, "data"), "rows", "");
    const char *val = report_text(cJSON_GetObjectItemCaseSensitive(config, "val"), "rows", "");
    return log->validation_count && !strcmp(train, "stream") && !strcmp(val, "documents")
               ? "Rows of training begin anywhere in the text (data.rows=stream), rows of validation at the start of a document "
                 "(val.rows=documents), where nothing that came before is missing: so validation may lie below training."
               : NULL;
}

static void write_plots(FILE *out, const ReportLog *log, const Columns *c)
{
    const PlotSeries val = {"validation", PLOT_POINTS, 1, c->val_step, c->val_loss, log->validation_count};
    const PlotSeries bits = {"validation", PLOT_POINTS, 1, c->val_step, c->val_bits, log->validation_count};
    const Plot loss = {
        .title = "Loss", .wide = true, .log_y = true, .unit = "",
        .series = {column(log, c, LOSS, "single step", PLOT_RAW, 0),
                   column(log, c, LOSS_SMOOTH, "training", PLOT_LINE, 0), val},
        .series_count = 3, .reference = NAN, .note = note_on_rows(log),
    };
    bool has_bits = false;
    for (int i = 0; i < log->validation_count; i++) has_bits = has_bits || isfinite(c->val_bits[i]);
    const Plot bits_per_byte = {
        .title = "Bits per byte", .wide = true, .log_y = true, .unit = "",
        .series = {bits}, .series_count = 1,
        .reference = report_number(log->header, "reference_bits_per_byte", NAN),
        .reference_label = report_text(log->header, "reference_label", "reference"),
    };
    const Plot lr = {.title = "Learning rate", .unit = "", .reference = NAN, .series_count = 1,
                     .series = {column(log, c, LR, "learning rate", PLOT_LINE, 3)}};

    fputs("<h2>Curves</h2><div class=\"plots\">\n", out);
    plot_write(out, &loss);
    if (has_bits) plot_write(out, &bits_per_byte);
    plot_write(out, &lr);
    const Plot norm = {.title = "Gradient norm", .unit = "", .log_y = true, .robust = true};
    const Plot rate = {.title = "Throughput", .unit = " tokens/s", .robust = true};
    const Plot ms = {.title = "Step time", .unit = " ms", .robust = true};
    plot_pair(out, log, c, GRAD_NORM, norm, "before clipping", 2);
    plot_pair(out, log, c, TOK_PER_S, rate, "mean", 0);
    plot_pair(out, log, c, STEP_MS, ms, "mean", 1);
    fputs("</div>\n", out);
}

/* ---- the page ------------------------------------------------------------------------------------ */

static void write_card(FILE *out, const char *name, const char *value, const char *small)
{
    fputs("<div class=\"card\"><span>", out);
    html_text(out, name);
    fputs("</span><b>", out);
    html_text(out, value);
    fputs("</b><small>", out);
    html_text(out, small);
    fputs("</small></div>\n", out);
}

static void duration(char *text, size_t size, double seconds)
{
    int64_t s = seconds >= 0 && seconds < 1e15 ? (int64_t)(seconds + 0.5) : 0;
    if (s < 60) snprintf(text, size, "%" PRId64 " s", s);
    else if (s < 3600) snprintf(text, size, "%" PRId64 " min %02" PRId64 " s", s / 60, s % 60);
    else snprintf(text, size, "%" PRId64 " h %02" PRId64 " min", s / 3600, s / 60 % 60);
}

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Median of the finite ones among values[n], which it reorders; NAN when there are none. */
static double median(double *values, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        if (isfinite(values[i])) values[count++] = values[i];
    }
    if (!count) return NAN;
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return values[count / 2];
}

static double median_of(const ReportLog *log, double (*field)(const LogStep *))
{
    double *values = malloc((size_t)(log->step_count + 1) * sizeof *values);
    for (int i = 0; values && i < log->step_count; i++) values[i] = field(&log->steps[i]);
    double m = values ? median(values, log->step_count) : NAN;
    free(values);
    return m;
}

static double rate_of(const LogStep *s) { return s->tok_per_s; }
static double mfu_of(const LogStep *s) { return s->mfu; }
static double ms_of(const LogStep *s) { return s->step_ms; }

static void write_validation_cards(FILE *out, const ReportLog *log)
{
    const LoggedValidation *best = NULL, *last = NULL;
    for (int i = 0; i < log->validation_count; i++) {
        const LoggedValidation *v = &log->validations[i];
        if (!isfinite(v->loss)) continue;
        last = v;
        if (!best || v->loss < best->loss) best = v;
    }
    if (!last) return;
    char value[48], best_value[48], small[160];
    plot_value(value, sizeof value, last->loss);
    plot_value(best_value, sizeof best_value, best->loss);
    snprintf(small, sizeof small, "best %s at step %" PRId64, best_value, best->step);
    write_card(out, "Validation loss", value, small);
    plot_value(value, sizeof value, exp(last->loss));
    write_card(out, "Perplexity", value, "validation, last");
    if (!isfinite(last->bits_per_byte)) return;
    double reference = report_number(log->header, "reference_bits_per_byte", NAN);
    plot_value(value, sizeof value, last->bits_per_byte);
    snprintf(small, sizeof small, "validation, last");
    if (reference > 0) {
        char bound[48];
        plot_value(bound, sizeof bound, reference);
        snprintf(small, sizeof small, "%.2f × entropy %s", last->bits_per_byte / reference, bound);
    }
    write_card(out, "Bits per byte", value, small);
}

static void write_cards(FILE *out, const ReportLog *log)
{
    fputs("<div class=\"cards\">\n", out);
    char value[64], small[160];
    if (log->step_count) {
        const LogStep *last = &log->steps[log->step_count - 1];
        const cJSON *train = cJSON_GetObjectItemCaseSensitive(
            cJSON_GetObjectItemCaseSensitive(log->header, "config"), "train");
        double seconds = 0, planned = report_number(train, "steps", 0);
        for (int i = 0; i < log->step_count; i++) {
            if (isfinite(log->steps[i].step_ms)) seconds += log->steps[i].step_ms / 1000;
        }
        plot_value(value, sizeof value, last->loss);
        write_card(out, "Training loss", value, "last step");
        write_validation_cards(out, log);
        snprintf(value, sizeof value, "%" PRId64, last->step);
        small[0] = 0;
        if (planned > 0) snprintf(small, sizeof small, "of %.0f", planned);
        write_card(out, "Steps", value, small);
        plot_value(value, sizeof value, (double)last->tokens);
        small[0] = 0;
        double epochs = (double)last->tokens / report_number(log->header, "train_tokens", INFINITY);
        if (epochs >= 0.005) snprintf(small, sizeof small, "%.2f epochs", epochs);
        write_card(out, "Tokens seen", value, small);
        plot_value(value, sizeof value, median_of(log, rate_of));
        double mfu = median_of(log, mfu_of);
        double ms = median_of(log, ms_of);
        small[0] = 0;
        if (isfinite(ms)) snprintf(small, sizeof small, "median; %.4g ms a step", ms);
        if (isfinite(mfu)) snprintf(small, sizeof small, "median; MFU %.1f%%", 100 * mfu);
        write_card(out, "Tokens a second", value, small);
        duration(value, sizeof value, seconds);
        duration(small, sizeof small, report_number(log->end, "elapsed_seconds", 0));
        char all[200];
        snprintf(all, sizeof all, "%s with validation and saving", small);
        write_card(out, "Time in steps", value, log->end ? all : "");
    }
    fputs("</div>\n", out);
}

static void write_head(FILE *out, const char *name, const ReportLog *log)
{
    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n<meta name=\"viewport\" "
          "content=\"width=device-width,initial-scale=1\">\n<title>", out);
    html_text(out, name);
    fprintf(out, "</title>\n<style>\n%s</style></head>\n<body><main>\n<header><h1>", report_css);
    html_text(out, name);
    fputs("</h1>", out);
    const char *status = report_text(log->end, "end", "running or stopped without an end");
    bool waits = !log->end || strcmp(status, "interrupted") == 0, done = strcmp(status, "done") == 0;
    fprintf(out, "<span class=\"status %s\">", waits ? "warn" : done ? "good" : "bad");
    html_text(out, status);
    fputs("</span></header>\n<p class=\"facts\">", out);
    char text[64];
    double parameters = report_number(log->header, "parameters", 0);
    if (parameters > 0) {
        plot_value(text, sizeof text, parameters);
        fprintf(out, "%s parameters · ", text);
    }
    const char *facts[] = {report_text(log->header, "precision", ""), report_text(log->header, "backend", ""),
                           report_text(log->header, "gpu", report_text(log->header, "cpu", "")),
                           report_text(log->header, "started", "")};
    for (int i = 0, shown = 0; i < 4; i++) {
        if (!facts[i][0]) continue;
        if (shown++) fputs(" · ", out);
        html_text(out, facts[i]);
    }
    fputs("</p>\n", out);
}

static void write_sample(FILE *out, const LoggedText *s)
{
    fprintf(out, "<div class=\"box sample\"><span>step %" PRId64 "</span><p><b>", s->step);
    size_t prompt = strlen(s->prompt);
    /* The text may repeat the prompt it continues. */
    bool repeats = strncmp(s->text, s->prompt, prompt) == 0;
    html_text(out, s->prompt);
    fputs("</b>", out);
    html_text(out, s->text + (repeats ? prompt : 0));
    fputs("</p></div>\n", out);
}

static void write_samples(FILE *out, const ReportLog *log)
{
    if (!log->sample_count) return;
    fputs("<h2>Samples</h2>\n", out);
    int first = log->sample_count > SAMPLES_SHOWN ? log->sample_count - SAMPLES_SHOWN : 0;
    for (int i = log->sample_count - 1; i >= first; i--) write_sample(out, &log->samples[i]);
    if (!first) return;
    fprintf(out, "<details><summary>%d earlier %s</summary>\n", first, first == 1 ? "sample" : "samples");
    for (int i = first - 1; i >= 0; i--) write_sample(out, &log->samples[i]);
    fputs("</details>\n", out);
}

static void write_notes(FILE *out, const ReportLog *log)
{
    int skipped = 0;
    int64_t clamped = 0;
    for (int i = 0; i < log->step_count; i++) {
        skipped += log->steps[i].skipped;
        clamped += log->steps[i].clamped_rows;
    }
    if (!log->note_count && !skipped && !clamped && !log->passed_over) return;
    fputs("<h2>Notes</h2><div class=\"box\">\n", out);
    if (skipped) fprintf(out, "<p>%d updates were skipped because gradients were not finite.</p>\n", skipped);
    if (clamped) fprintf(out, "<p>%" PRId64 " rows had a loss beyond the clamp of the head.</p>\n", clamped);
    if (log->passed_over) fprintf(out, "<p>%d lines of the log are no records.</p>\n", log->passed_over);
    int first = log->note_count > NOTES_SHOWN ? log->note_count - NOTES_SHOWN : 0;
    for (int i = first; i < log->note_count; i++) {
        fprintf(out, "<p><span>step %" PRId64 "</span> ", log->notes[i].step);
        html_text(out, log->notes[i].text);
        fputs("</p>\n", out);
    }
    fputs("</div>\n", out);
}

/* A string as it is, a list with commas, anything else as JSON. */
static void write_value(FILE *out, const cJSON *value)
{
    const cJSON *item;
    if (cJSON_IsArray(value)) {
        cJSON_ArrayForEach(item, value) {
            if (item != value->child) fputs(", ", out);
            write_value(out, item);
        }
        return;
    }
    char *text = cJSON_IsString(value) ? NULL : cJSON_PrintUnformatted(value);
    html_text(out, text ? text : cJSON_IsString(value) ? value->valuestring : "");
    free(text);
    if (!cJSON_IsNumber(value) || fabs(value->valuedouble) < 1e6) return;
    char rounded[48];
    plot_value(rounded, sizeof rounded, value->valuedouble);
    fprintf(out, " (%s)", rounded);
}

static void write_item(FILE *out, const cJSON *item)
{
    fputs("<tr><td>", out);
    html_text(out, item->string ? item->string : "");
    fputs("</td><td>", out);
    write_value(out, item);
    fputs("</td></tr>\n", out);
}

static void write_machine(FILE *out, const ReportLog *log)
{
    fputs("<h2>Machine and build</h2><div class=\"box\"><table>\n", out);
    const cJSON *item;
    cJSON_ArrayForEach(item, log->header) {
        bool elsewhere = strcmp(item->string, "config") == 0 || strcmp(item->string, "header") == 0;
        if (!elsewhere && !cJSON_IsNull(item)) write_item(out, item);
    }
    cJSON_ArrayForEach(item, log->end) write_item(out, item);
    fputs("</table></div>\n", out);
}

static void write_config(FILE *out, const cJSON *config)
{
    if (!cJSON_IsObject(config)) return;
    fputs("<h2>Configuration</h2><div class=\"box configs\">\n<div><table>\n", out);
    const cJSON *section, *item;
    cJSON_ArrayForEach(section, config) {
        if (!cJSON_IsObject(section)) write_item(out, section);
    }
    fputs("</table></div>\n", out);
    cJSON_ArrayForEach(section, config) {
        if (!cJSON_IsObject(section)) continue;
        fputs("<div><h3>", out);
        html_text(out, section->string);
        fputs("</h3><table>\n", out);
        cJSON_ArrayForEach(item, section) write_item(out, item);
        fputs("</table></div>\n", out);
    }
    fputs("</div>\n", out);
}

static void write_page(FILE *out, const char *name, const ReportLog *log, const Columns *columns)
{
    write_head(out, name, log);
    write_cards(out, log);
    write_plots(out, log, columns);
    write_samples(out, log);
    write_notes(out, log);
    write_config(out, cJSON_GetObjectItemCaseSensitive(log->header, "config"));
    if (log->header) write_machine(out, log);
    fprintf(out, "<footer>Made from log.jsonl by <code>./train report</code>.</footer>\n</main>\n<script>\n%s"
            "</script></body></html>\n", report_js);
}

/* The last part of the run directory's path. */
static void run_name(char *name, size_t size, const char *run_dir)
{
    size_t end = strlen(run_dir);
    while (end > 1 && run_dir[end - 1] == '/') end--;
    size_t begin = end;
    while (begin && run_dir[begin - 1] != '/') begin--;
    snprintf(name, size, "%.*s", (int)(end - begin), run_dir + begin);
}

static bool write_report(const char *path, const char *run_dir, const ReportLog *log, Errors *errors)
{
    Columns columns = {0};
    char name[256], *page = NULL;
    size_t bytes = 0;
    FILE *out = make_columns(log, &columns) ? open_memstream(&page, &bytes) : NULL;
    bool ok = out != NULL;
    if (ok) {
        run_name(name, sizeof name, run_dir);
        write_page(out, name, log, &columns);
        ok = fclose(out) == 0;
    }
    if (ok) ok = files_replace(path, page, bytes, errors);
    else errors_add(errors, "%s: not enough memory to write it", path);
    free(page);
    free(columns.step[STEP]);
    free(columns.val_step);
    return ok;
}

bool report_write(const char *run_dir, Errors *errors)
{
    char *log_path = files_join(run_dir, "log.jsonl"), *path = files_join(run_dir, "report.html");
    ReportLog log = {0};
    bool ok = log_path && path && report_log_read(log_path, &log, errors);
    if (ok && !log.header && !log.step_count) {
        errors_add(errors, "%s: there is no record of a run in it", log_path);
        ok = false;
    }
    ok = ok && write_report(path, run_dir, &log, errors);
    report_log_free(&log);
    free(path);
    free(log_path);
    return ok;
}
