import torch

from cases import bools, case, f64, grid, ints

INF, NAN = float("inf"), float("nan")
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8,
          torch.bool, torch.int16, torch.int8, torch.uint16]
INTEGERS = [torch.int64, torch.int32, torch.uint8, torch.int16, torch.int8, torch.uint16]

for op, fn in (("clone", torch.clone), ("contiguous", lambda x: x.contiguous())):
    for shape in [(3, 5), (2, 3, 4, 5), (), (37,), (0, 3)]:
        case(op, [grid(*shape)], fn=fn)
    case(op, [f64([INF, -INF, NAN, -0.0])], fn=fn, tags="extreme no_gradcheck")
    case(op, [ints(5)], fn=fn, dtypes=INTEGERS)
    case(op, [bools(5)], fn=fn)
case("contiguous/channels_last", [grid(2, 3, 4, 5)], fn=lambda x: x.contiguous(memory_format=torch.channels_last))


def to(x, dtype):
    return x.to(dtype)


for dtype in DTYPES:
    for source in DTYPES:
        if source == torch.float64:  # a float64 case also runs in the other floating dtypes
            if dtype != source:
                case("to", [grid(9)], dict(dtype=dtype), to, tags="no_gradcheck")
        elif source.is_floating_point:
            case("to", [grid(9, dtype=source)], dict(dtype=dtype), to)
        else:
            case("to", [bools(9).to(source)], dict(dtype=dtype), to)
    if dtype == torch.float64:
        continue
    case("to", [grid(0, 3)], dict(dtype=dtype), to)
    if dtype.is_floating_point:
        case("to", [f64([INF, -INF, NAN, 0.0, 2.0**-149, 2.0**-24, 65504.0, 65520.0, 2.0**127])],
             dict(dtype=dtype), to, tags="extreme no_gradcheck no_grad")
case("to", [f64([1.5, 0.0, -0.0, NAN, INF, 2.0**-149])], dict(dtype=torch.bool), to, tags="extreme no_gradcheck")
case("to", [f64([2.75, -2.75, 255.0, 0.5])], dict(dtype=torch.uint8), to, tags="extreme no_gradcheck")
case("to", [torch.tensor([2**40 + 3, -1, 300])], dict(dtype=torch.int32), to, tags="extreme")
case("to", [torch.tensor([2**40 + 3, -1, 300])], dict(dtype=torch.uint8), to, tags="extreme")


def copy_(target, source):
    y = target.clone()
    y.copy_(source)
    return y


for target, source in [((3, 5), (3, 5)), ((2, 3, 4), (4,)), ((2, 3), (2, 1)), ((2, 3), ()), ((), ()), ((0, 3), (3,)),
                       ((2, 3, 4, 5), (2, 3, 4, 5))]:
    case("copy_", [grid(*target), grid(*source, seed=2)], fn=copy_)
for dtype in DTYPES:
    case("copy_", [grid(5, dtype=torch.float32), bools(5).to(dtype)], fn=copy_)
case("copy_", [grid(4), f64([INF, NAN, -INF, 0])], fn=copy_, tags="extreme no_gradcheck")
case("copy_", [ints(4), grid(4, dtype=torch.float32)], fn=copy_, tags="no_grad")


def fill_(x, value):
    y = x.clone()
    y.fill_(value)
    return y


for value in (2.5, -1, True, INF, NAN):
    tags = "extreme no_gradcheck" if isinstance(value, float) and value != 2.5 else ""
    case("fill_", [grid(3, 5)], dict(value=value), fill_, tags=tags)
case("fill_", [grid(0, 3)], dict(value=1.5), fill_)
case("fill_", [ints(5)], dict(value=3), fill_, dtypes=INTEGERS)
case("fill_", [bools(5)], dict(value=2), fill_)

def item(x):
    return torch.tensor(x.item(), dtype=x.dtype)


for x in (grid(1), grid(), grid(1, 1), bools(1)):
    case("item", [x], fn=item)
case("item", [ints(1, low=0)], fn=item, dtypes=INTEGERS)
for value in (INF, NAN, -0.0, 2.0**-149):
    case("item", [f64([value])], fn=item, tags="extreme")
