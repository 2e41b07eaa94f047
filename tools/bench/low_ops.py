"""PyTorch's side of tools/bench_low. It also starts Tapestry's side, lets both take turns, and prints the results. Tapestry
computes each operation in f32, too: one that is slower in bf16 should be computed on f32 copies.

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
    depth, point = image(64, 1, 3, 3), image(128, 64, 1, 1)
    add(f"conv_depthwise{suffix}", [x, depth], lambda: F.conv2d(x, depth, padding=1, groups=64))
    add(f"conv_point{suffix}", [x, point], lambda: F.conv2d(x, point))
    # ResNet-18's layers for images of 64 x 64
    first, w7 = image(32, 3, 64, 64), image(64, 3, 7, 7)
    add(f"resnet_first{suffix}", [w7], lambda: F.conv2d(first, w7, stride=2, padding=3))
    for width in (64, 128, 256, 512):
        maps, w = image(32, width, 1024 // width, 1024 // width), image(width, width, 3, 3)
        add(f"resnet_{width}{suffix}", [maps, w], lambda x=maps, w=w: F.conv2d(x, w, padding=1))
        if width == 512:
            break
        down, shortcut = image(2 * width, width, 3, 3), image(2 * width, width, 1, 1)
        add(f"resnet_{width}_down{suffix}", [maps, down], lambda x=maps, w=down: F.conv2d(x, w, stride=2, padding=1))
        add(f"resnet_{width}_shortcut{suffix}", [maps, shortcut], lambda x=maps, w=shortcut: F.conv2d(x, w, stride=2))


def products():
    x, weight, bias = low(2048, 256), low(1024, 256), low(1024)
    add("linear", [x, weight, bias], lambda: F.linear(x, weight, bias))
    wide, few, b = low(64, 14400), low(10, 14400), low(10)
    add("linear_10_outputs", [wide, few, b], lambda: F.linear(wide, few, b))
    q, k, v = low(16, 8, 128, 32), low(16, 8, 128, 32), low(16, 8, 128, 32)
    add("attention", [q, k, v], lambda: F.scaled_dot_product_attention(q, k, v))
    add("attention_causal", [q, k, v], lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    a, c = low(32, 128, 128), low(32, 128, 128)
    add("bmm", [a, c], lambda: torch.bmm(a, c))
    for n in (8, 16, 32, 64, 128, 256, 512, 1024):
        left, right = low(n, n), low(n, n)
        add(f"matmul_{n}", [left, right], lambda a=left, b=right: a @ b)
    for name in ("RNN", "LSTM", "GRU"):
        layer, steps = getattr(torch.nn, name)(256, 256).bfloat16(), low(64, 32, 256)
        add(name.lower(), list(layer.parameters()), lambda layer=layer, x=steps: layer(x)[0])


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
    print("| operation | Tapestry ms | the same in f32 | PyTorch ms | ratio |\n|---|---|---|---|---|", flush=True)
    for name in args.ops or work:
        once = max(min(ours.run(name, 2)), min(theirs(work[name], 2)))
        repeats = min(30, max(3, int(15 / once)))
        mine, wide, peers = [], [], []
        for _ in range(args.rounds):
            rest()
            mine += ours.run(name, repeats)
            wide += ours.run(f"{name}_f32", repeats)
            rest()
            peers += theirs(work[name], repeats)
        print(f"| {name} | {min(mine):.3f} | {min(wide):.3f} | {min(peers):.3f} | {min(peers) / min(mine):.2f} |", flush=True)
    ours.close()


if __name__ == "__main__":
    main()
