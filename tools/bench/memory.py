"""PyTorch's side of tools/bench_memory. It also runs Tapestry's side, and prints the results.

usage: memory.py TAPESTRY_PROGRAM [--models demo,cnn,gpt,resnet18]
       memory.py --one MODEL PRECISION       one model with PyTorch, in a process of its own

Both count the bytes of live tensors: Tapestry by MemoryRecord, PyTorch by the events of its profiler. Both record from
before the model is built, and the peak is that of the fourth step. What a library allocates besides tensors (oneDNN's
reordered operands and scratchpads) is in neither, and in the growth of the process's resident memory.
"""
import argparse
import json
import resource
import subprocess
import sys


def step_of(name, precision):
    import torch
    from torch import nn
    from models import Cnn, Gpt

    class Demo(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 16, 3), nn.Linear(30 * 30 * 16, 10)

        def forward(self, x):
            return self.fc(self.conv(x).flatten(1)).softmax(1)

    class Block(nn.Module):
        def __init__(self, cin, cout, stride):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout)
            self.conv2, self.bn2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout)
            self.shortcut = nn.Identity() if cin == cout and stride == 1 else nn.Sequential(
                nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

        def forward(self, x):
            h = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu_()))
            return (h + self.shortcut(x)).relu_()

    class ResNet18(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1, self.bn1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64)
            sizes = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2),
                     (512, 512, 1)]
            self.blocks, self.fc = nn.Sequential(*(Block(*s) for s in sizes)), nn.Linear(512, 10)

        def forward(self, x):
            return self.fc(self.blocks(self.bn1(self.conv1(x)).relu_()).mean((2, 3)))

    batch = {"demo": 64, "cnn": 128, "resnet18": 32}.get(name)
    if name == "gpt":
        model = Gpt()
        x = torch.randint(0, Gpt.WORDS, (16, Gpt.LENGTH))
        target = torch.randint(0, Gpt.WORDS, (16 * Gpt.LENGTH,))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    else:
        model = {"demo": Demo, "cnn": Cnn, "resnet18": ResNet18}[name]()
        x = torch.randn(batch, *{"demo": (3, 32, 32), "cnn": (1, 28, 28), "resnet18": (3, 64, 64)}[name])
        target = torch.randint(0, 10, (batch,))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

    def step():
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = nn.functional.cross_entropy(model(x), target)
        loss.backward()
        optimizer.step()

    return step


def one(name, precision):
    """The peak bytes of tensors in the fourth step, and the growth of the process without the profiler's own memory."""
    import torch
    torch.set_num_threads(2)
    torch.manual_seed(0)
    step_of("demo", precision)()  # the first use of the libraries takes memory of its own
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = step_of(name, precision)
    for _ in range(4):
        step()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    del step
    from torch.profiler import ProfilerActivity, profile, record_function
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step = step_of(name, precision)
        for _ in range(3):
            step()
        with record_function("the last step"):
            step()
    events = profiler.profiler.kineto_results.events()
    last = next(e for e in events if e.name() == "the last step")
    begin, end = last.start_ns(), last.start_ns() + last.duration_ns()
    live = peak = 0
    for e in sorted((e for e in events if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += e.nbytes()
        if begin <= e.start_ns() <= end:
            peak = max(peak, live)
    print(json.dumps({"peak_mib": peak / 2**20, "rss_mib": grown / 1024}))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", nargs="?")
    parser.add_argument("--models", default="demo,cnn,gpt,resnet18")
    parser.add_argument("--one", nargs=2)
    args = parser.parse_args()
    if args.one:
        return one(*args.one)
    print("| step | Tapestry, MiB of tensors | PyTorch | ratio | Tapestry, growth of the process | PyTorch | at Tapestry's peak |")
    print("|---|---:|---:|---:|---:|---:|---|")
    for name in args.models.split(","):
        for precision in ("f32", "bf16"):
            def run(command):
                return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            ours = run([args.program, name, precision])
            theirs = run([sys.executable, __file__, "--one", name, precision])
            kinds = ", ".join(f"{k} {v:.1f}" for k, v in ours["at_peak"].items() if v >= 0.05)
            print(f"| {name}, {precision} | {ours['peak_mib']:.1f} | {theirs['peak_mib']:.1f} | "
                  f"{theirs['peak_mib'] / ours['peak_mib']:.2f} | {ours['rss_mib']:.0f} | {theirs['rss_mib']:.0f} | {kinds} |")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
