"""Convolutions of 1 and 3 dimensions, and transposed convolutions. conv.py has those of conv2d."""
import torch.nn.functional as F

from cases import case, f64, grid

INF, NAN = float("inf"), float("nan")


def small(*shape, seed=1):
    """Returns values with few significant bits, so that sums of many products have small rounding errors."""
    return grid(*shape, seed=seed, low=-1, high=1)


def conv(name, x, w, bias=True, tags="", **params):
    transposed = "transpose" in name
    out = w[1] * params.get("groups", 1) if transposed else w[0]
    fn = getattr(F, name.split("/")[0])
    case(name, [small(*x), small(*w, seed=2), small(out, seed=3) if bias else None], params, fn, tags)


conv("conv1d", (2, 3, 9), (4, 3, 3))
conv("conv1d", (2, 3, 9), (4, 3, 4), bias=False, stride=2, padding=3)
conv("conv1d", (3, 7), (4, 3, 2), dilation=3, padding=1)  # without a batch
conv("conv1d", (1, 4, 8), (6, 2, 3), groups=2, dilation=2, stride=3, padding=2)
conv("conv1d", (2, 3, 5), (6, 1, 3), groups=3)  # depthwise
conv("conv1d", (2, 5, 4), (3, 5, 1))  # a matrix product
conv("conv1d", (0, 2, 5), (3, 2, 3))
conv("conv2d/unbatched", (3, 5, 4), (2, 3, 3, 2), padding=1)  # without a batch

conv("conv3d", (2, 2, 4, 5, 3), (3, 2, 2, 3, 2))
conv("conv3d", (1, 2, 5, 4, 4), (2, 2, 3, 3, 3), bias=False, padding=1, stride=2)
conv("conv3d", (2, 5, 4, 3), (3, 2, 3, 2, 2), padding=[2, 1, 0], stride=[2, 1, 1], dilation=[2, 1, 2])
conv("conv3d", (1, 4, 3, 3, 4), (6, 2, 2, 2, 2), groups=2, padding=[1, 0, 1])
conv("conv3d", (1, 3, 3, 3, 2), (3, 1, 2, 2, 2), groups=3)  # depthwise
conv("conv3d", (2, 3, 4, 2, 3), (2, 3, 3, 1, 1), padding=[1, 0, 0], stride=[2, 1, 1])  # merges height and width
conv("conv3d", (2, 3, 2, 2, 5), (2, 3, 1, 1, 3), padding=[0, 0, 2], dilation=[1, 1, 2])  # merges depth and height
conv("conv3d", (2, 3, 2, 3, 2), (4, 3, 1, 1, 1))
conv("conv3d", (1, 2, 3, 4, 3), (2, 2, 1, 2, 2), stride=[2, 1, 1])
conv("conv3d", (1, 1, 2, 3, 3), (2, 1, 2, 2, 2), padding=[3, 1, 1])  # some windows contain only padding
conv("conv3d", (0, 2, 3, 3, 3), (3, 2, 2, 2, 2))

# Padding by name. An odd number of zeros, as for windows of even size, has one more zero at the end.
conv("conv1d/named", (2, 3, 8), (4, 3, 4), padding="same")
conv("conv1d/named", (3, 6), (2, 3, 4), padding="same", dilation=2)  # without a batch
conv("conv1d/named", (1, 4, 5), (6, 2, 3), padding="valid", groups=2, stride=2)
conv("conv1d/named", (0, 2, 5), (3, 2, 2), padding="same")
conv("conv2d/named", (2, 3, 5, 6), (4, 3, 3, 3), padding="same")
conv("conv2d/named", (2, 2, 4, 5), (3, 2, 2, 3), padding="same", bias=False)  # odd along the height
conv("conv2d/named", (1, 2, 5, 4), (2, 1, 3, 4), padding="same", dilation=[1, 3], groups=2)  # odd along the width
conv("conv2d/named", (1, 2, 5, 4), (3, 2, 3, 2), padding="valid", stride=[2, 1])
conv("conv3d/named", (1, 2, 3, 4, 3), (2, 2, 2, 3, 4), padding="same")
conv("conv3d/named", (2, 3, 2, 3), (3, 2, 3, 1, 2), padding="same", dilation=[1, 1, 2])
conv("conv3d/named", (1, 2, 3, 3, 2), (2, 2, 2, 2, 1), padding="valid")

conv("conv_transpose1d", (2, 3, 4), (3, 2, 3))
conv("conv_transpose1d", (3, 4), (3, 4, 4), stride=3, padding=2, output_padding=1, dilation=2)  # without a batch
conv("conv_transpose1d", (2, 4, 3), (4, 3, 2), groups=2, stride=2, output_padding=1, bias=False)
conv("conv_transpose1d", (1, 2, 3), (2, 2, 2), dilation=3, output_padding=2)  # output_padding is more than the stride
conv("conv_transpose1d", (0, 2, 3), (2, 3, 2))

conv("conv_transpose2d", (2, 3, 3, 4), (3, 4, 3, 3))
conv("conv_transpose2d", (2, 3, 3, 4), (3, 2, 4, 4), stride=2, padding=1, bias=False)
conv("conv_transpose2d", (3, 3, 2), (3, 4, 3, 2), stride=[2, 3], padding=[1, 0], output_padding=[1, 2])
conv("conv_transpose2d", (1, 4, 3, 3), (4, 3, 3, 2), groups=2, dilation=[1, 2], stride=2, output_padding=1)
conv("conv_transpose2d", (2, 3, 3, 3), (3, 1, 3, 3), groups=3, stride=2, padding=1)  # depthwise
conv("conv_transpose2d", (1, 2, 3, 2), (2, 3, 2, 2), dilation=[3, 2], output_padding=[2, 1])
conv("conv_transpose2d", (2, 5, 3, 2), (5, 3, 1, 1))
conv("conv_transpose2d", (1, 2, 2, 2), (2, 2, 2, 2), stride=3, output_padding=2)  # some pixels are the bias alone
conv("conv_transpose2d", (1, 1, 3, 3), (1, 2, 3, 3), padding=2)
conv("conv_transpose2d", (0, 2, 3, 3), (2, 3, 2, 2))

conv("conv_transpose3d", (2, 2, 2, 3, 2), (2, 3, 2, 2, 3))
conv("conv_transpose3d", (3, 2, 2, 2), (3, 2, 3, 2, 2), stride=[2, 1, 2], padding=[1, 0, 1], output_padding=[1, 0, 1])
conv("conv_transpose3d", (1, 4, 2, 2, 2), (4, 1, 2, 2, 2), groups=2, stride=2, dilation=[3, 1, 1],
     output_padding=[2, 1, 0], bias=False)
conv("conv_transpose3d", (2, 3, 3, 2, 2), (3, 2, 3, 1, 1), stride=[2, 1, 1], padding=[1, 0, 0])  # merges height and width
conv("conv_transpose3d", (1, 2, 1, 2, 2), (2, 2, 1, 2, 2), stride=[3, 1, 1], output_padding=[2, 0, 0])
conv("conv_transpose3d", (0, 2, 2, 2, 2), (2, 3, 2, 2, 2))


def extreme(name, x, w, bias=None, **params):
    """The values go along the last dimension; the others have size 1."""
    ones = [1] * (int(name[-2]) - 1)
    case(name, [f64(x).reshape(1, 1, *ones, -1), f64(w).reshape(1, 1, *ones, -1), bias], params, getattr(F, name),
         tags="extreme no_gradcheck")


for name in ("conv1d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"):
    extreme(name, [1, INF, 2, 1], [1, 2])
    extreme(name, [1, 1, NAN, 1], [3, 4], f64([1]))
    extreme(name, [1e30, 1, 1e-30], [1e-30, 1e4])
case("conv3d", [f64([[1, INF], [2, 1], [1, NAN]]).reshape(1, 1, 3, 2, 1), f64([[1, 2], [1, 1]]).reshape(1, 1, 2, 2, 1),
                f64([1])], {}, F.conv3d, tags="extreme no_gradcheck")
case("conv_transpose3d", [f64([[1, INF], [2, 1], [1, NAN]]).reshape(1, 1, 3, 2, 1),
                          f64([[1, 2], [1, 1]]).reshape(1, 1, 2, 2, 1), f64([1])], {}, F.conv_transpose3d,
     tags="extreme no_gradcheck")

# Tapestry refuses a window of no elements.
SKIPS = {f"conv{n}d{form}": lambda x, w, b, **params: 0 in w.shape[2:]
         for n in (1, 2, 3) for form in ("", "/named", "/unbatched")}
