/* log.jsonl: one JSON record a line, raw units (seconds are named, loss in nats, memory in bytes). */
#pragma once
#include "model/errors.h"
#include <stdbool.h>
#include <stdint.h>

typedef struct Log Log;

/* First record. Strings may be NULL; config_json is embedded as an object. */
typedef struct LogHeader {
    const char *config_json;        /* effective configuration */
    const char *backend;            /* "cpu", "cuda" */
    const char *precision;          /* "fp32", "bf16", "fp8" */
    const char *gpu;                /* name, driver and so on; NULL without one */
    const char *libraries;          /* versions, "OpenBLAS 0.3.21, cJSON 1.7.15" */
    const char *const *choices;     /* "gate_up=cpu", one an op, as far as it is known before the first step */
    int      choice_count;
    int64_t  parameters;
    double   flops_per_token;
    int64_t  train_tokens, val_tokens;      /* in the data; 0 = unknown */
    int      threads;
    double   reference_bits_per_byte;       /* entropy of the data's source, for the report; 0 = unknown */
    const char *reference_label;            /* what that line is called, e.g. "entropy of the generator" */
    int64_t  resumed_step;                  /* -1 = a fresh run */
} LogHeader;

typedef struct LogStep {
    int64_t step, tokens;           /* steps done and tokens trained on after this one, without padding */
    double  loss, grad_norm, lr;
    double  step_ms, tok_per_s;
    double  mfu;                    /* 0..1; NAN = unknown, as on a CPU: written as null */
    int64_t mem_bytes;              /* device memory in use, resident memory on the CPU */
    bool    skipped;                /* the update was not applied */
    int64_t clamped_rows;           /* written when not 0 */
} LogStep;

/* Opens dir/log.jsonl. resumed_step < 0: a new file. Otherwise records of later steps, the end record and a
 * torn last line are cut off first and writing continues behind them. NULL with errors added. */
Log *log_open(const char *dir, int64_t resumed_step, Errors *errors);

/* Each writes one line and hands it to the kernel at once. Failures are remembered for log_close. */
void log_header(Log *log, const LogHeader *header);
void log_step(Log *log, const LogStep *record);
/* What carries out each op, once the first step has measured it. */
void log_choices(Log *log, int64_t step, const char *const *choices, int count);
/* val_loss in nats a token; bits_per_byte NAN = unknown, written as null. */
void log_validation(Log *log, int64_t step, double val_loss, double bits_per_byte);
void log_sample(Log *log, int64_t step, const char *prompt, const char *text);
/* A sentence on something unusual: a skipped step, a failed save. */
void log_note(Log *log, int64_t step, const char *text);
/* status: "done", "interrupted", "non-finite loss", ... */
void log_end(Log *log, int64_t step, const char *status, double elapsed_seconds);

/* The first write failure so far as a sentence with path and cause, or NULL. */
const char *log_failure(const Log *log);
/* Frees log. False with an error added when any record could not be written. */
bool log_close(Log *log, Errors *errors);
