#!/usr/bin/env python3
"""Records PyTorch's results for the test cases of all operations: tests/golden/make_all.py [family...]

With arguments, it records only the named families (`softmax` for tests/golden/softmax.py). This script needs PyTorch.
The build and the tests do not."""
import importlib
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import cases  # noqa: E402

families = sys.argv[1:] or sorted(p.stem for p in HERE.glob("*.py") if "\nfrom cases import" in p.read_text())
for family in families:
    importlib.import_module(family)
cases.write()
total = sum(p.stat().st_size for p in (HERE / "ops").glob("*.json"))
print(f"{', '.join(families)}: tests/golden/ops now holds {total / 1e6:.2f} MB")
