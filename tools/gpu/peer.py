"""PyTorch's side of tools/gpu_check: the benchmarks of tools/bench/gpu/ with the same names, inputs and commands.

Three things differ from bench_gpu_ops. `start` may name a mode before the benchmark:

  start softmax f32 7 1001              eager, which is the default
  start compiled:step_mlp f32 128       the model goes through torch.compile
  start graph:step_mlp f32 128          the whole step is captured in a CUDA graph
  start autocast:step_mlp f32 128       forward and loss run under torch.autocast(bfloat16)

The parameters of whole steps are f32. With bf16 or f16, forward and loss run under autocast in every mode.

A policy after the name of a benchmark, as in `linear@vendor`, is ignored. `prepare` takes the same words as `start`, and answers with `ok` alone. `reference softmax f32 7 1001` answers with the results in float64, from inputs that are rounded to f32 or bf16 first.

usage: peer.py [cuda|cpu]"""
import contextlib
import functools
import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

BLOCK = 1 << 22
SAMPLES = 256
CHUNKS = 64
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Spec:
    """The arguments of a benchmark: the dtype of the inputs, the dtype of the computation, the device and the sizes."""

    def __init__(self, words, device, reference=False, mode="eager"):
        self.input_dtype, self.device, self.mode = DTYPES[words[0]], device, mode
        self.dtype = torch.float64 if reference else self.input_dtype
        self.sizes = [int(word) for word in words[1:]]

    def __getitem__(self, i):
        return self.sizes[i]


class Work:
    """A benchmark: the call that is timed, and a function that returns its results. tools/bench/gpu/work.h describes
    `operations`."""

    def __init__(self, call, names=("y",), operations=0, results=None):
        self.call, self.names, self.operations, self.get_results = call, names, operations, results

    def results(self):
        """Runs the benchmark once and returns its results by name."""
        found = self.call()
        if self.get_results:
            return self.get_results()
        return dict(zip(self.names, found if isinstance(found, (tuple, list)) else [found]))


def random_numbers(n, salt, device):
    """Returns the same pseudo-random numbers as random() in tools/bench/gpu/work.cpp."""
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
    block = random_numbers(min(x.numel(), BLOCK), salt, spec.device).to(spec.input_dtype).to(spec.dtype)
    for at in range(0, x.numel(), block.numel()):
        count = min(block.numel(), x.numel() - at)
        flat[at:at + count] = block[:count]
    return x


def class_targets(spec, rows, classes):
    return torch.arange(rows, device=spec.device) * 7919 % classes


def leaves(*tensors):
    return [t.requires_grad_() for t in tensors]


def gradients(named, y, dy):
    inputs = list(named.values())
    return Work(lambda: torch.autograd.grad([y], inputs, [dy], retain_graph=True), tuple(named))


def copy(s):
    x = random(s, (s[0],), 1)
    y = torch.empty_like(x)
    return Work(lambda: y.copy_(x))


def transpose(s):
    x = random(s, (s[0], s[1]), 1)
    y = torch.empty((s[1], s[0]), dtype=x.dtype, device=x.device)
    return Work(lambda: y.copy_(x.t()))


def cat(s):
    parts = [random(s, (s[1], s[2]), i) for i in range(s[0])]
    return Work(lambda: torch.cat(parts, 1))


def add(s):
    a, b = random(s, (s[0],), 1), random(s, (s[0],), 2)
    return Work(lambda: a + b)


def gelu(s):
    x = random(s, (s[0],), 1)
    return Work(lambda: F.gelu(x))


def softmax(s):
    x = random(s, (s[0], s[1]), 1)
    return Work(lambda: x.softmax(1))


def layer_norm(s):
    x, w, b = random(s, (s[0], s[1]), 1), random(s, (s[1],), 2), random(s, (s[1],), 3)
    return Work(lambda: F.layer_norm(x, (s[1],), w, b))


def rms_norm(s):
    x, w = random(s, (s[0], s[1]), 1), random(s, (s[1],), 2)
    return Work(lambda: F.rms_norm(x, (s[1],), w, 1e-5))


def layer_norm_backward(s):
    x, w, b = leaves(random(s, (s[0], s[1]), 1), random(s, (s[1],), 2), random(s, (s[1],), 3))
    return gradients({"dx": x, "dweight": w, "dbias": b}, F.layer_norm(x, (s[1],), w, b), random(s, (s[0], s[1]), 4))


def batch_norm_backward(s):
    sizes = (s[0], s[1], s[2], s[2])
    x, w, b = leaves(random(s, sizes, 1, True), random(s, (s[1],), 2), random(s, (s[1],), 3))
    return gradients({"dx": x, "dweight": w, "dbias": b}, F.batch_norm(x, None, None, w, b, True),
                     random(s, sizes, 4, True))


def cross_entropy(s):
    x, target = random(s, (s[0], s[1]), 1), class_targets(s, s[0], s[1])
    return Work(lambda: F.cross_entropy(x, target))


def cross_entropy_backward(s):
    x, = leaves(random(s, (s[0], s[1]), 1))
    y = F.cross_entropy(x, class_targets(s, s[0], s[1]))
    return gradients({"dx": x}, y, torch.ones_like(y))


def ctc_loss_backward(s):
    x, = leaves(random(s, (s[0], s[1], s[2]), 1).log_softmax(2))
    labels = class_targets(s, s[1] * s[3], s[2] - 1).add(1).view(s[1], s[3])
    y = F.ctc_loss(x, labels, torch.full((s[1],), s[0]), torch.full((s[1],), s[3]))
    return gradients({"dx": x}, y, torch.ones_like(y))


def embedding_backward(s):
    w, = leaves(random(s, (s[0], s[2]), 1))
    i = torch.arange(s[1], device=s.device)
    octave = 2 ** (i % 16)
    tokens = (octave - 1 + i // 16 * 7919 % octave) % s[0]
    return gradients({"dweight": w}, F.embedding(tokens, w), random(s, (s[1], s[2]), 2))


def trained_parameters(s):
    parameters = []
    for i in range(s[0]):
        parameters += leaves(random(s, (s[1],), 2 * i))
        parameters[-1].grad = random(s, (s[1],), 2 * i + 1)
    return parameters


def clip_grad_norm(s):
    parameters, last = trained_parameters(s), {}

    def call():
        last["y"] = nn.utils.clip_grad_norm_(parameters, 1.0)

    return Work(call, results=lambda: last | {f"g{i}": p.grad for i, p in enumerate(parameters)})


def adamw(s):
    parameters = trained_parameters(s)
    optimizer = torch.optim.AdamW(parameters, fused=s.device == "cuda")
    return Work(optimizer.step, results=lambda: {f"p{i}": p.detach() for i, p in enumerate(parameters)})


def linear(s):
    x, w = random(s, (s[0], s[2]), 1), random(s, (s[1], s[2]), 2)
    return Work(lambda: F.linear(x, w))


def linear_gelu(s):
    x, w, b = random(s, (s[0], s[2]), 1), random(s, (s[1], s[2]), 2), random(s, (s[1],), 3)

    def call():
        argument = F.linear(x, w, b)
        return F.gelu(argument, approximate="tanh"), argument
    return Work(call, ("y", "argument"))


def linear_backward(s):
    x, w, b = leaves(random(s, (s[0], s[2]), 1), random(s, (s[1], s[2]), 2), random(s, (s[1],), 3))
    return gradients({"dx": x, "dweight": w, "dbias": b}, F.linear(x, w, b), random(s, (s[0], s[1]), 4))


def fastest_attention(s, make):
    """Returns the fastest of the works that make(backend) gives for PyTorch's backends of attention. PyTorch's own
    choice is not always the fastest. `backend` makes a context in which PyTorch uses that backend."""
    if s.device != "cuda" or s.dtype == torch.float64:
        return make(contextlib.nullcontext)
    found = []
    for name in ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION"):
        try:
            work = make(functools.partial(sdpa_kernel, getattr(SDPBackend, name)))
            milliseconds(work, 3, s.device)  # warms up
            found.append((milliseconds(work, 10, s.device), work))
        except (AttributeError, RuntimeError):
            continue  # this backend does not take the dtype, or this PyTorch does not have it
    return min(found, key=lambda timed: timed[0])[1] if found else make(contextlib.nullcontext)


def attend_causally(backend, q, k, v):
    with backend():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def attention(s):
    q, k, v = (random(s, s.sizes, salt) for salt in (1, 2, 3))
    return fastest_attention(s, lambda backend: Work(lambda: attend_causally(backend, q, k, v)))


def attention_backward(s):
    q, k, v = leaves(*(random(s, s.sizes, salt) for salt in (1, 2, 3)))
    dy = random(s, s.sizes, 4)
    return fastest_attention(
        s, lambda backend: gradients({"dq": q, "dk": k, "dv": v}, attend_causally(backend, q, k, v), dy))


def conv_inputs(s):
    weight = random(s, (s[4], s[1], s[5], s[5]), 2).to(memory_format=torch.channels_last)
    return random(s, s.sizes[:4], 1, True), weight, random(s, (s[4],), 3)


def conv2d(s):
    x, weight, _ = conv_inputs(s)
    return Work(lambda: F.conv2d(x, weight, stride=s[6], padding=s[7]))


def conv2d_bias_relu(s):
    x, weight, bias = conv_inputs(s)
    return Work(lambda: F.conv2d(x, weight, bias, s[6], s[7]).relu_())


def conv2d_backward(s):
    x, weight, bias = leaves(*conv_inputs(s))
    y = F.conv2d(x, weight, bias, s[6], s[7])
    return gradients({"dx": x, "dweight": weight, "dbias": bias}, y, random(s, tuple(y.shape), 4, True))


def linear_relu(s):
    x, w, b = random(s, (s[0], s[2]), 1), random(s, (s[1], s[2]), 2), random(s, (s[1],), 3)
    return Work(lambda: F.linear(x, w, b).relu_())


def eager_mul(s):
    a, b = random(s, (1,), 1), random(s, (1,), 2)

    def call():
        for _ in range(s[0]):
            y = a * b
        return y

    return Work(call, operations=s[0])


def eager_mul_backward(s):
    a, = leaves(random(s, (1,), 1))
    b = random(s, (1,), 2)

    def call():
        y = a
        for _ in range(s[0]):
            y = y * b
        return torch.autograd.grad([y], [a])[0]

    return Work(call, operations=s[0])


# ---- whole training steps ----


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 256), nn.Linear(256, 128), nn.Linear(128, 10)

    def forward(self, x):
        return self.fc3(self.fc2(self.fc1(x).relu()).relu())


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 5), nn.Conv2d(32, 64, 5)
        self.fc1, self.fc2 = nn.Linear(1024, 512), nn.Linear(512, 10)

    def forward(self, x):
        h = F.max_pool2d(self.conv1(x).relu(), 2)
        h = F.max_pool2d(self.conv2(h).relu(), 2)
        return self.fc2(self.fc1(h.flatten(1)).relu())


class BasicBlock(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None if stride == 1 and inputs == outputs else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        h = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (h + (self.downsample(x) if self.downsample else x)).relu()


class ResNet18(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        for i, (inputs, outputs, stride) in enumerate(((64, 64, 1), (64, 128, 2), (128, 256, 2), (256, 512, 2)), 1):
            setattr(self, f"layer{i}", nn.Sequential(BasicBlock(inputs, outputs, stride),
                                                     BasicBlock(outputs, outputs, 1)))
        self.fc = nn.Linear(512, 1000)

    def forward(self, x):
        h = F.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        h = self.layer4(self.layer3(self.layer2(self.layer1(h))))
        return self.fc(F.adaptive_avg_pool2d(h, 1).flatten(1))


class Gpt2Block(nn.Module):
    WIDTH, HEADS = 768, 12

    def __init__(self):
        super().__init__()
        width = self.WIDTH
        self.ln1, self.qkv, self.proj = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ln2, self.fc1, self.fc2 = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x):
        n, length, width = x.shape
        q, k, v = (t.view(n, length, self.HEADS, -1).transpose(1, 2) for t in self.qkv(x).chunk(3, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(n, length, width))

    def forward(self, x):
        h = x + self.attend(self.ln1(x))
        return h + self.fc2(F.gelu(self.fc1(self.ln2(h)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2 with the parameters, in the order, of nn::Gpt2. Returns the logits."""

    class Block(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.heads = max(width // 64, 1)
            self.ln_1, self.attn = nn.LayerNorm(width), nn.Module()
            self.attn.c_attn, self.attn.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.ln_2, self.mlp = nn.LayerNorm(width), nn.Module()
            self.mlp.c_fc, self.mlp.c_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            n, length, width = x.shape
            q, k, v = (t.view(n, length, self.heads, -1).transpose(1, 2)
                       for t in self.attn.c_attn(self.ln_1(x)).chunk(3, 2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.attn.c_proj(y.transpose(1, 2).reshape(n, length, width))
            return x + self.mlp.c_proj(F.gelu(self.mlp.c_fc(self.ln_2(x)), approximate="tanh"))

    def __init__(self, length, layers, width, words):
        super().__init__()
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(words, width), "wpe": nn.Embedding(length, width),
                                          "h": nn.ModuleList(self.Block(width) for _ in range(layers)),
                                          "ln_f": nn.LayerNorm(width)})

    def forward(self, ids):
        t = self.transformer
        x = t.wte(ids) + t.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in t.h:
            x = block(x)
        return F.linear(t.ln_f(x), t.wte.weight)


def initialize(model, spec):
    """Gives the model the same initial values as initialize() in tools/bench/gpu/steps.cpp."""
    numbers = Spec(["f32"], spec.device)
    with torch.no_grad():
        for salt, (name, p) in enumerate(model.named_parameters(), 100):
            values = random(numbers, tuple(p.shape), salt)
            if p.dim() > 1:
                values = values * math.sqrt(6.0 * p.shape[0] / p.numel())
            elif name.endswith("weight"):
                values = values * 0.1 + 1.0
            else:
                values = values * 0.1
            p.copy_(values)


def train(spec, model, optimizer, x, loss_of, **options):
    low = spec.dtype in (torch.bfloat16, torch.float16)
    model.to(spec.device, torch.float32 if low else spec.dtype)
    initialize(model, spec)
    if x.dim() == 4:
        model.to(memory_format=torch.channels_last)
    on_gpu, graph = spec.device == "cuda", spec.mode == "graph"
    if optimizer is torch.optim.AdamW:
        options["capturable"] = graph
    optimizer = optimizer(model.parameters(), fused=on_gpu, **options)
    forward = torch.compile(model) if spec.mode == "compiled" else model
    last = {}

    def step():
        optimizer.zero_grad()
        with (torch.autocast(spec.device, spec.dtype if low else torch.bfloat16) if low or spec.mode == "autocast"
              else contextlib.nullcontext()):
            loss = last["y"] = loss_of(forward(x))
        loss.backward()
        optimizer.step()

    def results():
        return {"y": last["y"].detach(), **{name: p.grad for name, p in model.named_parameters()}}

    if not graph:
        return Work(step, results=results)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        step()
    return Work(captured.replay, results=results)


def classification(spec, classes):
    target = class_targets(spec, spec[0], classes)
    return lambda y: F.cross_entropy(y, target)


def step_mlp(s):
    return train(s, Mlp(), torch.optim.AdamW, random(s, (s[0], 784), 1), classification(s, 10), lr=1e-3)


def step_cnn(s):
    return train(s, Cnn(), torch.optim.SGD, random(s, (s[0], 1, 28, 28), 1), classification(s, 10), lr=1e-3,
                 momentum=0.9)


def step_resnet18(s):
    return train(s, ResNet18(), torch.optim.SGD, random(s, (s[0], 3, s[1], s[1]), 1, True), classification(s, 1000),
                 lr=1e-3, momentum=0.9)


def step_gpt2_block(s):
    sizes = (s[0], s[1], Gpt2Block.WIDTH)
    target = random(s, sizes, 2)
    return train(s, Gpt2Block(), torch.optim.AdamW, random(s, sizes, 1), lambda y: F.mse_loss(y, target), lr=1e-3)


def step_gpt2(s):
    words = class_targets(s, s[0] * s[1] + 1, s[4])
    target = words[1:]
    return train(s, Gpt2(s[1], s[2], s[3], s[4]), torch.optim.AdamW, words[:-1].view(s[0], s[1]),
                 lambda y: F.cross_entropy(y.flatten(0, 1), target), lr=1e-4)


WORKS = {f.__name__: f for f in (copy, transpose, cat, add, gelu, softmax, layer_norm, rms_norm, layer_norm_backward, batch_norm_backward,
                                 cross_entropy, cross_entropy_backward, ctc_loss_backward, clip_grad_norm, embedding_backward, adamw, linear, linear_gelu, linear_backward, attention,
                                 attention_backward, conv2d, conv2d_bias_relu, conv2d_backward, eager_mul,
                                 eager_mul_backward, step_mlp, step_cnn, step_resnet18,
                                 step_gpt2_block, step_gpt2)}
# Steps that Tapestry has captured. PyTorch's mode is in the command.
WORKS |= {f.__name__ + "_captured": f for f in (step_mlp, step_cnn, step_resnet18, step_gpt2_block)}
# The kernels of docs/tutorials/from-naive-to-fast.md compute what these operations compute.
WORKS |= dict.fromkeys(["softmax_thread_per_row", "softmax_block_per_row", "softmax_online", "softmax_in_registers"],
                       softmax)
WORKS |= dict.fromkeys(["linear_thread_per_output", "linear_shared_tiles", "linear_register_tiles",
                        "linear_tensor_cores"], linear_relu)
WORKS |= dict.fromkeys(["conv_thread_per_output", "conv_implicit_gemm", "conv_hoisted"], conv2d)


def describe(results):
    """Returns the same text as describe() in tools/bench/gpu/work.cpp."""
    parts = []
    for name, y in results.items():
        y = y.detach()
        if y.dim() == 4:
            y = y.permute(0, 2, 3, 1)
        y = y.reshape(-1)
        n = y.numel()
        count, chunks = min(n, SAMPLES), min(n, CHUNKS)
        step = n // count
        at = torch.tensor([i * step + (i * 1000003 + 12345) % step for i in range(count)], device=y.device)
        values = y[at].double().tolist()
        for i in range(chunks):
            chunk = y[i * n // chunks:(i + 1) * n // chunks].double()
            values += [chunk.clamp(min=0).mean().item(), (-chunk).clamp(min=0).mean().item()]
        parts.append(name + ":" + "".join(f" {value:.9g}" for value in values))
    return " | ".join(parts)


def milliseconds(work, calls, device):
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    wait()
    if device == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
    start = time.perf_counter()
    for _ in range(calls):
        work.call()
    host = (time.perf_counter() - start) * 1e3
    if device == "cuda":
        end.record()
    wait()
    if work.operations:
        return host / calls / work.operations
    return (begin.elapsed_time(end) if device == "cuda" else host) / calls


def start(words, device):
    mode, _, name = words[1].rpartition(":")
    name = name.partition("@")[0]  # linear@vendor: the policy is Tapestry's alone
    # `prepare` comes before timings, so cuDNN searches for its fastest algorithm.
    torch.backends.cudnn.benchmark = words[0] == "prepare"
    work = WORKS[name](Spec(words[2:], device, words[0] == "reference", mode or "eager"))
    found = work.results()
    return work, "ok" if words[0] == "prepare" else "ok " + describe(found)


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cuda"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    if device == "cuda" and torch.cuda.is_available():
        torch.zeros(1, device=device)  # starts the GPU before the first command comes
    work = None
    for line in sys.stdin:
        words = line.split()
        try:
            if words[0] in ("start", "prepare", "reference"):
                work = None
                if device == "cuda":
                    torch.cuda.empty_cache()
                work, answer = start(words, device)
            elif words[0] == "time" and work:
                answer = f"{milliseconds(work, int(words[1]), device):.9g}"
            else:
                answer = f"failed unknown command {line.strip()}"
        except Exception as error:  # report the error as the answer, so that the next benchmark can still run
            work = None
            answer = f"failed {type(error).__name__}: {error}".splitlines()[0]
        print(answer, flush=True)


if __name__ == "__main__":
    main()
