/* ./train CONFIG --dry-run: parameters, memory, arithmetic and kernels of a run, without running it. */
#pragma once
#include "commands/setup.h"

/* setup: with its config alone. gpu_memory: "24GiB" to say whether the plan for a GPU fits, or NULL. Returns
 * the exit code. */
int dry_run(Setup *setup, const char *gpu_memory, Errors *errors);

/* The table of choices: what carries out each op, one a line. */
void print_choices(const Backend *backend, FILE *out);
