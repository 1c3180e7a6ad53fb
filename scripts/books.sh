#!/usr/bin/env bash
# Trains a 32M-parameter model on public-domain books, on a GPU: data, 1,000 steps, figure.
#
#   scripts/books.sh [--section.key=value ...]     (Debian or Ubuntu; apt-get update once before)
#
# Makes build/books (texts, tokens, tokenizer), runs/books (the run) and docs/books.svg (its curves).
set -eu
cd "$(dirname "$0")/.."
[ -d build/books/train ] || python3 scripts/fetch_books.py build/books
[ -f build/books/tokens/train.bin ] || ./train tokenize build/books/train --val-file=build/books/held_out \
    --tokenizer=train:8192 --out=build/books/tokens
./train configs/books.json --run.overwrite=true "$@"
python3 scripts/plot_runs.py docs/books.svg "32M parameters on public-domain books" runs/books
