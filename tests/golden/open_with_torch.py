#!/usr/bin/env python3
"""Checks that PyTorch can open a safetensors file that Tapestry wrote: tests/golden/open_with_torch.py FILE [EXPECTED]

Prints the name, dtype and shape of each tensor. EXPECTED is a file that PyTorch wrote. If it is given, the script fails
unless both files contain the same tensors. The exit status is 77 if PyTorch or safetensors is not installed."""
import sys


def main(path, expected=None):
    try:
        import torch
        from safetensors.torch import load_file
    except ImportError as error:
        print(f"cannot compare: {error}")
        return 77
    found = load_file(path)
    for name, tensor in found.items():
        print(f"{name}: {tensor.dtype} {list(tensor.shape)}")
    if expected is None:
        return 0
    wanted = load_file(expected)
    if set(found) != set(wanted):
        print(f"names differ: {sorted(set(found) ^ set(wanted))}")
        return 1
    for name, tensor in wanted.items():
        if found[name].dtype != tensor.dtype or found[name].shape != tensor.shape or not torch.equal(found[name], tensor):
            print(f"{name} differs")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
