"""Writes core_safetensors.safetensors with PyTorch and the original safetensors library.
tests/core/safetensors_test.cpp reads this file, and checks that Tapestry writes the same bytes."""
import pathlib

import torch
from safetensors.torch import save_file

METADATA = {"made by": "PyTorch \"quoted\" \\ \n \u00fc"}


def tensors():
    """Returns tensors of every dtype that Tapestry has, with 0 and 8 dimensions, without elements, and with names
    that JSON must escape."""
    numbers = torch.arange(-3, 3)
    return {
        "f32": numbers.to(torch.float32).reshape(2, 3) / 4,
        "f64": numbers.to(torch.float64) / 8,
        "f16": numbers.to(torch.float16) / 2,
        "bf16": (numbers.to(torch.bfloat16) * 3).reshape(3, 1, 2),
        "i64": numbers * 10**12,
        "i32": (numbers * 10**6).to(torch.int32),
        "u8": (numbers + 250).to(torch.uint8),
        "bool": numbers > 0,
        "zero.dim": torch.tensor(2.5),
        "empty": torch.zeros(0, 4),
        "empty.i64": torch.zeros(2, 0, dtype=torch.int64),
        "eight": torch.arange(2, dtype=torch.float32).reshape(1, 1, 1, 1, 1, 1, 1, 2),
        "odd \"name\"\t\u00e9\u4e2d/\\": torch.tensor([1], dtype=torch.uint8),
    }


save_file(tensors(), pathlib.Path(__file__).with_suffix(".safetensors"), METADATA)
