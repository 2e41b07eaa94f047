import torch
import torch.nn.functional as F

from cases import case, f64, grid, ints

INF, NAN = float("inf"), float("nan")
ALL_INTS = [torch.int64, torch.int32, torch.uint8, torch.bool]


def im2col(x, kernel_size, dilation=1, padding=0, stride=1):
    return F.unfold(x, kernel_size, dilation, padding, stride)


def col2im(x, output_size, kernel_size, dilation=1, padding=0, stride=1):
    return F.fold(x, output_size, kernel_size, dilation, padding, stride)


def fit_col2im(shapes, params):
    """For tools/fuzz_ops: one column per window, with one element per element of the kernel and channel."""
    def two(name, default):
        value = params.get(name, default)
        return value if isinstance(value, list) else [value, value]

    kernel = two("kernel_size", 1)
    windows = [(n + 2 * p - d * (k - 1) - 1) // s + 1 if s > 0 else 0
               for n, k, d, p, s in zip(two("output_size", 1), kernel, two("dilation", 1), two("padding", 0), two("stride", 1))]
    if min(windows) > 0 and min(kernel) > 0:
        shapes[0][-2:] = [max(1, shapes[0][-2] // 12) * kernel[0] * kernel[1], windows[0] * windows[1]]


FITS = {"col2im": fit_col2im}
case("im2col", [grid(2, 3, 4, 5)], dict(kernel_size=[3, 2]), im2col)
case("im2col", [grid(3, 4, 5)], dict(kernel_size=[2, 3], padding=[1, 0]), im2col)
case("im2col", [grid(1, 2, 7, 6)], dict(kernel_size=[3, 2], dilation=[2, 1], padding=[1, 2], stride=[2, 3]), im2col)
case("im2col", [grid(2, 1, 4, 4)], dict(kernel_size=[4, 4]), im2col)
case("im2col", [grid(2, 1, 4, 4)], dict(kernel_size=[1, 1], stride=[2, 2]), im2col)
case("im2col", [grid(0, 2, 4, 4)], dict(kernel_size=[2, 2]), im2col)
case("im2col", [f64([[[[NAN, INF, -INF], [1e30, -0.0, 1e-30]]]])], dict(kernel_size=[2, 2], padding=[0, 1]), im2col,
     tags="extreme no_gradcheck")

case("col2im", [grid(2, 12, 12)], dict(output_size=[4, 5], kernel_size=[2, 2]), col2im)
case("col2im", [grid(6, 16)], dict(output_size=[4, 5], kernel_size=[3, 2], padding=[1, 0]), col2im)
case("col2im", [grid(1, 12, 9)], dict(output_size=[7, 6], kernel_size=[3, 2], dilation=[2, 1], padding=[1, 2],
                                      stride=[2, 3]), col2im)
case("col2im", [grid(2, 16, 1)], dict(output_size=[4, 4], kernel_size=[4, 4]), col2im)
case("col2im", [grid(0, 4, 9)], dict(output_size=[4, 4], kernel_size=[2, 2]), col2im)
case("col2im", [f64([[[INF, 1.0], [NAN, -INF]]])], dict(output_size=[1, 3], kernel_size=[1, 2]), col2im,
     tags="extreme no_gradcheck")

shuffle = lambda x, factor: F.pixel_shuffle(x, factor)
unshuffle = lambda x, factor: F.pixel_unshuffle(x, factor)


def in_reals(fn):
    """PyTorch has no kernels for some integers; floats hold the values of the cases exactly."""
    return lambda x, factor: fn(x.to(torch.float32), factor).to(x.dtype)


for factor, shape in ((2, (2, 8, 2, 3)), (3, (9, 2, 1)), (1, (2, 3, 2, 2)), (2, (2, 2, 4, 1, 2)), (1, (0, 4, 2, 2))):  # PyTorch's results for empty tensors and other factors have wrong shapes
    case("pixel_shuffle", [grid(*shape)], dict(factor=factor), shuffle)
    big = [*shape[:-3], shape[-3] // factor**2, shape[-2] * factor, shape[-1] * factor]
    case("pixel_unshuffle", [grid(*big)], dict(factor=factor), unshuffle)
case("pixel_shuffle", [f64([NAN, INF, -INF, -0.0]).reshape(4, 1, 1)], dict(factor=2), shuffle,
     tags="extreme no_gradcheck")
case("pixel_unshuffle", [f64([NAN, INF, -INF, -0.0]).reshape(1, 2, 2)], dict(factor=2), unshuffle,
     tags="extreme no_gradcheck")
case("pixel_shuffle", [ints(4, 1, 2, low=0)], dict(factor=2), in_reals(shuffle), dtypes=ALL_INTS)
case("pixel_unshuffle", [ints(1, 2, 4, low=0)], dict(factor=2), in_reals(unshuffle), dtypes=ALL_INTS)
