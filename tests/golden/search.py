import torch

from cases import case, f64, grid, ints

INF, NAN = float("inf"), float("nan")
INTEGERS = [torch.int64, torch.int32, torch.uint8]


def searchsorted(sequence, values, sorter=None, right=False, side=None, out_int32=False):
    return torch.searchsorted(sequence, values, right=right, side=side, out_int32=out_int32, sorter=sorter)


ROW = f64([-2, -1, -1, 0.5, 3, 3, 3, 4])
for right in (False, True):
    for shape in ((7,), (2, 3), (), (0, 3), (70,)):
        case("searchsorted", [ROW, grid(*shape)], dict(right=right), searchsorted)
    case("searchsorted", [ROW, ROW], dict(right=right), searchsorted)
    rows = torch.sort(grid(2, 3, 5), -1).values
    case("searchsorted", [rows, grid(2, 3, 4, seed=2)], dict(right=right), searchsorted)
    case("searchsorted", [rows, rows], dict(right=right), searchsorted)
    shuffled = grid(2, 5, seed=3)
    case("searchsorted", [shuffled, grid(2, 4), torch.argsort(shuffled, -1)], dict(right=right), searchsorted)
    case("searchsorted", [ROW[:0], grid(3)], dict(right=right), searchsorted)
    case("searchsorted", [f64([-INF, -1, 0, 1, INF]), f64([-INF, INF, NAN, 0, -0.0, 1e30])], dict(right=right), searchsorted,
         tags="extreme")
    case("searchsorted", [torch.sort(ints(9)).values, ints(5, seed=2)], dict(right=right), searchsorted, dtypes=INTEGERS)
    case("bucketize", [grid(3, 4), ROW], dict(right=right), lambda x, b, right: torch.bucketize(x, b, right=right))
    case("bucketize", [f64([INF, -INF, NAN]), ROW], dict(right=right), lambda x, b, right: torch.bucketize(x, b, right=right),
         tags="extreme")
    case("bucketize", [ints(6), torch.sort(ints(5, seed=2)).values], dict(right=right),
         lambda x, b, right: torch.bucketize(x, b, right=right), dtypes=INTEGERS)
case("searchsorted", [ROW, grid(3)], dict(side="right"), searchsorted)
case("searchsorted", [ROW, grid(3)], dict(side="left", out_int32=True), searchsorted)
case("bucketize", [grid(0, 2), ROW], dict(right=False), lambda x, b, right: torch.bucketize(x, b, right=right))
case("bucketize", [f64(0.5), ROW], dict(right=True), lambda x, b, right: torch.bucketize(x, b, right=right))


def bincount(x, weights=None, minlength=0):
    return torch.bincount(x, weights, minlength)


for n in (1, 12, 70):
    for minlength in (0, 3, 20):
        case("bincount", [ints(n, low=0, high=9)], dict(minlength=minlength), bincount, dtypes=INTEGERS)
case("bincount", [ints(0)], {}, bincount)
case("bincount", [ints(0)], dict(minlength=4), bincount)
case("bincount", [torch.full((5,), 3000)], {}, bincount, tags="extreme")
case("bincount", [ints(40, low=0, high=5), grid(40).float()], dict(minlength=7), bincount, constant=[1])
case("bincount", [ints(40, low=0, high=5), grid(40).half()], {}, bincount, constant=[1])
case("bincount", [ints(40, low=0, high=5), ints(40)], {}, bincount)
