import torch
from torch import linalg

from cases import case, f64, grid

INF, NAN = float("inf"), float("nan")


def dominant(*shape, seed=1):
    """Returns well-conditioned square matrices: a grid with a large diagonal."""
    return grid(*shape, seed=seed, low=-1, high=1) + 3 * torch.eye(shape[-1], dtype=torch.float64)


def symmetric(x):
    return (x + x.mT) / 2


def spd(x):
    return x @ x.mT + torch.eye(x.shape[-1], dtype=x.dtype)


HUGE = f64([[1e15, 0.0], [0.0, 1e-15]])
SQUARE = [dominant(1, 1), dominant(4, 4), dominant(2, 3, 3, seed=2), dominant(2, 1, 2, 2, seed=3)]
EMPTY = [grid(0, 0), grid(2, 0, 0), grid(0, 2, 2)]
# The tolerance is that of a perturbed input. Elimination without growth adds a factor of about n, hence the slack.
for a in SQUARE + EMPTY + [HUGE]:
    tags = "extreme no_gradcheck" if a is HUGE else ""
    case("linalg.inv", [a], {}, linalg.inv, slack=4, tags=tags)
    case("linalg.det", [a], {}, linalg.det, slack=4, tags=tags)
    case("linalg.slogdet", [a], {}, linalg.slogdet, slack=4, tags=tags)
case("linalg.det", [grid(5, 5)], {}, linalg.det, slack=8)
# Singular matrices of rank 2 and 1: the gradient is the matrix of cofactors, and 0 for rank 1.
case("linalg.det", [f64([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [5.0, 7.0, 9.0]])], {}, linalg.det, slack=64)
case("linalg.det", [f64([[[2.0, 1.0], [4.0, 2.0]], [[1.0, 0.0], [0.0, 3.0]], [[0.0, 0.0], [0.0, 0.0]]])], {}, linalg.det,
     slack=64)
case("linalg.slogdet", [f64([[0.0, 1.0], [1.0, 0.0]])], {}, linalg.slogdet)
case("linalg.slogdet", [f64([[1.0, 2.0], [2.0, 4.0]])], {}, linalg.slogdet, tags="no_grad no_gradcheck")
case("linalg.inv", [f64([[0.0, 2.0], [1.0, 0.0]])], {}, linalg.inv)  # needs an exchange of rows
case("linalg.inv", [f64([[NAN, 2.0], [1.0, 0.0]])], {}, linalg.inv, tags="extreme no_grad no_gradcheck")

for a, b in (((4, 4), (4, 3)), ((4, 4), (4, )), ((2, 3, 3), (2, 3, 2)), ((2, 3, 3), (2, 3)), ((2, 1, 3, 3), (4, 3, 2)),
             ((3, 3), (2, 3, 1)), ((0, 0), (0, 2)), ((2, 2), (2, 0)), ((0, 2, 2), (0, 2))):
    case("linalg.solve", [dominant(*a), grid(*b, seed=2)], dict(left=True), linalg.solve, slack=4)
for a, b in (((4, 4), (3, 4)), ((2, 1, 3, 3), (4, 2, 3))):
    case("linalg.solve", [dominant(*a), grid(*b, seed=2)], dict(left=False), linalg.solve, slack=4)
case("linalg.solve", [HUGE, f64([[1e10, 1.0], [1.0, 1e-10]])], dict(left=True), linalg.solve, tags="extreme no_gradcheck")

triangular = lambda a, b, upper, left, unitriangular: linalg.solve_triangular(
    a, b, upper=upper, left=left, unitriangular=unitriangular)
for upper in (False, True):
    for unit in (False, True):
        flags = dict(upper=upper, left=True, unitriangular=unit)
        case("linalg.solve_triangular", [dominant(4, 4), grid(4, 3, seed=2)], flags, triangular, slack=4)
        flags = dict(upper=upper, left=False, unitriangular=unit)
        case("linalg.solve_triangular", [dominant(2, 3, 3), grid(2, 3, seed=2)], flags, triangular, slack=4)
flags = dict(upper=True, left=True, unitriangular=False)
for a, b in (((0, 0), (0, 2)), ((2, 2), (2, 0)), ((0, 2, 2), (0, 2, 1))):
    case("linalg.solve_triangular", [dominant(*a), grid(*b)], flags, triangular)
case("linalg.solve_triangular", [f64([[0.0, 1.0], [0.0, 2.0]]), f64([[1.0], [1.0]])], flags, triangular,
     tags="extreme no_grad no_gradcheck")

# Only a triangle is read, so differences of single elements would not be the gradient: the input is x x^T + 1.
cholesky = lambda x, upper: linalg.cholesky(spd(x), upper=upper)
for upper in (False, True):
    for shape in ((1, 1), (4, 4), (2, 3, 3), (0, 0), (0, 2, 2)):
        case("linalg.cholesky", [grid(*shape, low=-1, high=1)], dict(upper=upper), cholesky, slack=4)
case("linalg.cholesky", [f64([[1e15, 0.0], [0.0, 1e-3]])], dict(upper=False), cholesky, tags="extreme no_gradcheck")

for shape in ((4, 4), (5, 3), (3, 5), (2, 4, 2), (2, 2, 4), (1, 1), (3, 1), (1, 3), (0, 0), (3, 0), (0, 3), (0, 2, 2)):
    for mode in ("reduced", "complete", "r"):
        fixed = mode == "r" or (mode == "complete" and shape[-2] > shape[-1])  # without gradient
        tags = "no_grad no_gradcheck" if fixed else ""
        case("linalg.qr", [grid(*shape)], dict(mode=mode), linalg.qr, slack=8, tags=tags)
case("linalg.qr", [f64([[1e15, 1.0], [0.0, 1e-15]])], dict(mode="reduced"), linalg.qr, tags="extreme no_gradcheck")
case("linalg.qr", [f64([[0.0, -2.0], [0.0, 0.0]])], dict(mode="reduced"), linalg.qr, tags="no_grad no_gradcheck")


# The signs of singular vectors and eigenvectors are arbitrary, so the results are functions that do not depend on them.
def svd(x, full):
    u, s, vh = linalg.svd(x, full_matrices=full)
    u, vh = u[..., :s.shape[-1]], vh[..., :s.shape[-1], :]
    return s, u * u, vh * vh, u @ vh


def eigh(x, uplo):
    w, v = linalg.eigh(symmetric(x), UPLO=uplo)
    return w, v * v


TALL_AND_WIDE = [grid(4, 4), grid(5, 3), grid(3, 5), grid(2, 3, 2), grid(2, 2, 3), grid(1, 1), grid(3, 1), grid(1, 3)]
for x in TALL_AND_WIDE:
    for full in (False, True):
        case("linalg.svd", [x], dict(full=full), svd, slack=8)
    case("linalg.svdvals", [x], {}, linalg.svdvals, slack=8)
for shape in ((0, 0), (3, 0), (0, 3), (0, 2, 2), (2, 0, 2)):
    case("linalg.svd", [grid(*shape)], dict(full=True), lambda x, full: linalg.svd(x, full_matrices=full),
         tags="no_grad")
    case("linalg.svdvals", [grid(*shape)], {}, linalg.svdvals)
case("linalg.svd", [f64([[1e15, 0.0], [0.0, 1e-15]])], dict(full=True), svd, tags="extreme no_grad no_gradcheck")
case("linalg.svdvals", [f64([[1e15, 0.0], [0.0, 1e-15]])], {}, linalg.svdvals, tags="extreme no_gradcheck")
# Equal singular values: those have no gradient of their own, but their sum and other symmetric functions do.
case("linalg.svdvals/sum", [torch.eye(3, dtype=torch.float64)], {}, lambda x: linalg.svdvals(x).square().sum(), slack=8)

for shape in ((4, 4), (2, 3, 3), (1, 1), (2, 1, 2, 2)):
    for uplo in ("L", "U"):
        case("linalg.eigh", [grid(*shape)], dict(uplo=uplo), eigh, slack=8)
        case("linalg.eigvalsh", [grid(*shape)], dict(uplo=uplo),
             lambda x, uplo: linalg.eigvalsh(symmetric(x), UPLO=uplo), slack=8)
for shape in ((0, 0), (0, 2, 2), (2, 0, 0)):
    case("linalg.eigh", [grid(*shape)], dict(uplo="L"), eigh)
    case("linalg.eigvalsh", [grid(*shape)], dict(uplo="L"), lambda x, uplo: linalg.eigvalsh(symmetric(x), UPLO=uplo))
case("linalg.eigh", [f64([[1e15, 0.0], [0.0, 1e-15]])], dict(uplo="L"), eigh, tags="extreme no_grad no_gradcheck")
case("linalg.eigvalsh", [f64([[1e15, 0.0], [0.0, 1e-15]])], dict(uplo="L"),
     lambda x, uplo: linalg.eigvalsh(symmetric(x), UPLO=uplo), tags="extreme no_gradcheck")

DEFICIENT = f64([[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]])
rank = lambda x, atol=None, rtol=None: linalg.matrix_rank(x, atol=atol, rtol=rtol)
pinv = lambda x, atol=None, rtol=None: linalg.pinv(x, atol=atol, rtol=rtol)
for x in TALL_AND_WIDE + [grid(0, 0), grid(3, 0), grid(0, 3), grid(0, 2, 2)]:
    case("linalg.pinv", [x], {}, pinv, slack=8)
    case("linalg.matrix_rank", [x], {}, rank)
case("linalg.pinv", [DEFICIENT], {}, pinv, slack=64, tags="no_gradcheck no_grad")
case("linalg.pinv", [grid(4, 3)], dict(atol=2.0), pinv, slack=8)
case("linalg.pinv", [f64([[1e15, 0.0], [0.0, 1e-15]])], dict(rtol=1e-3), pinv, tags="extreme no_gradcheck no_grad", slack=8)
case("linalg.matrix_rank", [DEFICIENT], {}, rank)
case("linalg.matrix_rank", [f64([[1e15, 0.0], [0.0, 1e-15]])], {}, rank, tags="extreme")
for limits in (dict(atol=3.0), dict(rtol=0.5), dict(atol=1.0, rtol=0.25), dict(atol=0.0, rtol=0.0)):
    case("linalg.matrix_rank", [grid(2, 4, 3)], limits, rank)

lstsq = lambda a, b: (lambda r: (r.solution, r.rank, r.singular_values))(linalg.lstsq(a, b, driver="gelsd"))
for a, b in (((5, 3), (5, 2)), ((3, 5), (3, 2)), ((3, 3), (3, 1)), ((2, 4, 2), (2, 4, 3)), ((0, 3, 2), (0, 3, 1))):
    case("linalg.lstsq", [grid(*a), grid(*b, seed=2)], {}, lstsq, slack=16, tags="no_grad" if a[0] == 0 else "")
case("linalg.lstsq", [DEFICIENT, f64([[1.0], [0.0], [2.0]])], {}, lstsq, slack=64, tags="no_grad no_gradcheck")
case("linalg.lstsq", [f64([[1e10, 0.0], [0.0, 1e-10]]), f64([[1.0], [1.0]])], {}, lstsq, tags="extreme no_grad no_gradcheck")
case("linalg.lstsq/residuals", [grid(5, 3), grid(5, 2, seed=2)], {}, lambda a, b: linalg.lstsq(a, b).residuals,
     slack=16, tags="no_grad")

for n in (1, 2, 3, 6, -1, -2):
    case("linalg.matrix_power", [dominant(2, 3, 3)], dict(n=n), linalg.matrix_power, slack=8)
case("linalg.matrix_power", [dominant(2, 2)], dict(n=0), linalg.matrix_power, tags="no_grad no_gradcheck")
case("linalg.matrix_power", [grid(0, 0)], dict(n=2), linalg.matrix_power)
case("linalg.matrix_power", [f64([[INF, 1.0], [NAN, 2.0]])], dict(n=2), linalg.matrix_power,
     tags="extreme no_gradcheck no_grad")

vector = lambda x, ord=2.0, dim=None, keepdim=False: linalg.vector_norm(x, ord, dim, keepdim)
for order in (2.0, 1.0, 0.5, 3.0, INF, -INF, -1.0, -2.0):
    case("linalg.vector_norm", [grid(2, 3, 4)], dict(ord=order, dim=[1]), vector, slack=4)
    case("linalg.vector_norm", [grid(7, seed=2)], dict(ord=order), vector, slack=4)
case("linalg.vector_norm", [f64([0.0, 2.0, -1.0])], dict(ord=0.0), vector, tags="no_gradcheck")
case("linalg.vector_norm", [grid(2, 3, 4)], dict(dim=[0, 2], keepdim=True), vector, slack=4)
case("linalg.vector_norm", [grid(0, 3)], dict(dim=[0]), vector)
case("linalg.vector_norm", [f64([INF, NAN, 1e15])], {}, vector, tags="extreme no_gradcheck no_grad")

matrix = lambda x, ord="fro", dim=(-2, -1), keepdim=False: linalg.matrix_norm(x, ord, dim, keepdim)
for order in ("fro", 1.0, -1.0, INF, -INF):
    case("linalg.matrix_norm", [grid(2, 3, 4)], dict(ord=order), matrix, slack=4)
    case("linalg.matrix_norm", [grid(3, 4, 2)], dict(ord=order, dim=[2, 0], keepdim=True), matrix, slack=4)
for order in ("nuc", 2.0, -2.0):  # f32 and f64 only: the inputs are not exact in bfloat16
    x = grid(2, 3, 4) + 2.0**-12
    case("linalg.matrix_norm", [x], dict(ord=order), matrix, slack=8)
    case("linalg.matrix_norm", [x], dict(ord=order, dim=[2, 0], keepdim=True), matrix, slack=8)
case("linalg.matrix_norm", [grid(0, 3)], {}, matrix)
case("linalg.matrix_norm", [f64([[INF, NAN], [1e15, 1.0]])], dict(ord=1.0), matrix, tags="extreme no_gradcheck no_grad")

norm = lambda x, ord=None, dim=None, keepdim=False: linalg.norm(x, ord, dim, keepdim)
case("linalg.norm", [grid(2, 3, 4)], {}, norm, slack=4)
case("linalg.norm", [grid(3, 4)], dict(ord=1.0), norm, slack=4)
case("linalg.norm", [grid(5)], dict(ord=1.0), norm, slack=4)
case("linalg.norm", [grid(3, 4)], dict(ord="fro"), norm, slack=4)
case("linalg.norm", [grid(2, 3, 4)], dict(ord=INF, dim=[1]), norm, slack=4)
case("linalg.norm", [grid(2, 3, 4)], dict(ord=INF, dim=[0, 2], keepdim=True), norm, slack=4)
case("linalg.norm", [grid(2, 3, 4)], dict(dim=[0, 1], keepdim=True), norm, slack=4)
case("linalg.norm", [grid(0, 3)], {}, norm)
case("linalg.norm", [f64([INF, NAN, 1e15])], {}, norm, tags="extreme no_gradcheck no_grad")
