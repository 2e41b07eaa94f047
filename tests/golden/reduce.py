import torch

from cases import bools, case, f64, grid, ints

INF, NAN = float("inf"), float("nan")
ALL_INTS = [torch.int64, torch.int32, torch.uint8]


def over(fn):
    """Wraps a PyTorch reduction that requires dimensions, so that dim=None reduces all of them."""
    return lambda x, dim=None, keepdim=False: fn(x, dim if dim is not None else list(range(x.dim())), keepdim)


# Reductions of rows, columns, a middle dimension, all dimensions and negative dimensions, with ragged sizes.
SHAPES = [((3, 5), None), ((3, 5), [1]), ((3, 5), [0]), ((2, 3, 4), [1]), ((2, 3, 4), [0, 2]), ((2, 3, 4), [-1, -2]),
          ((2, 3, 4, 5), [0, 2, 3]), ((71,), [0]), ((2, 67), [1]), ((67, 2), [0]), ((4, 1), [1]), ((1, 1), None)]

fns = {
    "sum": over(torch.sum),
    "mean": over(torch.mean),
    "logsumexp": over(torch.logsumexp),
}
for op, fn in fns.items():
    for shape, dim in SHAPES:
        case(op, [grid(*shape)], dict(dim=dim) if dim else {}, fn)
    case(op, [grid(2, 3, 4)], dict(dim=[0, 2], keepdim=True), fn)
    case(op, [grid(2, 3)], dict(keepdim=True), fn)
    case(op, [f64(2.5)], {}, fn)
    case(op, [f64(2.5)], dict(dim=[0]), fn)
    case(op, [grid(0, 3)], dict(dim=[0]), fn)
    case(op, [grid(0, 3)], dict(dim=[1]), fn)
    case(op, [grid(0)], {}, fn)
    case(op, [f64([[1, INF, 2], [-INF, 1, 2], [NAN, 1, 2], [INF, -INF, 0]])], dict(dim=[1]), fn,
         tags="extreme no_gradcheck")
    case(op, [f64([[60000, 32, -60000], [-1024, -1024, -1024]])], dict(dim=[1]), fn, tags="extreme no_gradcheck")
case("logsumexp", [f64([[-INF, -INF], [-INF, 0]])], dict(dim=[1]), fns["logsumexp"], tags="extreme no_gradcheck")
case("sum", [ints(3, 5)], dict(dim=[0]), fns["sum"], dtypes=ALL_INTS)
case("sum", [bools(3, 5)], dict(dim=[1]), fns["sum"])
case("sum", [ints(70, low=200, high=250)], {}, fns["sum"], dtypes=ALL_INTS)


def var(x, dim=None, unbiased=True, keepdim=False):
    return torch.var(x, dim if dim is not None else list(range(x.dim())), unbiased=unbiased, keepdim=keepdim)


for unbiased in (True, False):
    for shape, dim in SHAPES[:-2]:
        case("var", [grid(*shape)], dict(dim=dim, unbiased=unbiased), var)
    case("var", [grid(2, 3, 4)], dict(dim=[0, 2], unbiased=unbiased, keepdim=True), var)
    # The unbiased variance of one element is NaN.
    case("var", [grid(3, 1)], dict(dim=[1], unbiased=unbiased), var, tags="no_gradcheck")
    case("var", [grid(0, 3)], dict(dim=[0], unbiased=unbiased), var)
    case("var", [grid(0, 3)], dict(dim=[1], unbiased=unbiased), var)
    case("var", [f64([[1, INF, 2], [NAN, 1, 2], [3, 3, 3]])], dict(dim=[1], unbiased=unbiased), var,
         tags="extreme no_gradcheck")
# For values far from zero, a one-pass formula gives no correct digit.
case("var", [f64([4096.0, 4096.0625, 4096.125, 4096.1875])], {}, var, tags="extreme no_gradcheck")

for op in ("max", "min"):
    fn = getattr(torch, op)
    for shape in ((3, 5), (71,), (2, 3, 4), (1,)):
        case(op + "/all", [grid(*shape)], {}, lambda x, fn=fn: fn(x))
    case(op + "/all", [f64(2.5)], {}, lambda x, fn=fn: fn(x))
    case(op + "/all", [f64([[2, 7, 2], [7, 5, 2]])], {}, lambda x, fn=fn: fn(x), tags="no_gradcheck")  # ties
    case(op + "/all", [f64([1, INF, -INF])], {}, lambda x, fn=fn: fn(x), tags="extreme no_gradcheck")
    case(op + "/all", [f64([1, NAN, 2, NAN])], {}, lambda x, fn=fn: fn(x), tags="extreme no_gradcheck")
    case(op + "/all", [ints(40)], {}, lambda x, fn=fn: fn(x), dtypes=ALL_INTS)

    by_dim = lambda x, dim, keepdim=False, fn=fn: fn(x, dim, keepdim)
    for shape, dim in (((3, 5), 1), ((3, 5), 0), ((2, 3, 4), -2), ((71,), 0), ((2, 67), 1), ((67, 2), 0), ((4, 1), 1)):
        case(op, [grid(*shape)], dict(dim=dim), by_dim)
    case(op, [grid(3, 5)], dict(dim=1, keepdim=True), by_dim)
    case(op, [f64(2.5)], dict(dim=0), by_dim)
    case(op, [grid(0, 3)], dict(dim=1), by_dim)
    case(op, [f64([[1, INF, INF], [-INF, -INF, -INF], [NAN, 1, NAN], [2, 1, NAN]])], dict(dim=1), by_dim,
         tags="extreme no_gradcheck")
    case(op, [f64([[2, 7, 2, 7], [5, 5, 5, 5]])], dict(dim=1), by_dim, tags="no_gradcheck")
    case(op, [ints(4, 5)], dict(dim=0), by_dim, dtypes=ALL_INTS)
    case(op, [bools(4, 5)], dict(dim=1), by_dim)

    extreme = over(getattr(torch, "a" + op))
    for shape, dim in SHAPES:
        case("a" + op, [grid(*shape)], dict(dim=dim) if dim else {}, extreme)
    case("a" + op, [grid(2, 3, 4)], dict(dim=[0, 2], keepdim=True), extreme)
    case("a" + op, [f64(2.5)], dict(dim=[0]), extreme)
    case("a" + op, [grid(0, 3)], dict(dim=[1]), extreme)
    case("a" + op, [f64([[1, INF, INF], [-INF, -INF, -INF], [2, 1, 0]])], dict(dim=[1]), extreme,
         tags="extreme no_gradcheck")
    case("a" + op, [f64([[NAN, 1, 2], [2, 1, 3]])], dict(dim=[1]), extreme, tags="extreme no_gradcheck no_grad")
    case("a" + op, [f64([[2, 7, 2, 7], [5, 5, 5, 5]])], dict(dim=[1]), extreme, tags="no_gradcheck")  # ties
    case("a" + op, [ints(4, 5)], dict(dim=[0, 1]), extreme, dtypes=ALL_INTS)
    case("a" + op, [bools(4, 5)], dict(dim=[1]), extreme)

    arg = lambda x, dim=None, keepdim=False, fn=getattr(torch, "arg" + op): fn(x, dim, keepdim)
    for shape, dim in (((3, 5), 1), ((3, 5), 0), ((2, 3, 4), -2), ((71,), 0), ((3, 5), None), ((2, 3, 4), None)):
        case("arg" + op, [grid(*shape)], dict(dim=dim), arg)
    case("arg" + op, [grid(3, 5)], dict(dim=1, keepdim=True), arg)
    case("arg" + op, [grid(3, 5)], dict(keepdim=True), arg)
    case("arg" + op, [f64(2.5)], {}, arg)
    case("arg" + op, [f64(2.5)], dict(dim=0), arg)
    case("arg" + op, [grid(0, 3)], dict(dim=1), arg)
    case("arg" + op, [f64([[1, INF, INF], [-INF, -INF, -INF], [NAN, 1, NAN], [2, 1, NAN]])], dict(dim=1), arg,
         tags="extreme")
    case("arg" + op, [f64([[2, 7, 2, 7], [5, 5, 5, 5]])], {}, arg)
    case("arg" + op, [ints(4, 5)], dict(dim=0), arg, dtypes=ALL_INTS)
    case("arg" + op, [bools(4, 5)], dict(dim=1), lambda x, dim, arg=arg: arg(x.int(), dim))  # PyTorch has no bool kernel


def norm(x, p, dim=None, keepdim=False):
    return torch.norm(x, p, dim if dim is not None else list(range(x.dim())), keepdim)


for p in (2.0, 1.0, 0.0, 3.0, 1.5, INF, -INF):
    tags = "no_gradcheck" if p == 0.0 else ""  # the norm with p = 0 is not continuous at 0
    for shape, dim in (((3, 5), None), ((3, 5), [1]), ((5, 3), [0]), ((2, 3, 4), [0, 2]), ((2, 67), [1])):
        # At a tie the gradient is shared equally, and jumps.
        ties = " no_gradgradcheck" if p == INF and shape == (2, 67) else ""
        case("norm", [grid(*shape, seed=2, low=0.25, high=4.25)], dict(p=p, dim=dim), norm, tags=tags + ties)
        case("norm", [-grid(*shape, seed=3, low=0.25, high=4.25)], dict(p=p, dim=dim), norm, tags=tags)
    case("norm", [grid(2, 3, low=0.25, high=4.25)], dict(p=p, dim=[1], keepdim=True), norm, tags=tags)
    case("norm", [f64(-2.5)], dict(p=p), norm, tags=tags)
    case("norm", [f64([[0, 0, 0], [0, 3, -4]])], dict(p=p, dim=[1]), norm, tags="no_gradcheck")
    case("norm", [f64([[1, INF, 2], [1, NAN, 2]])], dict(p=p, dim=[1]), norm, tags="extreme no_gradcheck no_grad")
    case("norm", [grid(0, 3)], dict(p=p, dim=[1]), norm)
    if p >= 0 and p != INF:
        case("norm", [grid(0, 3)], dict(p=p, dim=[0]), norm)
case("norm", [f64([[2, -2, 1], [3, 3, -3]])], dict(p=INF, dim=[1]), norm, tags="no_gradcheck")  # ties


def std(x, dim=None, unbiased=True, keepdim=False):
    return torch.std(x, dim if dim is not None else list(range(x.dim())), unbiased=unbiased, keepdim=keepdim)


for unbiased in (True, False):
    for shape, dim in SHAPES[:-2]:
        case("std", [grid(*shape)], dict(dim=dim, unbiased=unbiased), std)
    case("std", [grid(2, 3, 4)], dict(dim=[0, 2], unbiased=unbiased, keepdim=True), std)
    case("std", [grid(0, 3)], dict(dim=[0], unbiased=unbiased), std)
    case("std", [grid(0, 3)], dict(dim=[1], unbiased=unbiased), std)
    case("std", [f64([[1, INF, 2], [NAN, 1, 2]])], dict(dim=[1], unbiased=unbiased), std, tags="extreme no_gradcheck")
    case("std", [f64([[3, 3, 3], [1, 2, 4]])], dict(dim=[1], unbiased=unbiased), std, tags="no_gradcheck")  # 0 has gradient 0

prod = lambda x, dim, keepdim=False: torch.prod(x, dim, keepdim)
for shape, dim in (((3, 5), 1), ((3, 5), 0), ((2, 3, 4), -2), ((4, 1), 1), ((0, 3), 1), ((3, 0), 1)):
    case("prod", [grid(*shape, low=0.5, high=1.5)], dict(dim=dim), prod)
case("prod", [grid(3, 4, low=0.5, high=1.5)], dict(dim=1, keepdim=True), prod)
case("prod", [f64(2.5)], dict(dim=0), prod)
case("prod", [f64([[0, 2, 3], [2, 0, 0], [2, 3, 4]])], dict(dim=1), prod)
case("prod", [f64([[1, INF, 2], [NAN, 1, 2], [1e30, 1e-30, 2]])], dict(dim=1), prod, tags="extreme no_gradcheck no_grad")
case("prod", [ints(4, 5)], dict(dim=0), prod, dtypes=ALL_INTS)
case("prod", [bools(4, 5)], dict(dim=1), prod)
for x in (grid(3, 5, low=0.5, high=1.5), grid(71, low=0.75, high=1.25), f64(2.5), grid(0, 3), f64([2, 0, 3])):
    case("prod/all", [x], {}, lambda x: torch.prod(x))

for op in ("nansum", "nanmean"):
    fn = over(getattr(torch, op))
    for shape, dim in SHAPES:
        case(op, [grid(*shape)], dict(dim=dim) if dim else {}, fn)
    case(op, [grid(2, 3, 4)], dict(dim=[0, 2], keepdim=True), fn)
    case(op, [f64(2.5)], {}, fn)
    case(op, [grid(0, 3)], dict(dim=[1]), fn)
    case(op, [grid(0, 3)], dict(dim=[0]), fn, tags="no_grad")
    case(op, [f64([[1, NAN, 2], [NAN, NAN, NAN], [INF, NAN, 1]])], dict(dim=[1]), fn, tags="extreme no_gradcheck no_grad")
    case(op, [f64([[1, NAN, 2], [NAN, 4, NAN]])], dict(dim=[1]), fn, tags="extreme no_gradcheck")
case("nansum", [ints(3, 5)], dict(dim=[0]), over(torch.nansum), dtypes=ALL_INTS)
case("nansum", [bools(3, 5)], dict(dim=[0]), over(torch.nansum))

for op in ("any", "all"):
    fn = over(getattr(torch, op))
    for shape, dim in SHAPES[:8]:
        case(op, [grid(*shape, low=0, high=0.25)], dict(dim=dim) if dim else {}, fn)
    case(op, [f64([[0, 0], [0, 1], [1, 1]])], dict(dim=[1], keepdim=True), fn)
    case(op, [f64(0.0)], {}, lambda x, fn=getattr(torch, op): fn(x))
    case(op, [grid(0, 3)], dict(dim=[0]), fn)
    case(op, [grid(0, 3)], dict(dim=[1]), fn)
    case(op, [f64([[NAN, 0], [-0.0, 0.0], [INF, -INF]])], dict(dim=[1]), fn, tags="extreme")
    case(op, [ints(4, 5, low=0, high=2)], dict(dim=[1]), fn, dtypes=ALL_INTS)
    case(op, [bools(4, 5)], dict(dim=[0]), fn)
    case(op, [bools(4, 5)], {}, fn)

count = lambda x, dim=None: torch.count_nonzero(x, dim)
for shape, dim in SHAPES[:8]:
    case("count_nonzero", [grid(*shape, low=0, high=0.25)], dict(dim=dim) if dim else {}, count)
case("count_nonzero", [f64(1.0)], {}, count)
case("count_nonzero", [grid(0, 3)], dict(dim=[0]), count)
case("count_nonzero", [f64([[NAN, 0], [-0.0, 0.0], [INF, -INF]])], dict(dim=[1]), count, tags="extreme")
case("count_nonzero", [ints(4, 5, low=0, high=2)], dict(dim=[1]), count, dtypes=ALL_INTS)
case("count_nonzero", [bools(4, 5)], dict(dim=[0]), count)

aminmax = lambda x, dim=None, keepdim=False: torch.aminmax(x, dim=dim, keepdim=keepdim)
for shape, dim in (((3, 5), 1), ((3, 5), 0), ((2, 3, 4), -2), ((37,), 0), ((0, 3), 1)):
    case("aminmax", [grid(*shape)], dict(dim=dim), aminmax)
case("aminmax", [grid(3, 5)], {}, aminmax)
case("aminmax", [grid(3, 5)], dict(dim=1, keepdim=True), aminmax)
case("aminmax", [f64([[1, NAN, 2], [INF, -INF, 0]])], dict(dim=1), aminmax, tags="extreme no_gradcheck no_grad")
case("aminmax", [ints(3, 5, low=0)], dict(dim=1), aminmax, dtypes=[torch.int64, torch.int32, torch.uint8])
case("aminmax", [bools(3, 5)], dict(dim=1), aminmax)
