import torch
import torch.nn.functional as F

from cases import bools, case, f64, grid, ints

INF, NAN = float("inf"), float("nan")
ALL_INTS = [torch.int64, torch.int32, torch.uint8]


def index(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype)


# Without repeated indices, PyTorch's result does not depend on the order of its writes.
FEW = index([2, 0], [1, 2], [0, 1])  # for a tensor of shape (3, 2) or more, unique along dimension 0
REPEATED = index([2, 0, 2], [1, 0, 2])
ODD = f64([[INF, NAN, 1], [-INF, 2, 3e38], [1e-40, -0.0, 5]])

# ---- gather
gather = lambda x, i, dim: torch.gather(x, dim, i)
case("gather", [grid(3, 4), REPEATED], dict(dim=0), gather)
case("gather", [grid(3, 4), REPEATED], dict(dim=1), gather)
case("gather", [grid(3, 4), index([3, 3, 3, 0, 1])], dict(dim=-1), gather)
case("gather", [grid(2, 3, 4), ints(2, 5, 3, low=0, high=3)], dict(dim=1), gather)
case("gather", [grid(2, 3, 37), ints(2, 3, 40, low=0, high=37)], dict(dim=2), gather, tags="no_gradcheck")
case("gather", [grid(3, 4), REPEATED.to(torch.int32)], dict(dim=0), gather)
case("gather", [grid(5), index(4, 4, 0)], dict(dim=0), gather)
case("gather", [f64(2.5), torch.tensor(0)], dict(dim=0), gather)
case("gather", [f64(2.5), index(0, 0)], dict(dim=0), gather)
case("gather", [grid(3, 4), torch.zeros(0, 2, dtype=torch.int64)], dict(dim=0), gather)
case("gather", [grid(0, 4), torch.zeros(0, 4, dtype=torch.int64)], dict(dim=1), gather)
case("gather", [ODD, index([0, 1, 2], [2, 0, 1])], dict(dim=0), gather, tags="extreme no_gradcheck")
for dtype in ALL_INTS:
    case("gather", [ints(3, 4, dtype=dtype), REPEATED], dict(dim=0), gather)
case("gather", [bools(3, 4), REPEATED], dict(dim=1), gather)

along = lambda x, i, dim: torch.take_along_dim(x, i, dim)
case("gather/take_along_dim", [grid(3, 4), index([2, 0, 1, 1])], dict(dim=0), along)
case("gather/take_along_dim", [grid(3, 1, 4), ints(2, 4, low=0, high=4).reshape(1, 2, 4)], dict(dim=-1), along)
case("gather/take_along_dim", [grid(3, 4), index([11, 0], [5, 5])], dict(dim=None), along)
case("gather/take_along_dim", [grid(3, 0), torch.zeros(3, 0, dtype=torch.int64)], dict(dim=1), along)
case("gather/take_along_dim", [grid(3, 4), index([2, -1, 1, -3])], dict(dim=0), along)

# ---- scatter
scatter = lambda x, i, src, dim: torch.scatter(x, dim, i, src)
scatter_value = lambda x, i, dim, value: torch.scatter(x, dim, i, value)
case("scatter", [grid(4, 3), FEW, grid(3, 2, seed=2)], dict(dim=0), scatter)
case("scatter", [grid(4, 3), FEW.t(), grid(3, 4, seed=2)], dict(dim=1), scatter, tags="no_gradcheck no_grad")
case("scatter", [grid(4, 3), index([2, 0, 1], [0, 1, 2]), grid(2, 3, seed=2)], dict(dim=1), scatter)
case("scatter", [grid(2, 3, 4), index([[2, 0, 1, 1]], [[1, 1, 1, 0]]), grid(2, 1, 4, seed=2)], dict(dim=1), scatter)
case("scatter", [f64(2.5), torch.tensor(0), f64(1.5)], dict(dim=0), scatter)
case("scatter", [grid(3, 4), torch.zeros(0, 4, dtype=torch.int64), grid(3, 4)], dict(dim=0), scatter, tags="no_grad")
case("scatter", [grid(0, 4), torch.zeros(0, 4, dtype=torch.int64), grid(0, 4)], dict(dim=0), scatter)
case("scatter", [ODD, index([1, 2, 0]), f64([[NAN, -INF, 7]])], dict(dim=0), scatter, tags="extreme no_gradcheck")
for dtype in ALL_INTS:
    case("scatter", [ints(4, 3, dtype=dtype), FEW, ints(3, 2, seed=3, dtype=dtype)], dict(dim=0), scatter)
case("scatter", [bools(4, 3), FEW, bools(3, 2, seed=3)], dict(dim=0), scatter)
case("scatter/value", [grid(4, 3), FEW], dict(dim=0, value=2.5), scatter_value)
case("scatter/value", [grid(4, 3), REPEATED], dict(dim=1, value=-1), scatter_value)
case("scatter/value", [ints(4, 3), FEW], dict(dim=0, value=3), scatter_value)
case("scatter/in_place", [grid(4, 3), FEW, grid(3, 2, seed=2)], dict(dim=0), scatter)
case("scatter/in_place", [ints(4, 3), FEW, ints(3, 2, seed=2)], dict(dim=0), scatter)
case("scatter/in_place_value", [grid(4, 3), FEW], dict(dim=0, value=2.5), scatter_value)

# ---- scatter_add
scatter_add = lambda x, i, src, dim: torch.scatter_add(x, dim, i, src)
for op in ("scatter_add", "scatter_add/in_place"):
    case(op, [grid(3, 4), REPEATED, grid(2, 3, seed=2)], dict(dim=0), scatter_add)
    case(op, [grid(3, 4), REPEATED, grid(2, 3, seed=2)], dict(dim=1), scatter_add)
    case(op, [grid(5), index(4, 1, 4, 4), grid(4, seed=2)], dict(dim=0), scatter_add)
    case(op, [f64(2.5), index(0, 0, 0), grid(3)], dict(dim=0), scatter_add)
    case(op, [grid(2, 3, 4), ints(2, 4, 3, low=0, high=3), grid(2, 4, 3, seed=2)], dict(dim=1), scatter_add)
    case(op, [grid(0, 4), torch.zeros(0, 4, dtype=torch.int64), grid(0, 4)], dict(dim=0), scatter_add)
    case(op, [ODD, index([1, 2, 0], [1, 2, 0]), f64([[NAN, -INF, 7], [1, INF, 1]])], dict(dim=0), scatter_add,
         tags="extreme no_gradcheck")
    for dtype in ALL_INTS:
        case(op, [ints(3, 4, dtype=dtype), REPEATED, ints(2, 3, seed=2, dtype=dtype)], dict(dim=0), scatter_add)
    case(op, [bools(3, 4), REPEATED, bools(2, 3, seed=2)], dict(dim=0), scatter_add)

# ---- scatter_reduce
reduce = lambda x, i, src, dim, reduce, include_self: torch.scatter_reduce(x, dim, i, src, reduce,
                                                                           include_self=include_self)
TO = index([2, 0, 2, 2], [1, 0, 2, 0])
for how in ("sum", "prod", "mean", "amax", "amin"):
    for include_self in (True, False):
        params = dict(dim=0, reduce=how, include_self=include_self)
        # include_self = False and amax: PyTorch counts an excluded element as a tie if it equals the result. The
        # inputs are distinct, so there are no ties.
        case("scatter_reduce", [grid(4, 4), TO, grid(2, 4, seed=2) + 0.03125], params, reduce)
        case("scatter_reduce", [grid(3, 5), TO, grid(2, 4, seed=3) + 0.03125], dict(params, dim=1), reduce,
             tags="no_gradcheck" if how in ("amax", "amin") else "")
        case("scatter_reduce", [grid(3), index(2, 2, 2, 0), grid(4, seed=2) + 0.03125], params, reduce)
        case("scatter_reduce", [grid(0, 4), torch.zeros(0, 4, dtype=torch.int64), grid(0, 4)], params, reduce)
        case("scatter_reduce", [ODD, index([1, 2, 0], [1, 2, 0]), f64([[NAN, -INF, 7], [1, INF, 1]])], params, reduce,
             tags="extreme no_grad no_gradcheck")
        if how != "mean":
            for dtype in ALL_INTS:
                case("scatter_reduce", [ints(4, 4, dtype=dtype), TO, ints(2, 4, seed=2, dtype=dtype)], params, reduce)
            case("scatter_reduce", [bools(4, 4), TO, bools(2, 4, seed=2)], params, reduce)
case("scatter_reduce", [f64([[2, 0, 1, 3], [0, 4, 0, 1.5], [1, 1, 1, 1]]), TO, f64([[3, 0, 2, 0], [0, 5, 0, 2]])],
     dict(dim=0, reduce="prod", include_self=True), reduce)
case("scatter_reduce", [f64([[1, 2, 3, 4], [1, 2, 3, 4], [5, 2, 3, 4]]), TO, f64([[5, 2, 3, 1], [1, 7, 3, 4]])],
     dict(dim=0, reduce="amax", include_self=True), reduce, tags="no_gradcheck")
case("scatter_reduce/in_place", [grid(4, 4), TO, grid(2, 4, seed=2) + 0.03125],
     dict(dim=0, reduce="prod", include_self=True), reduce)
case("scatter_reduce/in_place", [grid(4, 4), TO, grid(2, 4, seed=2) + 0.03125],
     dict(dim=0, reduce="mean", include_self=False), reduce)

# ---- index_add, index_copy, index_fill
index_add = lambda x, i, src, dim, alpha: torch.index_add(x, dim, i, src, alpha=alpha)
for op in ("index_add", "index_add/in_place"):
    case(op, [grid(4, 3), index(2, 0, 2), grid(3, 3, seed=2)], dict(dim=0, alpha=1), index_add)
    case(op, [grid(2, 4, 3), index(3, 3), grid(2, 2, 3, seed=2)], dict(dim=1, alpha=2.5), index_add)
    case(op, [grid(2, 4), index(3, 1, 3), grid(2, 3, seed=2)], dict(dim=-1, alpha=-1), index_add)
    case(op, [f64(2.5), index(0), f64(1.5)], dict(dim=0, alpha=1), index_add)
    case(op, [grid(4, 3), torch.zeros(0, dtype=torch.int64), grid(0, 3)], dict(dim=0, alpha=1), index_add)
    case(op, [ODD, index(1, 1), f64([[NAN, -INF, 7], [1, INF, 1]])], dict(dim=0, alpha=1), index_add,
         tags="extreme no_gradcheck")
    for dtype in ALL_INTS:
        case(op, [ints(4, 3, dtype=dtype), index(2, 0, 2), ints(3, 3, seed=2, dtype=dtype)], dict(dim=0, alpha=2),
             index_add)
    case(op, [bools(4, 3), index(2, 0, 2), bools(3, 3, seed=2)], dict(dim=0, alpha=1), index_add)

index_copy = lambda x, i, src, dim: torch.index_copy(x, dim, i, src)
for op in ("index_copy", "index_copy/in_place"):
    case(op, [grid(4, 3), index(2, 0), grid(2, 3, seed=2)], dict(dim=0), index_copy)
    case(op, [grid(2, 4, 3), index(3, 1), grid(2, 2, 3, seed=2)], dict(dim=-2), index_copy)
    case(op, [f64(2.5), torch.tensor(0), f64(1.5)], dict(dim=0), index_copy)
    case(op, [grid(4, 3), torch.zeros(0, dtype=torch.int64), grid(0, 3)], dict(dim=0), index_copy)
    case(op, [ODD, index(1), f64([[NAN, -INF, 7]])], dict(dim=0), index_copy, tags="extreme no_gradcheck")
    for dtype in ALL_INTS:
        case(op, [ints(4, 3, dtype=dtype), index(2, 0), ints(2, 3, seed=2, dtype=dtype)], dict(dim=0), index_copy)
    case(op, [bools(4, 3), index(2, 0), bools(2, 3, seed=2)], dict(dim=0), index_copy)

index_fill = lambda x, i, dim, value: torch.index_fill(x, dim, i, value)
for op in ("index_fill", "index_fill/in_place"):
    case(op, [grid(4, 3), index(2, 0, 2)], dict(dim=0, value=1.5), index_fill)
    case(op, [grid(2, 4, 3), index(-1, 1)], dict(dim=1, value=-2), index_fill)
    case(op, [f64(2.5), torch.tensor(0)], dict(dim=0, value=1), index_fill)
    case(op, [grid(4, 0), index(1)], dict(dim=0, value=1), index_fill)
    case(op, [ODD, index(1)], dict(dim=0, value=INF), index_fill, tags="extreme no_gradcheck")
    for dtype in ALL_INTS:
        case(op, [ints(4, 3, dtype=dtype), index(2, 0)], dict(dim=0, value=3), index_fill)
    case(op, [bools(4, 3), index(2, 0)], dict(dim=0, value=True), index_fill)

# ---- index and index_put. index_test.cpp has the same forms.
ALL = slice(None)
FORMS = {
    "t": lambda a, b: (a,),
    "t,t": lambda a, b: (a, b),
    ":,t": lambda a, b: (ALL, a),
    ":,t,t": lambda a, b: (ALL, a, b),
    "t,:,t": lambda a, b: (a, ALL, b),
    "...,t": lambda a, b: (..., a),
    "t,1": lambda a, b: (a, 1),
    "1,t": lambda a, b: (1, a),
    "1,:,t": lambda a, b: (1, ALL, a),
    "t,None,t": lambda a, b: (a, None, b),
    "None,t": lambda a, b: (None, a),
    "1::2,t": lambda a, b: (slice(1, None, 2), a),
    "t,-2:": lambda a, b: (a, slice(-2, None)),
    "True,t": lambda a, b: (True, a),
    "False": lambda a, b: (False,),
    "True": lambda a, b: (True,),
    "1": lambda a, b: (1,),
    "...,-1": lambda a, b: (..., -1),
    ":-1,None,1::2": lambda a, b: (slice(None, -1), None, slice(1, None, 2)),
    "...": lambda a, b: (...,),
}
BASIC = ("1", "...,-1", ":-1,None,1::2", "...")
A, B = index(2, -3, 2, 1), index([1, 0, -1, -1], [3, 2, 0, 2])
get = lambda x, a, b, form: x[FORMS[form](a, b)]


def tensors_of(form):
    """Returns the index tensors of a form. The first one indexes a dimension of size 3, the second one of size 4."""
    return [A if form.count("t") else None, B if form.count("t") > 1 else None]


SHAPE_OF = {"t": (3, 2), "t,t": (3, 4, 2), ":,t": (2, 3), ":,t,t": (2, 3, 4), "t,:,t": (3, 2, 4), "...,t": (2, 2, 3),
            "t,1": (3, 2, 2), "1,t": (2, 3, 2), "1,:,t": (2, 2, 3), "t,None,t": (3, 4), "None,t": (3, 2),
            "1::2,t": (4, 3), "t,-2:": (3, 4), "True,t": (3, 2), "False": (2, 3), "True": (2, 3), "1": (3, 2),
            "...,-1": (2, 3), ":-1,None,1::2": (3, 4), "...": (2, 3)}
for form in FORMS:
    case("index", [grid(*SHAPE_OF[form])] + tensors_of(form), dict(form=form), get)
case("index", [f64(2.5), None, None], dict(form="True"), get)
case("index", [f64(2.5), None, None], dict(form="..."), get)
case("index/mask", [grid(3, 2), torch.tensor(-1), None], dict(form="t"), get)  # also waits for a GPU
case("index", [grid(3, 4), A.to(torch.int32), B.to(torch.int32)], dict(form="t,t"), get)
case("index", [grid(3, 0), A, None], dict(form="t"), get)
case("index", [grid(3, 2), torch.zeros(2, 0, dtype=torch.int64), None], dict(form="t"), get)
case("index", [grid(3, 37), A, None], dict(form="t"), get, tags="no_gradcheck")
case("index", [ODD, index(1, 0), None], dict(form="t"), get, tags="extreme no_gradcheck")
for dtype in ALL_INTS:
    case("index", [ints(3, 4, dtype=dtype), A, B], dict(form="t,t"), get)
case("index", [bools(3, 4), A, B], dict(form="t,t"), get)

MASK = torch.tensor([True, False, True])
MASK2 = torch.tensor([[True, False, True, False], [False, False, True, True], [True, False, False, False]])
masked = [("t", (3, 2), MASK, None), ("t", (3, 4), MASK2, None), ("t", (3, 4, 2), MASK2, None),
          (":,t", (2, 3), MASK, None), (":,t", (2, 3, 4), MASK2, None), ("t,t", (3, 4), MASK, index(3, 1)),
          ("t,:,t", (3, 2, 3), MASK, MASK), ("t,1", (3, 2), MASK, None), ("t", (3, 2), ~(MASK | True), None),
          ("...,t", (2, 3), torch.tensor(True), None)]
# An expanded mask has another number of true elements, which must still fit the other tensors.
for form, shape, a, b in masked:
    case("index/mask", [grid(*shape), a, b], dict(form=form), get, tags="" if b is None else "no_strided")


def put(x, a, b, values, form, accumulate):
    y = x.clone()
    indices = FORMS[form](a, b)
    if accumulate:
        if form in BASIC:
            y[indices] += values
        else:
            # y[indices] += values would not add equal indices twice; index_put_ takes tensors only
            positions = torch.arange(x.numel()).reshape(x.shape)[indices]
            y = y.reshape(-1).index_put((positions,), values.expand(positions.shape), accumulate=True).reshape(x.shape)
    else:
        y[indices] = values
    return y


U, V = index(2, -3), index([1, 0], [3, 2])  # select no element twice
for op in ("index_put", "index_put/in_place"):
    for form in FORMS:
        a, b = (None if t is None else u for t, u in zip(tensors_of(form), (U, V)))
        x = grid(*SHAPE_OF[form])
        selected = x[FORMS[form](a, b)]
        case(op, [x, a, b, grid(*selected.shape, seed=3)], dict(form=form, accumulate=False), put)
        if op == "index_put":
            a, b = tensors_of(form)
            selected = x[FORMS[form](a, b)]
            case(op, [x, a, b, grid(*selected.shape, seed=3)], dict(form=form, accumulate=True), put)
    for accumulate in (False, True):
        params = dict(form="t,t", accumulate=accumulate)
        case(op, [grid(3, 4, 2), U, V, f64(1.5)], params, put)
        case(op, [grid(3, 4, 2), U, V, grid(2, 1)], params, put)
        case(op, [grid(3, 4, 0), U, V, grid(2, 2, 0)], params, put)
        case(op, [ODD, index(1, 0), None, f64([[NAN, -INF, 7]])], dict(params, form="t"), put,
             tags="extreme no_gradcheck")
        case(op, [bools(3, 4), U, V, bools(2, 2, seed=3)], params, put)
        for dtype in ALL_INTS:
            case(op, [ints(3, 4, dtype=dtype), U, V, ints(2, 2, dtype=dtype)], params, put)
for form, shape, a, b in masked:
    x = grid(*shape)
    case("index_put/mask", [x, a, b, grid(*x[FORMS[form](a, b)].shape, seed=3)], dict(form=form, accumulate=False), put,
         tags="no_strided")

# ---- masks
case("masked_select", [grid(3, 4), MASK2], {}, torch.masked_select)
case("masked_select", [grid(3, 1), MASK2], {}, torch.masked_select)
case("masked_select", [grid(2, 3, 4), MASK2], {}, torch.masked_select)
case("masked_select", [grid(2, 3), MASK], {}, torch.masked_select)
case("masked_select", [f64(2.5), torch.tensor(True)], {}, torch.masked_select)
case("masked_select", [grid(3), MASK & False], {}, torch.masked_select)
case("masked_select", [grid(0, 3), MASK], {}, torch.masked_select)
case("masked_select", [grid(30, 41), bools(30, 41)], {}, torch.masked_select, tags="no_gradcheck no_grad")
case("masked_select", [ODD, bools(3, 3)], {}, torch.masked_select, tags="extreme no_gradcheck")
for dtype in ALL_INTS:
    case("masked_select", [ints(3, 4, dtype=dtype), MASK2], {}, torch.masked_select)
case("masked_select", [bools(3, 4), MASK2], {}, torch.masked_select)

case("nonzero", [f64([[0, 1, -0.0], [2, 0, 3]])], {}, torch.nonzero)
case("nonzero", [f64([0, 0])], {}, torch.nonzero)
case("nonzero", [f64(2.5)], {}, torch.nonzero)
case("nonzero", [f64(0)], {}, torch.nonzero)
case("nonzero", [grid(0, 3)], {}, torch.nonzero)
case("nonzero", [f64([0, NAN, INF, 1e-40, -0.0])], {}, torch.nonzero, tags="extreme")
case("nonzero", [ints(2, 3, 4, low=0, high=3)], {}, torch.nonzero, dtypes=ALL_INTS)
case("nonzero", [bools(4, 5)], {}, torch.nonzero)
case("nonzero", [ints(2, 700, low=0, high=3)], {}, torch.nonzero)
numpy = lambda x: torch.nonzero(x, as_tuple=True)
case("nonzero/numpy", [ints(2, 3, 4, low=0, high=3)], {}, numpy)
case("nonzero/numpy", [f64(2.5)], {}, numpy)

one_hot = lambda x, num_classes: F.one_hot(x.long(), num_classes)
case("one_hot", [index(2, 0, 1, 2)], dict(num_classes=4), one_hot, dtypes=ALL_INTS)
case("one_hot", [ints(2, 3, low=0, high=5)], dict(num_classes=5), one_hot)
case("one_hot", [torch.tensor(1)], dict(num_classes=3), one_hot)
case("one_hot", [torch.zeros(0, 2, dtype=torch.int64)], dict(num_classes=3), one_hot)
case("one_hot/counted", [index([2, 0], [4, 2])], dict(num_classes=-1), one_hot)

masked_scatter = lambda x, mask, source: torch.masked_scatter(x, mask, source)
for x, source in ((grid(3, 4), grid(3, 4, seed=3)), (grid(2, 3, 4), grid(2, 3, 4, seed=3)), (grid(3, 1), grid(3, 4, seed=3))):
    case("masked_scatter", [x, MASK2, source], {}, masked_scatter)
case("masked_scatter", [grid(2, 3), MASK, grid(2, 3, seed=3)], {}, masked_scatter)
case("masked_scatter", [grid(3), MASK & False, grid(0)], {}, masked_scatter)
case("masked_scatter", [grid(0, 3), MASK, grid(2)], {}, masked_scatter)
case("masked_scatter", [ODD, bools(3, 3), -ODD], {}, masked_scatter, tags="extreme no_gradcheck")
for dtype in ALL_INTS:
    case("masked_scatter", [ints(3, 4, dtype=dtype), MASK2, ints(12, seed=2, dtype=dtype)], {}, masked_scatter)
case("masked_scatter", [bools(3, 4), MASK2, bools(12, seed=2)], {}, masked_scatter)
case("masked_scatter/in_place", [grid(3, 4), MASK2, grid(3, 4, seed=3)], {}, masked_scatter)

take = lambda x, i: torch.take(x, i.long())
case("take", [grid(3, 4), index(0, 11, -1, 5, 5)], {}, take)
case("take", [grid(2, 3, 4), ints(2, 3, low=-24, high=24)], {}, take)
case("take", [f64(2.5), index(0, 0)], {}, take)
case("take", [grid(3, 4), ints(0, 2)], {}, take)
case("take", [ODD, index(0, 3, 8, -9)], {}, take, tags="extreme no_gradcheck")
for dtype in ALL_INTS:
    case("take", [ints(3, 4, low=0, dtype=dtype), index(1, 7)], {}, take)
case("take", [bools(3, 4), index(1, 7)], {}, take)


def outside(x, indices, dim):
    """Whether an index is outside. PyTorch's take_along_dim takes it modulo the size, and Tapestry refuses it."""
    n = x.numel() if dim is None else x.shape[dim]
    return bool(((indices < -n) | (indices >= n)).any())


def integer_mean(x, i, src, reduce, **params):
    """Tapestry refuses the mean of integers, which PyTorch rounds down."""
    return reduce == "mean" and not x.is_floating_point()


def real_factor(x, i, src, alpha, **params):
    """Tapestry refuses a real factor for integers, which PyTorch cuts off to an integer."""
    return isinstance(alpha, float) and not x.is_floating_point()


def missing(x, a, b, *values, form, **params):
    """Whether the form has more index tensors than there are. PyTorch takes None for a new dimension, which no Tensor stands for."""
    return form.count("t") > (a is not None) + (b is not None)


def too_few(x, mask, source):
    """Whether a mask that is all true needs more elements. The tests of layouts expand masks, which may make them so."""
    return source.numel() < torch.broadcast_shapes(x.shape, mask.shape).numel()


SKIPS = {"gather/take_along_dim": outside, "masked_scatter": too_few, "masked_scatter/in_place": too_few,
         "scatter_reduce": integer_mean, "scatter_reduce/in_place": integer_mean,
         "index_add": real_factor, "index_add/in_place": real_factor,
         "index": missing, "index/mask": missing, "index_put": missing, "index_put/in_place": missing,
         "index_put/mask": missing}
