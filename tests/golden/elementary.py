import torch

from cases import bools, case, f64, grid, ints, positive

INF, NAN = float("inf"), float("nan")
INTEGERS = [torch.int64, torch.int32, torch.uint8]


def inside(*shape):
    """Returns numbers in (-1, 1) that are not near the ends, where several gradients are infinite."""
    return grid(*shape, low=-0.875, high=0.875)


def above_one(*shape):
    return grid(*shape, low=1.25, high=8.0)


# name, generator of inputs, range of the integers in the domain
FUNCTIONS = [("sin", grid, (-5, 6)), ("cos", grid, (-5, 6)), ("tan", inside, (0, 2)), ("asin", inside, (0, 2)),
             ("acos", inside, (0, 2)), ("atan", grid, (-5, 6)), ("sinh", grid, (-5, 6)), ("cosh", grid, (-5, 6)),
             ("asinh", grid, (-5, 6)), ("acosh", above_one, (1, 6)), ("atanh", inside, (0, 2)), ("erf", grid, (-5, 6)),
             ("erfinv", inside, (0, 2)), ("expm1", grid, (-5, 6)), ("exp2", grid, (-5, 6)), ("log1p", positive, (0, 6)),
             ("log2", positive, (1, 6)), ("log10", positive, (1, 6)), ("erfc", grid, (-5, 6)), ("lgamma", positive, (1, 6))]
EXTREME = [INF, -INF, NAN, 0.0, -0.0, 2.0**-149, -(2.0**-149), 2.0**-126, 88.5, 89.0, 89.5, -87.0, -104.0, 1e-3, -1e-3,
           10.0, -10.0, 1.0, -1.0, 0.99999994, 1.0000001, 127.5, 128.5, -149.0, 2.0**14, -(2.0**14)]
ANGLES = [2.0**20, -(2.0**20) + 0.5, 2.0**27, 1e8, 1e15, -1e30, 3e38, 1e5, 22.0, 355.0, 11.0]
for op, make, (low, high) in FUNCTIONS:
    fn = getattr(torch, op)
    for shape in [(3, 5), (2, 3, 4), (), (1,), (37,), (2, 3, 4, 5)]:
        case(op, [make(*shape)], fn=fn, slack=2)
    case(op, [make(0, 3)], fn=fn)
    # The integers 0 and 1 are at the end of several domains.
    case(op, [ints(9, low=max(low, 0), high=high)], fn=fn, dtypes=INTEGERS, tags="extreme")
    case(op, [bools(4)], fn=fn, tags="extreme")
    values = EXTREME + ANGLES if op in ("sin", "cos", "tan") else EXTREME
    # An input beside a pole or a zero of the function amplifies the rounding error of any algorithm.
    case(op, [torch.tensor(values, dtype=torch.float32).double()], fn=fn, tags="extreme no_gradcheck no_grad", slack=4)
    # PyTorch has no gradient of some of these functions in place.
    case(f"{op}/in_place", [make(3, 5)], fn=fn, slack=2)
    case(f"{op}/in_place", [make(0)], fn=fn)
case("sin", [f64([INF, NAN, 0.0, 30.0, -400.0])], fn=torch.sin, tags="extreme no_gradcheck")
case("cos", [f64([INF, NAN, 0.0, 30.0, -400.0])], fn=torch.cos, tags="extreme no_gradcheck")
case("erf", [f64([INF, -INF, 0.0, 3.5, -9.0])], fn=torch.erf, tags="extreme no_gradcheck")
case("log1p", [f64([-0.5, -0.875, 2.0**-30])], fn=torch.log1p)
case("atan", [f64([INF, -INF, 0.0, 2.0**40])], fn=torch.atan, tags="extreme no_gradcheck")
case("asin", [f64([1.0, -1.0, 0.0])], fn=torch.asin, tags="extreme no_gradcheck")
case("acos", [f64([1.0, -1.0, 0.0])], fn=torch.acos, tags="extreme no_gradcheck")

# The gradients are 0, and finite differences are only at steps different.
HALVES = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, -0.25, 0.25, 3.0, -3.0]
for op in ("floor", "ceil", "trunc", "round", "sign"):
    fn = getattr(torch, op)
    for shape in [(3, 5), (2, 3, 4), (1,), (37,)]:
        case(op, [grid(*shape) + 1 / 32], fn=fn)
    case(op, [f64(1.25)], fn=fn)
    case(op, [grid(0, 3)], fn=fn)
    case(op, [f64(HALVES)], fn=fn, tags="no_gradcheck")
    case(op, [f64([INF, -INF, NAN, 0.0, -0.0, 2.0**23 - 0.5, 2.0**30, -(2.0**-149)])], fn=fn,
         tags="extreme no_gradcheck")
    case(op, [ints(9)], fn=fn, dtypes=INTEGERS[:2])
    case(op, [ints(9, low=0)], fn=fn, dtypes=INTEGERS[2:])
    case(f"{op}/in_place", [grid(3, 5) + 1 / 32], fn=lambda x, name=op + "_": getattr(x.clone(), name)())
    case(f"{op}/in_place", [ints(5)], fn=lambda x, name=op + "_": getattr(x.clone(), name)(), dtypes=INTEGERS[:1])
case("sign", [bools(5)], fn=torch.sign)
for decimals in (2, -1):
    case("round/decimals", [f64([0.265625, -0.3671875, 0.0])], dict(decimals=decimals), torch.round)
    case("round/decimals", [f64([1.234, -5.678, 12.5, 99.0, INF, NAN])], dict(decimals=decimals), torch.round,
         tags="extreme no_gradcheck")

case("erfc", [f64([INF, -INF, 0.0, 3.5, -9.0])], fn=torch.erfc, tags="extreme no_gradcheck")
NEGATIVE = [-0.5, -0.125, -1.25, -2.75, -3.4375, -20.5]
case("lgamma", [f64(NEGATIVE)], fn=torch.lgamma, slack=2)
# PyTorch's gradient of digamma has an error of 3e-9. Without it, the scale lacks what cancels near the zero at 1.46.
for x in (positive(3, 5), positive(2, 3, 4), f64(2.5), positive(37), f64(NEGATIVE), positive(0, 3)):
    case("digamma", [x], fn=torch.digamma, tags="no_grad", slack=32)
case("digamma", [ints(9, low=1)], fn=torch.digamma, dtypes=INTEGERS)
case("digamma", [torch.tensor([True, True])], fn=torch.digamma)
case("digamma", [f64([INF, -INF, NAN, 0.0, -0.0, -1.0, -7.0, 1e-30, 1e30])], fn=torch.digamma,
     tags="extreme no_gradcheck no_grad", slack=2)
case("digamma/in_place", [positive(3, 5)], fn=torch.digamma, tags="no_grad", slack=32)


def probabilities(*shape):
    return grid(*shape, low=0.0625, high=0.9375)


for shape in [(3, 5), (2, 3, 4), (), (37,), (0, 3)]:
    case("logit", [probabilities(*shape)], fn=torch.logit)
case("logit", [f64([0.125, 0.25, 0.5, 0.75, 0.96875])], dict(eps=0.1875), torch.logit)
case("logit", [f64([0, 1, 0.5, NAN, -1, 2, INF])], fn=torch.logit, tags="extreme no_gradcheck")
case("logit", [f64([0.25, -0.5, 1.5, 0.75, NAN, 3])], fn=torch.logit, tags="extreme no_gradcheck")  # NaN gradients
case("logit", [f64([0, 1, 0.5, -1, 2, INF, 0.25, 0.75])], dict(eps=0.25), torch.logit, tags="extreme no_gradcheck")
case("logit", [ints(5, low=0, high=2)], fn=torch.logit, dtypes=INTEGERS, tags="extreme")
case("logit", [bools(4)], fn=torch.logit, tags="extreme")
case("logit/in_place", [probabilities(3, 5)], fn=torch.logit)
