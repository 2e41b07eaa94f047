import torch

from cases import bools, case, f64, grid, ints

INF, NAN = float("inf"), float("nan")
ALL_INTS = [torch.int64, torch.int32, torch.uint8, torch.bool]
# Operations that move elements must keep all bits, for every dtype.
odd = f64([NAN, INF, -INF, 1e30, -0.0, 1e-30])


def extremes(op, params, fn, tags="", inputs=lambda x: [x]):
    """Cases with special values and with all integer dtypes. `inputs` makes the inputs from six elements."""
    case(op, inputs(odd), params, fn, tags=f"extreme no_gradcheck {tags}")
    case(op, inputs(ints(6, low=0)), params, fn, tags=tags, dtypes=ALL_INTS)


unflatten = lambda x, dim, sizes: x.unflatten(dim, sizes)
for dim, sizes in ((1, [2, 3]), (1, [-1, 2]), (-1, [4, 1]), (0, [1, 2, 1]), (1, [6])):
    case("unflatten", [grid(2, 6, 4)], dict(dim=dim, sizes=sizes), unflatten)
case("unflatten", [grid(3, 0)], dict(dim=1, sizes=[2, 0]), unflatten)
case("unflatten", [grid(3, 0)], dict(dim=1, sizes=[-1, 2]), unflatten)
extremes("unflatten", dict(dim=0, sizes=[2, 3]), unflatten)

movedim = lambda x, source, destination: torch.movedim(x, source, destination)
for source, destination in (([0], [2]), ([0, 1], [-1, -2]), ([2, 0], [0, 1]), ([], []), ([1], [1]), ([0, 1, 2], [1, 2, 0])):
    case("movedim", [grid(2, 3, 4)], dict(source=source, destination=destination), movedim)
case("movedim", [f64(2.5)], dict(source=[0], destination=[-1]), movedim)
case("movedim", [grid(2, 0, 3)], dict(source=[0], destination=[1]), movedim)
extremes("movedim", dict(source=[0], destination=[1]), movedim, inputs=lambda x: [x.reshape(2, 3)])

meshgrid = lambda *xs, indexing: torch.meshgrid(*xs, indexing=indexing)
for indexing in ("ij", "xy"):
    case("meshgrid", [grid(3), grid(2, seed=2), grid(4, seed=3)], dict(indexing=indexing), meshgrid)
    case("meshgrid", [grid(3), grid(2, seed=2)], dict(indexing=indexing), meshgrid)
    case("meshgrid", [grid(3), f64(2.5)], dict(indexing=indexing), meshgrid)
    case("meshgrid", [grid(3)], dict(indexing=indexing), meshgrid)
    case("meshgrid", [grid(3), grid(0)], dict(indexing=indexing), meshgrid)
extremes("meshgrid", dict(indexing="xy"), meshgrid, inputs=lambda x: [x, x[:2]])

broadcast = lambda *xs: torch.broadcast_tensors(*xs)
case("broadcast_tensors", [grid(3, 1), grid(4, seed=2), grid(2, 1, 1, seed=3)], fn=broadcast)
case("broadcast_tensors", [grid(3), f64(2.5)], fn=broadcast)
case("broadcast_tensors", [grid(2, 3)], fn=broadcast)
case("broadcast_tensors", [grid(3, 0), grid(1, 1)], fn=broadcast)
extremes("broadcast_tensors", {}, broadcast, inputs=lambda x: [x, x[:1]])

diagonal = lambda x, offset, dim1, dim2: torch.diagonal(x, offset, dim1, dim2)
for offset in (0, 1, -1, 2, -3, 100):
    case("diagonal", [grid(3, 4)], dict(offset=offset, dim1=0, dim2=1), diagonal)
for dim1, dim2 in ((0, 2), (2, 0), (-1, 1)):
    case("diagonal", [grid(2, 3, 4)], dict(offset=1, dim1=dim1, dim2=dim2), diagonal)
case("diagonal", [grid(0, 3)], dict(offset=0, dim1=0, dim2=1), diagonal)
extremes("diagonal", dict(offset=0, dim1=0, dim2=1), diagonal, inputs=lambda x: [x.reshape(2, 3)])

unfold = lambda x, dim, size, step: x.unfold(dim, size, step)
for dim, size, step in ((1, 3, 1), (1, 3, 2), (1, 2, 3), (-1, 2, 1), (0, 3, 5), (1, 7, 1), (1, 0, 2), (1, 1, 1)):
    case("unfold", [grid(3, 7, 2)], dict(dim=dim, size=size, step=step), unfold)
case("unfold", [grid(7)], dict(dim=0, size=4, step=1), unfold)
case("unfold", [f64(2.5)], dict(dim=0, size=1, step=1), unfold)
case("unfold", [grid(0, 3)], dict(dim=1, size=2, step=1), unfold)
extremes("unfold", dict(dim=0, size=3, step=2), unfold)

# The inputs are dense. view_dims_test.cpp tests others, because the result depends on the strides.
strided = lambda x, size, stride, offset: torch.as_strided(x, size, stride, offset)
for size, stride, offset in (([2, 3], [4, 1], 1), ([3, 2], [1, 3], None), ([4, 3], [2, 2], 0), ([2, 2, 2], [0, 1, 1], 5),
                             ([], [], 11), ([3], [0], 2), ([2, 0], [100, 1], 3), ([12], [1], None), ([5, 3], [2, 1], 1)):
    case("as_strided", [grid(3, 4)], dict(size=size, stride=stride, offset=offset), strided, tags="no_strided")
case("as_strided", [grid(0)], dict(size=[0, 3], stride=[3, 1], offset=None), strided, tags="no_strided")
extremes("as_strided", dict(size=[4, 2], stride=[1, 2], offset=None), strided, tags="no_strided")

split = lambda x, sections, dim: torch.tensor_split(x, sections, dim)
for sections in (1, 2, 3, 4, 9):
    case("tensor_split", [grid(7, 2)], dict(sections=sections, dim=0), split)
case("tensor_split", [grid(2, 6)], dict(sections=3, dim=-1), split)
case("tensor_split", [grid(0, 3)], dict(sections=2, dim=0), split)
extremes("tensor_split", dict(sections=4, dim=0), split)
at = lambda x, indices, dim: torch.tensor_split(x, indices, dim)
for indices in ([2, 5], [0, 3, 3, 100], [-2], [4, 1]):
    case("tensor_split/indices", [grid(7, 2)], dict(indices=indices, dim=0), at)
case("tensor_split/indices", [grid(2, 6)], dict(indices=[1, 4], dim=-1), at)

unbind = lambda x, dim: torch.unbind(x, dim)
for dim in (0, 1, -1):
    case("unbind", [grid(3, 2, 4)], dict(dim=dim), unbind)
case("unbind", [grid(3)], dict(dim=0), unbind)
case("unbind", [grid(2, 0)], dict(dim=0), unbind)
extremes("unbind", dict(dim=0), unbind)

for op, fn in (("hstack", torch.hstack), ("vstack", torch.vstack), ("dstack", torch.dstack)):
    join = lambda *xs, fn=fn: fn(xs)
    case(op, [grid(3), grid(3, seed=2)], fn=join)
    case(op, [f64(1.5), f64(2.5)], fn=join)
    case(op, [grid(2, 3), grid(2, 3, seed=2)], fn=join)
    case(op, [grid(2, 3, 2), grid(2, 3, 2, seed=2)], fn=join)
    case(op, [grid(2, 0), grid(2, 0)], fn=join)
    case(op, [grid(3, dtype=torch.float32), ints(3)], fn=join)
    extremes(op, {}, join, inputs=lambda x: [x, x])
case("hstack", [grid(2, 3), grid(2, 1, seed=2)], fn=lambda *xs: torch.hstack(xs))
case("vstack", [grid(3), grid(2, 3, seed=2)], fn=lambda *xs: torch.vstack(xs))
