import torch.nn.functional as F

from cases import case, f64, grid

INF, NAN = float("inf"), float("nan")


def interpolate(x, **params):
    return F.interpolate(x, **params)


def resize(x, **params):
    # The cubic weights are differences of large terms of a rounded coordinate, whose error the scales do not include.
    case("interpolate", [x], params, interpolate, slack=8 if params["mode"] == "bicubic" else 1)


SHAPES = {1: (2, 3, 5), 2: (1, 2, 4, 5), 3: (1, 2, 3, 2, 3)}
MODES = {1: ("nearest", "nearest-exact", "linear", "area"), 2: ("nearest", "nearest-exact", "bilinear", "bicubic", "area"),
         3: ("nearest", "nearest-exact", "trilinear", "area")}
SIZES = {1: ([8], [3], [5], [1]), 2: ([7, 9], [2, 3], [4, 5], [3, 8], [1, 1]), 3: ([4, 3, 5], [2, 2, 1])}
FACTORS = {1: (2.0, 0.6), 2: ([2.0, 2.0], [1.6, 0.7]), 3: ([1.4, 2.0, 0.7],)}
for dims, shape in SHAPES.items():
    for mode in MODES[dims]:
        aligns = [dict(), dict(align_corners=True)] if "linear" in mode or "cubic" in mode else [dict()]
        for align in aligns:
            for size in SIZES[dims]:
                resize(grid(*shape), size=size, mode=mode, **align)
            for factor in FACTORS[dims]:
                resize(grid(*shape), scale_factor=factor, mode=mode, **align)
        resize(grid(*shape), scale_factor=1.7, mode=mode, recompute_scale_factor=True)
for mode in ("bilinear", "bicubic"):
    for size in ([2, 3], [7, 2], [6, 11]):
        for align in (dict(), dict(align_corners=True)):
            resize(grid(1, 2, 5, 7), size=size, mode=mode, antialias=True, **align)
    resize(grid(1, 1, 6, 6), scale_factor=[0.4, 0.6], mode=mode, antialias=True)
# The rounding of the scale decides which element is the nearest.
for size in (3, 7, 9, 21, 49):
    for mode in ("nearest", "nearest-exact"):
        resize(grid(1, 1, 7), size=[size], mode=mode)
resize(grid(0, 2, 4, 4), size=[2, 3], mode="bilinear")
SPECIAL = f64([[[[-INF, 2, 1, NAN], [5, -1, INF, 2], [1e30, -1e30, 1e-30, 0], [3, 4, 5, NAN]]]])
for mode in ("nearest", "nearest-exact", "bilinear"):
    case("interpolate", [SPECIAL], dict(size=[7, 3], mode=mode), interpolate, tags="extreme no_gradcheck")
