#!/usr/bin/env python3
"""CPU training speed of ./train and of PyTorch eager on the same model, in turn. Needs torch.

    python3 scripts/bench_cpu_vs_torch.py [CONFIG] [--threads N] [--rounds N] [--set model.layers=2 ...]

Both train in float32 on random tokens: forward, backward, clipping, AdamW (fused in PyTorch). Rounds of
the two alternate, each in a process of its own, so that a noisy machine disturbs both alike. Prints each
round, the medians, and ours / PyTorch. PyTorch gets what makes it fast: one QKV and one gate-up matrix, the
library's rms_norm and scaled_dot_product_attention, precomputed rotary tables.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

DEFAULTS = {
    "model": {"kv_heads": None, "head_dim": 0, "norm_eps": 1e-5, "rope_theta": 5e5, "tie_embeddings": False},
    "train": {"accum": 1, "lr": 3e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1,
              "clip": 1.0},
}


def read_config(arguments):
    with open(arguments.config) as f:
        config = json.load(f)
    for section, values in DEFAULTS.items():
        config[section] = values | config[section]
    for setting in arguments.set:
        key, value = setting.split("=")
        section, name = key.split(".")
        config[section][name] = json.loads(value)
    model = config["model"]
    model["kv_heads"] = model["kv_heads"] or model["heads"]
    model["vocab"] = model.get("vocab") or arguments.vocab
    model["head_dim"] = model["head_dim"] or model["hidden"] // model["heads"]
    return config


# ---- PyTorch -----------------------------------------------------------------------------------------

def torch_model(m, seq):
    import torch
    import torch.nn.functional as F
    from torch import nn

    hidden, head_dim, heads, kv_heads = m["hidden"], m["head_dim"], m["heads"], m["kv_heads"]
    inverse = m["rope_theta"] ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.outer(torch.arange(seq), inverse)
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)

    def rotate(x):      # x: [batch, heads, seq, head_dim]
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(hidden))

        def forward(self, x):
            return F.rms_norm(x, (hidden,), self.weight, m["norm_eps"])

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = Norm(), Norm()
            self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * head_dim, bias=False)
            self.out = nn.Linear(heads * head_dim, hidden, bias=False)
            self.gate_up = nn.Linear(hidden, 2 * m["ffn"], bias=False)
            self.down = nn.Linear(m["ffn"], hidden, bias=False)

        def forward(self, x):
            batch = x.shape[0]
            qkv = self.qkv(self.norm1(x)).view(batch, seq, heads + 2 * kv_heads, head_dim).transpose(1, 2)
            q, k, v = qkv.split((heads, kv_heads, kv_heads), 1)
            o = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True,
                                               enable_gqa=kv_heads != heads)
            x = x + self.out(o.transpose(1, 2).reshape(batch, seq, heads * head_dim))
            gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
            return x + self.down(F.silu(gate) * up)

    class Llama(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(m["vocab"], hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(m["layers"]))
            self.norm = Norm()
            self.head = nn.Linear(hidden, m["vocab"], bias=False)
            for p in self.parameters():
                if p.dim() == 2:
                    nn.init.normal_(p, std=0.02)
            if m["tie_embeddings"]:
                self.head.weight = self.embed.weight

        def forward(self, tokens, targets):
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())

    return Llama()


def torch_round(config, threads, steps, warmup):
    import torch
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    m, t = config["model"], config["train"]
    model = torch_model(m, t["seq_len"])
    matrices = [p for p in model.parameters() if p.dim() == 2]
    norms = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": t["weight_decay"]}, {"params": norms, "weight_decay": 0.0}],
        lr=t["lr"], betas=(t["beta1"], t["beta2"]), eps=t["eps"], fused=True)
    tokens, targets = torch.randint(0, m["vocab"], (2, t["micro_batch"], t["seq_len"]))
    times = []
    for _ in range(warmup + steps):
        begin = time.perf_counter()
        for _ in range(t["accum"]):
            (model(tokens, targets) / t["accum"]).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), t["clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        times.append(time.perf_counter() - begin)
    return t["accum"] * tokens.numel() / statistics.median(times[warmup:])


# ---- in turn -----------------------------------------------------------------------------------------

def our_round(arguments, config):
    vocab = config["model"]["vocab"]
    settings = [*arguments.set, f"model.vocab={vocab}", "data.tokenizer=", "sample.every=0",
                "run.device=cpu", f"run.threads={arguments.threads}"]
    done = subprocess.run(
        [arguments.binary, "bench", arguments.config, f"--steps={arguments.steps}",
         f"--warmup={arguments.warmup}", *(f"--{s}" for s in settings)], capture_output=True, text=True,
        env=os.environ | {"OMP_NUM_THREADS": str(arguments.threads)})
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])["tok_per_s"]


def their_round(arguments):
    done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--torch"], capture_output=True,
                          text=True, env=os.environ | {"OMP_NUM_THREADS": str(arguments.threads)})
    if done.returncode:
        sys.exit(done.stderr)
    return float(done.stdout)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default="configs/demo.json")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--set", nargs="*", default=[], help="section.key=value for both")
    parser.add_argument("--vocab", type=int, default=2048, help="where the config takes it from a tokenizer")
    parser.add_argument("--binary", default="./train")
    parser.add_argument("--torch", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    config = read_config(arguments)
    if arguments.torch:
        print(torch_round(config, arguments.threads, arguments.steps, arguments.warmup))
        return
    ours, theirs = [], []
    for n in range(arguments.rounds):
        ours.append(our_round(arguments, config))
        theirs.append(their_round(arguments))
        print(f"round {n + 1}: ours {ours[-1]:9.0f} tokens/s   PyTorch {theirs[-1]:9.0f}   "
              f"ratio {ours[-1] / theirs[-1]:.2f}", flush=True)
    a, b = statistics.median(ours), statistics.median(theirs)
    print(f"median:  ours {a:9.0f} tokens/s   PyTorch {b:9.0f}   ratio {a / b:.2f}   "
          f"({arguments.threads} threads, {arguments.config})")


if __name__ == "__main__":
    main()
