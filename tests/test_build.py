#!/usr/bin/env python3
"""The set-up step, the test runner and the figures' script where something is wrong, and the README's key reference."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TMP = pathlib.Path(tempfile.mkdtemp(prefix="coda-build."))


def run(*words, **environment):
    return subprocess.run([str(w) for w in words], cwd=ROOT, stdin=subprocess.DEVNULL, text=True, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **environment})


def expect(condition, *shown):
    if not condition:
        raise AssertionError("\n".join(str(getattr(s, "stdout", s)) for s in shown))


def program(name, text):
    path = TMP / name
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def runner(*programs, **environment):
    result = run("scripts/run_tests.sh", *(os.path.relpath(p, ROOT) for p in programs), **environment)
    return result.stdout.splitlines()[-1], result


# What cmocka prints.
PASSES = """
echo '[==========] Running 2 test(s).'; echo '[       OK ] a'; echo '[       OK ] b'; echo '[  PASSED  ] 2 test(s).'
"""
FAILS = """
echo '[       OK ] a'; echo '[  FAILED  ] b'; echo '[  FAILED  ] 1 test(s), listed below:'; echo '[  FAILED  ] b'
exit 1
"""


def test_runner_counts_tests():
    last, result = runner(program("good", PASSES), program("bad", FAILS))
    expect(last == "3 passed, 1 failed" and result.returncode == 1, result)
    expect("| [  FAILED  ] b" in result.stdout, "a failure's output is shown", result)


def test_runner_succeeds():
    last, result = runner(program("good", PASSES), program("script", "echo 'ok - one'\n"))
    expect(last == "3 passed, 0 failed" and result.returncode == 0, result)


def test_runner_notices_crashes():
    last, result = runner(program("crash", "echo '[       OK ] a'; kill -SEGV $$\n"))
    expect(last == "1 passed, 1 failed" and "signal 11" in result.stdout and result.returncode == 1, result)


def test_runner_stops_hung_tests():
    last, result = runner(program("hung", "sleep 60\n"), TEST_TIMEOUT="1")
    expect(last == "0 passed, 1 failed" and "stopped after 1 s" in result.stdout, result)


def test_runner_wants_tests():
    last, result = runner(program("empty", "true\n"))
    expect(last == "0 passed, 1 failed" and "ran no test" in result.stdout, result)


def test_runner_says_what_was_not_checked():
    last, result = runner(program("good", PASSES), program("other", "echo 'not checked: no such thing'\n"))
    expect(last == "2 passed, 0 failed" and "not checked: no such thing" in result.stdout, result)


def bare_tree(name):
    """The set-up script in a tree of its own, and a PATH without any package manager."""
    tree = TMP / name
    (tree / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "setup.sh", tree / "scripts")
    tools = TMP / "tools"
    if not tools.exists():
        tools.mkdir()
        for tool in ("awk bash basename cat cc cp cut date dirname env find gcc grep head id ld as mkdir mktemp mv python3 rm "
                     "sed tail timeout xz").split():
            found = shutil.which(tool)
            if found:
                (tools / tool).symlink_to(found)
    return tree, tools


def test_setup_says_what_is_missing():
    tree, tools = bare_tree("missing")
    result = run(tree / "scripts" / "setup.sh", "deps", "build/deps.mk", PATH=str(tools), SETUP_FORCE_LOCAL="1")
    expect(result.returncode == 1, result)
    for words in ("Missing: cJSON OpenBLAS cmocka", "dnf install", "EXTRA_CFLAGS"):
        expect(words in result.stdout, words, result)
    expect(not (tree / "build" / "deps.mk").exists(), "an incomplete result was kept")


def test_kernels_that_overlap_wait_first():
    """launch.cuh: without the wait a kernel reads what the one ahead of it has not written yet."""
    found = 0
    for path in (ROOT / "kernels" / "cuda").rglob("*.cu"):
        text = re.sub(r"__launch_bounds__\(.*?\)", "", path.read_text())
        if not re.search(r"\blaunch\((ctx|call\.ctx),", text):
            continue
        for name, first in re.findall(r"__global__\s+void\s+(\w+)\([^{]*\{\s*(.*)", text):
            if f"{name}<<<" not in text:
                found += 1
                expect(first.startswith("after_previous_kernel();"), f"{path.name}: {name} begins with {first}")
    expect(found > 20, f"only {found} kernels were found")


def test_readme_has_every_key():
    result = run("scripts/update_readme.sh", "--check")
    expect(result.returncode == 0, result)


def test_figures_refuses_parts_it_does_not_know():
    result = run("scripts/figures.sh", TMP / "figures", "steps", "step")
    expect(result.returncode == 2 and "no part is called step: starts, steps" in result.stdout, result)
    expect(not (TMP / "figures").exists(), "nothing is measured before")


def main():
    failures = 0
    for name, test in list(globals().items()):
        if not name.startswith("test_"):
            continue
        try:
            test()
            print(f"ok - {name[5:]}", flush=True)
        except Exception as problem:  # the next test still tells something
            failures += 1
            print(f"not ok - {name[5:]}\n{type(problem).__name__}: {problem}", flush=True)
    return failures > 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        shutil.rmtree(TMP, ignore_errors=True)
