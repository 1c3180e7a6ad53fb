#include "model/plan.h"
#include <stdint.h>

static const char *const class_names[BUFFER_CLASSES] = {
    [BUFFER_WORKING] = "working weights",
    [BUFFER_MASTER] = "master weights",
    [BUFFER_GRAD] = "gradient accumulators",
    [BUFFER_MOMENTS] = "optimizer moments",
    [BUFFER_ACTIVATIONS] = "saved activations",
    [BUFFER_BACKWARD] = "backward buffers",
    [BUFFER_HEAD] = "head chunk",
    [BUFFER_BATCH] = "batch and tables",
    [BUFFER_CACHE] = "key/value cache",
    [BUFFER_WORKSPACE] = "workspace",
};

static size_t plus(size_t a, size_t b) { return a + b < a ? SIZE_MAX : a + b; }

void *plan_take(Plan *plan, BufferClass class, size_t count, size_t each)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, each, &bytes)) bytes = SIZE_MAX;
    const size_t padded = plus(bytes, PLAN_ALIGN - 1);
    const size_t rounded = padded == SIZE_MAX ? SIZE_MAX : padded / PLAN_ALIGN * PLAN_ALIGN;
    void *place = plan->base ? plan->base + plan->total : NULL;
    plan->total = plus(plan->total, rounded);
    plan->bytes[class] = plus(plan->bytes[class], rounded);
    return place;
}

Plan plan_fork(const Plan *plan)
{
    return (Plan){.base = plan->base, .total = plan->total};
}

void plan_join(Plan *plan, const Plan *a, const Plan *b)
{
    const Plan *larger = a->total > b->total ? a : b;
    plan->total = larger->total;
    for (int c = 0; c < BUFFER_CLASSES; c++) plan->bytes[c] = plus(plan->bytes[c], larger->bytes[c]);
}

void plan_print(const Plan *plan, FILE *out)
{
    for (int c = 0; c < BUFFER_CLASSES; c++)
        if (plan->bytes[c]) fprintf(out, "  %-24s %18zu bytes\n", class_names[c], plan->bytes[c]);
    fprintf(out, "  %-24s %18zu bytes  (%.2f GiB)\n", "total", plan->total, (double)plan->total / (1 << 30));
}
