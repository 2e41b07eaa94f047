import torch
import torch.nn.functional as F

from cases import case, f64, grid

INF, NAN = float("inf"), float("nan")


def sample(x, points, mode, padding, align):
    return F.grid_sample(x, points, mode=mode, padding_mode=padding, align_corners=align)


def points(*shape, low=-1.5, high=1.5, seed=3):
    """Multiples of 1/16 with an offset, so that no point lies on a pixel, where the derivative would not exist."""
    return grid(*shape, low=low, high=high, seed=seed) + 0.0078125


for align in (False, True):
    for padding in ("zeros", "border", "reflection"):
        for mode in ("bilinear", "nearest", "bicubic"):
            # Where all cubic taps are the same pixel, the gradient is 0 but for the rounding of the weights, and so is
            # its scale.
            one_pixel = mode == "bicubic" and padding == "border"
            case("grid_sample", [grid(2, 2, 4, 5), points(2, 3, 3, 2, low=-1, high=1) if one_pixel else points(2, 3, 3, 2)],
                 dict(mode=mode, padding=padding, align=align), sample)
            if one_pixel:
                continue
            # f32 and 16-bit coordinates have other roundings there.
            case("grid_sample", [grid(1, 1, 3, 3), points(1, 2, 5, 2, low=-6, high=6)],
                 dict(mode=mode, padding=padding, align=align), sample, slack=4)
        for mode in ("bilinear", "nearest"):
            case("grid_sample", [grid(1, 2, 3, 2, 4), points(1, 2, 2, 2, 3)],
                 dict(mode=mode, padding=padding, align=align), sample)
for padding in ("zeros", "border", "reflection"):
    case("grid_sample", [grid(1, 9, 1, 1), points(1, 2, 2, 2)], dict(mode="bilinear", padding=padding, align=False), sample)
corners = f64([[[[-1, -1], [1, -1], [0, 0]], [[-1, 1], [1, 1], [0.5, -0.5]]]])
for padding in ("zeros", "border", "reflection"):
    case("grid_sample", [grid(1, 2, 3, 5), corners], dict(mode="bilinear", padding=padding, align=True), sample,
         tags="no_gradcheck")
case("grid_sample", [grid(0, 2, 3, 3), grid(0, 2, 2, 2)], dict(mode="bilinear", padding="zeros", align=False), sample)
SPECIAL = f64([[[[INF, 1, NAN], [2, -INF, 3], [1e30, 4, -1e30]]]])
for padding in ("zeros", "border"):
    case("grid_sample", [SPECIAL, points(1, 4, 4, 2)], dict(mode="bilinear", padding=padding, align=False), sample,
         tags="extreme no_gradcheck no_grad")
case("grid_sample", [grid(1, 1, 3, 3), f64([[[[1e30, 0], [-1e30, 0.25], [0, 1e9], [0.3, -1e9]]]])],
     dict(mode="bilinear", padding="zeros", align=False), sample, tags="extreme no_gradcheck")
# Coordinates that are not finite. PyTorch's backward of bilinear samples ends the process where border and
# reflection move such a point to a pixel, and its CPU kernels for volumes disagree with its documentation there.
for x, y in ((NAN, 0.25), (0.25, NAN), (NAN, NAN), (INF, 0.25), (0.25, -INF)):
    for align in (False, True):
        for padding in ("zeros", "border", "reflection"):
            for mode in ("bilinear", "nearest", "bicubic"):
                crashes = mode == "bilinear" and padding != "zeros"
                case("grid_sample", [grid(1, 2, 3, 4), f64([[[[x, y], [0.125, -0.3125]]]])],
                     dict(mode=mode, padding=padding, align=align), sample,
                     tags="extreme no_gradcheck" + (" no_grad" if crashes else ""))
        for mode in ("bilinear", "nearest"):
            case("grid_sample", [grid(1, 1, 2, 3, 4), f64([[[[[x, 0.125, y]]]]])],
                 dict(mode=mode, padding="zeros", align=align), sample, tags="extreme no_gradcheck")
# Cubic kernels far outside move to the border.
case("grid_sample", [grid(1, 1, 3, 3), f64([[[[1e10, 0], [-1e10, 0.25]]]])],
     dict(mode="bicubic", padding="border", align=False), sample, tags="extreme no_gradcheck no_grad")

affine = lambda theta, size, align: F.affine_grid(theta, size, align_corners=align)
for align in (False, True):
    for size in ([2, 3, 4, 5], [2, 1, 1, 3], [2, 1, 2, 1]):
        case("affine_grid", [grid(2, 2, 3)], dict(size=size, align=align), affine)
    case("affine_grid", [grid(1, 3, 4)], dict(size=[1, 2, 2, 3, 4], align=align), affine)
case("affine_grid", [f64([[[INF, 0, 1], [NAN, 1e30, 0]]])], dict(size=[1, 1, 2, 2], align=True), affine,
     tags="extreme no_gradcheck")

# PyTorch documents bicubic samples for images alone, but does not refuse volumes, as Tapestry does.
SKIPS = {"grid_sample": lambda x, points, mode, **params: mode == "bicubic" and x.dim() != 4}
