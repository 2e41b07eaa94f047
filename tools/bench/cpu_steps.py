"""PyTorch's side of tools/bench_cpu. It also starts the other sides, lets all take turns, and prints the results.

usage: cpu_steps.py TAPESTRY_PROGRAM --keep FILE [--threads 2] [--rounds 15] [--minutes N] [--works NAME...]
                    [--modes eager compiled max-autotune] [--peers PYTHON] [--resume | --warm]

--peers is a Python that has JAX or TensorFlow; whichever it has takes part. FILE has the results of this and of other
processors and dates. The results of a work are written to it after every round. tools/bench_cpu explains the options.
"""
import argparse
import datetime
import json
import os
import subprocess
import time

import torch
from torch import nn

import cpu_models
from cpu_report import all_variants, heading, keep, larger, missing, read_run, side_by_side, summary, table
from cpu_turns import Budget, take_turns
from models import Cnn, Gpt
from turns import Ours, cpu_name, theirs

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


def variant_names(name, modes):
    """(variant, its mode, layout and precision), the modes that compile longest last."""
    layouts = ["default"] + (["channels_last"] if MODELS[name][1] and len(MODELS[name][1]) == 4 else [])
    for mode in modes:
        for layout in layouts:
            for precision in ("f32", "bf16"):
                yield " ".join(["torch", mode, layout] + (["bf16"] if precision == "bf16" else [])), (mode, layout, precision)


def torch_variants(name, modes, deadline):
    """Variant -> step, and variant -> why it is missing: PyTorch cannot run it, or it would begin to compile after the
    deadline."""
    steps, left_out = {}, {}
    for variant, kind in variant_names(name, modes):
        if time.monotonic() > deadline:
            left_out[variant] = "no time was left to compile it"
            continue
        try:
            step = training_step(name, *kind)
            step()
        except Exception as error:  # the compiler fails in many ways
            left_out[variant] = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            continue
        steps[variant] = step
    return steps, left_out


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


def sides_of(name, ours, modes, peers, deadline):
    """Variant -> function of a number of steps that returns their times in ms; and what is missing."""
    if name not in MODELS:
        return {"tapestry": lambda n: ours.run(name, n), "torch eager default": lambda n: theirs(one_element_work()[name], n)}, {}
    sides = {"tapestry": lambda n: ours.run(name, n), "tapestry bf16": lambda n: ours.run(f"{name}_bf16", n)}
    steps, left_out = torch_variants(name, modes, deadline)
    for variant, step in steps.items():
        sides[variant] = lambda n, step=step: theirs(step, n)
    for peer in peers:
        for variant, side in peer.variants(name).items():
            if time.monotonic() > deadline:
                left_out[variant] = "no time was left to compile it"
                continue
            try:
                side(1)
            except SystemExit as error:
                left_out[variant] = str(error)
                continue
            sides[variant] = side
    return sides, left_out


def warm(works, modes, peers):
    """Fills the compilers' caches on the disk, so that a run that measures compiles little."""
    for name in works:
        start = time.monotonic()
        left_out = torch_variants(name, modes, float("inf"))[1] if name in MODELS else {}
        for peer in peers:
            for side in peer.variants(name).values():
                side(1)
        print(f"{name} took {time.monotonic() - start:.0f} s to compile", *(f"\n  {v}: {why}" for v, why in left_out.items()),
              flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--keep", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--works", nargs="+", choices=[*MODELS, "op_forward", "op_backward"],
                        default=[*MODELS, "op_forward", "op_backward"])
    parser.add_argument("--modes", nargs="+", choices=["eager", "compiled", "max-autotune"],
                        default=["eager", "compiled", "max-autotune"])
    parser.add_argument("--peers")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--warm", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    # The variants of a model share their code, and each is compiled once.
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = 256
    peers = [Peer(name, args.peers, args.threads) for name in ("jax", "tensorflow")]
    if args.warm:
        return warm(args.works, args.modes, peers)
    run = {"date": datetime.date.today().isoformat(), "cpu": cpu_name(), "threads": args.threads,
           "versions": {"PyTorch": torch.__version__, **{p.name: p.version for p in peers if p.version}},
           "roofs": {}, "rows": {}}
    done = read_run(run, args.keep)["rows"] if args.resume else {}
    works = [w for w in args.works if w not in done or missing(done[w], args.rounds)]
    budget = Budget(args.minutes, len(works))

    def measure_roofs():
        got = subprocess.run([args.program, "--roofs", str(args.threads)], capture_output=True, text=True, check=True)
        run["roofs"] = larger(run["roofs"], json.loads(got.stdout))

    ours = Ours(args.program, args.threads)
    for name in works:
        if budget.is_over():
            print(f"{name} is missing: no time is left", flush=True)
            continue
        start = time.monotonic()
        compile_until, run_until = budget.begin_work()
        measure_roofs()  # before each model, so that the roofs see the same load and clock as the models
        sides, left_out = sides_of(name, ours, args.modes, peers, compile_until)
        compiled = time.monotonic()
        row = {"gflop": cpu_models.step_gflop(MODELS[name][0](), example(name)[0]) if name in MODELS else None,
               "missing": left_out}
        repeats = MODELS[name][2] if name in MODELS else 10
        for count, times in enumerate(take_turns(sides, repeats, args.rounds, run_until), 1):
            run["rows"][name] = {**row, "rounds": count, "ms": {v: summary(t) for v, t in times.items()}}
            keep(run, args.keep)
        print(f"{name}: {count} rounds in {time.monotonic() - compiled:.0f} s, after {compiled - start:.0f} s of compiling",
              flush=True)
    ours.close()

    whole = read_run(run, args.keep)
    print(f"\n{heading(whole)}\n\n{table(whole, False)}\n\n{table(whole, True)}\n\n{all_variants(whole)}")
    for name in args.works:
        for line in missing(whole["rows"][name], args.rounds) if name in whole["rows"] else ["everything"]:
            print(f"missing of {name}: {line}")
    print(f"\nMedians and ratios to the best peer:\n\n{side_by_side(keep(run, args.keep))}")


if __name__ == "__main__":
    main()
