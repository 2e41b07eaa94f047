import torch

from cases import bools, case, f64, grid, ints

INF, NAN = float("inf"), float("nan")
INTEGERS = [torch.int64, torch.int32, torch.uint8]
SHAPES = [((5,), 0), ((3, 5), 1), ((3, 5), 0), ((2, 3, 4), -2), ((4, 1), 1), ((71,), 0), ((2, 67), -1), ((67, 2), 0), ((3, 0), 1),
          ((0, 3), 1)]

for op in ("cumsum", "cumprod", "cummax", "cummin"):
    fn = lambda x, dim, fn=getattr(torch, op): fn(x, dim)
    low, high = (0.5, 1.5) if op == "cumprod" else (-4.0, 4.0)
    for shape, dim in SHAPES:
        case(op, [grid(*shape, low=low, high=high)], dict(dim=dim), fn, tags="no_gradcheck" if 67 in shape or 71 in shape else "")
    case(op, [f64(2.5)], dict(dim=0), fn)
    case(op, [ints(4, 5)], dict(dim=0), fn, dtypes=INTEGERS)
    case(op, [bools(4, 5)], dict(dim=1), fn)
    case(op, [f64([[1, INF, 2, -INF, 3], [1, NAN, 2, 5, NAN], [INF, INF, 1, 1, INF], [2, 2, 1, 2, 2]])], dict(dim=1), fn,
         tags="extreme no_gradcheck" + (" no_grad" if op == "cumprod" else ""))
case("cumsum", [torch.tensor([2**62, 2**62, 2**62])], dict(dim=0), lambda x, dim: torch.cumsum(x, dim), tags="extreme")
for op in ("cummax", "cummin"):
    fn = lambda x, dim, fn=getattr(torch, op): fn(x, dim)
    case(op, [f64([[2, 7, 2, 7, 8], [5, 5, 5, 5, 5], [9, 5, 3, 2, 1]])], dict(dim=1), fn, tags="no_gradcheck")  # ties
for zeros in ([[0, 2, 3, 4]], [[2, 0, 3, 4]], [[2, 3, 4, 0]], [[2, 0, 3, 0], [0, 0, 1, 2]], [[0, 0, 0, 0]]):
    case("cumprod", [f64(zeros)], dict(dim=1), lambda x, dim: torch.cumprod(x, dim))

logcumsumexp = lambda x, dim: torch.logcumsumexp(x, dim)
for shape, dim in SHAPES:
    case("logcumsumexp", [grid(*shape)], dict(dim=dim), logcumsumexp, tags="no_gradcheck" if 67 in shape or 71 in shape else "")
case("logcumsumexp", [f64(2.5)], dict(dim=0), logcumsumexp)
case("logcumsumexp", [f64([[1000, 2, -1000, 1001, 3], [-1000, 0, 1000, 0, 1000]])], dict(dim=1), logcumsumexp, tags="extreme")
case("logcumsumexp", [f64([[1, INF, 2, -INF, 3], [-INF, -INF, 2, INF, INF], [1, NAN, 2, INF, 1]])], dict(dim=1), logcumsumexp,
     tags="extreme no_gradcheck no_grad")
for op in ("cumsum", "cumprod"):
    case(f"{op}/in_place", [grid(3, 5, low=0.5, high=1.5)], dict(dim=1), lambda x, dim, fn=getattr(torch, op): fn(x, dim))


def diff(x, prepend=None, append=None, n=1, dim=-1):
    return torch.diff(x, n, dim, prepend, append)


for shape, dim in SHAPES:
    case("diff", [grid(*shape), None, None], dict(dim=dim), diff)
for n in (0, 2, 4, 9):
    case("diff", [grid(3, 4), None, None], dict(n=n), diff)
case("diff", [grid(3, 4), grid(3, 1, seed=2), grid(3, 2, seed=3)], {}, diff)
case("diff", [grid(3, 4), None, grid(1, 4, seed=3)], dict(dim=0, n=2), diff)
case("diff", [grid(2, 3), None, grid(5, 3, seed=3)], dict(dim=0, n=5), diff)  # more differences than x has elements
case("diff", [ints(3, 5), None, None], {}, diff, dtypes=INTEGERS)
case("diff", [bools(3, 5), None, None], {}, diff)
case("diff", [f64([1, INF, INF, -INF, NAN, 2]), None, None], {}, diff, tags="extreme no_gradcheck")

trapezoid = lambda y, dim=-1, dx=1.0: torch.trapezoid(y, dx=dx, dim=dim)
for shape, dim in SHAPES:
    case("trapezoid", [grid(*shape)], dict(dim=dim), trapezoid)
case("trapezoid", [grid(3, 4)], dict(dx=0.25), trapezoid)
case("trapezoid", [ints(3, 4)], dict(dim=0), trapezoid, dtypes=INTEGERS[:2])
case("trapezoid", [ints(3, 4, low=0)], dict(dim=0), trapezoid, dtypes=INTEGERS[2:])
case("trapezoid", [f64([1, INF, 2, -3]), ], {}, trapezoid, tags="extreme no_gradcheck")
points = lambda y, x, dim=-1: torch.trapezoid(y, x, dim=dim)
for y, x, dim in (((3, 4), (4,), -1), ((3, 4), (3,), 0), ((3, 4), (3, 4), 1), ((2, 3, 4), (3, 1), 1), ((1,), (1,), 0)):
    case("trapezoid/points", [grid(*y), grid(*x, seed=2)], dict(dim=dim), points)
