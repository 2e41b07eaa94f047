"""The tables of tools/bench_cpu, and the file in which it keeps the results of several processors.

A run is a dict: date, cpu, threads, versions {program: version}, roofs {f32, bf16, amx: GFLOP/s of the UNITS, copy: GB/s,
ghz: the clock}, and rows {work: {"gflop": number or None, "rounds": number, "ms": {variant: {"median", "fast_quartile", "steps"}},
"missing": {variant: reason}}}. Variants are "tapestry", "tapestry bf16", and "PEER KIND" such as "torch compiled
channels_last bf16".
"""
import json
import os
import statistics

# The instructions whose rates are roofs, by the names of cpu_roofs.h. A step in bf16 may use any of them:
# vdpbf16ps can be slower than f32's FMA.
UNITS = {"f32": "f32 FMA", "bf16": "AVX512_BF16 vdpbf16ps", "amx": "AMX tdpbf16ps"}


def summary(times):
    """If an OpenMP thread is preempted, a step takes milliseconds longer. The first quartile of the times shows the cost of
    the code; the median also contains the effect of other load on this machine."""
    return {"median": statistics.median(times), "fast_quartile": statistics.quantiles(times, n=4)[0], "steps": len(times)}


def best_peer(ms, precisions):
    """The name of the fastest peer by median, among variants in f32 and, with "bf16" in precisions, in bf16."""
    peers = [v for v in ms if not v.startswith("tapestry") and ("bf16" in precisions or not v.endswith("bf16"))]
    return min(peers, key=lambda v: ms[v]["median"], default=None)


def roof_of(roofs, bf16):
    """The fastest unit for a precision, and its GFLOP/s."""
    unit = max(UNITS if bf16 else ["f32"], key=lambda u: roofs.get(u, 0))
    return UNITS[unit], roofs.get(unit, 0)


def larger(a, b):
    """The roofs of two measurements: other load makes a roof lower, and nothing makes it higher."""
    return {k: max(a.get(k, 0), b.get(k, 0)) for k in {**a, **b}}


def share(gflop, ms, roof):
    """The part of the roof (GFLOP/s) that a step reaches, or None if one of them is not known."""
    return gflop / (ms / 1e3) / roof if gflop and roof else None


def percent(part):
    return "" if part is None else f"{100 * part:.0f}%"


def times(t):
    return f"{t['median']:.3f} / {t['fast_quartile']:.3f}"


def table(run, bf16):
    """One line per work. In bf16 the best peer may have any precision; its share is of its precision's roof."""
    kind, (unit, roof), above = "tapestry bf16" if bf16 else "tapestry", roof_of(run["roofs"], bf16), []
    lines = [f"| work | Tapestry ms{' in bf16' if bf16 else ''} (median / fast quartile) | best peer ms | "
             f"ratio (median / fast quartile) | share of the roof ({unit}) | its best peer's share |",
             "|---|---|---|---|---|---|"]
    for name, row in run["rows"].items():
        ms = row["ms"]
        peer = best_peer(ms, ["f32", "bf16"] if bf16 else ["f32"])
        if kind not in ms or peer is None:
            continue
        mine, best = ms[kind], ms[peer]
        note = " (us an operation)" if name.startswith("op_") else ""
        part = share(row["gflop"], mine["median"], roof)
        theirs = share(row["gflop"], best["median"], roof_of(run["roofs"], peer.endswith("bf16"))[1])
        above += [name] if max(part or 0, theirs or 0) > 1 else []
        lines.append(f"| {name}{note} | {times(mine)} | {times(best)} ({peer}) | {best['median'] / mine['median']:.2f} / "
                     f"{best['fast_quartile'] / mine['fast_quartile']:.2f} | "
                     f"{percent(part)} | {percent(theirs)} |")
    if above:
        lines += ["", f"More than 100% ({' '.join(above)}): the roof was measured too low, as beside other load, or the step "
                  f"needs fewer operations than are counted. --works {' '.join(above)} measures both again."]
    return "\n".join(lines)


def all_variants(run):
    lines = ["| work | variant | ms (median / fast quartile) | steps |", "|---|---|---|---|"]
    for name, row in run["rows"].items():
        lines += [f"| {name} | {v} | {times(t)} | {t['steps']} |"
                  for v, t in sorted(row["ms"].items(), key=lambda e: e[1]["median"])]
    return "\n".join(lines)


def roof_text(run, unit):
    """A roof in words. A run that was kept before the unit was measured says so."""
    rate = run["roofs"].get(unit)
    if rate is None:
        return "not measured"
    return f"{rate:.0f} GFLOP/s" if rate else f"no {UNITS[unit].removeprefix('f32 ').split()[0]}"


def heading(run):
    versions = ", ".join(f"{k} {v}" for k, v in run["versions"].items())
    r = run["roofs"]
    units = ", ".join(f"{name}: {roof_text(run, unit)}" for unit, name in UNITS.items())
    clock = ""
    if r.get("ghz"):
        clock = f", {r['ghz']:.2f} GHz ({r['f32'] / run['threads'] / r['ghz']:.1f} f32 operations a cycle and thread)"
    rounds = [row["rounds"] for row in run["rows"].values()]
    return (f"{versions}, {run['threads']} threads, {run['cpu']}, {min(rounds)} to {max(rounds)} interleaved rounds, "
            f"{run['date']}. "
            f"Roofs: {units}, {r['copy']:.1f} GB/s read and written by a copy{clock}.")


def side_by_side(runs):
    """The medians of all kept runs: a column per processor and date."""
    names = list(dict.fromkeys(name for run in runs for name in run["rows"]))
    lines = ["| work | " + " | ".join(f"{run['cpu']}, {run['date']}" for run in runs) + " |",
             "|---" * (len(runs) + 1) + "|"]
    for unit, name in UNITS.items():
        lines.append(f"| roof: {name} | " + " | ".join(roof_text(run, unit) for run in runs) + " |")
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
                  "roofs": larger(old["roofs"], run["roofs"])}
    runs = [r for r in runs if r is not old] + [merged]
    with open(path + ".new", "w") as f:
        json.dump(runs, f, indent=1)
        f.write("\n")
    os.replace(path + ".new", path)
    return runs
