#!/usr/bin/env python3
"""The 1B training step and single layers against PyTorch, on the same GPU in one call.

    python3 scripts/bench_vs_torch.py [--out=FILE.json] [--train=./train] [--layer=PATH/bench_layer]
                                      [--seq=2048,8192] [step] [layer]

PyTorch runs with torch.compile, cuDNN attention, fused AdamW and gradient clipping, once with parameters,
gradients and moments in BF16, once with all three in FP32 and BF16 matmuls by autocast (the recipe of coda.c).
Every measurement is a process of its own, so that each has the whole card; ours run before and after
PyTorch's. Times are medians. Needs a GPU, a PyTorch that can use it, and ./train built with CUDA.
"""
import json
import math
import os
import subprocess
import sys

VOCAB, LAYERS, TOKENS = 128256, 16, 16384
WIDTHS = {
    "1b": dict(d=2048, f=8192, h=32, kv=8, hd=64, rows=16384),
    "8b": dict(d=4096, f=14336, h=32, kv=8, hd=128, rows=16384),
    "70b": dict(d=8192, f=28672, h=64, kv=8, hd=128, rows=8192),
}


# ---- PyTorch's side, run as `bench_vs_torch.py --torch WHAT ...` in a process of its own -------------------


def median_ms(torch, run, warm, reps):
    for _ in range(warm):
        run()
    torch.cuda.synchronize()
    times = []
    for _ in range(reps):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[len(times) // 2]


def rope_tables(torch, seq, head_dim):
    inverse = 1.0 / (500000.0 ** (torch.arange(0, head_dim, 2, device="cuda").float() / head_dim))
    angle = torch.outer(torch.arange(seq, device="cuda").float(), inverse)
    return torch.cat([angle.cos()] * 2, -1), torch.cat([angle.sin()] * 2, -1)


def make_layer(torch, w):
    import torch.nn.functional as F

    heads, kv, head_dim, d = w["h"], w["kv"], w["hd"], w["d"]

    def rope(x, cos, sin):
        a, b = x.float().chunk(2, -1)
        return (x.float() * cos[None, :, None] + torch.cat([-b, a], -1) * sin[None, :, None]).to(x.dtype)

    def layer(x, p, cos, sin):
        batch, seq, _ = x.shape
        qkv = F.linear(F.rms_norm(x, (d,), p["n1"], 1e-5), p["wqkv"])
        qkv = qkv.view(batch, seq, heads + 2 * kv, head_dim)
        q, k, v = qkv[:, :, :heads], qkv[:, :, heads:heads + kv], qkv[:, :, heads + kv:]
        q, k = rope(q, cos, sin), rope(k, cos, sin)
        o = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                           is_causal=True, enable_gqa=True)
        x = x + F.linear(o.transpose(1, 2).reshape(batch, seq, heads * head_dim), p["wo"])
        gate, up = F.linear(F.rms_norm(x, (d,), p["n2"], 1e-5), p["w13"]).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, p["w2"])

    return layer


def make_params(torch, w, dtype):
    d, f, q = w["d"], w["f"], (w["h"] + 2 * w["kv"]) * w["hd"]

    def matrix(rows, cols):
        return (torch.randn(rows, cols, device="cuda") / math.sqrt(cols)).to(dtype).requires_grad_()

    def norm():
        return torch.ones(d, device="cuda", dtype=dtype).requires_grad_()

    return dict(wqkv=matrix(q, d), wo=matrix(d, w["h"] * w["hd"]), w13=matrix(2 * f, d), w2=matrix(d, f),
                n1=norm(), n2=norm())


def torch_layer(torch, name, seq):
    w = WIDTHS[name]
    layer = torch.compile(make_layer(torch, w), dynamic=False)
    p = make_params(torch, w, torch.bfloat16)
    cos, sin = rope_tables(torch, seq, w["hd"])
    x = torch.randn(w["rows"] // seq, seq, w["d"], device="cuda", dtype=torch.bfloat16).requires_grad_()
    grad = torch.randn_like(x)
    leaves = [x] + list(p.values())
    with torch.no_grad():
        forward = median_ms(torch, lambda: layer(x, p, cos, sin), 20, 40)
    both = median_ms(torch, lambda: torch.autograd.grad(layer(x, p, cos, sin), leaves, grad), 20, 40)
    return dict(fwd_ms=forward, fwdbwd_ms=both)


def torch_step(torch, recipe, seq):
    import torch.nn.functional as F

    w, fp32 = WIDTHS["1b"], recipe == "fp32"
    dtype = torch.float32 if fp32 else torch.bfloat16
    layer = torch.compile(make_layer(torch, w), dynamic=False)
    layers = [make_params(torch, w, dtype) for _ in range(LAYERS)]
    table = (torch.randn(VOCAB, w["d"], device="cuda") * 0.02).to(dtype).requires_grad_()
    final = torch.ones(w["d"], device="cuda", dtype=dtype).requires_grad_()
    cos, sin = rope_tables(torch, seq, w["hd"])
    leaves = [table, final] + [t for p in layers for t in p.values()]
    optimizer = torch.optim.AdamW(leaves, lr=1e-4, fused=True)
    tokens = torch.randint(VOCAB, (TOKENS // seq, seq), device="cuda")
    targets = torch.randint(VOCAB, (TOKENS // seq, seq), device="cuda")

    @torch.compile(dynamic=False)
    def head(x, final, table, targets):
        logits = F.linear(F.rms_norm(x, (w["d"],), final, 1e-5), table)
        return F.cross_entropy(logits.float().view(-1, VOCAB), targets.view(-1))

    def step():
        with torch.autocast("cuda", torch.bfloat16, enabled=fp32):
            x = F.embedding(tokens, table).to(torch.bfloat16)
            for p in layers:
                x = layer(x, p, cos, sin)
            loss = head(x, final, table, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(leaves, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    torch.cuda.reset_peak_memory_stats()
    ms = median_ms(torch, step, 6, 20)
    return dict(step_ms=ms, tok_per_s=TOKENS / ms * 1e3, peak_bytes=torch.cuda.max_memory_allocated())


def torch_side(what, name, seq):
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        result = (torch_step if what == "step" else torch_layer)(torch, name, seq)
    result["libraries"] = f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    print(json.dumps(result))


# ---- both sides --------------------------------------------------------------------------------------------


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        sys.exit(f"error: {' '.join(command)} failed:\n{done.stderr[-2000:]}{done.stdout[-500:]}")
    return json.loads(lines[-1])


def run_torch(what, name, seq):
    return run([sys.executable, os.path.abspath(__file__), "--torch", what, name, str(seq)])


def compare_steps(train, config, seqs, results):
    print("1B step, 16 layers, 16,384 tokens, tied embeddings        tokens/s   ratio   peak GiB   ratio")
    for seq in seqs:
        command = [train, "bench", config, "--run.device=cuda", f"--train.seq_len={seq}",
                   f"--train.micro_batch={TOKENS // seq}", f"--train.tokens_per_step={TOKENS}",
                   "--train.recompute=swiglu"]
        ours = [run(command)]
        bf16, fp32 = run_torch("step", "bf16", seq), run_torch("step", "fp32", seq)
        ours.append(run(command))
        mine = min(ours, key=lambda o: o["step_ms"])
        results[f"step_{seq}"] = dict(ours=ours, torch_bf16=bf16, torch_fp32=fp32)
        fastest = max(bf16["tok_per_s"], fp32["tok_per_s"])
        gib = 2.0 ** 30
        for name, r in (("PyTorch, all BF16", bf16), ("PyTorch, FP32 with autocast", fp32)):
            print(f"  seq {seq}: {name:40s} {r['tok_per_s']:12.0f}          {r['peak_bytes'] / gib:8.2f}")
        print(f"  seq {seq}: {'coda.c, BF16 with FP32 masters':40s} {mine['tok_per_s']:12.0f}"
              f"  {mine['tok_per_s'] / fastest:6.3f}  {mine['plan_bytes'] / gib:8.2f}"
              f"  {mine['plan_bytes'] / fp32['peak_bytes']:6.3f}", flush=True)


def compare_layers(bench, results):
    print("one layer                    forward ms  PyTorch   ratio     with backward ms  PyTorch   ratio")
    for name in WIDTHS:
        ours = [run([bench, "--seq=2048", name])]
        theirs = run_torch("layer", name, 2048)
        ours.append(run([bench, "--seq=2048", name]))
        forward, both = min(o["fwd_ms"] for o in ours), min(o["fwdbwd_ms"] for o in ours)
        results[f"layer_{name}"] = dict(ours=ours, torch=theirs)
        print(f"  {name:4s} width, seq 2048       {forward:10.3f} {theirs['fwd_ms']:8.3f}"
              f"  {theirs['fwd_ms'] / forward:6.3f}           {both:8.3f} {theirs['fwdbwd_ms']:8.3f}"
              f"  {theirs['fwdbwd_ms'] / both:6.3f}", flush=True)


def main():
    if sys.argv[1:2] == ["--torch"]:
        return torch_side(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    options = dict(out="", train="./train", layer="build/cuda/tests/gpu/bench_layer",
                   config="configs/llama3_1b.json", seq="2048,8192")
    parts = []
    for argument in sys.argv[1:]:
        name, equals, value = argument.removeprefix("--").partition("=")
        if equals and name in options:
            options[name] = value
        elif argument in ("step", "layer"):
            parts.append(argument)
        else:
            sys.exit(f"error: unknown argument {argument}\n{__doc__}")
    results = {}
    for part in parts or ["step", "layer"]:
        if part == "step":
            seqs = [int(seq) for seq in options["seq"].split(",")]
            compare_steps(options["train"], options["config"], seqs, results)
        else:
            compare_layers(options["layer"], results)
    if options["out"]:
        with open(options["out"], "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
