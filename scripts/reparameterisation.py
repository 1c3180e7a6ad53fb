#!/usr/bin/env python3
"""Executable statement of the fused training step: every formula of docs/MATH.md, in float64, checked
against central differences of the textbook model, tied and untied. Needs numpy only.

    python3 scripts/reparameterisation.py        # prints one line per gradient, exits 1 if any is wrong
"""
import sys
import numpy as np

rng = np.random.default_rng(0)
B, S, d, H, KV, hd, f, V, L = 2, 5, 12, 3, 1, 4, 10, 17, 2      # batch, sequence, widths, layers
T, qw, kw = B * S, H * hd, KV * hd
EPS, THETA = 1e-5, 10000.0
tokens = rng.integers(0, V, T)
targets = rng.integers(0, V, T)
weight_of_row = rng.random(T) / T                              # loss weight per token; 0 means ignored
weight_of_row[3] = 0.0
BLOCK = 2                                                      # the product uses 8; f must be a multiple


def init(tied):
    n = lambda *s: rng.standard_normal(s) * 0.4
    p = {"emb": n(V, d), "gf": 1 + n(d) * 0.3}
    if not tied:
        p["head"] = n(V, d)
    for l in range(L):
        p |= {f"wqkv{l}": n(qw + 2 * kw, d), f"wo{l}": n(d, qw), f"w13{l}": n(2 * f, d), f"w2{l}": n(d, f),
              f"ga{l}": 1 + n(d) * 0.3, f"gm{l}": 1 + n(d) * 0.3}
    return p


# ---- pieces shared by both ------------------------------------------------------------------
# Columns 2i, 2i+1 of a head are one rotary pair. Rows of w13, and so columns of z, come in blocks:
# BLOCK gates, the BLOCK ups that belong to them, the next BLOCK gates, ...
def gate_up(z):
    b = z.reshape(T, f // BLOCK, 2, BLOCK)
    return b[:, :, 0].reshape(T, f), b[:, :, 1].reshape(T, f)


def join(gate, up):
    return np.stack([gate.reshape(T, f // BLOCK, BLOCK), up.reshape(T, f // BLOCK, BLOCK)], 2).reshape(T, 2 * f)


angle = np.outer(np.tile(np.arange(S), B), THETA ** (-np.arange(0, hd, 2) / hd))    # T x hd/2
COS, SIN = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]


def rope(x, sign):
    """x: T x heads x hd; rotates each pair by sign * angle."""
    a, b = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2], out[..., 1::2] = a * COS - sign * b * SIN, sign * a * SIN + b * COS
    return out


def rope_qkv(z, sign):
    out = z.copy()
    qk = z[:, : qw + kw].reshape(T, H + KV, hd)
    out[:, : qw + kw] = rope(qk, sign).reshape(T, -1)
    return out


mask = np.where(np.tril(np.ones((S, S))) > 0, 0.0, -1e30)


def split(qkv):
    q = qkv[:, :qw].reshape(B, S, H, hd).transpose(0, 2, 1, 3)
    k = np.repeat(qkv[:, qw:qw + kw].reshape(B, S, KV, hd).transpose(0, 2, 1, 3), H // KV, 1)
    v = np.repeat(qkv[:, qw + kw:].reshape(B, S, KV, hd).transpose(0, 2, 1, 3), H // KV, 1)
    return q, k, v


def attention(qkv):
    q, k, v = split(qkv)
    s = q @ k.swapaxes(-1, -2) / np.sqrt(hd) + mask
    p = np.exp(s - s.max(-1, keepdims=True)); p /= p.sum(-1, keepdims=True)
    return (p @ v).transpose(0, 2, 1, 3).reshape(T, qw), p


def attention_bwd(qkv, p, do):
    q, k, v = split(qkv)
    do = do.reshape(B, S, H, hd).transpose(0, 2, 1, 3)
    dv, dp = p.swapaxes(-1, -2) @ do, do @ v.swapaxes(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / np.sqrt(hd)
    dq, dk = ds @ k, ds.swapaxes(-1, -2) @ q
    fold = lambda x: x.reshape(B, KV, H // KV, S, hd).sum(2).transpose(0, 2, 1, 3).reshape(T, kw)
    return np.concatenate([dq.transpose(0, 2, 1, 3).reshape(T, qw), fold(dk), fold(dv)], 1)


silu = lambda a: a / (1 + np.exp(-a))
rstd = lambda x: 1 / np.sqrt((x * x).mean(1) + EPS)


def textbook_loss(p):
    x = p["emb"][tokens]
    norm = lambda x, g: x * rstd(x)[:, None] * g
    for l in range(L):
        x = x + attention(rope_qkv(norm(x, p[f"ga{l}"]) @ p[f"wqkv{l}"].T, 1))[0] @ p[f"wo{l}"].T
        gate, up = gate_up(norm(x, p[f"gm{l}"]) @ p[f"w13{l}"].T)
        x = x + (silu(gate) * up) @ p[f"w2{l}"].T
    lg = norm(x, p["gf"]) @ p.get("head", p["emb"]).T
    m = lg.max(1, keepdims=True)
    lse = np.log(np.exp(lg - m).sum(1)) + m[:, 0]
    return (weight_of_row * (lse - lg[np.arange(T), targets])).sum()


def fused_step(p):
    """Loss and gradients as the GEMM-plus-epilogue program computes them. Each `@` is one GEMM; the
    lines under it up to the blank line are its epilogue. Row scalars (r, s, a) are T-vectors."""
    g, col = {}, lambda v: v[:, None]
    fold = {k: p[k] * p[n] for k, n in [(f"wqkv{l}", f"ga{l}") for l in range(L)]
            + [(f"w13{l}", f"gm{l}") for l in range(L)]}        # W' = W diag(gamma), once per update
    head = p.get("head", p["emb"])                              # not folded: a tied table serves lookups too

    # ---- forward
    x = p["emb"][tokens]
    xs, saved = [x], []
    r = rstd(x)                                                 # from per-tile partial sums of squares
    for l in range(L):
        acc = x @ fold[f"wqkv{l}"].T
        qkv = rope_qkv(col(r) * acc, 1)

        o, prob = attention(qkv)

        acc = o @ p[f"wo{l}"].T
        x1 = x + acc
        r1 = rstd(x1)

        acc = x1 @ fold[f"w13{l}"].T
        z = col(r1) * acc
        gate, up = gate_up(z)
        y = silu(gate) * up

        acc = y @ p[f"w2{l}"].T
        x2 = x1 + acc
        r2 = rstd(x2)
        xg = x2 * p["gf"]                                       # second output, last layer only

        saved.append((x, r, qkv, o, prob, x1, r1, z))
        x, r = x2, r2

    # ---- head: the softmax is anchored at the target's own logit, and the target itself left out,
    # so that nothing cancels when the model is sure: D -> 0, loss -> log1p(D) -> D
    row = np.arange(T)
    anchor = r * (xg * head[targets]).sum(1)
    acc = xg @ head.T
    shifted = np.minimum(col(r) * acc - col(anchor), 60.0)
    E = np.exp(shifted)
    E[row, targets] = 0
    D, Q = E.sum(1), (E * shifted).sum(1)                       # per-tile partials, summed after

    loss = (weight_of_row * np.log1p(D)).sum()
    a = r * weight_of_row / (1 + D)
    b = a * D
    s = r * a * Q / d

    # ---- backward
    acc = E @ head
    u = col(a) * acc - col(b) * head[targets]
    dx = u * p["gf"] - col(s) * x
    g["gf"] = (u * x).sum(0)                                    # column reduction, this GEMM only

    G = E.T @ (col(a) * xg)                                     # then the sparse one-hot part:
    np.add.at(G, targets, -col(b) * xg)
    g["head"] = G

    for l in reversed(range(L)):
        x, r, qkv, o, prob, x1, r1, z = saved[l]
        acc = dx @ p[f"w2{l}"]
        gate, up = gate_up(z)
        sig = 1 / (1 + np.exp(-gate))
        y = gate * sig * up
        dz = join(acc * up * sig * (1 + gate * (1 - sig)), acc * gate * sig)
        zdz = (z * dz).sum(1)                                   # per-tile partials
        dzr = col(r1) * dz                                      # stored already scaled by rstd

        g[f"w2{l}"] = dx.T @ y

        acc = dzr @ fold[f"w13{l}"]
        dx1 = dx + acc - col(r1 * r1 * zdz / d) * x1

        G = dzr.T @ x1
        g[f"w13{l}"], g[f"gm{l}"] = G * p[f"gm{l}"], (G * p[f"w13{l}"]).sum(0)

        do = dx1 @ p[f"wo{l}"]

        g[f"wo{l}"] = dx1.T @ o

        dqkv = attention_bwd(qkv, prob, do)
        zdz = (qkv * dqkv).sum(1)                               # rotation keeps inner products
        dzr = col(r) * rope_qkv(dqkv, -1)

        acc = dzr @ fold[f"wqkv{l}"]
        dx = dx1 + acc - col(r * r * zdz / d) * x

        G = dzr.T @ x
        g[f"wqkv{l}"], g[f"ga{l}"] = G * p[f"ga{l}"], (G * p[f"wqkv{l}"]).sum(0)

    lookup = np.zeros_like(p["emb"]) if "head" in p else g.pop("head")      # tied: one accumulator
    np.add.at(lookup, tokens, dx)
    g["emb"] = lookup
    return loss, g


def check(tied):
    p = init(tied)
    loss, grads = fused_step(p)
    bad = abs(loss - textbook_loss(p)) > 1e-12
    print(f"{'tied' if tied else 'untied'}: loss {loss:.15f}  textbook {textbook_loss(p):.15f}")
    for name in p:
        worst = 0.0
        for _ in range(12):
            idx = tuple(rng.integers(0, n) for n in p[name].shape)
            keep, h = p[name][idx], 1e-5
            p[name][idx] = keep + h; up = textbook_loss(p)
            p[name][idx] = keep - h; dn = textbook_loss(p)
            p[name][idx] = keep
            worst = max(worst, abs((up - dn) / (2 * h) - grads[name][idx]))
        bad |= worst > 1e-8
        print(f"  d{name:<7} worst absolute difference {worst:.2e}")
    return bad


def bf16(x):
    """Rounds to bfloat16, nearest even; the result stays float64."""
    b = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    return ((b + 0x7FFF + ((b >> 16) & 1)) & np.uint32(0xFFFF0000)).view(np.float32).astype(np.float64)


def precision():
    """What storing the softmax in BF16 costs the head's weight gradient, by how sure the model is."""
    n, v, h = 256, 512, 64
    x = rng.standard_normal((n, h)); t = rng.integers(0, v, n); row = np.arange(n)
    for margin in (0.0, 6.0, 12.0, 20.0):
        lg = rng.standard_normal((n, v)) * 1.5
        lg[row, t] += margin
        p = np.exp(lg - lg.max(1, keepdims=True)); p /= p.sum(1, keepdims=True)
        hot = np.zeros_like(p); hot[row, t] = 1
        E = np.exp(lg - lg[row, t][:, None]); E[row, t] = 0
        D = E.sum(1)                                            # 1 - p at the target is D / (1 + D): no cancellation
        exact = -(D / (1 + D))[:, None] * hot + np.where(hot > 0, 0, p)
        ref = exact.T @ x
        err = lambda g: np.linalg.norm(g - ref) / np.linalg.norm(ref)
        textbook = bf16(bf16(p) - hot).T @ x                    # BF16 probabilities, then p - onehot
        with_target = E.copy(); with_target[row, t] = 1
        anchored = bf16(with_target).T @ bf16(x / (1 + D)[:, None]); np.add.at(anchored, t, -x)
        left_out = bf16(E).T @ bf16(x / (1 + D)[:, None]); np.add.at(left_out, t, -(D / (1 + D))[:, None] * x)
        print(f"  mean loss {np.log1p(D).mean():8.1e}: textbook BF16 {err(textbook):.1e}   anchored, target kept {err(anchored):.1e}"
              f"   anchored, target left out {err(left_out):.1e}")


failed = check(tied=False) | check(tied=True)
print("error of the head's weight gradient with the softmax stored in BF16:")
precision()
sys.exit(bool(failed))
