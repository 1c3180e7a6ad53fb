#include "model/progress.h"
#include "model/machine.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define SHOW_INTERVAL 0.1       /* seconds between redrawn lines on a terminal */

/* snprintf behind what is there already. */
__attribute__((format(printf, 3, 4)))
static void append(char *line, size_t size, const char *format, ...)
{
    size_t used = strlen(line);
    va_list args;
    va_start(args, format);
    vsnprintf(line + used, size - used, format, args);
    va_end(args);
}

/* 795, 9.5k, 795k, 1.23M */
static void append_rate(char *line, size_t size, double rate)
{
    const char *unit = rate >= 999500 ? "M" : rate >= 999.5 ? "k" : "";
    double value = rate >= 999500 ? rate / 1e6 : rate >= 999.5 ? rate / 1e3 : rate;
    int digits = !*unit || value >= 99.95 ? 0 : value >= 9.995 ? 1 : *unit == 'M' ? 2 : 1;
    append(line, size, " | %.*f%s tok/s", digits, value, unit);
}

/* Three digits: 0.05, 18.3, 139 */
static void append_gib(char *line, size_t size, const char *before, int64_t bytes)
{
    double gib = (double)bytes / (1 << 30);
    append(line, size, "%s%.*f", before, gib >= 99.95 ? 0 : gib >= 9.995 ? 1 : 2, gib);
}

void progress_format(char *line, size_t size, const LogStep *s, int64_t steps, int64_t mem_total,
                     double eta_seconds)
{
    snprintf(line, size, "step %" PRId64 "/%" PRId64 " | loss %.4f | gnorm %.2f | lr %.2e", s->step, steps,
             s->loss, s->grad_norm, s->lr);
    if (s->step_ms >= 9950) append(line, size, " | %.1f s", s->step_ms / 1000);
    else append(line, size, " | %.*f ms", s->step_ms >= 99.95 ? 0 : 1, s->step_ms);
    append_rate(line, size, s->tok_per_s);
    if (!isnan(s->mfu)) append(line, size, " | MFU %.1f%%", 100 * s->mfu);
    if (s->mem_bytes > 0) {
        append_gib(line, size, " | mem ", s->mem_bytes);
        if (mem_total > 0) append_gib(line, size, "/", mem_total);
        append(line, size, " GiB");
    }
    if (eta_seconds >= 0) {
        int64_t t = (int64_t)(eta_seconds + 0.5), days = t / 86400;
        append(line, size, " | eta ");
        if (days) append(line, size, "%" PRId64 "d ", days);
        append(line, size, "%02d:%02d:%02d", (int)(t % 86400 / 3600), (int)(t % 3600 / 60), (int)(t % 60));
    }
    if (s->skipped) append(line, size, " | skipped");
}

Progress progress_begin(FILE *out, int64_t steps, int64_t log_every, int64_t mem_total)
{
    return (Progress){.out = out, .terminal = isatty(fileno(out)), .steps = steps,
                      .log_every = log_every > 0 ? log_every : 1, .mem_total = mem_total, .first_step = -1};
}

static int terminal_columns(FILE *out)
{
    struct winsize w;
    return ioctl(fileno(out), TIOCGWINSZ, &w) == 0 && w.ws_col > 1 ? w.ws_col : 80;
}

void progress_step(Progress *p, const LogStep *s)
{
    double time = machine_seconds();
    bool first = p->first_step < 0, last = s->step == p->steps;
    bool due = p->terminal ? time - p->shown_time >= SHOW_INTERVAL : s->step % p->log_every == 0;
    if (first) {
        p->first_step = s->step;
        p->first_time = time;
    }
    if (!first && !last && !due) return;
    double done = (double)(s->step - p->first_step), left = (double)(p->steps - s->step);
    double eta = first ? -1 : (time - p->first_time) / done * left;
    char line[512];
    progress_format(line, sizeof line, s, p->steps, p->mem_total, eta);
    p->shown_time = time;
    if (p->terminal) {
        /* A line that wraps could not be overwritten, so it is cut; ESC [K clears the rest of the old one. */
        fprintf(p->out, "\r%.*s\033[K", terminal_columns(p->out) - 1, line);
        p->unfinished = true;
    } else {
        fprintf(p->out, "%s\n", line);
    }
    fflush(p->out);
}

void progress_end(Progress *p)
{
    if (p->unfinished) fputc('\n', p->out);
    p->unfinished = false;
    fflush(p->out);
}

void progress_line(Progress *p, const char *format, ...)
{
    progress_end(p);
    va_list args;
    va_start(args, format);
    vfprintf(p->out, format, args);
    va_end(args);
    fputc('\n', p->out);
    fflush(p->out);
}
