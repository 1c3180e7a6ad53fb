#include "model/log.h"
#include "model/files.h"
#include "model/machine.h"
#include <cjson/cJSON.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct Log {
    char  *path;
    int    fd;
    off_t  end;         /* behind the last whole record */
    char  *failure;     /* the first one */
    FILE  *line;        /* the record being put together, in memory */
    char  *text;
    size_t bytes;
};

/* ---- records ------------------------------------------------------------------------------------- */

static void fail(Log *log, const char *cause)
{
    if (log->failure) return;
    size_t size = strlen(log->path) + strlen(cause) + 32;
    log->failure = malloc(size);
    if (log->failure) snprintf(log->failure, size, "%s: cannot write: %s", log->path, cause);
}

static bool begin_record(Log *log)
{
    log->line = open_memstream(&log->text, &log->bytes);
    if (!log->line) fail(log, "not enough memory");
    return log->line != NULL;
}

/* Writes the line as a whole or not at all, so that a disk that was full for a while tears no record. */
static void end_record(Log *log)
{
    fputs("}\n", log->line);
    if (fclose(log->line) != 0) {
        fail(log, "not enough memory");
    } else {
        size_t done = 0;
        while (done < log->bytes) {
            ssize_t n = write(log->fd, log->text + done, log->bytes - done);
            if (n < 0 && errno == EINTR) continue;
            if (n <= 0) break;
            done += (size_t)n;
        }
        if (done == log->bytes) {
            log->end += (off_t)done;
        } else {
            fail(log, strerror(errno));
            if (ftruncate(log->fd, log->end) != 0 || lseek(log->fd, log->end, SEEK_SET) < 0) {
                fail(log, strerror(errno));
            }
        }
    }
    free(log->text);
    log->line = NULL;
    log->text = NULL;
}

/* Bytes of the UTF-8 sequence at s, 0 where there is no valid one. */
static int utf8_length(const unsigned char *s)
{
    int n = *s < 0x80 ? 1 : *s < 0xc2 ? 0 : *s < 0xe0 ? 2 : *s < 0xf0 ? 3 : *s < 0xf5 ? 4 : 0;
    for (int i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) return 0;
    }
    bool overlong = (*s == 0xe0 && s[1] < 0xa0) || (*s == 0xf0 && s[1] < 0x90);
    bool surrogate = (*s == 0xed && s[1] >= 0xa0), beyond = (*s == 0xf4 && s[1] >= 0x90);
    return n > 2 && (overlong || surrogate || beyond) ? 0 : n;
}

/* Models may produce any bytes: what is no UTF-8 becomes U+FFFD. */
static void put_string(FILE *out, const char *text)
{
    if (!text) {
        fputs("null", out);
        return;
    }
    fputc('"', out);
    for (const unsigned char *s = (const unsigned char *)text; *s; ) {
        int n = utf8_length(s);
        if (n == 0) fputs("\\ufffd", out);
        else if (*s == '"' || *s == '\\') fprintf(out, "\\%c", *s);
        else if (*s == '\n') fputs("\\n", out);
        else if (*s < 0x20 || *s == 0x7f) fprintf(out, "\\u%04x", *s);
        else fwrite(s, 1, (size_t)n, out);
        s += n ? n : 1;
    }
    fputc('"', out);
}

/* JSON has no NaN and no infinity. */
static void put_number(FILE *out, const char *key, double value, const char *format)
{
    fprintf(out, ",\"%s\":", key);
    if (isfinite(value)) fprintf(out, format, value);
    else fputs("null", out);
}

static void put_text(FILE *out, const char *key, const char *text)
{
    fprintf(out, ",\"%s\":", key);
    put_string(out, text);
}

static void put_config(FILE *out, const char *json)
{
    char *copy = json ? strdup(json) : NULL;
    if (copy) cJSON_Minify(copy);
    fprintf(out, ",\"config\":%s", copy ? copy : "null");
    free(copy);
}

static void put_choices(FILE *out, const char *const *choices, int count)
{
    fputs(",\"choices\":[", out);
    for (int i = 0; i < count; i++) {
        if (i) fputc(',', out);
        put_string(out, choices[i]);
    }
    fputc(']', out);
}

void log_header(Log *log, const LogHeader *h)
{
    char cpu[128], started[64];
    time_t now = time(NULL);
    struct tm utc;
    if (!begin_record(log)) return;
    machine_cpu_name(cpu, sizeof cpu);
    strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    fputs("{\"header\":1", log->line);
    put_text(log->line, "started", started);
    fprintf(log->line, ",\"resumed_step\":");
    if (h->resumed_step >= 0) fprintf(log->line, "%" PRId64, h->resumed_step);
    else fputs("null", log->line);
    put_text(log->line, "backend", h->backend);
    put_text(log->line, "precision", h->precision);
    put_text(log->line, "cpu", cpu);
    fprintf(log->line, ",\"cores\":%d,\"threads\":%d,\"memory_bytes\":%" PRId64, machine_cores(), h->threads,
            machine_memory());
    put_text(log->line, "gpu", h->gpu);
    put_text(log->line, "libraries", h->libraries);
    put_text(log->line, "compiler", machine_compiler());
    put_text(log->line, "compiler_flags", machine_flags());
    put_text(log->line, "git", machine_git());
    fprintf(log->line, ",\"parameters\":%" PRId64, h->parameters);
    put_number(log->line, "flops_per_token", h->flops_per_token, "%.15g");
    fprintf(log->line, ",\"train_tokens\":%" PRId64 ",\"val_tokens\":%" PRId64, h->train_tokens,
            h->val_tokens);
    put_number(log->line, "reference_bits_per_byte",
               h->reference_bits_per_byte > 0 ? h->reference_bits_per_byte : NAN, "%.9g");
    put_text(log->line, "reference_label", h->reference_label);
    put_choices(log->line, h->choices, h->choice_count);
    put_config(log->line, h->config_json);
    end_record(log);
}

void log_step(Log *log, const LogStep *s)
{
    if (!begin_record(log)) return;
    fprintf(log->line, "{\"step\":%" PRId64 ",\"tokens\":%" PRId64, s->step, s->tokens);
    put_number(log->line, "loss", s->loss, "%.9g");
    put_number(log->line, "grad_norm", s->grad_norm, "%.9g");
    put_number(log->line, "lr", s->lr, "%.9g");
    put_number(log->line, "step_ms", s->step_ms, "%.6g");
    put_number(log->line, "tok_per_s", s->tok_per_s, "%.6g");
    put_number(log->line, "mfu", s->mfu, "%.6g");
    fprintf(log->line, ",\"mem_bytes\":%" PRId64 ",\"skipped\":%s", s->mem_bytes,
            s->skipped ? "true" : "false");
    if (s->clamped_rows) fprintf(log->line, ",\"clamped_rows\":%" PRId64, s->clamped_rows);
    end_record(log);
}

void log_choices(Log *log, int64_t step, const char *const *choices, int count)
{
    if (!begin_record(log)) return;
    fprintf(log->line, "{\"step\":%" PRId64, step);
    put_choices(log->line, choices, count);
    end_record(log);
}

void log_validation(Log *log, int64_t step, double val_loss, double bits_per_byte)
{
    if (!begin_record(log)) return;
    fprintf(log->line, "{\"step\":%" PRId64, step);
    put_number(log->line, "val_loss", val_loss, "%.9g");
    put_number(log->line, "val_ppl", exp(val_loss), "%.9g");
    put_number(log->line, "val_bits_per_byte", bits_per_byte, "%.9g");
    end_record(log);
}

void log_sample(Log *log, int64_t step, const char *prompt, const char *text)
{
    if (!begin_record(log)) return;
    fprintf(log->line, "{\"step\":%" PRId64, step);
    put_text(log->line, "prompt", prompt);
    put_text(log->line, "sample", text);
    end_record(log);
}

void log_note(Log *log, int64_t step, const char *text)
{
    if (!begin_record(log)) return;
    fprintf(log->line, "{\"step\":%" PRId64, step);
    put_text(log->line, "note", text);
    end_record(log);
}

void log_end(Log *log, int64_t step, const char *status, double elapsed_seconds)
{
    if (!begin_record(log)) return;
    fprintf(log->line, "{\"end\":");
    put_string(log->line, status);
    fprintf(log->line, ",\"step\":%" PRId64, step);
    put_number(log->line, "elapsed_seconds", elapsed_seconds, "%.9g");
    put_number(log->line, "peak_resident_bytes", (double)machine_peak_resident(), "%.15g");
    end_record(log);
}

/* ---- opening and closing ------------------------------------------------------------------------- */

/* Bytes to keep of an earlier part's log: up to its first record of a later step, end record, or the torn
 * line that a crash left. */
static size_t bytes_to_keep(const char *text, int64_t resumed_step)
{
    size_t keep = 0;
    for (const char *end; (end = strchr(text + keep, '\n')); keep = (size_t)(end - text) + 1) {
        cJSON *record = cJSON_ParseWithLength(text + keep, (size_t)(end - text) - keep);
        const cJSON *step = cJSON_GetObjectItemCaseSensitive(record, "step");
        bool later = cJSON_IsNumber(step) && step->valuedouble > (double)resumed_step;
        bool stop = later || cJSON_HasObjectItem(record, "end");
        cJSON_Delete(record);
        if (stop) break;
    }
    return keep;
}

Log *log_open(const char *dir, int64_t resumed_step, Errors *errors)
{
    Log *log = calloc(1, sizeof *log);
    char *path = log ? files_join(dir, "log.jsonl") : NULL;
    if (!path) {
        errors_add(errors, "%s/log.jsonl: not enough memory", dir);
        free(log);
        return NULL;
    }
    log->path = path;
    log->fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    char *text = log->fd >= 0 && resumed_step >= 0 ? files_read(path, NULL, errors) : NULL;
    bool ok = log->fd >= 0 && (text || resumed_step < 0);
    if (log->fd < 0) errors_add(errors, "%s: cannot open: %s", path, strerror(errno));
    if (text) log->end = (off_t)bytes_to_keep(text, resumed_step);
    if (ok && (ftruncate(log->fd, log->end) != 0 || lseek(log->fd, log->end, SEEK_SET) < 0)) {
        errors_add(errors, "%s: cannot cut off the records of later steps: %s", path, strerror(errno));
        ok = false;
    }
    free(text);
    if (ok) return log;
    if (log->fd >= 0) close(log->fd);
    free(log->path);
    free(log);
    return NULL;
}

const char *log_failure(const Log *log)
{
    return log->failure;
}

bool log_close(Log *log, Errors *errors)
{
    if (fsync(log->fd) != 0 && errno != EINVAL) fail(log, strerror(errno));
    if (close(log->fd) != 0) fail(log, strerror(errno));
    bool ok = !log->failure;
    if (!ok) errors_add(errors, "%s", log->failure);
    free(log->failure);
    free(log->path);
    free(log);
    return ok;
}
