/* log.jsonl as the report needs it. Private to model/report*.c. */
#pragma once
#include "model/log.h"
#include <cjson/cJSON.h>

typedef struct LoggedValidation { int64_t step; double loss, bits_per_byte; } LoggedValidation;
typedef struct LoggedText { int64_t step; char *prompt, *text; } LoggedText;    /* a sample, or a note */

typedef struct ReportLog {
    cJSON            *header;       /* the newest one, NULL when there is none */
    cJSON            *end;          /* NULL while the run goes on or after a crash */
    LogStep          *steps;        /* in order of step, each step once */
    int               step_count;
    LoggedValidation *validations;
    int               validation_count;
    LoggedText       *samples, *notes;
    int               sample_count, note_count;
    int               passed_over;  /* lines that are no records */
} ReportLog;

/* Reads a log. Where a step stands twice, as after a crash, the later record counts. False with an error
 * added when the file cannot be read. */
bool report_log_read(const char *path, ReportLog *log, Errors *errors);
void report_log_free(ReportLog *log);

/* Text or number of a record, with a default where it is absent or of another type. */
const char *report_text(const cJSON *record, const char *key, const char *otherwise);
double report_number(const cJSON *record, const char *key, double otherwise);
