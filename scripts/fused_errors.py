#!/usr/bin/env python3
"""Table of the errors that test_fused has found, against FP64: of the fused op, the largest among its tiles, and of the
unfused one.

    build/cuda/tests/gpu/test_fused > log; python3 scripts/fused_errors.py log
"""
import re
import sys

LINE = re.compile(r"(?:not )?ok - (.+?), (.+?) (\S+), \d+x\d+ c\d g\d+ *: error (\S+), unfused (\S+), apart")
LOSS = re.compile(r"head to head_dw, loss (\S+)")
WIDTHS = {"1b": "1B", "8b": "8B", "70b": "70B"}


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1]) as f:
        found = [line for line in map(LINE.match, f) if line]
    if not found:
        sys.exit(f"{sys.argv[1]} holds no line of test_fused that gives an error")
    ops, losses = {}, {}
    for size, case, output, error, unfused in (line.groups() for line in found):
        loss = LOSS.match(case)
        if size in WIDTHS and float(unfused) > 0:
            table, key = ops.setdefault((case, output), {}), size
        elif loss:
            table, key = losses, (size, float(loss[1]))
        else:
            continue
        most = max(float(error), table.get(key, (0, 0))[0])
        table[key] = (most, float(unfused))
    print("| | " + " | ".join(WIDTHS.values()) + " |\n|---|---|---|---|")
    for (case, output), errors in ops.items():
        cells = ["{:.2e} / {:.2e}".format(*errors[size]) if size in errors else "" for size in WIDTHS]
        print(f"| {case}: {output} | " + " | ".join(cells) + " |")
    print("\n| size | loss | fused | unfused |\n|---|---|---|---|")
    for (size, loss), (error, unfused) in losses.items():
        print(f"| {size} | {loss:.1e} | {error:.1e} | {unfused:.1e} |")


if __name__ == "__main__":
    main()
