import torch
import torch.nn.functional as F

from cases import case, f64, grid, positive

INF, NAN = float("inf"), float("nan")


def linear_relu(x, w, b):
    return F.relu(F.linear(x, w, b))


def linear_gelu(x, w, b, approximate="none"):
    return F.gelu(F.linear(x, w, b), approximate=approximate)


ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh")}


def feed_forward(x, w1, b1, w2, b2, activation="relu"):
    return F.linear(ACTIVATIONS[activation](F.linear(x, w1, b1)), w2, b2)


def small(*shape, seed=1):
    return grid(*shape, seed=seed, low=-1, high=1)


for x, w in (((5,), (4, 5)), ((2, 2, 3), (4, 3)), ((0, 5), (4, 5)), ((3, 0), (4, 0))):
    for bias in (small(w[0], seed=3) + 0.03125, None):
        inputs = [small(*x), small(*w, seed=2), bias]
        # Without a bias, a product of no columns is 0, the kink of relu.
        case("linear_relu", inputs, fn=linear_relu, tags="no_gradcheck" if bias is None or 0 in x else "")
        for approximate in ("none", "tanh"):
            case("linear_gelu", inputs, dict(approximate=approximate), linear_gelu)
extreme = [f64([[INF, 1], [1, 1], [-INF, 2]]), f64([[1, 2], [3, 4]]), f64([0, NAN])]
case("linear_relu", extreme, fn=linear_relu, tags="extreme no_gradcheck no_grad")
case("linear_gelu", [f64([[1e3, 1], [-1e3, 1], [1e30, 0]]), f64([[1, 0], [0, 1]]), f64([0, NAN])], fn=linear_gelu,
     tags="extreme no_gradcheck no_grad")

for activation in ACTIVATIONS:
    for x, h, out in (((5,), 3, 2), ((2, 2, 3), 4, 2), ((0, 5), 4, 2)):
        for biased in (True, False):
            if activation == "relu" and not biased:
                continue
            b1, b2 = (small(h, seed=3) + 0.03125, small(out, seed=5)) if biased else (None, None)
            case("feed_forward", [small(*x), small(h, x[-1], seed=2), b1, small(out, h, seed=4), b2],
                 dict(activation=activation), feed_forward)
case("feed_forward", [f64([[INF, 1], [1, 1], [-INF, 2]]), f64([[1, 2], [3, 4]]), f64([0, NAN]), f64([[1, 0], [0, 1]]), None],
     fn=feed_forward, tags="extreme no_gradcheck no_grad")


def add_layer_norm(x, r, w, b, normalized_shape, eps=1e-5):
    s = x + r
    return [s, F.layer_norm(s, normalized_shape, w, b, eps)]


def add_rms_norm(x, r, w, normalized_shape, eps=None):
    s = x + r
    return [s, F.rms_norm(s, normalized_shape, w, eps)]


for shape, normalized in (((3, 6), [6]), ((2, 2, 3), [2, 3]), ((7,), [7]), ((0, 4), [4])):
    x, r = grid(*shape), grid(*shape, seed=8, low=-1, high=1)
    w, b = positive(*normalized, seed=5, high=2), grid(*normalized, seed=6, low=-1, high=1)
    case("add_layer_norm", [x, r, w, b], dict(normalized_shape=normalized), add_layer_norm)
    case("add_layer_norm", [x, r, None, None], dict(normalized_shape=normalized, eps=0.25), add_layer_norm)
    case("add_rms_norm", [x, r, w], dict(normalized_shape=normalized), add_rms_norm)
    case("add_rms_norm", [x, r, None], dict(normalized_shape=normalized, eps=0.25), add_rms_norm)
x, r = f64([[1, INF, 1, 1], [NAN, 0, 1, 2], [1, 2, 3, 4]]), f64([[1, -INF, 1, 1], [1, 0, 1, 2], [0, 0, 0, -INF]])
case("add_layer_norm", [x, r, None, None], dict(normalized_shape=[4]), add_layer_norm, tags="extreme no_gradcheck no_grad")
case("add_rms_norm", [x, r, None], dict(normalized_shape=[4]), add_rms_norm, tags="extreme no_gradcheck no_grad")


def conv2d_relu(x, w, b, same=False, **params):
    params = dict(params, padding="same") if same else params
    return F.relu(F.conv2d(x, w, b, **params))


for x, w, params in (((1, 2, 4, 4), (2, 2, 3, 3), {}), ((1, 2, 4, 3), (2, 2, 3, 3), dict(stride=2, padding=1)),
                     ((1, 2, 3, 3), (4, 1, 3, 3), dict(groups=2, padding=1)), ((2, 3, 4), (2, 2, 3, 3), dict(same=True)),
                     ((1, 2, 2, 3), (3, 2, 1, 1), {}), ((0, 3, 4, 4), (2, 3, 3, 3), {})):
    # The bias keeps the sums of multiples of 1 / 64 away from 0, the kink of relu.
    case("conv2d_relu", [small(*x), small(*w, seed=2), small(w[0], seed=3) + 0.001953125], params, conv2d_relu)
case("conv2d_relu", [small(2, 3, 4, 4), small(2, 3, 2, 2, seed=2), None], {}, conv2d_relu, tags="no_gradcheck")
case("conv2d_relu", [f64([[[[INF, 1, -1], [NAN, 2, 0], [1, -INF, 3]]]]), f64([[[[1, 0], [0, 1]]]]), None], {}, conv2d_relu,
     tags="extreme no_gradcheck no_grad")


def classes(*values):
    return torch.tensor(values)


def cross_entropy(x, t, weight=None, **params):
    return F.cross_entropy(x, t, weight=None if weight is None else torch.tensor(weight, dtype=x.dtype), **params)


for reduction in ("mean", "sum", "none"):
    p = dict(reduction=reduction)
    # gradcheck runs several passes over a graph of several outputs, and a graph has one pass here.
    tags = "no_gradcheck" if reduction == "none" else ""
    case("cross_entropy_", [grid(4, 5), classes(3, -100, 0, 4)], p, cross_entropy, tags)
    case("cross_entropy_", [grid(2, 3, 4), torch.tensor([[0, 2, 1, 1], [2, 2, -100, 0]])], p, cross_entropy, tags)
    case("cross_entropy_", [grid(4, 3), classes(2, -100, 0, 1)], dict(label_smoothing=0.125, **p), cross_entropy, tags)
    case("cross_entropy_", [grid(0, 3), torch.zeros(0, dtype=torch.int64)], dict(reduction="sum"), cross_entropy)
case("cross_entropy_", [grid(5), torch.tensor(2)], {}, cross_entropy)
case("cross_entropy_", [grid(4, 5), grid(4, 5, seed=2, low=0, high=1)], {}, cross_entropy)
case("cross_entropy_", [f64([[INF, 0], [1024, -1024], [NAN, 0]]), classes(0, 1, 0)], dict(reduction="none"), cross_entropy,
     tags="extreme no_gradcheck no_grad")


def batch_norm_relu(x, r, mean, var, weight, bias, training):
    """Returns the result and the updated running statistics."""
    mean, var = (None if s is None else s.detach().clone() for s in (mean, var))
    y = F.batch_norm(x, mean, var, weight, bias, training)
    return [F.relu(y if r is None else y + r)] + [s for s in (mean, var) if s is not None]


for shape in ((5, 3), (3, 2, 2, 3), (2, 9, 2, 1)):
    c = shape[1]
    for residual in (grid(*shape, seed=8, low=-1, high=1), None):
        for training in (True, False):
            case("batch_norm_relu", [grid(*shape), residual, grid(c, seed=3, low=-1, high=1), positive(c, seed=4, high=3),
                                     positive(c, seed=5, high=2), grid(c, seed=6, low=-1, high=1)], dict(training=training),
                 batch_norm_relu, constant=[2, 3])
case("batch_norm_relu", [grid(4, 3), None, None, None, None, None], dict(training=True), batch_norm_relu)
case("batch_norm_relu", [grid(0, 2, 3), grid(0, 2, 3), grid(2), positive(2), None, None], dict(training=False), batch_norm_relu,
     constant=[2, 3])
case("batch_norm_relu", [f64([[1, INF], [NAN, -INF]]), f64([[1, 2], [3, NAN]]), f64([0, 0]), f64([1, 1]), None, None],
     dict(training=False), batch_norm_relu, tags="extreme no_gradcheck no_grad", constant=[2, 3])

# Tapestry refuses to compute statistics of no values, and an evaluation without statistics.
SKIPS = {"batch_norm_relu": lambda x, r, mean, var, weight, bias, training: (training or mean is None) and x.numel() == 0}
