import torch
import torch.nn.functional as F

from cases import case, f64, grid, ints

INF, NAN = float("inf"), float("nan")
REDUCTIONS = ("none", "mean", "sum")
WEIGHT = [0.5, 2.25, 1.75]


def classes(*values):
    return torch.tensor(values, dtype=torch.int64)


def targets(*shape, n, seed=1):
    return ints(*shape, seed=seed, low=0, high=n)


def loss(fn):
    """Wraps fn so that the class weights are a parameter and not an input. So their gradient is not recorded."""
    return lambda x, t, weight=None, **params: fn(
        x, t, weight=None if weight is None else torch.tensor(weight, dtype=x.dtype), **params)


cross_entropy, nll = loss(F.cross_entropy), loss(F.nll_loss)
for op, fn in (("cross_entropy", cross_entropy), ("nll_loss", nll)):
    for reduction in REDUCTIONS:
        p = dict(reduction=reduction)
        case(op, [grid(4, 5), targets(4, n=5)], p, fn)
        case(op, [grid(3, 37), targets(3, n=37)], p, fn)
        case(op, [grid(5), classes(3).reshape(())], p, fn)
        case(op, [grid(2, 3, 4), targets(2, 4, n=3)], p, fn)
        case(op, [grid(2, 3, 2, 3), targets(2, 2, 3, n=3)], p, fn)
        case(op, [grid(4, 3), classes(2, -100, 0, -100)], p, fn)
        case(op, [grid(4, 3), classes(2, 1, 0, 1)], dict(ignore_index=1, **p), fn)
        case(op, [grid(4, 3), classes(2, 1, 0, 1)], dict(weight=WEIGHT, **p), fn)
        case(op, [grid(2, 3, 4), targets(2, 4, n=3)], dict(weight=WEIGHT, ignore_index=0, **p), fn)
        # All targets are ignored, so the mean is over no rows.
        case(op, [grid(2, 3), classes(-100, -100)], p, fn, tags="extreme no_gradcheck")
        case(op, [grid(0, 3), classes()], p, fn)
        case(op, [grid(3, 1), classes(0, 0, 0)], p, fn)
    case(op, [grid(4, 5), targets(4, n=5).to(torch.uint8)], {}, fn if op == "nll_loss" else
         lambda x, t, **p: F.cross_entropy(x, t.long(), **p))
    case(op, [f64([[1024, 0, -1024], [60000, 60000, -60000], [-1024, 3, 2]]), classes(1, 0, 0)], dict(reduction="none"), fn,
         tags="extreme no_gradcheck")
    case(op, [f64([[-INF, 0, 1], [0, -INF, 1], [NAN, 0, 1]]), classes(1, 1, 1)], dict(reduction="none"), fn,
         tags="extreme no_gradcheck")
case("cross_entropy", [f64([[-INF, -INF], [INF, 0]]), classes(0, 1)], dict(reduction="none"), cross_entropy,
     tags="extreme no_gradcheck")

for reduction in REDUCTIONS:
    for smoothing in (0.125, 1.0):
        p = dict(reduction=reduction, label_smoothing=smoothing)
        case("cross_entropy", [grid(4, 5), classes(3, -100, 0, 4)], p, cross_entropy)
        case("cross_entropy", [grid(2, 3, 4), targets(2, 4, n=3)], p, cross_entropy)
        case("cross_entropy", [grid(4, 3), classes(2, -100, 0, 1)], dict(weight=WEIGHT, **p), cross_entropy)
        case("cross_entropy/probabilities", [grid(4, 5), grid(4, 5, seed=2, low=0, high=1)], p, cross_entropy)
    p = dict(reduction=reduction)
    case("cross_entropy/probabilities", [grid(4, 5), grid(4, 5, seed=2, low=0, high=1)], p, cross_entropy)
    case("cross_entropy/probabilities", [grid(5), grid(5, seed=2, low=0, high=1)], p, cross_entropy)
    case("cross_entropy/probabilities", [grid(2, 3, 4), grid(2, 3, 4, seed=2, low=0, high=1)], p, cross_entropy)
    for smoothing in (0.0, 0.25):
        case("cross_entropy/probabilities", [grid(4, 3), grid(4, 3, seed=2, low=0, high=1)],
             dict(weight=WEIGHT, label_smoothing=smoothing, **p), cross_entropy)
    case("cross_entropy/probabilities", [grid(0, 3), grid(0, 3)], p, cross_entropy)

for reduction in REDUCTIONS:
    p = dict(reduction=reduction)
    case("mse_loss", [grid(3, 5), grid(3, 5, seed=2)], p, F.mse_loss)
    case("mse_loss", [grid(71), grid(71, seed=2)], p, F.mse_loss)
    case("mse_loss", [f64(2.5), f64(1.0)], p, F.mse_loss)
    case("mse_loss", [grid(2, 3, 2, 2), grid(2, 3, 2, 2, seed=2)], p, F.mse_loss)
    case("mse_loss", [grid(0, 3), grid(0, 3)], p, F.mse_loss)
    case("mse_loss", [grid(3, dtype=torch.float32), grid(3, dtype=torch.float64)], p, F.mse_loss)
    case("mse_loss", [f64([INF, NAN, 1]), f64([1, 1, -INF])], p, F.mse_loss, tags="extreme no_gradcheck")
    case("mse_loss", [f64([128.0, -128.0]), f64([-96.0, 64.0])], p, F.mse_loss, tags="extreme no_gradcheck")


# nn::functional has the reductions and weights. tests/nn/losses_test.cpp compares them.
def binary(fn):
    return lambda x, t: fn(x, t, reduction="none")


bce, with_logits = binary(F.binary_cross_entropy), binary(F.binary_cross_entropy_with_logits)
for shape in ((4, 5), (37,), (2, 3, 4), ()):
    case("binary_cross_entropy", [grid(*shape, low=1 / 16, high=1), grid(*shape, seed=2, low=0, high=1)], {}, bce)
    case("binary_cross_entropy_with_logits", [grid(*shape), grid(*shape, seed=2, low=0, high=1)], {}, with_logits)
for op, fn in (("binary_cross_entropy", bce), ("binary_cross_entropy_with_logits", with_logits)):
    case(op, [grid(0, 3, low=0, high=1), grid(0, 3, low=0, high=1)], {}, fn)
# At 0 and 1 the logarithm is limited to -100 and the gradient's divisor to 1e-12. Targets get no gradient here,
# because PyTorch's does not limit the logarithm.
case("binary_cross_entropy", [f64([0, 1, 0, 1, 1e-30, 0.25]), f64([0, 1, 1, 0, 0.5, 0])], {}, bce,
     tags="extreme no_gradcheck", dtypes=[torch.float64, torch.float32], constant=(1,))
# PyTorch gives NaN for an infinite logit of a target other than 0; tests/nn/losses_extreme_test.cpp has these limits.
case("binary_cross_entropy_with_logits", [f64([INF, 0, NAN, 1024, -1024, 8, -8, 0]), f64([0, 1, 1, 0, 1, 1, 1, 1])], {},
     with_logits, tags="extreme no_gradcheck", constant=(1,))

for op, fn, option in (("smooth_l1_loss", F.smooth_l1_loss, "beta"), ("huber_loss", F.huber_loss, "delta")):
    for reduction in REDUCTIONS:
        for shape in ((3, 5), (2, 3, 4), (), (37,), (0, 3)):
            case(op, [grid(*shape), grid(*shape, seed=2)], dict(reduction=reduction), fn)
        case(op, [grid(3, 5), grid(3, 5, seed=2)], {"reduction": reduction, option: 0.25}, fn)
    case(op, [f64([0, 1, -2, 1]), f64([1, 0, -1, 1])], dict(reduction="none"), fn, tags="no_gradcheck")  # at the limit
    case(op, [f64([INF, -INF, NAN, 1e30, 1]), f64([0, 0, 0, -1e30, 1])], dict(reduction="none"), fn,
         tags="extreme no_gradcheck")
