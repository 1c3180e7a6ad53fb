/* What this program runs on and was built with, for logs and checkpoints. */
#pragma once
#include <stddef.h>
#include <stdint.h>

/* "AMD EPYC 9654 96-Core Processor", or "unknown". */
void machine_cpu_name(char *text, size_t size);
int machine_cores(void);                /* usable by this process */
int64_t machine_memory(void);           /* bytes of physical memory, 0 = unknown */
int64_t machine_resident(void);         /* bytes resident now, 0 = unknown */
int64_t machine_peak_resident(void);    /* highest so far, bytes */

double machine_seconds(void);           /* of a clock that only goes forwards */

const char *machine_compiler(void);     /* "gcc 12.2.0" */
const char *machine_flags(void);        /* BUILD_FLAGS as the Makefile gave it, or "unknown" */
const char *machine_git(void);          /* BUILD_GIT, or "unknown" */
/* "OpenBLAS 0.3.21 ..., cJSON 1.7.15" */
void machine_libraries(char *text, size_t size);
