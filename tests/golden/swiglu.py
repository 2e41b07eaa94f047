import torch.nn.functional as F

from cases import case, f64, grid

INF, NAN = float("inf"), float("nan")


def swiglu(gate, up):
    return F.silu(gate) * up


for shape in [(3, 5), (2, 3, 4), (), (37,), (0, 3)]:
    case("swiglu", [grid(*shape), grid(*shape, seed=2)], fn=swiglu)
case("swiglu", [grid(3, 5), grid(5, seed=2)], fn=swiglu, tags="broadcast")
case("swiglu", [grid(2, 1, 3), grid(4, 1, seed=2)], fn=swiglu, tags="broadcast")
case("swiglu", [f64([INF, NAN, 0.0, -0.0, 1.0, -2.5, 80.0, -80.0]), f64([1.0, 2.0, NAN, 3.0, INF, -1.0, 2.0, 4.0])],
     fn=swiglu, tags="extreme no_gradcheck no_grad")
