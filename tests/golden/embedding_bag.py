import torch
import torch.nn.functional as F

from cases import case, f64, grid

INF, NAN = float("inf"), float("nan")


def bag(weight, indices, offsets, scales, mode, padding_idx=None, include_last_offset=False):
    """embedding_bag made of functions that PyTorch differentiates twice, which the scales need. The result must be
    that of embedding_bag itself."""
    flat, n = indices.reshape(-1).long(), indices.numel()
    if offsets is None:
        ends = [indices.shape[1] * (i + 1) for i in range(indices.shape[0])]
    else:
        ends = offsets.tolist()[1:] + ([] if include_last_offset else [n])
    pad = None if padding_idx is None else padding_idx % weight.shape[0]
    bags, start = [], 0
    for end in ends:
        at = [i for i in range(start, end) if flat[i] != pad]
        rows = weight[flat[at]]
        if scales is not None:
            rows = rows * scales.reshape(-1)[at].unsqueeze(1)
        start = end
        bags.append(weight[:0].sum(0) if not at else rows.sum(0) if mode == "sum" else rows.sum(0) / len(at)
                    if mode == "mean" else rows.amax(0))
    result = torch.stack(bags)
    same = F.embedding_bag(indices, weight, offsets, mode=mode, per_sample_weights=scales, padding_idx=padding_idx,
                           include_last_offset=include_last_offset)
    assert torch.allclose(result, same, rtol=1e-6, equal_nan=True), (result, same)
    return result


def ints(*values):
    return torch.tensor(values)


# The maximum of a column of distinct numbers has one derivative.
table, flat, starts = grid(7, 3, low=-8, high=8), ints(1, 4, 1, 0, 6, 6, 2, 5), ints(0, 3, 3, 5)
for mode in ("sum", "mean", "max"):
    case("embedding_bag", [table, flat, starts, None], dict(mode=mode), bag)
    case("embedding_bag", [table, flat.reshape(2, 4), None, None], dict(mode=mode), bag)
    case("embedding_bag", [grid(7, 37, low=-16, high=16), flat, starts, None], dict(mode=mode), bag)
    # The strided variants change the last offset, which must be the number of indices.
    case("embedding_bag", [table, flat, ints(0, 3, 3, 8), None], dict(mode=mode, include_last_offset=True), bag,
         tags="no_strided")
    for padding_idx in (1, -1):
        case("embedding_bag", [table, flat, starts, None], dict(mode=mode, padding_idx=padding_idx), bag,
             tags="no_gradcheck")
    case("embedding_bag", [table, ints(1, 1, 2, 1), ints(0, 2), None], dict(mode=mode, padding_idx=1), bag,
         tags="no_gradcheck")
    case("embedding_bag", [table, flat.int(), starts.int(), None], dict(mode=mode), bag)
    case("embedding_bag", [table, torch.zeros(0, dtype=torch.int64), ints(0, 0), None], dict(mode=mode), bag,
         tags="no_grad")
    case("embedding_bag", [f64([[INF, 1], [2, -INF], [1e30, 3]]), ints(0, 1, 1, 2, 2), ints(0, 2), None],
         dict(mode=mode), bag, tags="extreme no_gradcheck")
for scales in (grid(8, seed=5), grid(2, 4, seed=5)):
    whole = scales.dim() == 2
    case("embedding_bag", [table, flat.reshape(scales.shape), None if whole else starts, scales], dict(mode="sum"), bag)
    case("embedding_bag", [table, flat.reshape(scales.shape), None if whole else starts, scales],
         dict(mode="sum", padding_idx=6), bag, tags="no_gradcheck")


def unordered(weight, indices, offsets, scales, **params):
    """Whether offsets decrease or exceed the number of indices. PyTorch does not check that, and Tapestry refuses it."""
    return offsets is not None and any(a > b for a, b in zip([0, *offsets.tolist()], [*offsets.tolist(), indices.numel()]))


SKIPS = {"embedding_bag": unordered}
