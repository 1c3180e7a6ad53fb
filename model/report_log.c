#include "model/report_log.h"
#include "model/files.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

double report_number(const cJSON *record, const char *key, double otherwise)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(record, key);
    return cJSON_IsNumber(item) ? item->valuedouble : otherwise;
}

const char *report_text(const cJSON *record, const char *key, const char *otherwise)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(record, key);
    return cJSON_IsString(item) ? item->valuestring : otherwise;
}

/* Room for one more element, doubling; NULL when memory ran out. */
static void *grow(void *list, int count, size_t size)
{
    bool full = (count & (count - 1)) == 0;     /* at every power of two, and at 0 */
    return full ? realloc(list, (size_t)(count ? 2 * count : 1) * size) : list;
}

static void free_texts(LoggedText *list, int from, int to)
{
    for (int i = from; i < to; i++) {
        free(list[i].prompt);
        free(list[i].text);
    }
}

static bool add_text(LoggedText **list, int *count, int64_t step, const char *prompt, const char *text)
{
    LoggedText *more = grow(*list, *count, sizeof **list);
    if (!more) return false;
    *list = more;
    more[*count] = (LoggedText){step, strdup(prompt), strdup(text)};
    if (more[*count].prompt && more[*count].text) {
        ++*count;
        return true;
    }
    free_texts(more, *count, *count + 1);
    return false;
}

static bool add_step(ReportLog *log, const cJSON *r)
{
    LogStep s = {
        .step = (int64_t)report_number(r, "step", 0), .tokens = (int64_t)report_number(r, "tokens", 0),
        .loss = report_number(r, "loss", NAN), .grad_norm = report_number(r, "grad_norm", NAN),
        .lr = report_number(r, "lr", NAN), .step_ms = report_number(r, "step_ms", NAN),
        .tok_per_s = report_number(r, "tok_per_s", NAN), .mfu = report_number(r, "mfu", NAN),
        .mem_bytes = (int64_t)report_number(r, "mem_bytes", 0),
        .clamped_rows = (int64_t)report_number(r, "clamped_rows", 0),
        .skipped = cJSON_IsTrue(cJSON_GetObjectItemCaseSensitive(r, "skipped")),
    };
    while (log->step_count && log->steps[log->step_count - 1].step >= s.step) log->step_count--;
    LogStep *more = grow(log->steps, log->step_count, sizeof *more);
    if (!more) return false;
    log->steps = more;
    more[log->step_count++] = s;
    return true;
}

static bool add_validation(ReportLog *log, const cJSON *r)
{
    LoggedValidation v = {(int64_t)report_number(r, "step", 0), report_number(r, "val_loss", NAN),
                          report_number(r, "val_bits_per_byte", NAN)};
    while (log->validation_count && log->validations[log->validation_count - 1].step >= v.step) {
        log->validation_count--;
    }
    LoggedValidation *more = grow(log->validations, log->validation_count, sizeof *more);
    if (!more) return false;
    log->validations = more;
    more[log->validation_count++] = v;
    return true;
}

/* Takes over what it needs of a record; *record becomes NULL where it was kept. */
static bool add_record(ReportLog *log, cJSON **record)
{
    cJSON *r = *record;
    int64_t step = (int64_t)report_number(r, "step", 0);
    if (cJSON_HasObjectItem(r, "header")) {
        cJSON_Delete(log->header);
        cJSON_Delete(log->end);     /* of an earlier part of the run */
        log->header = r;
        log->end = *record = NULL;
        return true;
    }
    if (cJSON_HasObjectItem(r, "end")) {
        cJSON_Delete(log->end);
        log->end = r;
        *record = NULL;
        return true;
    }
    if (cJSON_HasObjectItem(r, "val_loss")) return add_validation(log, r);
    if (cJSON_HasObjectItem(r, "loss")) return add_step(log, r);
    if (cJSON_HasObjectItem(r, "sample")) {
        return add_text(&log->samples, &log->sample_count, step, report_text(r, "prompt", ""),
                        report_text(r, "sample", ""));
    }
    if (cJSON_HasObjectItem(r, "note")) {
        return add_text(&log->notes, &log->note_count, step, "", report_text(r, "note", ""));
    }
    if (!cJSON_HasObjectItem(r, "choices")) log->passed_over++;     /* which no chart shows */
    return true;
}

bool report_log_read(const char *path, ReportLog *log, Errors *errors)
{
    size_t bytes;
    char *text = files_read(path, &bytes, errors);
    *log = (ReportLog){0};
    if (!text) return false;
    bool ok = true;
    for (char *line = text, *end; ok && line < text + bytes; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + bytes - line));
        if (!end) end = text + bytes;
        if (end == line) continue;
        cJSON *record = cJSON_ParseWithLength(line, (size_t)(end - line));
        if (cJSON_IsObject(record)) ok = add_record(log, &record);
        else log->passed_over++;
        cJSON_Delete(record);
    }
    free(text);
    if (ok) return true;
    errors_add(errors, "%s: not enough memory to read it", path);
    report_log_free(log);
    return false;
}

void report_log_free(ReportLog *log)
{
    free_texts(log->samples, 0, log->sample_count);
    free_texts(log->notes, 0, log->note_count);
    free(log->samples);
    free(log->notes);
    free(log->steps);
    free(log->validations);
    cJSON_Delete(log->header);
    cJSON_Delete(log->end);
    *log = (ReportLog){0};
}
