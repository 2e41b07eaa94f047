"""Runs tools/bench_modes: for each model, starts one job per mode, lets the jobs take turns, and prints the results.

usage: modes.py TAPESTRY_PROGRAM [--rounds 8] [--json FILE]
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from ddp_steps import Job, about

TORCH = [sys.executable, str(Path(__file__).parent / "ddp_torch.py")]
LOGICAL = {"TAPESTRY_LOGICAL_DEVICES": "2"}
STEPS = {"cnn": 10, "mlp": 5}  # the number of training steps per turn
PARTS = ("an empty call of both workers", "scatter", "gather", "replicate", "averaging gradients")


def jobs_of(program, model):
    jobs = {"single": Job([program, "single", model], 1, OMP_NUM_THREADS="1"),
            "dp-master": Job([program, "dp-master", model], 1, **LOGICAL),
            "dp-replicated": Job([program, "dp-replicated", model], 1, **LOGICAL),
            "ddp": Job([program, "ddp", model], 2)}
    if model == "cnn":
        jobs["default"] = Job(TORCH, 2)
        jobs["channels-last"] = Job(TORCH + ["channels_last"], 2)
    else:
        jobs["default"] = Job(TORCH + ["mlp"], 2)
    return jobs


def cpu_ms(job):
    """Returns the CPU time that all threads of all ranks have used so far, including busy waiting."""
    ticks = 0
    for rank in job.ranks:
        fields = Path(f"/proc/{rank.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks * 1e3 / os.sysconf("SC_CLK_TCK")


def measure(program, model, rounds):
    jobs = jobs_of(program, model)
    steps = STEPS[model]
    times, cpu = {name: [] for name in jobs}, dict.fromkeys(jobs, 0.0)
    for job in jobs.values():
        job.ask(f"step {2 * steps}")  # warm up
    for _ in range(rounds):
        for name, job in jobs.items():
            time.sleep(0.05)  # the previous job's OpenMP threads stop spinning in this time
            before = cpu_ms(job)
            times[name] += job.ask(f"step {steps}")
            cpu[name] += cpu_ms(job) - before
    result = {name: {"ms": statistics.median(t), "cpu_ms": cpu[name] / len(t)} for name, t in times.items()}
    for name, job in jobs.items():
        if name in ("dp-replicated", "ddp"):
            result[name]["exchange_ms"], result[name]["exposed_ms"] = job.ask(f"overlap {4 * steps}")
        if not name.startswith(("default", "channels")):
            result[name]["peak_mib"] = job.ask("memory")
    answer = jobs["dp-replicated"].ask("parts 50")
    parts = [{"name": name, "us": us, "bytes": int(size)} for name, us, size in zip(PARTS, answer[::2], answer[1::2])]
    for job in jobs.values():
        job.end()
    layout = min((name for name in jobs if name in ("default", "channels-last")), key=lambda name: result[name]["ms"])
    result["PyTorch ddp"] = dict(result[layout], layout=layout)
    return {"modes": result, "parts": parts}


def print_tables(model, title, measured):
    modes = measured["modes"]
    single = modes["single"]["ms"]
    print(f"\n{title}\n")
    print("| mode | step ms | steps/s | times single's speed | CPU ms of all threads | exchange ms | exposed part | "
          "peak MiB of tensors, by device or rank |")
    print("|---|---|---|---|---|---|---|---|")
    for name in ("single", "dp-master", "dp-replicated", "ddp", "PyTorch ddp"):
        mode = modes[name]
        exchange = [f"{mode[key]:.2f}" if key in mode else "" for key in ("exchange_ms", "exposed_ms")]
        peaks = ", ".join(f"{peak:.1f}" for peak in mode.get("peak_mib", []))
        layout = f" ({mode['layout']})" if model == "cnn" and "layout" in mode else ""
        print(f"| {name}{layout} | {mode['ms']:.2f} | {1e3 / mode['ms']:.1f} | {single / mode['ms']:.2f} | "
              f"{mode['cpu_ms']:.1f} | {exchange[0]} | {exchange[1]} | {peaks} |")
    print(f"\ndp-replicated takes {modes['dp-replicated']['ms'] / modes['ddp']['ms']:.3f} of ddp's time; the goal is 1.10 at most.\n")
    print("| part of DataParallel, timed alone | microseconds | bytes moved |")
    print("|---|---|---|")
    for part in measured["parts"]:
        print(f"| {part['name']} | {part['us']:.1f} | {part['bytes']} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json")
    args = parser.parse_args()
    version, cpu = about()
    print(f"PyTorch {version}, gloo, {cpu}, {args.rounds} interleaved rounds; batch 128 in all, one thread per device or rank")
    results = {"torch": version, "cpu": cpu, "models": {}}
    for model, title in (("cnn", "CNN, 2.3 MB of gradients"), ("mlp", "MLP, 40 MB of gradients")):
        results["models"][model] = measure(args.program, model, args.rounds)
        print_tables(model, title, results["models"][model])
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f, indent=1)


main()
