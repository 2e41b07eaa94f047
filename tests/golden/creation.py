import torch

from cases import case

INF = float("inf")
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int64, torch.int32, torch.uint8]


def record(op, params, fn, tags=""):
    case(op, [], params, fn, tags)


for dtype in INTEGERS + [torch.bool, torch.int16, torch.int8, torch.uint16]:
    record("full", dict(sizes=[3], value=1, dtype=dtype),
           lambda sizes, value, dtype: torch.full(sizes, value, dtype=dtype))
for value in (0, 3, -2.5, True, INF):
    record("full", dict(sizes=[2, 3], value=value), lambda sizes, value: torch.full(sizes, value),
           "extreme" if value == INF else "")
    for dtype in FLOATS:
        record("full", dict(sizes=[3], value=value, dtype=dtype),
               lambda sizes, value, dtype: torch.full(sizes, value, dtype=dtype), "extreme" if value == INF else "")
record("full", dict(sizes=[0, 3], value=1.5), lambda sizes, value: torch.full(sizes, value), "empty")


def arange(start, end, step, dtype=None):
    return torch.arange(start, end, step, dtype=dtype)


for start, end, step in [(0, 5, 1), (2, 11, 3), (5, 0, -2), (-3, 3, 1), (0.0, 1.0, 0.1), (1.0, 0.0, -0.25),
                         (0, 2.5, 1), (0.5, 4, 1)]:
    record("arange", dict(start=start, end=end, step=step), arange)
    # Integer dtypes are recorded only for integer arguments, because PyTorch rounds the step itself if the result's
    # dtype is an integer.
    whole = [torch.int32, torch.int64, torch.uint8] if isinstance(step, int) and start >= 0 and end >= 0 else []
    for dtype in FLOATS + whole:
        record("arange", dict(start=start, end=end, step=step, dtype=dtype), arange)
record("arange", dict(start=1, end=1, step=1), arange, "empty")
record("arange", dict(start=0.0, end=0.0, step=-1.0), arange, "empty")
record("arange", dict(start=2**53, end=2**53 + 5, step=2), arange, "extreme")


def linspace(start, end, steps, dtype=torch.float32):
    return torch.linspace(start, end, steps, dtype=dtype)


for start, end, steps in [(0.0, 1.0, 5), (0.0, 1.0, 11), (-3.0, 7.0, 2), (2.0, 3.0, 1), (1.0, -1.0, 8),
                          (0.0, 0.0, 3)]:
    for dtype in FLOATS:
        record("linspace", dict(start=start, end=end, steps=steps, dtype=dtype), linspace)
record("linspace", dict(start=0.0, end=1.0, steps=0), linspace, "empty")
record("linspace", dict(start=-1e30, end=1e30, steps=5), linspace, "extreme")
for n in (1, 3):
    record("eye", dict(n=n), torch.eye)
    for dtype in FLOATS + INTEGERS + [torch.bool]:
        record("eye", dict(n=n, dtype=dtype), lambda n, dtype: torch.eye(n, dtype=dtype))
record("eye", dict(n=0), torch.eye, "empty")
for n, m in ((2, 5), (5, 2), (1, 3)):
    record("eye/columns", dict(n=n, m=m), torch.eye)
    record("eye/columns", dict(n=n, m=m, dtype=torch.int32), lambda n, m, dtype: torch.eye(n, m, dtype=dtype))
record("eye/columns", dict(n=3, m=0), torch.eye, "empty")
# Numbers at the limits of a dtype, and those that it truncates or wraps.
for dtype, numbers in ((torch.uint8, (255, -1, -255, 255.5)), (torch.int8, (127, -128, 127.5, -0.5)),
                       (torch.int16, (32767, -32768)), (torch.uint16, (65535, -1, -65535)),
                       (torch.int32, (2**31 - 1, -(2**31), -(2.0**31))),
                       (torch.int64, (2**53, -(2.0**62))), (torch.bool, (2, -0.5, INF))):
    for value in numbers:
        record("full", dict(sizes=[2], value=value, dtype=dtype),
               lambda sizes, value, dtype: torch.full(sizes, value, dtype=dtype), "extreme")


def logspace(start, end, steps, base=10.0, dtype=torch.float32):
    return torch.logspace(start, end, steps, base, dtype=dtype)


for start, end, steps, base in [(0.0, 3.0, 4, 2.0), (-2.0, 2.0, 5, 10.0), (1.0, 1.0, 1, 10.0), (3.0, -1.0, 5, 2.0)]:
    for dtype in FLOATS:
        # PyTorch rounds powers of 10 twice in f16 and bf16.
        case("logspace", [], dict(start=start, end=end, steps=steps, base=base, dtype=dtype), logspace, slack=2)
record("logspace", dict(start=0.0, end=1.0, steps=0), logspace, "empty")
record("logspace", dict(start=-100.0, end=100.0, steps=3, base=2.0), logspace, "extreme")
