import torch

from cases import case, f64, grid, ints

INF, NAN = float("inf"), float("nan")
ALL_INTS = [torch.int64, torch.int32, torch.uint8, torch.bool]
extreme = "extreme no_gradcheck"

for op, fn, a, b, empty in (("mm", torch.mm, (3, 5), (5, 4), ((3, 0), (0, 2))),
                            ("bmm", torch.bmm, (2, 3, 5), (2, 5, 4), ((0, 3, 2), (0, 2, 4))),
                            ("mv", torch.mv, (3, 5), (5,), ((3, 0), (0,))), ("dot", torch.dot, (7,), (7,), ((0,), (0,)))):
    case(op, [grid(*a), grid(*b, seed=2)], fn=fn)
    case(op, [grid(*empty[0]), grid(*empty[1])], fn=fn)
case("mm", [f64([[1e30, 1e-30]]), f64([[1e-30, 1e5], [1e30, 1e-5]])], fn=torch.mm, tags=extreme)
case("bmm", [f64([[[1e30, 1e-30]]]), f64([[[1e-30, 1e5], [1e30, 1e-5]]])], fn=torch.bmm, tags=extreme)
case("mv", [f64([[1e30, 1e-30]]), f64([1e-30, 1e30])], fn=torch.mv, tags=extreme)
case("dot", [f64([1e30, 1e-30]), f64([1e-30, 1e30])], fn=torch.dot, tags=extreme)

case("outer", [grid(3), grid(4, seed=2)], fn=torch.outer)
case("outer", [grid(0), grid(4)], fn=torch.outer)
case("outer", [grid(3, dtype=torch.float32), ints(2)], fn=torch.outer)
case("outer", [ints(3, low=0), ints(4, low=0)], fn=torch.outer, dtypes=ALL_INTS)
case("outer", [f64([INF, -INF, 2.0]), f64([1.0, NAN])], fn=torch.outer, tags=extreme)

addmm = lambda x, a, b, beta, alpha: torch.addmm(x, a, b, beta=beta, alpha=alpha)
baddbmm = lambda x, a, b, beta, alpha: torch.baddbmm(x, a, b, beta=beta, alpha=alpha)
for op, fn, batch in (("addmm", addmm, ()), ("baddbmm", baddbmm, (2,))):
    factors = [grid(*batch, 3, 5), grid(*batch, 5, 4, seed=2)]
    for beta, alpha in ((1, 1), (0.5, -2.0), (0, 3), (2, 0)):
        case(op, [grid(*batch, 3, 4, seed=3), *factors], dict(beta=beta, alpha=alpha), fn)
    for x in (grid(4, seed=3), grid(3, 1, seed=3), f64(2.5)):
        case(op, [x, *factors], dict(beta=1, alpha=1), fn)
    case(op, [grid(*batch, 3, 2), grid(*batch, 3, 0), grid(*batch, 0, 2)], dict(beta=1, alpha=1), fn)
    case(op, [f64(NAN), *factors], dict(beta=0, alpha=1), fn, tags="extreme no_gradcheck no_grad")

for a, b in (((2, 3), (4, 2)), ((2, 3), (3,)), ((3,), (2, 2)), ((2,), (3,)), ((), (2, 3)), ((2, 1, 3), (1, 2, 2)),
             ((2, 2, 2, 2), (2, 1, 2, 1)), ((0, 2), (2, 2)), ((1, 2, 1, 3, 2), (2, 1, 2, 2, 1))):
    case("kron", [grid(*a), grid(*b, seed=2)], fn=torch.kron)
case("kron", [ints(2, 2, low=0), ints(2, 3, low=0)], fn=torch.kron, dtypes=ALL_INTS)
case("kron", [f64([INF, 2.0]), f64([1.0, NAN])], fn=torch.kron, tags=extreme)

cross = lambda a, b, dim: torch.cross(a, b, dim=dim)
for shape, dim in (((3,), 0), ((4, 3), -1), ((2, 3, 4), 1), ((3, 2), 0), ((0, 3), 1)):
    case("cross", [grid(*shape), grid(*shape, seed=2)], dict(dim=dim), cross)
case("cross", [grid(4, 3), grid(1, 3, seed=2)], dict(dim=1), cross)
case("cross", [ints(2, 3), ints(2, 3, seed=2)], dict(dim=1), cross, dtypes=ALL_INTS[:3])
case("cross", [f64([INF, 1.0, 1e30]), f64([1.0, NAN, 2.0])], dict(dim=0), cross, tags=extreme)

einsum = lambda *xs, equation: torch.einsum(equation, *xs)
g = lambda *shapes: [grid(*shape, seed=k + 1) for k, shape in enumerate(shapes)]
for equation, shapes in (
        ("ij,jk->ik", ((2, 3), (3, 4))), ("ij,jk", ((2, 3), (3, 4))), ("ij,kj->ik", ((2, 3), (4, 3))),
        ("bij,bjk->bik", ((2, 3, 4), (2, 4, 5))), ("bhid,bhjd->bhij", ((2, 2, 3, 4), (2, 2, 5, 4))),
        ("i,i->", ((5,), (5,))), ("i,i", ((5,), (5,))), ("i,j->ij", ((3,), (4,))), ("i,j->ji", ((3,), (4,))),
        ("bi,bi->b", ((3, 4), (3, 4))), ("bij,bij->b", ((2, 3, 4), (2, 3, 4))), ("ij,ij->ij", ((2, 3), (2, 3))),
        ("ij,ij->ji", ((2, 3), (2, 3))), ("ij,i->ij", ((2, 3), (2,))), ("ij,j->i", ((2, 3), (3,))),
        ("ii->i", ((3, 3),)), ("ii", ((3, 3),)), ("ii->", ((3, 3),)), ("iji->j", ((3, 2, 3),)), ("ij->ji", ((2, 3),)),
        ("ij->", ((2, 3),)), ("ij->j", ((2, 3),)), ("ba", ((2, 3),)), ("bA", ((2, 3),)), (" i j , j k -> i k ", ((2, 3), (3, 4))),
        ("...ij,...jk->...ik", ((2, 3, 4), (2, 4, 5))), ("...ij,...jk", ((2, 3, 4), (4, 5))),
        ("...i->...", ((2, 3, 4),)), ("...ij->...ji", ((2, 3, 4),)), ("i...->...", ((2, 3, 4),)), ("...ij->ij", ((2, 3, 4),)),
        ("...ij,jk->ik...", ((2, 3, 4), (4, 5))), ("...,...->...", ((2, 3), (3,))), ("...", ((2, 3),)),
        ("...ij,...ij->...", ((2, 1, 2, 3), (4, 2, 3))), ("ijk,ilm,njm,nlk,abc->", ((2, 3, 2), (2, 2, 3), (2, 3, 3), (2, 2, 2), (1, 2, 1))),
        ("ij,jk,kl->il", ((2, 3), (3, 4), (4, 2))), ("ij,kj,lj->ikl", ((2, 3), (3, 3), (2, 3))),
        ("bn,anm,bm->ba", ((2, 3), (4, 3, 2), (2, 2))), ("i,j,k->ijk", ((2,), (3,), (2,))), ("i,i,i->i", ((3,), (3,), (3,))),
        ("ij,jk->ik", ((2, 1), (3, 4))), ("ij,ij->ij", ((1, 3), (2, 3))), ("bij,bjk->bik", ((1, 2, 3), (4, 3, 2))),
        ("iij,jk->ik", ((2, 2, 3), (3, 2))), ("ij,k->", ((2, 3), (4,))), ("ij,jk->k", ((2, 3), (3, 4))), ("ij,kl->il", ((2, 3), (3, 2))),
        ("ij,jk->ik", ((0, 3), (3, 4))), ("ij,jk->ik", ((2, 0), (0, 4))), ("ij->i", ((2, 0),)), ("i,i->i", ((0,), (0,)))):
    case("einsum", g(*shapes), dict(equation=equation), einsum)
case("einsum", [f64(2.5), f64(1.5)], dict(equation=","), einsum)
case("einsum", [f64([[1e30, 1e-30]]), f64([[1e-30, 1e5], [1e30, 1e-5]])], dict(equation="ij,jk"), einsum, tags=extreme)
case("einsum", [f64([[INF, NAN], [1.0, -INF]])], dict(equation="ij->ji"), einsum, tags=extreme)

dot = lambda a, b, dims_a, dims_b: torch.tensordot(a, b, (dims_a, dims_b))
for a, b, dims_a, dims_b in (((2, 3, 4), (4, 3, 5), [1, 2], [1, 0]), ((2, 3), (4, 3), [1], [1]), ((2, 3), (3, 2), [0, 1], [1, 0]),
                             ((2, 3), (4,), [], []), ((2, 3, 4), (4, 5), [-1], [0]), ((2, 1), (3, 4), [1], [0]),
                             ((2, 0), (0, 3), [1], [0]), ((0, 3), (3, 2), [1], [0])):
    case("tensordot", g(a, b), dict(dims_a=dims_a, dims_b=dims_b), dot)
case("tensordot", [f64([[1e30, 1e-30]]), f64([[1e-30, 1e5], [1e30, 1e-5]])], dict(dims_a=[1], dims_b=[0]), dot, tags=extreme)
for dims in (0, 1, 2):
    case("tensordot/number", g((2, 3, 2), (3, 2, 4) if dims == 2 else (2, 4)), dict(dims=dims), torch.tensordot)
