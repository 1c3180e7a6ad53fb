#!/usr/bin/env python3
"""Compares the ids of ./train tokenize with those of the tokenizers library (tokenizer.json) or of tiktoken (rank
files) on files of your own, and their speed on one thread.

    python3 scripts/verify_tokenizer.py TOKENIZER FILE... [--document-separator=blank]

Needs: pip install tokenizers (or tiktoken) numpy, and ./train built. Exit code 1 when an id differs. One thread's
speeds are by processor time, so that a busy machine does not matter; for ./train it is that of the whole command,
reading and writing files included, for the library that of encoding alone.
"""
import argparse
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import numpy  # noqa: E402

ROOT = pathlib.Path(__file__).parent.parent
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def here(tokenizer, path, separator, threads):
    """Ids by ./train tokenize, its processor time and its time, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [ROOT / "train", "tokenize", path, f"--tokenizer={tokenizer}", f"--document-separator={separator}",
                   "--val-fraction=0", "--bos=false", "--format=text", f"--out={folder}"]
        begun, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": threads})
        seconds, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return numpy.fromfile(f"{folder}/train.bin", dtype="<u4", offset=1024), used, seconds


def documents(text, separator):
    """The documents as ./train tokenize cuts them."""
    if separator == "none":
        return [text]
    found, lines = [], []
    for line in [*text.split("\n"), None]:
        bare = line.removesuffix("\r") if line is not None else None
        if bare is not None and (bare.strip(" \t") if separator == "blank" else bare != separator):
            lines.append(line)
        elif lines:
            found.append("\n".join(lines).removesuffix("\r"))
            lines = []
    return found


def library(tokenizer, texts):
    """Ids by the library, and its processor time in seconds."""
    if str(tokenizer).endswith(".json"):
        import tokenizers
        reference = tokenizers.Tokenizer.from_file(str(tokenizer))
        reference.encode_special_tokens = True      # names of specials in the text are text
        begun = time.process_time()
        ids = [e.ids for e in reference.encode_batch_fast(texts, add_special_tokens=False)]
    else:
        import tiktoken
        from tiktoken.load import load_tiktoken_bpe
        reference = tiktoken.Encoding("llama3", pat_str=LLAMA3, mergeable_ranks=load_tiktoken_bpe(str(tokenizer)),
                                      special_tokens={})
        begun = time.process_time()
        ids = [reference.encode_ordinary(t) for t in texts]
    seconds = time.process_time() - begun
    return numpy.concatenate([numpy.array(i, dtype="<u4") for i in ids]), seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokenizer", type=pathlib.Path)
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument("--document-separator", default="none")
    options = parser.parse_args()
    differ = False
    for path in options.files:
        megabytes = path.stat().st_size / 1e6
        ids, used, _ = here(options.tokenizer, path, options.document_separator, "1")
        all_ids, _, seconds = here(options.tokenizer, path, options.document_separator, str(os.cpu_count()))
        text = path.read_bytes().decode()
        expected, library_used = library(options.tokenizer, documents(text, options.document_separator))
        same = numpy.array_equal(ids, expected) and numpy.array_equal(all_ids, expected)
        differ |= not same
        print(f"{path}: {megabytes:.1f} MB, {len(expected):,} ids, {'the same' if same else 'NOT THE SAME'}; one thread "
              f"{megabytes / used:.1f} MB/s, {os.cpu_count()} threads {megabytes / seconds:.1f} MB/s, library "
              f"(one thread) {megabytes / library_used:.1f} MB/s")
        if not same:
            shared = min(len(ids), len(expected))
            first = numpy.append(numpy.flatnonzero(ids[:shared] != expected[:shared]), shared)[0]
            print(f"  first difference at id {first}: {ids[first:first + 5]} here, {expected[first:first + 5]} there")
    sys.exit(differ)


if __name__ == "__main__":
    main()
