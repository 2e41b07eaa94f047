"""Writes core_print.txt, which contains tensors and the text that PyTorch prints for them. tests/core/print_test.cpp
reads this file.

Each case consists of a line `case <dtype> <sizes...>`, a line with the values, the printed text, and a line `end`. The
text is changed in two ways to match Tapestry's spelling: dtypes lose the prefix `torch.`, and shapes have brackets
instead of parentheses.
"""
import pathlib
import re
import torch

inf, nan = float("inf"), float("nan")
f32, f64, f16, bf16 = torch.float32, torch.float64, torch.float16, torch.bfloat16
i64, i32, u8, boolean = torch.int64, torch.int32, torch.uint8, torch.bool
NAMES = {f32: "float32", f64: "float64", f16: "float16", bf16: "bfloat16", i64: "int64", i32: "int32", u8: "uint8",
         boolean: "bool"}


def wave(n, dtype=f32):
    return ((torch.arange(n, dtype=f64) * 37) % 101 / 8 - 5).to(dtype)


cases = [
    torch.tensor(3.5), torch.tensor(2.0), torch.tensor(-7), torch.tensor(True), torch.tensor(nan), torch.tensor(-inf),
    torch.tensor(1e-5), torch.tensor(123456789.0), torch.tensor(0.0),
    torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.5, -22.25, 0.0]), torch.tensor([-0.0, 0.0]),
    torch.tensor([1e-4, 1.0]), torch.tensor([9.99e-5, 0.01]), torch.tensor([0.5, 500.0]), torch.tensor([0.5, 501.0]),
    torch.tensor([1.0, 1000.0]), torch.tensor([1.0, 1001.0]), torch.tensor([1e8, 2e8]), torch.tensor([1.1e8, 2e8]),
    torch.tensor([-1e-5, 2e10, 0.0]), torch.tensor([1e-300, 1e300], dtype=f64), torch.tensor([1e-45, 1e-38]),
    torch.tensor([inf, 1.0, -inf, nan]), torch.tensor([nan, 1.5]), torch.tensor([inf, inf]), torch.tensor([0.0, nan]),
    torch.tensor([0.99996, 1.5]), torch.tensor([2.5, 9.99999]),
    torch.tensor([1, -20, 300]), torch.tensor([2**63 - 1, -(2**63)]), torch.tensor([1, 2], dtype=i32),
    torch.tensor([0, 255], dtype=u8), torch.tensor([[True, False], [False, False]]),
    torch.tensor([1.0, 2.5], dtype=f64), torch.tensor([0.1, 65504.0], dtype=f16), torch.tensor([0.1, -3.0], dtype=bf16),
    torch.tensor([1.0, 2.0], dtype=f16),
    torch.empty(0), torch.empty(0, dtype=i64), torch.empty(0, 3), torch.empty(2, 0, 3, dtype=boolean),
    torch.empty(0, dtype=f16),
    wave(6).view(2, 3), wave(24).view(2, 3, 4), wave(16).view(1, 2, 2, 2, 2), wave(100), wave(100, f64),
    torch.arange(30).view(3, 10), torch.arange(1000), torch.arange(1001), torch.arange(-600, 600),
    wave(1100).view(10, 110), wave(1200).view(3, 4, 100), wave(1536).view(2, 8, 8, 12), wave(1001, bf16),
    (wave(40, f64) * 1e5).view(2, 20), (wave(33) * 1e-6).view(3, 11), wave(1500).view(1500, 1), wave(64, f16).view(4, 16),
    torch.arange(20, dtype=i32), torch.arange(26, dtype=i32), torch.arange(25, dtype=i32), wave(8, f64), wave(7, f64),
]

lines = []
for t in cases:
    text = str(t).replace("torch.", "")
    text = re.sub(r"size=\((.*?),?\)", r"size=[\1]", text)
    values = [repr(v) if t.dtype in (i64, i32, u8) else repr(float(v)) for v in t.flatten().tolist()]
    lines += [" ".join(["case", NAMES[t.dtype], *map(str, t.shape)]), " ".join(values), text, "end"]
pathlib.Path(__file__).with_suffix(".txt").write_text("\n".join(lines) + "\n")
