import torch
import torch.nn.functional as F

from cases import case, f64, grid

INF, NAN = float("inf"), float("nan")
WINDOWS = {
    1: (((2, 3, 7), dict(kernel_size=2)), ((3, 6), dict(kernel_size=3, stride=1)),
        ((1, 2, 8), dict(kernel_size=3, stride=2, padding=1)),
        ((1, 1, 7), dict(kernel_size=2, stride=3, ceil_mode=True)),
        ((1, 2, 9), dict(kernel_size=3, stride=2, padding=1, ceil_mode=True))),
    3: (((1, 2, 4, 4, 6), dict(kernel_size=2)), ((2, 3, 3, 5), dict(kernel_size=[2, 1, 3], stride=1)),
        ((1, 1, 4, 5, 4), dict(kernel_size=3, stride=2, padding=1)),
        ((1, 1, 5, 4, 3), dict(kernel_size=[3, 2, 2], stride=[2, 1, 2], padding=[1, 0, 1], ceil_mode=True)),
        ((1, 1, 3, 3, 3), dict(kernel_size=2, stride=3, ceil_mode=True))),
}
SPECIAL = f64([-INF, -INF, 1, NAN, -INF, INF, 2, 3, 1e30, -1e30, 1e-30, 0, 3, NAN, NAN, 4])


def distinct(*shape):
    return grid(*shape, low=-8, high=8)


def with_indices(pool):
    return lambda x, **params: pool(x, return_indices=True, **params)


for dims in (1, 3):
    max_pool, avg_pool = getattr(F, f"max_pool{dims}d"), getattr(F, f"avg_pool{dims}d")
    op = f"max_pool{dims}d"
    for shape, params in WINDOWS[dims]:
        case(op, [distinct(*shape)], params, max_pool)
        case(f"{op}/with_indices", [distinct(*shape)], params, with_indices(max_pool))
        case(f"avg_pool{dims}d", [grid(*shape)], params, avg_pool)
        if params.get("padding"):
            case(f"avg_pool{dims}d", [grid(*shape)], dict(params, count_include_pad=False), avg_pool)
    line = (1, 2, 9) if dims == 1 else (1, 1, 5, 6, 5)
    for pool in (op, f"{op}/with_indices"):
        fn = max_pool if pool == op else with_indices(max_pool)
        case(pool, [distinct(*line)], dict(kernel_size=3, dilation=2, stride=2, padding=1), fn)
        # With ties, the first maximum gets the gradient; of several NaN, the last one is chosen.
        shape = (1, 1, 8) if dims == 1 else (1, 1, 2, 2, 4)
        ties = f64([1, 1, 2, 2, 1, 1, 2, 2] if dims == 1 else [1, 1, 2, 2, 1, 1, 2, 2] * 2).reshape(shape)
        case(pool, [ties], dict(kernel_size=2), fn, tags="no_gradcheck")
        special = SPECIAL.reshape((1, 1, 16) if dims == 1 else (1, 1, 2, 2, 4))
        case(pool, [special], dict(kernel_size=2), fn, tags="extreme no_gradcheck")
    case(f"avg_pool{dims}d", [SPECIAL.reshape((1, 1, 16) if dims == 1 else (1, 1, 2, 2, 4))], dict(kernel_size=2),
         avg_pool, tags="extreme no_gradcheck")
    empty = (0, 2, 4) if dims == 1 else (0, 2, 4, 4, 4)
    case(op, [grid(*empty)], dict(kernel_size=2), max_pool)
    case(f"avg_pool{dims}d", [grid(*empty)], dict(kernel_size=2), avg_pool)
for shape, params in (((2, 2, 4, 5), dict(kernel_size=2)), ((1, 1, 6, 7), dict(kernel_size=3, stride=2, padding=1)),
                      ((2, 5, 6), dict(kernel_size=[2, 3], stride=[1, 2], padding=[1, 0])),
                      ((1, 2, 7, 8), dict(kernel_size=[2, 3], dilation=[3, 1], stride=2, padding=1))):
    case("max_pool2d/with_indices", [distinct(*shape)], params, with_indices(F.max_pool2d))
case("max_pool2d/with_indices", [grid(1, 1, 18, 17)], dict(kernel_size=[17, 16], stride=1), with_indices(F.max_pool2d),
     tags="no_gradcheck")  # equal values, and places that do not fit in a byte

ADAPTIVE = {1: (((2, 3, 6), 3), ((3, 7), 3), ((1, 2, 5), 1), ((1, 1, 3), 5), ((0, 2, 4), 2)),
            2: (((2, 3, 4, 6), 2), ((1, 2, 5, 7), [3, 2]), ((3, 5, 4), [2, 3]), ((1, 1, 3, 3), 5), ((1, 2, 7, 4), [1, 4]),
                ((0, 2, 4, 4), 2)),
            3: (((1, 2, 4, 4, 2), 2), ((1, 1, 5, 3, 7), [3, 2, 2]), ((2, 3, 5, 4), [2, 3, 1]), ((1, 1, 2, 3, 2), 3),
                ((0, 2, 4, 4, 4), 2))}
for dims, cases in ADAPTIVE.items():
    for kind in ("max", "avg"):
        op = f"adaptive_{kind}_pool{dims}d"
        if op == "adaptive_avg_pool2d":
            continue
        pool = getattr(F, op)
        for shape, size in cases:
            case(op, [distinct(*shape)], dict(output_size=size), pool)
            if kind == "max" and shape[0]:
                case(f"{op}/with_indices", [distinct(*shape)], dict(output_size=size), with_indices(pool))
        sizes = (0, [2, 0], [0, 2]) if dims == 2 else (0, [0, 2, 1], [2, 1, 0]) if dims == 3 else (0,)
        for size in sizes:  # PyTorch's backward refuses results without elements
            for shape in ((2, 3) + (4,) * dims, (3,) + (4,) * dims):
                case(op, [distinct(*shape)], dict(output_size=size), pool, tags="no_grad no_gradcheck")
                if kind == "max":
                    case(f"{op}/with_indices", [distinct(*shape)], dict(output_size=size), with_indices(pool),
                         tags="no_grad no_gradcheck")
        special = SPECIAL.reshape({1: (1, 1, 16), 2: (1, 1, 4, 4), 3: (1, 1, 2, 2, 4)}[dims])
        for size in (1, 2) if dims == 3 else (2, 3):
            case(op, [special], dict(output_size=size), pool, tags="extreme no_gradcheck")

for dims in (1, 2, 3):
    op = f"lp_pool{dims}d"
    shape = {1: (2, 2, 7), 2: (1, 2, 5, 6), 3: (1, 1, 4, 3, 5)}[dims]

    def pool(x, norm_type, kernel_size, stride=None, ceil_mode=False, fn=getattr(F, op)):
        return fn(x, norm_type, kernel_size, stride, ceil_mode)

    for p in (1.0, 2.0, 3.0):
        # Roots amplify the rounding of the sum.
        case(op, [grid(*shape, low=0.5)], dict(norm_type=p, kernel_size=2), pool, slack=4)
    case(op, [grid(*shape)], dict(norm_type=2.0, kernel_size=3, stride=2), pool, slack=4)
    case(op, [grid(*shape)], dict(norm_type=2.0, kernel_size=2, stride=1, ceil_mode=True), pool, slack=4)
    case(op, [grid(*((0,) + shape[1:]))], dict(norm_type=2.0, kernel_size=2), pool)
    case(op, [f64([INF, 1, NAN, 2, 3, -INF, 0.5, 4]).reshape({1: (1, 1, 8), 2: (1, 1, 2, 4), 3: (1, 1, 2, 2, 2)}[dims])],
         dict(norm_type=2.0, kernel_size=2 if dims == 1 else 1), pool, tags="extreme no_gradcheck")


def unpool(dims):
    fn = getattr(F, f"max_unpool{dims}d")
    return lambda x, indices, output_size=None, **params: fn(x, indices, output_size=output_size, **params)


for dims, shape, params, size in ((1, (2, 2, 6), dict(kernel_size=2), None), (1, (2, 7), dict(kernel_size=2), [7]),
                                  (1, (1, 1, 8), dict(kernel_size=3, stride=3, padding=1), None),
                                  (2, (2, 2, 4, 6), dict(kernel_size=2), None),
                                  (2, (1, 2, 5, 7), dict(kernel_size=2), [5, 7]),
                                  (2, (3, 5, 6), dict(kernel_size=[2, 3], stride=[2, 3]), [5, 6]),
                                  (3, (1, 2, 4, 4, 2), dict(kernel_size=2), None),
                                  (3, (1, 1, 5, 3, 4), dict(kernel_size=[2, 1, 2]), [5, 3, 4])):
    x = distinct(*shape)
    _, indices = getattr(F, f"max_pool{dims}d")(x, return_indices=True, **params)
    case(f"max_unpool{dims}d", [grid(*indices.shape), indices], dict(params, output_size=size), unpool(dims))
for dims in (1, 2, 3):
    shape = (1, 1) + (2,) * dims
    at = torch.tensor([0, 3, 5, 7, 9, 10, 12, 15][:2**dims]).reshape(shape) % 4**dims
    case(f"max_unpool{dims}d", [f64([INF, NAN, -INF, 1e30, 0, 1, 2, 3][:2**dims]).reshape(shape), at],
         dict(kernel_size=2), unpool(dims), tags="extreme no_gradcheck")
    case(f"max_unpool{dims}d", [grid(*((0, 1) + (2,) * dims)), torch.zeros((0, 1) + (2,) * dims, dtype=torch.int64)],
         dict(kernel_size=2), unpool(dims))
