#!/usr/bin/env python3
"""Records what Python's gguf package does: tests/golden/core_gguf.py writes core_gguf.safetensors.

This script needs gguf, numpy, PyTorch and safetensors. TYPE/blocks are random blocks, whose scales are finite, and
TYPE/values what gguf makes of them. q8/in and q8/blocks are numbers and their Q8_0. "file" is a GGUF file that gguf has
written, with a value of each type. "llama3_frequencies" are those of RoPE with Llama 3.1's scaling. "halves" and "interleaved" are the rows of 3 heads in the order of transformers and of
llama.cpp."""
import os
import pathlib
import tempfile

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType as Value
from safetensors.torch import save_file

random = np.random.default_rng(20)
out = {}

# The offsets of the f16 numbers in a block.
SCALES = {"Q4_0": [0], "Q4_1": [0, 2], "Q8_0": [0], "Q4_K": [0, 2], "Q6_K": [208]}
for name in ["F16", "BF16", *SCALES]:
    size, bytes_of_block = gguf.GGML_QUANT_SIZES[Type[name]]
    rows, blocks = 3, 512 // size
    data = random.integers(0, 256, (rows, blocks, bytes_of_block), dtype=np.uint8)
    if name in SCALES:
        for at in SCALES[name]:
            # Scales of all magnitudes, subnormal ones among them, and of both signs.
            scales = (random.standard_normal((rows, blocks)) * 10.0 ** random.integers(-7, 4, (rows, blocks))).astype(np.float16)
            data[:, :, at:at + 2] = scales.view(np.uint8).reshape(rows, blocks, 2)
    else:
        bits = data.reshape(rows, -1).view(np.uint16)
        exponent = 0x7C00 if name == "F16" else 0x7F80
        bits[(bits & exponent) == exponent] = 0x3555  # no infinities and NaN, which have no one representation
    data = data.reshape(rows, -1)
    out[f"{name}/blocks"] = torch.from_numpy(data.copy())
    out[f"{name}/values"] = torch.from_numpy(gguf.dequantize(data, Type[name]).reshape(rows, 512).copy())

# The types that were added later have a generator of their own, so that the others keep their values.
later = np.random.default_rng(21)
for name, scales_at in {"Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "Q5_K": [0, 2]}.items():
    size, bytes_of_block = gguf.GGML_QUANT_SIZES[Type[name]]
    data = later.integers(0, 256, (3, 512 // size, bytes_of_block), dtype=np.uint8)
    for at in scales_at:
        scales = (later.standard_normal(data.shape[:2]) * 10.0 ** later.integers(-7, 4, data.shape[:2])).astype(np.float16)
        data[:, :, at:at + 2] = scales.view(np.uint8).reshape(*data.shape[:2], 2)
    data = data.reshape(3, -1)
    out[f"{name}/blocks"] = torch.from_numpy(data.copy())
    out[f"{name}/values"] = torch.from_numpy(gguf.dequantize(data, Type[name]).reshape(3, 512).copy())

numbers = (random.standard_normal((4, 96)) * 10.0 ** random.integers(-6, 5, (4, 1))).astype(np.float32)
numbers[1, :32] = 0
numbers[2, :4] = [127, 0.5, -0.5, 2.5]  # halves round away from zero
numbers[2, 4:32] = 0
out["q8/in"] = torch.from_numpy(numbers)
out["q8/blocks"] = torch.from_numpy(gguf.quantize(numbers, Type.Q8_0))

halves = np.arange(3 * 8 * 2, dtype=np.float32).reshape(24, 2)
# LlamaModel.permute of llama.cpp's convert_hf_to_gguf.py
out["halves"] = torch.from_numpy(halves)
out["interleaved"] = torch.from_numpy(halves.reshape(3, 2, 4, 2).swapaxes(1, 2).reshape(24, 2).copy())

# The frequencies of Llama 3.1 in the form of modeling_rope_utils.py of transformers.
theta, factor, low, high, context = 500000.0, 8.0, 1.0, 4.0, 8192
frequency = 1.0 / theta ** (np.arange(0, 128, 2) / 128)
wavelength = 2 * np.pi / frequency
smooth = (context / wavelength - low) / (high - low)
scaled = np.where(wavelength > context / low, frequency / factor, frequency)
middle = ~(wavelength < context / high) & ~(wavelength > context / low)
scaled = np.where(middle, (1 - smooth) * scaled / factor + smooth * scaled, scaled)
out["llama3_frequencies"] = torch.from_numpy(scaled)

path = os.path.join(tempfile.mkdtemp(), "f.gguf")
writer = gguf.GGUFWriter(path, "llama")
writer.add_uint8("u8", 200)
writer.add_int8("i8", -100)
writer.add_uint16("u16", 60000)
writer.add_int16("i16", -30000)
writer.add_uint32("u32", 4000000000)
writer.add_int32("i32", -2000000000)
writer.add_float32("f32", 0.1)
writer.add_bool("yes", True)
writer.add_bool("no", False)
writer.add_string("text", "gr\u00fc\u00dfe")
writer.add_uint64("u64", 2**63 + 1)
writer.add_int64("i64", -2**62)
writer.add_float64("f64", 0.1)
writer.add_array("words", ["", "a", "\u4e2d"])
writer.add_array("ints", [1, -2, 3])
writer.add_array("floats", [0.5, 1.5])
writer.add_array("flags", [True, False, True])
writer.add_key_value("bytes", [1, 255], Value.ARRAY, sub_type=Value.UINT8)
writer.add_tensor("matrix", np.arange(6, dtype=np.float32).reshape(2, 3))
writer.add_tensor("half", np.array([0.5, -2], dtype=np.float16))
writer.add_tensor("packed", gguf.quantize(numbers, Type.Q8_0), raw_dtype=Type.Q8_0)
writer.add_tensor("last", np.array([7], dtype=np.float32))
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
out["file"] = torch.frombuffer(bytearray(pathlib.Path(path).read_bytes()), dtype=torch.uint8)

save_file(out, pathlib.Path(__file__).with_suffix(".safetensors"))
