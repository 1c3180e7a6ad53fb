/* A plan lists every buffer of a run before anything is allocated. The model walks its buffers once with an
 * empty base to measure and once with the real one to place, so what --dry-run prints is what is allocated. */
#pragma once
#include <stddef.h>
#include <stdio.h>

typedef enum BufferClass {
    BUFFER_WORKING, BUFFER_MASTER, BUFFER_GRAD, BUFFER_MOMENTS, BUFFER_ACTIVATIONS, BUFFER_BACKWARD,
    BUFFER_HEAD, BUFFER_BATCH, BUFFER_CACHE, BUFFER_WORKSPACE, BUFFER_CLASSES
} BufferClass;

typedef struct Plan {
    char  *base;                    /* NULL while measuring */
    size_t total;                   /* bytes so far, each buffer rounded up to 256 */
    size_t bytes[BUFFER_CLASSES];
} Plan;

/* The next buffer of the plan: its address, or NULL while measuring. */
void *plan_take(Plan *plan, BufferClass class, size_t bytes);

const char *buffer_class_name(BufferClass class);
void plan_print(const Plan *plan, FILE *out);
