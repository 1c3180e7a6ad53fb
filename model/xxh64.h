/* XXH64, the 64-bit checksum of https://github.com/Cyan4973/xxHash (doc/xxhash_spec.md), in pieces. */
#pragma once
#include <stddef.h>
#include <stdint.h>

typedef struct Xxh64 {
    uint64_t lane[4];
    uint64_t total;         /* bytes so far */
    unsigned char tail[32]; /* bytes that don't fill a stripe yet */
    size_t   tail_bytes;
    uint64_t seed;
} Xxh64;

void xxh64_begin(Xxh64 *h, uint64_t seed);
void xxh64_add(Xxh64 *h, const void *data, size_t bytes);
uint64_t xxh64_end(const Xxh64 *h);
