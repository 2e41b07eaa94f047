import torch
import torch.nn.functional as F

from cases import case, f64, grid

INF, NAN = float("inf"), float("nan")

# Results that are made of several operations are rounded several times in 16-bit dtypes, hence the slack.
for p in (2.0, 1.0, 0.5, 3.0):
    case("cdist", [grid(3, 5), grid(4, 5, seed=2)], dict(p=p), torch.cdist, slack=4)
case("cdist", [grid(3, 5), grid(4, 5, seed=2)], dict(p=0.0), torch.cdist, tags="no_gradcheck")
# Without ties: of the largest differences, each gets the whole gradient in PyTorch, and an equal part in Tapestry.
case("cdist", [grid(3, 5)**2 / 4, grid(4, 5, seed=2)**2 / 4], dict(p=INF), torch.cdist, slack=4)
case("cdist", [grid(2, 3, 4), grid(2, 2, 4, seed=2)], dict(p=2.0), torch.cdist, slack=4)
case("cdist", [grid(2, 1, 3, 4), grid(3, 2, 4, seed=2)], dict(p=1.0), torch.cdist, slack=4, tags="broadcast")
case("cdist", [grid(3, 1), grid(3, 1, seed=1)], dict(p=2.0), torch.cdist, tags="no_gradcheck", slack=4)  # distances of 0
for a, b in (((0, 3), (2, 3)), ((2, 0), (3, 0)), ((2, 3), (0, 3))):
    case("cdist", [grid(*a), grid(*b)], dict(p=2.0), torch.cdist)
case("cdist", [grid(2, 0), grid(3, 0)], dict(p=INF), torch.cdist)
# More than 25 rows: by products. The squares are larger than the squared distances, which the slack allows for.
case("cdist", [grid(27, 3), grid(2, 3, seed=2) + 8], dict(p=2.0), torch.cdist, slack=32)
case("cdist", [grid(2, 2, 3) + 8, grid(26, 3, seed=2)], dict(p=2.0), torch.cdist, slack=32, tags="broadcast")
case("cdist", [f64([[INF, 1.0], [NAN, 2.0]]), f64([[1.0, 1e30]])], dict(p=1.0), torch.cdist, tags="extreme no_gradcheck no_grad")

pairwise = lambda a, b, p=2.0, eps=1e-6, keepdim=False: F.pairwise_distance(a, b, p, eps, keepdim)
for p in (2.0, 1.0, 3.0, INF):
    # The gradient of the largest difference jumps where two are equal.
    case("pairwise_distance", [grid(3, 5), grid(3, 5, seed=2)], dict(p=p), pairwise, slack=4,
         tags="no_gradgradcheck" if p == INF else "")
case("pairwise_distance", [grid(3, 5), grid(5, seed=2)], dict(keepdim=True), pairwise, slack=4, tags="broadcast")
case("pairwise_distance", [grid(4), grid(4, seed=2)], dict(eps=0.5), pairwise, slack=4)
case("pairwise_distance", [grid(0, 5), grid(0, 5)], {}, pairwise)
case("pairwise_distance", [f64([[INF, 1.0], [NAN, 2.0]]), f64([[1.0, 1e30], [1.0, 1.0]])], {}, pairwise,
     tags="extreme no_gradcheck no_grad")

cosine = lambda a, b, dim=1, eps=1e-8: F.cosine_similarity(a, b, dim, eps)
case("cosine_similarity", [grid(3, 5), grid(3, 5, seed=2)], {}, cosine, slack=4)
case("cosine_similarity", [grid(3, 5), grid(3, 5, seed=2)], dict(dim=0), cosine, slack=4)
case("cosine_similarity", [grid(2, 3, 4), grid(3, 4, seed=2)], dict(dim=-1), cosine, slack=4, tags="broadcast")
case("cosine_similarity", [grid(2, 3, 4), grid(2, 3, 4, seed=2)], dict(dim=1, eps=0.25), cosine, slack=4)
case("cosine_similarity", [grid(0, 5), grid(0, 5)], {}, cosine)
case("cosine_similarity", [f64([[INF, 1.0], [NAN, 2.0]]), f64([[1.0, 1.0], [1.0, 1.0]])], {}, cosine,
     tags="extreme no_gradcheck no_grad")

for p in (2.0, 1.0, 3.0, INF):
    case("normalize", [grid(3, 5)], dict(p=p), F.normalize, slack=4)
for dim in (0, -1):
    case("normalize", [grid(2, 3, 4)], dict(dim=dim), F.normalize, slack=4)
case("normalize", [f64([[0.5, 0.25], [0.0, 0.0]])], dict(eps=2.0), F.normalize, tags="no_gradcheck", slack=4)
case("normalize", [grid(0, 3)], {}, F.normalize)
case("normalize", [f64([[INF, 1.0], [NAN, 2.0], [1e15, 1e-15]])], {}, F.normalize, tags="extreme no_gradcheck no_grad")

# Where eps replaces a norm, PyTorch differentiates the norm nevertheless, so its gradient is not the derivative.
SKIPS = {"cosine_similarity": lambda a, b, dim=1, eps=1e-8: any(bool((x.norm(dim=dim) <= eps).any()) for x in (a, b))}
