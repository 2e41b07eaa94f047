"""Runs tools/bench_generate: Tapestry, llama.cpp and transformers take turns with one GGUF file; prints a table.

usage: generate.py PROGRAM MODEL.gguf [--rounds 7] [--prompt 512] [--threads 2] [--llama PYTHON] [--json FILE]
"""
import argparse
import json
import os
import statistics
import subprocess
import sys

from turns import cpu_name, rest

HERE = os.path.dirname(os.path.abspath(__file__))
DECODED = 32


class Side:
    """A process that answers lines `NAME REPEATS` with times in milliseconds."""

    def __init__(self, command, **variables):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        env=dict(os.environ) | variables)

    def run(self, name, repeats=1):
        self.process.stdin.write(f"{name} {repeats}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line.strip():
            raise SystemExit(f"a side ended while running {name}")
        return [float(t) for t in line.split()]

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--llama", help="a Python that has llama-cpp-python")
    parser.add_argument("--json")
    args = parser.parse_args()
    threads, prompt = str(args.threads), str(args.prompt)
    peer = [os.path.join(HERE, "generate_peer.py")]
    tail = [args.model, threads, prompt]
    sides = {"Tapestry": Side([args.program, threads], TAPESTRY_BENCH_MODEL=args.model, TAPESTRY_BENCH_PROMPT=prompt)}
    if args.llama:
        sides["llama.cpp"] = Side([args.llama] + peer + ["llama"] + tail, OMP_NUM_THREADS=threads)
    sides["transformers"] = Side([sys.executable] + peer + ["transformers"] + tail, OMP_NUM_THREADS=threads)
    work = [("Tapestry", "prefill"), ("Tapestry", "decode"), ("Tapestry", "prefill_f32"), ("Tapestry", "decode_f32")]
    work += [(side, name) for side in sides if side != "Tapestry" for name in ("prefill", "decode")]
    times = {w: [] for w in work}
    for side, name in work:
        sides[side].run(name, 2)  # warm up
    for _ in range(args.rounds):
        for side, name in work:
            rest()
            times[side, name] += sides[side].run(name)
    for side in sides.values():
        side.close()
    count = {"prefill": args.prompt, "decode": DECODED}
    rate = {w: 1e3 * count[w[1].removesuffix("_f32")] / statistics.median(t) for w, t in times.items()}
    print(f"{os.path.basename(args.model)}, {cpu_name()}, {threads} threads, medians of {args.rounds} interleaved rounds, "
          "tokens per second")
    peers = [s for s in sides if s != "Tapestry"]
    print("| work | Tapestry | Tapestry, weights as f32 | " + " | ".join(f"{p} | ratio" for p in peers) + " |")
    print("|---" * (3 + 2 * len(peers)) + "|")
    for name, text in (("prefill", f"prompt of {prompt} tokens"), ("decode", f"{DECODED} words after 32 tokens")):
        ours = rate["Tapestry", name]
        cells = "".join(f" {rate[p, name]:.1f} | {ours / rate[p, name]:.2f} |" for p in peers)
        print(f"| {text} | {ours:.1f} | {rate['Tapestry', name + '_f32']:.1f} |{cells}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump({f"{s} {n}": t for (s, n), t in times.items()}, file, indent=1)


main()
