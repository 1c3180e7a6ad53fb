/* Where tensors live: memory, copies, waiting, and recorded step graphs. One implementation a backend. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

typedef struct Graph Graph;

typedef struct Device {
    const char *name;                       /* "cpu", "cuda" */
    bool host_memory;                       /* its memory can be read and written by the host */

    /* The one allocation of the run, 256-byte aligned. NULL when there is not enough memory. */
    void *(*alloc)(size_t bytes);
    void (*release)(void *memory);

    /* Host memory, page-locked on a GPU: copies to and from it let host and device go on. NULL when there is not
     * enough. */
    void *(*alloc_host)(size_t bytes);
    void (*release_host)(void *memory);

    /* Copies in stream order. The host buffer must stay unchanged until the next wait(). */
    void (*upload)(void *stream, void *to_device, const void *from_host, size_t bytes);
    void (*download)(void *stream, void *to_host, const void *from_device, size_t bytes);
    void (*zero)(void *stream, void *device_memory, size_t bytes);
    void (*wait)(void *stream);

    /* Records everything that is issued between begin and end into a graph. begin returns false where the
     * device has no graphs: the caller then simply issues the work each time. */
    bool (*capture_begin)(void *stream);
    Graph *(*capture_end)(void *stream);
    void (*launch)(Graph *graph, void *stream);
    void (*graph_release)(Graph *graph);
} Device;

extern const Device cpu_device;
