#!/usr/bin/env python3
"""What goes wrong around a run: closed streams, full disks, killed processes, two runs in one directory, odd
values. Nothing may be lost, half written or silent. Runs ./train."""
import json
import os
import random
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time

from test_cli import ROOT, TMP, config, errors_of, expect, losses, newest, records, run_tests, shard, train

QUICK = ["--val.every=0", "--checkpoint.every=0"]


def start(*words, **options):
    return subprocess.Popen([str(ROOT / "train"), *map(str, words)], cwd=ROOT, stdin=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True, errors="replace", **options)


def wait_for(run, text):
    """Until the run's log holds the text."""
    for _ in range(600):
        if (run / "log.jsonl").exists() and text in (run / "log.jsonl").read_text():
            return
        time.sleep(0.05)
    raise AssertionError(f"{text} never came")


def with_streams(redirections, *words):
    """Runs ./train as `./train WORDS REDIRECTIONS` of a shell."""
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", str(ROOT / "train"), *map(str, words)]
    return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=120)


def refused(result, *said):
    expect(result.returncode == 2 and len(errors_of(result)) == 1, result)
    for words in said:
        expect(words in result.stderr, f"expected: {words}", result)


# ---- streams -----------------------------------------------------------------------------------------

def test_messages_of_a_closed_stream_go_into_no_file():
    whole = TMP / "streams"
    expect(train(config(), f"--run.dir={whole}").returncode == 0)
    for number, closed in enumerate(("2>&-", ">&-", "<&-", "<&- >&- 2>&-")):
        run = TMP / f"closed{number}"
        result = with_streams(closed, config(), f"--run.dir={run}")
        expect(result.returncode == 0, closed, result)
        expect(losses(run) == losses(whole), closed)
        model = "checkpoints/step-00000006/model.safetensors"
        expect((run / model).read_bytes() == (whole / model).read_bytes(), closed)


def test_output_that_does_not_arrive_is_an_error():
    for words in (["--help"], [config(), "--dry-run"], ["logits", TMP / "streams", "--ids=97"],
                  ["sample", TMP / "streams", "--prompt=ab"]):
        for redirection in (">/dev/full", ">&-"):
            result = with_streams(redirection, *words)
            expect(result.returncode == 1 and "standard output" in result.stderr, words, result)


def test_a_run_goes_on_when_its_reader_goes_away():
    run = TMP / "deaf"
    process = start(config(), f"--run.dir={run}")
    process.stderr.close()
    expect(process.wait(timeout=60) == 0 and losses(run) == losses(TMP / "streams"))


def test_samples_send_no_control_characters_to_a_terminal():
    run = TMP / "control"
    shard(TMP / "zeros.bin", [0] * 200)
    result = train(config(), f"--run.dir={run}", f"--data.train={TMP / 'zeros.bin'}", "--train.lr=1e-2",
                   "--train.steps=60", "--sample.every=4", "--sample.tokens=8", "--sample.prompt=ab", *QUICK)
    expect(result.returncode == 0, result)
    expect(not [c for c in result.stderr if c < " " and c not in "\t\n"], repr(result.stderr))
    samples = [r["sample"] for r in records(run, "sample")]
    expect(samples[-1] == "ab" + 8 * "\ufffd", repr(samples[-1]))     # NUL, 8 times


# ---- disks -------------------------------------------------------------------------------------------

def limited(size, *words):
    return train(*words, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))


def test_a_full_disk_leaves_a_run_that_goes_on():
    sizes = {path.stat().st_size for path in newest(TMP / "streams").iterdir()}
    for size in sorted({0, 1000, 3000} | {s - 1 for s in sizes}):
        run = TMP / f"full{size}"
        result = limited(size, config(), f"--run.dir={run}")
        expect(result.returncode == 1 and errors_of(result), size, result)
        expect(not list(run.rglob("*.tmp")), size, list(run.rglob("*.tmp")))
        if (run / "log.jsonl").exists():
            records(run)                            # every line is whole
        how = ["--resume"] if list(run.glob("checkpoints/step-*")) else ["--run.overwrite=true"]
        result = train(config(), f"--run.dir={run}", *how)
        expect(result.returncode == 0 and losses(run) == losses(TMP / "streams"), size, result)


def test_other_commands_say_that_the_disk_is_full():
    (TMP / "text.txt").write_text("a few words\n" * 2000)
    for name, words in {"hf": ["export", TMP / "streams", TMP / "hf"],
                        "x.gguf": ["export", TMP / "streams", f"--gguf={TMP / 'x.gguf'}"],
                        "tokens": ["tokenize", TMP / "text.txt", f"--out={TMP / 'tokens'}"],
                        "stories": ["story", "generate", "--bytes=30000",
                                    f"--out={TMP / 'stories'}"]}.items():
        result = limited(2000, *words)
        expect(result.returncode == 1 and errors_of(result), words, result)
        left = [TMP / name] if (TMP / name).is_file() else list((TMP / name).rglob("*"))
        expect(not left, words, left)
        expect(train(*words).returncode == 0, f"{name} cannot be made afterwards", train(*words))


# ---- processes ---------------------------------------------------------------------------------------

def test_a_run_that_was_ended_as_it_began_can_be_begun_anew():
    run = TMP / "young"
    run.mkdir()
    (run / "config.json.tmp").write_text("{")
    expect(train(config(), f"--run.dir={run}", "--train.steps=1").returncode == 0)
    text = (run / "config.json").read_text()
    for rest in run.iterdir():
        if rest.name != "config.json":
            shutil.rmtree(rest) if rest.is_dir() else rest.unlink()
    refused(train(config(), f"--run.dir={run}"), "--run.overwrite=true")
    refused(train(run / "config.json", "--resume"), "no checkpoint", "--run.overwrite=true")
    expect((run / "config.json").read_text() == text, "a refused start has changed the configuration")
    expect(train(config(), f"--run.dir={run}", "--run.overwrite=true").returncode == 0)


def test_two_processes_do_not_write_one_run():
    run = TMP / "shared"
    with start(config(), f"--run.dir={run}", "--train.steps=1000000", *QUICK) as first:
        wait_for(run, '"loss"')
        for how in "--resume", "--run.overwrite=true":
            result = train(config(), f"--run.dir={run}", "--train.steps=1000000", *QUICK, how)
            refused(result, "another process", str(run))
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=60)
    expect(first.returncode == 143 and newest(run).name == f"step-{max(losses(run)):08d}", first.returncode)
    records(run)


def test_token_files_that_shrink_while_they_are_used():
    run, data = TMP / "shrunk", TMP / "shrunk.bin"
    shard(data, [97 + i % 26 for i in range(50000)])
    words = [config(), f"--run.dir={run}", f"--data.train={data}", "--val.every=0", "--checkpoint.every=5"]
    with start(*words, "--train.steps=1000000") as process:
        wait_for(run, '"step":20')
        os.truncate(data, 2048)
        said = process.communicate(timeout=60)[1]
    expect(process.returncode == 1 and "became shorter" in said, process.returncode, said)
    shard(data, [97 + i % 26 for i in range(50000)])
    result = train(*words, "--resume", f"--train.steps={max(losses(run)) + 2}")
    expect(result.returncode == 0, result)


def test_killed_at_any_moment_a_run_continues_bitwise():
    whole, run = TMP / "unkilled", TMP / "killed"
    words = [config(), "--train.steps=80", "--checkpoint.every=1", "--checkpoint.keep_last=2",
             "--val.every=9"]
    begin = time.time()
    expect(train(*words, f"--run.dir={whole}").returncode == 0)
    duration = time.time() - begin
    draw = random.Random(4)

    def how():
        return "--resume" if list(run.glob("checkpoints/step-*[0-9]")) else "--run.overwrite=true"

    for _ in range(12):
        process = start(*words, f"--run.dir={run}", how())
        time.sleep(draw.random() * duration / 3)
        process.kill()
        process.communicate(timeout=60)
    result = train(*words, f"--run.dir={run}", how())
    expect(result.returncode == 0 and losses(run) == losses(whole), result)
    expect(records(run, "val_loss") == records(whole, "val_loss"), "validation differs")
    for name in "model.safetensors", "optimizer.safetensors":
        expect((newest(run) / name).read_bytes() == (newest(whole) / name).read_bytes(), f"{name} differs")
    left = sorted(path.name for path in (run / "checkpoints").iterdir())
    # a kill between the last save and removing the oldest leaves that: nothing is saved after it
    expect(left in (["latest"] + [f"step-{n:08}" for n in range(first, 81)] for first in (78, 79)), left)


def test_a_signal_ends_a_long_validation():
    run = TMP / "validating"
    shard(TMP / "much.bin", [97 + i % 26 for i in range(3000000)])
    words = [config(), f"--run.dir={run}", f"--data.val={TMP / 'much.bin'}", "--val.batches=0",
             "--train.steps=3", "--checkpoint.every=0"]
    with start(*words) as process:
        wait_for(run, '"step":3')
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=30)[1]
    expect(process.returncode == 130 and not records(run, "val_loss"), process.returncode, said)
    expect(newest(run).name == "step-00000003", newest(run))
    result = train(*words, "--resume", "--data.val=")
    expect(result.returncode == 0 and "nothing to train" in result.stderr, result)


def test_a_copied_run_does_not_continue_the_original():
    first, copy = TMP / "first", TMP / "copy"
    expect(train(config(), f"--run.dir={first}", "--train.steps=2").returncode == 0)
    shutil.copytree(first, copy)
    refused(train(copy / "config.json", "--resume", "--train.steps=3"), f"--run.dir={copy}")
    expect(train(copy / "config.json", "--resume", "--train.steps=3", f"--run.dir={copy}").returncode == 0)
    expect(max(losses(first)) == 2 and max(losses(copy)) == 3)
    shutil.rmtree(first)
    shutil.copytree(copy, TMP / "copy2")
    # The copy's configuration names its own place by now.
    expect(train(copy / "config.json", "--resume", "--train.steps=4").returncode == 0)
    refused(train(TMP / "copy2" / "config.json", "--resume"), f"--run.dir={TMP / 'copy2'}")


def test_another_tokenizer_of_the_same_size_is_noticed():
    run, tokens = TMP / "retokenized", TMP / "learned"
    text = [f"{a} {b} goes to the {c}\n" for a in ("Ann", "Bob") for b in ("often", "never")
            for c in ("sea", "hill")]
    words = [config(), f"--run.dir={run}", f"--data.train={tokens / 'train.bin'}", "--data.val=",
             "--model.vocab=270", f"--data.tokenizer={tokens / 'tokenizer.json'}"]
    for pieces in text[:6] * 30, text[2:] * 30:
        (TMP / "text.txt").write_text("".join(pieces))
        result = train("tokenize", TMP / "text.txt", f"--out={tokens}", "--tokenizer=train:270",
                       "--overwrite=true")
        expect(result.returncode == 0, result)
        if not run.exists():
            expect(train(*words, "--train.steps=2").returncode == 0)
    refused(train(*words, "--resume"), "tokenizer.json is not the tokenizer")
    refused(train("sample", run, "--prompt=Ann"), "tokenizer.json is not the tokenizer")


def test_other_data_are_noticed():
    run, data = TMP / "grown", TMP / "grown.bin"
    shutil.copy(TMP / "train.bin", data)
    expect(train(config(), f"--run.dir={run}", f"--data.train={data}", "--train.steps=2").returncode == 0)
    shard(data, [97] * 4000)
    result = train(config(), f"--run.dir={run}", f"--data.train={data}", "--resume")
    expect(result.returncode == 0 and "note: data.train had 2992 tokens" in result.stderr, result)


def test_a_run_does_not_delete_what_it_needs():
    run, model = TMP / "owner", ROOT / "tests" / "fixtures" / "hf" / "tied"
    words = ["--train.seq_len=16", "--train.steps=2", "--train.warmup_steps=0", f"--data.train={TMP / 'train.bin'}"]
    expect(train("import", model, run, *words).returncode == 0)
    kept = sorted(path.name for path in (run / "hf").iterdir())
    refused(train("import", run / "hf", run, *words, "--run.overwrite=true"), "belongs to the run")
    expect(sorted(path.name for path in (run / "hf").iterdir()) == kept)
    (run / "hf" / "tokenizer.json").write_text("{}")
    result = train(run / "config.json", f"--data.tokenizer={run / 'hf' / 'tokenizer.json'}", "--run.overwrite=true")
    expect(result.returncode == 2 and "data.tokenizer" in result.stderr and "belongs to the run" in result.stderr, result)
    expect((run / "hf" / "tokenizer.json").exists())


def test_a_resume_with_nothing_to_do_changes_nothing():
    run = TMP / "ended"
    expect(train(config(), f"--run.dir={run}", "--train.steps=3").returncode == 0)
    text = (run / "config.json").read_text()
    result = train(run / "config.json", "--resume", "--train.steps=2", "--train.lr=0.5")
    expect(result.returncode == 0 and "nothing to train" in result.stderr, result)
    expect((run / "config.json").read_text() == text)


def test_without_a_log_a_run_is_saved_all_the_same():
    run = TMP / "unlogged"
    limit = 500000      # bytes of a file: a checkpoint's fit, the log grows on
    words = [str(ROOT / "train"), config(), f"--run.dir={run}", "--train.steps=1000000", *QUICK]
    result = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
    expect(result.returncode == 1 and "log.jsonl" in result.stderr, result)
    last = max(losses(run))
    expect(last <= int(newest(run).name[5:]) <= last + 1, newest(run), last)


def test_two_calls_do_not_write_one_directory():
    (TMP / "some.txt").write_text("a few words, again and again\n" * 40000)
    words = [str(ROOT / "train"), "tokenize", str(TMP / "some.txt"), f"--out={TMP / 'twice'}", "--tokenizer=train:400"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as first:
        for _ in range(5000):
            if (TMP / "twice" / ".tokenize.tmp").exists():
                break
            time.sleep(0.001)
        first.send_signal(signal.SIGSTOP)   # or it may be done before the second has begun
        refused(train(*words[1:]), "another process", str(TMP / "twice"))
        first.send_signal(signal.SIGCONT)
        first.communicate(timeout=120)
    expect(first.returncode == 0 and (TMP / "twice" / "train.bin").exists(), first.returncode)


def test_a_slip_in_a_command():
    refused(train("smaple", TMP / "streams"), 'did you mean "sample"?')
    refused(train("toknize", "x.txt", "--out=y"), 'did you mean "tokenize"?')


# ---- values ------------------------------------------------------------------------------------------

def test_numbers_that_are_none():
    tiny = config()
    for words, said in (([tiny, "--dry-run", "--gpu-mem=nan"], "--gpu-mem=nan"),
                        ([tiny, "--dry-run", "--gpu-mem=infGiB"], "--gpu-mem=inf"),
                        ([tiny, "--fusion"], '--fusion needs "="'),
                        ([tiny, "--train.eps=1e-50"], "train.eps"),             # 0 in the update's float
                        ([tiny, "--model.norm_eps=1e-50"], "model.norm_eps"),
                        ([tiny, "--train.beta2=0.999999999"], "train.beta2"),   # 1 in a float
                        (["bench", tiny, "--steps=2x"], "--steps=2x"),
                        (["bench", tiny, "--warmup=-1"], "--warmup=-1"),
                        (["bench", tiny, f"--warmup={2**63 - 1}"], "1000000 at most"),
                        (["sample", TMP / "streams", "--count=0"], "--count=0"),
                        (["sample", TMP / "streams", "--count=99999999999999999999"], "--count=9999")):
        refused(train(*words), said)


def test_bench_says_how_the_loss_went():
    result = train("bench", config(), "--steps=1", "--warmup=0")
    line = json.loads(result.stdout)
    expect(line["first_loss"] == line["last_loss"] > 0, result)
    result = train("bench", config(), "--steps=100", "--warmup=0", "--train.lr=10", "--train.weight_decay=3")
    line = json.loads(result.stdout)
    expect(result.returncode == 1 and line["last_loss"] is None and "not finite" in result.stderr, result)


def test_a_bad_call_of_logits_leaves_its_file_alone():
    (TMP / "mine").write_text("mine")
    refused(train("logits", TMP / "streams", "--ids=999", f"--out={TMP / 'mine'}"), "999")
    expect((TMP / "mine").read_text() == "mine")


def test_empty_values_name_no_files():
    (TMP / "words.txt").write_text("a few words\n" * 20)
    for words in (["tokenize", TMP / "words.txt", "--out="], ["story", "generate", "--bytes=9", "--out="],
                  ["export", TMP / "streams", "--gguf="], ["logits", TMP / "streams", "--ids=1", "--out="]):
        result = train(*words)
        expect(result.returncode == 2 and "needs a value" in result.stderr, words, result)
    for words in (["export", TMP / "streams", ""], ["sample", ""], ["import", "", TMP / "imported"]):
        result = train(*words)
        expect(result.returncode == 2 and 'unknown argument ""' in result.stderr, words, result)


def test_exports_replace_nothing():
    (TMP / "mine.gguf").write_text("mine")
    refused(train("export", TMP / "streams", f"--gguf={TMP / 'mine.gguf'}"), "mine.gguf exists already")
    expect((TMP / "mine.gguf").read_text() == "mine")


def test_tokens_in_a_directory_with_brackets():
    (TMP / "words.txt").write_text("a few words\n" * 20)
    folder = TMP / "tokens [v2]"
    result = train("tokenize", TMP / "words.txt", f"--out={folder}")
    expect(result.returncode == 0, result)
    expect(sorted(p.name for p in folder.iterdir()) == ["tokenizer.json", "train.bin", "val.bin"], result)
    refused(train("tokenize", TMP / "words.txt", f"--out={folder}"), "--overwrite=true")


def test_a_shard_with_brackets_in_its_name():
    folder = TMP / "data [v2]"
    folder.mkdir()
    shutil.copy(TMP / "train.bin", folder)
    expect(train(config(), f"--run.dir={TMP / 'brackets'}", f"--data.train={folder / 'train.bin'}",
                 "--train.steps=1").returncode == 0)


def single_tokens(path, singles, more):
    """Megatron's form: documents of one token each, then one of `more` tokens."""
    lengths = [1] * singles + [more] * (more > 0)
    offsets = [2 * i for i in range(len(lengths))]
    path.with_suffix(".bin").write_bytes(struct.pack(f"<{singles + more}H", *[97] * (singles + more)))
    count = len(lengths)
    path.with_suffix(".idx").write_bytes(
        b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, count, count + 1) + struct.pack(f"<{count}i", *lengths) +
        struct.pack(f"<{count}q", *offsets) + struct.pack(f"<{count + 1}q", *range(count + 1)))


def test_data_without_a_target_is_refused():
    single_tokens(TMP / "singles", 400, 0)
    path = TMP / "singles.bin"
    refused(train(config(), f"--run.dir={TMP / 'none'}", f"--data.train={path}", "--data.rows=documents"),
            "singles.bin", "single token")
    refused(train(config(), f"--run.dir={TMP / 'none'}", f"--data.val={path}", "--val.rows=documents"),
            "singles.bin", "single token")
    single_tokens(TMP / "late", 400, 100)
    result = train(config(), f"--run.dir={TMP / 'late'}", f"--data.val={TMP / 'late.bin'}",
                   "--val.rows=documents", "--val.batches=1")
    expect(result.returncode == 0 and "not validated" in result.stderr and "nan" not in result.stderr, result)


if __name__ == "__main__":
    sys.exit(run_tests(globals()))
