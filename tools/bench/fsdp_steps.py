"""Runs tools/bench_fsdp: for each model, starts one job per mode, compares their losses, lets the jobs take turns, and
prints the results.

usage: fsdp_steps.py TAPESTRY_PROGRAM [--rounds 8] [--models gpt deep] [--json FILE]
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ddp_steps import Job, about

TORCH = [sys.executable, str(Path(__file__).parent / "fsdp_torch.py")]
OWN = ("ddp", "fsdp", "fsdp-keep", "zero1", "zero2")
NAMES = {"ddp": "DistributedDataParallel", "fsdp": "fully_shard", "fsdp-keep": "fully_shard, reshard off",
         "zero1": "ZeRO-1", "zero2": "ZeRO-2", "torch ddp": "PyTorch DDP", "torch fsdp": "PyTorch FSDP2",
         "torch fsdp-keep": "PyTorch FSDP2, reshard off", "torch fsdp compiled": "PyTorch FSDP2, torch.compile"}
TITLES = {"gpt": "GPT of tools/bench: 4 blocks of width 256, 4 x 128 tokens per rank",
          "deep": "GPT with 24 blocks of width 128, 2 x 128 tokens per rank"}
CHECKED = 4  # steps of SGD, and as many of AdamW


def cpu_ms(job):
    """Returns the CPU time that all threads of all ranks have used so far, with that of threads that have ended."""
    ticks = 0
    for rank in job.ranks:
        fields = Path(f"/proc/{rank.pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks * 1e3 / os.sysconf("SC_CLK_TCK")


def largest_difference(losses, expected):
    return max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True))


def jobs_of(program, model, weights, args):
    jobs = {mode: Job([program, mode, model], 2) for mode in OWN}
    jobs["ddp"].ask(f"save {weights}")
    theirs = TORCH[:]
    for mode in ("ddp", "fsdp", "fsdp-keep"):
        jobs[f"torch {mode}"] = Job([*theirs, mode, model, weights, "--optimizer", args.optimizer], 2)
    if args.compile:
        jobs["torch fsdp compiled"] = Job([*theirs, "fsdp", model, weights, "--optimizer", args.optimizer, "--compile"], 2)
    return jobs


def measure(model, args):
    with tempfile.TemporaryDirectory() as folder:
        jobs = jobs_of(args.program, model, os.path.join(folder, "weights.safetensors"), args)
        losses = {name: job.ask(f"losses {CHECKED}") for name, job in jobs.items()}
    difference = {name: largest_difference(values, losses["ddp"]) for name, values in losses.items()}
    times, cpu = {name: [] for name in jobs}, {name: [] for name in jobs}
    for job in jobs.values():
        job.ask("step 2")  # warm up
    for _ in range(args.rounds):
        for name, job in jobs.items():
            time.sleep(0.05)  # the previous job's threads stop spinning in this time
            before = cpu_ms(job)
            times[name] += job.ask(f"step {args.steps}")
            cpu[name].append((cpu_ms(job) - before) / args.steps)
    result = {name: {"ms": statistics.median(t), "fastest_ms": min(t), "cpu_ms": statistics.median(cpu[name]),
                     "difference": difference[name]}
              for name, t in times.items()}
    for name in OWN:
        result[name]["transport_ms"], result[name]["exposed_ms"] = jobs[name].ask(f"waits {2 * args.steps}")
        result[name]["peak_mib"] = max(jobs[name].ask("memory"))
    for job in jobs.values():
        job.end()
    return result


def print_table(model, result):
    print(f"\n{TITLES[model]}\n")
    columns = (("ms", "median ms"), ("fastest_ms", "fastest ms"), ("cpu_ms", "CPU ms of both ranks"))
    print("| mode | " + " | ".join(f"{title} | / DDP's | PyTorch FSDP2's / this" for _, title in columns) +
          " | transport ms | waits ms | peak MiB of tensors | largest difference of a loss |")
    print("|---" * (5 + 3 * len(columns)) + "|")
    ddp, fsdp2 = result["ddp"], result["torch fsdp"]
    for name, r in result.items():
        ratios = [f"{r[key]:.1f} | {r[key] / ddp[key]:.2f} | {fsdp2[key] / r[key]:.2f}" for key, _ in columns]
        own = [f"{r[key]:.1f}" if key in r else "" for key in ("transport_ms", "exposed_ms", "peak_mib")]
        print(f"| {NAMES[name]} | {' | '.join(ratios + own)} | {r['difference']:.1e} |")
    # Sums in another order change the last bits of a loss; a wrong mean changes the second digit.
    wrong = [NAMES[name] for name, r in result.items() if r["difference"] > 1e-3]
    print(f"\nThe losses of {CHECKED} steps of SGD and {CHECKED} of AdamW " +
          (f"differ from DDP's, so the times of these modes do not count: {', '.join(wrong)}." if wrong
           else "are those of DDP in all modes."))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=["gpt", "deep"])
    parser.add_argument("--optimizer", default="fused", choices=("default", "foreach", "fused"))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    version, cpu = about()
    print(f"PyTorch {version}, gloo, {cpu}, {args.rounds} interleaved rounds of {args.steps} steps; 2 ranks of one thread, AdamW, f32")
    results = {"torch": version, "cpu": cpu, "models": {}}
    for model in args.models:
        results["models"][model] = measure(model, args)
        print_table(model, results["models"][model])
    sys.stdout.flush()
    subprocess.run([args.program, "overlap", str(args.rounds)], env=dict(os.environ, TAPESTRY_LOGICAL_DEVICES="2"), check=True)
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f, indent=1)


main()
