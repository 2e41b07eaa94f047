import torch

from cases import bools, case, f64, grid, ints, positive

INF, NAN = float("inf"), float("nan")
FLOATS = [torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.uint8]


def above(*shape, seed=1, dtype=torch.float64):
    """Returns divisors, which are not near 0."""
    return grid(*shape, seed=seed, low=0.5, high=8.0, dtype=dtype)


# Operations of two tensors: name, PyTorch's function, and the generator of the second operand. `above` avoids
# operands near 0, where a quotient or an angle has no gradient.
for op, fn, second in [("add", torch.add, grid), ("sub", torch.sub, grid), ("mul", torch.mul, grid),
                       ("div", torch.div, above), ("maximum", torch.maximum, grid),
                       ("minimum", torch.minimum, grid), ("atan2", torch.atan2, above)]:
    for a, b in [((3, 5), (3, 5)), ((2, 3, 4), (4,)), ((3, 1), (1, 4)), ((2, 1, 3), (4, 1)), ((1,), (2, 3)),
                 ((2, 3), ()), ((), (2, 3)), ((), ()), ((41,), (41,)), ((2, 3, 4, 5), (3, 1, 1)),
                 ((2, 3, 4, 5), (2, 3, 4, 5))]:
        # At a tie the gradient is shared equally, and jumps.
        ties = op in ("maximum", "minimum") and b == (3, 1, 1)
        case(op, [grid(*a), second(*b, seed=2)], fn=fn, tags="no_gradgradcheck" if ties else "")
    case(op, [grid(0, 3), second(3, seed=2)], fn=fn)
    case(op, [grid(2, 0), second(2, 1, seed=2)], fn=fn)
    case(op, [grid(1, 3), second(0, 1, seed=2)], fn=fn)
    x = [INF, -INF, NAN, 0.0, -0.0, 1e-40, 3e38, -3e38, 1.0]
    pairs = [(a, b) for a in x for b in x]
    left, right = (torch.tensor(v, dtype=torch.float32) for v in zip(*pairs))
    case(op, [left, right], fn=fn, tags="extreme no_gradcheck no_grad")
    case(op, [f64([1, -1, 0, INF, NAN, 2, 2]), f64([INF, 0, 0, -INF, 1, NAN, 2])], fn=fn,
         tags="extreme no_gradcheck")
    # Type promotion of tensors with dimensions, then of 0-d tensors. A 0-d tensor only counts by its category.
    case(op, [grid(5, dtype=torch.float16), second(5, seed=2, dtype=torch.bfloat16)], fn=fn)
    case(op, [grid(5, dtype=torch.float16), second(5, seed=2, dtype=torch.float32)], fn=fn)
    case(op, [grid(5, dtype=torch.float16), second(dtype=torch.float32)], fn=fn)
    case(op, [second(dtype=torch.float32), second(5, dtype=torch.bfloat16)], fn=fn)
    case(op, [grid(dtype=torch.float32), second(seed=2, dtype=torch.bfloat16)], fn=fn)
    case(op, [ints(5), second(5, dtype=torch.float32)], fn=fn)
    case(op, [ints(5, low=1), second(dtype=torch.float16)], fn=fn)
    case(op, [grid(5, dtype=torch.float32), ints(low=1)], fn=fn)
    case(op, [ints(7, low=0, dtype=torch.uint8), ints(7, seed=3, low=1, dtype=torch.int32)], fn=fn)
    case(op, [ints(7, low=0, dtype=torch.uint8), ints(low=1)], fn=fn)
    case(op, [ints(7), ints(7, seed=3, low=1)], fn=fn, dtypes=INTEGERS)
    if op != "sub":
        case(op, [bools(6), bools(6, seed=2)], fn=fn, tags="extreme" if op == "div" else "")
        case(op, [bools(6), ints(6, low=1)], fn=fn)
big = torch.tensor([2**31 - 1, -2**31, 2**31 - 1], dtype=torch.int32)
for op in ("add", "sub", "mul"):
    case(op, [big, torch.tensor([1, -1, 2**31 - 1], dtype=torch.int32)], fn=getattr(torch, op), tags="extreme")
    case(op, [torch.tensor([200, 3], dtype=torch.uint8), torch.tensor([100, 5], dtype=torch.uint8)],
         fn=getattr(torch, op), tags="extreme")
tie = f64([1, 2, 2, -1])
case("maximum", [tie, f64([1, 3, 1, -1])], fn=torch.maximum, tags="no_gradcheck")
case("minimum", [tie, f64([1, 3, 1, -1])], fn=torch.minimum, tags="no_gradcheck")
# All quadrants, and the axes.
case("atan2", [f64([2, 1, -1, -2, 3, -3, 0, 0]), f64([1, -2, -3, 1, 0, 0, 4, -4])], fn=torch.atan2, tags="no_gradcheck")
case("atan2", [f64([2, 1, -1, -2, 3]), f64([1, -2, -3, 1, 0.5])], fn=torch.atan2)

# Operations of a tensor and a number.
for op, fn in [("add", torch.add), ("sub", torch.sub), ("mul", torch.mul), ("div", torch.div)]:
    for other in (2, -0.75, True, 3.0):
        if op == "sub" and other is True:
            continue  # PyTorch does not support this combination
        case(f"{op}/scalar", [grid(3, 5)], dict(other=other), fn)
        case(f"{op}/scalar", [ints(5)], dict(other=other), fn, dtypes=INTEGERS[:2])
        if op != "sub":
            case(f"{op}/scalar", [bools(5)], dict(other=other), fn)
    for dtype in FLOATS:
        case(f"{op}/scalar", [grid(37, dtype=dtype)], dict(other=1.25), fn)
    case(f"{op}/scalar", [grid(0, 2)], dict(other=2.0), fn)
    case(f"{op}/scalar", [f64([INF, -INF, NAN, 0, 2.0**127])], dict(other=-2.5), fn, tags="extreme no_gradcheck")
    case(f"{op}/scalar", [f64([INF, -INF, NAN, 0, 1])], dict(other=0), fn, tags="extreme no_gradcheck")
case("sub/reversed", [grid(3, 4)], dict(other=2.5), lambda x, other: other - x)
case("sub/reversed", [ints(4)], dict(other=7), lambda x, other: other - x, dtypes=INTEGERS)
case("div/reversed", [positive(3, 4)], dict(other=2.5), lambda x, other: other / x)
case("div/reversed", [ints(4, low=1)], dict(other=7), lambda x, other: other / x, dtypes=INTEGERS)
case("div/reversed", [f64([0, INF, -INF, NAN, 2.0**-100])], dict(other=1.0), lambda x, other: other / x,
     tags="extreme no_gradcheck")

# Powers.
for a, b in [((3, 5), (3, 5)), ((3, 1), (1, 4)), ((2, 3), ()), ((), (3,)), ((0, 3), (3,))]:
    case("pow", [positive(*a), grid(*b, seed=2, low=-2.0, high=2.0)], fn=torch.pow)
case("pow", [f64([-2, -2, 0, 0, 1, -1, 2]), f64([2, 3, 2, 3, 0, -1, -2])], fn=torch.pow, tags="no_gradcheck no_grad")
case("pow", [f64([0, 0, INF, -INF, NAN, 1, -2, 0, 2]), f64([0, -1, 2, 3, 0, NAN, 0.5, INF, -INF])], fn=torch.pow,
     tags="extreme no_gradcheck no_grad")
case("pow", [f64([0, 0, 0, 2]), f64([0, 1, 2, 0])], fn=torch.pow, tags="extreme no_gradcheck")
case("pow", [ints(8), ints(8, seed=2, low=0, high=5)], fn=torch.pow, dtypes=INTEGERS)
case("pow", [torch.tensor([2, -1, 1, -1]), torch.tensor([-1, -1, -2, -4])], fn=torch.pow)
case("pow", [ints(5, low=1), grid(5, dtype=torch.float32)], fn=torch.pow)
for exponent in (2, 3, 0, 1, -1, 0.5, -0.5, 2.5, 4):
    case("pow/scalar", [positive(3, 5)], dict(exponent=exponent), torch.pow)
for exponent in (2, 3, -2, 2.0):
    case("pow/scalar", [f64([-3, -1, 1.5, 4])], dict(exponent=exponent), torch.pow)
case("pow/scalar", [ints(5)], dict(exponent=3), torch.pow, dtypes=INTEGERS)
case("pow/scalar", [ints(5, low=0)], dict(exponent=0.5), torch.pow)
case("pow/scalar", [grid(0)], dict(exponent=2), torch.pow)
for exponent in (2, 0.5, -1, 0):
    case("pow/scalar", [f64([INF, -INF, NAN, 0, -1])], dict(exponent=exponent), torch.pow,
         tags="extreme no_gradcheck no_grad")
case("pow/scalar", [f64([0, INF, 1])], dict(exponent=2), torch.pow, tags="extreme no_gradcheck")


# In-place operations run the same cases. The target is cloned, because a leaf cannot be changed in place.
def in_place(name):
    def run(a, b):
        y = a.clone()
        getattr(y, name)(b)
        return y
    return run


for op, second in [("add", grid), ("sub", grid), ("mul", grid), ("div", above), ("atan2", above)]:
    for a, b in [((3, 5), (3, 5)), ((2, 3, 4), (4,)), ((2, 3), ()), ((0, 3), (3,)), ((), ())]:
        case(f"{op}/in_place", [grid(*a), second(*b, seed=2)], fn=in_place(op + "_"))
    case(f"{op}/in_place", [f64([INF, NAN, 1, 0]), f64([INF, 1, NAN, 0])], fn=in_place(op + "_"),
         tags="extreme no_gradcheck")
    case(f"{op}/in_place", [grid(5, dtype=torch.bfloat16), second(5, seed=2, dtype=torch.float32)],
         fn=in_place(op + "_"))
    case(f"{op}/in_place", [grid(5, dtype=torch.float32), ints(5, low=1)], fn=in_place(op + "_"))


for a, b in [((3, 5), (3, 5)), ((2, 3), ()), ((0, 3), (3,))]:
    case("pow/in_place", [positive(*a), grid(*b, seed=2)], fn=in_place("pow_"))


def in_place_scalar(name):
    def run(x, other):
        y = x.clone()
        getattr(y, name)(other)
        return y
    return run


for op in ("add", "sub", "mul", "div"):
    case(f"{op}/in_place_scalar", [grid(3, 5)], dict(other=-1.5), in_place_scalar(op + "_"))
    if op != "div":
        case(f"{op}/in_place_scalar", [ints(5)], dict(other=3), in_place_scalar(op + "_"), dtypes=INTEGERS)
for exponent in (2, 0.5):
    case("pow/in_place_scalar", [positive(3, 5)], dict(other=exponent), in_place_scalar("pow_"))
case("pow/in_place_scalar", [ints(5)], dict(other=3), in_place_scalar("pow_"), dtypes=INTEGERS)

# Remainders and rounded quotients. The divisors are odd multiples of 1/32, so that no quotient of the generic cases is an
# integer, where the functions jump.
def divisors(*shape, seed=2):
    return above(*shape, seed=seed) + 1 / 32


def floor_divide(a, b):
    return torch.div(a, b, rounding_mode="floor")  # torch.floor_divide has no gradient


for op, fn in (("fmod", torch.fmod), ("remainder", torch.remainder), ("floor_divide", floor_divide)):
    for a, b in [((3, 5), (3, 5)), ((2, 3, 4), (4,)), ((3, 1), (1, 4)), ((2, 3), ()), ((41,), (41,))]:
        # A gradient is a rounded quotient times dy.
        case(op, [grid(*a), divisors(*b)], fn=fn, slack=2)
        case(op, [grid(*a), -divisors(*b)], fn=fn, slack=2)
    case(op, [grid(0, 3), divisors(3)], fn=fn)
    # PyTorch's vectorised fmod gives NaN if the quotient overflows, so the numbers are not more extreme.
    x = [INF, -INF, NAN, 0.0, -0.0, 2.0**-20, 2.0**100, -(2.0**100), 1.0, -7.5, 2.5]
    left, right = (torch.tensor(v, dtype=torch.float32) for v in zip(*[(a, b) for a in x for b in x]))
    case(op, [left, right], fn=fn, tags="extreme no_gradcheck no_grad")
    for dtype, low in ((torch.int64, -20), (torch.int32, -20), (torch.uint8, 0)):
        a, b = zip(*[(a, b) for a in range(low, 21, 3) for b in (-7, -3, -1, 1, 2, 5) if b >= low])
        case(op, [torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype)], fn=fn)
    case(op, [ints(5), divisors(5).to(torch.float32)], fn=fn, tags="no_gradcheck")
    case(op, [ints(7, low=0, dtype=torch.uint8), ints(7, seed=3, low=1, dtype=torch.int32)], fn=fn)
    for other in (2.03125, -3):
        case(f"{op}/scalar", [grid(3, 5) + 1 / 32], dict(other=other), lambda x, other, fn=fn: fn(x, other))
        case(f"{op}/scalar", [ints(5)], dict(other=other), lambda x, other, fn=fn: fn(x, other), dtypes=INTEGERS[:2])
    case(f"{op}/in_place", [grid(3, 5), divisors(5)], fn=fn, slack=2)
    case(f"{op}/in_place", [ints(5), ints(5, seed=2, low=1)], fn=fn, dtypes=INTEGERS[:2])
case("floor_divide/trunc", [grid(3, 5), divisors(5)], fn=lambda a, b: torch.div(a, b, rounding_mode="trunc"))
for dtype in INTEGERS[:2]:
    case("floor_divide/trunc", [torch.arange(-20, 21, dtype=dtype), torch.tensor(7, dtype=dtype)],
         fn=lambda a, b: torch.div(a, b, rounding_mode="trunc"))
case("remainder/reversed", [divisors(3, 4)], dict(other=7.0),
     lambda x, other: torch.remainder(torch.tensor(other, dtype=x.dtype), x))
for a, b in [((3, 5), (3, 5)), ((2, 3, 4), (4,)), ((2, 3), ())]:
    case("xlogy", [grid(*a), above(*b, seed=2)], fn=torch.xlogy)
case("xlogy", [grid(0, 3), above(3, seed=2)], fn=torch.xlogy)
x = [INF, -INF, NAN, 0.0, -0.0, 1e-40, 3e38, 1.0, -1.0]
left, right = (torch.tensor(v, dtype=torch.float32) for v in zip(*[(a, b) for a in x for b in x]))
case("xlogy", [left, right], fn=torch.xlogy, tags="extreme no_gradcheck no_grad")
case("xlogy", [f64([0, 0, 2]), f64([0, 2, 0.5])], fn=torch.xlogy, tags="extreme no_gradcheck")
case("xlogy", [ints(5, low=0), ints(5, seed=2, low=1)], fn=torch.xlogy, dtypes=INTEGERS)
case("xlogy", [bools(5), torch.tensor([True] * 5)], fn=torch.xlogy)

for op, fn in (("hypot", torch.hypot), ("logaddexp", torch.logaddexp)):
    for a, b in [((3, 5), (3, 5)), ((2, 3, 4), (4,)), ((2, 3), ()), ((), ()), ((41,), (41,)), ((0, 3), (3,))]:
        case(op, [grid(*a), above(*b, seed=2)], fn=fn)
    case(op, [grid(5, dtype=torch.float16), above(5, seed=2, dtype=torch.float32)], fn=fn)
    case(op, [left, right], fn=fn, tags="extreme no_gradcheck no_grad")
case("hypot", [f64([3e38, 1e-40, 0, 0]), f64([3e37, 1e-40, 0, 2])], fn=torch.hypot, tags="extreme no_gradcheck no_grad")
case("hypot/in_place", [grid(3, 5), above(5, seed=2)], fn=torch.hypot)
case("xlogy/in_place", [grid(3, 5), above(5, seed=2)], fn=in_place("xlogy_"))
case("logaddexp", [f64([1000, -1000, 2, 2]), f64([1000, -999, 90, -90])], fn=torch.logaddexp, tags="extreme")
