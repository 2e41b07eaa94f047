"""PyTorch's side of the benchmarks: the commands and answers of tools/bench/gpu_ops.cpp, the same work and the same
random numbers. usage: peer.py [cuda]"""
import sys
import time

import torch
from torch.nn import functional as F

BLOCK = 1 << 22
SAMPLES = 256
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Spec:
    def __init__(self, words, device):
        self.dtype, self.device = DTYPES[words[0]], device
        self.sizes = [int(word) for word in words[1:]]

    def __getitem__(self, i):
        return self.sizes[i]


def random_numbers(n, salt, device):
    """As gpu_ops.cpp makes them."""
    low = 0xFFFFFFFF
    h = (torch.arange(n, dtype=torch.int64, device=device) + salt * BLOCK & low) * 2654435761 & low
    h = (h ^ h >> 16) * 0x85EBCA6B & low
    h = (h ^ h >> 13) * 0xC2B2AE35 & low
    return ((h ^ h >> 16) >> 8).to(torch.float32) * 2.0**-23 - 1


def random(spec, sizes, salt, channels_last=False):
    if channels_last:
        n, c, h, w = sizes
        return random(spec, (n, h, w, c), salt).permute(0, 3, 1, 2)
    x = torch.empty(sizes, dtype=spec.dtype, device=spec.device)
    flat = x.view(-1)
    block = random_numbers(min(x.numel(), BLOCK), salt, spec.device).to(spec.dtype)
    for at in range(0, x.numel(), block.numel()):
        count = min(block.numel(), x.numel() - at)
        flat[at:at + count] = block[:count]
    return x


def class_targets(spec):
    return torch.arange(spec[0], device=spec.device) * 7919 % spec[1]


def gradient(inputs, y, dy):
    return lambda: torch.autograd.grad([y], inputs, [dy], retain_graph=True)[0]


def leaves(*tensors):
    return [t.requires_grad_() for t in tensors]


def copy(s):
    x = random(s, (s[0],), 1)
    y = torch.empty_like(x)
    return lambda: y.copy_(x)


def add(s):
    a, b = random(s, (s[0],), 1), random(s, (s[0],), 2)
    return lambda: a + b


def gelu(s):
    x = random(s, (s[0],), 1)
    return lambda: F.gelu(x)


def softmax(s):
    x = random(s, (s[0], s[1]), 1)
    return lambda: x.softmax(1)


def layer_norm(s):
    x, w, b = random(s, (s[0], s[1]), 1), random(s, (s[1],), 2), random(s, (s[1],), 3)
    return lambda: F.layer_norm(x, (s[1],), w, b)


def layer_norm_backward(s):
    x, w, b = leaves(random(s, (s[0], s[1]), 1), random(s, (s[1],), 2), random(s, (s[1],), 3))
    return gradient([x, w, b], F.layer_norm(x, (s[1],), w, b), random(s, (s[0], s[1]), 4))


def batch_norm_backward(s):
    sizes = (s[0], s[1], s[2], s[2])
    x, w, b = leaves(random(s, sizes, 1, True), random(s, (s[1],), 2), random(s, (s[1],), 3))
    return gradient([x, w, b], F.batch_norm(x, None, None, w, b, True), random(s, sizes, 4, True))


def cross_entropy(s):
    x, target = random(s, (s[0], s[1]), 1), class_targets(s)
    return lambda: F.cross_entropy(x, target)


def cross_entropy_backward(s):
    x, = leaves(random(s, (s[0], s[1]), 1))
    y = F.cross_entropy(x, class_targets(s))
    return gradient([x], y, torch.ones_like(y))


def adamw(s):
    parameters = []
    for i in range(s[0]):
        parameters += leaves(random(s, (s[1],), 2 * i))
        parameters[-1].grad = random(s, (s[1],), 2 * i + 1)
    optimizer = torch.optim.AdamW(parameters, fused=s.device == "cuda")

    def step():
        optimizer.step()
        return parameters[-1].detach()

    return step


def linear(s):
    x, w = random(s, (s[0], s[2]), 1), random(s, (s[1], s[2]), 2)
    return lambda: F.linear(x, w)


def conv_inputs(s):
    weight = random(s, (s[4], s[1], s[5], s[5]), 2).to(memory_format=torch.channels_last)
    return random(s, s.sizes[:4], 1, True), weight, random(s, (s[4],), 3)


def conv2d(s):
    x, weight, _ = conv_inputs(s)
    return lambda: F.conv2d(x, weight, stride=s[6], padding=s[7])


def conv2d_bias_relu(s):
    x, weight, bias = conv_inputs(s)
    return lambda: F.conv2d(x, weight, bias, s[6], s[7]).relu_()


def conv2d_backward(s):
    x, weight, _ = conv_inputs(s)
    x, weight = leaves(x, weight)
    y = F.conv2d(x, weight, stride=s[6], padding=s[7])
    return gradient([x, weight], y, random(s, tuple(y.shape), 4, True))


def eager_mul(s):
    a, b = random(s, (1,), 1), random(s, (1,), 2)

    def call():
        for _ in range(s[0]):
            y = a * b
        return y

    call.operations = s[0]
    return call


def eager_mul_backward(s):
    a, = leaves(random(s, (1,), 1))
    b = random(s, (1,), 2)

    def call():
        y = a
        for _ in range(s[0]):
            y = y * b
        return torch.autograd.grad([y], [a])[0]

    call.operations = s[0]
    return call


WORKS = {f.__name__: f for f in (copy, add, gelu, softmax, layer_norm, layer_norm_backward, batch_norm_backward,
                                 cross_entropy, cross_entropy_backward, adamw, linear, conv2d, conv2d_bias_relu,
                                 conv2d_backward, eager_mul, eager_mul_backward)}


def samples(y):
    y = y.detach()
    if y.dim() == 4:
        y = y.permute(0, 2, 3, 1)
    y = y.reshape(-1)
    count = min(y.numel(), SAMPLES)
    step = y.numel() // count
    at = torch.tensor([i * step + (i * 1000003 + 12345) % step for i in range(count)], device=y.device)
    return " ".join(f"{value:.9g}" for value in y[at].double().tolist())


def milliseconds(call, calls, device):
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    if device == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    host = (time.perf_counter() - start) * 1e3
    if device == "cuda":
        end.record()
    wait()
    operations = getattr(call, "operations", 0)
    if operations:
        return host / calls / operations
    return (begin.elapsed_time(end) if device == "cuda" else host) / calls


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    call = None
    for line in sys.stdin:
        words = line.split()
        try:
            if words[0] == "start":
                call = None
                if device == "cuda":
                    torch.cuda.empty_cache()
                call = WORKS[words[1]](Spec(words[2:], device))
                answer = "ok " + samples(call())
            elif words[0] == "time" and call:
                answer = f"{milliseconds(call, int(words[1]), device):.9g}"
            else:
                answer = f"failed unknown command {line.strip()}"
        except Exception as error:  # told to the other side, which goes on with the next work
            call = None
            answer = f"failed {type(error).__name__}: {error}".splitlines()[0]
        print(answer, flush=True)


if __name__ == "__main__":
    main()
