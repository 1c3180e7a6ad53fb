#include "model/xxh64.h"
#include <string.h>

#define P1 0x9E3779B185EBCA87u
#define P2 0xC2B2AE3D27D4EB4Fu
#define P3 0x165667B19E3779F9u
#define P4 0x85EBCA77C2B2AE63u
#define P5 0x27D4EB2F165667C5u
#define STRIPE 32

static uint64_t rotate(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static uint64_t little32(const unsigned char *p)
{
    return (uint64_t)p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24;
}

static uint64_t little64(const unsigned char *p)
{
    return little32(p) | little32(p + 4) << 32;     /* compiles to one load */
}

static uint64_t mix(uint64_t lane, uint64_t input)
{
    return rotate(lane + input * P2, 31) * P1;
}

static void add_stripe(Xxh64 *h, const unsigned char *p)
{
    for (int i = 0; i < 4; i++) h->lane[i] = mix(h->lane[i], little64(p + 8 * i));
}

void xxh64_begin(Xxh64 *h, uint64_t seed)
{
    *h = (Xxh64){.lane = {seed + P1 + P2, seed + P2, seed, seed - P1}, .seed = seed};
}

void xxh64_add(Xxh64 *h, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    h->total += bytes;
    if (h->tail_bytes) {
        size_t n = STRIPE - h->tail_bytes < bytes ? STRIPE - h->tail_bytes : bytes;
        memcpy(h->tail + h->tail_bytes, p, n);
        h->tail_bytes += n;
        p += n;
        bytes -= n;
        if (h->tail_bytes < STRIPE) return;
        add_stripe(h, h->tail);
        h->tail_bytes = 0;
    }
    for (; bytes >= STRIPE; p += STRIPE, bytes -= STRIPE) add_stripe(h, p);
    if (bytes) memcpy(h->tail, p, bytes);
    h->tail_bytes = bytes;
}

uint64_t xxh64_end(const Xxh64 *h)
{
    uint64_t x;
    if (h->total >= STRIPE) {
        x = rotate(h->lane[0], 1) + rotate(h->lane[1], 7) + rotate(h->lane[2], 12) + rotate(h->lane[3], 18);
        for (int i = 0; i < 4; i++) x = (x ^ mix(0, h->lane[i])) * P1 + P4;
    } else {
        x = h->seed + P5;
    }
    x += h->total;
    const unsigned char *p = h->tail, *end = p + h->tail_bytes;
    for (; end - p >= 8; p += 8) x = rotate(x ^ mix(0, little64(p)), 27) * P1 + P4;
    for (; end - p >= 4; p += 4) x = rotate(x ^ little32(p) * P1, 23) * P2 + P3;
    for (; p < end; p++) x = rotate(x ^ *p * P5, 11) * P1;
    x = (x ^ x >> 33) * P2;
    x = (x ^ x >> 29) * P3;
    return x ^ x >> 32;
}
