import torch
import torch.nn.functional as F

from cases import case, f64, grid, ints

INF, NAN = float("inf"), float("nan")


def pad(x, padding, mode, value=None):
    return F.pad(x, padding, mode, value)


for padding in ([1, 2], [0, 0], [1, 0, 0, 2], [2, 1, 1, 3, 1, 0], [-1, 2], [0, -2, 1, -1], [-1, -1, -1, -1], []):
    case("pad", [grid(2, 3, 4)], dict(padding=padding, mode="constant", value=1.5), pad)
case("pad", [grid(2, 3, 4, 5)], dict(padding=[1, 1, 2, 2], mode="constant"), pad)
case("pad", [grid(3)], dict(padding=[-1, -2], mode="constant"), pad)
case("pad", [grid(0, 3)], dict(padding=[1, 1, 2, 1], mode="constant", value=2.0), pad)
case("pad", [ints(2, 3, low=0)], dict(padding=[1, 1], mode="constant", value=1), pad,
     dtypes=[torch.int64, torch.int32, torch.uint8, torch.bool])
case("pad", [f64([NAN, INF, -INF, 1e30, -0.0])], dict(padding=[1, 2], mode="constant", value=INF), pad,
     tags="extreme no_gradcheck")

for mode in ("reflect", "replicate", "circular"):
    for padding in ([1, 2], [3, 0], [0, 0]):
        case("pad", [grid(2, 3, 4)], dict(padding=padding, mode=mode), pad)
        case("pad", [grid(3, 4)], dict(padding=padding, mode=mode), pad)
    for padding in ([1, 2, 3, 1], [0, 2, 1, 0], [3, 3, 0, 2]):
        case("pad", [grid(2, 2, 4, 5)], dict(padding=padding, mode=mode), pad)
    case("pad", [grid(1, 2, 2, 3, 4)], dict(padding=[1, 2, 1, 1, 0, 1], mode=mode), pad)
    case("pad", [f64([[[NAN, INF, -INF, 1e30, -0.0]]])], dict(padding=[2, 1], mode=mode), pad,
         tags="extreme no_gradcheck")
case("pad", [grid(2, 2, 4, 5)], dict(padding=[-1, 2, 1, -2], mode="circular"), pad)
case("pad", [grid(2, 3, 1)], dict(padding=[4, 2], mode="replicate"), pad)
case("pad", [grid(2, 3, 4)], dict(padding=[4, 4], mode="circular"), pad)
