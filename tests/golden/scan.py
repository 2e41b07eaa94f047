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
