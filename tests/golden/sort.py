import torch

from cases import bools, case, f64, grid, ints

INF, NAN = float("inf"), float("nan")
INTEGERS = [torch.int64, torch.int32, torch.uint8]
SHAPES = [((5,), 0), ((3, 5), 1), ((3, 5), 0), ((2, 3, 4), -2), ((4, 1), 1), ((71,), 0), ((2, 67), -1), ((3, 0), 1), ((0, 3), 1)]
# NaN is greatest, and -0 equals 0.
EXTREMES = f64([[NAN, INF, -INF, 0.0, -0.0, 1], [2, NAN, NAN, -3, 1e30, -1e30], [0.0, -0.0, 0.0, -0.0, 1e-40, -1e-40]])
TIES = f64([[2, 7, 2, 7, 2, 7, 1], [5, 5, 5, 5, 5, 5, 5]])
# The recorded file holds integers that doubles represent.
LIMITS = torch.tensor([[2**62, -2**62, 0, -1, 1, 2**32, -2**32]])


def sort(x, dim=-1, descending=False):
    return torch.sort(x, dim=dim, descending=descending, stable=True)


def argsort(x, dim=-1, descending=False):
    return torch.argsort(x, dim=dim, descending=descending, stable=True)


for op, fn in (("sort", sort), ("argsort", argsort)):
    for descending in (False, True):
        for shape, dim in SHAPES:
            case(op, [grid(*shape)], dict(dim=dim, descending=descending), fn)
        case(op, [f64(2.5)], dict(descending=descending), fn)
        case(op, [EXTREMES], dict(descending=descending), fn, tags="extreme no_gradcheck")
        case(op, [TIES], dict(descending=descending), fn, tags="no_gradcheck")
        case(op, [ints(4, 5)], dict(dim=0, descending=descending), fn, dtypes=INTEGERS)
        case(op, [LIMITS], dict(descending=descending), fn, tags="extreme")
        case(op, [bools(4, 5)], dict(descending=descending), fn)


def topk(x, k, dim=-1, largest=True):
    # torch.topk picks any of equal elements. The first ones are those of a stable sort.
    values, indices = torch.sort(x, dim=dim, descending=largest, stable=True)
    if x.dim() == 0:
        assert k == 1  # PyTorch returns the number for k = 0 too
        return values, indices
    expected = torch.topk(x, k, dim=dim, largest=largest).values
    values, indices = values.narrow(dim, 0, k), indices.narrow(dim, 0, k)
    assert torch.equal(torch.nan_to_num(values), torch.nan_to_num(expected))
    return values, indices


for largest in (True, False):
    for shape, dim, k in (((5,), 0, 2), ((3, 5), 1, 1), ((3, 5), 0, 3), ((2, 3, 4), -2, 2), ((71,), 0, 4), ((2, 67), -1, 66),
                          ((3, 5), 1, 0), ((0, 3), 1, 2)):
        case("topk", [grid(*shape)], dict(k=k, dim=dim, largest=largest), topk)
    case("topk", [f64(2.5)], dict(k=1, largest=largest), topk)
    case("topk", [EXTREMES], dict(k=4, largest=largest), topk, tags="extreme no_gradcheck")
    case("topk", [TIES], dict(k=2, largest=largest), topk, tags="no_gradcheck")
    case("topk", [ints(4, 5)], dict(k=2, dim=0, largest=largest), topk, dtypes=INTEGERS)
    case("topk", [LIMITS], dict(k=3, largest=largest), topk, tags="extreme")


def kthvalue(x, k, dim=-1, keepdim=False):
    # torch.kthvalue picks any of equal elements. We pick the one that a stable sort puts at this place.
    values, indices = torch.sort(x, dim=dim, stable=True)
    expected = torch.kthvalue(x, k, dim, keepdim).values
    values, indices = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    if not keepdim:
        values, indices = values.squeeze(dim), indices.squeeze(dim)
    assert torch.equal(torch.nan_to_num(values), torch.nan_to_num(expected))
    return values, indices


def median(x, dim, keepdim=False):
    if x.is_floating_point() or x.dim() == 0:  # no ties in these cases
        return torch.median(x, dim, keepdim)
    return kthvalue(x, (x.shape[dim] + 1) // 2, dim, keepdim)


for shape, dim, k in (((5,), 0, 2), ((3, 5), 1, 5), ((3, 5), 0, 1), ((2, 3, 4), -2, 2), ((71,), 0, 36), ((2, 67), -1, 3),
                      ((0, 3), 1, 2)):
    case("kthvalue", [grid(*shape)], dict(k=k, dim=dim), kthvalue)
    case("median", [grid(*shape)], dict(dim=dim), median)
for op, fn, params in (("kthvalue", kthvalue, dict(k=2)), ("median", median, {})):
    case(op, [grid(3, 4)], dict(dim=1, keepdim=True, **params), fn)
    case(op, [ints(4, 5)], dict(dim=0, **params), fn, dtypes=INTEGERS)
    case(op, [f64([[1, INF, -INF, 2], [-1, -2, INF, 3e30]])], dict(dim=1, **params), fn, tags="extreme no_gradcheck")
case("median", [f64(2.5)], dict(dim=0), median)
case("median", [f64([[1, NAN, 2, 0], [0, 3, 1, 2]])], dict(dim=1), median, tags="extreme no_gradcheck")
case("kthvalue", [f64([[1, NAN, 2, 0], [0, 3, 1, 2]])], dict(k=4, dim=1), kthvalue, tags="extreme no_gradcheck")
for x in (grid(3, 5), grid(2, 3, 4), f64(2.5), grid(71)):
    case("median/all", [x], {}, torch.median)
case("median/all", [f64([2, 7, 2, 7, 2])], {}, torch.median, tags="no_gradcheck")  # ties share the gradient
case("median/all", [f64([[1, NAN], [2, 0]])], {}, torch.median, tags="extreme no_gradcheck")
case("median/all", [grid(0, 3)], {}, torch.median, tags="no_grad no_gradcheck")
case("median/all", [ints(3, 5)], {}, torch.median, dtypes=INTEGERS)


def quantile(x, q, dim=None, keepdim=False, interpolation="linear"):
    q = torch.tensor(q, dtype=x.dtype) if isinstance(q, list) else q
    return torch.quantile(x, q, dim, keepdim, interpolation=interpolation)


for interpolation in ("linear", "lower", "higher", "midpoint", "nearest"):
    for q in (0.0, 0.25, 0.375, 0.5, 1.0):
        case("quantile", [grid(3, 5)], dict(q=q, dim=1, interpolation=interpolation), quantile)
    case("quantile", [grid(2, 3, 4)], dict(q=0.625, interpolation=interpolation), quantile)
    case("quantile/list", [grid(3, 4)], dict(q=[0.125, 0.5, 1.0], dim=0, interpolation=interpolation), quantile)
case("quantile", [grid(2, 3, 4)], dict(q=0.375, dim=-2, keepdim=True), quantile)
case("quantile", [grid(2, 3)], dict(q=0.5, keepdim=True), quantile)
case("quantile/list", [grid(2, 3)], dict(q=[0.25, 0.75], keepdim=True), quantile)
case("quantile", [f64(2.5)], dict(q=0.5), quantile)
# torch.quantile refuses tensors without elements. We return no results, as median does.
case("quantile", [grid(0, 3)], dict(q=0.5, dim=1), lambda x, q, dim: torch.median(x, dim).values, tags="empty")
case("quantile", [f64([[1, NAN, 2], [0, 3, 1e30]])], dict(q=0.5, dim=1), quantile, tags="extreme no_gradcheck no_grad")


def nanquantile(x, q, dim=None, keepdim=False, interpolation="linear"):
    q = torch.tensor(q, dtype=x.dtype) if isinstance(q, list) else q
    return torch.nanquantile(x, q, dim, keepdim, interpolation=interpolation)


HOLES = f64([[NAN, 1, 2, -3, 0.5], [4, NAN, NAN, 3.5, 1.5], [5, -1, 2.5, 0, 3]])
for interpolation in ("linear", "lower", "higher", "midpoint", "nearest"):
    for q in (0.0, 0.3125, 0.5, 1.0):
        case("nanquantile", [HOLES], dict(q=q, dim=1, interpolation=interpolation), nanquantile,
             tags="extreme no_gradcheck")
    case("nanquantile", [grid(3, 5)], dict(q=0.375, dim=0, interpolation=interpolation), nanquantile)
    case("nanquantile/list", [HOLES], dict(q=[0.125, 0.5, 1.0], dim=0, interpolation=interpolation), nanquantile,
         tags="extreme no_gradcheck")
case("nanquantile", [grid(2, 3, 4)], dict(q=0.375, dim=-2, keepdim=True), nanquantile)
case("nanquantile", [grid(2, 3)], dict(q=0.5, keepdim=True), nanquantile)
case("nanquantile", [HOLES], dict(q=0.5), nanquantile, tags="extreme no_gradcheck")
case("nanquantile", [f64([NAN, NAN])], dict(q=0.5), nanquantile, tags="extreme no_gradcheck no_grad")
case("nanquantile", [f64([[NAN, NAN], [1, NAN]])], dict(q=0.25, dim=1), nanquantile, tags="extreme no_gradcheck no_grad")
case("nanquantile/list", [grid(2, 3)], dict(q=[0.25, 0.75], keepdim=True), nanquantile)
case("nanquantile", [f64(2.5)], dict(q=0.5), nanquantile)
case("nanquantile", [grid(0, 3)], dict(q=0.5, dim=1), lambda x, q, dim: torch.median(x, dim).values, tags="empty")


def unique(x):
    return torch.unique(x, sorted=True, return_inverse=True, return_counts=True)


def unique_slices(x, dim):
    return torch.unique(x, sorted=True, return_inverse=True, return_counts=True, dim=dim)


def unique_consecutive_slices(x, dim):
    return torch.unique_consecutive(x, return_inverse=True, return_counts=True, dim=dim)


ROWS = f64([[1, 2, 0], [1, 2, 0], [0, 5, 5], [1, 2, -1], [0, 5, 5], [0, 5, 5], [-0.0, 5, 5]])
for op, fn in (("unique/dim", unique_slices), ("unique_consecutive/dim", unique_consecutive_slices)):
    for x, dim in ((ROWS, 0), (ROWS.t(), 1), (ROWS.t(), -1), (grid(4, 3), 0), (grid(4, 3), 1), (f64([3, 1, 1, 3]), 0),
                   (ROWS.reshape(7, 3, 1).repeat(1, 1, 2), 0), (ROWS.t().reshape(3, 1, 7), 2), (f64([[2.0]]), 0)):
        case(op, [x], dict(dim=dim), fn, constant=[0])
    case(op, [grid(0, 3)], dict(dim=0), fn, constant=[0])
    case(op, [ints(30, low=0, high=2).reshape(10, 3)], dict(dim=0), fn, dtypes=INTEGERS)
    case(op, [bools(24).reshape(8, 3)], dict(dim=0), fn)


for x in (grid(5), f64([3, 1, 3, 2, 1, 3]), f64([[1, 2], [2, 1], [0, 2]]), f64(2.5), grid(0, 3), f64([7.0] * 70)):
    case("unique", [x], {}, unique, constant=[0])
case("unique", [f64([INF, -INF, 0.0, INF, 1e30, 0.0])], {}, unique, tags="extreme", constant=[0])
case("unique", [f64([NAN, 1, NAN, 1])], {}, unique, tags="extreme", constant=[0])
case("unique", [ints(40)], {}, unique, dtypes=INTEGERS)
case("unique", [bools(9)], {}, unique)
case("unique", [LIMITS], {}, unique, tags="extreme")


def mode(x, dim=-1, keepdim=False):
    """PyTorch leaves open which of several equal elements the index names. Ours is the last."""
    values = torch.mode(x, dim, keepdim).values
    if x.dim() == 0:
        return values, torch.zeros((), dtype=torch.int64)
    last = x.shape[dim] - 1 - torch.flip(x == torch.mode(x, dim, True).values, [dim]).int().argmax(dim, True)
    return torch.gather(x, dim, last) if keepdim else torch.gather(x, dim, last).squeeze(dim), last if keepdim else last.squeeze(dim)


for shape, dim in (((3, 5), 1), ((3, 5), 0), ((2, 3, 4), -2), ((37,), 0), ((5, 1), 1), ((0, 3), 1)):
    case("mode", [grid(*shape)], dict(dim=dim), mode)
case("mode", [f64([[2, 7, 2, 7, 8], [5, 1, 5, 5, 1], [9, 5, 3, 2, 1]])], dict(dim=1, keepdim=True), mode, tags="no_gradcheck")
case("mode", [f64(2.5)], dict(dim=0), mode)
case("mode", [f64([[INF, -INF, INF, -INF], [0.0, -0.0, 1, 2]])], {}, mode, tags="extreme no_gradcheck")
case("mode", [ints(4, 30, low=0)], {}, mode, dtypes=INTEGERS)
case("mode", [bools(4, 9)], {}, mode)


def unique_consecutive(x):
    return torch.unique_consecutive(x, return_inverse=True, return_counts=True)


for x in (f64([1, 1, 2, 2, 2, 1, 3]), f64([[1, 1, 2], [2, 2, 1]]), grid(37), f64(2.5), grid(0, 3)):
    case("unique_consecutive", [x], {}, unique_consecutive, constant=[0])
case("unique_consecutive", [f64([INF, INF, -INF, 0.0, -0.0, 1e30])], {}, unique_consecutive, tags="extreme", constant=[0])
case("unique_consecutive", [f64([NAN, NAN, 1, 1])], {}, unique_consecutive, tags="extreme", constant=[0])
case("unique_consecutive", [ints(40, low=0, high=2)], {}, unique_consecutive, dtypes=INTEGERS)
case("unique_consecutive", [bools(9)], {}, unique_consecutive)
