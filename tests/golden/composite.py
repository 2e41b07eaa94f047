import torch

from cases import bools, case, f64, grid, ints, positive

INF, NAN = float("inf"), float("nan")
INTEGERS = [torch.int64, torch.int32, torch.uint8]
SPECIAL = [INF, -INF, NAN, 0.0, -0.0, 1.0, -2.5, 2.0**127, 2.0**-149]


def in_place(name):
    def run(x, *others, **params):
        return getattr(x.clone(), name)(*others, **params)
    return run


for op, make in [("square", grid), ("reciprocal", positive), ("frac", lambda *s: grid(*s) + 1 / 32)]:
    fn = getattr(torch, op)
    for shape in [(3, 5), (2, 3, 4), (1,), (37,)]:
        case(op, [make(*shape)], fn=fn)
    case(op, [f64(1.25)], fn=fn)
    case(op, [make(0, 3)], fn=fn)
    case(op, [f64(SPECIAL)], fn=fn, tags="extreme no_gradcheck no_grad")
    case(f"{op}/in_place", [make(3, 5)], fn=in_place(op + "_"))
    if op != "frac":
        case(op, [ints(6, low=1)], fn=fn, dtypes=INTEGERS)
        case(op, [torch.tensor([True, True])], fn=fn)
case("frac", [f64([-2.5, 2.0, -0.25, 0.0])], fn=torch.frac, tags="no_gradcheck")

for op in ("isfinite", "isinf"):
    fn = getattr(torch, op)
    case(op, [f64(SPECIAL)], fn=fn, tags="extreme")
    case(op, [grid(3, 5)], fn=fn)
    case(op, [grid(0, 3)], fn=fn)
    case(op, [ints(5)], fn=fn, dtypes=INTEGERS)
    case(op, [bools(5)], fn=fn)
for params in (dict(), dict(nan=1.5), dict(nan=2.0, posinf=7.0, neginf=-8.0)):
    # The default limits differ between dtypes, so each dtype has a case.
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        case("nan_to_num", [torch.tensor([INF, -INF, NAN, 0.0, -0.0, 1.0, -2.5], dtype=dtype)], params, torch.nan_to_num,
             tags="extreme no_gradcheck")
    case("nan_to_num", [grid(3, 5)], params, torch.nan_to_num)
    case("nan_to_num/in_place", [grid(7)], params, in_place("nan_to_num_"))
case("nan_to_num", [grid(0, 3)], fn=torch.nan_to_num)
case("nan_to_num", [ints(5)], fn=torch.nan_to_num, dtypes=INTEGERS)
case("nan_to_num", [bools(5)], fn=torch.nan_to_num)

for weight in (0.25, 0.5, 0.75, 1.0, -0.5, 2.0):
    case("lerp", [grid(3, 5), grid(3, 5, seed=2)], dict(weight=weight), torch.lerp, slack=2)  # several roundings
case("lerp", [grid(2, 3, 4), grid(3, 1, seed=2)], dict(weight=0.25), torch.lerp, slack=2)
case("lerp", [grid(0, 3), grid(3, seed=2)], dict(weight=0.25), torch.lerp)
case("lerp", [f64([INF, 1, NAN, 0]), f64([1, INF, 2, -0.0])], dict(weight=0.25), torch.lerp, tags="extreme no_gradcheck no_grad")
for shapes in [((3, 5), (3, 5), (3, 5)), ((2, 3, 4), (4,), (3, 1)), ((3,), (3,), ())]:
    a, b, w = (grid(*s, seed=i + 1) for i, s in enumerate(shapes))
    case("lerp/tensor", [a, b, w], fn=torch.lerp, slack=2)
case("lerp/in_place", [grid(3, 5), grid(5, seed=2)], dict(weight=0.25), in_place("lerp_"), slack=2)

for op, second in (("addcmul", grid), ("addcdiv", positive)):
    fn = getattr(torch, op)
    for value in (1.0, -0.5, 2):
        case(op, [grid(3, 5), grid(3, 5, seed=2), second(3, 5, seed=3)], dict(value=value), fn)
    case(op, [grid(2, 3, 4), grid(4, seed=2), second(3, 1, seed=3)], dict(value=0.25), fn)
    case(op, [grid(0, 3), grid(3, seed=2), second(1, seed=3)], dict(value=0.25), fn)
    case(op, [f64([1, INF, NAN, 0]), f64([INF, 1, 1, 0]), f64([2, 0, 1, 1])], dict(value=0.5), fn,
         tags="extreme no_gradcheck no_grad")
    case(f"{op}/in_place", [grid(3, 5), grid(3, 5, seed=2), second(5, seed=3)], dict(value=0.5), in_place(op + "_"))
case("addcmul", [ints(5), ints(5, seed=2), ints(5, seed=3)], dict(value=3), torch.addcmul, dtypes=INTEGERS[:2])
case("addcmul", [ints(5, low=0), ints(5, low=0, seed=2), ints(5, low=0, seed=3)], dict(value=3), torch.addcmul, dtypes=INTEGERS[2:])

for x, m in [((3, 5), (3, 5)), ((2, 3, 4), (4,)), ((3,), (2, 3)), ((37,), (37,)), ((), (3,)), ((0, 3), (3,))]:
    case("masked_fill", [grid(*x), bools(*m)], dict(value=-1.5), torch.masked_fill)
case("masked_fill", [f64([INF, NAN, 1, 2]), bools(4)], dict(value=-INF), torch.masked_fill, tags="extreme no_gradcheck")
for dtype in INTEGERS[:2]:
    case("masked_fill", [ints(6, dtype=dtype), bools(6)], dict(value=2.75), torch.masked_fill)
    case("masked_fill/in_place", [ints(6, dtype=dtype), bools(6)], dict(value=3), in_place("masked_fill_"))
case("masked_fill", [ints(6, low=0, dtype=torch.uint8), bools(6)], dict(value=-1), torch.masked_fill)
case("masked_fill", [bools(6), bools(6, seed=2)], dict(value=True), torch.masked_fill)
case("masked_fill/tensor", [grid(2, 3), bools(3), f64(2.5)], fn=lambda x, m, v: x.masked_fill(m, v))
for x, m in [((3, 5), (3, 5)), ((2, 3, 4), (4,)), ((0, 3), (3,))]:
    case("masked_fill/in_place", [grid(*x), bools(*m)], dict(value=-1.5), in_place("masked_fill_"))

for op in ("logical_and", "logical_or", "logical_xor"):
    fn = getattr(torch, op)
    zeros = grid(3, 5) * (grid(3, 5, seed=3) > 0)
    case(op, [zeros, zeros.flip(0)], fn=fn)
    case(op, [zeros, bools(5)], fn=fn)
    case(op, [grid(0, 3), grid(3)], fn=fn)
    case(op, [f64(SPECIAL), f64([0.0] * 9)], fn=fn, tags="extreme")
    case(op, [f64(SPECIAL), f64([1.0] * 9)], fn=fn, tags="extreme")
    case(op, [ints(9, low=0, high=2), ints(9, seed=2, low=0, high=2)], fn=fn, dtypes=INTEGERS)
    case(op, [bools(6), bools(6, seed=2)], fn=fn)
    case(f"{op}/in_place", [zeros, bools(5)], fn=in_place(op + "_"), constant=[0])
    case(f"{op}/in_place", [ints(5, low=0, high=2), bools(5)], fn=in_place(op + "_"), dtypes=INTEGERS)
case("logical_not", [f64(SPECIAL)], fn=torch.logical_not, tags="extreme")
case("logical_not", [grid(3, 5)], fn=torch.logical_not)
case("logical_not", [grid(0, 3)], fn=torch.logical_not)
case("logical_not", [ints(9, low=0, high=2)], fn=torch.logical_not, dtypes=INTEGERS)
case("logical_not", [bools(6)], fn=torch.logical_not)

# The recorded file holds numbers as f64.
LIMITS = {torch.int64: [0, 1, -1, 2**40 - 1, -(2**40), 5], torch.int32: [0, 1, -1, 2**31 - 1, -(2**31), 5],
          torch.uint8: [0, 1, 255, 128, 127, 5]}
for op in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    fn = getattr(torch, op)
    case(op, [ints(3, 5), ints(5, seed=2)], fn=fn, dtypes=INTEGERS[:2])
    case(op, [ints(37, low=0, high=250, dtype=torch.uint8), ints(37, seed=2, dtype=torch.int32)], fn=fn)
    case(op, [ints(0, 3), ints(3)], fn=fn)
    case(op, [bools(6), bools(6, seed=2)], fn=fn)
    case(op, [bools(6), ints(6)], fn=fn)
    for dtype, limits in LIMITS.items():
        a, b = zip(*[(a, b) for a in limits for b in limits])
        case(op, [torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype)], fn=fn, tags="extreme")
    case(f"{op}/scalar", [ints(3, 5)], dict(other=6), fn, dtypes=INTEGERS[:2])
    case(f"{op}/scalar", [bools(5)], dict(other=True), fn)
    case(f"{op}/in_place", [ints(3, 5), ints(5, seed=2)], fn=in_place(op + "_"), dtypes=INTEGERS[:2])
for op in ("bitwise_left_shift", "bitwise_right_shift"):
    fn = getattr(torch, op)
    case(op, [ints(3, 5), ints(5, seed=2, low=0)], fn=fn, dtypes=INTEGERS[:2])
    case(op, [ints(0, 3), ints(3)], fn=fn)
    for dtype, limits in LIMITS.items():
        shifts = [0, 1, 7, 8, 31, 32, 63, 64] + ([] if dtype == torch.uint8 else [-1, limits[4]])
        a, b = zip(*[(a, b) for a in limits for b in shifts])
        case(op, [torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype)], fn=fn, tags="extreme")
    case(f"{op}/scalar", [ints(3, 5)], dict(other=2), fn, dtypes=INTEGERS[:2])
    case(f"{op}/in_place", [ints(3, 5), ints(5, seed=2, low=0)], fn=in_place(op + "_"), dtypes=INTEGERS[:2])
case("bitwise_not", [ints(3, 5)], fn=torch.bitwise_not, dtypes=INTEGERS)
case("bitwise_not", [bools(5)], fn=torch.bitwise_not)
case("bitwise_not", [ints(0, 3)], fn=torch.bitwise_not)
for dtype, limits in LIMITS.items():
    case("bitwise_not", [torch.tensor(limits, dtype=dtype)], fn=torch.bitwise_not, tags="extreme")
case("bitwise_not/in_place", [ints(5)], fn=in_place("bitwise_not_"), dtypes=INTEGERS)

# Tapestry refuses a real factor for integers, which PyTorch cuts off to an integer.
SKIPS = {"addcmul": lambda x, a, b, value=1: isinstance(value, float) and not x.is_floating_point()}
