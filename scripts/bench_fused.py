#!/usr/bin/env python3
"""Table of the fused ops against cublasLt and a separate kernel, from three processes a width.

    make build/cuda/tests/gpu/bench_fused
    python3 scripts/bench_fused.py [--program PATH] [--op OP] [--runs N] [1b 8b 70b]

Of each op, the variant with the best median; its ratio is the median over the processes, the spread the
distance between the lowest and the highest. A difference inside the spread is called equal.
"""
import argparse
import re
import statistics
import subprocess

LINE = re.compile(r"^(\S+) +(\S.*?) +(\d+x\d+ c\d g\d+) +fused +([\d.]+) ms +(\d+) TFLOP/s +unfused +([\d.]+) ms +"
                  r"unfused/fused ([\d.]+)$")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/cuda/tests/gpu/bench_fused")
    parser.add_argument("--op")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("widths", nargs="*", default=["1b", "8b", "70b"])
    options = parser.parse_args()

    print(f"{'width':6} {'op':18} {'variant':16} {'fused ms':>9} {'unfused ms':>10} {'ratio':>6} {'spread':>7}")
    for width in options.widths:
        ops = {}
        for _ in range(options.runs):
            command = [options.program, width] + ([options.op] if options.op else [])
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            for line in output.splitlines():
                found = LINE.match(line)
                if found:
                    _, op, variant, fused, _, unfused, ratio = found.groups()
                    ops.setdefault(op, {}).setdefault(variant, []).append((float(ratio), float(fused), float(unfused)))
        for op, variants in ops.items():
            variant, runs = max(variants.items(), key=lambda v: statistics.median(r[0] for r in v[1]))
            ratios = [r[0] for r in runs]
            ratio, spread = statistics.median(ratios), max(ratios) - min(ratios)
            word = "equal" if abs(ratio - 1) <= spread else "ahead" if ratio > 1 else "behind"
            print(f"{width:6} {op:18} {variant:16} {statistics.median(r[1] for r in runs):9.3f} "
                  f"{statistics.median(r[2] for r in runs):10.3f} {ratio:6.3f} {spread:7.3f} {word}")


if __name__ == "__main__":
    main()
