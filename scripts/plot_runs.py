#!/usr/bin/env python3
"""Draws the loss curves of one or more runs as an SVG, from their log.jsonl. Standard library only.

    python3 scripts/plot_runs.py OUT.svg TITLE RUN [RUN ...]     a RUN may be LABEL=DIRECTORY

Thin lines: training loss, smoothed over about 1 % of the run. Thick lines with dots: held-out loss.
"""
import json
import math
import os
import sys
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 420, 60, 20, 46, 46
COLORS = ["#1f6fb4", "#d1570c", "#2a8a3e", "#a03092", "#7a6a00"]


def read(run):
    """Training and held-out points, [(step, nats a token)]."""
    train, held_out = [], []
    with open(os.path.join(run, "log.jsonl")) as f:
        for line in f:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:            # the last line of a run that was killed
                continue
            if record.get("loss") is not None:
                train.append((record["step"], record["loss"]))
            elif record.get("val_loss") is not None:
                held_out.append((record["step"], record["val_loss"]))
    return train, held_out


def smooth(points):
    keep, mean, out = 1 - 1 / max(1, len(points) // 100), None, []
    for step, value in points:
        mean = value if mean is None else keep * mean + (1 - keep) * value
        out.append((step, mean))
    every = max(1, len(out) // 400)
    return out[::every] + out[-1:]


def ticks(low, high, count):
    raw = (high - low) / count
    size = 10 ** math.floor(math.log10(raw))
    step = next(m * size for m in (1, 2, 5, 10) if m * size >= raw)
    first = math.ceil(low / step)
    return [i * step for i in range(first, math.floor(high / step) + 1)]


def draw(title, runs):
    curves = [(label, smooth(train), held_out) for label, (train, held_out) in runs]
    steps = [s for _, t, h in curves for s, _ in t + h]
    losses = [v for _, t, h in curves for _, v in t + h]
    x1 = max(steps)
    low, high = min(losses), max(losses)
    low, high = low - 0.05 * (high - low), high + 0.02 * (high - low)
    X = lambda s: LEFT + (WIDTH - LEFT - RIGHT) * s / x1
    Y = lambda v: TOP + (HEIGHT - TOP - BOTTOM) * (high - v) / (high - low)
    svg = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="22" font-size="15">{escape(title)}</text>']
    for v in ticks(low, high, 6):
        svg.append(f'<path d="M{LEFT} {Y(v):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 8}" y="{Y(v) + 4:.1f}" text-anchor="end">{v:g}</text>')
    for s in ticks(0, x1, 8):
        svg.append(f'<text x="{X(s):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{s:g}</text>')
    svg.append(f'<text x="{(LEFT + WIDTH) / 2}" y="{HEIGHT - 8}" text-anchor="middle">step</text>'
               f'<text transform="translate(14 {(TOP + HEIGHT) / 2}) rotate(-90)">nats a token</text>')
    for i, (label, train, held_out) in enumerate(curves):
        color = COLORS[i % len(COLORS)]
        path = lambda points: "M" + "L".join(f"{X(s):.1f} {Y(v):.1f}" for s, v in points)
        svg.append(f'<path d="{path(train)}" fill="none" stroke="{color}" stroke-width="1.2"/>')
        if held_out:
            svg.append(f'<path d="{path(held_out)}" fill="none" stroke="{color}" stroke-width="2.2" opacity="0.75"/>')
            svg += [f'<circle cx="{X(s):.1f}" cy="{Y(v):.1f}" r="2.6" fill="{color}"/>' for s, v in held_out]
        last = f"{label}: training {train[-1][1]:.3f}" + (f", held out {held_out[-1][1]:.3f}" if held_out else "")
        svg.append(f'<text x="{WIDTH - RIGHT - 8}" y="{TOP + 14 + 17 * i}" text-anchor="end" fill="{color}">{escape(last)}</text>')
    return "\n".join(svg + ["</svg>"]) + "\n"


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    runs = []
    for word in sys.argv[3:]:
        label, _, directory = word.rpartition("=")
        runs.append((label or os.path.basename(directory.rstrip("/")), read(directory)))
        if not runs[-1][1][0]:
            sys.exit(f"{directory}: no training step in its log.jsonl")
    with open(sys.argv[1], "w") as f:
        f.write(draw(sys.argv[2], runs))


if __name__ == "__main__":
    main()
