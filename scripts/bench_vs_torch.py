#!/usr/bin/env python3
"""The 1B training step and single layers against PyTorch, on the same GPU in one call.

    python3 scripts/bench_vs_torch.py [step] [layer] [options]

PyTorch runs with torch.compile, cuDNN attention, fused AdamW and gradient clipping, once with parameters,
gradients and moments in BF16, once with all three in FP32 and BF16 matmuls by autocast (the recipe of coda.c).
coda.c runs with separate kernels (off) and with fused ones where they are faster (auto). Processes take turns on
the card, one measuring while the others are idle or not yet started, --rounds times, each round in another order; a
time is the median of a process, a ratio the median over the rounds, with half the distance between the lowest and the
highest. Ours run beside the first recipe. PyTorch and our layers queue all repetitions at once, on a card that is hot
from the same work, so that no time to launch counts; a step of ours goes from one wait to the next, as in training.
Both sides add in FP32 (allow_bf16_reduced_precision_reduction is off). Ours runs with the cuDNN that it finds by itself,
or, as PyTorch does, with PyTorch's (--torch-cudnn). Ours leaves the gradients of the norms' weights to the
optimiser's pass over the weights, once a step: a layer's time is without them. Memory is PyTorch's largest sum of
allocations, and of ours what the device has given away since the context was there, libraries included.
Needs a GPU, a PyTorch that can use it, and ./train built with CUDA.
"""
import argparse
import functools
import importlib.util
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

VOCAB, LAYERS, TOKENS = 128256, 16, 16384
HOT_SECONDS = 2     # a card that was idle meanwhile clocks 1 or 2 % higher in the first second
WIDTHS = {
    "1b": dict(d=2048, f=8192, h=32, kv=8, hd=64, rows=16384),
    "8b": dict(d=4096, f=14336, h=32, kv=8, hd=128, rows=16384),
    "70b": dict(d=8192, f=28672, h=64, kv=8, hd=128, rows=8192),
}


# ---- PyTorch's side, run as `bench_vs_torch.py --torch WHAT ...` in a process of its own -------------------


def median_ms(torch, run, reps):
    for _ in range(3):      # the first compiles
        run()
    torch.cuda.synchronize()
    begun = time.monotonic()
    while time.monotonic() - begun < HOT_SECONDS:
        run()
        torch.cuda.synchronize()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(reps + 1)]
    run()
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    times = sorted(a.elapsed_time(b) for a, b in zip(events, events[1:]))
    return times[len(times) // 2]


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

    def forward():
        with torch.no_grad():
            layer(x, p, cos, sin)

    def both():
        torch.autograd.grad(layer(x, p, cos, sin), leaves, grad)

    return lambda: dict(fwd_ms=median_ms(torch, forward, 60), fwdbwd_ms=median_ms(torch, both, 60))


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

    def measure():
        torch.cuda.reset_peak_memory_stats()
        ms = median_ms(torch, step, 20)
        return dict(step_ms=ms, tok_per_s=TOKENS / ms * 1e3, peak_bytes=torch.cuda.max_memory_allocated())

    return measure


def torch_side(what, name, seq):
    """Measures once for every line on stdin."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        measure = (torch_step if what == "step" else torch_layer)(torch, name, seq)
        measure()       # compiles
        for _ in sys.stdin:
            result = measure()
            result["libraries"] = f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
            print(json.dumps(result), flush=True)


# ---- both sides --------------------------------------------------------------------------------------------


class TorchWorker:
    def __init__(self, what, name, seq):
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__), "--torch", what, name, str(seq)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def measure(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        sys.exit("error: PyTorch's side failed, see above")

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def with_torch_cudnn():
    """The environment, with the cuDNN that PyTorch was installed with first on the library path."""
    found = importlib.util.find_spec("nvidia.cudnn")
    if not found:
        sys.exit("error: --torch-cudnn: PyTorch has no cuDNN of its own here (the Python package nvidia.cudnn)")
    folder = os.path.join(found.submodule_search_locations[0], "lib")
    folders = [folder] + os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    return os.environ | {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, folders))}


def run(options, command):
    """What a process of ours reports: one dictionary a line of JSON."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env=with_torch_cudnn() if options.torch_cudnn else None)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        sys.exit(f"error: {' '.join(command)} failed:\n{done.stderr[-2000:]}{done.stdout[-500:]}")
    return lines


def take_turns(ways, rounds):
    """What each way measures in each round. Rounds begin with one after another, so that none always meets the card as
    the same neighbour has left it."""
    found, keys = {key: [] for key in ways}, list(ways)
    for i in range(rounds):
        for j in range(len(keys)):
            key = keys[(i + j) % len(keys)]
            found[key].append(ways[key]())
    return found


def ratio_text(theirs, ours):
    """Above 1 we are faster. theirs, ours: milliseconds of each round."""
    ratios = [t / o for t, o in zip(theirs, ours)]
    return f"{statistics.median(ratios):6.3f} +-{(max(ratios) - min(ratios)) / 2:5.3f}"


def compare_steps(options, results):
    print("1B step, 16 layers, 16,384 tokens, tied      tokens/s   ratio to the faster PyTorch   peak GiB   ratio")
    whole = {"off": "none", "auto": "auto", "on": "all", "auto+bf16": "auto"}
    names = {"bf16": "PyTorch, all BF16", "fp32": "PyTorch, FP32 and autocast", "off": "coda.c, separate kernels",
             "auto": "coda.c, fused where faster", "on": "coda.c, fused", "auto+bf16": "same, BF16 moments"}
    for seq in options.seq:
        def ours(fusion):
            return run(options, [options.train, "bench", options.config, "--run.device=cuda", f"--train.seq_len={seq}",
                        f"--train.micro_batch={TOKENS // seq}", f"--train.tokens_per_step={TOKENS}",
                        "--train.recompute=swiglu", f"--fusion={whole[fusion]}",
                        f"--train.moments={'bf16' if '+bf16' in fusion else 'fp32'}"])[-1]

        found = {}
        for recipe in options.recipes:      # one at a time: each fills a good part of the memory
            worker = TorchWorker("step", recipe, seq)
            ways = {recipe: worker.measure}
            if not found:
                ways |= {fusion: functools.partial(ours, fusion) for fusion in options.fusion}
            found |= take_turns(ways, options.rounds)
            worker.close()
        results[f"step_{seq}"] = found
        times = {key: [r["step_ms"] for r in value] for key, value in found.items()}
        faster = min(options.recipes, key=lambda k: statistics.median(times[k]))
        same = "fp32" if "fp32" in options.recipes else options.recipes[0]
        peak = max(r["peak_bytes"] for r in found[same])
        for key, value in found.items():
            size = max(r.get("peak_bytes") or r["mem_bytes"] - r["context_bytes"] for r in value)
            ratio = ratio_text(times[faster], times[key]) if key in options.fusion else ""
            plan = f"   {size / value[0]['plan_bytes']:.3f} of the plan" if key in options.fusion else ""
            print(f"  seq {seq}: {names[key]:28s} {TOKENS / statistics.median(times[key]) * 1e3:12.0f}   {ratio:27s} "
                  f"{size / 2**30:10.2f}   {size / peak:.3f}{plan}", flush=True)


def compare_layers(options, results):
    fusions = [fusion for fusion in options.fusion if "+" not in fusion]     # a layer has no moments
    print("one layer, seq 2048          forward ms  PyTorch        ratio     with backward ms  PyTorch        ratio")
    with tempfile.TemporaryDirectory() as cache:
        for name in options.widths:
            def ours(fusion):
                return run(options, [options.layer, "--seq=2048", f"--cache={cache}", f"--fusion={fusion}", name])[-1]

            worker = TorchWorker("layer", name, 2048)
            found = take_turns({"torch": worker.measure} | {f: functools.partial(ours, f) for f in fusions},
                               options.rounds)
            worker.close()
            results[f"layer_{name}"] = found
            for fusion in fusions:
                line = f"  {name:4s} width, fusion {fusion:4s} "
                for key in ("fwd_ms", "fwdbwd_ms"):
                    mine, torchs = [r[key] for r in found[fusion]], [r[key] for r in found["torch"]]
                    line += (f"  {statistics.median(mine):13.3f} {statistics.median(torchs):8.3f}"
                             f"  {ratio_text(torchs, mine)}")
                print(line, flush=True)


def words(allowed):
    def parse(text):
        found = text.split(",")
        if set(found) - set(allowed):
            raise argparse.ArgumentTypeError(f"expected some of {','.join(allowed)}")
        return found

    return parse


def lengths(text):
    found = [int(n) for n in text.split(",")]
    if any(n < 1 or TOKENS % n for n in found):
        raise argparse.ArgumentTypeError(f"expected divisors of {TOKENS}")
    return found


def main():
    if sys.argv[1:2] == ["--torch"] and len(sys.argv) == 5:
        return torch_side(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="step|layer")
    parser.add_argument("--out", help="all that was measured, as JSON")
    parser.add_argument("--train", default="./train")
    parser.add_argument("--layer", default="build/cuda/tests/gpu/bench_layer", help="the program for layers")
    parser.add_argument("--config", default="configs/llama3_1b.json")
    parser.add_argument("--seq", type=lengths, default=[2048, 8192], help="of the step; default 2048,8192")
    parser.add_argument("--recipes", type=words(["bf16", "fp32"]), default=["bf16", "fp32"])
    parser.add_argument("--widths", type=words(list(WIDTHS)), default=list(WIDTHS))
    parser.add_argument("--fusion", type=words(["off", "auto", "on", "auto+bf16"]), default=["off", "auto"],
                        help="of ours; auto+bf16: with moments in BF16, in the step")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torch-cudnn", action="store_true", help="ours, too, runs with the cuDNN that PyTorch brings along")
    options = parser.parse_args()
    parts = options.parts or ["step", "layer"]
    if set(parts) - {"step", "layer"} or options.rounds < 1:
        parser.error("expected step, layer or both, and --rounds of 1 at least")
    programs = {"step": options.train, "layer": options.layer}
    for part in parts:
        if not os.access(programs[part], os.X_OK):
            sys.exit(f"error: {programs[part]} is not there: build it with make CUDA=1")
    try:
        import torch
    except ImportError as e:
        sys.exit(f"error: needs PyTorch: {e}")
    if not torch.cuda.is_available():
        sys.exit("error: needs a GPU that PyTorch can use")
    results = {}
    for part in parts:
        if part == "step":
            compare_steps(options, results)
        else:
            compare_layers(options, results)
    if options.out:
        with open(options.out, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
