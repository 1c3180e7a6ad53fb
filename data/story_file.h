/* Files of documents separated by blank lines, read whole. */
#pragma once
#include "model/errors.h"
#include <stdint.h>

typedef struct Documents {
    char *bytes;     /* owned: the file */
    int64_t *start;  /* [count], owned */
    int64_t *length; /* [count], owned: without surrounding white space */
    int64_t count;
} Documents;

/* Reads `path`. On failure adds to `errors` and returns 0. The caller frees with documents_free either way.
 */
int documents_read(const char *path, Documents *out, Errors *errors);
void documents_free(Documents *d);

/* 64-bit hash of each document, sorted: [count], owned by the caller. NULL when memory is short. */
uint64_t *documents_hashes(const Documents *d);
uint64_t document_hash(const char *text, int64_t length);
int hashes_contain(const uint64_t *sorted, int64_t count, uint64_t hash);
