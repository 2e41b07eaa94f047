"""PyTorch's side of tools/bench_low. It also starts Tapestry's side, lets both take turns, and prints the results.

usage: low_ops.py TAPESTRY_PROGRAM [--threads 2] [--rounds 5] [--ops NAME...]
"""
import argparse

import torch
import torch.nn.functional as F

from turns import Ours, cpu_name, rest, theirs

work = {}


def low(*shape):
    return torch.randn(*shape).bfloat16()


def add(name, leaves, f):
    """Times f as `name`, and the gradients of its leaves as `name_backward`."""
    for t in leaves:
        t.requires_grad_()
    y = f()
    dy = torch.ones_like(y) * 0.5

    def forward():
        with torch.no_grad():
            f()

    work[name] = forward
    work[f"{name}_backward"] = lambda: torch.autograd.grad(y, leaves, dy, retain_graph=True)


def rows():
    x, weight, bias = low(1024, 3072), low(3072), low(3072)
    for f in (torch.relu, F.silu, torch.tanh, torch.sigmoid, torch.exp, torch.erf):
        add(f.__name__, [x], lambda f=f: f(x))
    add("gelu", [x], lambda: F.gelu(x))
    add("gelu_tanh", [x], lambda: F.gelu(x, approximate="tanh"))
    add("add", [x], lambda: x + x)
    add("softmax", [x], lambda: torch.softmax(x, 1))
    add("log_softmax", [x], lambda: torch.log_softmax(x, 1))
    add("layer_norm", [x, weight, bias], lambda: F.layer_norm(x, (3072,), weight, bias))
    add("rms_norm", [x, weight], lambda: F.rms_norm(x, (3072,), weight))
    add("sum", [x], lambda: x.sum())
    add("sum_rows", [x], lambda: x.sum(1))
    add("mean_columns", [x], lambda: x.mean(0))
    classes = torch.randint(0, 3072, (1024,))
    add("cross_entropy", [x], lambda: F.cross_entropy(x, classes))


def images(layout, suffix):
    def image(*shape):
        return low(*shape).contiguous(memory_format=layout)

    x, weight, bias, mean, var = image(16, 64, 32, 32), low(64), low(64), torch.zeros(64).bfloat16(), torch.ones(64).bfloat16()
    add(f"batch_norm{suffix}", [x, weight, bias], lambda: F.batch_norm(x, mean, var, weight, bias, True))
    add(f"max_pool2d{suffix}", [x], lambda: F.max_pool2d(x, 2))
    add(f"avg_pool2d{suffix}", [x], lambda: F.avg_pool2d(x, 2))
    demo, w3, b3 = image(64, 3, 32, 32), image(16, 3, 3, 3), low(16)
    add(f"conv_3_channels{suffix}", [w3, b3], lambda: F.conv2d(demo, w3, b3))
    digits, w5, b5 = image(128, 1, 28, 28), image(32, 1, 5, 5), low(32)
    add(f"conv_1_channel{suffix}", [w5, b5], lambda: F.conv2d(digits, w5, b5))
    maps, w32, b32 = image(128, 32, 12, 12), image(64, 32, 5, 5), low(64)
    add(f"conv_32_channels{suffix}", [maps, w32, b32], lambda: F.conv2d(maps, w32, b32))


def products():
    x, weight, bias = low(2048, 256), low(1024, 256), low(1024)
    add("linear", [x, weight, bias], lambda: F.linear(x, weight, bias))
    wide, few, b = low(64, 14400), low(10, 14400), low(10)
    add("linear_10_outputs", [wide, few, b], lambda: F.linear(wide, few, b))
    q, k, v = low(16, 8, 128, 32), low(16, 8, 128, 32), low(16, 8, 128, 32)
    add("attention", [q, k, v], lambda: F.scaled_dot_product_attention(q, k, v))
    add("attention_causal", [q, k, v], lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ops", nargs="*")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    rows()
    images(torch.contiguous_format, "")
    images(torch.channels_last, "_channels_last")
    products()
    ours = Ours(args.program, args.threads)
    print(f"PyTorch {torch.__version__}, bf16, {args.threads} threads, {cpu_name()}, {args.rounds} interleaved rounds, fastest times")
    print("| operation | Tapestry ms | PyTorch ms | ratio |\n|---|---|---|---|", flush=True)
    for name in args.ops or work:
        once = max(min(ours.run(name, 2)), min(theirs(work[name], 2)))
        repeats = min(30, max(3, int(15 / once)))
        mine, peers = [], []
        for _ in range(args.rounds):
            rest()
            mine += ours.run(name, repeats)
            rest()
            peers += theirs(work[name], repeats)
        print(f"| {name} | {min(mine):.3f} | {min(peers):.3f} | {min(peers) / min(mine):.2f} |", flush=True)
    ours.close()


if __name__ == "__main__":
    main()
