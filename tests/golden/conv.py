import torch.nn.functional as F

from cases import case, f64, grid

INF, NAN = float("inf"), float("nan")


def small(*shape, seed=1):
    """Returns values with few significant bits, so that sums of many products have small rounding errors."""
    return grid(*shape, seed=seed, low=-1, high=1)


def conv(x, w, bias=True, tags="", **params):
    case("conv2d", [small(*x), small(*w, seed=2), small(w[0], seed=3) if bias else None], params, F.conv2d, tags)


conv((2, 3, 5, 6), (4, 3, 3, 3))
conv((2, 3, 5, 6), (4, 3, 3, 3), bias=False)
conv((1, 1, 4, 4), (1, 1, 1, 1))
conv((2, 1, 7, 5), (3, 1, 5, 5), padding=2)  # one input channel, as for images of digits (MNIST)
conv((2, 3, 6, 5), (2, 3, 3, 3), stride=2, padding=1)
conv((1, 3, 7, 8), (2, 3, 3, 2), stride=[2, 3], padding=[1, 0])
conv((1, 2, 8, 7), (3, 2, 3, 3), dilation=2)
conv((1, 2, 7, 9), (2, 2, 2, 3), dilation=[3, 2], padding=[2, 1], stride=[1, 2])
conv((2, 4, 4, 5), (6, 2, 3, 3), groups=2, padding=1)
conv((2, 3, 4, 5), (3, 1, 3, 3), groups=3, bias=False)  # depthwise
conv((1, 4, 5, 5), (8, 1, 3, 2), groups=4, stride=2, padding=1)
conv((1, 2, 3, 3), (2, 2, 3, 3))  # the kernel is as large as the image, so there is one output pixel
conv((1, 2, 1, 6), (2, 2, 1, 3), padding=[0, 1])
conv((1, 2, 6, 1), (2, 2, 3, 1))
conv((2, 5, 3, 4), (7, 5, 1, 1))  # a 1 x 1 kernel is a matrix product
conv((2, 5, 4, 4), (3, 5, 1, 1), stride=2)
conv((1, 2, 5, 6), (2, 2, 2, 2), stride=3)  # no window contains row 2, column 2 or column 5
conv((1, 1, 3, 3), (1, 1, 3, 3), padding=4)  # some windows contain only padding
conv((1, 9, 4, 3), (17, 9, 2, 2), bias=False)  # the numbers of channels are not multiples of a vector width
conv((0, 2, 4, 4), (3, 2, 3, 3))
case("conv2d", [f64([[[[1, INF, 0], [0, 1, 2], [1, 0, 1]]]]), f64([[[[1, 2], [3, 4]]]]), None], {}, F.conv2d,
     tags="extreme no_gradcheck")
case("conv2d", [f64([[[[1, 1, 0], [0, NAN, 2], [1, 0, 1]]]]), f64([[[[1, 2], [3, 4]]]]), f64([1])], dict(padding=1),
     F.conv2d, tags="extreme no_gradcheck")
case("conv2d", [f64([[[[1e30, 1], [1e-30, 2]]]]), f64([[[[1e-30, 1e4], [1e30, 1]]]]), None], dict(padding=1), F.conv2d,
     tags="extreme no_gradcheck")

# Tapestry refuses a window of no elements.
SKIPS = {"conv2d": lambda x, w, b, **params: 0 in w.shape[2:]}
