#!/usr/bin/env python3
"""The program as a user meets it: command lines, messages, exit codes, run directories. Runs ./train."""
import json
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
TMP = pathlib.Path(tempfile.mkdtemp(prefix="coda-cli."))
TINY = {
    "run": {"device": "cpu", "threads": 2, "log_every": 1},
    "model": {"layers": 2, "hidden": 32, "ffn": 64, "heads": 4, "kv_heads": 2, "vocab": 258},
    "train": {"steps": 6, "seq_len": 16, "micro_batch": 2, "accum": 2, "lr": 1e-3, "warmup_steps": 0,
              "schedule": "constant"},
    "data": {"train": str(TMP / "train.bin"), "val": str(TMP / "val.bin"), "tokenizer": "bytes"},
    "val": {"every": 3, "batches": 2},
    "checkpoint": {"every": 2, "keep_last": 0},
}


def shard(path, ids, magic=20240520, version=1, count=None):
    header = struct.pack("<3i", magic, version, len(ids) if count is None else count)
    path.write_bytes(header.ljust(1024, b"\0") + struct.pack(f"<{len(ids)}H", *ids))


def config(name="tiny.json", text=None, **changes):
    values = json.loads(json.dumps(TINY))
    for key, value in changes.items():
        section, field = key.split("__")
        values[section][field] = value
    path = TMP / name
    path.write_text(json.dumps(values, indent=1) if text is None else text)
    return str(path)


def train(*words, **options):
    return subprocess.run([str(ROOT / "train"), *map(str, words)], cwd=ROOT, stdin=subprocess.DEVNULL, text=True,
                          capture_output=True, errors="replace", timeout=120, **options)


def errors_of(result):
    return [line for line in result.stderr.splitlines() if line.startswith("error: ")]


def records(run, kind=None):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [r for r in lines if kind is None or kind in r]


def losses(run):
    return {r["step"]: r["loss"] for r in records(run, "loss")}


def newest(run):
    return sorted((run / "checkpoints").glob("step-*"))[-1]


def expect(condition, *shown):
    if not condition:
        raise AssertionError("\n".join((str(getattr(s, "stderr", s)) + str(getattr(s, "stdout", "")))[-2000:] for s in shown))


# ---- usage and configuration -------------------------------------------------------------------------

def test_help():
    result = train("--help")
    expect(result.returncode == 0 and "exit codes" in result.stdout and "train.warmup_steps" in result.stdout, result)


def test_no_arguments_is_usage():
    expect(train().returncode == 2)


def test_every_command_explains_itself():
    for command in "sample bench report import export logits tokenize story".split():
        result = train(command, "--help")
        expect(result.returncode == 0 and result.stdout.startswith(f"usage: ./train {command}"), result)
        result = train(command)
        expect(result.returncode == 2 and f"usage: ./train {command}" in result.stderr, command, result)


def test_unknown_argument():
    result = train(config(), "--resme")
    expect(result.returncode == 2 and 'unknown argument "--resme"; did you mean "--resume"?' in result.stderr, result)
    result = train("sample", TMP, "--colour=red")
    expect(result.returncode == 2 and 'unknown argument "--colour=red"; see --help' in result.stderr, result)


def test_missing_config_file():
    result = train(TMP / "absent.json")
    expect(result.returncode == 2 and "absent.json" in result.stderr, result)


def test_commands_report_all_mistakes_at_once():
    for words, said in ((["bench", config(), "--steps=x", "--foo.x=1", "--model.hidden=13", "--nope"],
                         ("--nope", "--steps=x", "foo.x", "model.hidden = 13")),
                        (["export", TMP / "none", "there", "--foo.x=1", "--nope"], ("--nope", "foo.x", "none")),
                        (["import", "there", TMP / "none", "--train.steps=0", "--nope"], ("--nope", "train.steps")),
                        (["sample", TMP / "none", "--count=x", "--train.lr=y"], ("--count=x", "train.lr", "none")),
                        (["logits", TMP / "none", "--train.lr=y"], ("--ids", "train.lr", "none"))):
        result = train(*words)
        expect(result.returncode == 2 and all(word in result.stderr for word in said), words, result)


def test_two_mistakes_are_reported_at_once():
    result = train("configs/demo.json", "--train.warmup_step=3", "--model.heads=7")
    expect(result.returncode == 2, result)
    expect('did you mean "train.warmup_steps"' in result.stderr, result)
    expect(any("heads" in line and "7" in line for line in errors_of(result)), result)


def test_missing_files_and_a_run_in_the_way_are_reported_too():
    run = TMP / "in-the-way"
    run.mkdir()
    (run / "config.json").write_text("{}")
    (run / "log.jsonl").write_text("")
    result = train(config(), "--train.warmup_step=3", "--model.heads=7", "--train.warmup_steps=99",
                   f"--data.train={TMP}/none-*.bin", f"--data.val={TMP}/none.bin", f"--run.dir={run}")
    expect(result.returncode == 2, result)
    for words in ('"train.warmup_steps"', "model.heads = 7", "train.warmup_steps = 99", "none-*.bin: no file matches",
                  "none.bin: no such file", "in-the-way: it holds a run already"):
        expect(words in result.stderr, words, result)


def test_every_mistake_of_a_file_has_its_line():
    path = config("wrong.json", text='{\n "train": {\n  "steps": "10",\n  "lr": 1e-3,\n  "lr": 2e-3\n },\n'
                                     ' "modle": {}\n}\n')
    result = train(path, "--dry-run")
    expect(result.returncode == 2, result)
    expect("wrong.json:3" in result.stderr and "train.steps" in result.stderr, result)
    expect("wrong.json:5" in result.stderr and '"lr"' in result.stderr, result)
    expect("wrong.json:7" in result.stderr and "model" in result.stderr, result)


def test_text_behind_the_configuration():
    result = train(config("more.json", text='{\n "train": {"steps": 10}\n} trailing\n'), "--dry-run")
    expect(result.returncode == 2 and "more.json:3" in result.stderr, result)


def test_newer_schema_is_refused():
    result = train(config("newer.json", text='{"schema_version": 99}'), "--dry-run")
    expect(result.returncode == 2 and "schema_version" in result.stderr, result)


def test_print_config_names_origins():
    result = train(config(), "--train.lr=0.5", "--print-config")
    expect(result.returncode == 0, result)
    line = {m.group(1): m.group(0) for m in re.finditer(r"^\s*(\w+\.\w+)\b.*$", result.stdout, re.M)}
    expect("command line" in line["train.lr"], line["train.lr"])
    expect(re.search(r"tiny\.json:\d+", line["model.hidden"]), line["model.hidden"])
    expect("default" in line["train.beta2"], line["train.beta2"])


def test_every_config_plans_without_a_device():
    known = {"llama3_1b": 1235814400, "llama3_8b": 8030261248}
    paths = sorted((ROOT / "configs").glob("*.json"))
    expect({"demo", "llama3_1b", "llama3_8b", "width_1b", "width_7b", "width_70b"} <= {p.stem for p in paths}, paths)
    for path in paths:
        # The tokenizers of some exist only once their data have been made.
        missing = "build/" in json.loads(path.read_text())["data"].get("tokenizer", "")
        result = train(path.relative_to(ROOT), "--dry-run", *["--data.tokenizer=bytes"] * missing)
        expect(result.returncode == 0, path, result)
        parameters = int(re.search(r"^parameters\s+(\d+)", result.stdout, re.M).group(1))
        expect(known.get(path.stem, parameters) == parameters, path, result)
        expect("FLOPs/step" in result.stdout and "activations" in result.stdout, path, result)


def test_dry_run_says_whether_this_machine_has_room():
    small = train(config(), "--dry-run", "--run.device=cpu")
    expect("  fits in this machine's " in small.stdout, small)
    large = train(config(), "--dry-run", "--run.device=cpu", "--train.seq_len=1000000", "--train.micro_batch=2000")
    expect("DOES NOT FIT in this machine's " in large.stdout, large)


def test_bench_needs_no_tokenizer_where_the_vocabulary_is_given():
    path = config("untold.json", data__tokenizer="/no/such/tokenizer.json")
    words = ["bench", path, "--sample.every=1", "--steps=1", "--warmup=0", "--run.device=cpu"]
    for more in [], ["--data.tokenizer="]:
        result = train(*words, "--model.vocab=300", *more)
        expect(result.returncode == 0 and json.loads(result.stdout)["steps"] == 1, result)
        expect("0 steps to warm up and 1 that count" in result.stderr, result)
    result = train(*words, "--model.vocab=0")
    expect(result.returncode == 2 and "--model.vocab=NUMBER" in result.stderr, result)


def test_dry_run_says_whether_a_gpu_has_room():
    words = [config(), "--dry-run", "--run.device=cpu"]
    expect("fits in 24GiB" in train(*words, "--gpu-mem=24GiB").stdout)
    expect("DOES NOT FIT in 1KiB" in train(*words, "--gpu-mem=1KiB").stdout)
    for wrong in ([*words, "--gpu-mem=much"], [*words, "--gpu-mem=24"], [config(), "--gpu-mem=24GiB"]):
        result = train(*wrong)
        expect(result.returncode == 2 and "--gpu-mem" in result.stderr, result)


# ---- data --------------------------------------------------------------------------------------------

def one_data_error(path, *said):
    result = train(config(), f"--data.train={path}", f"--run.dir={TMP / 'never'}")
    expect(result.returncode == 2, result)
    expect(len(errors_of(result)) == 1, result)
    for words in said:
        expect(words in result.stderr, f"expected: {words}", result)
    expect(not (TMP / "never").exists(), "a failed start left a run directory")


def test_truncated_shard():
    shard(TMP / "short.bin", [65] * 500, count=501)
    one_data_error(TMP / "short.bin", "short.bin", "truncated")


def test_wrong_magic():
    shard(TMP / "magic.bin", [65] * 500, magic=12345)
    one_data_error(TMP / "magic.bin", "magic.bin", "12345", "20240520")


def test_id_beyond_the_vocabulary():
    shard(TMP / "id.bin", [65] * 300 + [999] + [65] * 199)
    one_data_error(TMP / "id.bin", "id.bin", "999", "258")


def test_no_such_shard():
    one_data_error(TMP / "nowhere-*.bin", "nowhere-*.bin")


# ---- runs --------------------------------------------------------------------------------------------

def test_a_run():
    run = TMP / "run"
    result = train(config(), f"--run.dir={run}")
    expect(result.returncode == 0, result)
    expect("step 6/6" in result.stderr and "validation loss" in result.stderr, result)
    expect("\r" not in result.stderr and "\x1b" not in result.stderr, "control characters without a terminal")
    steps = [r for r in records(run) if "grad_norm" in r]
    expect([r["step"] for r in steps] == [1, 2, 3, 4, 5, 6], steps)
    expect({"step", "tokens", "loss", "grad_norm", "lr", "step_ms", "tok_per_s", "mfu", "mem_bytes", "skipped"}
           <= set(steps[0]), steps[0])
    expect(steps[5]["tokens"] == 6 * 16 * 2 * 2, steps[5])
    header = records(run)[0]
    expect(header["header"] == 1 and header["threads"] == 2 and header["config"]["model"]["hidden"] == 32, header)
    expect({"cpu", "cores", "memory_bytes", "libraries", "compiler", "compiler_flags", "git"} <= set(header), header)
    expect([r["step"] for r in records(run, "val_loss")] == [3, 6], records(run, "val_loss"))
    page = (run / "report.html").read_text()
    expect("<svg" in page and not re.search(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", page), "report needs the network")
    expect((run / "checkpoints" / "latest").exists() and newest(run).name == "step-00000006", newest(run))


def test_an_existing_run_is_kept():
    run = TMP / "run"
    before = (run / "log.jsonl").read_bytes()
    result = train(config(), f"--run.dir={run}")
    expect(result.returncode == 2 and str(run) in result.stderr, result)
    expect("--resume" in result.stderr and "run.overwrite" in result.stderr, result)
    expect((run / "log.jsonl").read_bytes() == before)


def test_its_config_runs_the_same_job_again():
    again = TMP / "again"
    result = train(TMP / "run" / "config.json", f"--run.dir={again}")
    expect(result.returncode == 0, result)
    expect(losses(again) == losses(TMP / "run"), losses(again), losses(TMP / "run"))


def test_an_override_without_its_equals_sign_is_one_mistake():
    result = train(config(), "--train.lr", "1e-3", "--dry-run")
    expect(result.returncode == 2 and result.stderr.count("error:") == 1 and "write --train.lr=VALUE" in result.stderr, result)


def test_resume_is_bitwise():
    run = TMP / "parts"
    expect(train(config(), f"--run.dir={run}", "--train.steps=3").returncode == 0)
    result = train(config(), f"--run.dir={run}", "--resume")
    expect(result.returncode == 0, result)
    expect(losses(run) == losses(TMP / "run"), losses(run), losses(TMP / "run"))
    for name in "model.safetensors", "optimizer.safetensors":
        expect((newest(run) / name).read_bytes() == (newest(TMP / "run") / name).read_bytes(), f"{name} differs")


def test_all_threads_are_counted():
    run = TMP / "threads"
    result = train(config(), f"--run.dir={run}", "--run.threads=0", "--train.steps=1",
                   env={**os.environ, "OMP_NUM_THREADS": "3"})
    expect(result.returncode == 0 and "3 CPU threads" in result.stderr, result)
    expect(records(run)[0]["threads"] == 3, records(run)[0])


def test_without_validation_data_nothing_is_validated():
    run = TMP / "novalidation"
    result = train(config(), f"--run.dir={run}", "--data.val=", "--train.steps=3")
    expect(result.returncode == 0 and "note: data.val is empty" in result.stderr, result)
    expect(not records(run, "val_loss"), result)


def test_another_seed_is_another_run():
    run = TMP / "seed"
    expect(train(config(), f"--run.dir={run}", "--run.seed=2", "--train.steps=1").returncode == 0)
    expect(losses(run)[1] != losses(TMP / "run")[1], losses(run))


def test_resume_says_what_has_changed():
    run = TMP / "changed"
    expect(train(config(), f"--run.dir={run}", "--train.steps=2").returncode == 0)
    result = train(config(), f"--run.dir={run}", "--resume", "--train.steps=3", "--train.lr=5e-4")
    expect(result.returncode == 0 and "train.lr: 0.001 -> 0.0005" in result.stderr, result)
    changes = [line for line in result.stderr.splitlines() if " -> " in line]
    expect(changes == ["train.steps: 2 -> 3", "train.lr: 0.001 -> 0.0005"], result)


def test_an_imported_model_trains_on():
    run, model = TMP / "imported", ROOT / "tests" / "fixtures" / "hf" / "tied"
    result = train("import", model, run, f"--data.train={TMP / 'train.bin'}", "--train.seq_len=16", "--train.steps=2",
                   "--train.warmup_steps=0", "--val.every=0", "--run.device=cpu")
    expect(result.returncode == 0, result)
    result = train(run / "config.json", "--resume")
    expect(result.returncode == 0 and sorted(losses(run)) == [1, 2], result)
    expect(" -> " not in result.stderr, "nothing was changed", result)


def test_tokenizer_files_are_handed_on_or_written():
    first, model, run, again = (TMP / name for name in ("untold", "untold_hf", "told", "told_hf"))
    expect(train(config(), f"--run.dir={first}", "--train.steps=1").returncode == 0)
    expect(train("export", first, model).returncode == 0)
    written = json.loads((model / "tokenizer_config.json").read_text())
    expect((written["bos_token"], written["eos_token"]) == ("<|begin_of_text|>", "<|end_of_text|>"), written)
    (model / "tokenizer_config.json").unlink()
    tokenizer = (model / "tokenizer.json").read_text().replace("\n", "\n ")      # the same, in other words
    (model / "tokenizer.json").write_text(tokenizer)
    result = train("import", model, run, "--train.seq_len=16")
    expect(result.returncode == 0 and "not used here" not in result.stderr, result)
    expect(train("export", run, again).returncode == 0)
    expect((again / "tokenizer.json").read_text() == tokenizer)
    told = json.loads((again / "tokenizer_config.json").read_text())
    expect(told["bos_token"] == written["bos_token"] and told["eos_token"] == written["eos_token"], told)
    for name, other in (("bytes", False), (ROOT / "tests/fixtures/tokenizer/ranks.tiktoken", True)):
        result = train("import", model, run, "--train.seq_len=16", f"--data.tokenizer={name}", "--run.overwrite=true")
        expect(("has other tokens than" in result.stderr) == other and result.returncode == 0, result)


def test_overwriting_is_allowed_once():
    run = TMP / "once"
    expect(train(config(), f"--run.dir={run}", "--train.steps=1", "--run.overwrite=true").returncode == 0)
    result = train(run / "config.json")
    expect(result.returncode == 2 and "it holds a run already" in result.stderr, result)


def test_resume_refuses_another_model():
    result = train(config(), f"--run.dir={TMP / 'parts'}", "--resume", "--model.layers=3")
    expect(result.returncode == 2 and "model.layers" in result.stderr, result)
    result = train(config(), f"--run.dir={TMP / 'parts'}", "--resume", "--model.layers=3", "--train.lr=99", "--data.shuffle=false")
    expect(result.returncode == 2 and all(key in result.stderr for key in ("model.layers", "train.lr", "data.shuffle")), result)
    expect(result.stderr.count("error:") == 3, result)


def test_resume_passes_over_a_damaged_checkpoint():
    run = TMP / "damaged"
    shutil.copytree(TMP / "parts", run)
    damaged = newest(run) / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-4])
    result = train(config(), f"--run.dir={run}", "--resume")
    expect(result.returncode == 0 and "step-00000006" in result.stderr, result)
    expect(losses(run) == losses(TMP / "run"), losses(run))


def test_resume_without_a_run():
    result = train(config(), f"--run.dir={TMP / 'nothing'}", "--resume")
    expect(result.returncode == 2 and str(TMP / "nothing") in result.stderr, result)


def interrupted(number, code):
    run = TMP / f"signal{number}"
    words = [str(ROOT / "train"), config(), f"--run.dir={run}", "--train.steps=1000000", "--val.every=0",
             "--checkpoint.every=0"]
    with subprocess.Popen(words, cwd=ROOT, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        for _ in range(300):
            if (run / "log.jsonl").exists() and '"loss"' in (run / "log.jsonl").read_text():
                break
            time.sleep(0.1)
        process.send_signal(number)
        process.send_signal(number)     # as `timeout` does: to the process, then to its group
        said = process.communicate(timeout=60)[1]
    expect(process.returncode == code, process.returncode, said)
    done = max(losses(run))
    expect(newest(run).name == f"step-{done:08d}", newest(run), done)
    result = train(config(), f"--run.dir={run}", "--resume", f"--train.steps={done + 2}", "--val.every=0",
                   "--checkpoint.every=0")
    expect(result.returncode == 0 and sorted(losses(run)) == list(range(1, done + 3)), result)


def test_ctrl_c_saves():
    interrupted(signal.SIGINT, 130)


def test_sigterm_saves():
    interrupted(signal.SIGTERM, 143)


def test_a_closed_terminal_saves():
    interrupted(signal.SIGHUP, 129)


def test_nonfinite_loss_has_its_own_exit_code():
    run = TMP / "nan"
    # lr * weight_decay = 100: the matrices grow 99-fold with each step.
    result = train(config(), f"--run.dir={run}", "--train.lr=10", "--train.weight_decay=10", "--train.steps=100",
                   "--val.every=0", "--checkpoint.every=0")
    expect(result.returncode == 3, result.returncode, result)
    expect(re.search(r"step \d+", result.stderr) and "non-finite" in result.stderr, result)
    expect(records(run)[-1].get("end") == "non-finite loss", records(run)[-1])


def test_overfitting_one_batch():
    run = TMP / "overfit"
    result = train(config(), f"--run.dir={run}", "--train.overfit_batch=1", "--train.steps=150", "--train.accum=1",
                   "--train.lr=1e-2", "--val.every=0", "--checkpoint.every=0")
    expect(result.returncode == 0 and losses(run)[150] < 0.1 * losses(run)[1], result)


def test_samples():
    words = ["sample", TMP / "run", "--prompt=ab", "--sample.tokens=12", "--run.seed=5"]
    first, second = train(*words), train(*words)
    expect(first.returncode == 0 and first.stdout.startswith("ab"), first)
    expect(first.stdout == second.stdout, first, second)


def test_samples_during_training():
    run = TMP / "sampled"
    result = train(config(), f"--run.dir={run}", "--sample.every=4", "--sample.tokens=5", "--sample.prompt=ab")
    samples = records(run, "sample")
    expect(result.returncode == 0 and [r["step"] for r in samples] == [4, 6], samples, result)
    expect(all(r["prompt"] == "ab" and r["sample"].startswith("ab") for r in samples), samples)
    expect(losses(run) == losses(TMP / "run"), "samples change nothing", losses(run))


def test_sample_without_a_run():
    result = train("sample", TMP / "nothing", "--prompt=ab")
    expect(result.returncode == 2 and str(TMP / "nothing") in result.stderr, result)


def test_a_tokenizer_that_has_moved_can_be_named():
    result = train("sample", TMP / "run", "--data.tokenizer=elsewhere.json")
    expect(result.returncode == 2 and "elsewhere.json: cannot open" in result.stderr and
           "add --data.tokenizer=PATH" in result.stderr, result)


def test_checkpoints_that_cannot_be_listed_are_reported_once():
    run = TMP / "unlistable"
    shutil.copytree(TMP / "run", run, ignore=shutil.ignore_patterns("checkpoints"))
    (run / "checkpoints").write_text("")
    result = train("sample", run)
    expect(result.returncode == 2 and result.stderr.count("cannot list") == 1, result)


def test_report_again():
    page = TMP / "run" / "report.html"
    before = page.read_bytes()
    page.unlink()
    expect(train("report", TMP / "run").returncode == 0 and page.read_bytes() == before)


def run_tests(tests):
    """Runs the functions test_* among the names of a module; prints a line for each. Returns the exit code."""
    shard(TMP / "train.bin", [97 + (i * i // 7) % 26 for i in range(3000)])
    shard(TMP / "val.bin", [97 + (i * i // 7) % 26 for i in range(5000, 5400)])
    failures = 0
    try:
        for name, test in list(tests.items()):
            if not name.startswith("test_"):
                continue
            try:
                test()
                print(f"ok - {name[5:]}", flush=True)
            except Exception as problem:  # the next test still tells something
                failures += 1
                print(f"not ok - {name[5:]}\n{type(problem).__name__}: {problem}", flush=True)
    finally:
        shutil.rmtree(TMP, ignore_errors=True)
    return failures > 0


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
