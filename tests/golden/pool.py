import torch.nn.functional as F

from cases import case, f64, grid

INF, NAN = float("inf"), float("nan")
WINDOWS = (
    ((2, 3, 4, 6), dict(kernel_size=2)),
    ((3, 5, 7), dict(kernel_size=2)),  # no batch dimension; no window reaches the last row and column
    ((1, 2, 5, 7), dict(kernel_size=2, ceil_mode=True)),
    ((1, 2, 6, 5), dict(kernel_size=3, stride=1)),
    ((1, 2, 6, 5), dict(kernel_size=3, stride=2, padding=1)),
    ((1, 2, 6, 7), dict(kernel_size=[3, 2], stride=[1, 3], padding=[1, 0])),
    ((1, 1, 7, 7), dict(kernel_size=3, stride=2, padding=1, ceil_mode=True)),
    ((1, 1, 4, 4), dict(kernel_size=4)),
    ((1, 1, 1, 1), dict(kernel_size=1)),
    ((2, 1, 5, 5), dict(kernel_size=2, stride=3)),
    ((1, 9, 3, 3), dict(kernel_size=2, stride=1)),  # 9 channels are not a multiple of a vector width
)


def distinct(*shape):
    return grid(*shape, low=-8, high=8)


for shape, params in WINDOWS:
    case("max_pool2d", [distinct(*shape)], params, F.max_pool2d)
    case("avg_pool2d", [grid(*shape)], params, F.avg_pool2d)
    if params.get("padding"):
        case("avg_pool2d", [grid(*shape)], dict(params, count_include_pad=False), F.avg_pool2d)
case("max_pool2d", [distinct(1, 2, 7, 8)], dict(kernel_size=2, dilation=2), F.max_pool2d)
case("max_pool2d", [distinct(1, 2, 7, 8)], dict(kernel_size=[2, 3], dilation=[3, 1], stride=2, padding=1), F.max_pool2d)
for pool in ("max_pool2d", "avg_pool2d"):  # with ceil_mode, a window may be larger than the image
    case(pool, [distinct(1, 3, 2, 4)], dict(kernel_size=3, stride=3, ceil_mode=True), getattr(F, pool))
    case(pool, [distinct(2, 1, 1, 1)], dict(kernel_size=3, stride=3, padding=[1, 0], ceil_mode=True), getattr(F, pool))
case("max_pool2d", [distinct(0, 2, 4, 4)], dict(kernel_size=2), F.max_pool2d)
case("avg_pool2d", [distinct(0, 2, 4, 4)], dict(kernel_size=2), F.avg_pool2d)
# With ties, the first maximum gets the gradient.
case("max_pool2d", [f64([[[[1, 1, 2, 2], [1, 1, 2, 2], [0, 3, 3, 0], [3, 0, 0, 3]]]])], dict(kernel_size=2),
     F.max_pool2d, tags="no_gradcheck")
case("max_pool2d", [f64([[[[0, 0, 0], [0, 0, 0], [0, 0, 0]]]])], dict(kernel_size=3, stride=1, padding=1), F.max_pool2d,
     tags="no_gradcheck")
SPECIAL = f64([[[[-INF, -INF, 1, NAN], [-INF, -INF, INF, 2], [1e30, -1e30, 1e-30, 0], [3, 4, NAN, NAN]]]])
for op in ("max_pool2d", "avg_pool2d"):
    case(op, [SPECIAL], dict(kernel_size=2), getattr(F, op), tags="extreme no_gradcheck")
    case(op, [SPECIAL], dict(kernel_size=3, stride=1, padding=1), getattr(F, op), tags="extreme no_gradcheck")

for shape, size in (((2, 3, 4, 6), 2), ((1, 2, 5, 7), 3), ((1, 2, 5, 7), [1, 1]), ((3, 5, 4), [2, 3]), ((1, 1, 3, 3), 5),
                    ((1, 2, 7, 4), [4, 4]), ((1, 9, 2, 2), 1), ((0, 2, 4, 4), 2)):
    case("adaptive_avg_pool2d", [grid(*shape)], dict(output_size=size), F.adaptive_avg_pool2d)
# PyTorch's backward refuses results without elements.
for shape, size in (((2, 3, 4, 6), 0), ((2, 3, 4), [0, 2]), ((1, 2, 3, 3), [2, 0])):
    case("adaptive_avg_pool2d", [grid(*shape)], dict(output_size=size), F.adaptive_avg_pool2d, tags="no_grad no_gradcheck")
case("adaptive_avg_pool2d", [SPECIAL], dict(output_size=2), F.adaptive_avg_pool2d, tags="extreme no_gradcheck")
