/* safetensors files (docs/FORMATS.md, section 2): a strict reader, for one file or a sharded set, and a
 * streaming writer. Neither holds more than a small buffer of tensor data. */
#pragma once
#include "model/errors.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SAFETENSORS_DIMS 8

/* All dtypes that a file may hold; values are read from F32, BF16 and F16, and written as those. */
typedef enum SafetensorsDtype {
    ST_F32, ST_BF16, ST_F16,
    ST_BOOL, ST_U8, ST_I8, ST_F8_E4M3, ST_F8_E5M2, ST_F8_E8M0, ST_I16, ST_U16, ST_I32, ST_U32, ST_C64, ST_I64,
    ST_U64, ST_F64, ST_DTYPES
} SafetensorsDtype;

const char *safetensors_dtype_name(SafetensorsDtype dtype);     /* "BF16" */
size_t safetensors_dtype_bytes(SafetensorsDtype dtype);

typedef struct SafetensorsTensor {
    char            *name;          /* owned by the Safetensors */
    SafetensorsDtype dtype;
    int              dims;          /* 0 = a scalar */
    int64_t          shape[SAFETENSORS_DIMS];
    int64_t          count;         /* elements */
    int              file;          /* index into files */
    int64_t          offset;        /* of its first byte in that file */
} SafetensorsTensor;

typedef struct SafetensorsFile { char *path; int fd; int64_t bytes; } SafetensorsFile;

typedef struct Safetensors {
    SafetensorsTensor *tensors;     /* sorted by name */
    int                tensor_count;
    SafetensorsFile   *files;
    int                file_count;
} Safetensors;

/* Opens a .safetensors file, a *.index.json of a sharded set, or a directory that holds model.safetensors or
 * model.safetensors.index.json. Every header is checked in full: sizes, offsets, gaps, overlaps, duplicates,
 * dtypes, and the index against the shards. Returns NULL with errors added. */
Safetensors *safetensors_open(const char *path, Errors *errors);
void safetensors_close(Safetensors *st);

/* NULL when there is no such tensor. */
const SafetensorsTensor *safetensors_find(const Safetensors *st, const char *name);

/* Elements [first, first + count) of t, in row-major order, converted to float. Rows [a, b) of a [N, K]
 * matrix are elements [a K, b K). False with an error added: dtype, range, read failure. */
bool safetensors_read(const Safetensors *st, const SafetensorsTensor *t, int64_t first, int64_t count,
                      float *values, Errors *errors);

/* The same elements as they are stored, without conversion. */
bool safetensors_read_raw(const Safetensors *st, const SafetensorsTensor *t, int64_t first, int64_t count,
                          void *bytes, Errors *errors);

/* ---- writing ------------------------------------------------------------------------------------- */

typedef struct SafetensorsSpec {
    const char      *name;
    SafetensorsDtype dtype;         /* ST_F32, ST_BF16 or ST_F16 */
    int              dims;
    int64_t          shape[SAFETENSORS_DIMS];
} SafetensorsSpec;

typedef struct SafetensorsWriter SafetensorsWriter;

/* A file that was written: for manifests. */
typedef struct SafetensorsWritten { char name[64]; int64_t bytes; uint64_t xxh64; } SafetensorsWritten;

/* Begins `stem`.safetensors in an existing directory, or, where its tensor data would exceed shard_bytes (0 =
 * no limit), `stem`-00001-of-0000N.safetensors ... and `stem`.safetensors.index.json. Data follows in the
 * order of specs. specs may be freed after the call. NULL with errors added. */
SafetensorsWriter *safetensors_create(const char *dir, const char *stem, const SafetensorsSpec *specs,
                                      int count, int64_t shard_bytes, Errors *errors);

/* The next `count` elements, converted to the tensor's dtype; a call stays within one tensor. The first
 * failure (disk full, ...) is remembered, reported by safetensors_finish, and later calls do nothing. */
bool safetensors_write(SafetensorsWriter *w, const float *values, int64_t count);

/* The same with elements that already have the tensor's dtype. */
bool safetensors_write_raw(SafetensorsWriter *w, const void *bytes, int64_t count);

/* Ends writing: all data must be there; syncs to disk. Frees w in every case. On failure adds an error with
 * path and cause, and removes what was written. files, when not NULL, receives an owned array (free). */
bool safetensors_finish(SafetensorsWriter *w, SafetensorsWritten **files, int *file_count, Errors *errors);

/* Gives up: removes what was written and frees w. */
void safetensors_abandon(SafetensorsWriter *w);
