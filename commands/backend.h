/* Picks what carries out the ops: the CPU, or a GPU where this build and this machine have one. */
#pragma once
#include "kernels/device.h"
#include "kernels/ops.h"
#include "model/config.h"
#include "model/errors.h"

typedef struct Backend {
    const Ops    *ops;
    const Device *device;
    OpContext     ctx;              /* to copy into the model: backend state and stream are set */
    Dtype         act;              /* of activations and working weights */
    char          hardware[128];    /* "Intel(R) Xeon(R)", "NVIDIA H200" */
    char          libraries[256];
    size_t        memory_total;     /* of the device, bytes; 0 = unknown */
    char          why[160];         /* how run.device=auto came to its choice */
} Backend;

/* Opens what run.device asks for. plan_only: nothing will run, so a GPU is not needed to plan for one.
 * cache_dir: measured kernel choices are kept there; NULL = they are measured at each start. False with an
 * error added. */
bool backend_open(Backend *backend, const Config *config, bool plan_only, const char *cache_dir,
                  Errors *errors);
void backend_close(Backend *backend);

/* What the libraries' tuning chose so far, one a line, for the checkpoint; NULL where nothing is tuned.
 * Caller frees. */
char *backend_choices(const Backend *backend);
/* Uses such lines instead of measuring anew; before the first op. False with an error added when they do not
 * fit here: the run continues all the same, but not bitwise. */
bool backend_restore_choices(Backend *backend, const char *choices, Errors *errors);

/* Begins or ends the capture range of a profiler; nothing on the CPU. */
void backend_profiler(const Backend *backend, bool on);
/* From here on ops are timed one by one, where the backend can; false where it cannot. */
bool backend_time_ops(Backend *backend);
/* Milliseconds and number of calls of op since then. */
double backend_op_ms(Backend *backend, OpId op, int *calls);
/* Memory in use on the device (resident memory on the CPU), bytes. */
size_t backend_memory_used(const Backend *backend);
