#!/usr/bin/env python3
"""Loss curves of coda.c with fused kernels, with separate ones, and of PyTorch, from the same weights and
data.

    python3 scripts/loss_curves.py [--out=PREFIX] [--steps=N]

PyTorch is Hugging Face's Llama with FP32 parameters, matrix products in BF16 by autocast, and AdamW: what
coda.c computes. Every batch is fresh; the learning rate rises for a tenth of the steps and falls to a tenth along a
cosine. Writes PREFIX.csv and PREFIX.svg (docs/loss_curves by default), prints
the largest difference of each pair over all steps, and exits with code 1 if one is over 0.5 %. PyTorch runs once
more in FP32 throughout: how far its two curves part shows what rounding alone does. Needs a GPU,
PyTorch with transformers and matplotlib, and `make CUDA=1 build/cuda/tests/gpu/test_gpu_model`.
"""
import argparse
import csv
import itertools
import math
import os
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(ROOT, "tests", "gpu"))
import test_against_torch as against  # noqa: E402: needs the path

SIZES = dict(hidden_size=1024, intermediate_size=2816, num_hidden_layers=4, num_attention_heads=16,
             num_key_value_heads=8, head_dim=64, vocab_size=against.VOCAB, max_position_embeddings=512)
SEQ, DECAY, BAR = 512, 0.1, 0.005
WARMUP, FINAL = 0.1, 0.1        # of the steps, and of the highest learning rate
COLORS = ["#1f6fb4", "#2a8a3e", "#d1570c"]


def learning_rate(step, steps):
    warmup = max(1, round(WARMUP * steps))
    if step < warmup:
        return against.LR * (step + 1) / warmup
    along = (step - warmup) / max(1, steps - warmup)
    return against.LR * (FINAL + (1 - FINAL) * (1 + math.cos(math.pi * along)) / 2)


def curves(torch, steps):
    """Losses by name, in the order of the columns, and those of PyTorch in FP32."""
    import copy

    import transformers

    torch.manual_seed(1)
    config = transformers.LlamaConfig(**SIZES, tie_word_embeddings=False, rope_theta=10000.0,
                                      rms_norm_eps=1e-5, attention_dropout=0.0)
    model = transformers.LlamaForCausalLM(config).cuda().float()
    batches = against.make_batches(torch, steps, 2, SEQ)
    rates = [learning_rate(step, steps) for step in range(steps)]
    with tempfile.TemporaryDirectory() as folder:
        against.save(model, batches, rates, folder)
        losses = {name: against.trace(torch, folder, fusion)[1]
                  for name, fusion in (("fused", "on"), ("unfused", "off"))}
    exact = copy.deepcopy(model)
    losses["pytorch"] = against.train(torch, model, batches, rates, DECAY, autocast=True)
    torch.backends.cuda.matmul.allow_tf32 = False
    return losses, against.train(torch, exact, batches, rates, DECAY)


def write_csv(path, losses):
    with open(path, "w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["step", *losses])
        for step, values in enumerate(zip(*losses.values()), 1):
            out.writerow([step, *(f"{v:.6f}" for v in values)])


def draw(path, losses):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "loss curves"     # the same curves make the same file
    import matplotlib.pyplot as plt

    figure, (top, below) = plt.subplots(2, 1, sharex=True, figsize=(8, 7), height_ratios=[3, 2])
    widths = [4, 2.2, 1]        # the curves lie on one another
    for (name, values), color, width in zip(losses.items(), COLORS, widths):
        top.plot(range(1, len(values) + 1), values, color=color, linewidth=width, label=name)
    top.set_ylabel("loss, nats a token")
    top.legend()
    for (a, b), color in zip(itertools.combinations(losses, 2), COLORS):
        values = [100 * (x - y) / y for x, y in zip(losses[a], losses[b])]
        below.plot(range(1, len(values) + 1), values, color=color, linewidth=1, label=f"{a} against {b}")
    for bar in (-100 * BAR, 100 * BAR):
        below.axhline(bar, color="black", linestyle="--", linewidth=1)
    below.set_ylabel("difference, %")
    below.set_xlabel("step")
    below.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main():
    parser = argparse.ArgumentParser(description=" ".join(__doc__.split("\n\n")[0].split()))
    parser.add_argument("--out", default=os.path.join(ROOT, "docs", "loss_curves"), metavar="PREFIX")
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    if options.steps < 1:
        parser.error("--steps: expected 1 at least")
    try:
        import matplotlib  # noqa: F401: better missed now than after training
        import torch
        import transformers  # noqa: F401
    except ImportError as e:
        sys.exit(f"needs PyTorch, transformers and matplotlib: {e}")

    if not torch.cuda.is_available() or not os.path.exists(against.TOOL):
        sys.exit(f"needs a GPU that PyTorch can use, and {against.TOOL}")
    losses, exact = curves(torch, options.steps)
    if any(len(values) != options.steps for values in losses.values()):
        sys.exit(f"not {options.steps} losses each: { {n: len(v) for n, v in losses.items()} }")
    write_csv(options.out + ".csv", losses)
    print("last losses: " + ", ".join(f"{name} {values[-1]:.4f}" for name, values in losses.items()))
    far = False
    for a, b in itertools.combinations(losses, 2):
        off, step = against.largest_difference(losses[a], losses[b])
        far |= not off <= BAR
        print(f"{a} against {b}: largest difference {100 * off:.3f} %, at step {step}")
    off, step = against.largest_difference(exact, losses["pytorch"])
    print(f"pytorch in FP32 against pytorch: largest difference {100 * off:.3f} %, at step {step}")
    draw(options.out + ".svg", losses)
    sys.exit(far)


if __name__ == "__main__":
    main()
