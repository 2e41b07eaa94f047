import torch

from cases import case, f64, grid

INF, NAN = float("inf"), float("nan")

for op in ("softmax", "log_softmax"):
    fn = getattr(torch, op)
    case(op, [grid(3, 5)], dict(dim=1), fn)
    case(op, [grid(3, 5)], dict(dim=0), fn)
    case(op, [grid(2, 3, 4)], dict(dim=-2), fn)
    case(op, [grid(7)], dict(dim=0), fn)
    case(op, [grid(2, 37)], dict(dim=-1), fn)  # 37 is not a multiple of any vector width
    case(op, [grid(4, 1)], dict(dim=1), fn)
    case(op, [f64(1.5)], dict(dim=0), fn)
    case(op, [grid(0, 3)], dict(dim=1), fn)
    case(op, [grid(3, 0)], dict(dim=1), fn)
    case(op, [f64([[1000, 0, -1000], [60000, 60000, -60000]])], dict(dim=1), fn, tags="extreme no_gradcheck")
    case(op, [f64([[-INF, 0, 1], [NAN, 0, 1]])], dict(dim=1), fn, tags="extreme no_gradcheck")
    case(op, [f64([[-INF, -INF], [INF, 0]])], dict(dim=1), fn, tags="extreme no_gradcheck")

# A result of almost 0 is the logarithm of a sum that is rounded near 1. Its error is eps, and the scale is that of the result.
SKIPS = {"log_softmax": lambda x, dim: bool(((y := torch.log_softmax(x, dim)) > -1 / 64).logical_and(y < 0).any())}
