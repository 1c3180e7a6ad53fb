/* A plan lists every buffer of a run before anything is allocated. The model walks its buffers once with no
 * memory to measure and once with the real block to place, so what --dry-run prints is what is allocated. */
#pragma once
#include <stddef.h>
#include <stdio.h>

typedef enum BufferClass {
    BUFFER_WORKING, BUFFER_MASTER, BUFFER_GRAD, BUFFER_MOMENTS, BUFFER_ACTIVATIONS, BUFFER_BACKWARD,
    BUFFER_HEAD, BUFFER_BATCH, BUFFER_CACHE, BUFFER_WORKSPACE, BUFFER_CLASSES
} BufferClass;

#define PLAN_ALIGN 256

typedef struct Plan {
    char  *base;                    /* NULL while measuring */
    size_t total;                   /* bytes so far, each buffer rounded up to PLAN_ALIGN; at most SIZE_MAX */
    size_t bytes[BUFFER_CLASSES];
} Plan;

/* The next buffer of the plan, `count` of `each` bytes: its address, or NULL while measuring. Sizes that do not fit into
 * size_t make it SIZE_MAX bytes, which nothing can allocate. */
void *plan_take(Plan *plan, BufferClass class, size_t count, size_t each);

/* Two groups of buffers that are never alive together share memory: fork a plan for each, take from both,
 * then join them. The larger group counts. */
Plan plan_fork(const Plan *plan);
void plan_join(Plan *plan, const Plan *a, const Plan *b);

/* One line a class that is not empty, and the sum. */
void plan_print(const Plan *plan, FILE *out);
