"""Lists the benchmarks of tools/gpu_check with their sizes, goals and tolerances."""
import math

# ResNet-50's convolutions for images of 224 x 224: channels, size, filters, window, stride, padding.
RESNET50 = [
    (3, 224, 64, 7, 2, 3), (64, 56, 64, 1, 1, 0), (64, 56, 64, 3, 1, 1), (64, 56, 256, 1, 1, 0),
    (256, 56, 64, 1, 1, 0), (256, 56, 128, 1, 1, 0), (128, 56, 128, 3, 2, 1), (128, 28, 512, 1, 1, 0),
    (256, 56, 512, 1, 2, 0), (512, 28, 128, 1, 1, 0), (128, 28, 128, 3, 1, 1), (512, 28, 256, 1, 1, 0),
    (256, 28, 256, 3, 2, 1), (256, 14, 1024, 1, 1, 0), (512, 28, 1024, 1, 2, 0), (1024, 14, 256, 1, 1, 0),
    (256, 14, 256, 3, 1, 1), (1024, 14, 512, 1, 1, 0), (512, 14, 512, 3, 2, 1), (512, 7, 2048, 1, 1, 0),
    (1024, 14, 2048, 1, 2, 0), (2048, 7, 512, 1, 1, 0), (512, 7, 512, 3, 1, 1)]
BATCH = 64
# GPT-2's matrix products for 16 texts of 1024 tokens, as rows, outputs and inputs of a linear layer.
GPT2 = [(16384, 2304, 768), (16384, 768, 768), (16384, 3072, 768), (16384, 768, 3072), (16384, 50304, 768)]
POLICIES = ("custom", "vendor", "auto")  # of core/kernel_policy.h: own kernels, NVIDIA's, the faster of them

# The largest difference from the float64 reference that is accepted, as a fraction of the reference's largest element.
# f32: sums of up to 800,000 products in any order. bf16 and f16: a result is rounded to 8 or 11 bits, up to four times
# on its way.
TOLERANCE = {"f32": 1e-4, "bf16": 1.6e-2, "f16": 2e-3}
# After T steps, the logarithm of a path's probability is about T log(classes). Each step rounds it, and its error is the
# relative error of a gradient: for 200 steps and 64 classes at most 1e-2.
TOLERANCE_OF = {"ctc_loss_backward": 1e-2}
# In a whole model, a rounding error can change the sign of a ReLU's input or the maximum of a max pool, and gradients
# jump. The difference between PyTorch's result and the float64 reference shows how large this effect is for this model
# and batch. Tapestry's difference may be STEP_FACTOR times as large, but at most STEP_LIMIT.
STEP_TOLERANCE, STEP_FACTOR, STEP_LIMIT = 1e-3, 3.0, 5e-2
# Under autocast every activation has 8 bits, so more signs flip.
LOW_STEP_TOLERANCE, LOW_STEP_LIMIT = TOLERANCE["bf16"], 0.5
# The bf16 operations per second of an H100 or H200 (SXM), without sparsity, from NVIDIA's data sheets.
PEAK = 989e12


def gpt2_flops(batch, length, layers, width, words):
    """Operations of one training step of GPT-2 by llm.c's count: 6 for each parameter and token, and 6 layers width
    length for a token's causal attention."""
    parameters = words * width + length * width + layers * (12 * width * width + 13 * width) + 2 * width
    return batch * length * (6 * parameters + 6 * layers * width * length)


class Item:
    """A benchmark that both programs know by the text `work`.

    The name may end in a policy, as in linear@vendor; POLICIES lists them. linear@wgmma is the policy custom with
    TAPESTRY_WGMMA=1.

    kind    "speed": the ratio is PyTorch's time divided by ours. "cost": the ratio is our host time divided by
            PyTorch's. "launch": our host time for a bare kernel launch, without goal and without peer. "step": a whole
            training step, beside PyTorch in several modes.
    passes  how often every element must be read or written at least. The ratio is then our bandwidth divided by the
            bandwidth of a copy.
    goal    the least ratio (of a "cost": the largest), or a dict that gives it by mode
    mean_of the goal applies to the geometric mean over all items with this name
    launches  kernel launches in one operation of a "cost" item
    flops   floating-point operations of one call, and the goal for their rate as a fraction of PEAK
    verify  False if the reference in float64 does not fit into memory; a smaller item is verified instead"""

    def __init__(self, work, goal, passes=None, kind="speed", mean_of=None, launches=1, modes=("eager",), flops=None,
                 verify=True):
        self.work, self.goal, self.passes, self.kind = work, goal, passes, kind
        self.mean_of, self.launches, self.modes, self.flops, self.verify = mean_of, launches, modes, flops, verify

    @property
    def name(self):
        return self.work.split()[0]

    @property
    def dtype(self):
        return self.work.split()[1]

    @property
    def sizes(self):
        return [int(n) for n in self.work.split()[2:]]

    @property
    def gigabytes(self):
        sizes = self.sizes + (self.sizes[-1:] if self.name == "batch_norm_backward" else [])
        return self.passes * math.prod(sizes) * (4 if self.dtype == "f32" else 2) / 1e9

    def allowed(self, of_pytorch):
        """Returns the largest accepted difference from the reference. The argument is PyTorch's difference, or None if
        it is unknown."""
        if self.kind != "step":
            return TOLERANCE_OF.get(self.name, TOLERANCE[self.dtype])
        least, limit = ((STEP_TOLERANCE, STEP_LIMIT) if self.dtype == "f32" else (LOW_STEP_TOLERANCE, LOW_STEP_LIMIT))
        return max(least, min(STEP_FACTOR * (of_pytorch or 0.0), limit))


def operations():
    """Returns the benchmarks of single operations. The most important ones come first, because a run may be
    interrupted. Tensors of memory-bound operations have 512 MiB."""
    n = 1 << 27
    memory = [("softmax", 2, .95, [(16384, 8192), (131072, 1024)]), ("layer_norm", 2, .95, [(65536, 2048)]),
              ("rms_norm", 2, .95, [(65536, 2048)]),
              ("copy", 2, .95, [(n,)]), ("cat", 2, .90, [(16, 4096, n >> 16)]), ("transpose", 2, None, [(8192, n // 8192)]),
              ("add", 3, .95, [(n,)]), ("gelu", 2, .95, [(n,)]), ("adamw", 7, .95, [(4, n // 4)]),
              ("cross_entropy", 1, .90, [(16384, 8192)]), ("cross_entropy_backward", 2, .90, [(16384, 8192)]),
              ("layer_norm_backward", 3, .90, [(65536, 2048)]),
              # The backward needs two sums over x and dy before it can write dx, so it reads both tensors twice and
              # writes once.
              ("batch_norm_backward", 5, .90, [(160, 64, 112)])]
    for name, passes, goal, shapes in memory:
        for shape in shapes:
            yield Item(f"{name} f32 {' '.join(map(str, shape))}", goal, passes)
            if name not in ("adamw", "batch_norm_backward"):
                twice = (2 * shape[0],) + shape[1:]
                yield Item(f"{name} bf16 {' '.join(map(str, twice))}", goal, passes)
    for size in (2048, 4096, 8192):
        yield Item(f"linear@custom f32 {size} {size} {size}", .90)
        yield Item(f"linear@custom bf16 {size} {size} {size}", .60)
    for dtype, goal in (("f32", .90), ("bf16", .60)):
        yield Item(f"linear_backward@custom {dtype} 4096 4096 4096", goal)
        for policy in POLICIES[1:]:
            yield Item(f"linear_backward@{policy} {dtype} 4096 4096 4096", None)
            yield Item(f"linear@{policy} {dtype} 4096 4096 4096", None)
    # Lines of odd lengths, beside the same product with padded lines: GPT-2's vocabulary, and every operand odd.
    for name in ("linear", "linear_backward"):
        for rows, outputs, inputs in ((8192, 50257, 768), (8192, 50304, 768), (4097, 4097, 4097), (4104, 4104, 4104)):
            yield Item(f"{name}@custom bf16 {rows} {outputs} {inputs}", None)
    yield Item("linear@custom f16 4096 4096 4096", .60)
    yield Item("linear_backward@custom f16 4096 4096 4096", None)
    for name, passes, sizes in (("add", 3, "134217728"), ("layer_norm", 2, "65536 2048"),
                                ("cross_entropy_backward", 2, "16384 8192"), ("batch_norm_backward", 5, "160 64 112")):
        yield Item(f"{name} f16 {sizes}", None, passes)
    for policy in POLICIES:
        yield Item(f"linear_gelu@{policy} f32 4096 3072 768", None)
    for name, goal in (("attention", .65), ("attention_backward", .55)):
        yield Item(f"{name}@custom f32 16 12 1024 64", None)  # cuDNN would compute it in TF32
        for policy, goal_of_policy in zip(POLICIES, (goal, None, 1.0)):
            yield Item(f"{name}@{policy} bf16 16 12 1024 64", goal_of_policy)
    # Own kernels with wgmma, which are off by default, and beside them those that are the default.
    yield Item("linear@wgmma bf16 4096 4096 4096", None)
    yield Item("attention@wgmma bf16 16 12 1024 64", None)
    for policy in ("wgmma", "custom", "vendor"):
        yield Item(f"attention@{policy} bf16 4 16 2048 128", None)
    yield Item("ctc_loss_backward f32 200 64 64 30", None)
    for dtype in ("f32", "bf16"):  # GPT-2's embedding; 1 of 16 tokens is the commonest
        yield Item(f"embedding_backward {dtype} 50257 65536 768", None)
    yield Item("clip_grad_norm f32 148 800000", .85, 3)  # as many gradients and elements as GPT-2 has
    yield Item("launch f32 500", None, kind="launch")
    for name, launches in (("eager_mul", 1), ("eager_mul_backward", 2)):
        yield Item(f"{name} f32 500", .5, kind="cost", launches=launches)
    for policy, goal in zip(POLICIES, (.60, None, 1.05)):
        for rows, outputs, inputs in GPT2:
            yield Item(f"linear_gelu@{policy} bf16 {rows} {outputs} {inputs}", goal,
                       mean_of=f"linear_gelu@{policy} bf16")
    # In f32 a few layers show the policies.
    for dtype, policy, goals, layers in (("bf16", "custom", (.60, .60, .60), RESNET50),
                                         ("bf16", "vendor", (None,) * 3, RESNET50),
                                         ("bf16", "auto", (None, 1.0, None), RESNET50),
                                         ("f32", "custom", (.85, 1.0, .85), RESNET50),
                                         ("f32", "vendor", (None,) * 3, RESNET50[1:4]),
                                         ("f32", "auto", (None,) * 3, RESNET50[1:4])):
        for name, goal in zip(("conv2d", "conv2d_bias_relu", "conv2d_backward"), goals):
            for c, size, k, window, stride, padding in layers:
                yield Item(f"{name}@{policy} {dtype} {BATCH} {c} {size} {size} {k} {window} {stride} {padding}", goal,
                           mean_of=f"{name}@{policy} {dtype}")


def tutorial():
    """Returns the kernels of docs/tutorials/from-naive-to-fast.md, beside PyTorch's operations. They have no goal."""
    for name in ("thread_per_row", "block_per_row", "online", "in_registers"):
        yield Item(f"softmax_{name} f32 131072 1024", None, 2)
    for name in ("thread_per_output", "shared_tiles", "register_tiles"):
        yield Item(f"linear_{name} f32 2048 2048 2048", None)
    yield Item("linear_tensor_cores bf16 2048 2048 2048", None)
    for name in ("thread_per_output", "implicit_gemm", "hoisted"):
        yield Item(f"conv_{name} f32 64 64 56 56 64 3 1 1", None)


def steps():
    """Returns the benchmarks of whole training steps. The mode "autocast" is only reported,
    because PyTorch then computes in bf16."""
    modes = ("eager", "compiled", "autocast")
    yield Item("step_mlp f32 128", None, kind="step", modes=("eager", "compiled", "graph", "autocast"))
    yield Item("step_mlp_captured f32 128", {"eager": 10.0, "graph": 1.5}, kind="step", modes=("eager", "graph"))
    yield Item("step_cnn f32 128", None, kind="step", modes=modes)
    yield Item("step_resnet18 f32 64 224", None, kind="step", modes=modes)
    yield Item("step_gpt2_block f32 8 1024", None, kind="step", modes=modes)
    # In bf16 both use autocast, and PyTorch has channels last.
    low = ("eager", "compiled")
    yield Item("step_resnet18@auto bf16 256 224", {"compiled": 1.15}, kind="step", modes=low)
    for batch in (4, 64):  # what 64 texts need may not fit beside PyTorch's
        sizes = (batch, 1024, 12, 768, 50257)
        yield Item(f"step_gpt2@auto bf16 {' '.join(map(str, sizes))}", {"compiled": 1.15} if batch == 64 else None,
                   kind="step", modes=low, flops=(gpt2_flops(*sizes), .45 if batch == 64 else None), verify=batch == 4)


def verified():
    """Returns the items that the phase `verify` compares, each in one dtype."""
    yield from (item for item in operations() if item.kind != "launch")
    yield from (item for item in steps() if item.verify)
    yield from tutorial()


def small(item):
    """Returns the same benchmark with small sizes, for a dry run."""
    name, dtype, *sizes = item.work.split()
    if name.startswith("conv"):
        channels = "3" if sizes[1] == "3" else "8" if name.startswith("conv2d") else "16"
        sizes = ["2", channels, "7", "7", "8"] + sizes[5:]
    elif name in ("adamw", "clip_grad_norm"):
        sizes = ["4", "100"]
    elif name == "ctc_loss_backward":
        sizes = ["24", "3", "5", "6"]
    elif name.startswith("step_resnet18"):
        sizes = ["2", "32"]
    elif name.startswith("step_gpt2@"):
        sizes = ["2", "4", "1", "16", "11"]
    elif item.kind == "step":
        sizes = [str(min(int(n), 4)) for n in sizes]
    else:
        sizes = [str(min(int(n), 24)) for n in sizes]
    return Item(" ".join([name, dtype, *sizes]), item.goal, item.passes, item.kind, item.mean_of, item.launches,
                item.modes, item.flops)


def one_of_each(items):
    """Returns one small item for each combination of name and dtype."""
    kinds = {}
    for item in items:
        kinds.setdefault((item.name, item.dtype), small(item))
    return list(kinds.values())
