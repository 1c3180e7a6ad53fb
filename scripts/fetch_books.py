#!/usr/bin/env python3
"""Fetches public-domain books from Debian packages, as real English text to train on: 9.8 MB, 11.1 MB with --jargon.

    python3 scripts/fetch_books.py OUT [--jargon]     (Debian or Ubuntu; apt-get update once before; no root needed)
    ./train tokenize OUT/train --val-file=OUT/held_out --tokenizer=train:8192 --out=OUT/tokens

Written: OUT/train/*.txt and OUT/held_out/*.txt. The last 5 % of each book, from a paragraph's beginning on, is held
out. Nothing is installed: packages are downloaded and unpacked below OUT/packages.

| books | package | rights |
|---|---|---|
| King James Bible, 1611 | bible-kjv-text, read by the program of bible-kjv | public domain (its Debian copyright file) |
| six novels by Jane Austen, 1811 to 1818 | r-cran-janeaustenr | public domain (texts of Project Gutenberg); the package MIT |
| Moby Dick by Herman Melville, 1851 | r-cran-tokenizers | public domain (text of Project Gutenberg); the package MIT |
| The Devil's Dictionary by Ambrose Bierce, 1911 | dict-devil | public domain |
| with --jargon: The Jargon File, version 4.4.7, 2003 | dict-jargon | public domain (its own notice) |
"""
import argparse
import gzip
import pathlib
import re
import struct
import subprocess
import sys
import zlib

PACKAGES = ["bible-kjv", "bible-kjv-text", "r-cran-janeaustenr", "r-cran-tokenizers", "dict-devil"]
HELD_OUT = 0.05
AUSTEN = {"sensesensibility": "sense_and_sensibility", "prideprejudice": "pride_and_prejudice",
          "mansfieldpark": "mansfield_park", "emma": "emma", "northangerabbey": "northanger_abbey",
          "persuasion": "persuasion"}


def fetch(folder, packages):
    """Downloads and unpacks packages; returns the root of the unpacked files."""
    root = folder / "root"
    root.mkdir(parents=True, exist_ok=True)
    try:
        subprocess.run(["apt-get", "download", *packages], cwd=folder, check=True)
        for package in sorted(folder.glob("*.deb")):
            subprocess.run(["dpkg-deb", "-x", package, root], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"{error}\nThis needs apt-get and dpkg-deb (Debian, Ubuntu) and current package lists: apt-get update")
    return root


class RObject:
    """Reads R's serialization in its XDR form, as far as lists of strings and numbers go (R Internals, 1.8)."""

    def __init__(self, data):
        assert data[:2] == b"X\n", "not R's XDR serialization"
        self.data, self.at, self.symbols = data, 2, []
        version = self.int()
        self.at += 8
        if version == 3:
            self.take(self.int())                           # the name of the native encoding

    def take(self, length):
        self.at += length
        return self.data[self.at - length:self.at]

    def int(self):
        return struct.unpack(">i", self.take(4))[0]

    def item(self):
        flags = self.int()
        kind, has_attributes, has_tag = flags & 255, flags & 512, flags & 1024
        if kind == 254:                                     # NULL
            return None
        if kind == 255:                                     # a symbol seen before
            return self.symbols[(flags >> 8) - 1]
        if kind == 1:                                       # a symbol
            self.symbols.append(self.item())
            return self.symbols[-1]
        if kind == 2:                                       # a pairlist
            if has_attributes:
                self.item()
            tag = self.item() if has_tag else None
            value = self.item()
            return [(tag, value), *(self.item() or [])]
        if kind == 9:                                       # one string
            length = self.int()
            return None if length < 0 else self.take(length).decode(errors="replace")
        length = self.int()
        if kind in (10, 13):
            value = [self.int() for _ in range(length)]
        elif kind == 14:
            value = list(struct.unpack(f">{length}d", self.take(8 * length)))
        elif kind in (16, 19):
            value = [self.item() for _ in range(length)]
        else:
            raise ValueError(f"R type {kind} is not read here")
        attributes = dict(self.item()) if has_attributes else {}
        return dict(zip(attributes["names"], value)) if "names" in attributes else value


def r_data(folder):
    """The objects of a package's lazy-load data: name -> value."""
    index = RObject(gzip.decompress((folder / "Rdata.rdx").read_bytes())).item()
    store = (folder / "Rdata.rdb").read_bytes()
    for name, (offset, length) in index["variables"].items():
        # 4 bytes of length, then zlib.
        yield name, RObject(zlib.decompress(store[offset + 4:offset + length])).item()


def bible(root):
    """A line of its name above each chapter, its verses as one paragraph."""
    program = root / "usr/bin/bible"
    printed = subprocess.run([program, "-p", root / "usr/lib", "-f", "gen1:1-rev99:99"], capture_output=True, text=True,
                             stdin=subprocess.DEVNULL, check=False).stdout
    chapters = {}
    for line in printed.splitlines():
        verse = re.match(r"(\S+?)(\d+):\d+ (.*)", line)
        if verse:
            chapters.setdefault(f"{verse[1]} {verse[2]}", []).append(verse[3])
    if len(chapters) != 1189:
        sys.exit(f"{program} printed {len(chapters)} chapters instead of 1189; does it run here?")
    return "\n\n".join(f"{name}\n{' '.join(verses)}" for name, verses in chapters.items())


def novel(lines):
    """Hard-wrapped lines to paragraphs of one line."""
    paragraphs = re.split(r"\n\s*\n", "\n".join(line.rstrip() for line in lines))
    return "\n\n".join(" ".join(p.split()) for p in paragraphs if p.strip())


def between(text, begin, end):
    """What stands behind `begin` and before `end`, without the edition's own notes."""
    return text.partition(begin)[2].partition(end)[0]


def dictionary(root, name):
    return gzip.decompress((root / f"usr/share/dictd/{name}.dict.dz").read_bytes()).decode()


def books(root, jargon):
    yield "king_james_bible", bible(root)
    for name, lines in r_data(root / "usr/lib/R/site-library/janeaustenr/data"):
        yield AUSTEN[name], novel(lines)
    moby = dict(r_data(root / "usr/lib/R/site-library/tokenizers/data"))["mobydick"]
    text = "\n".join(moby.values() if isinstance(moby, dict) else moby)
    yield "moby_dick", novel(between(text, "ETYMOLOGY.", "End of Project Gutenberg").splitlines())
    devil = between(dictionary(root, "devil"), "Aloysius", " abcdefghijklm")
    yield "devils_dictionary", devil.partition("\n\n")[2]
    if jargon:
        entries = between(dictionary(root, "jargon"), "29 Dec 2003”.)", " !$&'()*+,-./")
        yield "jargon_file", novel(entries.splitlines())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--jargon", action="store_true", help="the Jargon File too")
    arguments = parser.parse_args()
    out = arguments.out
    root = fetch(out / "packages", PACKAGES + ["dict-jargon"] * arguments.jargon)
    total = [0, 0]
    for name, text in books(root, arguments.jargon):
        text = text.strip() + "\n"
        cut = text.find("\n\n", int(len(text) * (1 - HELD_OUT))) + 2
        for side, (folder, part) in enumerate((("train", text[:cut]), ("held_out", text[cut:]))):
            (out / folder).mkdir(exist_ok=True)
            data = part.encode()
            (out / folder / f"{name}.txt").write_bytes(data)
            total[side] += len(data)
        print(f"{name}: {len(text.encode()):,} bytes")
    print(f"{out}: {total[0]:,} bytes to train on, {total[1]:,} held out")


if __name__ == "__main__":
    main()
