import torch.nn.functional as F

from cases import case, f64, grid, positive

INF, NAN = float("inf"), float("nan")


def affine(c):
    return [positive(c, seed=5, high=2), grid(c, seed=6, low=-1, high=1)]


def group_norm(x, weight, bias, num_groups, eps=1e-5):
    return F.group_norm(x, num_groups, weight, bias, eps)


def group(x, weight, bias, tags="", **params):
    case("group_norm", [x, weight, bias], params, group_norm, tags)


# 2 x 4 x 3 x 3 and 1 x 4 x 2 x 3 have fewer than 16 groups; 5 x 8 x 3 x 2 and 4 x 8 x 17 have more.
for shape, groups in (((3, 4), 2), ((3, 6), 1), ((2, 4, 5), 2), ((2, 4, 3, 3), 2), ((1, 4, 2, 3), 4), ((2, 6, 2, 2), 3),
                      ((2, 3, 2, 1, 3), 1), ((5, 8, 3, 2), 4), ((2, 8, 17), 8), ((9, 4, 4), 2)):
    x, (w, b) = grid(*shape), affine(shape[1])
    # Two values normalise to -1 and 1. The gradient is then almost 0, and only rounding errors remain.
    tags = "no_grad" if x[0].numel() == 2 * groups else ""
    group(x, w, b, tags, num_groups=groups)
    group(x, None, None, tags, num_groups=groups)
x, (w, b) = grid(2, 4, 3, 2), affine(4)
group(x, w, None, num_groups=2, eps=0.25)
group(x, None, b, num_groups=2)
group(x + 256, w, b, num_groups=2)
group(grid(0, 4, 3), w, b, num_groups=2)
group(f64([[[1, 1], [1, 1], [1e15, -1e15], [0, 1]]]), w, b, num_groups=2, tags="extreme no_gradcheck")
group(f64([[[1e-15, 0], [0, 0], [3, 3], [0, 1]]]), w, b, num_groups=2, tags="extreme no_gradcheck")
group(f64([[[1, INF], [1, 1], [1, 2], [0, 1]], [[1, 2], [NAN, 1], [1, -INF], [0, 1]]]), w, b, num_groups=2,
      tags="extreme no_gradcheck no_grad")


def instance_norm(x, mean, var, weight, bias, use_input_stats=True, momentum=0.1, eps=1e-5):
    """Returns the result and the updated running statistics."""
    mean, var = (None if s is None else s.detach().clone() for s in (mean, var))
    y = F.instance_norm(x, mean, var, weight, bias, use_input_stats, momentum, eps)
    return [y] + [s for s in (mean, var) if s is not None]


def instance(x, mean, var, weight, bias, tags="", **params):
    case("instance_norm", [x, mean, var, weight, bias], params, instance_norm, tags, constant=[1, 2])


def statistics(c):
    return [grid(c, seed=3, low=-1, high=1), positive(c, seed=4, high=3)]


for shape in ((4, 2, 5), (3, 2, 2, 3), (1, 3, 3, 3), (9, 2, 3, 2), (2, 2, 1, 2, 2)):
    c = shape[1]
    x = grid(*shape)
    instance(x, None, None, *affine(c))
    instance(x, *statistics(c), *affine(c))
    instance(x, *statistics(c), None, None, use_input_stats=False)
x = grid(3, 2, 2, 3)
instance(x, None, None, None, None)
instance(x, *statistics(2), affine(2)[0], None, momentum=0.5, eps=0.25)
instance(x, *statistics(2), None, affine(2)[1], use_input_stats=False, eps=0.25)
instance(x, *statistics(2), None, None, momentum=0.0)
instance(x, *statistics(2), None, None, momentum=1.0)
instance(x + 256, *statistics(2), *affine(2))
instance(f64([[[1, 1, 1], [1e15, -1e15, 0]]]), None, None, *affine(2), tags="extreme no_gradcheck")
instance(f64([[[1, INF, 1], [0, 1, 2]], [[1, 2, 3], [NAN, 0, 1]]]), *statistics(2), *affine(2),
         tags="extreme no_gradcheck no_grad")

# A single value normalises to exactly 0, and PyTorch's differences of products to rounding errors.
SKIPS = {"group_norm": lambda x, weight, bias, num_groups, eps=1e-5: x.shape[0] > 0 and x[0].numel() == num_groups}
