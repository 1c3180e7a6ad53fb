/* ./train CONFIG --dry-run: parameters, memory, arithmetic and kernels of a run, without running it. */
#pragma once
#include "commands/setup.h"

/* gpu_memory: "24GiB" to say whether the plan fits, or NULL. Returns the exit code. */
int dry_run(Setup *setup, const char *gpu_memory);

/* "gate_up=cpu" of every op, one a line of the table of choices. */
void print_choices(const Backend *backend, FILE *out);
