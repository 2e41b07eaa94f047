"""Runs tools/bench_ddp: starts jobs of both sides with one rank and with two, lets them take turns, and prints results.

usage: ddp_steps.py TAPESTRY_PROGRAM [--rounds 8] [--json FILE]
"""
import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))


class Job:
    """A job with `world` ranks. Two threads are divided equally among the ranks."""

    def __init__(self, command, world, **variables):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        self.ranks = []
        for rank in range(world):
            env = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world),
                       LOCAL_WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                       OMP_NUM_THREADS=str(max(1, 2 // world))) | variables
            self.ranks.append(subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))

    def ask(self, line):
        self.ranks[0].stdin.write(line + "\n")
        self.ranks[0].stdin.flush()
        answer = self.ranks[0].stdout.readline()
        if not answer.strip():
            raise SystemExit(f"a job ended at '{line}'")
        return [float(v) for v in answer.split()]

    def end(self):
        self.ranks[0].stdin.close()
        for rank in self.ranks:
            rank.wait(60)


def about():
    """Returns the version of PyTorch and the name of the CPU."""
    version = subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__)"], text=True,
                             capture_output=True, check=True).stdout.strip()
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
               platform.processor())
    return version, cpu


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json")
    args = parser.parse_args()
    torch = [sys.executable, os.path.join(HERE, "ddp_torch.py")]
    version, cpu = about()
    print(f"PyTorch {version}, gloo, {cpu}, {args.rounds} interleaved rounds of 20 steps")
    print("| CNN, batch 64 per rank | Tapestry ms | PyTorch ms, its fastest variant | ratio of medians | MiB per rank | PyTorch's |")
    print("|---|---|---|---|---|---|")
    results = {"torch": version, "cpu": cpu, "step": {}, "overlap": []}
    for world in (1, 2):
        jobs = {"tapestry": Job([args.program], world), "default": Job(torch, world),
                "channels_last": Job(torch + ["channels_last"], world)}
        if world > 1:
            jobs["messages"] = Job([args.program], world, TAPESTRY_SHARED_MEMORY="0")
        works = {name + low: (job, "step 20" + low) for low in ("", " bf16") for name, job in jobs.items()}
        times = {name: [] for name in works}
        for job, line in works.values():
            job.ask(line)  # warm up
        for _ in range(args.rounds):
            for name, (job, line) in works.items():
                time.sleep(0.02)  # the other side's OpenMP threads stop spinning in this time
                times[name] += job.ask(line)
        memory = {name: job.ask("memory") for name, job in jobs.items()}
        for job in jobs.values():
            job.end()
        medians = {name: statistics.median(t) for name, t in times.items()}
        # bf16 is compared with PyTorch's fastest steps in either precision.
        torch_f32 = min(("default", "channels_last"), key=medians.get)
        torch_any = min((torch_f32, "default bf16", "channels_last bf16"), key=medians.get)
        results["step"][world] = {"ms": medians, "mib": memory}
        rows = [("", "tapestry", torch_f32), (", bf16", "tapestry bf16", torch_any)]
        if world > 1:
            rows += [(", TAPESTRY_SHARED_MEMORY=0", "messages", torch_f32),
                     (", bf16, TAPESTRY_SHARED_MEMORY=0", "messages bf16", torch_any)]
        for note, ours, best in rows:
            print(f"| {world} rank{'s' * (world > 1)}{note} | {medians[ours]:.2f} | {medians[best]:.2f} ({best}) | "
                  f"{medians[best] / medians[ours]:.2f} | {max(memory[ours.split()[0]]):.0f} | "
                  f"{max(memory[best.split()[0]]):.0f} |")

    print("\nMLP of 100 MiB, 2 ranks, batch 64: milliseconds of one backward pass, medians")
    print("| bucket size, MiB | link slower by | buckets | backward | communication | hidden | exposed |")
    print("|---|---|---|---|---|---|---|")
    job = Job([args.program], 2)
    for slower in (0, 1):
        for mb in (1, 5, 25, 100):
            backward, communication, hidden, exposed, count = job.ask(f"overlap {mb} {slower}")
            results["overlap"].append({"bucket_mb": mb, "ms_per_mb": slower, "backward": backward, "hidden": hidden,
                                       "communication": communication, "exposed": exposed, "buckets": count})
            print(f"| {mb} | {slower} ms/MiB | {count:.0f} | {backward:.1f} | {communication:.1f} | {hidden:.1f} | {exposed:.1f} |")
    job.end()
    if args.json:
        with open(args.json, "w") as f:
            json.dump(results, f, indent=1)


if __name__ == "__main__":
    main()
