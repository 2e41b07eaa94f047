import torch
import torch.nn.functional as F

from cases import case, f64, grid

INF, NAN = float("inf"), float("nan")


def embedding(weight, indices, padding_idx=None):
    return F.embedding(indices, weight, padding_idx)


def index(values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


for dtype in (torch.int64, torch.int32):
    case("embedding", [grid(5, 3), index([1, 4, 1, 0, 1], dtype)], fn=embedding)
    case("embedding", [grid(5, 37), index([[0, 1, 2], [4, 4, 1]], dtype)], fn=embedding)
    case("embedding", [grid(5, 3), index(2, dtype)], fn=embedding)
    case("embedding", [grid(5, 3), torch.zeros(0, dtype=dtype)], fn=embedding, tags="no_grad")
case("embedding", [grid(1, 1), index([0, 0, 0])], fn=embedding)
for padding_idx in (1, -1, 0):
    # The padding row gets no gradient, although the result depends on it.
    case("embedding", [grid(5, 3), index([1, 4, 1, 0, 2])], dict(padding_idx=padding_idx), embedding,
         tags="no_gradcheck")
case("embedding", [f64([[INF, NAN], [0, -INF], [1, 2]]), index([0, 1, 0])], fn=embedding, tags="extreme no_gradcheck")
