#include "commands/backend.h"
#include "model/machine.h"
#ifdef WITH_CUDA
#include "kernels/cuda/cuda.h"
#endif
#include <omp.h>
#include <string.h>

static void open_cpu(Backend *backend)
{
    backend->ops = &cpu_ops;
    backend->device = &cpu_device;
    backend->act = DTYPE_F32;
    machine_cpu_name(backend->hardware, sizeof backend->hardware);
    machine_libraries(backend->libraries, sizeof backend->libraries);
    backend->memory_total = (size_t)machine_memory();
}

#ifdef WITH_CUDA
static CudaOptions cuda_options(const Config *config, const char *cache_dir)
{
    CudaOptions options = {
        .attention = config->train.attention == ATTENTION_CUDNN ? CUDA_ATTENTION_CUDNN
                                                                : CUDA_ATTENTION_REFERENCE,
        .cache_dir = cache_dir,
        .workspace_limit = (size_t)config->train.workspace_mib << 20,
    };
    for (int key = 0; key < FUSE_COUNT; key++) options.fusion[key] = (FusionMode)config->fusion.mode[key];
    return options;
}

static bool open_cuda(Backend *backend, const Config *config, bool plan_only, const char *cache_dir,
                      Errors *errors)
{
    CudaOptions options = cuda_options(config, cache_dir);
    OpContext *ctx = &backend->ctx;
    ctx->backend = plan_only ? cuda_backend_describe(&options) : cuda_backend_open(&options, errors);
    if (!ctx->backend) return false;
    backend->ops = &cuda_ops;
    backend->device = &cuda_device;
    backend->act = DTYPE_BF16;
    if (plan_only) return true;
    size_t used;
    ctx->stream = cuda_backend_stream(ctx->backend);
    cuda_backend_memory(&used, &backend->memory_total);
    snprintf(backend->libraries, sizeof backend->libraries, "%s", cuda_backend_versions(ctx->backend));
    snprintf(backend->hardware, sizeof backend->hardware, "%s", cuda_backend_gpu(ctx->backend));
    return true;
}
#endif

bool backend_open(Backend *backend, const Config *config, bool plan_only, const char *cache_dir,
                  Errors *errors)
{
    const int64_t device = config->run.device;
    *backend = (Backend){.ctx = {.layer = -1}};
    if (config->run.threads > 0) omp_set_num_threads((int)config->run.threads);
    snprintf(backend->why, sizeof backend->why, "as asked");
#ifdef WITH_CUDA
    bool usable = device == DEVICE_AUTO && cuda_usable(backend->why, sizeof backend->why);
    if (usable) snprintf(backend->why, sizeof backend->why, "a usable GPU");
    if (usable || device == DEVICE_CUDA) return open_cuda(backend, config, plan_only, cache_dir, errors);
#else
    (void)plan_only, (void)cache_dir;
    if (device == DEVICE_CUDA) {
        errors_add(errors,
                   "run.device=cuda: this program was built without CUDA; build it with `make CUDA=1`");
        return false;
    }
    if (device == DEVICE_AUTO) snprintf(backend->why, sizeof backend->why, "built without CUDA");
#endif
    open_cpu(backend);
    return true;
}

void backend_close(Backend *backend)
{
#ifdef WITH_CUDA
    if (backend->device == &cuda_device) cuda_backend_close(backend->ctx.backend);
#endif
    *backend = (Backend){0};
}

size_t backend_memory_used(const Backend *backend)
{
#ifdef WITH_CUDA
    if (backend->device == &cuda_device) {
        size_t used, total;
        cuda_backend_memory(&used, &total);
        return used;
    }
#endif
    (void)backend;
    return (size_t)machine_resident();
}

char *backend_choices(const Backend *backend)
{
#ifdef WITH_CUDA
    if (backend->device == &cuda_device) return cuda_backend_choices(backend->ctx.backend);
#endif
    (void)backend;
    return NULL;
}

bool backend_restore_choices(Backend *backend, const char *choices, Errors *errors)
{
#ifdef WITH_CUDA
    if (backend->device == &cuda_device) return cuda_backend_restore(backend->ctx.backend, choices, errors);
#endif
    (void)backend, (void)choices, (void)errors;
    return true;
}

void backend_profiler(const Backend *backend, bool on)
{
#ifdef WITH_CUDA
    if (backend->device == &cuda_device) cuda_profiler(on);
#endif
    (void)backend, (void)on;
}

bool backend_time_ops(Backend *backend)
{
#ifdef WITH_CUDA
    if (backend->device == &cuda_device) return cuda_backend_time_ops(backend->ctx.backend), true;
#endif
    (void)backend;
    return false;
}

double backend_op_ms(Backend *backend, OpId op, int *calls)
{
#ifdef WITH_CUDA
    if (backend->device == &cuda_device) return cuda_backend_op_ms(backend->ctx.backend, op, calls);
#endif
    (void)backend, (void)op;
    *calls = 0;
    return 0;
}
