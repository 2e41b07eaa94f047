"""Records PyTorch's results. tests/support/op_case.h compares Tapestry's operations with them.

Each family of operations has a script tests/golden/<family>.py that consists of calls of `case(...)`. `make_all.py`
runs all these scripts. tests/README.md shows how to write one.

If the inputs of a case are float64, the C++ tests run it in float64, in float32 and in every other floating dtype that
represents the inputs exactly. A case with another floating dtype runs only in that dtype.

The recorded file stores a scale for each value y: |y| + sum_i |dy/dx_i| |x_i|. If every input has a relative error of
eps, the error of y is about eps * scale. A backward-stable algorithm in a dtype of precision eps has an error of a
small multiple of that, so the tests use it as the tolerance.
"""
import inspect
import json
import math
import pathlib

import torch

HERE = pathlib.Path(__file__).resolve().parent
TAGS = {"empty", "extreme", "broadcast", "integer", "no_gradcheck", "no_gradgradcheck", "no_strided", "no_grad"}
DTYPES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16",
          torch.int64: "i64", torch.int32: "i32", torch.uint8: "u8", torch.bool: "bool",
          torch.int16: "i16", torch.int8: "i8", torch.uint16: "u16"}
_cases = {}


# ---- inputs: every value is exact in bfloat16, so that a case can run in every dtype ----
def grid(*shape, seed=1, low=-4.0, high=4.0, dtype=torch.float64):
    """Returns multiples of 1/16 in [low, high) in a scattered order. No value repeats until all have been used."""
    count = int((high - low) * 16)
    n = math.prod(shape)
    step = next(s for s in range(int(count * 0.618) | 1, 0, -2) if math.gcd(s, count) == 1)
    values = [low + ((37 * seed + i * step) % count) / 16 for i in range(n)]
    return torch.tensor(values, dtype=torch.float64).reshape(shape).to(dtype)


def positive(*shape, seed=1, high=8.0):
    """Returns the same kind of values as grid, but in [1/2, high)."""
    return grid(*shape, seed=seed, low=0.5, high=high)


def ints(*shape, seed=1, low=-5, high=6, dtype=torch.int64):
    values = [low + (7 * seed + i * 11 + i * i) % (high - low) for i in range(math.prod(shape))]
    return torch.tensor(values, dtype=dtype).reshape(shape)


def bools(*shape, seed=1):
    return ints(*shape, seed=seed, low=0, high=2) == 1


def f64(values):
    """Returns the values, rounded to float32, as a float64 tensor."""
    return torch.tensor(values, dtype=torch.float64).float().double()


# ---- recording ----
def grad_output(k, like):
    """Returns the gradient that backward gets for the k-th output: multiples of 1/4 in [-1.5, 1.5]. The C++ tests
    compute the same values in tests/support/op_case.cpp."""
    values = [((7 * i + 3 * k + 4) % 13 - 6) / 4 for i in range(like.numel())]
    return torch.tensor(values, dtype=torch.float64).reshape(like.shape).to(like.dtype)


def case(op, inputs, params=None, fn=None, tags="", slack=1, dtypes=None, constant=(), family=None):
    """Records one test case: the result and the gradients of fn(*inputs, **params).

    op      the registered name of the operation, or "name/variant" for another form of it
    inputs  a list of tensors; None stands for an optional input that is omitted
    params  keyword arguments: bools, ints, floats, strings, lists of ints or floats, dtypes, None
    fn      the PyTorch function; it must not change its inputs
    tags    words from TAGS: `empty` (no elements), `extreme` (infinities, NaN, huge or tiny values), `no_gradcheck`
            (the function is not differentiable here: a kink or a tie), `no_strided` (the result depends on strides),
            `no_grad` (the gradient is not compared with PyTorch's), `broadcast`, `integer`
    slack   a factor of the tolerance; a comment in the script must give the reason
    dtypes  records one case per dtype in this list; for integer inputs
    constant  indices of the inputs that are not differentiated, such as running statistics
    family  the name of the JSON file; by default that of the calling script
    """
    params = params or {}
    if dtypes:
        for dtype in dtypes:
            case(op, [None if x is None else x.to(dtype) for x in inputs], params, fn, tags, slack, None, constant,
                 family or _caller())
        return
    tags = set(tags.split())
    if any(x is not None and not x.is_floating_point() for x in inputs):
        tags.add("integer")
    assert tags <= TAGS, f"{op}: unknown tag in {tags}"
    for x in inputs:
        if x is not None and x.dtype == torch.float64:
            exact = torch.isnan(x) | (x.float().double() == x)
            assert bool(exact.all()), f"{op}: an input is not exact in float32"

    before = [None if x is None else x.clone() for x in inputs]
    leaves = [None if x is None else x.clone().requires_grad_(x.is_floating_point() and i not in constant)
              for i, x in enumerate(inputs)]
    outputs = _tensors(fn(*leaves, **params))
    if any(x is not None and x.numel() == 0 for x in inputs or outputs):
        tags.add("empty")
    for x, old in zip(leaves, before):
        assert x is None or torch.equal(torch.nan_to_num(x.detach()), torch.nan_to_num(old)), f"{op}: input changed"
    grads, differentiable = [None] * len(inputs), False
    if "no_grad" not in tags:
        grads, differentiable = _gradients(leaves, outputs)
    out_scales, grad_scales = _scales(inputs, params, fn, outputs, differentiable)

    entry = {"op": op}
    if tags:
        entry["tags"] = sorted(tags)
    if slack != 1:
        entry["slack"] = slack
    if constant:
        entry["constant"] = list(constant)
    if params:
        entry["params"] = {k: _param(v) for k, v in params.items()}
    entry["inputs"] = [None if x is None else _tensor(x) for x in inputs]
    entry["outputs"] = [_tensor(y.detach(), s) for y, s in zip(outputs, out_scales)]
    if differentiable:
        entry["grads"] = [None if g is None else _tensor(g, s) for g, s in zip(grads, grad_scales)]
    _cases.setdefault(family or _caller(), []).append(entry)


def _caller():
    """Returns the name of the script that called case()."""
    return pathlib.Path(inspect.stack()[2].filename).stem


def write(folder=HERE / "ops"):
    """Writes all recorded cases to <folder>/<family>.json."""
    folder.mkdir(exist_ok=True)
    for family, cases in _cases.items():
        lines = ",\n".join(json.dumps(c, separators=(",", ":"), allow_nan=False) for c in cases)
        version = torch.__version__.split("+")[0]
        (folder / f"{family}.json").write_text(f'{{"torch":"{version}","cases":[\n{lines}\n]}}\n')


def _tensors(result):
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (bool, int, float)):
        return [torch.tensor(result)]
    return list(result)


def _gradients(leaves, outputs):
    roots = [(y, grad_output(k, y.detach())) for k, y in enumerate(outputs) if y.requires_grad]
    wanted = [x for x in leaves if x is not None and x.requires_grad]
    if not roots or not wanted:
        return [None] * len(leaves), False
    found = iter(torch.autograd.grad([y for y, _ in roots], wanted, [g for _, g in roots], allow_unused=True))
    return [next(found) if x is not None and x.requires_grad else None for x in leaves], True


def _scales(inputs, params, fn, outputs, differentiable):
    """Returns the scales (see the top of this file) of the outputs and of the gradients. Outputs are functions of the
    inputs. Gradients are functions of the inputs and the output gradients."""
    flat = [y.detach().double().abs() for y in outputs]
    floats = [i for i, x in enumerate(inputs) if x is not None and x.is_floating_point() and x.numel()]
    nothing = [None] * len(inputs)
    if not differentiable or not floats:
        return flat, nothing
    x64 = [inputs[i].double() for i in floats]

    def values(*xs):
        full = list(inputs)
        for i, x in zip(floats, xs):
            full[i] = x
        return [y for y in _tensors(fn(*full, **params)) if y.is_floating_point()]

    def gradients(*args):
        xs, gs = args[:len(floats)], args[len(floats):]
        ys = [y for y in values(*xs)]
        pairs = [(y, g) for y, g in zip(ys, gs) if y.requires_grad]
        got = torch.autograd.grad([y for y, _ in pairs], xs, [g for _, g in pairs], create_graph=True,
                                  allow_unused=True)
        return [torch.zeros_like(x) if g is None else g for g, x in zip(got, xs)]

    def spread(function, args):
        args = [a.detach().clone().requires_grad_() for a in args]
        scales = []
        for y in function(*args):
            s = y.detach().abs().clone().reshape(-1)
            for j, yj in enumerate(y.reshape(-1)):
                if not yj.requires_grad:
                    continue
                for a, d in zip(args, torch.autograd.grad(yj, args, retain_graph=True, allow_unused=True)):
                    if d is not None:
                        s[j] += torch.nan_to_num((d * a.detach()).abs(), nan=0.0, posinf=0.0).sum()
            scales.append(s.reshape(y.shape))
        return scales

    it = iter(spread(values, x64))
    out_scales = [next(it) if y.is_floating_point() else s for y, s in zip(outputs, flat)]
    gs = [grad_output(k, y.detach().double()) for k, y in enumerate(outputs) if y.is_floating_point()]
    grad_scales = nothing[:]
    for i, s in zip(floats, spread(gradients, x64 + gs)):
        grad_scales[i] = s
    return out_scales, grad_scales


def _number(v):
    if isinstance(v, float):
        if not math.isfinite(v):
            return _special(v)
        if v.is_integer() and abs(v) < 2**53 and not (v == 0 and math.copysign(1, v) < 0):
            return int(v)
    return v


def _special(v):
    return "nan" if math.isnan(v) else "inf" if v > 0 else "-inf"


def _scale(values):
    """Rounds the scales up to two digits. Infinities and NaN become 0."""
    return [_number(float(f"{1.05 * abs(v):.1e}")) if math.isfinite(v) else 0 for v in values]


def _tensor(t, scale=None):
    t = t.detach()
    entry = {"dtype": DTYPES[t.dtype], "shape": list(t.shape), "values": [_number(v) for v in t.reshape(-1).tolist()]}
    if scale is not None and t.is_floating_point():
        scales = _scale(scale.double().reshape(-1).tolist())
        if scales != _scale(t.double().reshape(-1).tolist()):  # the C++ reader uses |value| if no scale is given
            entry["scale"] = scales
    return entry


def _param(v):
    """Converts a parameter to JSON. Unlike _number, it keeps 2.0 a float, because 2 and 2.0 are different scalars."""
    if isinstance(v, torch.dtype):
        return DTYPES[v]
    if isinstance(v, (list, tuple)):
        return [_param(x) for x in v]
    return _special(v) if isinstance(v, float) and not math.isfinite(v) else v
