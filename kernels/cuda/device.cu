/* The device layer: memory, copies, graphs, start-up checks and the backend's life. */
#include "kernels/cuda/backend.h"
#include "kernels/cuda/fused/autotune.h"
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_profiler_api.h>
#include <string>

void cuda_fail(const char *file, int line, const char *op, const char *call, const char *cause)
{
    fprintf(stderr, "error: %s:%d: %s: %s: %s\n", file, line, op, cause, call);
    exit(1);
}

/* ---- Device ----------------------------------------------------------------------------------------- */

struct Graph {
    cudaGraphExec_t exec;
};

/* Null where there is no room, which the caller reports. */
static void *memory_or_null(const char *op, cudaError_t status, void *memory)
{
    if (status == cudaErrorMemoryAllocation) {
        cudaGetLastError();
        return nullptr;
    }
    CUDA_CHECK(op, status);
    return memory;
}

static void *device_alloc(size_t bytes)
{
    void *memory = nullptr;
    const cudaError_t status = cudaMalloc(&memory, bytes ? bytes : 1);
    return memory_or_null("alloc", status, memory);
}

static void device_release(void *memory) { CUDA_CHECK("release", cudaFree(memory)); }

static void *device_alloc_host(size_t bytes)
{
    void *memory = nullptr;
    const cudaError_t status = cudaMallocHost(&memory, bytes ? bytes : 1);
    return memory_or_null("alloc_host", status, memory);
}

static void device_release_host(void *memory) { CUDA_CHECK("release_host", cudaFreeHost(memory)); }

static void device_upload(void *stream, void *to, const void *from, size_t bytes)
{
    CUDA_CHECK("upload", cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, (cudaStream_t)stream));
}

static void device_download(void *stream, void *to, const void *from, size_t bytes)
{
    CUDA_CHECK("download", cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, (cudaStream_t)stream));
}

static void device_zero(void *stream, void *memory, size_t bytes)
{
    CUDA_CHECK("zero", cudaMemsetAsync(memory, 0, bytes, (cudaStream_t)stream));
}

static void device_wait(void *stream) { CUDA_CHECK("wait", cudaStreamSynchronize((cudaStream_t)stream)); }

static bool device_capture_begin(void *stream)
{
    CUDA_CHECK("capture", cudaStreamBeginCapture((cudaStream_t)stream, cudaStreamCaptureModeThreadLocal));
    return true;
}

static Graph *device_capture_end(void *stream)
{
    cudaGraph_t graph;
    Graph *out = new Graph;
    CUDA_CHECK("capture", cudaStreamEndCapture((cudaStream_t)stream, &graph));
    CUDA_CHECK("capture", cudaGraphInstantiate(&out->exec, graph, 0));
    CUDA_CHECK("capture", cudaGraphDestroy(graph));
    return out;
}

static void device_launch(Graph *graph, void *stream)
{
    CUDA_CHECK("launch", cudaGraphLaunch(graph->exec, (cudaStream_t)stream));
}

static void device_graph_release(Graph *graph)
{
    CUDA_CHECK("graph_release", cudaGraphExecDestroy(graph->exec));
    delete graph;
}

extern "C" const Device cuda_device = {
    "cuda",          false,       device_alloc, device_release,       device_alloc_host,  device_release_host,
    device_upload,   device_download, device_zero,  device_wait,      device_capture_begin, device_capture_end,
    device_launch,   device_graph_release,
};

/* ---- start-up checks ---------------------------------------------------------------------------------- */

/* Stands for the kernels that run on every GPU, which are compiled for the same architectures. Those of the
 * files *_sm90.cu are for Hopper only and are called nowhere else. */
__global__ void image_probe() {}

static bool cannot(char *why, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(why, size, format, args);
    va_end(args);
    cudaGetLastError();
    return false;
}

bool cuda_usable(char *why, size_t size)
{
    int count = 0;
    cudaDeviceProp gpu;
    cudaFuncAttributes attributes;
    cudaError_t status = cudaGetDeviceCount(&count);
    if (status == cudaErrorInsufficientDriver) {
        int driver = 0, runtime = 0;
        cudaDriverGetVersion(&driver);
        cudaRuntimeGetVersion(&runtime);
        if (!driver) return cannot(why, size, "no NVIDIA driver on this machine");
        return cannot(why, size, "the NVIDIA driver knows CUDA %d.%d and this binary needs %d.%d: update it",
                      driver / 1000, driver % 100 / 10, runtime / 1000, runtime % 100 / 10);
    }
    if (status != cudaSuccess) return cannot(why, size, "%s", cudaGetErrorString(status));
    if (!count) return cannot(why, size, "no NVIDIA GPU on this machine");
    if ((status = cudaGetDeviceProperties(&gpu, 0)) != cudaSuccess)
        return cannot(why, size, "%s", cudaGetErrorString(status));
    if (gpu.major < 8)
        return cannot(why, size, "%s is sm_%d%d: BF16 needs sm_80 (A100) or newer", gpu.name, gpu.major,
                      gpu.minor);
    if ((status = cudaFuncGetAttributes(&attributes, image_probe)) != cudaSuccess)
        return cannot(why, size, "this binary has no code for %s (%s): build with `make ARCH=sm_%d%d`",
                      gpu.name, cudaGetErrorString(status), gpu.major, gpu.minor);
    return true;
}

/* ---- the backend's life -------------------------------------------------------------------------------- */

static CudaBackend *make_backend(const CudaOptions *options)
{
    CudaBackend *b = new CudaBackend{};
    b->options = *options;
    if (options->cache_dir) {
        snprintf(b->cache_dir, sizeof b->cache_dir, "%s", options->cache_dir);
        b->options.cache_dir = b->cache_dir;
    }
    return b;
}

void *cuda_backend_describe(const CudaOptions *options)
{
    CudaBackend *b = make_backend(options);
    b->planning = true;
    b->fused = fused_table_open(b);
    return b;
}

void *cuda_backend_open(const CudaOptions *options, Errors *errors)
{
    char why[512];
    if (!cuda_usable(why, sizeof why)) {
        errors_add(errors, "run.device=cuda: %s", why);
        return nullptr;
    }
    CudaBackend *b = make_backend(options);
    int device = 0, driver = 0, runtime = 0;
    cudaDeviceProp gpu;
    CUDA_CHECK("open", cudaGetDevice(&device));
    CUDA_CHECK("open", cudaGetDeviceProperties(&gpu, device));
    CUDA_CHECK("open", cudaDriverGetVersion(&driver));
    CUDA_CHECK("open", cudaRuntimeGetVersion(&runtime));
    CUDA_CHECK("open", cudaStreamCreateWithFlags(&b->stream, cudaStreamNonBlocking));
    cublasStatus_t status = cublasLtCreate(&b->lt);
    if (status != CUBLAS_STATUS_SUCCESS) {
        errors_add(errors, "run.device=cuda: cublasLt does not start: %s", cublasLtGetStatusString(status));
        cuda_backend_close(b);
        return nullptr;
    }
    b->multiprocessors = gpu.multiProcessorCount;
    b->cache_bytes = gpu.l2CacheSize;
    size_t counters = (size_t)(1 + b->multiprocessors) * sizeof *b->finished_blocks;
    CUDA_CHECK("open", cudaMalloc(&b->finished_blocks, counters));
    CUDA_CHECK("open", cudaMemsetAsync(b->finished_blocks, 0, counters, b->stream));
    b->parts_arrived = b->finished_blocks + 1;
    b->sm90 = gpu.major == 9 && gpu.minor == 0;
    cudaFuncAttributes attributes;
    CUDA_CHECK("open", cudaFuncGetAttributes(&attributes, image_probe));
    b->overlap = attributes.ptxVersion >= 90;   /* what was compiled for older GPUs has no waits in it */
    if (b->sm90) b->gpcs = gpcs_open(b->multiprocessors, b->stream);
    snprintf(b->gpu, sizeof b->gpu, "%s", gpu.name);
    snprintf(b->versions, sizeof b->versions, "%s, driver %d.%d, CUDA %d.%d, cublasLt %zu, %s, kernels %d", gpu.name,
             driver / 1000, driver % 100 / 10, runtime / 1000, runtime % 100 / 10, cublasLtGetVersion(),
             cudnn_version_text(), FUSED_TABLE_VERSION);
    b->ranges = nvtxDomainCreateA("llama");
    b->gemms = gemm_table_open(b);
    b->fused = fused_table_open(b);
    return b;
}

void cuda_backend_close(void *backend)
{
    CudaBackend *b = (CudaBackend *)backend;
    if (!b) return;
    cudnn_plans_close(b->attention);
    op_times_free(b->times);
    if (b->gemms) gemm_table_close(b->gemms);
    if (b->fused) fused_table_close(b->fused);
    if (b->lt) cublasLtDestroy(b->lt);
    cudaFree(b->finished_blocks);
    gpcs_close(&b->gpcs);
    if (b->stream) cudaStreamDestroy(b->stream);
    delete b;
}

void *cuda_backend_stream(void *backend) { return ((CudaBackend *)backend)->stream; }
const char *cuda_backend_versions(const void *backend) { return ((const CudaBackend *)backend)->versions; }
const char *cuda_backend_gpu(const void *backend) { return ((const CudaBackend *)backend)->gpu; }

char *cuda_backend_choices(const void *backend)
{
    const CudaBackend *b = (const CudaBackend *)backend;
    char *gemms = gemm_table_text(b->gemms);
    std::string text = gemms + fused_table_text(b->fused);
    free(gemms);
    return strdup(text.c_str());
}

bool cuda_backend_restore(void *backend, const char *choices, Errors *errors)
{
    CudaBackend *b = (CudaBackend *)backend;
    std::string gemms;
    bool all = true;
    while (*choices) {
        std::string line(choices, strcspn(choices, "\n"));
        choices += line.size() + (choices[line.size()] == '\n');
        if (!strncmp(line.c_str(), "fused ", 6)) all &= fused_table_read_line(b->fused, line.c_str(), true);
        else gemms += line + "\n";
    }
    if (!all)
        errors_add(errors, "the checkpoint's choices of fused ops do not read; the run measures its own, "
                           "not bitwise");
    return gemm_table_restore(b, gemms.c_str(), errors) && all;
}

void cuda_backend_memory(size_t *used, size_t *total)
{
    size_t left = 0;
    CUDA_CHECK("memory", cudaMemGetInfo(&left, total));
    *used = *total - left;
}

void cuda_profiler(bool on) { CUDA_CHECK("profiler", on ? cudaProfilerStart() : cudaProfilerStop()); }
