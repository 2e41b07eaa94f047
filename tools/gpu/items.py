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
# The layers that show the policies: a window of 3 x 3, the same with a stride, the first layer, and one of 1 x 1.
LAYERS = [RESNET50[i] for i in (2, 6, 0, 3)]

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

    The name may end in a policy of core/kernel_policy.h, as in linear@vendor: custom (own kernels), vendor (NVIDIA's) or
    auto (the faster of them). linear@wgmma is the policy custom with TAPESTRY_WGMMA=1.

    kind    "speed": the ratio is the peer's time divided by ours. "cost": the ratio is our host time divided by
            PyTorch's. "launch": our host time for a bare kernel launch, without goal and without peer. "step": a whole
            training step, beside PyTorch in several modes.
    beside  "PyTorch" or "vendor", the same operation by NVIDIA's library under the policy vendor
    passes  how often every element must be read or written at least. The ratio is then our bandwidth divided by the
            bandwidth of a copy.
    goal    the least ratio (of a "cost": the largest), or a dict that gives it by mode
    mean_of the goal applies to the geometric mean over all items with this name
    launches  kernel launches in one operation of a "cost" item
    flops   floating-point operations of one call, and the goal for their rate as a fraction of PEAK
    verify  False if the reference in float64 does not fit into memory; a smaller item is verified instead"""

    def __init__(self, work, goal=None, passes=None, kind="speed", mean_of=None, launches=1, modes=("eager",), flops=None,
                 verify=True, beside="PyTorch"):
        self.work, self.goal, self.passes, self.kind, self.beside = work, goal, passes, kind, beside
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
    def by_vendor(self):
        """The same operation by NVIDIA's library."""
        name = self.name.partition("@")[0] + "@vendor"
        return Item(" ".join([name, *self.work.split()[1:]]))

    @property
    def library(self):
        """The library that computes an item with the policy vendor."""
        name, _, policy = self.name.partition("@")
        return "" if policy != "vendor" else "cuBLASLt" if name.startswith("linear") else "cuDNN"

    @property
    def gigabytes(self):
        sizes = self.sizes + (self.sizes[-1:] if self.name == "batch_norm_backward" else [])
        return self.passes * math.prod(sizes) * (4 if self.dtype == "f32" else 2) / 1e9

    def allowed(self, of_pytorch):
        """Returns the largest accepted difference from the reference. The argument is PyTorch's difference, or None if
        there is no PyTorch."""
        if self.kind != "step":
            return TOLERANCE_OF.get(self.name, TOLERANCE[self.dtype])
        least, limit = ((STEP_TOLERANCE, STEP_LIMIT) if self.dtype == "f32" else (LOW_STEP_TOLERANCE, LOW_STEP_LIMIT))
        return max(least, min(STEP_FACTOR * (of_pytorch or 0.0), limit))


def conv2d(name, dtype, layer, goal=None, **more):
    c, size, k, window, stride, padding = layer
    return Item(f"{name} {dtype} {BATCH} {c} {size} {size} {k} {window} {stride} {padding}", goal, **more)


def memory():
    """Returns the operations that only read and write memory. Their tensors have 512 MiB."""
    n = 1 << 27
    for name, passes, goal, shapes in [
            ("softmax", 2, .95, [(16384, 8192), (131072, 1024)]), ("layer_norm", 2, .95, [(65536, 2048)]),
            ("rms_norm", 2, .95, [(65536, 2048)]), ("copy", 2, .95, [(n,)]), ("cat", 2, .90, [(16, 4096, n >> 16)]),
            ("transpose", 2, None, [(8192, n // 8192)]), ("add", 3, .95, [(n,)]), ("gelu", 2, .95, [(n,)]),
            ("adamw", 7, .95, [(4, n // 4)]), ("cross_entropy", 1, .90, [(16384, 8192)]),
            ("cross_entropy_backward", 2, .90, [(16384, 8192)]), ("layer_norm_backward", 3, .90, [(65536, 2048)]),
            # The backward needs two sums over x and dy before it can write dx, so it reads both tensors twice and
            # writes once.
            ("batch_norm_backward", 5, .90, [(160, 64, 112)])]:
        for shape in shapes:
            yield Item(f"{name} f32 {' '.join(map(str, shape))}", goal, passes)
            if name not in ("adamw", "batch_norm_backward"):
                twice = (2 * shape[0],) + shape[1:]
                yield Item(f"{name} bf16 {' '.join(map(str, twice))}", goal, passes)
    for name, passes, sizes in (("add", 3, "134217728"), ("layer_norm", 2, "65536 2048"),
                                ("cross_entropy_backward", 2, "16384 8192"), ("batch_norm_backward", 5, "160 64 112")):
        yield Item(f"{name} f16 {sizes}", None, passes)


def policy():
    """Returns own kernels that stand beside NVIDIA's. A kernel enters the policy auto where they are correct."""
    beside = {"beside": "vendor"}
    for dtype, goal in (("bf16", .60), ("f32", .90)):
        yield Item(f"linear@custom {dtype} 4096 4096 4096", goal, **beside)
        yield Item(f"linear_backward@custom {dtype} 4096 4096 4096", goal, **beside)
    yield Item("linear_gelu@custom bf16 16384 3072 768", .60, **beside)
    yield Item("attention@custom bf16 16 12 1024 64", .65, **beside)
    yield Item("attention_backward@custom bf16 16 12 1024 64", .55, **beside)
    yield Item("attention@custom bf16 4 16 2048 128", **beside)
    for dtype, goals, layers in (("bf16", (.60, .60, .60), LAYERS), ("f32", (.85, 1.0, .85), LAYERS[:2])):
        for layer in layers:
            for name, goal in zip(("conv2d", "conv2d_backward", "conv2d_bias_relu"), goals):
                yield conv2d(name + "@custom", dtype, layer, goal, mean_of=f"{name}@custom {dtype}", **beside)
    yield Item("linear_gelu@custom f32 4096 3072 768", **beside)
    yield Item("linear@custom f16 4096 4096 4096", .60, **beside)
    yield Item("linear_backward@custom f16 4096 4096 4096", **beside)
    for dtype, goal in (("bf16", .60), ("f32", .90)):
        for size in (2048, 8192):
            yield Item(f"linear@custom {dtype} {size} {size} {size}", goal, **beside)


def wgmma():
    """Returns own kernels with wgmma, which are off by default, beside NVIDIA's."""
    for sizes in ("4096 4096 4096", "8192 8192 8192"):
        yield Item("linear@wgmma bf16 " + sizes, beside="vendor")
    for sizes in ("16 12 1024 64", "4 16 2048 128"):
        yield Item("attention@wgmma bf16 " + sizes, beside="vendor")


def operations():
    """Returns the other benchmarks of single operations. The most important ones come first, because a run may be
    interrupted."""
    yield from memory()
    for dtype in ("f32", "bf16"):
        yield Item(f"linear_backward@auto {dtype} 4096 4096 4096")
        yield Item(f"linear@auto {dtype} 4096 4096 4096")
    # Lines of odd lengths, beside the same product with padded lines: GPT-2's vocabulary, and every operand odd.
    for name in ("linear", "linear_backward"):
        for rows, outputs, inputs in ((8192, 50257, 768), (8192, 50304, 768), (4097, 4097, 4097), (4104, 4104, 4104)):
            yield Item(f"{name}@custom bf16 {rows} {outputs} {inputs}")
    for name in ("attention", "attention_backward"):
        yield Item(f"{name}@custom f32 16 12 1024 64")  # cuDNN would compute it in TF32
        yield Item(f"{name}@auto bf16 16 12 1024 64", 1.0)
    yield Item("ctc_loss_backward f32 200 64 64 30")
    for dtype in ("f32", "bf16"):  # GPT-2's embedding; 1 of 16 tokens is the commonest
        yield Item(f"embedding_backward {dtype} 50257 65536 768")
    yield Item("clip_grad_norm f32 148 800000", .85, 3)  # as many gradients and elements as GPT-2 has
    yield Item("launch f32 500", kind="launch")
    for name, launches in (("eager_mul", 1), ("eager_mul_backward", 2)):
        yield Item(f"{name} f32 500", .5, kind="cost", launches=launches)
    for name, goal, beside in (("custom", .60, "vendor"), ("auto", 1.05, "PyTorch")):
        for rows, outputs, inputs in GPT2:
            yield Item(f"linear_gelu@{name} bf16 {rows} {outputs} {inputs}", goal, beside=beside,
                       mean_of=f"linear_gelu@{name} bf16")
    for dtype, name, goals, beside in (("bf16", "custom", (.60, .60, .60), "vendor"),
                                       ("bf16", "auto", (None, 1.0, None), "PyTorch"),
                                       ("f32", "custom", (.85, 1.0, .85), "vendor")):
        for operation, goal in zip(("conv2d", "conv2d_bias_relu", "conv2d_backward"), goals):
            for layer in RESNET50:
                yield conv2d(f"{operation}@{name}", dtype, layer, goal, mean_of=f"{operation}@{name} {dtype}",
                             beside=beside)


def tutorial():
    """Returns the kernels of docs/tutorials/from-naive-to-fast.md, beside PyTorch's operations. They have no goal."""
    for name in ("thread_per_row", "block_per_row", "online", "in_registers"):
        yield Item(f"softmax_{name} f32 131072 1024", None, 2)
    for name in ("thread_per_output", "shared_tiles", "register_tiles"):
        yield Item(f"linear_{name} f32 2048 2048 2048")
    yield Item("linear_tensor_cores bf16 2048 2048 2048")
    for name in ("thread_per_output", "implicit_gemm", "hoisted"):
        yield Item(f"conv_{name} f32 64 64 56 56 64 3 1 1")


def steps():
    """Returns the whole training steps that a short run times, eager and captured."""
    for name, sizes, goals in (("step_mlp", "128", {"eager": 10.0, "graph": 1.5}), ("step_cnn", "128", None),
                               ("step_resnet18", "64 224", None), ("step_gpt2_block", "8 1024", None)):
        yield Item(f"{name} f32 {sizes}", kind="step")
        yield Item(f"{name}_captured f32 {sizes}", goals, kind="step", modes=("eager", "graph") if goals else ("graph",))
    # In bf16 both use autocast, and PyTorch has channels last.
    yield Item("step_resnet18@auto bf16 256 224", kind="step")
    yield gpt2(4)
    yield gpt2(64)


def gpt2(batch, goal=None, modes=("eager",)):
    sizes = (batch, 1024, 12, 768, 50257)  # what 64 texts need may not fit beside PyTorch's in float64
    return Item(f"step_gpt2@auto bf16 {' '.join(map(str, sizes))}", goal, kind="step", modes=modes, verify=batch == 4,
                flops=(gpt2_flops(*sizes), .45 if batch == 64 else None))


def compiled_steps():
    """Returns the same training steps beside torch.compile, which takes up to a minute for each, and beside PyTorch in
    bf16, which is only reported."""
    for work in ("step_mlp f32 128", "step_cnn f32 128", "step_resnet18 f32 64 224", "step_gpt2_block f32 8 1024"):
        yield Item(work, kind="step", modes=("compiled", "autocast"))
    yield Item("step_resnet18@auto bf16 256 224", {"compiled": 1.15}, kind="step", modes=("compiled",))
    yield gpt2(64, {"compiled": 1.15}, ("compiled",))


def first():
    """Returns the items that say most about a GPU, in little time."""
    wanted = ("copy f32", "softmax f32", "layer_norm bf16", "adamw f32", "linear@auto bf16", "attention@auto bf16",
              "launch f32", "eager_mul f32")
    yield from one_of_each(item for item in operations() if f"{item.name} {item.dtype}" in wanted)
    yield next(policy())
    yield from (item for item in steps() if item.name == "step_mlp_captured")


def verified(*lists):
    """Returns the items of these lists whose values are compared. Where NVIDIA's library stands beside an own kernel,
    its values are compared too. Each benchmark occurs once."""
    found = {}
    for item in (item for items in lists for item in items):
        if item.kind != "launch" and item.verify:
            found.setdefault(item.work, item)
        if item.beside == "vendor":
            found.setdefault(item.by_vendor.work, item.by_vendor)
    return list(found.values())


def smoke():
    """Returns what shows that every kernel family computes the right values and gradients: one item for each name and
    dtype, and all those for which the policy is decided."""
    found = verified(one_of_each([*operations(), *steps()]), policy())
    return sorted(found, key=lambda item: item.library != "")  # NVIDIA's last


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
    elif name.startswith("attention"):
        sizes = ["1", "1", "65", sizes[3]] if name == "attention@wgmma" else ["1", "2", "24", "24"]
    elif name == "linear@wgmma":
        sizes = ["72", "136", "72"]
    elif name.startswith("step_resnet18"):
        # The last batch norms see as many values as there are images. With 3 of them, bf16 gradients are off by three times
        # their largest element, in PyTorch too; with 8, by 0.8.
        sizes = ["3" if dtype == "f32" else "8", "32"]
    elif name.startswith("step_gpt2@"):
        sizes = ["2", "4", "1", "16", "11"]
    elif item.kind == "step":
        sizes = [str(min(int(n), 4)) for n in sizes]
    else:
        sizes = [str(min(int(n), 24)) for n in sizes]
    return Item(" ".join([name, dtype, *sizes]), item.goal, item.passes, item.kind, item.mean_of, item.launches,
                item.modes, item.flops, beside=item.beside)


def one_of_each(items):
    """Returns the first item for each combination of name and dtype."""
    kinds = {}
    for item in items:
        kinds.setdefault((item.name, item.dtype), item)
    return list(kinds.values())
