#include "commands/backend.h"
#include "model/machine.h"
#ifdef WITH_CUDA
#include "kernels/cuda/cuda.h"
#endif
#include <omp.h>
#include <string.h>

static void open_cpu(Backend *backend, const BackendOptions *options)
{
    if (options->threads > 0) omp_set_num_threads(options->threads);
    backend->ops = &cpu_ops;
    backend->device = &cpu_device;
    backend->act = DTYPE_F32;
    machine_cpu_name(backend->hardware, sizeof backend->hardware);
    machine_libraries(backend->libraries, sizeof backend->libraries);
    backend->memory_total = (size_t)machine_memory();
}

#ifdef WITH_CUDA
static bool open_cuda(Backend *backend, const BackendOptions *options, Errors *errors)
{
    CudaOptions cuda = {
        .plan_only = options->plan_only,
        .cudnn = options->cudnn,
        .deterministic = options->deterministic,
        .workspace_bytes = options->workspace_bytes,
    };
    CudaInfo info;
    if (!cuda_backend_open(&backend->ctx, &cuda, &info, errors)) return false;
    backend->ops = &cuda_ops;
    backend->device = &cuda_device;
    backend->act = DTYPE_BF16;
    memcpy(backend->hardware, info.hardware, sizeof info.hardware);
    memcpy(backend->libraries, info.libraries, sizeof info.libraries);
    backend->memory_total = info.memory_total;
    return true;
}
#endif

bool backend_open(Backend *backend, const BackendOptions *options, Errors *errors)
{
    *backend = (Backend){.ctx = {.layer = -1}};
#ifdef WITH_CUDA
    bool usable = options->wish != BACKEND_CPU && cuda_usable(backend->why, sizeof backend->why);
    if (usable || options->wish == BACKEND_CUDA) {
        if (!usable && !options->plan_only) {
            errors_add(errors, "run.device=cuda: %s", backend->why);
            return false;
        }
        return open_cuda(backend, options, errors);
    }
#else
    if (options->wish == BACKEND_CUDA) {
        errors_add(errors, "run.device=cuda: this program was built without CUDA; build it with `make CUDA=1`");
        return false;
    }
    snprintf(backend->why, sizeof backend->why, "built without CUDA");
#endif
    if (options->wish == BACKEND_CPU) snprintf(backend->why, sizeof backend->why, "as asked");
    open_cpu(backend, options);
    return true;
}

void backend_close(Backend *backend)
{
#ifdef WITH_CUDA
    if (backend->device == &cuda_device) cuda_backend_close(&backend->ctx);
#endif
    *backend = (Backend){0};
}

size_t backend_memory_used(const Backend *backend)
{
#ifdef WITH_CUDA
    if (backend->device == &cuda_device) return cuda_memory_used();
#endif
    (void)backend;
    return (size_t)machine_resident();
}
