#!/usr/bin/env python3
"""Writes tests/fixtures/tokenizer: small tokenizers made by the tokenizers library, and the ids and words that the
tokenizers and tiktoken libraries find in nasty strings.

    python3 scripts/make_tokenizer_fixtures.py      (needs: pip install tokenizers tiktoken; make)

    pairs.json      tokenizer.json in Llama 3's form, merges as ["a", "b"], ignore_merges true
    strings.json    the same with merges as "a b" and ignore_merges false
    ranks.tiktoken  a tiktoken rank file of the same tokens in the order of their merges
    learned.txt     a text, and
    learned.json    what ./train tokenize learns from it: the library must read it and find the same ids
    cases.json      a list of {text (hex), words (bytes of each), pairs, special, strings, tiktoken, learned (ids)}
    long.json       for each megabyte without a space of long_texts: how many ids pairs, strings and tiktoken find, and
                    the FNV-1a hash of these ids, in hex
"""
import base64
import json
import pathlib
import random
import shutil
import subprocess
import tempfile

import tiktoken
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = pathlib.Path(__file__).parent.parent
OUT = ROOT / "tests/fixtures/tokenizer"
PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|end|>"]
# In the vocabulary without a merge that makes them: only ignore_merges finds these words.
UNREACHABLE = ["Hello", "world", "12"]

TEXT = """The miller's daughter didn't know that the river, which she'd crossed a hundred times, would rise so soon.
"We'll go together," said the ferryman; "you've nothing to lose but 1,250 pennies and 17 shillings."
    for i in range(100):\n        total += values[i] * 3.14159   # a comment\r\n
Das Wetter ist schön, aber größere Wolken ziehen über die Brücke. Où est la bibliothèque? ¿Dónde está el niño?
Мы шли по дороге, и никто не знал, куда она ведёт. 我们今天去图书馆看书。東京は大きい都市です。 한국어 문장입니다.
नमस्ते दुनिया। مرحبا بالعالم. שלום עולם. ٣٤٥ ½ Ⅷ 👨‍👩‍👧‍👦 👍🏽 🏳️‍🌈 e\u0301 ﬁn ſoft
"""

PIECES = ["'s", "'S", "'LL", "'ll", "'Re", "'VE", "'\u017f", "'d", "'D", "'tis", "'", "''", "Don'T", "I'M", "'re", "1",
          "12", "123", "1234", "1234567", "\u0663\u0664\u0665\u0660", "\u00bd", "\u2167", "\r\n", "\n", "\r", "\n\n",
          " \n", "\n ", " ", "  ", "   ", "\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\u200b", "\ufeff",
          "\u4e2d\u6587\u5b57\u7b26", "\u65e5\u672c\u8a9e\u30c6\u30ad\u30b9\u30c8", "\ud55c\uad6d\uc5b4",
          "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f3f3\ufe0f\u200d\U0001f308", "\u00e9", "e\u0301",
          "\u00df", "\u0130", "\u017f", "\u212a", "\x00", "\x01", "\x7f", "a", "ab", "Hello", "world", "THE", "the", "_",
          "-", "--", "...", "!!", "?!\n", "?!\r\n\r\n", "(x)", "<|begin_of_text|>", "<|end|>", "<|end", "|>", "a_b",
          "foo.bar()", "    return 0;\n", "\U0001e900", "\U0002ebf0", "\ua7cd", "\u1c89", "x" * 40, "\u0e01\u0e33",
          "\u0928\u092e\u0938\u094d\u0924\u0947", "\u05e9\u05dc\u05d5\u05dd", "$", "\u20ac", "\u00a3100", "50%", "@user",
          "https://x.y/z?q=1", "\ue000", "\u0378", "river", "river's", " didn't"]


def cases():
    random.seed(11)
    fixed = ["", " ", "\n", "'", "'s", "a", "Hello world", "WE'LL they'RE", "x  y", "x  ", "x \n y", " \n\n  z", "\r\n\r\n",
             "12345678", "a1b22c333d4444", "\x00", "a\x00b", "<|begin_of_text|>", "<|begin_of_text|><|end|>a<|end|>",
             "<|end|><|end", TEXT, "ab" * 300, "<|<|end|>|>", "\u3000\u3000x", "\u2028\n\u2028x", "\t\t\tif x:\n"]
    drawn = ["".join(random.choice(PIECES) + random.choice(["", "", " ", "\n"]) for _ in range(random.randint(2, 14)))
             for _ in range(170)]
    return fixed + drawn


def long_texts():
    """A megabyte each, made in the same way by tests/test_tokenizer.c."""
    size = 1 << 20
    yield "".join("etaoinshrd"[i * 2654435761 % 1000003 % 10] for i in range(size))
    for unit in ("-", "ferryman", "river\u6211\u4eec\u00f6"):
        yield unit * (size // len(unit.encode()))


def summary(ids):
    value = 0xcbf29ce484222325
    for i in ids:
        value = (value ^ i) * 0x100000001b3 & (1 << 64) - 1
    return {"count": len(ids), "hash": f"{value:016x}"}


def train():
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(PATTERN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=560, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    tokenizer.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in SPECIALS])
    return tokenizer


def learn():
    (OUT / "learned.txt").write_text(TEXT, encoding="utf-8", newline="")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([ROOT / "train", "tokenize", OUT / "learned.txt", "--tokenizer=train:340", "--val-fraction=0",
                        f"--out={folder}"], check=True)
        shutil.copy(f"{folder}/tokenizer.json", OUT / "learned.json")


def alphabet():
    """Byte of each symbol of the printable alphabet."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [b for b in range(256) if b not in printable]
    return {**{chr(b): b for b in printable}, **{chr(256 + n): b for n, b in enumerate(rest)}}


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    pairs = json.loads(train().to_str())
    assert isinstance(pairs["model"]["merges"][0], list)
    for word in UNREACHABLE:
        pairs["model"]["vocab"][word] = len(pairs["model"]["vocab"])
    for token in pairs["added_tokens"]:
        token["id"] += len(UNREACHABLE)
    strings = json.loads(json.dumps(pairs))
    strings["model"]["merges"] = [" ".join(m) for m in pairs["model"]["merges"]]
    strings["model"]["ignore_merges"] = False
    (OUT / "pairs.json").write_text(json.dumps(pairs, ensure_ascii=False), encoding="utf-8")
    (OUT / "strings.json").write_text(json.dumps(strings, ensure_ascii=False), encoding="utf-8")

    byte_of = alphabet()
    spelled = lambda token: bytes(byte_of[c] for c in token)
    order = [bytes([b]) for b in range(256)]
    for left, right in pairs["model"]["merges"]:
        if spelled(left + right) not in order:
            order.append(spelled(left + right))
    ranks = {token: rank for rank, token in enumerate(order)}
    (OUT / "ranks.tiktoken").write_text("".join(f"{base64.b64encode(t).decode()} {r}\n" for t, r in ranks.items()))
    reference = tiktoken.Encoding("fixture", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={
        "<|begin_of_text|>": len(ranks), "<|end_of_text|>": len(ranks) + 1})

    learn()
    hf = {name: Tokenizer.from_file(str(OUT / f"{name}.json")) for name in ("pairs", "strings", "learned")}
    hello = hf["learned"].encode("Hello")       # begins as documents do, and comes back
    assert hello.tokens[0] == SPECIALS[0] and hf["learned"].decode(hello.ids) == "Hello"
    split = pre_tokenizers.Split(Regex(PATTERN), "isolated")
    found = []
    for text in cases():
        case = {"text": text.encode().hex(), "words": [len(w.encode()) for w, _ in split.pre_tokenize_str(text)]}
        for name, tokenizer in hf.items():
            tokenizer.encode_special_tokens = True
            case[name] = tokenizer.encode(text, add_special_tokens=False).ids
        hf["pairs"].encode_special_tokens = False
        case["special"] = hf["pairs"].encode(text, add_special_tokens=False).ids
        case["tiktoken"] = reference.encode(text, disallowed_special=())
        found.append(case)
    long = [{"pairs": summary(hf["pairs"].encode(text, add_special_tokens=False).ids),
             "strings": summary(hf["strings"].encode(text, add_special_tokens=False).ids),
             "tiktoken": summary(reference.encode_ordinary(text))} for text in long_texts()]
    (OUT / "long.json").write_text(json.dumps(long, indent=1) + "\n")
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in found)
    (OUT / "cases.json").write_text(f"[\n{lines}\n]\n")
    differ = sum(case["pairs"] != case["strings"] for case in found)
    print(f"{len(found)} cases; ignore_merges changes {differ} of them; specials {sum(c['pairs'] != c['special'] for c in found)}")


if __name__ == "__main__":
    main()
