import torch

from cases import case, f64, grid

INF, NAN = float("inf"), float("nan")


def rotary_embedding(x, cos, sin, interleaved=False):
    """x is (..., L, E), cos and sin are (L, P) or (N, L, P). The rotation is that of transformers'
    modeling_llama.py (halves) and of the paper (interleaved)."""
    pairs = cos.shape[-1]
    assert 2 * pairs <= x.shape[-1] and cos.dim() in (2, 3)
    if cos.dim() == 3:
        cos, sin = (t.reshape(t.shape[:1] + (1,) * (x.dim() - 3) + t.shape[1:]) for t in (cos, sin))
    turned, rest = x[..., :2 * pairs], x[..., 2 * pairs:]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else (turned[..., :pairs], turned[..., pairs:])
    p, q = a * cos - b * sin, a * sin + b * cos
    turned = torch.stack([p, q], -1).flatten(-2) if interleaved else torch.cat([p, q], -1)
    return torch.cat([turned, rest], -1)


def rope(x, table, tags="", **params):
    tables = [grid(*table, seed=3, low=-1, high=1), grid(*table, seed=5, low=-1, high=1)]
    case("rotary_embedding", [x, *tables], params, rotary_embedding, tags, constant=[1, 2])


for interleaved in (False, True):
    for shape, table in (((3, 4), (3, 2)), ((2, 3, 8), (3, 4)), ((2, 3, 5, 6), (5, 3)), ((2, 3, 5, 6), (2, 5, 3)),
                         ((2, 3, 8), (2, 3, 4)), ((2, 2, 3, 7), (3, 2)), ((2, 2, 2, 3, 4), (3, 2)),
                         ((2, 2, 2, 3, 4), (2, 3, 2)), ((1, 2, 34), (2, 17)), ((2, 0, 4), (0, 2)), ((0, 3, 4), (3, 2)),
                         ((2, 3, 4), (3, 0))):
        rope(grid(*shape), table, interleaved=interleaved)
    rope(f64([[1, INF, 2, 3], [NAN, 1, 2, 3], [1e30, 2, 3, -INF]]), (3, 2), tags="extreme no_gradcheck no_grad",
         interleaved=interleaved)
