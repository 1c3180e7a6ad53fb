#!/usr/bin/env python3
"""Which settings make the demo learn: one setting changed at a time, several seeds each.

    scripts/demo_study.py --jobs=8 --results=study.jsonl         run what is not there yet, then the table
    scripts/demo_study.py --settings=base,tied --seeds=1,2 ...   some of it
    scripts/demo_study.py --table --results=study.jsonl          the table alone

Needs only ./train and Python's standard library. Each run is pinned to its own cores; still, leave --jobs=1
where times must be exact. Every run sees about as many token positions as configs/demo.json says.
"""
import argparse
import json
import lzma
import os
import pathlib
import queue
import re
import statistics
import subprocess
import sys
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TRAIN = ROOT / "train"
CONFIG = ROOT / "configs" / "demo.json"

# name: (what is changed, overrides of the configuration, overrides of the corpus).
# Corpus keys: vocab (0 = bytes), bytes.
SETTINGS = {
    "base": ("configs/demo.json", {}, {}),
    "tied": ("head and embedding share a table", {"model.tie_embeddings": "true"}, {}),
    "tied_small": ("tied, embedding init 0.02",
                   {"model.tie_embeddings": "true", "model.embedding_init_std": 0.02}, {}),
    "embed_0.02": ("embedding init 0.02", {"model.embedding_init_std": 0.02}, {}),
    "embed_1.0": ("embedding init 1.0", {"model.embedding_init_std": 1.0}, {}),
    "beta2_0.99": ("beta2 0.99", {"train.beta2": 0.99}, {}),
    "beta2_0.999": ("beta2 0.999", {"train.beta2": 0.999}, {}),
    "lr_0.75e-3": ("learning rate 0.75e-3", {"train.lr": 0.75e-3}, {}),
    "lr_3e-3": ("learning rate 3e-3", {"train.lr": 3e-3}, {}),
    "lr_6e-3": ("learning rate 6e-3", {"train.lr": 6e-3}, {}),
    "rows_2": ("2 rows a step, twice the steps", {"train.micro_batch": 2, "train.steps": "*2"}, {}),
    "rows_8": ("8 rows a step, half the steps", {"train.micro_batch": 8, "train.steps": "/2"}, {}),
    "stream": ("rows from the stream", {"data.rows": "stream", "data.document_mask": "false"}, {}),
    "stream_masked": ("rows from the stream, attention inside stories",
                      {"data.rows": "stream", "data.document_mask": "true"}, {}),
    "documents": ("a story a row, padded", {"data.rows": "documents", "data.document_mask": "false"}, {}),
    "documents_2": ("two stories a row, apart",
                    {"data.rows": "documents", "data.document_mask": "true", "train.seq_len": 320,
                     "train.steps": "*0.6"}, {}),
    "layers_2": ("2 layers", {"model.layers": 2}, {}),
    "layers_4": ("4 layers", {"model.layers": 4}, {}),
    "heads_2": ("2 heads of 64", {"model.heads": 2, "model.kv_heads": 2}, {}),
    "heads_8": ("8 heads of 16", {"model.heads": 8, "model.kv_heads": 8}, {}),
    "hidden_96": ("width 96", {"model.hidden": 96, "model.ffn": 288}, {}),
    "hidden_160": ("width 160", {"model.hidden": 160, "model.ffn": 480}, {}),
    "no_decay": ("no weight decay", {"train.weight_decay": 0}, {}),
    "wsd": ("WSD schedule", {"train.schedule": "wsd"}, {}),
    "min_lr_0": ("learning rate falls to 0", {"train.min_lr_ratio": 0}, {}),
    "vocab_1024": ("1,024 tokens", {}, {"vocab": 1024}),
    "vocab_1536": ("1,536 tokens", {}, {"vocab": 1536}),
    "vocab_3072": ("3,072 tokens", {}, {"vocab": 3072}),
    "bytes": ("bytes, rows of 768",
              {"train.seq_len": 768, "train.micro_batch": 1, "sample.tokens": 760}, {"vocab": 0}),
    "corpus_4MB": ("a third of the corpus, three times", {}, {"bytes": 4_700_000}),
}
CORPUS = {"vocab": 2048, "bytes": 14_000_000}


def call(*command, cores=None, threads=2):
    """Runs a command and returns its standard output; a failure raises with all that it printed."""
    environment = dict(os.environ, OMP_NUM_THREADS=str(threads))
    pin = (lambda: os.sched_setaffinity(0, cores)) if cores else None
    done = subprocess.run([str(c) for c in command], capture_output=True, encoding="utf-8", errors="replace",
                          env=environment, preexec_fn=pin, cwd=ROOT)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def number(pattern, text):
    found = re.search(pattern, text)
    if not found:
        raise RuntimeError(f"no {pattern!r} in:\n{text}")
    return float(found.group(1))


def corpus_facts(texts, size):
    """Makes the corpus once; its entropy and what xz -9e leaves of it, in bits per byte."""
    facts = texts / "facts.json"
    if not facts.exists():
        texts.mkdir(parents=True, exist_ok=True)
        call(TRAIN, "story", "generate", f"--bytes={size}", "--held-out=0.03", f"--out={texts}")
        text = (texts / "train.txt").read_bytes()
        packed = lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
        entropy = number(r"entropy: ([\d.]+)", call(TRAIN, "story", "entropy", texts / "held_out.txt"))
        facts.write_text(json.dumps({"entropy": entropy, "xz": 8 * len(packed) / len(text)}))
    return json.loads(facts.read_text())


def prepare(work, corpus):
    """Makes the corpus and its shards once; returns their directory and the corpus' figures."""
    texts = work / f"corpus_{corpus['bytes']}"
    facts = corpus_facts(texts, corpus["bytes"])
    shards = texts / f"vocab_{corpus['vocab']}"
    if not (shards / "val.bin").exists():
        tokenizer = f"train:{corpus['vocab']}" if corpus["vocab"] else "bytes"
        call(TRAIN, "tokenize", texts / "train.txt", f"--val-file={texts / 'held_out.txt'}",
             "--document-separator=blank", f"--tokenizer={tokenizer}", f"--out={shards}", "--overwrite=true")
    return shards, facts


def overrides(changes, defaults):
    for key, value in changes.items():
        if isinstance(value, str) and value[0] in "*/":
            section, name = key.split(".")
            factor = float(value[1:])
            base = defaults[section][name]
            value = round(base * factor if value[0] == "*" else base / factor)
        yield f"--{key}={value}"


def run(name, seed, work, threads, cores, samples):
    _, changes, corpus_changes = SETTINGS[name]
    shards, facts = prepare(work, CORPUS | corpus_changes)
    directory = work / "runs" / f"{name}_{seed}"
    defaults = json.loads(CONFIG.read_text())
    tokenizer = shards / "tokenizer.json"
    begun = time.time()
    call(TRAIN, CONFIG, f"--run.dir={directory}", "--run.overwrite=true", f"--run.seed={seed}",
         "--run.device=cpu", f"--run.threads={threads}",
         f"--data.train={shards / 'train.bin'}", f"--data.val={shards / 'val.bin'}",
         f"--data.tokenizer={tokenizer if tokenizer.exists() else 'bytes'}", "--val.rows=documents",
         "--val.batches=0", "--val.every=1200", "--sample.every=0", "--checkpoint.every=0",
         *overrides(changes, defaults), cores=cores, threads=threads)
    seconds = time.time() - begun
    log = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
    validations = [[r["step"], r["val_bits_per_byte"]] for r in log if "val_bits_per_byte" in r]
    text = call(TRAIN, "sample", directory, f"--count={samples}", "--run.seed=1", "--sample.temperature=0.8",
                "--run.device=cpu", f"--run.threads={threads}", cores=cores, threads=threads)
    (directory / "samples.txt").write_text(text)
    report = call(TRAIN, "story", "check", directory / "samples.txt",
                  f"--against={shards.parent / 'train.txt'}")
    return {
        "setting": name, "seed": seed, "seconds": round(seconds, 1), "parameters": log[0].get("parameters"),
        "entropy": facts["entropy"], "xz": round(facts["xz"], 4), "validations": validations,
        "bits_per_byte": validations[-1][1],
        "stories": int(number(r": (\d+) stories", report)),
        "carry": number(r"carries name and object through: ([\d.]+)", report),
        "hold": number(r"holds together: ([\d.]+)", report),
        "known": int(number(r"found in \S+: (\d+)", report)),
        "example": text[:700],
    }


def table(results):
    """A line per setting: mean over the seeds, and each seed."""
    print("| setting | changed | parameters | seconds | val bits/byte ÷ H | ÷ xz -9e "
          "| name and object carried, % | holds together, % |")
    print("|---|---|---|---|---|---|---|---|")
    for name, (changed, _, _) in SETTINGS.items():
        rows = sorted((r for r in results if r["setting"] == name), key=lambda r: r["seed"])
        if not rows:
            continue

        def mean_and_each(values, form):
            each = " ".join(form.format(v) for v in values)
            return f"**{form.format(statistics.mean(values))}** ({each})"

        seconds = statistics.mean(r["seconds"] for r in rows)
        print(f"| {name} | {changed} | {rows[0]['parameters']:,} | {seconds:.0f} | "
              f"{mean_and_each([r['bits_per_byte'] / r['entropy'] for r in rows], '{:.2f}')} | "
              f"{mean_and_each([r['bits_per_byte'] / r['xz'] for r in rows], '{:.2f}')} | "
              f"{mean_and_each([r['carry'] for r in rows], '{:.0f}')} | "
              f"{mean_and_each([r['hold'] for r in rows], '{:.0f}')} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", default=",".join(SETTINGS), help="names, separated by commas")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--threads", type=int, default=2, help="of each run")
    parser.add_argument("--samples", type=int, default=200, help="stories written by each model")
    parser.add_argument("--work", default="build/study", help="corpora and runs")
    parser.add_argument("--results", default="build/study/results.jsonl", help="a line a run; these are skipped")
    parser.add_argument("--table", action="store_true", help="only print the table")
    options = parser.parse_args()
    names = options.settings.split(",")
    unknown = [n for n in names if n not in SETTINGS]
    if unknown:
        parser.error(f"unknown settings {', '.join(unknown)}; known: {', '.join(SETTINGS)}")
    seeds = [int(s) for s in options.seeds.split(",")]
    work = (ROOT / options.work).resolve()
    path = (ROOT / options.results).resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    results = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    if options.table:
        return table(results)

    done = {(r["setting"], r["seed"]) for r in results}
    todo = queue.Queue()
    for seed in seeds:
        for name in names:
            if (name, seed) not in done:
                todo.put((name, seed))
    for name in names:
        prepare(work, CORPUS | SETTINGS[name][2])
    available = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    lock = threading.Lock()
    failures = []

    def worker(slot):
        cores = available[slot * options.threads:(slot + 1) * options.threads]
        cores = cores if len(cores) == options.threads else None
        while True:
            try:
                name, seed = todo.get_nowait()
            except queue.Empty:
                return
            try:
                result = run(name, seed, work, options.threads, cores, options.samples)
            except RuntimeError as error:
                failures.append(name)
                print(f"{name}, seed {seed} failed: {error}", file=sys.stderr, flush=True)
                continue
            with lock:
                results.append(result)
                with path.open("a") as file:
                    file.write(json.dumps(result) + "\n")
                print(f"{name}, seed {seed}: {result['bits_per_byte'] / result['entropy']:.3f} H, carried "
                      f"{result['carry']:.0f} %, {result['seconds']:.0f} s", flush=True)

    workers = [threading.Thread(target=worker, args=(slot,)) for slot in range(options.jobs)]
    for thread in workers:
        thread.start()
    for thread in workers:
        thread.join()
    table(results)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
