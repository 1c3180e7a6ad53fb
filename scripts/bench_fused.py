#!/usr/bin/env python3
"""Table of the fused ops against cublasLt and a separate kernel, from --runs processes a width (3).

    make build/cuda/tests/gpu/bench_fused
    python3 scripts/bench_fused.py [--program PATH] [--op OP] [--runs N] [1b 8b 70b]

variant: the one that auto chooses; auto: what it then runs, by the times, alone and in turn, that the first process
measures. ratio: unfused / fused, above 1 the fused op is faster; the median over the processes, and half the
distance between the lowest and the highest. A difference inside the whole distance is called equal. free: the ratio
if the epilogue cost nothing, the unfused op over its product alone. over product: time of the fused op over that of
the product alone as cublasLt chooses by itself. CODA: the same number for CODA's or quack's own kernels (v0.1) on an
H200 that is as hot, and whether ours is ahead of it; level: within 0.005.
"""
import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile

LINE = re.compile(r"^(\S+) +(\S.*?) +(\d+x\d+ c\d g\d+) +fused +([\d.]+) ms +(\d+) TFLOP/s +unfused +([\d.]+) ms +"
                  r"unfused/fused ([\d.]+) +free epilogue ([\d.]+) +fused/product ([\d.]+) +"
                  r"auto runs (\w+)$")
WIDTHS = ["1b", "8b", "70b"]
CODA = {"out": (1.01, 0.94, 0.93), "down": (0.96, 0.94, 0.94), "gate_up": (0.90, 0.93, 0.98), "qkv": (0.91, 0.96, 0.98),
        "down_dx, y again": (1.01, 1.01, 0.96), "gate_up_dx": (0.98, 0.96, 0.96), "qkv_dx": (0.99, 0.95, 0.91),
        "head_eval": (0.93,)}
FORWARD = ["qkv", "out", "gate_up", "down"]
BACKWARD = ["down_dx", "gate_up_dx", "qkv_dx", "out_dx", "gate_up_dw", "down_dw, sum", "qkv_dw", "out_dw"]
SUMS = {"head, head_dx and head_dw": ["head", "head_dx", "head_dw"], "a layer's ops but attention, forward": FORWARD,
        "a layer's ops but attention": FORWARD + BACKWARD}


def coda(op, width):
    values = CODA.get(op, ())
    at = WIDTHS.index(width)
    return values[at] if at < len(values) else None


def measure(options, width, cache):
    """Lines of each op, one a process."""
    ops = {}
    for _ in range(options.runs):
        command = [options.program, f"--cache={cache}", width] + ([options.op] if options.op else [])
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{done.stderr or done.stdout}")
        for line in done.stdout.splitlines():
            found = LINE.match(line)
            if found:
                ops.setdefault(found[2], []).append(found)
    return ops


def compared(ratios):
    """Their median, the spread, and whether we are ahead."""
    ratio, spread = statistics.median(ratios), max(ratios) - min(ratios)
    return ratio, spread, "equal" if abs(ratio - 1) <= spread else "ahead" if ratio > 1 else "behind"


def print_op(width, op, runs):
    def middle(group):
        return statistics.median(float(run[group]) for run in runs)

    ratio, spread, word = compared([float(run[7]) for run in runs])
    theirs = coda(op, width)
    against = ""
    if theirs is not None:
        against = "level" if abs(middle(9) - theirs) < 0.005 else "ahead" if middle(9) < theirs else "behind"
    row = [width, op, runs[0][3], f"{middle(4):.3f}", f"{middle(5):.0f}", f"{middle(6):.3f}", f"{ratio:.3f}",
           f"{spread / 2:.3f}", word, runs[0][10], f"{middle(8):.3f}", f"{middle(9):.3f}", str(theirs or ""), against]
    print("| " + " | ".join(row) + " |", flush=True)


def print_sum(width, ops, name, parts):
    """Several ops together, as auto runs them; free: each at the time of its fastest product, ours or cublasLt's."""
    if set(parts) - set(ops):
        return
    ratios, free = [], []
    for runs in zip(*(ops[op] for op in parts)):
        unfused = sum(float(run[6]) for run in runs)
        ratios.append(unfused / sum(float(run[4] if run[10] == "fused" else run[6]) for run in runs))
        free.append(unfused / sum(min(float(run[4]), float(run[6]) / float(run[8])) for run in runs))
    ratio, spread, word = compared(ratios)
    row = [width, name + ", as auto runs them", "", "", "", "", f"{ratio:.3f}", f"{spread / 2:.3f}", word, "",
           f"{statistics.median(free):.3f}", "", "", ""]
    print("| " + " | ".join(row) + " |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/cuda/tests/gpu/bench_fused")
    parser.add_argument("--op")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("widths", nargs="*", metavar="WIDTH")
    options = parser.parse_args()
    options.widths = options.widths or WIDTHS
    if options.runs < 1 or set(options.widths) - set(WIDTHS):
        parser.error(f"expected --runs of 1 at least, and widths among {' '.join(WIDTHS)}")
    if not os.access(options.program, os.X_OK):
        sys.exit(f"{options.program} is not there: make {options.program}, or name it with --program")

    print("| width | op | variant | fused ms | TFLOP/s | unfused ms | ratio | +- | | auto | free | over product | CODA | |")
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as cache:
        for width in options.widths:
            ops = measure(options, width, cache)
            for op, runs in ops.items():
                print_op(width, op, runs)
            for name, parts in SUMS.items():
                print_sum(width, ops, name, parts)


if __name__ == "__main__":
    main()
