import torch
import torch.nn.functional as F

from cases import case, f64, grid

INF, NAN = float("inf"), float("nan")

# All combinations of shapes that NumPy accepts. The sizes are not multiples of any block size of the kernels.
for a, b in (((5,), (5,)), ((3, 5), (5,)), ((5,), (5, 4)), ((3, 5), (5, 4)), ((1, 1), (1, 1)), ((7, 1), (1, 9)),
             ((1, 17), (17, 1)), ((9, 11), (11, 10)), ((2, 3, 5), (5, 4)), ((2, 3, 5), (2, 5, 4)), ((3, 5), (2, 5, 4)),
             ((2, 3, 5), (5,)), ((5,), (2, 5, 4)), ((2, 1, 3, 2), (3, 2, 4)), ((1, 2, 3, 2), (2, 1, 2, 3)),
             ((2, 2, 2, 3), (3, 2))):
    batched = len(a) > 2 or len(b) > 2
    case("matmul", [grid(*a), grid(*b, seed=2)], fn=torch.matmul, tags="broadcast" if batched and a[:-2] != b[:-2] else "")
for a, b in (((0,), (0,)), ((0, 3), (3, 2)), ((3, 0), (0, 2)), ((2, 3), (3, 0)), ((0, 2, 3), (3, 2)), ((0, 2, 3), (0, 3, 2))):
    case("matmul", [grid(*a), grid(*b, seed=2)], fn=torch.matmul)
case("matmul", [f64([[1, 2], [3, 4], [INF, 1]]), f64([[1, NAN], [0, 1]])], fn=torch.matmul, tags="extreme no_gradcheck no_grad")
case("matmul", [f64([[1e30, 1e-30]]), f64([[1e-30, 1e5], [1e30, 1e-5]])], fn=torch.matmul, tags="extreme no_gradcheck")
case("matmul", [f64([[1e30, 1]]), f64([[1e30], [1]])], fn=torch.matmul, tags="extreme no_gradcheck")

for x, w in (((3, 5), (4, 5)), ((5,), (4, 5)), ((2, 3, 5), (4, 5)), ((2, 1, 3, 4), (2, 4)), ((1, 1), (1, 1)), ((9, 17), (11, 17))):
    bias = grid(w[0], seed=3)
    case("linear", [grid(*x), grid(*w, seed=2), bias], fn=F.linear)
    case("linear", [grid(*x), grid(*w, seed=2), None], fn=F.linear)
for x, w in (((0, 5), (4, 5)), ((3, 0), (4, 0)), ((2, 0, 5), (4, 5))):
    case("linear", [grid(*x), grid(*w, seed=2), grid(w[0], seed=3)], fn=F.linear)
case("linear", [f64([[INF, 1], [1, 1]]), f64([[1, 2], [3, 4]]), f64([0, NAN])], fn=F.linear, tags="extreme no_gradcheck no_grad")
case("linear", [f64([[1e30, 1]]), f64([[1e-30, 2], [3e-20, 4]]), f64([1e20, 1])], fn=F.linear, tags="extreme no_gradcheck")
