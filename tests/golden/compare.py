import torch

from cases import bools, case, f64, grid, ints

INF, NAN = float("inf"), float("nan")
ALL = [torch.int64, torch.int32, torch.uint8]

for op in ("eq", "ne", "lt", "le", "gt", "ge"):
    fn = getattr(torch, op)
    few = torch.round(grid(3, 5) / 2)
    case(op, [few, torch.round(grid(3, 5, seed=2) / 2)], fn=fn)
    case(op, [few, torch.round(grid(5, seed=2) / 2)], fn=fn)
    case(op, [few, f64(1.0)], fn=fn)
    case(op, [grid(3, 1), grid(1, 4, seed=2)], fn=fn)
    case(op, [grid(37), grid(37, seed=2)], fn=fn)
    case(op, [grid(0, 3), grid(3)], fn=fn)
    values = [INF, -INF, NAN, 0.0, -0.0, 1.0]
    left, right = zip(*[(a, b) for a in values for b in values])
    case(op, [f64(left), f64(right)], fn=fn, tags="extreme")
    case(op, [ints(9), ints(9, seed=4)], fn=fn, dtypes=ALL)
    case(op, [bools(6), bools(6, seed=3)], fn=fn)
    case(op, [ints(9), grid(9, dtype=torch.float32)], fn=fn)
    case(op, [ints(9, dtype=torch.int32), ints(9, seed=2, low=0, dtype=torch.uint8)], fn=fn)
    for other in (1, -1, 0.5, True, 300):
        case(f"{op}/scalar", [few], dict(other=other), fn)
        # PyTorch wraps a number that the integer tensor cannot hold, and so finds 1 < -1 in uint8.
        fits = ALL if other not in (-1, 300) else ALL[:2]
        case(f"{op}/scalar", [ints(9)], dict(other=other), fn, dtypes=fits)
        case(f"{op}/scalar", [bools(4)], dict(other=other), fn)
    case(f"{op}/scalar", [f64([INF, -INF, NAN, 0])], dict(other=0.0), fn, tags="extreme")

case("isnan", [f64([NAN, INF, 0, -NAN])], fn=torch.isnan, tags="extreme")
case("isnan", [grid(3, 5)], fn=torch.isnan)
case("isnan", [grid(0)], fn=torch.isnan)
case("isnan", [ints(5)], fn=torch.isnan, dtypes=ALL)
case("isnan", [bools(5)], fn=torch.isnan)

for c, a, b in [((3, 5), (3, 5), (3, 5)), ((5,), (3, 5), (3, 1)), ((3, 1), (), (4,)), ((), (3,), (3,)),
                ((2, 3, 4), (4,), (3, 1)), ((0, 3), (3,), (1, 3)), ((37,), (37,), (37,))]:
    case("where", [bools(*c), grid(*a), grid(*b, seed=2)], fn=torch.where)
case("where", [bools(4), f64([INF, NAN, INF, NAN]), f64([1, 2, -INF, NAN])], fn=torch.where,
     tags="extreme no_gradcheck")
for dtype in ALL:
    case("where", [bools(6), ints(6, low=0, dtype=dtype), ints(6, seed=2, low=0, dtype=dtype)], fn=torch.where)
case("where", [bools(6), ints(6), grid(6, dtype=torch.float32)], fn=torch.where)
case("where", [bools(6), grid(6, dtype=torch.float16), grid(dtype=torch.float32)], fn=torch.where)
case("where", [bools(6), bools(6, seed=2), bools(6, seed=3)], fn=torch.where)

for other in (2.5, 3, True):
    for x in (grid(3, 5), ints(3, 5), grid(3, 5, dtype=torch.float16), bools(3, 5, seed=3), grid()):
        case("where/number", [bools(5), x], dict(other=other), lambda c, x, other: torch.where(c, x, other))
        case("where/number_first", [bools(5), x], dict(other=other), lambda c, x, other: torch.where(c, other, x))
case("where/numbers", [bools(5)], dict(a=1, b=2.5), lambda c, a, b: torch.where(c, a, b))

near = f64([1, 100, -3])
for b in ([1, 100, -3], [1, 100.0005, -3], [1, 100.5, -3], [1, NAN, -3], [INF, 100, -3]):
    case("allclose", [near, f64(b).float().double()], fn=torch.allclose)
case("allclose", [near, f64([1.25, 100.5, -3])], dict(rtol=0.0, atol=0.5), torch.allclose)
case("allclose", [near, f64([1.25, 100.5, -3])], dict(rtol=0.1, atol=0.0), torch.allclose)
for equal_nan in (False, True):
    case("allclose", [f64([NAN, INF, -INF]), f64([NAN, INF, -INF])], dict(equal_nan=equal_nan), torch.allclose,
         tags="extreme")
case("allclose", [f64([INF, 1]), f64([-INF, 1])], fn=torch.allclose, tags="extreme")
case("allclose", [f64([1, 1]), f64([INF, 1])], fn=torch.allclose, tags="extreme")
case("allclose", [grid(0, 3), grid(3)], fn=torch.allclose)
case("allclose", [ints(5), ints(5)], fn=torch.allclose, dtypes=ALL)
for seed in (1, 2):
    case("allclose", [bools(5), bools(5, seed=seed)], fn=torch.equal)  # torch.allclose takes no bool
case("equal", [grid(3, 5), grid(3, 5)], fn=torch.equal)
case("equal", [grid(3, 5), grid(3, 5, seed=2)], fn=torch.equal)
case("equal", [grid(3, 5), grid(5)], fn=torch.equal)
case("equal", [f64([NAN]), f64([NAN])], fn=torch.equal, tags="extreme")
case("equal", [f64([INF, -0.0]), f64([INF, 0.0])], fn=torch.equal, tags="extreme")
case("equal", [grid(0, 3), grid(0, 3)], fn=torch.equal)
case("equal", [ints(5), ints(5)], fn=torch.equal, dtypes=ALL)
case("equal", [bools(5), bools(5)], fn=torch.equal)

near = f64([[1, 100, -3], [0, 2, 4]])
case("isclose", [near, f64([1, 100.0005, -3.5])], fn=torch.isclose)
case("isclose", [near, f64([[1], [2]])], dict(rtol=0.0, atol=2.0), torch.isclose)
case("isclose", [near, near * 1.0625], dict(rtol=0.0625, atol=0.0), torch.isclose)
for equal_nan in (False, True):
    case("isclose", [f64([NAN, INF, -INF, 1, INF]), f64([NAN, INF, INF, INF, 1])], dict(equal_nan=equal_nan), torch.isclose,
         tags="extreme")
case("isclose", [grid(0, 3), grid(3)], fn=torch.isclose)
case("isclose", [ints(5), ints(5, seed=2)], fn=torch.isclose, dtypes=ALL)
for seed in (1, 2):
    case("isclose", [bools(5), bools(5, seed=seed)], fn=torch.eq)  # torch.isclose takes no bool

# PyTorch wraps a number that uint8 cannot hold.
SKIPS = {f"{op}/scalar": lambda x, other: x.dtype == torch.uint8 and not 0 <= other <= 255
         for op in ("eq", "ne", "lt", "le", "gt", "ge")}
