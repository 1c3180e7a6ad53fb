#!/usr/bin/env python3
"""Compares a run with Hugging Face transformers and the gguf package. Needs torch, transformers, gguf.

    python3 scripts/verify_hf.py RUN         export the run, load it in transformers, compare logits
    python3 scripts/verify_hf.py --matrix    tiny random Llamas written by transformers: import,
                                             compare, train 10 steps, export, compare; the same for
                                             models trained here from scratch

Prints for each model the largest difference of a logit, the mean Kullback-Leibler divergence of the next
token's distribution, and how often both agree on the likeliest token. Exits 1 when a logit differs by more
than --tolerance times the largest logit, or times 1 where that is larger.
"""
import argparse
import array
import itertools
import json
import os
import random
import struct
import subprocess
import sys
import tempfile

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

SEQ = 32    # tokens of a training row in --matrix


def train(binary, *arguments):
    done = subprocess.run([binary, *arguments], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{binary} {' '.join(arguments)}: exit code {done.returncode}\n{done.stderr}")


def run_config(run):
    with open(os.path.join(run, "config.json")) as f:
        return json.load(f)


def our_logits(binary, run, ids, scratch):
    path = os.path.join(scratch, "logits.f32")
    text = ",".join(map(str, ids))
    train(binary, "logits", run, "--ids=" + text, "--all", "--out=" + path, "--run.device=cpu")
    values = array.array("f")
    with open(path, "rb") as f:
        values.frombytes(f.read())
    return torch.tensor(values).reshape(len(ids), -1)


def compare(title, binary, run, hf_dir, scratch, tolerance):
    """Logits of the run against those of the directory, both in float32."""
    model = AutoModelForCausalLM.from_pretrained(hf_dir, dtype=torch.float32).eval()
    config = run_config(run)
    random.seed(1)
    length = min(64, config["train"]["seq_len"])
    ids = [random.randrange(model.config.vocab_size) for _ in range(length)]
    with torch.no_grad():
        theirs = model(torch.tensor([ids])).logits[0]
    ours = our_logits(binary, run, ids, scratch)
    difference = (ours - theirs).abs().max().item()
    p, q = torch.log_softmax(theirs.double(), -1), torch.log_softmax(ours.double(), -1)
    divergence = (p.exp() * (p - q)).sum(-1).mean().item()
    agree = (ours.argmax(-1) == theirs.argmax(-1)).float().mean().item()
    ok = difference <= tolerance * max(1.0, theirs.abs().max().item())
    print(f"{title:40s} max difference {difference:.2e}  KL {divergence:.2e}  same choice {agree:.0%}"
          f"{'' if ok else '  FAILED'}", flush=True)
    return ok


def check_rope_forms(hf_dir):
    """Both forms must say the same, for readers of either."""
    with open(os.path.join(hf_dir, "config.json")) as f:
        config = json.load(f)
    new = dict(config["rope_parameters"])
    assert new.pop("rope_theta") == config["rope_theta"]
    assert config["rope_scaling"] == (None if new["rope_type"] == "default" else new), config
    assert config["dtype"] == config["torch_dtype"]


def check_gguf(path, hf_dir, dtype):
    """Every tensor and size of the file against the exported directory."""
    import gguf
    import numpy as np
    reader = gguf.GGUFReader(path)
    model = AutoModelForCausalLM.from_pretrained(hf_dir, dtype=torch.float32)
    config = model.config
    value = lambda key: reader.fields[key].contents()
    assert value("general.architecture") == "llama"
    assert value("llama.block_count") == config.num_hidden_layers
    assert value("llama.embedding_length") == config.hidden_size
    assert value("llama.feed_forward_length") == config.intermediate_size
    assert value("llama.attention.head_count") == config.num_attention_heads
    assert value("llama.attention.head_count_kv") == config.num_key_value_heads
    assert value("llama.rope.dimension_count") == config.head_dim
    assert value("llama.context_length") == config.max_position_embeddings
    assert abs(value("llama.rope.freq_base") - config.rope_parameters["rope_theta"]) < 1
    assert abs(value("llama.attention.layer_norm_rms_epsilon") - config.rms_norm_eps) < 1e-9
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    tensors = {t.name: t for t in reader.tensors}
    half_dim = config.head_dim // 2
    expected = {k: v for k, v in model.state_dict().items()
                if not (config.tie_word_embeddings and k == "lm_head.weight")}
    for name, weight in expected.items():
        stored = tensors.pop(names.get_name(name, try_suffixes=(".weight",)))
        if name.endswith(("q_proj.weight", "k_proj.weight")):   # pairs (i, i + half) become neighbours
            weight = weight.reshape(-1, 2, half_dim, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        data = stored.data
        if stored.tensor_type == gguf.GGMLQuantizationType.BF16:
            data = (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        weight = weight if weight.dim() == 1 else weight.to(dtype)
        data = torch.tensor(np.array(data, dtype=np.float32)).reshape(weight.shape)
        assert torch.equal(data, weight.float()), name
    if config.rope_parameters["rope_type"] == "llama3":
        exponent = torch.arange(0, config.head_dim, 2).double() / config.head_dim
        plain = config.rope_parameters["rope_theta"] ** -exponent
        divisors = torch.tensor(tensors.pop("rope_freqs.weight").data.copy())
        assert torch.allclose(plain / divisors, model.model.rotary_emb.inv_freq.double(), rtol=1e-5)
    assert not tensors, f"unexpected {list(tensors)}"
    if os.path.exists(os.path.join(hf_dir, "tokenizer.json")):
        check_gguf_tokenizer(value, hf_dir, config)


def check_gguf_tokenizer(value, hf_dir, config):
    """Tokens, kinds, merges and special ids against the exported tokenizer.json and config.json."""
    tokenizer = AutoTokenizer.from_pretrained(hf_dir)
    with open(os.path.join(hf_dir, "tokenizer.json")) as f:
        stored = json.load(f)
    special = {token["id"] for token in stored["added_tokens"] if token["special"]}
    merges = [m if isinstance(m, str) else " ".join(m) for m in stored["model"]["merges"]]
    tokens, types = value("tokenizer.ggml.tokens"), value("tokenizer.ggml.token_type")
    assert len(tokens) == len(types) == config.vocab_size
    for text, i in tokenizer.get_vocab().items():
        assert tokens[i] == text and (types[i] == 3) == (i in special), (i, text)
    assert all(kind == 5 for i, kind in enumerate(types) if tokenizer.convert_ids_to_tokens(i) is None)
    assert value("tokenizer.ggml.merges") == merges
    eos = config.eos_token_id
    assert value("tokenizer.ggml.bos_token_id") == config.bos_token_id
    assert value("tokenizer.ggml.eos_token_id") == (eos[0] if isinstance(eos, list) else eos)


def verify(title, binary, run, scratch, tolerance):
    """Exports the run in every form and compares; returns whether all is well."""
    ok = True
    hf_dir = os.path.join(scratch, "f32")
    train(binary, "export", run, hf_dir, "--dtype=f32", "--shard-size=200MB")
    check_rope_forms(hf_dir)
    ok &= compare(title, binary, run, hf_dir, scratch, tolerance)
    for dtype, kind in (("f32", torch.float32), ("f16", torch.float16), ("bf16", torch.bfloat16)):
        path = os.path.join(scratch, f"{dtype}.gguf")
        train(binary, "export", run, "--gguf=" + path, "--dtype=" + dtype)
        check_gguf(path, hf_dir, kind)
    half = os.path.join(scratch, "bf16")
    train(binary, "export", run, half, "--dtype=bf16", "--shard-size=50KB")
    load = lambda path: AutoModelForCausalLM.from_pretrained(path, dtype="auto").state_dict()
    exact, rounded = load(hf_dir), load(half)
    assert all(torch.equal(exact[k].bfloat16(), rounded[k]) for k in exact), "rounding to BF16"
    return ok


def write_shard(path, vocab, tokens):
    """Llama-3 tokens as llm.c writes them: 256 int32 of header, then uint32."""
    rng = random.Random(2)
    header = [20240801, 7, tokens] + [0] * 253
    with open(path, "wb") as f:
        f.write(struct.pack("<256i", *header))
        f.write(array.array("I", [rng.randrange(vocab) for _ in range(tokens)]).tobytes())


def tiny_llama(path, tied, scaled, head_dim):
    rope = dict(rope_type="default", rope_theta=1e4)
    if scaled:
        rope = dict(rope_type="llama3", rope_theta=5e5, factor=8.0, low_freq_factor=1.0,
                    high_freq_factor=4.0, original_max_position_embeddings=32)
    torch.manual_seed(7)
    config = LlamaConfig(vocab_size=300, hidden_size=4 * head_dim, intermediate_size=328, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, head_dim=head_dim,
                         max_position_embeddings=256, rms_norm_eps=1e-5, tie_word_embeddings=tied,
                         rope_parameters=rope, initializer_range=0.05)
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.add_(0.2 * torch.randn_like(p))
    model.save_pretrained(path, max_shard_size="500KB")


def settings(shard):
    return [f"--data.train={shard}", f"--train.seq_len={SEQ}", "--train.micro_batch=2", "--train.steps=10",
            "--train.warmup_steps=2", "--train.lr=1e-3", "--val.every=0", "--run.device=cpu"]


def matrix(binary, tolerance):
    ok = True
    for tied, scaled, head_dim in itertools.product((True, False), (True, False), (64, 128)):
        title = f"{'tied' if tied else 'untied'}, {'scaled' if scaled else 'plain'}, head {head_dim}"
        with tempfile.TemporaryDirectory() as scratch:
            source, run, shard = (os.path.join(scratch, n) for n in ("source", "run", "tokens.bin"))
            tiny_llama(source, tied, scaled, head_dim)
            write_shard(shard, 300, 4000)
            train(binary, "import", source, run, *settings(shard))
            ok &= compare(title + ", imported", binary, run, source, scratch, tolerance)
            train(binary, os.path.join(run, "config.json"), "--resume")
            ok &= verify(title + ", trained", binary, run, scratch, tolerance)
            fresh = os.path.join(scratch, "fresh")
            base = {k: v for k, v in run_config(run).items() if k in ("schema_version", "model")}
            config = os.path.join(scratch, "fresh.json")
            with open(config, "w") as f:
                json.dump(base, f)
            train(binary, config, *settings(shard), f"--run.dir={fresh}")
            with tempfile.TemporaryDirectory() as again:
                ok &= verify(title + ", from scratch", binary, fresh, again, tolerance)
    return ok


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="?")
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("--binary", default="./train")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    arguments = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    if bool(arguments.run) == arguments.matrix:
        parser.error("name a run, or give --matrix")
    if arguments.matrix:
        return matrix(arguments.binary, arguments.tolerance)
    with tempfile.TemporaryDirectory() as scratch:
        return verify(arguments.run, arguments.binary, arguments.run, scratch, arguments.tolerance)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
