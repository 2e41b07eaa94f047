"""The main program of tools/gpu_check: parses the command line and runs the phases."""
import argparse
import os
import platform
import shutil
import subprocess
import sys
import time
import traceback

import phases
import process
from report import Report

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT_S = 540.0  # the default of --limit-s, for machines with a time limit of ten minutes per command
ENOUGH = 0.75  # a long step starts only if at least this fraction of its own time limit is left

TEXT = """\
Checks Tapestry on a machine with a GPU: builds it for that GPU, runs its tests, compares results and gradients with
PyTorch, and times it beside PyTorch. Phases, in this order; all if none is named:

  build     for this machine's GPU; names every missing tool, and the vendor libraries that the program finds
  test      the tests that use a GPU, which must find one; two NCCL ranks on one GPU; all modes of training on two
            logical devices
  verify    every result and every gradient at real sizes, against float64
  bench     single operations beside a copy and beside PyTorch: bandwidth, matrix products, attention, convolutions,
            host time
  steps     whole training steps beside PyTorch: eager, compiled, captured, autocast
  profile   six kernels under ncu, where it is there
  sanitize  compute-sanitizer over a short list, where it is there
  train     the classifier's whole training on the GPU, and on the CPU with the same seed

A call stops by itself after --limit-s seconds. The next call goes on: it keeps what was found for the same machine and
commit, and runs what is missing. If nothing is built, every call builds first.

Needs a CUDA toolkit, CMake 3.25, Ninja, a C++20 compiler and Python 3.9 with PyTorch; downloads nothing. If the system
lacks JSON, zlib, CLI11, Eigen, Catch2 or Fashion-MNIST, they are taken from .deps/, which tools/vendor_deps fills
on another machine. Everything else is optional: what is missing is a note, and never a failure.

Results are written as they come to build/gpu_check/gpu_check.md and .json. Exit status: 0 if everything was right,
however slow; 1 if something was wrong; 2 for a wrong command line; 3 if nothing was wrong so far and the time was over:
call again."""


def add_to_path():
    """Appends the folder of this Python interpreter and CUDA's usual folders to the PATH."""
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
            "commit": commit or "unknown (--commit says it)",
            "PyTorch": "" if options.dry_run else first_line(
                [sys.executable, "-c", "import torch; print(torch.__version__, 'CUDA', torch.version.cuda)"]),
            "host": f"{cpu_name()}, {os.cpu_count()} cores", "dry_run": options.dry_run}


class Check:
    """The state of one call of tools/gpu_check: its options, its folders, its report and its deadline."""

    def __init__(self, options, start=None):
        """The time limit of the call begins at the time `start`."""
        self.limit = options.limit_s
        self.deadline = (time.monotonic() if start is None else start) + self.limit
        self.dry, self.jobs, self.all = options.dry_run, options.jobs, options.all
        self.commit_given, self.again = bool(options.commit), options.again
        self.build = os.path.abspath(options.build_dir)
        self.folder = os.path.abspath(options.folder)
        self.data = options.data_dir
        if not self.data and os.path.isdir(os.path.join(ROOT, ".deps/fashion-mnist")):
            self.data = os.path.join(ROOT, ".deps/fashion-mnist")
        self.require = {} if self.dry else {"TAPESTRY_REQUIRE_CUDA": "1"}
        self.report = Report(self.folder, about(options), options.out)

    def left(self):
        """Returns the seconds that are left until the deadline of the call."""
        return self.deadline - time.monotonic()

    def program(self, name):
        return os.path.join(self.build, "bin", name)

    def ours(self, command):
        """Returns Tapestry's benchmark program. It is restarted after every failure, so that one failed benchmark does
        not prevent the others."""
        environment = {"OMP_NUM_THREADS": "1"} if self.dry else None
        return process.Program(command, self.deadline, environment, most_silent=10**6)

    def tool(self, name):
        """Returns the path of a CUDA tool: on the PATH, or in the folder of the nvcc that built the programs. None if
        it is in neither."""
        beside = os.path.join(os.path.dirname(phases.cached(self.build, "CMAKE_CUDA_COMPILER")), name)
        return shutil.which(name) or (beside if os.path.exists(beside) else None)

    def has_data(self):
        """Returns True if Fashion-MNIST is in a folder in which the classifier searches."""
        folders = [self.data] if self.data else ["/usr/share/datasets/fashion-mnist"]
        return any(os.path.exists(os.path.join(folder, "train-images-idx3-ubyte.gz")) or
                   os.path.exists(os.path.join(folder, "train-images-idx3-ubyte")) for folder in folders)

    def log(self, name):
        return os.path.join(self.folder, name + ".log")

    def run(self, command, log, limit=None, **more):
        """Runs the program until it ends. It is killed after `limit` seconds, or at the deadline of the call."""
        print("+", " ".join(command), flush=True)
        return process.run(command, min(limit or self.left(), self.left()), folder=ROOT, log=log, **more)

    def cut_short(self, found):
        """Returns True if the run was killed at the deadline of the call, and not by its own limit."""
        return found.status is None and self.left() <= 1

    def once(self, phase, name, command, log, limit, partial=None, **more):
        """Runs the program for the row `name` of the report. Returns None if an earlier call has completed the row, or
        if too little time is left, so that the next call must run it. If the deadline interrupted the program but its
        output matches the pattern `partial`, the run counts and is returned."""
        if self.report.is_final(phase, name):
            return None
        if self.left() < max(1.0, ENOUGH * min(limit, self.limit - 60)):
            self.report.row(phase, name, "left")
            return None
        self.report.row(phase, name, "running")
        found = self.run(command, self.log(log), limit, **more)
        self.report.keep(self.log(log))
        if self.cut_short(found) and not (partial and partial.search(found.text)):
            self.report.row(phase, name, "left")
            return None
        return found

    def step(self, phase, name, found, why=""):
        """Writes the row of a run that must succeed."""
        self.report.keep(self.log(name))
        status = "passed" if found.ok else "left" if self.cut_short(found) else "failed"
        note = {} if status == "left" else {"note": "" if found.ok else why or found.tail()}
        self.report.row(phase, name, status, seconds=found.seconds, **note)

    def phase(self, name):
        print(f"\n== {name} ==", flush=True)
        start = time.monotonic()
        if name == "build" and self.dry:
            built = os.path.exists(self.program("bench_gpu_ops"))
            self.report.row("build", "programs", "passed" if built else "failed",
                            note="dry run: nothing is compiled; the programs are those in " + self.build)
            return
        if self.again:
            self.report.forget(name)
        if name != "build" and self.report.is_done(name):
            print("done by an earlier call; --again repeats it", flush=True)
            return
        self.report.begin(name)
        try:
            phases.PHASES[name](self)
        except Exception as error:  # a bug in these scripts must not prevent the other phases
            traceback.print_exc()
            self.report.row(name, "tools/gpu_check itself", "failed", note=f"{type(error).__name__}: {error}")
        self.report.end(name, time.monotonic() - start)
        for row in self.report.failed({name}):
            print(f"FAILED: {row['name']}: {row.get('note', '')}", flush=True)


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tools/gpu_check", description=TEXT,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", nargs="*", metavar="PHASE", help=", ".join(phases.PHASES))
    parser.add_argument("--out", metavar="DIR", help="also copy the results and logs into this folder")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, metavar="S",
                        help="seconds after which the call stops by itself (%(default).0f)")
    parser.add_argument("--again", action="store_true", help="forget earlier results of the named phases")
    parser.add_argument("--commit", metavar="TEXT", help="the commit, for a tree without its history")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N",
                        help="how many files to compile, or tests to run, at a time")
    parser.add_argument("--data-dir", metavar="DIR", help="the folder with Fashion-MNIST, if it is in no usual place")
    parser.add_argument("--build-dir", default=os.path.join(ROOT, "build/gpu"), metavar="DIR",
                        help="the build tree; the programs are in its bin/ (build/gpu)")
    parser.add_argument("--folder", default=os.path.join(ROOT, "build/gpu_check"), metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--all", action="store_true", help="also build everything else, and run the tests without a GPU last")
    parser.add_argument("--dry-run", action="store_true",
                        help="use no GPU and compile nothing: run the programs of --build-dir on the CPU, with fake figures")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.phases if name not in phases.PHASES]
    if unknown:
        parser.error(f"unknown phase '{unknown[0]}'; the phases are " + ", ".join(phases.PHASES))
    if options.jobs < 1 or options.limit_s <= 0:
        parser.error("--jobs and --limit-s must be above 0")
    options.phases = [name for name in phases.PHASES if name in options.phases or not options.phases]
    return options


def main():
    # On a cold machine, asking PyTorch for its version below may take a minute, which must count.
    start = time.monotonic()
    options = parse(sys.argv[1:])
    add_to_path()
    check = Check(options, start)
    if not os.path.exists(check.program("bench_gpu_ops")) and not options.dry_run and "build" not in options.phases:
        print("nothing is built here: the build comes first", flush=True)
        options.phases.insert(0, "build")
    for name in options.phases:
        check.phase(name)
        if name == "build" and not os.path.exists(check.program("bench_gpu_ops")):
            break
    bad, left = check.report.failed(set(options.phases)), check.report.left(set(options.phases))
    print(f"\nresults: {check.report.path('md')}", flush=True)
    if bad:
        print(f"{len(bad)} rows failed", flush=True)
    if left:
        print(f"{len(left)} rows are left: call tools/gpu_check again", flush=True)
    return 1 if bad else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
