/* Host memory as a device: everything is done when the call returns, so there is nothing to wait for. */
#include "kernels/device.h"
#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 256 };

static void *cpu_alloc(size_t bytes)
{
    size_t rounded = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return rounded < bytes ? NULL : aligned_alloc(ALIGNMENT, rounded ? rounded : ALIGNMENT);
}

static void cpu_upload(void *stream, void *to_device, const void *from_host, size_t bytes)
{
    (void)stream;
    memcpy(to_device, from_host, bytes);
}

static void cpu_download(void *stream, void *to_host, const void *from_device, size_t bytes)
{
    (void)stream;
    memcpy(to_host, from_device, bytes);
}

static void cpu_zero(void *stream, void *device_memory, size_t bytes)
{
    (void)stream;
    memset(device_memory, 0, bytes);
}

static void cpu_wait(void *stream) { (void)stream; }

static bool cpu_capture_begin(void *stream)
{
    (void)stream;
    return false;
}

static Graph *cpu_capture_end(void *stream)
{
    (void)stream;
    return NULL;
}

static void cpu_launch(Graph *graph, void *stream) { (void)graph, (void)stream; }

static void cpu_graph_release(Graph *graph) { (void)graph; }

const Device cpu_device = {
    .name = "cpu",
    .host_memory = true,
    .alloc = cpu_alloc,
    .release = free,
    .alloc_host = cpu_alloc,
    .release_host = free,
    .upload = cpu_upload,
    .download = cpu_download,
    .zero = cpu_zero,
    .wait = cpu_wait,
    .capture_begin = cpu_capture_begin,
    .capture_end = cpu_capture_end,
    .launch = cpu_launch,
    .graph_release = cpu_graph_release,
};
