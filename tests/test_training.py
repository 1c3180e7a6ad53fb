#!/usr/bin/env python3
"""Whole runs of ./train on small data: resuming, signals, accumulation, memory. Standard library only."""
import glob, json, math, os, random, resource, shutil, signal, struct, subprocess, sys, tempfile, time

TRAIN = os.path.abspath("./train")
WORK = tempfile.mkdtemp(prefix="training-")
TINY = {
    "schema_version": 1,
    "model": {"layers": 2, "hidden": 24, "ffn": 40, "heads": 6, "kv_heads": 2, "vocab": 131, "tie_embeddings": True},
    "train": {"steps": 24, "seq_len": 15, "micro_batch": 3, "accum": 2, "lr": 3e-3, "warmup_steps": 3},
    "val": {"every": 8, "batches": 0},
    "sample": {"every": 0},
    "checkpoint": {"every": 7, "keep_last": 0},
}
failed = 0


def test(function):
    """Runs a test at once and prints its line for scripts/run_tests.sh."""
    global failed
    try:
        function()
        print("ok -", function.__name__)
    except Exception as error:                        # noqa: BLE001: any failure is a failed test
        failed += 1
        print("not ok -", function.__name__)
        print("   ", type(error).__name__, error)


def write_shard(path, ids):
    """llm.c's uint32 form: 256 int32 of header, then the ids."""
    header = [20240801, 7, len(ids)] + [0] * 253
    with open(path, "wb") as f:
        f.write(struct.pack("<256i", *header) + struct.pack(f"<{len(ids)}I", *ids))


def config(name, **changes):
    """A config file with `section.key` changes (written section__key), its run directory being WORK/name."""
    c = json.loads(json.dumps(TINY))
    c["run"] = {"dir": os.path.join(WORK, name), "device": "cpu", "threads": 2}
    c["data"] = {"train": os.path.join(WORK, "train*.bin"), "val": os.path.join(WORK, "val.bin")}
    for key, value in changes.items():
        section, _, field = key.partition("__")
        c.setdefault(section, {})[field] = value
    path = os.path.join(WORK, name + ".json")
    with open(path, "w") as f:
        json.dump(c, f)
    return path


def run(*arguments, expect=0, environment={}):
    done = subprocess.run([TRAIN, *arguments], capture_output=True, text=True, env=os.environ | environment)
    if done.returncode != expect:
        raise AssertionError(f"exit code {done.returncode} instead of {expect}: {done.stderr[-2000:]}")
    return done


def losses(name):
    records = [json.loads(line) for line in open(os.path.join(WORK, name, "log.jsonl"))]
    return {r["step"]: (r["loss"], r["grad_norm"]) for r in records if "loss" in r}


def checkpoint(name, step, file):
    with open(os.path.join(WORK, name, "checkpoints", f"step-{step:08d}", file), "rb") as f:
        return f.read()


def same_end(a, b, step=24):
    first, second = losses(a), losses(b)
    assert sorted(first) == list(range(1, step + 1)), "steps are missing in the log"
    different = [s for s in first if first[s] != second[s]]
    assert not different, f"the log differs from step {different[0]} on"
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert checkpoint(a, step, file) == checkpoint(b, step, file), f"{file} differs"


def close_runs(a, b):
    first, second = losses(a), losses(b)
    assert sorted(first) == sorted(second)
    for step in first:
        assert abs(first[step][0] - second[step][0]) < 2e-5 * first[step][0], (step, first[step], second[step])


def stopped_at_step_7(name):
    """The config of a run that is as WORK/whole was then."""
    root = os.path.join(WORK, name)
    shutil.copytree(os.path.join(WORK, "whole"), root)
    for later in glob.glob(root + "/checkpoints/step-*"):
        if not later.endswith("00000007"):
            shutil.rmtree(later)
    return config(name)


random.seed(5)
# 45 rows of 15 tokens in two shards: 24 steps of 6 rows are three epochs and more
write_shard(os.path.join(WORK, "train0.bin"), [random.randrange(131) for _ in range(15 * 30 + 4)])
write_shard(os.path.join(WORK, "train1.bin"), [random.randrange(131) for _ in range(15 * 15 + 9)])
VAL = [random.randrange(131) for _ in range(200)]
write_shard(os.path.join(WORK, "val.bin"), VAL)
run(config("whole"))


@test
def resume_is_bitwise_across_an_epoch_edge_with_accumulation():
    told = run(stopped_at_step_7("parts"), "--resume").stderr
    assert "not bitwise" not in told, told
    same_end("whole", "parts")


@test
def interrupted_run_saves_and_continues_bitwise():
    path = config("interrupted")
    child = subprocess.Popen([TRAIN, path, "--run.log_every=1"], stderr=subprocess.PIPE, text=True)
    for line in child.stderr:
        if line.startswith("step 5/"):
            child.send_signal(signal.SIGINT)
            break
    child.stderr.read()
    if child.wait() == 130:                           # a fast machine may have finished already
        run(path, "--resume")
    same_end("whole", "interrupted")


@test
def killed_run_continues_bitwise_from_its_last_checkpoint():
    path = config("killed", checkpoint__every=2)
    child = subprocess.Popen([TRAIN, path, "--run.log_every=1"], stderr=subprocess.PIPE, text=True)
    for line in child.stderr:
        if line.startswith("step 9/"):
            child.kill()
            break
    child.stderr.read()
    child.wait()
    run(path, "--resume")
    same_end("whole", "killed")


@test
def other_libraries_are_told_not_bitwise():
    path, root = stopped_at_step_7("moved"), os.path.join(WORK, "moved")
    header = json.loads(open(os.path.join(root, "log.jsonl")).readline())
    core = "Prescott" if "Nehalem" in header["libraries"] else "Nehalem"
    told = run(path, "--resume", environment={"OPENBLAS_CORETYPE": core}).stderr     # counts as another library
    assert "other library versions" in told and "not bitwise" in told, told


@test
def other_parts_of_the_batch_are_told_not_bitwise():
    told = run(stopped_at_step_7("rechunked"), "--resume", "--train.head_chunk=7").stderr
    assert "other parts than before" in told and "not bitwise" in told, told
    close_runs("whole", "rechunked")


@test
def accumulation_changes_nothing_but_rounding():
    run(config("one_by_six", train__micro_batch=1, train__accum=6))
    close_runs("whole", "one_by_six")


@test
def accumulation_changes_nothing_where_rows_are_padded():
    """Rows of one to fifteen tokens: micro-batches differ in what counts, the step's mean is over all of it."""
    documents = [[130] + [random.randrange(130) for _ in range(random.randrange(1, 15))] for _ in range(400)]
    write_shard(os.path.join(WORK, "documents.bin"), [t for d in documents for t in d])
    padded = dict(data__train=os.path.join(WORK, "documents.bin"), data__rows="documents", data__boundary_token=130,
                  val__every=0, train__steps=12, checkpoint__every=0)
    run(config("padded_1x6", train__micro_batch=6, train__accum=1, **padded))
    run(config("padded_6x1", train__micro_batch=1, train__accum=6, **padded))
    close_runs("padded_1x6", "padded_6x1")
    tokens = [json.loads(line).get("tokens") for line in open(os.path.join(WORK, "padded_1x6", "log.jsonl"))]
    seen = [t for t in tokens if t][-1]
    assert 12 * 6 * 8 < seen < 12 * 6 * 15, f"{seen} tokens seen, with padding {12 * 6 * 15}"


def nats(logits, target):
    top = max(logits)
    return math.log(sum(math.exp(x - top) for x in logits)) + top - logits[target]


def validations(name):
    records = [json.loads(line) for line in open(os.path.join(WORK, name, "log.jsonl"))]
    return [r for r in records if "val_loss" in r]


@test
def validation_loss_is_the_mean_over_all_tokens():
    """Against the logits of the last checkpoint, window by window; the last window is shorter."""
    total = 0
    for begin in range(0, len(VAL) - 1, 15):
        ids = VAL[begin:min(begin + 15, len(VAL) - 1)]
        out = run("logits", os.path.join(WORK, "whole"), "--all", "--ids=" + ",".join(map(str, ids))).stdout
        for i, line in enumerate(out.splitlines()):
            total += nats([float(x) for x in line.split()], VAL[begin + i + 1])
    last = validations("whole")[-1]
    assert [v["step"] for v in validations("whole")] == [8, 16, 24]
    assert abs(last["val_loss"] - total / (len(VAL) - 1)) < 1e-5 * last["val_loss"], (last, total / (len(VAL) - 1))
    assert abs(math.log(last["val_ppl"]) - last["val_loss"]) < 1e-6


@test
def bits_per_byte_count_text_alone():
    """Rows of whole documents, padded: padding counts nowhere, an end of text as a target has nats and no byte."""
    texts = [[256] + [97 + i % 26 for i in range(n)] for n in (3, 14, 7, 29, 1, 11)]
    write_shard(os.path.join(WORK, "texts.bin"), [t for text in texts for t in text])
    run(config("bytes", model__vocab=258, data__train=os.path.join(WORK, "texts.bin"), val__rows="documents",
               data__val=os.path.join(WORK, "texts.bin"), data__tokenizer="bytes", data__boundary_token=256,
               train__steps=4, val__every=2))
    targets, letters = sum(map(len, texts)) - 1, sum(len(text) - 1 for text in texts)
    for v in validations("bytes"):
        expected = v["val_loss"] * targets / math.log(2) / letters
        assert abs(v["val_bits_per_byte"] - expected) < 1e-6 * expected, (v, expected)


@test
def dry_run_matches_the_peak_of_memory():
    """A plan of over 1 GB: what the process holds at its peak above what it held at its start."""
    path = config("large", model__vocab=40000, model__hidden=512, model__ffn=2048, model__layers=8, model__heads=8,
                  model__kv_heads=4, train__steps=2, train__accum=1, train__micro_batch=8, train__seq_len=64,
                  train__warmup_steps=0, val__every=0, checkpoint__every=0)
    printed = run(path, "--dry-run").stdout
    plan = int([line for line in printed.splitlines() if line.strip().startswith("total")][0].split()[1])
    assert plan > 1e9, plan

    def peak(*arguments):
        child = subprocess.Popen([TRAIN, path, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = status
        assert status == 0, status
        return usage.ru_maxrss * 1024
    start = peak("--print-config")
    ratio = (peak() - start) / plan
    assert 0.95 < ratio < 1.05, f"peak above the start is {ratio:.3f} of the plan"


@test
def cached_and_whole_passes_give_the_same_logits():
    ids = ",".join(str((i * 37) % 131) for i in range(13))
    root = os.path.join(WORK, "whole")
    each = run("logits", root, "--ids=" + ids, "--all").stdout.splitlines()
    last = run("logits", root, "--ids=" + ids).stdout.splitlines()
    a, b = [[float(x) for x in line.split()] for line in (each[-1], last[0])]
    assert len(a) == 131 and max(abs(x - y) for x, y in zip(a, b)) < 1e-5


shutil.rmtree(WORK)
sys.exit(1 if failed else 0)
