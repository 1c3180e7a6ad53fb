#!/usr/bin/env python3
"""Gradients and losses of a whole model on the GPU against Hugging Face's Llama in PyTorch.

Every gradient tensor (q, k, v apart), at initialisation and after 200 steps: its error against Hugging Face
in FP32 is at most 1.1 times that of Hugging Face in BF16 on the same weights and tokens. Then 50 optimiser
steps side by side: losses within 0.5 % at each. All with separate kernels, then with fused ones. Prints one
"ok - " or "not ok - " line a check.
"""
import os
import subprocess
import sys
import tempfile

TOOL = os.environ.get("GPU_MODEL_TOOL", "build/cuda/tests/gpu/test_gpu_model")
VOCAB = 4864        # like the intermediate size, enough for weight gradients to be fused too
SIZES = dict(hidden_size=512, intermediate_size=2432, num_hidden_layers=4, num_attention_heads=8,
             num_key_value_heads=4, vocab_size=VOCAB, max_position_embeddings=512)
SEQUENCES, SEQ, LR = 8, 256, 3e-4
ROOM, LEAST_ERROR = 1.1, 1e-4
FUSIONS = {"off": "", "on": ", fused"}                  # the tool's word, and what a check's name says of it

failures = 0


def check(good, name, detail=""):
    global failures
    failures += not good
    print(f"{'ok' if good else 'not ok'} - {name}{': ' + detail if detail else ''}", flush=True)


def make_batches(torch, steps, seed, seq=SEQ):
    """[steps, sequences, seq + 1] tokens that can be learnt: three in four follow from the one before."""
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCAB, (steps, SEQUENCES, seq + 1), generator=g)
    noise = torch.rand(steps, SEQUENCES, seq + 1, generator=g) < 0.25
    for i in range(1, seq + 1):
        tokens[:, :, i] = torch.where(noise[:, :, i], tokens[:, :, i], (tokens[:, :, i - 1] * 5 + 3) % VOCAB)
    return tokens


def loss_of(torch, model, tokens):
    logits = model(input_ids=tokens[:, :-1]).logits.float()
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


def make_optimizer(torch, model, decay):
    named = list(model.named_parameters())
    matrices = [p for n, p in named if p.dim() == 2 and "embed" not in n and "lm_head" not in n]
    rest = [p for n, p in named if p.dim() != 2 or "embed" in n or "lm_head" in n]
    groups = [dict(params=matrices, weight_decay=decay), dict(params=rest, weight_decay=0.0)]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)


def train(torch, model, batches, rates, decay, autocast=False):
    """Trains the model, each step at its learning rate, and returns its losses; autocast: products in BF16."""
    optimizer, losses = make_optimizer(torch, model, decay), []
    for tokens, rate in zip(batches, rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
            loss = loss_of(torch, model, tokens.cuda())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def gradients(torch, model, tokens):
    model.zero_grad(set_to_none=True)
    loss_of(torch, model, tokens.cuda()).backward()
    return {n: p.grad.float().flatten() for n, p in model.named_parameters()}


def save(model, batches, rates, folder):
    """The model, the batches and each step's learning rate as the tool reads them."""
    import numpy

    model.save_pretrained(os.path.join(folder, "model"))
    with open(os.path.join(folder, "batches.bin"), "wb") as f:
        numpy.array([len(batches), batches.shape[1], batches.shape[2] - 1], numpy.int32).tofile(f)
        for tokens, rate in zip(batches, rates):
            numpy.float32(rate).tofile(f)
            tokens[:, :-1].numpy().astype(numpy.int32).tofile(f)
            tokens[:, 1:].numpy().astype(numpy.int32).tofile(f)


def trace(torch, folder, fusion):
    """The tool's gradients at the saved weights, and its losses over the saved batches. fusion: off, on."""
    import numpy

    weights, data, out = (os.path.join(folder, n) for n in ("model", "batches.bin", "out.bin"))
    done = subprocess.run([TOOL, "trace", weights, data, out, fusion], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"not ok - the tool failed: {done.stderr}")
    values, grads, at = torch.from_numpy(numpy.fromfile(out, numpy.float32)), {}, 0
    for line in done.stdout.splitlines():
        name, count = line.split()
        grads[name] = values[at:at + int(count)].cuda()
        at += int(count)
    return grads, values[at:].tolist()


def exact_and_half(torch, model, tokens):
    """Hugging Face's gradients in FP32 and in BF16."""
    import copy

    return gradients(torch, model, tokens), gradients(torch, copy.deepcopy(model).to(torch.bfloat16), tokens)


def largest_difference(a, b):
    """(relative difference, step) where it is largest; steps count from 1. A NaN is the largest of all."""
    return max(((abs(x - y) / y if x == x and y == y else float("inf")), i + 1)
               for i, (x, y) in enumerate(zip(a, b)))


def compare_gradients(exact, half, grads, name):
    worst, worst_name = 0.0, ""
    for key, want in exact.items():
        ours, theirs = ((g[key] - want).norm() / want.norm() for g in (grads, half))
        ratio = (ours / max(theirs, LEAST_ERROR)).item()
        if ratio > worst or ratio != ratio:
            worst, worst_name = ratio, f"{key} {ours:.2e} against {theirs:.2e}"
        if not ratio <= ROOM:
            check(False, f"gradient {name}", f"{key} is off by {ours:.2e}, Hugging Face by {theirs:.2e}")
    check(worst <= ROOM and len(grads) == len(exact), f"gradients {name}, {len(exact)} tensors",
          f"largest error ratio {worst:.2f} ({worst_name})")


def main():
    try:
        import torch
        import transformers
    except ImportError as e:
        return print(f"not checked: {e}")
    if not torch.cuda.is_available() or not os.path.exists(TOOL):
        return print(f"not checked: needs a GPU that PyTorch can use, and {TOOL}")
    torch.backends.cuda.matmul.allow_tf32 = False
    for tied in (True, False):
        torch.manual_seed(1)
        config = transformers.LlamaConfig(**SIZES, tie_word_embeddings=tied, rope_theta=10000.0,
                                          rms_norm_eps=1e-5, attention_dropout=0.0)
        model = transformers.LlamaForCausalLM(config).cuda().float()
        with torch.no_grad():
            for name, p in model.named_parameters():
                if p.dim() == 1:
                    p.mul_(1 + 0.1 * torch.randn_like(p))
        kind = "tied" if tied else "untied"
        batches, rates = make_batches(torch, 200, 2), [LR] * 200
        with tempfile.TemporaryDirectory() as folder:
            save(model, batches[:50], rates[:50], folder)
            exact, half = exact_and_half(torch, model, batches[0])
            expected = train(torch, model, batches[:50], rates[:50], 0.1)
            for fusion, fused in FUSIONS.items():
                grads, losses = trace(torch, folder, fusion)
                compare_gradients(exact, half, grads, f"at initialisation, {kind}{fused}")
                off = largest_difference(losses, expected)[0]
                check(len(losses) == 50 and off <= 0.005, f"50 losses within 0.5 %, {kind}{fused}",
                      f"largest difference {100 * off:.3f} %, last loss {losses[-1]:.4f}")
            train(torch, model, batches[50:], rates[50:], 0.1)
            save(model, batches[:1], rates[:1], folder)
            exact, half = exact_and_half(torch, model, batches[0])
            for fusion, fused in FUSIONS.items():
                grads, _ = trace(torch, folder, fusion)
                compare_gradients(exact, half, grads, f"after 200 steps, {kind}{fused}")
    sys.exit(failures != 0)


if __name__ == "__main__":
    main()
