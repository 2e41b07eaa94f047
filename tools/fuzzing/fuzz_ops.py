"""Compares operations with PyTorch on random inputs.

The cases of tests/golden/*.py are the seeds. A random case is a seed with other sizes, values and parameters. Most of these
changes are no valid call, and PyTorch rejects them; the others are recorded exactly as golden cases are. The test program
then runs them as it runs golden cases: in each dtype of the operation, with dense, transposed, spaced, channels-last and
expanded inputs, with and without gradients. This needs no description of any operation, so new operations take part as soon
as they have golden cases.

A script of golden cases may define FITS = {"lstm": fit}, for operations whose shapes or parameters depend on each other: fit(shapes,
params) changes both in place so that they fit. One draw in five is left as it is, to see what both sides refuse.

It may also define SKIPS = {"topk": skip}: a draw for which skip(*inputs, **params) is true is not compared. Its comment says why:
Tapestry refuses the call and says so, PyTorch's result is wrong or undefined, or the exact result does not exist."""
import argparse
import collections
import importlib
import math
import os
import pathlib
import pickle
import random
import re
import signal
import subprocess
import sys
import tempfile
import warnings

ROOT = pathlib.Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden"
MOST_ELEMENTS = 160  # of one input, and of all outputs together: recording differentiates each output by each input
SIZES = [1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 16, 17, 33]
MOST_DRAWS = 1000  # for each wanted case; PyTorch rejects up to 99 in 100 draws of an operation
MOST_DEATHS = 50  # of PyTorch's process, for one operation
STEP, MOST_CHANGE = 1e-7, 1e4
UNIT = 1 / 64  # random values are multiples of it below 4, which are exact in bfloat16


def arguments():
    parser = argparse.ArgumentParser(prog="tools/fuzz_ops", description="Compares operations with PyTorch on random inputs.",
                                     epilog="Needs PyTorch (PYTHON=... chooses the interpreter) and a built tests_autograd.")
    parser.add_argument("ops", nargs="*", help="operations, such as conv2d or add/in_place (default: all)")
    parser.add_argument("--cases", type=int, default=20, metavar="N", help="random cases per operation (default: 20)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed draws the same cases (default: 1)")
    parser.add_argument("--record-only", action="store_true", help="write the cases to --work, and run no tests")
    parser.add_argument("--recorded", action="store_true", help="run the cases that --work has from an earlier call")
    parser.add_argument("--program", type=pathlib.Path, help="the test program (default: the newest build/*/bin/tests_autograd)")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "build" / "fuzz",
                        help="the folder for the recorded cases (default: build/fuzz)")
    return parser.parse_args()


def stop(reason):
    sys.exit(f"[tools/fuzz_ops] {reason}")


class Seed:
    def __init__(self, family, op, inputs, params, fn, tags, slack, constant):
        self.family, self.op, self.inputs, self.params, self.fn = family, op, inputs, params, fn
        self.tags, self.slack, self.constant = set(tags.split()), slack, constant
        if any(x is not None and x.numel() == 0 for x in inputs):
            self.tags.add("empty")  # cases.case() adds it, which these seeds do not go through
        self.fit = self.skip = None


def collect(cases, families):
    """Runs the scripts with another case(), and returns the calls they make as {operation: [Seed]}."""
    seeds = {}

    def case(op, inputs, params=None, fn=None, tags="", slack=1, dtypes=None, constant=(), family=None):
        for dtype in dtypes or [None]:
            converted = [x if x is None or dtype is None else x.to(dtype) for x in inputs]
            seeds.setdefault(op, []).append(Seed(current, op, converted, dict(params or {}), fn, tags, slack, constant))

    original, cases.case = cases.case, case
    for current in families:
        script = importlib.import_module(current)
        fits, skips = getattr(script, "FITS", {}), getattr(script, "SKIPS", {})
        for op, of_op in seeds.items():
            for seed in of_op:
                if seed.family == current:
                    seed.fit, seed.skip = fits.get(op), skips.get(op)
    cases.case = original
    return seeds


class Mutator:
    def __init__(self, torch, rng, seeds):
        self.torch, self.rng, self.seeds = torch, rng, seeds

    def draw(self, op):
        """Returns the inputs and the parameters of a random case, and the seed that it was made from."""
        usable = [s for s in self.seeds[op] if not s.tags & {"extreme", "empty"} and s.inputs]
        for _ in range(50):
            seed = self.rng.choice(usable or self.seeds[op])
            sizes = self.sizes_for(seed)
            params = {name: self.param(op, name, value, sizes) for name, value in seed.params.items()}
            extra = [self.rng.choice([1, 2, 3])] if self.rng.random() < 0.1 else []
            shapes = [None if x is None else extra + [sizes.get(n, n) for n in x.shape] for x in seed.inputs]
            if seed.fit and not extra and self.rng.random() < 0.8:
                seed.fit(shapes, params)
            if all(math.prod(shape) <= MOST_ELEMENTS for shape in shapes if shape is not None):
                break
        inputs = [None if x is None else self.values(x, shape, sizes) for x, shape in zip(seed.inputs, shapes)]
        return seed, inputs, params

    def sizes_for(self, seed):
        """Maps each size of the seed's shapes to another one. Equal sizes stay equal."""
        for _ in range(50):
            sizes = {}
            for x in seed.inputs:
                for n in () if x is None else x.shape:
                    if n not in sizes:
                        sizes[n] = self.rng.choice(SIZES) if self.rng.random() < 0.7 else n
            if self.rng.random() < 0.03 and sizes:
                sizes[self.rng.choice(list(sizes))] = 0
            counts = [self.count(x.shape, sizes) for x in seed.inputs if x is not None]
            if not counts or max(counts) <= MOST_ELEMENTS:
                return sizes
        return {}

    @staticmethod
    def count(shape, sizes):
        total = 1
        for n in shape:
            total *= sizes.get(n, n)
        return total

    def values(self, x, shape, sizes):
        torch, rng, n = self.torch, self.rng, 1
        for size in shape:
            n *= size
        if x.dtype == torch.bool:
            return torch.tensor([rng.random() < 0.5 for _ in range(n)], dtype=torch.bool).reshape(shape)
        finite = x[torch.isfinite(x)] if x.is_floating_point() else x.long()
        low, high = (finite.min().item(), finite.max().item()) if finite.numel() else (-4, 4)
        if not x.is_floating_point():
            # Indices reach up to a size minus 1, and follow that size.
            high = next((sizes[s] - 1 for s in sizes if s - 1 == high and sizes[s] > 0), high) if rng.random() < 0.7 else high
            return torch.tensor([rng.randint(min(low, high), high) for _ in range(n)], dtype=x.dtype).reshape(shape)
        low, high = max(low, -4.0), min(high, 4.0)
        if x.dtype == torch.float64 and rng.random() < 0.3:  # full mantissas, for float32 and float64 alone
            return torch.tensor([rng.uniform(low, high) for _ in range(n)]).float().double().reshape(shape)
        grid = range(int(low / UNIT), max(int(low / UNIT), int(high / UNIT)) + 1)
        numbers = rng.sample(grid, n) if n <= len(grid) else [rng.choice(grid) for _ in range(n)]
        return torch.tensor([v * UNIT for v in numbers], dtype=torch.float64).reshape(shape).to(x.dtype)

    def param(self, op, name, value, sizes):
        rng = self.rng
        if rng.random() < 0.5:  # the value of another seed, or this one's
            value = rng.choice([s.params[name] for s in self.seeds[op] if name in s.params])
        if isinstance(value, (list, tuple)) and all(isinstance(v, int) and not isinstance(v, bool) for v in value):
            return [self.integer(v, sizes) for v in value]
        if isinstance(value, bool):
            return rng.random() < 0.5
        if isinstance(value, int):
            return self.integer(value, sizes)
        if isinstance(value, float) and value == value and abs(value) < 1e6 and rng.random() < 0.4:
            return value * rng.choice([0.25, 0.5, 1.5, 2])
        return value

    def integer(self, value, sizes):
        draw = self.rng.random()
        if draw < 0.4:
            return sizes.get(value, value)
        if draw < 0.55:
            return value + self.rng.choice([-1, 1])
        return value


def widen(cases, torch, rng, seed, inputs, params, entry):
    """Raises the scales of the gradients by what rounding the tensors that forward saves for backward may change. The recorded
    scales count the rounding of inputs alone, and a gradient may subtract equal terms, such as those of a saturated softmax."""
    def rounded(t):
        if t.dtype != torch.float64:
            return t
        signs = torch.tensor([rng.choice((-1, 1)) for _ in range(t.numel())], dtype=t.dtype).reshape(t.shape)
        return t * (1 + STEP * signs)

    for _ in range(3):
        leaves = [None if x is None else x.clone().requires_grad_(x.is_floating_point() and i not in seed.constant)
                  for i, x in enumerate(inputs)]
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, rounded):
            grads, _ = cases._gradients(leaves, cases._tensors(seed.fn(*leaves, **params)))
        for grad, recorded in zip(grads, entry["grads"]):
            if recorded is None or grad is None or recorded["dtype"] != "f64":
                continue
            exact = torch.tensor([float(v) for v in recorded["values"]], dtype=torch.float64)
            change = (grad.detach().reshape(-1) - exact).abs() / STEP
            # A change above the limit is a jump: that of the gradient of a maximum, which compares saved values.
            most = max([0.0] + [c for c in change.tolist() if c <= MOST_CHANGE])
            scales = recorded.get("scale") or [abs(v) if math.isfinite(v) else 0 for v in exact.tolist()]
            recorded["scale"] = [cases._number(max(float(s), float(f"{most:.1e}"))) for s in scales]


def record_op(cases, torch, options, seeds, op, start, wanted, out):
    """Records up to `wanted` cases of one operation, and pickles each of them, and each rejection, into the file `out`."""
    rng = random.Random(f"{options.seed} {op}" + (f" {start}" if start else ""))
    mutator = Mutator(torch, rng, seeds)
    for _ in range(MOST_DRAWS * wanted):
        if wanted == 0:
            return
        seed, inputs, params = mutator.draw(op)
        # A difference quotient is no gradient at kinks, which random values may hit. PyTorch's gradient is compared.
        tags = " ".join({"no_gradcheck"} | seed.tags & {"no_strided", "no_grad"})
        cases._cases.clear()
        pickle.dump(("tries", {"op": op, "params": params, "shapes": [None if x is None else list(x.shape) for x in inputs]}), out)
        out.flush()
        try:
            with torch.no_grad():
                outputs = cases._tensors(seed.fn(*[None if x is None else x.clone() for x in inputs], **params))
            if sum(y.numel() for y in outputs) > MOST_ELEMENTS:
                continue  # the attempt counts as none
            if seed.skip and seed.skip(*[None if x is None else x.clone() for x in inputs], **params):
                continue
            cases.case(op, inputs, params, seed.fn, tags, seed.slack, None, seed.constant, seed.family)
            entry = cases._cases[seed.family][-1]
            if "grads" in entry:
                widen(cases, torch, rng, seed, inputs, params, entry)
        except Exception:  # noqa: BLE001: PyTorch rejects most random parameters, by exceptions of many types
            pickle.dump(("rejected", None), out)
        else:
            wanted -= 1
            pickle.dump(("case", cases._cases), out)
        out.flush()


def record(cases, torch, options, seeds):
    """Records the random cases of each operation in a process of its own, because some calls end PyTorch's process. Puts
    them into cases._cases. Returns {operation: number of cases}, the number of attempts that PyTorch rejected, and a
    text for each attempt that ended a process."""
    counts, rejected, deaths, all_cases = collections.Counter(), 0, [], {}
    for op in sorted(seeds):
        counts[op] = 0
        for start in range(MOST_DEATHS):
            with tempfile.TemporaryFile() as out:
                child = os.fork()
                if child == 0:
                    try:
                        record_op(cases, torch, options, seeds, op, start, options.cases - counts[op], out)
                    finally:
                        os._exit(0)
                status = os.waitpid(child, 0)[1]
                out.seek(0)
                last = None
                while True:
                    try:
                        kind, value = pickle.load(out)
                    except (EOFError, pickle.UnpicklingError):
                        break
                    if kind == "tries":
                        last = value
                    elif kind == "rejected":
                        rejected += 1
                    else:
                        counts[op] += 1
                        for family, entries in value.items():
                            all_cases.setdefault(family, []).extend(entries)
            if not os.WIFSIGNALED(status):
                break
            deaths.append(f"{signal.Signals(os.WTERMSIG(status)).name} in PyTorch's {last}")
    cases._cases.clear()
    cases._cases.update(all_cases)
    return counts, rejected, deaths


def record_all(options):
    """Records the cases into options.work, and prints what was recorded."""
    try:
        import torch
    except ImportError:
        stop("PyTorch is missing; install it, or choose an interpreter that has it by PYTHON=...")
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.path.insert(0, str(GOLDEN))
    import cases
    families = sorted(p.stem for p in GOLDEN.glob("*.py") if "\nfrom cases import" in p.read_text())
    seeds = collect(cases, families)
    unknown = [op for op in options.ops if op not in seeds]
    if unknown:
        stop(f"no golden case is called {', '.join(unknown)}; known are {', '.join(sorted(seeds))}")
    seeds = {op: s for op, s in seeds.items() if not options.ops or op in options.ops}
    counts, rejected, deaths = record(cases, torch, options, seeds)
    for old in options.work.glob("*.json"):
        old.unlink()
    options.work.mkdir(parents=True, exist_ok=True)
    cases.write(options.work)
    few = [op for op, n in counts.items() if n < options.cases]
    print(f"[tools/fuzz_ops] seed {options.seed}: {sum(counts.values())} cases of {len(counts)} operations and variants; "
          f"PyTorch rejected {rejected} others", flush=True)
    for death in deaths:
        print(f"[tools/fuzz_ops] {death}", flush=True)
    if few:
        stop("fewer cases than asked for: " + ", ".join(f"{op} {counts[op]}" for op in few))


def main():
    options = arguments()
    if not options.recorded:
        record_all(options)
    if options.record_only:
        return
    program = options.program or max(ROOT.glob("build/*/bin/tests_autograd"), key=lambda p: p.stat().st_mtime, default=None)
    if not program or not program.exists():
        stop("there is no tests_autograd; build it, for example by tools/test, or name it with --program")
    tests = ",".join(f"{op}: golden cases" for op in options.ops) or "*: golden cases"
    done = subprocess.run([str(program), tests], env={**os.environ, "TAPESTRY_GOLDEN_OPS": str(options.work.resolve())},
                          capture_output=True, text=True, errors="replace", check=False)
    failures = re.findall(r"^.*#\d+ .*$", done.stdout, flags=re.MULTILINE)
    print("\n".join(failures) or done.stdout[-2000:])
    if done.returncode:
        stop(f"{len(failures)} checks failed (status {done.returncode}). The numbers after # are positions in the files of "
             f"{options.work}. Add a failing case to tests/golden/<family>.py when it is mended.")


if __name__ == "__main__":
    main()
