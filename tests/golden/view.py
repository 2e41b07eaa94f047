import torch

from cases import bools, case, f64, grid, ints

INF, NAN = float("inf"), float("nan")
ALL_INTS = [torch.int64, torch.int32, torch.uint8]

# The inputs are contiguous, so view() accepts all these shapes. view_test.cpp tests which strides it refuses.
for sizes in ([6, 4], [-1], [2, 3, 2, 2], [1, 24, 1]):
    case("view", [grid(2, 3, 4)], dict(size=sizes), lambda x, size: x.view(size), tags="no_strided")
case("view", [grid(1)], dict(size=[]), lambda x, size: x.view(size), tags="no_strided")
case("view", [f64(2.5)], dict(size=[1, 1]), lambda x, size: x.view(size), tags="no_strided")
case("view", [grid(0, 3)], dict(size=[3, 0, 2]), lambda x, size: x.view(size), tags="no_strided")
case("view", [ints(2, 3)], dict(size=[3, 2]), lambda x, size: x.view(size), tags="no_strided", dtypes=ALL_INTS)

for sizes in ([6, 4], [-1], [4, 3, 2], [2, -1, 2, 2], [1, 24, 1]):
    case("reshape", [grid(2, 3, 4)], dict(shape=sizes), torch.reshape)
case("reshape", [f64(2.5)], dict(shape=[1, 1]), torch.reshape)
case("reshape", [grid(1, 1)], dict(shape=[]), torch.reshape)
case("reshape", [grid(2, 0, 3)], dict(shape=[0, 5]), torch.reshape)
case("reshape", [grid(2, 0, 3)], dict(shape=[-1, 3]), torch.reshape)
case("reshape", [bools(4, 3)], dict(shape=[2, 6]), torch.reshape)

case("flatten", [grid(2, 3, 4)], dict(start_dim=0, end_dim=-1), torch.flatten)
case("flatten", [grid(2, 3, 4, 5)], dict(start_dim=1, end_dim=-1), torch.flatten)
case("flatten", [grid(2, 3, 4, 5)], dict(start_dim=1, end_dim=2), torch.flatten)
case("flatten", [grid(2, 3)], dict(start_dim=1, end_dim=1), torch.flatten)
case("flatten", [f64(2.5)], dict(start_dim=0, end_dim=-1), torch.flatten)
case("flatten", [grid(3, 0, 2)], dict(start_dim=1, end_dim=-1), torch.flatten)
case("flatten", [ints(2, 3)], dict(start_dim=0, end_dim=-1), torch.flatten)

for a, b in ((0, 1), (-1, 0), (1, 1)):
    case("transpose", [grid(2, 3, 4)], dict(dim0=a, dim1=b), torch.transpose)
case("transpose", [f64(2.5)], dict(dim0=0, dim1=-1), torch.transpose)
case("transpose", [grid(0, 3)], dict(dim0=0, dim1=1), torch.transpose)
case("transpose", [ints(2, 3)], dict(dim0=0, dim1=1), torch.transpose, dtypes=ALL_INTS)
case("transpose/t", [grid(2, 3)], {}, torch.t)
case("transpose/t", [grid(3)], {}, torch.t)

for dims in ([2, 0, 1], [0, 1, 2], [-1, -2, -3]):
    case("permute", [grid(2, 3, 4)], dict(dims=dims), torch.permute)
case("permute", [grid(2, 3, 4, 5)], dict(dims=[0, 2, 3, 1]), torch.permute)
case("permute", [f64(2.5)], dict(dims=[]), torch.permute)
case("permute", [grid(2, 0)], dict(dims=[1, 0]), torch.permute)
case("permute", [bools(2, 3)], dict(dims=[1, 0]), torch.permute)

case("squeeze/all", [grid(1, 3, 1, 2)], {}, torch.squeeze)
case("squeeze/all", [grid(1, 1)], {}, torch.squeeze)
case("squeeze/all", [grid(0, 1)], {}, torch.squeeze)
for dim in (0, 1, -2):
    case("squeeze", [grid(1, 3, 1, 2)], dict(dim=dim), torch.squeeze)
case("squeeze", [f64(2.5)], dict(dim=-1), torch.squeeze)
case("squeeze", [grid(1, 0)], dict(dim=0), torch.squeeze)
case("squeeze", [ints(1, 3)], dict(dim=0), torch.squeeze)

for dim in (0, 1, 2, -1, -3):
    case("unsqueeze", [grid(2, 3)], dict(dim=dim), torch.unsqueeze)
case("unsqueeze", [f64(2.5)], dict(dim=0), torch.unsqueeze)
case("unsqueeze", [grid(0, 3)], dict(dim=1), torch.unsqueeze)
case("unsqueeze", [bools(3)], dict(dim=0), torch.unsqueeze)

expand = lambda x, size: x.expand(size)
for sizes in ([2, 3, 4], [-1, 3, 4], [5, 2, 3, 4]):
    case("expand", [grid(2, 1, 4)], dict(size=sizes), expand)
case("expand", [f64(2.5)], dict(size=[2, 3]), expand)
case("expand", [grid(3)], dict(size=[1, 3]), expand)
case("expand", [grid(1, 3)], dict(size=[0, 3]), expand)
case("expand", [grid(0, 1)], dict(size=[0, 4]), expand)
case("expand", [ints(1, 3)], dict(size=[2, 3]), expand)

for dim, start, length in ((0, 1, 2), (1, 0, 3), (2, 2, 1), (-1, -2, 2), (1, 1, 0), (0, 4, 0)):
    case("narrow", [grid(4, 3, 5)], dict(dim=dim, start=start, length=length), torch.narrow)
case("narrow", [grid(0, 3)], dict(dim=1, start=1, length=2), torch.narrow)
case("narrow", [ints(4)], dict(dim=0, start=1, length=2), torch.narrow, dtypes=ALL_INTS)


def slice_(x, dim, start, end, step):
    index = [slice(None)] * x.dim()
    index[dim] = slice(start, end, step)
    return x[tuple(index)]


for dim, start, end, step in ((0, None, None, 1), (1, 1, 5, 1), (1, -3, None, 1), (1, 1, -1, 2), (1, 0, 100, 3),
                              (1, 4, 2, 1), (-1, -100, 3, 1), (1, 7, 9, 1), (0, 0, 0, 1)):
    case("slice", [grid(3, 7, 4)], dict(dim=dim, start=start, end=end, step=step), slice_)
case("slice", [grid(0, 3)], dict(dim=0, start=1, end=None, step=1), slice_)
case("slice", [bools(6)], dict(dim=0, start=1, end=None, step=2), slice_)

for dim, index in ((0, 0), (1, 2), (-1, -1), (1, -3)):
    case("select", [grid(2, 3, 4)], dict(dim=dim, index=index), torch.select)
case("select", [grid(3)], dict(dim=0, index=1), torch.select)
case("select", [grid(2, 0)], dict(dim=0, index=1), torch.select)
case("select", [ints(2, 3)], dict(dim=1, index=0), torch.select, dtypes=ALL_INTS)

split = lambda x, size, dim: torch.split(x, size, dim)
case("split", [grid(7, 3)], dict(size=3, dim=0), split)
case("split", [grid(2, 6)], dict(size=2, dim=-1), split)
case("split", [grid(2, 3)], dict(size=10, dim=1), split)
case("split", [grid(0, 3)], dict(size=2, dim=0), split)
case("split", [ints(5)], dict(size=2, dim=0), split)
case("split/sizes", [grid(2, 6)], dict(size=[1, 0, 3, 2], dim=1), split)
case("split/sizes", [grid(3)], dict(size=[3], dim=0), split)

chunk = lambda x, chunks, dim: torch.chunk(x, chunks, dim)
for chunks in (1, 2, 3, 4, 10):
    case("chunk", [grid(7, 2)], dict(chunks=chunks, dim=0), chunk)
case("chunk", [grid(2, 6)], dict(chunks=3, dim=-1), chunk)
case("chunk", [grid(0, 3)], dict(chunks=3, dim=0), chunk)
case("chunk", [bools(5)], dict(chunks=2, dim=0), chunk)

cat = lambda *xs, dim: torch.cat(xs, dim)
case("cat", [grid(2, 3), grid(2, 1, seed=2), grid(2, 4, seed=3)], dict(dim=1), cat)
case("cat", [grid(2, 3), grid(1, 3, seed=2)], dict(dim=-2), cat)
case("cat", [grid(2, 3, 4), grid(2, 2, 4, seed=2)], dict(dim=1), cat)
case("cat", [grid(2, 3, 2, 2), grid(2, 1, 2, 2, seed=2)], dict(dim=1), cat)
case("cat", [grid(3)], dict(dim=0), cat)
case("cat", [grid(0, 3), grid(2, 3)], dict(dim=0), cat)
case("cat", [grid(2, 0), grid(2, 3)], dict(dim=1), cat)
case("cat", [grid(2, 0), grid(2, 0)], dict(dim=0), cat)
case("cat", [ints(2, 3), ints(1, 3, seed=2)], dict(dim=0), cat, dtypes=ALL_INTS)
case("cat", [bools(2), ints(3)], dict(dim=0), cat)
case("cat", [grid(2, dtype=torch.float32), ints(3)], dict(dim=0), cat)
case("cat", [grid(2, dtype=torch.float32), grid(2, dtype=torch.float16)], dict(dim=0), cat)
case("cat", [grid(2, dtype=torch.bfloat16), grid(2, dtype=torch.float16)], dict(dim=0), cat)

stack = lambda *xs, dim: torch.stack(xs, dim)
for dim in (0, 1, 2, -1):
    case("stack", [grid(2, 3), grid(2, 3, seed=2)], dict(dim=dim), stack)
case("stack", [f64(1.0), f64(2.0), f64(3.0)], dict(dim=0), stack)
case("stack", [grid(0, 3), grid(0, 3)], dict(dim=1), stack)
case("stack", [ints(3), ints(3, seed=2)], dict(dim=0), stack)
case("stack", [grid(2, dtype=torch.float32), ints(2)], dict(dim=0), stack)

index = lambda *values: torch.tensor(values, dtype=torch.int64)
select = lambda x, i, dim: torch.index_select(x, dim, i)
case("index_select", [grid(4, 3), index(2, 0, 2, 3)], dict(dim=0), select)
case("index_select", [grid(4, 3), index(1)], dict(dim=1), select)
case("index_select", [grid(2, 4, 3), index(3, 3, 3, 0, 1)], dict(dim=-2), select)
case("index_select", [grid(4, 3), index(2, 0).to(torch.int32)], dict(dim=0), select)
case("index_select", [f64(2.5), index(0)], dict(dim=0), select)
case("index_select", [grid(4, 3), index()], dict(dim=0), select)
case("index_select", [grid(4, 0), index(1, 1)], dict(dim=0), select)
case("index_select", [ints(4, 3), index(1, 3)], dict(dim=0), select)
case("index_select", [bools(4), index(1, 3)], dict(dim=0), select)

# Operations that move elements must keep all bits, for every dtype.
odd = f64([NAN, INF, -INF, 1e30, -0.0, 1e-30])
for op, params, fn in (
        ("view", dict(size=[2, 3]), lambda x, size: x.view(size)), ("reshape", dict(shape=[3, 2]), torch.reshape),
        ("flatten", dict(start_dim=0, end_dim=-1), torch.flatten), ("transpose", dict(dim0=0, dim1=0), torch.transpose),
        ("permute", dict(dims=[0]), torch.permute), ("squeeze", dict(dim=0), torch.squeeze),
        ("unsqueeze", dict(dim=0), torch.unsqueeze), ("expand", dict(size=[2, 6]), expand),
        ("narrow", dict(dim=0, start=0, length=5), torch.narrow),
        ("slice", dict(dim=0, start=0, end=None, step=2), slice_), ("select", dict(dim=0, index=0), torch.select),
        ("split", dict(size=4, dim=0), split), ("chunk", dict(chunks=2, dim=0), chunk)):
    strides = "no_strided" if op == "view" else ""
    case(op, [odd], params, fn, tags=f"extreme no_gradcheck {strides}")
    case(op, [ints(6, low=0)], params, fn, tags=strides, dtypes=ALL_INTS + [torch.bool])
for op, inputs, params, fn in (("cat", [odd, odd], dict(dim=0), cat), ("stack", [odd, odd], dict(dim=0), stack),
                               ("index_select", [odd, index(0, 2, 1, 0)], dict(dim=0), select)):
    case(op, inputs, params, fn, tags="extreme no_gradcheck")
    for dtype in ALL_INTS + [torch.bool]:
        case(op, [ints(6, seed=k, low=0, dtype=dtype) if x is odd else x for k, x in enumerate(inputs)], params, fn)
