#!/usr/bin/env python3
"""scripts/prepare_data.py on local files: parquet to token shards. Needs pyarrow; without it, only what is refused is
tested."""
import pathlib
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
TMP = tempfile.TemporaryDirectory(prefix="coda-prepare.")
DIR = pathlib.Path(TMP.name)
DOCUMENTS = ["one\ntwo", "", None, "quote \" and \\ back", "\u00e9\u4e2d\U0001f600 \x00 NUL", "last"]
BOS = 256


def prepare(*arguments):
    done = subprocess.run([sys.executable, ROOT / "scripts/prepare_data.py", *map(str, arguments)], capture_output=True,
                          text=True, stdin=subprocess.DEVNULL, check=False)
    return done.returncode, done.stdout + done.stderr


def ids(path):
    data = path.read_bytes()
    assert struct.unpack("<3i", data[:12])[:2] == (20240801, 7)
    return list(struct.unpack(f"<{len(data) // 4 - 256}I", data[1024:]))


def test_refusals():
    code, said = prepare(DIR / "none.parquet", f"--out={DIR}/x")
    assert code == 1 and "none.parquet: no such file" in said, said
    (DIR / "empty").mkdir()
    code, said = prepare(DIR / "empty", f"--out={DIR}/x")
    assert code == 1 and "holds no .parquet file" in said, said


def test_parquet():
    import pyarrow
    import pyarrow.parquet
    for name, texts in (("b.parquet", DOCUMENTS[4:]), ("a.parquet", DOCUMENTS[:4])):
        pyarrow.parquet.write_table(pyarrow.table({"id": list(range(len(texts))), "body": texts}), DIR / name)
    code, said = prepare(DIR, "--column=body", f"--out={DIR}/out", "--val-fraction=0")
    assert code == 0, said
    expected = [i for text in DOCUMENTS if text for i in [BOS, *text.encode()]]
    assert ids(DIR / "out/train.bin") == expected, said
    code, said = prepare(DIR / "a.parquet", f"--out={DIR}/x")
    assert code == 1 and "has no column text; it has id, body" in said, said
    code, said = prepare(DIR / "a.parquet", "--column=body", f"--out={DIR}/x", "--tokeniser=bytes")
    assert code == 2 and 'did you mean "--tokenizer"?' in said, said
    (DIR / "bad.parquet").write_text("not parquet")
    code, said = prepare(DIR / "bad.parquet", f"--out={DIR}/x")
    assert code == 1 and "bad.parquet: not a parquet file" in said, said
    code, said = prepare(DIR / "a.parquet", DIR / "bad.parquet", "--column=body", f"--out={DIR}/x", "--val-fraction=0")
    assert code == 1 and not (DIR / "x/train.bin").exists(), said


def main():
    failed = 0
    tests = [test_refusals]
    try:
        import pyarrow  # noqa: F401
        tests.append(test_parquet)
    except ImportError:
        print("parquet is not tested: no pyarrow")
    for test in tests:
        try:
            test()
            print(f"ok - {test.__name__}")
        except AssertionError as error:
            failed += 1
            print(f"not ok - {test.__name__}: {error}")
    TMP.cleanup()
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
