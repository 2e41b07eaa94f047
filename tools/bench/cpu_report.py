"""The tables of tools/bench_cpu, and the file in which it keeps the results of several processors.

A run is a dict: date, cpu, threads, versions {program: version}, roofs {f32, bf16: GFLOP/s, copy: GB/s}, and rows
{work: {"gflop": number or None, "rounds": number, "ms": {variant: {"median", "fast_quartile", "steps"}},
"missing": {variant: reason}}}. Variants are "tapestry", "tapestry bf16", and "PEER KIND" such as "torch compiled
channels_last bf16".
"""
import json
import os
import statistics


def summary(times):
    """If an OpenMP thread is preempted, a step takes milliseconds longer. The first quartile of the times shows the cost of
    the code; the median also contains the effect of other load on this machine."""
    return {"median": statistics.median(times), "fast_quartile": statistics.quantiles(times, n=4)[0], "steps": len(times)}


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
    lines = ["| work | variant | ms (median / fast quartile) | steps |", "|---|---|---|---|"]
    for name, row in run["rows"].items():
        lines += [f"| {name} | {v} | {times(t)} | {t['steps']} |"
                  for v, t in sorted(row["ms"].items(), key=lambda e: e[1]["median"])]
    return "\n".join(lines)


def heading(run):
    versions = ", ".join(f"{k} {v}" for k, v in run["versions"].items())
    r = run["roofs"]
    bf16 = f"{r['bf16']:.0f} GFLOP/s in bf16" if r["bf16"] else "no bf16 instructions"
    rounds = [row["rounds"] for row in run["rows"].values()]
    return (f"{versions}, {run['threads']} threads, {run['cpu']}, {min(rounds)} to {max(rounds)} interleaved rounds, "
            f"{run['date']}. "
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


def missing(row, rounds):
    """What a row lacks, in lines of text."""
    lines = [f"{variant} ({why})" for variant, why in row["missing"].items()]
    return lines + ([f"{rounds - row['rounds']} of {rounds} rounds"] if row["rounds"] < rounds else [])


def read_runs(path):
    if not os.path.exists(path):
        return []
    with open(path) as f:
        return json.load(f)


def is_same(a, b):
    return all(a[k] == b[k] for k in ("cpu", "threads", "date"))


def read_run(run, path):
    """The run of the file with this run's processor, threads and date, or else this run."""
    return next((r for r in read_runs(path) if is_same(r, run)), run)


def keep(run, path):
    """Writes the rows of a run to the file. They replace rows of the same processor, threads and date; all others stay.
    Returns all runs of the file."""
    runs = read_runs(path)
    old = next((r for r in runs if is_same(r, run)), None)
    merged = run
    if old:
        merged = {**run, "versions": {**old["versions"], **run["versions"]}, "rows": {**old["rows"], **run["rows"]},
                  "roofs": {k: max(v, old["roofs"][k]) for k, v in run["roofs"].items()}}
    runs = [r for r in runs if r is not old] + [merged]
    with open(path + ".new", "w") as f:
        json.dump(runs, f, indent=1)
        f.write("\n")
    os.replace(path + ".new", path)
    return runs
