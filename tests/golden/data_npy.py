"""Writes data_npy.safetensors: NPY and NPZ files that NumPy has written, and their arrays.
tests/data/npy_test.cpp reads it. It needs PyTorch, NumPy and safetensors."""
import io
import pathlib

import numpy as np
import torch
from safetensors.torch import save_file

out = {}


def record(name, array, save=np.save):
    buffer = io.BytesIO()
    save(buffer, array)
    out[f"{name}/file"] = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


numbers = np.arange(-7, 17).reshape(2, 3, 4)
for code in ["f4", "f8", "f2", "i8", "i4", "i2", "i1", "u2", "u1", "?"]:
    array = (numbers > 3 if code == "?" else abs(numbers) if code[0] == "u" else numbers).astype(code)
    value = torch.from_numpy(array.copy())
    for order, change in {"c": array, "f": np.asfortranarray(array), "big": array.astype(array.dtype.newbyteorder(">"))}.items():
        record(f"{code}/{order}", change)
        out[f"{code}/{order}/value"] = value.clone()
wide = np.array([[0, 2**32 - 1]], dtype="u4")
for order, change in {"little": wide, "big": wide.astype(">u4")}.items():
    record(f"u4/{order}", change)
    out[f"u4/{order}/value"] = torch.from_numpy(wide.astype("i8"))
for name, array in {"number": np.float64(2.5), "empty": np.zeros((0, 3), "f4"), "row": np.arange(5.0, dtype="f4")}.items():
    record(f"{name}/c", np.asarray(array))
    out[f"{name}/c/value"] = torch.from_numpy(np.array(array))
for name, array in {"complex": np.zeros(2, "c8"), "text": np.array(["a", "bc"]), "u8": np.zeros(2, "u8"),
                    "record": np.zeros(2, [("a", "f4"), ("b", "i4")]), "date": np.zeros(2, "M8[s]")}.items():
    record(f"bad/{name}", array)

arrays = {"x": numbers.astype("f4"), "deep/y": np.arange(3), "\u00e9": np.array(True), "none": np.zeros((0, 2))}
for name, save in {"stored": np.savez, "deflated": np.savez_compressed}.items():
    record(f"npz/{name}", None, lambda file, _: save(file, **arrays))

save_file(out, pathlib.Path(__file__).with_suffix(".safetensors"))
