"""PyTorch's side of tools/bench_cpu. It also starts Tapestry's side, lets both take turns, and prints the results.

usage: cpu_steps.py TAPESTRY_PROGRAM [--threads 2] [--rounds 15] [--json FILE]
"""
import argparse
import json
import statistics

import torch
from torch import nn

from models import Cnn, Gpt
from turns import Ours, cpu_name, rest, theirs


class Demo(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3)
        self.fc = nn.Linear(30 * 30 * 16, 10)

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1)).softmax(1)


def training_step(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    target = torch.randint(0, 10, (x.shape[0],))

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), target).backward()
        optimizer.step()

    return step


def language_step():
    model = Gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = 16
    ids, next_word = torch.randint(0, Gpt.WORDS, (batch, Gpt.LENGTH)), torch.randint(0, Gpt.WORDS, (batch * Gpt.LENGTH,))

    def step():
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids), next_word).backward()
        optimizer.step()

    return step


def channels_last(model, x):
    return model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)


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

    return forward, backward


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    forward, backward = one_element_work()
    x_demo, x_cnn = torch.randn(64, 3, 32, 32), torch.randn(128, 1, 28, 28)
    # name -> (the variants of PyTorch's benchmark, the number of steps per turn)
    work = {
        "demo": ({"default": training_step(Demo(), x_demo),
                  "channels_last": training_step(*channels_last(Demo(), x_demo))}, 20),
        "cnn": ({"default": training_step(Cnn(), x_cnn),
                 "channels_last": training_step(*channels_last(Cnn(), x_cnn))}, 5),
        "gpt": ({"default": language_step()}, 3),
        "op_forward": ({"default": forward}, 10),
        "op_backward": ({"default": backward}, 10),
    }
    ours = Ours(args.program, args.threads)
    results = {}
    for name, (variants, repeats) in work.items():
        times = {"tapestry": [], **{f"torch {v}": [] for v in variants}}
        ours.run(name, repeats)  # warm up
        for step in variants.values():
            theirs(step, repeats)
        for _ in range(args.rounds):
            rest()
            times["tapestry"] += ours.run(name, repeats)
            for v, step in variants.items():
                rest()
                times[f"torch {v}"] += theirs(step, repeats)
        # If an OpenMP thread is preempted, a step takes milliseconds longer. The first quartile of the times shows the
        # cost of the code; the median also contains the effect of other load on this machine.
        rows = {k: {"median": statistics.median(t), "fast_quartile": statistics.quantiles(t, n=4)[0]}
                for k, t in times.items()}
        best = min((k for k in rows if k != "tapestry"), key=lambda k: rows[k]["median"])
        results[name] = {"ms": rows, "best_torch": best,
                         "speedup_median": rows[best]["median"] / rows["tapestry"]["median"],
                         "speedup_fast_quartile": min(rows[k]["fast_quartile"] for k in rows if k != "tapestry")
                         / rows["tapestry"]["fast_quartile"]}
    ours.close()

    cpu = cpu_name()
    print(f"PyTorch {torch.__version__}, {args.threads} threads, {cpu}, {args.rounds} interleaved rounds")
    print("| work | Tapestry ms (median / fast quartile) | PyTorch ms, its faster layout | ratio (median / fast quartile) |")
    print("|---|---|---|---|")
    for name, r in results.items():
        mine, best = r["ms"]["tapestry"], r["ms"][r["best_torch"]]
        note = " (us an operation)" if name.startswith("op_") else ""
        print(f"| {name}{note} | {mine['median']:.3f} / {mine['fast_quartile']:.3f} | "
              f"{best['median']:.3f} / {best['fast_quartile']:.3f} ({r['best_torch'].removeprefix('torch ')}) | "
              f"{r['speedup_median']:.2f} / {r['speedup_fast_quartile']:.2f} |")
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"torch": torch.__version__, "threads": args.threads, "cpu": cpu, "results": results}, f, indent=1)


if __name__ == "__main__":
    main()
