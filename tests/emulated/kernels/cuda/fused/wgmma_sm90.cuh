/* Stands in for the real one. A product leaves in its first four accumulators sums over all 16 of K so far: of the first row of
 * a, of the first column of b, of which 16 of K, counted from 1, and how many. */
#pragma once
#include "emulator.h"

/* 16 of K of an operand in shared memory: where it begins in the matrix, and that all of it belongs together. */
struct OperandTag {
    int first, k;
};

static inline OperandTag operand_tag(uint32_t address, bool by_rows, int count)
{
    Block *block = me()->block;
    const int2 tag = tag_at(block, address);
    if (!by_rows) {     /* eight rows every 1024 bytes, in each 16 of K every 32 */
        for (int i = 0; i < count; i += 8) {
            const int2 other = tag_at(block, address + i * 128);
            if (other.x != tag.x + i || other.y != tag.y) FAIL("rows %d and %d do not belong together", tag.x, other.x);
        }
        return {tag.x, tag.y + (int)(address % 128 / 32) * 16};
    }
    for (int i = 0; i < count; i += 64)     /* 64 columns every 8192 bytes, in each eight of K every 1024 */
        for (int k = 0; k < 16; k += 8) {
            const int2 other = tag_at(block, address + i * 128 + k * 128);
            if (other.x != tag.x + k || other.y != tag.y + i)
                FAIL("columns %d and %d do not belong together", tag.y, other.y);
        }
    return {tag.y, tag.x};
}

template <int N, int A_ROWS, int B_ROWS> struct Wgmma {
    static void multiply(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate)
    {
        float *const to = d;
        const auto product = [=] {
            const bool whole = me()->thread % 32 == 0;     /* that one looks at all of it */
            const OperandTag left = operand_tag((uint32_t)a * 16, A_ROWS, whole ? 64 : 1);
            const OperandTag right = operand_tag((uint32_t)b * 16, B_ROWS, whole ? N : 1);
            if (left.k != right.k) FAIL("%d of K meets %d", left.k, right.k);
            const float sums[4] = {(float)left.first, (float)right.first, (float)(left.k / 16 + 1), 1};
            for (int i = 0; i < 4; i++) to[i] = accumulate ? to[i] + sums[i] : sums[i];
        };
        me()->products.push_back({product, me()->groups});
    }
};
