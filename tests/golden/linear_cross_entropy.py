import torch
import torch.nn.functional as F

import cases
from cases import case, f64, ints


def grid(*shape, seed=1):
    # Small logits, because the difference p - 1 of a probability near 1 has no digits left in f32.
    return cases.grid(*shape, seed=seed, low=-1, high=1)


def loss(x, weight, t, bias=None, chunk=0, **params):
    y = F.linear(x, weight, bias).reshape(-1, weight.shape[0])
    return F.cross_entropy(y, t.reshape(-1), **params)


def targets(*shape, n):
    return ints(*shape, seed=1, low=0, high=n)


def biased(x, weight, t, bias, **params):
    return loss(x, weight, t, bias, **params)


IGNORED = torch.tensor([2, -100, 0, 4, -100, 1], dtype=torch.int64)
for reduction in ("mean", "sum"):
    p = dict(reduction=reduction)
    case("linear_cross_entropy", [grid(4, 3), grid(5, 3, seed=2), targets(4, n=5)], p, loss)
    case("linear_cross_entropy", [grid(6, 3), grid(5, 3, seed=2), IGNORED], p, loss)
    # Two rows a chunk: the last one has one row, and all targets of the second are ignored in the next case.
    case("linear_cross_entropy", [grid(5, 3), grid(7, 3, seed=2), targets(5, n=7)], dict(chunk=2, **p), loss)
    case("linear_cross_entropy", [grid(6, 2), grid(5, 2, seed=2), torch.tensor([1, 2, -100, -100, 0, 4])],
         dict(chunk=2, label_smoothing=0.125, **p), loss)
    case("linear_cross_entropy", [grid(2, 3, 4), grid(6, 4, seed=2), targets(2, 3, n=6)], dict(chunk=4, **p), loss)
    case("linear_cross_entropy", [grid(4, 2), grid(5, 2, seed=2), torch.tensor([1, 4, 0, 4])], dict(ignore_index=4, **p), loss)
    case("linear_cross_entropy", [grid(3), grid(5, 3, seed=2), torch.tensor(4)], p, loss)
    case("linear_cross_entropy", [grid(0, 3), grid(5, 3, seed=2), targets(0, n=5)], p, loss,
         tags="no_gradcheck" if reduction == "mean" else "")  # the mean of no rows is NaN
    case("linear_cross_entropy", [grid(2, 3), grid(5, 3, seed=2), torch.tensor([-100, -100])], p, loss,
         tags="extreme no_gradcheck")
    case("linear_cross_entropy/bias", [grid(5, 3), grid(7, 3, seed=2), targets(5, n=7), grid(7, seed=3)],
         dict(chunk=3, **p), biased)
case("linear_cross_entropy", [grid(4, 3), grid(5, 3, seed=2), ints(4, seed=1, low=0, high=5).to(torch.uint8)],
     {}, lambda x, w, t, **p: loss(x, w, t.long(), **p))
case("linear_cross_entropy", [f64([[1024.0, 0], [-1024, 1]]), f64([[1, 0], [-1, 2], [0.5, 1]]), torch.tensor([0, 2])], {}, loss,
     tags="extreme no_gradcheck")
