#!/usr/bin/env python3
"""Draws the last training step of a trace that write_trace() wrote. Each rank has two lanes: one for computation and one
for communication.

    trace_svg.py trace.json picture.svg
"""
import json
import sys
from html import escape

WIDTH, LEFT, LANE, GAP = 960, 130, 30, 26
COLOURS = {"forward": "#9db4c0", "backward": "#5c8fb5", "bucket": "#d08c4a"}


def last_step(events):
    """Returns the spans of each rank that began with or after its last forward."""
    ranks = {}
    for rank in sorted({e["pid"] for e in events}):
        spans = [e for e in events if e["pid"] == rank and e["ph"] == "X" and e["name"].split()[0] in COLOURS]
        begin = max(e["ts"] for e in spans if e["name"] == "forward")
        ranks[rank] = [e for e in spans if e["ts"] >= begin]
    return ranks


def label(name, width):
    """Returns the longest form of the name that fits the width, such as "fc5.weight" or "fc5", "bucket 1" or "1"."""
    name = name.removeprefix("backward of ").split(" (")[0]
    forms = (name, name.split(" ")[-1] if name.startswith("bucket") else name.split(".")[0])
    return next((form for form in forms if width > 7 * len(form)), "")


def draw(ranks):
    start = min(e["ts"] for spans in ranks.values() for e in spans)
    end = max(e["ts"] + e["dur"] for spans in ranks.values() for e in spans)
    scale = (WIDTH - LEFT - 10) / (end - start)
    x = lambda time: LEFT + (time - start) * scale
    out, top = [], 10
    for rank, spans in ranks.items():
        for lane, lane_name in enumerate(("compute", "comm.")):
            y = top + lane * (LANE + 4)
            out.append(f'<text x="4" y="{y + 19}">rank {rank}, {lane_name}</text>')
            for e in (e for e in spans if e["tid"] == lane and e["name"] != "backward"):
                left, width = x(e["ts"]), max(e["dur"] * scale, 1)
                kind = e["name"].split()[0]
                out.append(f'<g><title>{escape(e["name"])}: {e["dur"] / 1000:.2f} ms</title>'
                           f'<rect x="{left:.1f}" y="{y}" width="{width:.1f}" height="{LANE}" fill="{COLOURS[kind]}" '
                           'stroke="#fff" stroke-width="0.5"/>')
                out.append(f'<text x="{left + width / 2:.1f}" y="{y + 19}" text-anchor="middle" fill="#fff">'
                           f'{escape(label(e["name"], width))}</text></g>')
        for e in (e for e in spans if e["name"] == "backward"):  # a dashed line marks the end of backward: all gradients of the rank are computed
            at = x(e["ts"] + e["dur"])
            out.append(f'<path d="M{at:.1f} {top - 4}v{2 * LANE + 12}" stroke="#b33" stroke-dasharray="4 3"/>')
        top += 2 * (LANE + 4) + GAP
    ms = (end - start) / 1000
    step = next(s for s in (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if ms / s <= 12)
    for i in range(int(ms / step) + 1):
        at = x(start + i * step * 1000)
        out.append(f'<path d="M{at:.1f} {top - 8}v5" stroke="#888"/>'
                   f'<text x="{at:.1f}" y="{top + 12}" text-anchor="middle">{i * step:g}{" ms" if i == 0 else ""}</text>')
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + 20}" font-family="sans-serif" '
            f'font-size="12" fill="#333">\n<rect width="100%" height="100%" fill="#fff"/>\n' + "\n".join(out) + "\n</svg>\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    with open(sys.argv[1]) as file:
        picture = draw(last_step(json.load(file)))
    with open(sys.argv[2], "w") as file:
        file.write(picture)
