"""PyTorch's side of tools/bench_cpu. It also starts the other sides, lets all take turns, and prints the results.

usage: cpu_steps.py TAPESTRY_PROGRAM [--threads 2] [--rounds 15] [--works NAME...] [--modes eager compiled max-autotune]
                    [--peers PYTHON] [--json FILE] [--keep FILE]

--peers is a Python that has JAX or TensorFlow; whichever it has takes part. --keep adds the results to a file with those of
other processors and dates, and prints them side by side.
"""
import argparse
import datetime
import json
import os
import subprocess

import torch
from torch import nn

import cpu_models
from cpu_report import all_variants, heading, keep, side_by_side, summary, table
from models import Cnn, Gpt
from turns import Ours, cpu_name, rest, theirs

TEXTS = 16
# name -> (model, shape of the input, steps per turn)
MODELS = {
    "demo": (cpu_models.Demo, (64, 3, 32, 32), 20),
    "cnn": (Cnn, (128, 1, 28, 28), 5),
    "gpt": (Gpt, None, 3),
    "lstm": (cpu_models.Lstm, (64, 32, 256), 5),
    "resnet18": (cpu_models.ResNet18, (32, 3, 64, 64), 3),
    "depthwise": (cpu_models.Depthwise, (64, 3, 32, 32), 5),
}


def example(name):
    """A batch: the input and its targets."""
    shape = MODELS[name][1]
    if name == "gpt":
        return torch.randint(0, Gpt.WORDS, (TEXTS, Gpt.LENGTH)), torch.randint(0, Gpt.WORDS, (TEXTS * Gpt.LENGTH,))
    return torch.randn(shape), torch.randint(0, 10, (shape[1] if name == "lstm" else shape[0],))


def training_step(name, mode, layout, precision):
    """A whole step with a fused optimizer. `mode` is eager, compiled or max-autotune."""
    model, (x, target) = MODELS[name][0](), example(name)
    if layout == "channels_last":
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    if name == "gpt":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    low = precision == "bf16"

    def loss_of(x, target):
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            return nn.functional.cross_entropy(model(x), target)

    if mode != "eager":
        loss_of = torch.compile(loss_of, mode=None if mode == "compiled" else mode)

    def step():
        optimizer.zero_grad()
        loss_of(x, target).backward()
        optimizer.step()

    return step


def torch_variants(name, modes):
    """Variant -> step. A variant that PyTorch cannot run is reported and left out."""
    layouts = ["default"] + (["channels_last"] if MODELS[name][1] and len(MODELS[name][1]) == 4 else [])
    steps = {}
    for mode in modes:
        for layout in layouts:
            for precision in ("f32", "bf16"):
                variant = " ".join(["torch", mode, layout] + (["bf16"] if precision == "bf16" else []))
                try:
                    step = training_step(name, mode, layout, precision)
                    step()
                except Exception as error:  # the compiler fails in many ways
                    print(f"{name}: {variant} was left out: {type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)
                    continue
                steps[variant] = step
    return steps


def one_element_work():
    a, b, w = torch.randn(1), torch.randn(1), torch.randn(1, requires_grad=True)

    def forward():
        for _ in range(1000):
            a.mul(b)

    def backward():
        y = w
        for _ in range(1000):
            y = y.mul(b)
        y.backward()
        w.grad = None

    return {"op_forward": forward, "op_backward": backward}


class Peer:
    """A program with a line of turns (turns.py) in another framework, if the framework is installed."""

    def __init__(self, name, python, threads):
        self.name, self.works, self.version = name, [], None
        if not python:
            return
        self.command = [python, os.path.join(os.path.dirname(os.path.abspath(__file__)), f"cpu_{name}.py")]
        asked = subprocess.run([*self.command, "--list"], capture_output=True, text=True)
        if asked.returncode:
            print(f"{name} takes no part: {(asked.stderr.strip().splitlines() or ['it failed'])[-1]}", flush=True)
            return
        self.version, *self.works = asked.stdout.split()
        self.side = Ours(self.command[0], self.command[1], threads)

    def variants(self, work):
        kinds = {work: self.name, f"{work}_bf16": f"{self.name} bf16"}
        return {variant: (lambda repeats, w=w: self.side.run(w, repeats)) for w, variant in kinds.items() if w in self.works}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--works", nargs="+", choices=[*MODELS, "op_forward", "op_backward"],
                        default=[*MODELS, "op_forward", "op_backward"])
    parser.add_argument("--modes", nargs="+", choices=["eager", "compiled", "max-autotune"],
                        default=["eager", "compiled", "max-autotune"])
    parser.add_argument("--peers")
    parser.add_argument("--json")
    parser.add_argument("--keep")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    # The variants of a model share their code, and each is compiled once.
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 256
    peers = [Peer(name, args.peers, args.threads) for name in ("jax", "tensorflow")]
    run = {"date": datetime.date.today().isoformat(), "cpu": cpu_name(), "threads": args.threads, "rounds": args.rounds,
           "versions": {"PyTorch": torch.__version__, **{p.name: p.version for p in peers if p.version}},
           "roofs": {"f32": 0, "bf16": 0, "copy": 0}, "rows": {}}

    def measure_roofs():
        got = subprocess.run([args.program, "--roofs", str(args.threads)], capture_output=True, text=True, check=True)
        run["roofs"] = {k: max(v, run["roofs"][k]) for k, v in json.loads(got.stdout).items()}

    ours = Ours(args.program, args.threads)
    for name in args.works:
        measure_roofs()  # before each model, so that the roofs see the same load and clock as the models
        if name in MODELS:
            repeats = MODELS[name][2]
            sides = {"tapestry": lambda n: ours.run(name, n), "tapestry bf16": lambda n: ours.run(f"{name}_bf16", n)}
            for variant, step in torch_variants(name, args.modes).items():
                sides[variant] = lambda n, step=step: theirs(step, n)
            for peer in peers:
                sides.update(peer.variants(name))
            gflop = cpu_models.step_gflop(MODELS[name][0](), example(name)[0])
        else:
            repeats, gflop = 10, None
            sides = {"tapestry": lambda n: ours.run(name, n),
                     "torch eager default": lambda n: theirs(one_element_work()[name], n)}
        times = {variant: [] for variant in sides}
        for side in sides.values():
            side(repeats)  # warm up
        for _ in range(args.rounds):
            for variant, side in sides.items():
                rest()
                times[variant] += side(repeats)
        run["rows"][name] = {"gflop": gflop, "ms": {v: summary(t) for v, t in times.items()}}
        print(f"{name} is done", flush=True)
    measure_roofs()
    ours.close()

    print(f"\n{heading(run)}\n\n{table(run, False)}\n\n{table(run, True)}\n\n{all_variants(run)}")
    if args.json:
        with open(args.json, "w") as f:
            json.dump(run, f, indent=1)
    if args.keep:
        print(f"\nMedians and ratios to the best peer:\n\n{side_by_side(keep(run, args.keep))}")


if __name__ == "__main__":
    main()
