#!/usr/bin/env python3
"""Writes kernels/cuda/fused/wgmma_sm90.cuh: one wrapper for each width of the warpgroup matrix product.

    python3 scripts/make_wgmma.py > kernels/cuda/fused/wgmma_sm90.cuh

The instruction names every accumulator register, so its text grows with the width.
"""

WIDTHS = (128, 192)

HEADER = """\
/* Warpgroup matrix products, written by scripts/make_wgmma.py. */
#pragma once
#include <cstdint>

/* d (+)= a b over 16 of K: a is 64 rows, b N columns, both in shared memory behind their descriptors.
 * A_ROWS, B_ROWS: 1 where the operand is stored with M (N) contiguous rather than K.
 * d: this thread's N / 2 accumulators; without `accumulate` they are overwritten. */
template <int N, int A_ROWS, int B_ROWS> struct Wgmma;
"""

TEMPLATE = """
template <int A_ROWS, int B_ROWS> struct Wgmma<{n}, A_ROWS, B_ROWS> {{
    static __device__ __forceinline__ void multiply(float (&d)[{count}], uint64_t a, uint64_t b, bool accumulate)
    {{
        asm volatile(
            "{{\\n"
            ".reg .pred p;\\n"
            "setp.ne.b32 p, %{flag}, 0;\\n"
            "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{"
{registers}
            "}}, %{a}, %{b}, p, 1, 1, %{rows_a}, %{rows_b};\\n"
            "}}\\n"
            : {outputs}
            : "l"(a), "l"(b), "r"((int)accumulate), "n"(A_ROWS), "n"(B_ROWS));
    }}
}};
"""


def lines(items, per_line, indent, quote):
    rows = [items[i:i + per_line] for i in range(0, len(items), per_line)]
    texts = [", ".join(row) for row in rows]
    if quote:
        last = len(texts) - 1
        return "\n".join(f'{indent}"{text}{"" if i == last else ", "}"' for i, text in enumerate(texts))
    return (",\n" + indent).join(texts)


def wrapper(n):
    count = n // 2
    return TEMPLATE.format(
        n=n, count=count, a=count, b=count + 1, flag=count + 2, rows_a=count + 3, rows_b=count + 4,
        registers=lines([f"%{i}" for i in range(count)], 16, " " * 12, True),
        outputs=lines([f'"+f"(d[{i}])' for i in range(count)], 8, " " * 14, False))


print(HEADER + "".join(wrapper(n) for n in WIDTHS), end="")
