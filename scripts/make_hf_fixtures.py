#!/usr/bin/env python3
"""Makes tests/fixtures/hf: small Llamas written by Hugging Face transformers, each with its loss, logits
and gradients, for tests/test_hf_fixtures.c and tests/test_hf.c. Needs torch, transformers, safetensors.

    python3 scripts/make_hf_fixtures.py [OUT_DIR]

Each fixture is a directory as save_pretrained leaves it (config.json and one or more safetensors files) and

    expected.safetensors   tokens, targets, pos, doc_start [T] i32 and weights [T] f32 of one micro-batch
                           (weight 0: ignored); losses [T], logits [T, V] and, where gradients are kept,
                           grad.<name> of the mean loss over the valid rows, all f32

The reference runs in float64 from the stored weights, apart from what transformers itself does in float32
(norms, softmax, rotary angles). Everything follows from seeds.
"""
import json
import os
import shutil
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)

PLAIN = dict(rope_type="default", rope_theta=1e4)

# sizes: hidden, ffn, heads, kv_heads, head_dim, vocab, layers; batch: sequences, length.
FIXTURES = {
    "tied": dict(
        sizes=(48, 40, 4, 2, 12, 131, 2), batch=(3, 13), tied=True, rope=PLAIN),
    "scaled": dict(
        sizes=(42, 56, 3, 1, 10, 97, 2), batch=(2, 17), tied=False, rope=dict(LLAMA3, rope_theta=5e5)),
    "documents": dict(
        sizes=(36, 24, 6, 3, 6, 150, 1), batch=(3, 13), tied=True, documents=True,
        rope=dict(LLAMA3, rope_theta=1e4)),
    "one_head": dict(
        sizes=(22, 8, 1, 1, 22, 33, 3), batch=(1, 19), tied=False, rope=PLAIN),
    # For the importer: no gradients, other ways to store the same model.
    "sharded_bf16": dict(
        sizes=(64, 72, 1, 1, 64, 96, 2), batch=(1, 11), tied=True, rope=dict(LLAMA3, rope_theta=5e5),
        dtype=torch.bfloat16, shard="32KB"),
    "sharded_f16_old_config": dict(
        sizes=(128, 40, 1, 1, 128, 50, 1), batch=(1, 11), tied=False, rope=dict(LLAMA3, rope_theta=5e5),
        dtype=torch.float16, shard="50KB", old_config=True),
}


def build(spec, generator):
    hidden, ffn, heads, kv_heads, head_dim, vocab, layers = spec["sizes"]
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=hidden, intermediate_size=ffn, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim,
        max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=spec["tied"],
        rope_parameters=spec["rope"], bos_token_id=1, eos_token_id=2)
    model = LlamaForCausalLM._from_config(config, attn_implementation="eager", dtype=torch.float32)
    model.double().eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            if "norm" in name:
                value = 1 + 0.3 * noise                 # norms away from 1, so that folding is seen
            elif "embed" in name or "lm_head" in name:
                value = 0.25 * noise
            else:
                value = noise * 1.2 / p.shape[1] ** 0.5
            p.copy_(value.to(spec.get("dtype", torch.float32)).double())
    return config, model


def document_starts(batch, seq, generator):
    """First index of each row's document: documents of 1 to 6 tokens, the first may continue."""
    start = torch.zeros(batch, seq, dtype=torch.int64)
    for b in range(batch):
        s = 0
        while s < seq:
            length = int(torch.randint(1, 7, (1,), generator=generator))
            start[b, s:s + length] = s
            s += length
    return start


def reference(spec, model, generator):
    batch, seq = spec["batch"]
    vocab = spec["sizes"][5]
    tokens = torch.randint(0, vocab, (batch, seq), generator=generator)
    targets = torch.randint(0, vocab, (batch, seq), generator=generator)
    weights = (torch.rand(batch, seq, generator=generator) > 0.2).double()
    column = torch.arange(seq)
    start = torch.zeros(batch, seq, dtype=torch.int64)
    mask, pos = None, column.expand(batch, seq)
    if spec.get("documents"):
        start = document_starts(batch, seq, generator)
        pos = column - start
        visible = (column <= column[:, None]) & (column >= start[:, :, None])
        mask = torch.zeros(batch, 1, seq, seq, dtype=torch.float64)
        mask.masked_fill_(~visible[:, None], torch.finfo(torch.float32).min)
    logits = model(input_ids=tokens, position_ids=pos, attention_mask=mask, use_cache=False).logits
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    model.zero_grad()
    ((losses * weights.flatten()).sum() / weights.sum()).backward()
    i32 = lambda t: t.flatten().to(torch.int32).contiguous()
    f32 = lambda t: t.detach().to(torch.float32).contiguous()
    out = dict(tokens=i32(tokens), targets=i32(targets * weights.long()), pos=i32(pos), doc_start=i32(start),
               weights=f32(weights.flatten()), losses=f32(losses), logits=f32(logits.flatten(0, 1)))
    if "dtype" not in spec:
        out |= {f"grad.{name}": f32(p.grad) for name, p in model.named_parameters()}
    return out


def to_old_config(path):
    """config.json as transformers 4 wrote it: rope_theta and rope_scaling at the top, torch_dtype."""
    config = json.load(open(path))
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.45.0"
    with open(path, "w") as f:
        f.write(json.dumps(config, indent=2, sort_keys=True) + "\n")


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "../tests/fixtures/hf")
    for seed, (name, spec) in enumerate(FIXTURES.items()):
        generator = torch.Generator().manual_seed(1000 + seed)
        where = os.path.join(out, name)
        shutil.rmtree(where, ignore_errors=True)
        config, model = build(spec, generator)
        expected = reference(spec, model, generator)
        model.to(spec.get("dtype", torch.float32))
        model.save_pretrained(where, max_shard_size=spec.get("shard", "5GB"))
        os.remove(os.path.join(where, "generation_config.json"))
        if spec.get("old_config"):
            to_old_config(os.path.join(where, "config.json"))
        save_file(expected, os.path.join(where, "expected.safetensors"))
        size = sum(os.path.getsize(os.path.join(where, f)) for f in os.listdir(where))
        loss = float((expected["losses"] * expected["weights"]).sum() / expected["weights"].sum())
        print(f"{name:24s} loss {loss:.5f}  {size / 1024:.0f} KiB  {sorted(os.listdir(where))}")


if __name__ == "__main__":
    main()
