import torch.nn.functional as F

from cases import case, f64, grid, positive

INF, NAN = float("inf"), float("nan")


def batch_norm(x, mean, var, weight, bias, training, momentum=0.1, eps=1e-5):
    """Returns the result and the updated running statistics."""
    mean, var = (None if s is None else s.detach().clone() for s in (mean, var))
    y = F.batch_norm(x, mean, var, weight, bias, training, momentum, eps)
    return [y] + [s for s in (mean, var) if s is not None]


def batch(x, mean, var, weight, bias, tags="", **params):
    case("batch_norm", [x, mean, var, weight, bias], params, batch_norm, tags, constant=[1, 2])


def statistics(c):
    return [grid(c, seed=3, low=-1, high=1), positive(c, seed=4, high=3)]


def affine(c):
    return [positive(c, seed=5, high=2), grid(c, seed=6, low=-1, high=1)]


for shape in ((5, 3), (4, 2, 5), (3, 2, 2, 3), (1, 2, 3, 3), (2, 1, 3, 2), (2, 2, 1, 2, 2), (2, 9, 2, 1)):
    c = shape[1]
    x = grid(*shape)
    for training in (True, False):
        batch(x, *statistics(c), *affine(c), training=training)
    batch(x, *statistics(c), None, None, training=True)
    batch(x, None, None, *affine(c), training=True)
x = grid(3, 2, 2, 3)
batch(x, *statistics(2), affine(2)[0], None, training=True, momentum=0.5, eps=0.25)
batch(x, *statistics(2), None, affine(2)[1], training=False, eps=0.25)
batch(x, *statistics(2), None, None, training=True, momentum=0.0)
batch(x, *statistics(2), None, None, training=True, momentum=1.0)
batch(x + 256, *statistics(2), *affine(2), training=True)  # the mean is large compared with the variance
batch(grid(0, 2, 3), *statistics(2), *affine(2), training=False)
batch(f64([[1, 2], [1, 4], [1, -3]]), *statistics(2), *affine(2), training=True, tags="extreme no_gradcheck")  # channel 0 has variance 0
batch(f64([[1, INF], [NAN, 4]]), *statistics(2), *affine(2), training=True, tags="extreme no_gradcheck no_grad")
batch(f64([[1, INF], [NAN, -INF]]), *statistics(2), *affine(2), training=False, tags="extreme no_gradcheck no_grad")
batch(f64([[1e15, 1], [-1e15, -1], [0, 3]]), *statistics(2), *affine(2), training=True, tags="extreme no_gradcheck")

def layer_norm(x, weight, bias, normalized_shape, eps=1e-5):
    return F.layer_norm(x, normalized_shape, weight, bias, eps)


for shape, normalized in (((5, 6), [6]), ((2, 3, 5), [5]), ((2, 3, 4), [3, 4]), ((7,), [7]), ((2, 2, 3, 2), [2, 3, 2]),
                          ((3, 37), [37])):
    x, w, b = grid(*shape), positive(*normalized, seed=5, high=2), grid(*normalized, seed=6, low=-1, high=1)
    case("layer_norm", [x, w, b], dict(normalized_shape=normalized), layer_norm)
    case("layer_norm", [x, None, None], dict(normalized_shape=normalized), layer_norm)
w, b = affine(4)
# A row of two values always normalises to about -1 and 1. So its gradient is almost 0, and it is computed as a
# difference of larger numbers. It is not compared, because only rounding errors remain.
case("layer_norm", [grid(3, 2), None, None], dict(normalized_shape=[2]), layer_norm, tags="no_grad")
case("layer_norm", [grid(3, 4), w, None], dict(normalized_shape=[4], eps=0.25), layer_norm)
case("layer_norm", [grid(3, 4), None, b], dict(normalized_shape=[4]), layer_norm)
case("layer_norm", [grid(3, 4) + 256, w, b], dict(normalized_shape=[4]), layer_norm)
case("layer_norm", [grid(3, 1), None, None], dict(normalized_shape=[1]), layer_norm, tags="no_gradcheck")  # one value per row: the variance is 0
case("layer_norm", [grid(0, 4), w, b], dict(normalized_shape=[4]), layer_norm)
case("layer_norm", [f64([[1, 1, 1, 1], [1e15, -1e15, 0, 1], [1e-15, 0, 0, 0]]), w, b], dict(normalized_shape=[4]),
     layer_norm, tags="extreme no_gradcheck")
case("layer_norm", [f64([[1, INF, 1, 1], [NAN, 0, 1, 2]]), w, b], dict(normalized_shape=[4]), layer_norm,
     tags="extreme no_gradcheck no_grad")


def rms_norm(x, weight, normalized_shape, eps=None):
    return F.rms_norm(x, normalized_shape, weight, eps)


for shape, normalized in (((5, 6), [6]), ((2, 3, 5), [5]), ((2, 3, 4), [3, 4]), ((7,), [7]), ((2, 2, 3, 2), [2, 3, 2]),
                          ((3, 37), [37])):
    x, w = grid(*shape), positive(*normalized, seed=5, high=2)
    case("rms_norm", [x, w], dict(normalized_shape=normalized), rms_norm)
    case("rms_norm", [x, None], dict(normalized_shape=normalized, eps=1e-3), rms_norm)
w = affine(4)[0]
case("rms_norm", [grid(3, 4), w], dict(normalized_shape=[4], eps=0.25), rms_norm)
case("rms_norm", [grid(3, 4) + 256, w], dict(normalized_shape=[4], eps=0.0), rms_norm)
# One value per row normalises to -1 or 1, so its gradient is a difference of almost equal numbers.
case("rms_norm", [positive(3, 1), None], dict(normalized_shape=[1]), rms_norm, tags="no_grad no_gradcheck")
case("rms_norm", [grid(0, 4), w], dict(normalized_shape=[4]), rms_norm)
case("rms_norm", [f64([[1e15, -1e15, 0, 1], [1e-15, 0, 0, 0], [3, 3, 3, 3]]), w], dict(normalized_shape=[4], eps=1e-6), rms_norm,
     tags="extreme no_gradcheck")
case("rms_norm", [f64([[0, 0, 0, 0]]), w], dict(normalized_shape=[4], eps=1e-3), rms_norm, tags="extreme")
case("rms_norm", [f64([[1, INF, 1, 1], [NAN, 0, 1, 2], [1, 2, 3, 4]]), w], dict(normalized_shape=[4]), rms_norm,
     tags="extreme no_gradcheck no_grad")

# Tapestry refuses to compute statistics of no values, and an evaluation without statistics.
SKIPS = {"batch_norm": lambda x, mean, var, weight, bias, training, **params: (training or mean is None) and x.numel() == 0}
