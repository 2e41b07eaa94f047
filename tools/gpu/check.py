"""tools/gpu_check: its command line, and the run as a whole."""
import argparse
import os
import platform
import subprocess
import sys
import time
import traceback

import phases
import process
from report import Report

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MINUTES = 9.0  # a phase, so that each fits with its start into a time limit of ten

TEXT = """\
Checks Tapestry on a machine with a GPU: builds it for that GPU, tests, trains a classifier, times operations beside
PyTorch. Phases (all, in this order, if none is named):

  build   for this machine's GPU alone; fails without NCCL or cuDNN
  test    the tests that use a GPU, which must find one; compute-sanitizer over a short list
  train   two NCCL ranks on one GPU; all ways of training on two logical devices of it; the classifier's whole training
          on the GPU and on the CPU
  bench   bandwidths, matrix products, convolutions and host time beside PyTorch, in turns

Needs a CUDA toolkit, CMake 3.25, Ninja, a C++20 compiler and Python with PyTorch; downloads nothing. What the system
lacks of JSON, zlib, Asio, CLI11, Eigen, Catch2 and Fashion-MNIST is taken from .deps/, which tools/vendor_deps fills on
another machine.

Where nothing is built, that comes first, whatever phase is named; all ends within the one limit then.

Results are written as they come to build/gpu_check/gpu_check.md and .json, one row each; phases that ran earlier on this
machine and commit stay there. Exit status: 0 if all that must be right is right, however slow; 1 if not; 2 for a wrong
command line."""


def add_to_path():
    """Where programs are that came with this Python or with CUDA, behind all that the PATH has."""
    folders = [os.path.dirname(sys.executable), "/usr/local/cuda/bin", "/usr/local/nvidia/bin"]
    had = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(dict.fromkeys(had + [f for f in folders if os.path.isdir(f)]))


def first_line(command):
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
        return found.stdout.splitlines()[0].strip() if found.returncode == 0 and found.stdout.strip() else ""
    except (OSError, subprocess.TimeoutExpired):
        return ""


def cpu_name():
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def about(options):
    query = first_line(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap",
                        "--format=csv,noheader"])
    name, driver, memory, capability = ([part.strip() for part in query.split(",")] + [""] * 4)[:4]
    commit = options.commit or first_line(["git", "rev-parse", "HEAD"])
    if commit and not options.commit and first_line(["git", "status", "--porcelain", "--untracked-files=no"]):
        commit += " with changes"
    return {"device": "none (dry run)" if options.dry_run else name or "no GPU found", "driver": driver,
            "memory": memory, "capability": capability, "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "commit": commit or "unknown (say it with --commit)",
            "PyTorch": "" if options.dry_run else first_line(
                [sys.executable, "-c", "import torch; print(torch.__version__, 'CUDA', torch.version.cuda)"]),
            "host": f"{cpu_name()}, {os.cpu_count()} cores", "dry_run": options.dry_run}


class Check:
    """One run: where things are, and how long the phase may still take."""

    def __init__(self, options):
        self.dry, self.jobs, self.all = options.dry_run, options.jobs, options.all
        self.build = os.path.abspath(options.build_dir)
        self.folder = os.path.abspath(options.folder)
        self.data = options.data_dir
        if not self.data and os.path.isdir(os.path.join(ROOT, ".deps/fashion-mnist")):
            self.data = os.path.join(ROOT, ".deps/fashion-mnist")
        self.require = {} if self.dry else {"TAPESTRY_REQUIRE_CUDA": "1"}
        self.report = Report(self.folder, about(options), options.out)
        self.minutes, self.deadline = options.minutes, 0.0

    def program(self, name):
        return os.path.join(self.build, "bin", name)

    def log(self, name):
        return os.path.join(self.folder, name + ".log")

    def run(self, command, log, limit=None, **more):
        """The program's run, which ends with the phase at the latest."""
        print("+", " ".join(command), flush=True)
        left = self.deadline - time.monotonic()
        return process.run(command, min(limit or left, left), folder=ROOT, log=log, **more)

    def step(self, phase, name, found, why=""):
        self.report.keep(self.log(name))
        self.report.row(phase, name, "passed" if found.ok else "failed", seconds=found.seconds,
                        note="" if found.ok else why or found.tail())

    def phase(self, name, start=None):
        """`start`: since when its time counts."""
        print(f"\n== {name} ==", flush=True)
        start = time.monotonic() if start is None else start
        self.deadline = start + 60 * self.minutes
        self.report.begin(name)
        if name == "build" and self.dry:
            built = os.path.exists(self.program("bench_gpu_ops"))
            self.report.row("build", "programs", "passed" if built else "failed",
                            note="dry run: nothing is compiled; what is tried is in " + self.build)
        else:
            try:
                phases.PHASES[name](self)
            except Exception as error:  # of these scripts: the other phases can still be tried
                traceback.print_exc()
                self.report.row(name, "tools/gpu_check itself", "failed", note=f"{type(error).__name__}: {error}")
        self.report.end(name, time.monotonic() - start)
        for row in self.report.failed({name}):
            print(f"FAILED: {row['name']}: {row.get('note', '')}", flush=True)


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tools/gpu_check", description=TEXT,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", nargs="*", metavar="PHASE", help="build, test, train or bench")
    parser.add_argument("--out", metavar="DIR", help="a folder that gets a copy of the results and logs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="files or tests at a time")
    parser.add_argument("--data-dir", metavar="DIR", help="Fashion-MNIST's files, where they are nowhere usual")
    parser.add_argument("--commit", metavar="TEXT", help="for a tree without its history")
    parser.add_argument("--minutes", type=float, default=MINUTES, metavar="X", help="a phase's limit (%(default)s)")
    parser.add_argument("--build-dir", default=os.path.join(ROOT, "build/gpu"), metavar="DIR",
                        help="the programs are in its bin/ (build/gpu, which is where `build` builds)")
    parser.add_argument("--folder", default=os.path.join(ROOT, "build/gpu_check"), metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--all", action="store_true", help="build, and test last, what uses no GPU too")
    parser.add_argument("--dry-run", action="store_true",
                        help="no GPU, no compiling: what is in --build-dir runs on the CPU, with fake figures")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.phases if name not in phases.PHASES]
    if unknown:
        parser.error(f"unknown phase '{unknown[0]}'; there are " + ", ".join(phases.PHASES))
    if options.jobs < 1 or options.minutes <= 0:
        parser.error("--jobs and --minutes must be above 0")
    options.phases = [name for name in phases.PHASES if name in options.phases or not options.phases]
    return options


def main():
    start = time.monotonic()  # on a machine that has just been started PyTorch alone may take a minute to say its version
    options = parse(sys.argv[1:])
    add_to_path()
    check = Check(options)
    built = os.path.exists(check.program("bench_gpu_ops"))
    again = not built and not options.dry_run and "build" not in options.phases
    if again:
        print("nothing is built here (any more): that comes first, and takes of the same time", flush=True)
        options.phases.insert(0, "build")
        check.minutes = max(check.minutes, MINUTES)
    for name in options.phases:
        check.phase(name, start)
        if not again:
            start = None
        if name == "build" and not os.path.exists(check.program("bench_gpu_ops")):
            break
    print("\nresults:", check.report.path("md"), flush=True)
    bad = check.report.failed(set(options.phases))
    if bad:
        print(f"{len(bad)} rows failed", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
