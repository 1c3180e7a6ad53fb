#!/usr/bin/env python3
"""Text data sets to token shards: fetches or reads documents and hands them to ./train tokenize.

    python3 scripts/prepare_data.py tinystories --out=DIR --tokenizer=train:4096
    python3 scripts/prepare_data.py fineweb-edu --files=2 --out=DIR --tokenizer=PATH/tokenizer.json
    python3 scripts/prepare_data.py FILE.parquet DIRECTORY ... --column=text --out=DIR

tinystories   TinyStoriesV2 of the Hugging Face hub (roneneldan/TinyStories, CDLA-Sharing-1.0), 2.2 GB, with its own
              held-out file
fineweb-edu   the first --files parquet files (each 2 to 3 GB) of the 10-billion-token sample of FineWeb-Edu
              (HuggingFaceFW/fineweb-edu, ODC-By 1.0)
files         .parquet files, or directories of them: each row's --column is a document

Every other option (--tokenizer, --val-fraction, --dtype, --shard-tokens, ...) goes to ./train tokenize as it is.
Needs pyarrow for parquet and huggingface_hub to fetch: pip install pyarrow huggingface_hub. Documents pass through a
pipe, and ./train keeps them in a temporary file (in $TMPDIR) while it works.
"""
import argparse
import json
import pathlib
import subprocess
import sys

TRAIN = pathlib.Path(__file__).parent.parent / "train"
TINYSTORIES = "roneneldan/TinyStories"
FINEWEB = "HuggingFaceFW/fineweb-edu"


def need(module, package):
    try:
        return __import__(module, fromlist=["x"])
    except ImportError:
        sys.exit(f"this needs {package}: pip install {package}")


def tokenize(inputs, options, rows=()):
    """Runs ./train tokenize, with rows as lines of JSON on its standard input."""
    command = [TRAIN, "tokenize", *inputs, *options]
    if not rows:
        sys.exit(subprocess.run(command, check=False).returncode)
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        for row in rows:
            process.stdin.write(json.dumps({"text": row}, ensure_ascii=False).encode(errors="replace") + b"\n")
        process.stdin.close()
    except BrokenPipeError:
        pass                        # it stopped, and has said why
    except BaseException:
        process.kill()              # the end of its input must not look like the end of the data
        process.wait()
        raise
    sys.exit(process.wait())


def tinystories(options):
    hub = need("huggingface_hub", "huggingface_hub")
    train, held_out = (hub.hf_hub_download(TINYSTORIES, f"TinyStoriesV2-GPT4-{side}.txt", repo_type="dataset")
                       for side in ("train", "valid"))
    tokenize([train], [f"--val-file={held_out}", "--document-separator=<|endoftext|>", "--format=text", *options])


def fineweb_files(count):
    hub = need("huggingface_hub", "huggingface_hub")
    names = sorted(n for n in hub.list_repo_files(FINEWEB, repo_type="dataset")
                   if n.startswith("sample/10BT/") and n.endswith(".parquet"))
    if not names:
        sys.exit(f"{FINEWEB} has no parquet files in sample/10BT")
    return [hub.hf_hub_download(FINEWEB, n, repo_type="dataset") for n in names[:count]]


def parquet_files(paths):
    found = []
    for path in map(pathlib.Path, paths):
        inside = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
        if not inside or not all(p.is_file() for p in inside):
            sys.exit(f"{path}: {'holds no .parquet file' if path.is_dir() else 'no such file'}")
        found += inside
    return found


def parquet_rows(paths, column):
    """The column's texts, a batch of rows in memory at a time."""
    parquet = need("pyarrow.parquet", "pyarrow")
    for path in paths:
        try:
            file = parquet.ParquetFile(path)
        except Exception as error:
            sys.exit(f"{path}: not a parquet file: {error}")
        if column not in file.schema_arrow.names:
            sys.exit(f"{path}: has no column {column}; it has {', '.join(file.schema_arrow.names)}")
        for batch in file.iter_batches(columns=[column]):
            for text in batch.column(0).to_pylist():
                if text:
                    yield text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", nargs="+")
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument("--column", default="text")
    arguments, options = parser.parse_known_args()
    if not TRAIN.exists():
        sys.exit("./train is not built yet: make")
    if arguments.source == ["tinystories"]:
        tinystories(options)
    paths = (fineweb_files(arguments.files) if arguments.source == ["fineweb-edu"] else
             parquet_files(arguments.source))
    tokenize(["-"], ["--format=jsonl", *options], parquet_rows(paths, arguments.column))


if __name__ == "__main__":
    main()
