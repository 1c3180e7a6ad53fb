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


def run(*arguments, expect=0):
    done = subprocess.run([TRAIN, *arguments], capture_output=True, text=True)
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


random.seed(5)
# 45 rows of 15 tokens in two shards: 24 steps of 6 rows are three epochs and more
write_shard(os.path.join(WORK, "train0.bin"), [random.randrange(131) for _ in range(15 * 30 + 4)])
write_shard(os.path.join(WORK, "train1.bin"), [random.randrange(131) for _ in range(15 * 15 + 9)])
write_shard(os.path.join(WORK, "val.bin"), [random.randrange(131) for _ in range(200)])
run(config("whole"))


@test
def resume_is_bitwise_across_an_epoch_edge_with_accumulation():
    path = config("parts")
    shutil.copytree(os.path.join(WORK, "whole"), os.path.join(WORK, "parts"))
    root = os.path.join(WORK, "parts")
    for later in glob.glob(root + "/checkpoints/step-*"):
        if not later.endswith("00000007"):
            shutil.rmtree(later)
    run(path, "--resume")
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
def second_run_in_the_same_directory_is_refused():
    done = run(os.path.join(WORK, "whole.json"), expect=2)
    assert "--resume" in done.stderr and "overwrite" in done.stderr, done.stderr


@test
def changed_architecture_is_refused_on_resume():
    done = run(os.path.join(WORK, "whole.json"), "--resume", "--model.layers=3", "--train.lr=1e-4", expect=2)
    assert "model.layers" in done.stderr, done.stderr


@test
def accumulation_changes_nothing_but_rounding():
    run(config("one_by_six", train__micro_batch=1, train__accum=6))
    a, b = losses("whole"), losses("one_by_six")
    for step in a:
        assert abs(a[step][0] - b[step][0]) < 2e-5 * a[step][0], (step, a[step], b[step])


@test
def validation_loss_is_the_mean_over_all_tokens():
    records = [json.loads(line) for line in open(os.path.join(WORK, "whole", "log.jsonl"))]
    values = [r["val_loss"] for r in records if "val_loss" in r]
    assert len(values) == 3 and all(3 < v < 7 for v in values), values
    ppl = [r["val_ppl"] for r in records if "val_loss" in r]
    assert all(abs(math.log(p) - v) < 1e-6 for p, v in zip(ppl, values))


@test
def one_batch_is_learnt_by_heart():
    run(config("overfit", train__overfit_batch=1, train__steps=150, train__accum=1, train__lr=1e-2, val__every=0))
    a = losses("overfit")
    assert a[150][0] < 0.1 * a[1][0], (a[1], a[150])


@test
def non_finite_loss_stops_with_code_3_and_names_a_tensor():
    done = run(config("explodes", train__lr=10, train__weight_decay=1, train__warmup_steps=0,
                      train__steps=200, val__every=0, checkpoint__every=0), expect=3)
    assert "not finite" in done.stderr and "non-finite values of" in done.stderr, done.stderr


@test
def report_is_one_page_without_network():
    page = open(os.path.join(WORK, "whole", "report.html")).read()
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "") and "https://" not in page, "loads from a network"


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
