/* The run directory: config.json, log.jsonl, checkpoints/, report.html; hf/ where the model was imported. */
#pragma once
#include "model/errors.h"
#include <stdbool.h>

typedef enum RunStart {
    RUN_NEW,            /* the directory must not hold a run yet */
    RUN_OVERWRITE,      /* an earlier run in it is deleted */
    RUN_RESUME          /* it must hold a run */
} RunStart;

/* Checks whether run_open would succeed, changing nothing: for reporting together with config errors. */
bool run_check(const char *dir, RunStart start, Errors *errors);

/* Whether overwriting the run in `dir` would delete `path`, or what is in it. */
bool run_owns(const char *dir, const char *path);

/* Makes the directory where it is missing and takes it for this process, then checks as run_check does.
 * Returns a descriptor to close when the run is over (the end of the process frees the directory too), -1 with
 * an error added. */
int run_claim(const char *dir, RunStart start, Errors *errors);

/* Prepares the directory and writes config.json (config_json: the effective configuration; on resume it
 * replaces the old one). A new run wants a directory that doesn't exist or is empty. Overwriting wants one
 * that holds a run (config.json, and log.jsonl or checkpoints), and deletes only what runs make: other files
 * in it stay. False with errors added. */
bool run_open(const char *dir, RunStart start, const char *config_json, Errors *errors);
