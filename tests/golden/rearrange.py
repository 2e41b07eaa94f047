import torch

from cases import bools, case, f64, grid, ints

INF, NAN = float("inf"), float("nan")
ALL_INTS = [torch.int64, torch.int32, torch.uint8, torch.bool]
# Operations that move elements must keep all bits, for every dtype.
odd = f64([NAN, INF, -INF, 1e30, -0.0, 1e-30])


def extremes(op, params, fn, inputs=lambda x: [x]):
    """Cases with special values and with all integer dtypes. `inputs` makes the inputs from six elements."""
    case(op, inputs(odd), params, fn, tags="extreme no_gradcheck")
    for dtype in ALL_INTS:
        case(op, inputs(ints(6, low=0, dtype=dtype)), params, fn)


flip = lambda x, dims: torch.flip(x, dims)
for dims in ([0], [1], [-1], [0, 2], [2, 1, 0], []):
    case("flip", [grid(2, 3, 4)], dict(dims=dims), flip)
case("flip", [grid(2, 3, 4, 5)], dict(dims=[1, 3]), flip)
case("flip", [f64(2.5)], dict(dims=[0]), flip)
case("flip", [grid(1, 3)], dict(dims=[0]), flip)
case("flip", [grid(0, 3)], dict(dims=[0, 1]), flip)
extremes("flip", dict(dims=[0]), flip)

roll = lambda x, shifts, dims: torch.roll(x, shifts, dims if dims else None)
for shifts, dims in (([1], [0]), ([-1], [1]), ([2, 1], [1, 2]), ([7], [2]), ([0], [1]), ([-9], [-1]), ([1, 1], [0, 0]),
                     ([5], []), ([-3], []), ([1, 2, 3], [0, 1, 2])):
    case("roll", [grid(2, 3, 4)], dict(shifts=shifts, dims=dims), roll)
case("roll", [f64(2.5)], dict(shifts=[3], dims=[]), roll)
case("roll", [grid(0, 3)], dict(shifts=[1, 1], dims=[0, 1]), roll)
extremes("roll", dict(shifts=[2], dims=[0]), roll)

rot90 = lambda x, k, dims: torch.rot90(x, k, dims)
for k in (0, 1, 2, 3, 4, -1, 6):
    case("rot90", [grid(2, 3)], dict(k=k, dims=[0, 1]), rot90)
case("rot90", [grid(2, 3, 4)], dict(k=1, dims=[2, 0]), rot90)
case("rot90", [grid(2, 3, 4)], dict(k=3, dims=[1, -1]), rot90)
case("rot90", [grid(0, 3)], dict(k=1, dims=[0, 1]), rot90)
extremes("rot90", dict(k=1, dims=[0, 1]), rot90, lambda x: [x.reshape(2, 3)])

repeat = lambda x, repeats: x.repeat(repeats)
for repeats in ([2, 3], [1, 1], [2, 1, 1], [2, 1, 3], [0, 2], [1, 4]):
    case("repeat", [grid(2, 3)], dict(repeats=repeats), repeat)
case("repeat", [grid(1, 3)], dict(repeats=[4, 1]), repeat)
case("repeat", [grid(3)], dict(repeats=[2, 2]), repeat)
case("repeat", [f64(2.5)], dict(repeats=[]), repeat)
case("repeat", [f64(2.5)], dict(repeats=[3]), repeat)
case("repeat", [grid(2, 0)], dict(repeats=[2, 3]), repeat)
case("repeat", [grid(2, 1, 2, 2, 2)], dict(repeats=[2, 1, 2, 2, 2]), repeat)  # too many dimensions for one copy
extremes("repeat", dict(repeats=[2]), repeat)
for repeats in ([2], [2, 3], [2, 1, 2], []):
    case("repeat/tile", [grid(2, 3)], dict(repeats=repeats), lambda x, repeats: torch.tile(x, repeats))

interleave = lambda x, repeats, dim: torch.repeat_interleave(x, repeats, dim)
for repeats, dim in ((2, 0), (3, 1), (2, -1), (1, 0), (0, 1), (2, None)):
    case("repeat_interleave", [grid(2, 3, 2)], dict(repeats=repeats, dim=dim), interleave)
case("repeat_interleave", [f64(2.5)], dict(repeats=3, dim=None), interleave)
case("repeat_interleave", [grid(0, 3)], dict(repeats=2, dim=1), interleave)
extremes("repeat_interleave", dict(repeats=2, dim=0), interleave)
counts = lambda *values: torch.tensor(values, dtype=torch.int64)
each = lambda x, repeats, dim: torch.repeat_interleave(x, repeats, dim)
case("repeat_interleave/tensor", [grid(3, 2), counts(2, 0, 3)], dict(dim=0), each)
case("repeat_interleave/tensor", [grid(3, 2), counts(1, 2)], dict(dim=-1), each)
case("repeat_interleave/tensor", [grid(3, 2), counts(2)], dict(dim=1), each)
case("repeat_interleave/tensor", [grid(2, 2), counts(1, 0, 2, 1)], dict(dim=None), each)
case("repeat_interleave/tensor", [grid(3), counts(1, 2, 1).to(torch.int32)], dict(dim=0), each)
case("repeat_interleave/tensor", [grid(3, 2), counts(0, 0, 0)], dict(dim=0), each)
case("repeat_interleave/tensor", [ints(3, 2), counts(2, 0, 3)], dict(dim=0), each)

diag = lambda x, diagonal: torch.diag(x, diagonal)
for diagonal in (0, 1, -2, 100):
    case("diag", [grid(3, 4)], dict(diagonal=diagonal), diag)
for diagonal in (0, 1, -2):
    case("diag", [grid(3)], dict(diagonal=diagonal), diag)
case("diag", [grid(0)], dict(diagonal=1), diag)
case("diag", [grid(0, 2)], dict(diagonal=0), diag)
extremes("diag", dict(diagonal=1), diag)

embed = lambda x, offset, dim1, dim2: torch.diag_embed(x, offset, dim1, dim2)
for offset, dim1, dim2 in ((0, -2, -1), (1, -2, -1), (-2, -2, -1), (1, 0, 2), (-1, 2, 0), (0, 1, 0)):
    case("diag_embed", [grid(2, 3)], dict(offset=offset, dim1=dim1, dim2=dim2), embed)
case("diag_embed", [grid(2, 0)], dict(offset=0, dim1=-2, dim2=-1), embed)
case("diag_embed", [grid(2, 0)], dict(offset=1, dim1=-2, dim2=-1), embed)
extremes("diag_embed", dict(offset=0, dim1=-2, dim2=-1), embed)

for op, fn in (("tril", torch.tril), ("triu", torch.triu)):
    for diagonal in (0, 1, -1, -2, 3, 100, -100):
        case(op, [grid(3, 4)], dict(diagonal=diagonal), fn)
    case(op, [grid(4, 2)], dict(diagonal=0), fn)
    case(op, [grid(2, 1, 3, 3)], dict(diagonal=1), fn)
    case(op, [grid(0, 3)], dict(diagonal=0), fn)
    case(op, [grid(2, 3, 0)], dict(diagonal=1), fn)
    extremes(op, dict(diagonal=0), fn, lambda x: [x.reshape(2, 3)])

for op, fn in (("tril_indices", torch.tril_indices), ("triu_indices", torch.triu_indices)):
    for dtype in (torch.int64, torch.int32):
        case(op, [], dict(row=3, col=4, offset=1, dtype=dtype), fn)
    case(op, [], dict(row=4, col=3, offset=-1, dtype=torch.int64), fn)
    case(op, [], dict(row=0, col=3, offset=0, dtype=torch.int64), fn)
    case(op, [], dict(row=3, col=2, offset=-(2**40), dtype=torch.int64), fn, tags="extreme")
    case(op, [], dict(row=3, col=2, offset=2**40, dtype=torch.int64), fn, tags="extreme")

block_diag = lambda *blocks: torch.block_diag(*blocks)
for shapes in (((2, 3), (1, 2)), ((3,), (), (2, 2)), ((2, 3),), ((0, 3), (2, 1)), ((1, 1), (1, 1), (2, 1), (1, 3))):
    case("block_diag", [grid(*s, seed=i + 1) for i, s in enumerate(shapes)], fn=block_diag)
case("block_diag", [f64([[INF, NAN]]), f64([-INF, 1e30])], fn=block_diag, tags="extreme no_gradcheck")
case("block_diag", [ints(2, 2, low=0), ints(1, 2, low=0)], fn=block_diag, dtypes=[torch.int64, torch.int32, torch.uint8])
case("block_diag", [bools(2, 2), bools(1, 2)], fn=block_diag)
case("block_diag", [ints(2, 2), grid(1, 2, dtype=torch.float32)], fn=block_diag)
for op in ("tril", "triu"):
    case(f"{op}/in_place", [grid(4, 5)], dict(diagonal=1), lambda x, diagonal, fn=getattr(torch, op): fn(x, diagonal))

# PyTorch's gradient leaves out a row for a block of shape (0), which the result has.
SKIPS = {"block_diag": lambda *blocks: any(b.dim() == 1 and b.numel() == 0 for b in blocks)}
