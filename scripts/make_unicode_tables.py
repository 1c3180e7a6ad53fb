#!/usr/bin/env python3
"""Writes data/unicode_tables.h: the ranges of letters, numbers and white space that Llama-3's split rules ask for.

    python3 scripts/make_unicode_tables.py > data/unicode_tables.h

The tokenizers and tiktoken libraries know Unicode 16.0. Python's own unicodedata has it from 3.14 on; earlier ones
need the package unicodedata2 16.0. Another version is refused, because words would be split differently.
"""
import sys

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

VERSION = "16.0.0"
# The property White_Space, which the category alone does not give.
SPACES = [0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F,
          0x205F, 0x3000]


def ranges(points):
    found = []
    for point in points:
        if found and found[-1][1] == point - 1:
            found[-1][1] = point
        else:
            found.append([point, point])
    return found


def table(name, comment, points):
    cells = [f"{{ 0x{first:x}, 0x{last:x} }}," for first, last in ranges(points)]
    print(f"\n/* {comment} */\nstatic const UnicodeRange {name}[{len(cells)}] = {{")
    line = "   "
    for cell in cells:
        if len(line) + 1 + len(cell) > 108:
            print(line)
            line = "   "
        line += " " + cell
    print(line + "\n};")


def main():
    if unicodedata.unidata_version != VERSION:
        sys.exit(f"this Python knows Unicode {unicodedata.unidata_version}, {VERSION} is needed: "
                 "pip install unicodedata2==16.0.0, or Python 3.14")
    category = {c: unicodedata.category(chr(c))[0] for c in range(0x110000)}
    print(f"/* Unicode {VERSION}. Written by scripts/make_unicode_tables.py; do not edit. */")
    print("#pragma once\n#include <stdint.h>\n")
    print("typedef struct UnicodeRange { uint32_t first, last; } UnicodeRange;    /* both inclusive */")
    table("unicode_letters", r"\p{L}", [c for c in category if category[c] == "L"])
    table("unicode_numbers", r"\p{N}", [c for c in category if category[c] == "N"])
    table("unicode_spaces", r"\s", SPACES)


if __name__ == "__main__":
    main()
