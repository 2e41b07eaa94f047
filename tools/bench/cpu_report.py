"""The tables of tools/bench_cpu, and the file in which it keeps the results of several processors.

A run is a dict: date, cpu, threads, rounds, versions {program: version}, roofs {f32, bf16: GFLOP/s, copy: GB/s}, and rows
{work: {"gflop": number or None, "ms": {variant: {"median", "fast_quartile"}}}}. Variants are "tapestry", "tapestry bf16", and
"PEER KIND" such as "torch compiled channels_last bf16".
"""
import json
import os
import statistics


def summary(times):
    """If an OpenMP thread is preempted, a step takes milliseconds longer. The first quartile of the times shows the cost of
    the code; the median also contains the effect of other load on this machine."""
    return {"median": statistics.median(times), "fast_quartile": statistics.quantiles(times, n=4)[0]}


def best_peer(ms, precisions):
    """The name of the fastest peer by median, among variants in f32 and, with "bf16" in precisions, in bf16."""
    peers = [v for v in ms if not v.startswith("tapestry") and ("bf16" in precisions or not v.endswith("bf16"))]
    return min(peers, key=lambda v: ms[v]["median"], default=None)


def share(gflop, ms, roof):
    """The part of the roof (GFLOP/s) that a step reaches, or None if one of them is not known."""
    return gflop / (ms / 1e3) / roof if gflop and roof else None


def percent(part):
    return "" if part is None else f"{100 * part:.0f}%"


def times(t):
    return f"{t['median']:.3f} / {t['fast_quartile']:.3f}"


def table(run, bf16):
    """One line per work. In bf16 the best peer may have any precision."""
    kind, roof = ("tapestry bf16", "bf16") if bf16 else ("tapestry", "f32")
    lines = [f"| work | Tapestry ms{' in bf16' if bf16 else ''} (median / fast quartile) | best peer ms | "
             f"ratio (median / fast quartile) | share of the {roof} roof | its best peer's share |",
             "|---|---|---|---|---|---|"]
    for name, row in run["rows"].items():
        ms = row["ms"]
        peer = best_peer(ms, ["f32", "bf16"] if bf16 else ["f32"])
        if kind not in ms or peer is None:
            continue
        mine, best = ms[kind], ms[peer]
        note = " (us an operation)" if name.startswith("op_") else ""
        theirs = share(row["gflop"], best["median"], run["roofs"]["bf16" if peer.endswith("bf16") else "f32"])
        lines.append(f"| {name}{note} | {times(mine)} | {times(best)} ({peer}) | {best['median'] / mine['median']:.2f} / "
                     f"{best['fast_quartile'] / mine['fast_quartile']:.2f} | "
                     f"{percent(share(row['gflop'], mine['median'], run['roofs'][roof]))} | {percent(theirs)} |")
    return "\n".join(lines)


def all_variants(run):
    lines = ["| work | variant | ms (median / fast quartile) |", "|---|---|---|"]
    for name, row in run["rows"].items():
        lines += [f"| {name} | {v} | {times(t)} |" for v, t in sorted(row["ms"].items(), key=lambda e: e[1]["median"])]
    return "\n".join(lines)


def heading(run):
    versions = ", ".join(f"{k} {v}" for k, v in run["versions"].items())
    r = run["roofs"]
    bf16 = f"{r['bf16']:.0f} GFLOP/s in bf16" if r["bf16"] else "no bf16 instructions"
    return (f"{versions}, {run['threads']} threads, {run['cpu']}, {run['rounds']} interleaved rounds, {run['date']}. "
            f"Roofs: {r['f32']:.0f} GFLOP/s in f32, {bf16}, {r['copy']:.1f} GB/s read and written by a copy.")


def side_by_side(runs):
    """The medians of all kept runs: a column per processor and date."""
    names = list(dict.fromkeys(name for run in runs for name in run["rows"]))
    lines = ["| work | " + " | ".join(f"{run['cpu']}, {run['date']}" for run in runs) + " |",
             "|---" * (len(runs) + 1) + "|"]
    for name in names:
        for kind in ("tapestry", "tapestry bf16"):
            cells = []
            for run in runs:
                ms = run["rows"].get(name, {"ms": {}})["ms"]
                peer = best_peer(ms, ["f32", "bf16"] if kind.endswith("bf16") else ["f32"])
                cells.append("" if kind not in ms or peer is None else
                             f"{ms[kind]['median']:.3f} ms, {ms[peer]['median'] / ms[kind]['median']:.2f}x")
            if any(cells):
                lines.append(f"| {name}{' bf16' if kind.endswith('bf16') else ''} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def keep(run, path):
    """Adds the run to the file, in place of one of the same processor, threads and date. Returns all runs of the file."""
    runs = []
    if os.path.exists(path):
        with open(path) as f:
            runs = json.load(f)
    same = ("cpu", "threads", "date")
    runs = [r for r in runs if any(r[k] != run[k] for k in same)] + [run]
    with open(path + ".new", "w") as f:
        json.dump(runs, f, indent=1)
        f.write("\n")
    os.replace(path + ".new", path)
    return runs
