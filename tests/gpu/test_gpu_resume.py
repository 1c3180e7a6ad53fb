#!/usr/bin/env python3
"""Whole runs of ./train on the GPU: with separate kernels, fused ones and measured choices, a run that stops
and resumes ends with the bits of one that does not, a second start measures nothing, and validation and samples
work. Standard library only.
Prints one "ok - " or "not ok - " line a test.
"""
import json
import os
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile

TRAIN = os.path.abspath("./train")
STEPS, STOP, SEQ = 12, 6, 256
VOCAB = 5120        # like ffn, enough for weight gradients to be fused too
CONFIG = {
    "schema_version": 1,
    "run": {"device": "cuda", "log_every": 1},
    "model": {"layers": 2, "hidden": 512, "ffn": 2560, "heads": 8, "kv_heads": 4, "vocab": VOCAB,
              "tie_embeddings": True},
    "train": {"steps": STEPS, "seq_len": SEQ, "micro_batch": 4, "accum": 2, "lr": 1e-3, "warmup_steps": 3,
              "deterministic": True},
    "data": {"tokenizer": "bytes"},
    "val": {"every": STOP, "batches": 0},
    "sample": {"every": STOP, "tokens": 24, "prompt": "to be "},
    "checkpoint": {"every": STOP, "keep_last": 0},
}
failures = 0


class NoGpu(Exception):
    pass


def check(name, work, *arguments):
    """Runs a test and prints its line for scripts/run_tests.sh."""
    global failures
    try:
        detail = work(*arguments)
        print(f"ok - {name}{': ' + detail if detail else ''}", flush=True)
    except (AssertionError, OSError) as error:
        failures += 1
        print(f"not ok - {name}: {error}", flush=True)


def write_shard(path, ids):
    """llm.c's uint32 form: 256 int32 of header, then the ids."""
    with open(path, "wb") as f:
        f.write(struct.pack("<256i", 20240801, 7, len(ids), *[0] * 253) + struct.pack(f"<{len(ids)}I", *ids))


def make_data(folder):
    """44 rows: the 8 rows of a step cross an epoch's edge in steps 6 and 11, before and after the stop."""
    rng = random.Random(5)
    write_shard(os.path.join(folder, "train.bin"), [rng.randrange(32, 127) for _ in range(44 * SEQ + 5)])
    write_shard(os.path.join(folder, "val.bin"), [rng.randrange(32, 127) for _ in range(5 * SEQ)])


def write_config(folder, name, fusion):
    values = json.loads(json.dumps(CONFIG))
    values["train"]["moments"] = "bf16" if fusion == "all" else "fp32"
    values["run"]["dir"] = os.path.join(folder, name)
    values["data"] |= {"train": os.path.join(folder, "train.bin"), "val": os.path.join(folder, "val.bin")}
    values["fusion"] = fusion
    path = os.path.join(folder, name + ".json")
    with open(path, "w") as f:
        json.dump(values, f)
    return path


def train(cache, *arguments):
    """cache: where measured choices of kernels are kept."""
    done = subprocess.run([TRAIN, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          errors="replace", env=os.environ | {"XDG_CACHE_HOME": cache})
    missing = re.search(r"run\.device=cuda: .*", done.stderr)
    if done.returncode == 2 and missing:
        raise NoGpu(missing[0])
    assert done.returncode == 0, f"{arguments}: exit code {done.returncode}: {done.stderr[-2000:]}"
    return done


def records(run):
    with open(os.path.join(run, "log.jsonl")) as f:
        return [json.loads(line) for line in f]


def checkpoint(run, step):
    return os.path.join(run, "checkpoints", f"step-{step:08d}")


def tuned(directory):
    """The choices that were measured, as a checkpoint keeps them."""
    with open(os.path.join(directory, "manifest.json")) as f:
        return {choice for choice in json.load(f)["choices"] if choice.startswith("tuned ")}


def tensors(path):
    """Bytes of each tensor of a safetensors file."""
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        data = f.read()
    header.pop("__metadata__", None)
    return {name: data[slice(*about["data_offsets"])] for name, about in header.items()}


def same_end(first, second):
    losses = [{r["step"]: (r["loss"], r["grad_norm"]) for r in records(run) if "loss" in r}
              for run in (first, second)]
    assert sorted(losses[0]) == sorted(losses[1]) == list(range(1, STEPS + 1)), "steps are missing in a log"
    different = [step for step in losses[0] if losses[0][step] != losses[1][step]]
    assert not different, f"losses or norms differ from step {different[0]} on"
    count = 0
    for file in ("model.safetensors", "optimizer.safetensors"):
        a, b = (tensors(os.path.join(checkpoint(run, STEPS), file)) for run in (first, second))
        different = [name for name in a if a[name] != b.get(name)]
        assert a.keys() == b.keys(), f"{file}: not the same tensors"
        assert not different, f"{file}: {len(different)} of {len(a)} tensors differ: {different[:4]}"
        count += len(a)
    return count


def resume_is_bitwise(folder, fusion):
    first, second = os.path.join(folder, "whole"), os.path.join(folder, "parts")
    train(os.path.join(folder, "cache"), write_config(folder, "whole", fusion))
    shutil.copytree(first, second)
    shutil.rmtree(checkpoint(second, STEPS))
    # an empty cache: what was measured can only come from the checkpoint
    resumed = train(os.path.join(folder, "empty"), write_config(folder, "parts", fusion), "--resume")
    assert "not bitwise" not in resumed.stderr, resumed.stderr[-2000:]
    before, after = tuned(checkpoint(first, STOP)), tuned(checkpoint(second, STEPS))
    assert after <= before, f"the resumed run chose anew: {sorted(after - before)[:4]}"
    return f"{same_end(first, second)} tensors, {len(before)} measured choices"


def says_what_is_not_bitwise(folder, fusion):
    resumed = train(os.path.join(folder, "cache"), write_config(folder, "parts", fusion), "--resume",
                    "--train.deterministic=false")
    for cause in ("other kernels than before", "without train.deterministic=true"):
        assert re.search(f"{cause}.*not bitwise", resumed.stderr), resumed.stderr[-2000:]


def second_start_measures_nothing(folder, fusion):
    cold, warm = (train(os.path.join(folder, "kept"), write_config(folder, name, fusion), "--train.steps=3").stderr
                  for name in ("cold", "warm"))
    assert "measuring which kernels" in cold, cold[-2000:]
    assert "measuring which kernels" not in warm, warm[-2000:]


def validates_and_samples(folder):
    """In training, and by the commands that read a checkpoint."""
    run, cache = os.path.join(folder, "whole"), os.path.join(folder, "cache")
    log = records(run)
    for kind in ("val_loss", "sample"):
        steps = [r["step"] for r in log if kind in r]
        assert steps == [STOP, STEPS], f"{kind} in the log at steps {steps}"
    assert all(0 < r["val_loss"] < 16 for r in log if "val_loss" in r), "a validation loss is not plausible"
    told = [r for r in log if "choices" in r and "header" not in r]
    assert [r["step"] for r in told] == [1], "what carries out each op is not in the log once, after the first step"
    assert any(choice.startswith("tuned ") for choice in told[0]["choices"]), "nothing measured is among the choices"
    text = train(cache, "sample", run, "--prompt=to be ", "--count=2").stdout
    assert len(text) > 2, f"the sample is {text!r}"
    ids = ",".join(map(str, range(40, 40 + 7)))
    logits = train(cache, "logits", run, "--ids=" + ids).stdout.split()
    assert len(logits) == VOCAB and all(abs(float(x)) < 1e3 for x in logits), "logits are not plausible"


def main():
    for fusion in ("none", "all", "auto"):
        with tempfile.TemporaryDirectory() as folder:
            make_data(folder)
            check(f"resume is bitwise, fusion={fusion}", resume_is_bitwise, folder, fusion)
            check(f"a resumed run says what is not bitwise, fusion={fusion}", says_what_is_not_bitwise, folder, fusion)
            check(f"validation and samples, fusion={fusion}", validates_and_samples, folder)
            check(f"a second start measures nothing, fusion={fusion}", second_start_measures_nothing, folder, fusion)
    sys.exit(failures != 0)


if __name__ == "__main__":
    try:
        main()
    except NoGpu as reason:
        print(f"not checked: {reason}")
