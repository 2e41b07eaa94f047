import torch
import torch.nn.functional as F

from cases import bools, case, f64, grid

INF, NAN = float("inf"), float("nan")


def attention(q, k, v, mask=None, causal=False, scale=None, gqa=False):
    # Uses the plain formula, because torch's fused kernels cannot be differentiated twice.
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal, scale=scale, enable_gqa=gqa)


def qkv(batch, l, s, e, v):
    return [grid(*batch, l, e, low=-2, high=2), grid(*batch, s, e, seed=2, low=-2, high=2),
            grid(*batch, s, v, seed=3, low=-2, high=2)]


def sdpa(inputs, tags="", **params):
    case("scaled_dot_product_attention", inputs, params, attention, tags)


sdpa(qkv((), 3, 5, 4, 2))
sdpa(qkv((2,), 3, 5, 4, 4))
sdpa(qkv((2, 2), 3, 4, 3, 5))
sdpa(qkv((2, 2), 4, 4, 3, 3), causal=True)
sdpa(qkv((1,), 2, 5, 3, 3), causal=True)  # there are more keys than queries
sdpa(qkv((1,), 5, 2, 3, 3), causal=True)
sdpa(qkv((2,), 1, 1, 1, 1))
sdpa(qkv((2,), 3, 5, 4, 2), scale=0.25)
sdpa(qkv((2,), 4, 4, 4, 2), scale=-0.5, causal=True)
ALLOWED = bools(3, 5) | (torch.arange(5) == 1)  # every query sees key 1 at least
sdpa(qkv((2, 2), 3, 5, 4, 2) + [ALLOWED])
sdpa(qkv((2, 2), 3, 5, 4, 2) + [(bools(2, 1, 3, 5, seed=3) | (torch.arange(5) == 4))])
sdpa(qkv((2,), 3, 5, 4, 2) + [(torch.arange(5) < 3).reshape(1, 5)])  # the last two keys are padding
sdpa(qkv((2,), 3, 5, 4, 2) + [grid(3, 5, seed=7)])
sdpa(qkv((2, 2), 3, 5, 4, 2) + [grid(2, 1, 1, 5, seed=7)], scale=0.5)
sdpa(qkv((1,), 2, 3, 2, 2) + [f64([[0, -INF, 1], [-INF, 2, 0]])], tags="extreme no_gradcheck")
sdpa(qkv((1,), 2, 3, 2, 2) + [torch.tensor([[True, False, True], [False, False, False]])],
     tags="extreme no_gradcheck no_grad")  # the second query sees no key
sdpa([x * 64 for x in qkv((1,), 2, 3, 2, 2)], tags="extreme no_gradcheck")
q, k, v = qkv((1,), 2, 3, 2, 2)
sdpa([q, k, torch.where(v == v[0, 1, 0], NAN, v)], tags="extreme no_gradcheck no_grad")
sdpa(qkv((0,), 2, 3, 2, 2))
sdpa(qkv((2,), 0, 3, 2, 2))

# Grouped queries: four heads of q share the two heads of k and v in pairs.
def groups(heads, shared, l, s):
    return [grid(2, heads, l, 3, low=-2, high=2), grid(2, shared, s, 3, seed=2, low=-2, high=2),
            grid(2, shared, s, 2, seed=3, low=-2, high=2)]


sdpa(groups(4, 2, 2, 3), gqa=True)
sdpa(groups(3, 1, 3, 3), gqa=True, causal=True)
sdpa([x / 2 for x in groups(4, 2, 2, 3)] + [grid(4, 2, 3, seed=7, low=-1, high=1)], gqa=True)
sdpa(groups(2, 2, 2, 3) + [(bools(2, 1, 2, 3, seed=3) | (torch.arange(3) == 1))], gqa=True)
