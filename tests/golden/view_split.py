import torch

from cases import case, f64, grid, ints

INF, NAN = float("inf"), float("nan")
SPECIAL = f64([NAN, INF, -INF, -0.0, 1e30, 1e-30, 3, 2])
ALL_INTS = [torch.int64, torch.int32, torch.uint8, torch.bool]

for op in ("atleast_1d", "atleast_2d", "atleast_3d"):
    fn = lambda x, op=op: getattr(torch, op)(x)
    for shape in ((), (3,), (2, 3), (2, 3, 2), (2, 1, 3, 2), (0, 3)):
        case(op, [grid(*shape)], fn=fn)
    case(op, [SPECIAL], fn=fn, tags="extreme no_gradcheck")
    case(op, [ints(3, low=0)], fn=fn, dtypes=ALL_INTS)
for op, shapes in (("hsplit", ((6,), (2, 6), (2, 3, 2))), ("vsplit", ((6, 2), (3, 2, 2))), ("dsplit", ((2, 1, 6),))):
    fn = lambda x, sections, op=op: getattr(torch, op)(x, sections)
    at = lambda x, indices, op=op: getattr(torch, op)(x, indices)
    for shape in shapes:
        case(op, [grid(*shape)], dict(sections=3), fn)
        case(f"{op}/indices", [grid(*shape)], dict(indices=[1, 2]), at)
    case(op, [grid(*([0] + [2] * 2))] if op != "hsplit" else [grid(0, 4)], dict(sections=2), fn)
    special = SPECIAL.reshape({"hsplit": (8,), "vsplit": (4, 2), "dsplit": (1, 2, 4)}[op])
    case(op, [special], dict(sections=2), fn, tags="extreme no_gradcheck")
    case(op, [ints(2, 2, 2, low=0)], dict(sections=2), fn, dtypes=ALL_INTS)
