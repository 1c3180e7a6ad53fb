/* report.html: one self-contained page with plots, from log.jsonl. */
#pragma once
#include "model/errors.h"
#include <stdbool.h>

/* Reads RUN/log.jsonl and replaces RUN/report.html. Torn last lines and records of an unknown kind are passed
 * over. False with errors added: no log, no header and no step in it, not writable. */
bool report_write(const char *run_dir, Errors *errors);
