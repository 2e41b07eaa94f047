import torch
import torch.nn.functional as F

from cases import case, f64, grid

# The loss is computed from logits, because PyTorch's gradient is that of the loss after a log_softmax.
IMPOSSIBLE = -1e5  # exp(-1e5) is 0. With -infinity the gradients of the recursion would be NaN.


def recursion(x, targets, input_lengths, target_lengths, blank=0, reduction="mean", zero_infinity=False):
    """The CTC loss by the forward recursion. cases.py needs second derivatives, which PyTorch's ctc_loss lacks."""
    batched = x.dim() == 3
    x = (x if batched else x.unsqueeze(1)).log_softmax(-1)
    losses, start = [], 0
    for n, (steps, count) in enumerate(zip(input_lengths, target_lengths)):
        labels = (targets[n] if targets.dim() == 2 else targets[start:])[:count].tolist()
        start += count
        states = [blank] + [s for label in labels for s in (label, blank)]
        nothing = x.new_full((), IMPOSSIBLE)
        alpha = [nothing] * len(states)
        for t in range(steps):
            before = alpha
            alpha = []
            for s, label in enumerate(states):
                if t == 0:
                    alpha.append(x[0, n, label] if s < 2 else nothing)
                    continue
                paths = [before[s]] + ([before[s - 1]] if s > 0 else [])
                if s > 1 and label != blank and label != states[s - 2]:
                    paths.append(before[s - 2])
                alpha.append(torch.logsumexp(torch.stack(paths), 0) + x[t, n, label])
        loss = -torch.logsumexp(torch.stack(alpha[-2:]), 0) if steps else nothing * (0 if count == 0 else -1)
        losses.append(torch.where(loss > -IMPOSSIBLE / 2, 0.0 if zero_infinity else float("inf"), loss))
    y = torch.stack(losses) if losses else x.new_zeros(0)
    if reduction == "mean":
        y = (y / torch.tensor(target_lengths).clamp(min=1)).mean()
    elif reduction == "sum":
        y = y.sum()
    return y if batched or y.dim() == 0 else y.squeeze(0)


def ctc(x, targets, input_lengths, target_lengths, **params):
    y = recursion(x, targets, input_lengths, target_lengths, **params)
    if x.shape[-2] > 0:
        wanted = F.ctc_loss(x.detach().log_softmax(-1), targets, torch.tensor(input_lengths), torch.tensor(target_lengths),
                            **params)
        assert torch.allclose(y.detach(), wanted, rtol=1e-12), (y, wanted)
    return y


def labels(*values):
    return torch.tensor(values, dtype=torch.int64)


def run(x, targets, input_lengths, target_lengths, tags="", slack=1, **params):
    case("ctc_loss", [x, targets], dict(input_lengths=input_lengths, target_lengths=target_lengths, **params), ctc, tags,
         slack=slack)


x = grid(6, 3, 4)  # T, N, C
padded = labels([1, 2, 3], [2, 2, 0], [3, 0, 0])
for reduction in ("none", "mean", "sum"):
    run(x, padded, [6, 5, 4], [3, 2, 1], reduction=reduction)
    run(x, labels(1, 2, 3, 2, 2, 3), [6, 6, 6], [3, 2, 1], reduction=reduction)  # all labels one after another
    run(grid(5, 4), labels([1, 2, 1]), [5], [3], reduction=reduction)            # no batch
    run(x, labels([1, 0, 3], [0, 0, 0], [3, 1, 1]), [6, 5, 6], [3, 2, 3], blank=2, reduction=reduction)
    # The labels of the second sample do not fit: two equal labels need a blank between them.
    run(x, padded, [6, 2, 4], [3, 2, 1], reduction=reduction, zero_infinity=True)
run(x, padded, [6, 2, 4], [3, 2, 1], tags="extreme no_gradcheck no_grad", reduction="none")
run(x, padded, [6, 6, 6], [0, 2, 0], reduction="none")  # no labels
run(x, padded, [6, 1, 0], [3, 1, 0], reduction="none", zero_infinity=True)
run(grid(1, 2, 3), labels([1], [2]), [1, 1], [1, 1])
# A gradient is exp() of sums of 40 logarithms, so its relative error is eps times their sum, about 100.
run(grid(40, 2, 5), labels([1, 2, 3, 4, 1, 1, 2, 2], [4, 3, 2, 1, 1, 2, 3, 3]), [40, 33], [8, 7], slack=16, reduction="none")
# The gradients are differences of equal probabilities down to 1e-209, of which only roundings remain.
run(256 * grid(6, 2, 3), labels([1, 2], [2, 2]), [6, 6], [2, 2], tags="extreme no_gradcheck no_grad", reduction="none")
run(grid(3, 0, 4), torch.zeros(0, 2, dtype=torch.int64), [], [], reduction="none")


def undetermined(x, targets, input_lengths, target_lengths, zero_infinity=False, **params):
    """PyTorch does not compare the numbers of lengths with the batch. The gradient of an infinite loss is NaN, as PyTorch's
    is, and 0 in the recursion."""
    if len(input_lengths) != len(target_lengths) or len(input_lengths) != (x.shape[1] if x.dim() == 3 else 1):
        return True
    params["reduction"] = "none"
    return not zero_infinity and bool(torch.isinf(recursion(x, targets, input_lengths, target_lengths, **params)).any())


SKIPS = {"ctc_loss": undetermined}
