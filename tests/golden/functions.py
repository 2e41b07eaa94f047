import math

import torch
import torch.nn.functional as F

from cases import bools, case, f64, grid, ints, positive

INF, NAN = float("inf"), float("nan")
INTEGERS = [torch.int64, torch.int32, torch.uint8]


def gelu(x, tanh):
    """Computes gelu precisely for negative x too. F.gelu computes 1 + erf and 1 + tanh, which cancel there."""
    if tanh:
        y = x * torch.sigmoid(math.sqrt(8 / math.pi) * (x + 0.044715 * x**3))
    else:
        y = x * 0.5 * torch.special.erfc(x * -math.sqrt(0.5))
    assert torch.allclose(y, F.gelu(x, approximate="tanh" if tanh else "none"), equal_nan=True)
    return y


FUNCTIONS = [("neg", torch.neg, grid), ("abs", torch.abs, positive), ("exp", torch.exp, grid),
             ("log", torch.log, positive), ("sqrt", torch.sqrt, positive), ("rsqrt", torch.rsqrt, positive),
             ("tanh", torch.tanh, grid), ("sigmoid", torch.sigmoid, grid), ("relu", torch.relu, positive),
             ("silu", F.silu, grid)]
# Extreme inputs: denormal numbers, the largest numbers, infinities and NaN.
EXTREME = [INF, -INF, NAN, 0.0, -0.0, 2.0**-149, -(2.0**-149), 2.0**-126, 2.0**127, -(2.0**127), 87.0, 88.5, 89.0,
           -87.0, -88.0, -90.0, -104.0, 1e-3, -1e-3, 10.0, -10.0]
EXTREME = [torch.tensor(v, dtype=torch.float32).item() for v in EXTREME]


for op, fn, make in FUNCTIONS:
    # tanh's gradient is computed from its output y, as in PyTorch. Near y = 1, 1 - y^2 loses digits.
    slack = 16 if op == "tanh" else 1
    for shape in [(3, 5), (2, 3, 4), (), (1,), (37,), (2, 3, 4, 5)]:
        case(op, [make(*shape)], fn=fn, slack=slack)
    case(op, [make(0, 3)], fn=fn)
    # Where sigmoid(x) is denormal, silu multiplies its rounding error by x.
    case(op, [f64(EXTREME)], fn=fn, tags="extreme no_gradcheck no_grad", slack=4 if op == "silu" else 1)
    case(op, [f64([INF, -INF, 0.0, 40.0, -40.0])], fn=fn, tags="extreme no_gradcheck")
    if op in ("neg", "abs", "relu"):
        case(op, [ints(9)], fn=fn, dtypes=INTEGERS)
    elif op != "silu":
        case(op, [ints(9, low=1)], fn=fn, dtypes=INTEGERS)
        case(op, [bools(4)], fn=fn)
for op, fn in (("abs", torch.abs), ("relu", torch.relu)):
    case(op, [f64([-2.5, -0.25, 0.25, 3])], fn=fn)
    case(op, [f64([-1, 0, -0.0, 1])], fn=fn, tags="no_gradcheck")
case("neg", [torch.tensor([-2**31, 5], dtype=torch.int32)], fn=torch.neg, tags="extreme")
case("abs", [torch.tensor([-2**31, 5], dtype=torch.int32)], fn=torch.abs, tags="extreme")

for tanh in (False, True):
    for shape in [(3, 5), (2, 3, 4), (), (37,), (0, 3)]:
        case("gelu", [grid(*shape)], dict(tanh=tanh), gelu)
    case("gelu", [f64([INF, -INF, NAN, 0.0, -0.0, 40.0, -40.0, 2.0**-100])], dict(tanh=tanh), gelu,
         tags="extreme no_gradcheck no_grad")
    case("gelu", [f64([0.0, 6.0, -6.0, 40.0, -40.0, NAN])], dict(tanh=tanh), gelu, tags="extreme no_gradcheck")

for params in (dict(beta=1.0, threshold=20.0), dict(beta=2.0, threshold=20.0), dict(beta=0.5, threshold=1.01)):
    for shape in [(3, 5), (2, 3, 4), (), (37,), (0, 3)]:
        case("softplus", [grid(*shape)], params, F.softplus)
    case("softplus", [f64(EXTREME)], params, F.softplus, tags="extreme no_gradcheck no_grad")
    case("softplus", [f64([0.0, 30.0, -30.0, 90.0, -90.0, NAN])], params, F.softplus, tags="extreme no_gradcheck")

for limits in (dict(min=-1.03), dict(max=2.03), dict(min=-1.03, max=2.03), dict(min=-2, max=1)):
    tags = "no_gradcheck" if limits.get("min") == -2 else ""
    for shape in [(3, 5), (), (37,), (0,)]:
        case("clamp", [grid(*shape)], limits, torch.clamp, tags=tags)
    case("clamp", [f64([INF, -INF, NAN, 0, 2.0**127])], limits, torch.clamp, tags="extreme no_gradcheck")
    case("clamp", [ints(9)], limits, torch.clamp, dtypes=INTEGERS[:2])
case("clamp", [ints(9, low=0, dtype=torch.uint8)], dict(min=1, max=3), torch.clamp)
case("clamp", [grid(7)], dict(min=2.03, max=1.03), torch.clamp, tags="no_grad no_gradcheck")
case("clamp", [f64([1, 2, 3])], dict(min=1.0, max=3.0), torch.clamp, tags="no_gradcheck")


def hardsigmoid(x):
    """F.hardsigmoid has no second derivative, with which the cases record the scale of the gradient."""
    return F.relu6(x + 3) / 6


KINKS = [-3.0, 3.0, 0.0, -0.0, 6.0, 1.0, -1.0]
ACTIVATIONS = [("leaky_relu", F.leaky_relu, [dict(negative_slope=0.25), dict(negative_slope=-0.5)]),
               ("elu", F.elu, [dict(alpha=1.0), dict(alpha=0.5)]), ("elu/celu", F.celu, [dict(alpha=1.0), dict(alpha=2.0)]),
               ("elu/selu", F.selu, [{}]), ("mish", F.mish, [{}]), ("hardswish", F.hardswish, [{}]),
               ("hardsigmoid", hardsigmoid, [{}]), ("hardtanh", F.hardtanh, [dict(min_val=-1.5, max_val=2.0)]),
               ("hardtanh/relu6", F.relu6, [{}]), ("softsign", F.softsign, [{}]), ("logsigmoid", F.logsigmoid, [{}])]
for op, fn, options in ACTIVATIONS:
    for params in options:
        for shape in [(3, 5), (2, 3, 4), (1,), (37,)]:
            case(op, [grid(*shape) + 1 / 32], params, fn, slack=2)  # no input is at a kink
        case(op, [f64(0.75)], params, fn)
        case(op, [grid(0, 3)], params, fn)
        # Where exp(x) is denormal, mish multiplies its rounding error by x.
        case(op, [f64(EXTREME)], params, fn, tags="extreme no_gradcheck no_grad", slack=4 if op == "mish" else 2)
        case(op, [f64(KINKS)], params, fn, tags="no_gradcheck")
        case(op, [f64([30.0, -30.0, 90.0, -90.0, NAN])], params, fn, tags="extreme no_gradcheck", slack=2)
# In bf16, 2.984375 + 3 is rounded to 6. The gradient must not be taken at the rounded sum.
case("hardsigmoid", [f64([-2.984375, 2.984375])], fn=hardsigmoid)
case("hardtanh", [ints(6)], dict(min_val=-1, max_val=2), F.hardtanh, dtypes=INTEGERS[:2])
case("hardtanh", [ints(6, low=0, dtype=torch.uint8)], dict(min_val=1, max_val=2), F.hardtanh)
# Real bounds of integers lose their fraction.
case("hardtanh", [ints(6)], dict(min_val=-1.5, max_val=2.75), F.hardtanh, dtypes=INTEGERS[:2])
case("hardtanh", [ints(6, low=0, dtype=torch.uint8)], dict(min_val=-1.5, max_val=2.0), F.hardtanh)
for x, w in [((3, 5), (1,)), ((3, 5), (5,)), ((2, 3, 4), (3,)), ((7,), (1,)), ((0, 3), (3,))]:
    case("prelu", [grid(*x) + 1 / 32, positive(*w, seed=2) / 16], fn=F.prelu)
case("prelu", [f64([INF, -INF, NAN, 0.0]), f64([0.25])], fn=F.prelu, tags="extreme no_gradcheck no_grad")
for shape, dim in [((3, 6), -1), ((4, 5), 0), ((2, 4, 3), 1), ((0, 4), 1)]:
    case("glu", [grid(*shape)], dict(dim=dim), F.glu)
case("glu", [f64([INF, 1, NAN, 2, -INF, 3, 100, -100])], dict(dim=0), F.glu, tags="extreme no_gradcheck no_grad")


def in_place(name):
    def run(x, **params):
        y = x.clone()
        getattr(y, name)(**params)
        return y
    return run


for op in ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "relu"):
    make = positive if op in ("log", "sqrt", "rsqrt", "relu") else grid
    case(f"{op}/in_place", [make(3, 5)], fn=in_place(op + "_"), slack=16 if op == "tanh" else 1)
    case(f"{op}/in_place", [make(0)], fn=in_place(op + "_"))
case("clamp/in_place", [grid(3, 5)], dict(min=-1.03, max=2.03), in_place("clamp_"))
