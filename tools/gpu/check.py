"""The main program of tools/gpu_check: parses the command line and runs the phases."""
import argparse
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import time
import traceback

import pack
import phases
import process
from bench import FakePeer
from report import PHASE, Report

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LIMIT_S = 540.0  # the default of --limit-s, for machines with a time limit of ten minutes per command
PTX_PATIENCE = 10  # times the limits of answers and tests on the PTX machine, which may share its cores with other work
ENOUGH = 0.75  # a long step starts only if at least this fraction of its own time limit is left

TEXT = """\
Checks Tapestry on a machine with a GPU: compares results and gradients with PyTorch in float64, runs the tests that use a
GPU, and times Tapestry beside PyTorch and beside NVIDIA's libraries. Phases, in this order; all if none is named:

  machine   what is there and what is absent; unpacks the programs, or builds them if there is no pack; a GPU must answer
  smoke     values and gradients of every kernel family at real sizes; the tests that use a GPU
  first     ten times that say most; writes gpu_first.md and .json, which are small enough to be committed
  steps     training steps of an MLP, a CNN, ResNet-18 and GPT-2 beside PyTorch, captured in CUDA graphs and not
  policy    own kernels beside NVIDIA's, in turns
  wgmma     the kernels that are off by default: their values, and their times beside NVIDIA's
  counters  counters of six kernels under ncu, where it is there, beside those that the PTX machine counted
  more      modes of training, NCCL, compute-sanitizer, and all other values and times

A call stops by itself after --limit-s seconds, which the phases share. A phase whose seconds are over says what it
skips, and the next phase begins. The next call goes on: it keeps what was found for the same machine and commit, and
runs what is missing.

For a machine that is lent for minutes, `tools/gpu_check --pack` builds the programs in advance, for GPUs of compute
capability 9.0, into build/gpu_pack/. That folder travels with the tree; nothing else of Tapestry must be there, and
nothing is compiled or downloaded. Without it, the machine needs a CUDA toolkit, CMake 3.25, Ninja and a C++20 compiler,
and what tools/vendor_deps puts into .deps/. Python 3.9 must be there, and PyTorch should be. Everything else is optional:
what is missing is a note, and never a failure.

Results are written as they come to build/gpu_check/gpu_check.md and .json. Exit status: 0 if everything was right,
however slow; 1 if something was wrong; 2 for a wrong command line; 3 if nothing was wrong so far and the time was over:
call again; 128 + the number of the signal that ended it, such as 143 for SIGTERM."""


def add_to_path():
    """Appends the folder of this Python interpreter and CUDA's usual folders to the PATH."""
    folders = [os.path.dirname(sys.executable), "/usr/local/cuda/bin", "/usr/local/nvidia/bin"]
    had = os.environ.get("PATH", os.defpath).split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(dict.fromkeys(had + [f for f in folders if os.path.isdir(f)]))


def first_line(command):
    found = process.run(command, 60, ROOT, stderr=subprocess.DEVNULL)
    return found.text.splitlines()[0].strip() if found.ok and found.text.strip() else ""


def cpu_name():
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def pytorch():
    """Returns the version of PyTorch without loading it, which may take a minute on a cold machine."""
    try:
        return importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return ""


def commit_of(options, packed=False):
    """Returns the commit that --commit gives, or the pack whose programs run, or git."""
    if options.commit:
        return options.commit
    commit = first_line(["git", "rev-parse", "HEAD"])
    if commit and first_line(["git", "status", "--porcelain", "--untracked-files=no"]):
        commit += " with changes"
    of_pack = pack.manifest().get("commit") if packed else None
    if of_pack and commit not in ("", of_pack):
        return f"{of_pack} (the pack; the tree is at {commit})"
    return of_pack or commit or "unknown (--commit says it)"


def about(options, packed):
    query = first_line(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap",
                        "--format=csv,noheader"])
    name, driver, memory, capability = ([part.strip() for part in query.split(",")] + [""] * 4)[:4]
    device = f"none (dry run on {options.dry_run})" if options.dry_run else name or "no GPU found"
    return {"device": device, "driver": driver, "memory": memory, "capability": capability,
            "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()), "commit": commit_of(options, packed),
            "pack": pack.manifest().get("sha256", "")[:12] if packed else "",
            "PyTorch": "" if options.dry_run else pytorch(), "host": f"{cpu_name()}, {os.cpu_count()} cores",
            "dry_run": bool(options.dry_run)}


class Check:
    """The state of one call of tools/gpu_check: its options, its folders, its report, its deadline and the programs that
    it talks with."""

    def __init__(self, options, start=None):
        """The time limit of the call begins at the time `start`."""
        self.limit = options.limit_s
        self.deadline = (time.monotonic() if start is None else start) + self.limit
        self.until = self.deadline  # the end of the phase that runs
        self.dry, self.jobs, self.again = options.dry_run, options.jobs, options.again
        self.patience = PTX_PATIENCE if self.dry == "cuda" else 1
        self.commit_given = bool(options.commit)
        self.folder = os.path.abspath(options.folder)
        self.packed = not options.build_dir and os.path.exists(pack.file())
        self.report = Report(self.folder, about(options, self.packed), options.out)
        self.use(options.build_dir or (pack.UNPACKED if self.packed else os.path.join(ROOT, "build/gpu")))
        peer = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer.py"), "cuda"]
        self.peer, self.copier = (FakePeer() if self.dry else self.talk(peer) for _ in range(2))
        # The tests find the tree's data here, wherever they were compiled. What the policy auto measures is kept beside
        # the results.
        os.environ.update(TAPESTRY_SOURCE_DIR=ROOT, TAPESTRY_CACHE_DIR=self.folder)
        if self.dry == "cuda":  # products of ragged tiles load shared memory that no thread wrote, and drop the results
            os.environ.setdefault("TAPESTRY_PTX_CHECK", "initialised")

    def use(self, build):
        """Takes the programs of this build folder."""
        self.build, self.libraries = os.path.abspath(build), {}
        device = self.dry or "cuda"
        program = self.program("bench_gpu_ops")
        # Tapestry's programs are restarted after every failure, so that one failed benchmark does not prevent the others.
        self.ours, self.vendor, self.cpu = (self.talk([program, where], 10**6) for where in (device, device, "cpu"))

    def talk(self, command, most_silent=3):
        environment = {"OMP_NUM_THREADS": "1"} if self.dry else None
        return process.Program(command, self.left, environment, most_silent, self.patience)

    def close(self):
        for program in (self.ours, self.vendor, self.cpu, self.peer, self.copier):
            program.close()

    def left(self):
        """Returns the seconds that are left to the phase that runs."""
        return self.until - time.monotonic()

    def program(self, name):
        return os.path.join(self.build, "bin", name)

    def tool(self, name):
        """Returns the path of a CUDA tool: on the PATH, or in the folder of the nvcc that built the programs. None if
        it is in neither."""
        beside = os.path.join(os.path.dirname(phases.cached(self.build, "CMAKE_CUDA_COMPILER")), name)
        return shutil.which(name) or (beside if os.path.exists(beside) else None)

    def lacks(self, item):
        """Returns the name of the vendor library that the item needs and this machine lacks, or an empty string."""
        needed = item.library
        return needed if needed and self.libraries.get(needed) is False else ""

    def log(self, name):
        return os.path.join(self.folder, name + ".log")

    def run(self, command, log, limit=None, **more):
        """Runs the program until it ends. It is killed after `limit` seconds, or at the end of the phase."""
        print("+", " ".join(command), flush=True)
        return process.run(command, min(limit or self.left(), self.left()), folder=ROOT, log=log, **more)

    def cut_short(self, found):
        """Returns True if the run was killed at the end of the phase, and not by its own limit."""
        return found.status is None and self.left() <= 1

    def once(self, phase, name, command, log, limit, partial=None, **more):
        """Runs the program for the row `name` of the report. Returns None if an earlier call has completed the row, or
        if too little time is left, so that the next call must run it. If the end of the phase interrupted the program but
        its output matches the pattern `partial`, the run counts and is returned."""
        if self.report.is_final(phase, name):
            return None
        if self.left() < max(1.0, ENOUGH * min(limit, self.limit - 60)):
            self.report.row(phase, name, "left")
            return None
        self.report.row(phase, name, "running")
        found = self.run(command, self.log(log), self.patience * limit, **more)
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

    def phase(self, name, seconds=None):
        """Runs a phase for at most this many seconds, or until the deadline of the call."""
        start = time.monotonic()
        self.until = min(self.deadline, start + seconds) if seconds else self.deadline
        print(f"\n== {name}: {self.left():.0f} s ==", flush=True)
        if self.again or name == "machine":  # another call may run on another machine
            self.report.forget(name)
        if name != "machine" and self.report.is_done(name):
            print("done by an earlier call; --again repeats it", flush=True)
            return
        self.report.begin(name)
        try:
            phases.PHASES[name][1](self)
        except Exception as error:  # a bug in these scripts must not prevent the other phases
            traceback.print_exc()
            self.report.row(name, "tools/gpu_check itself", "failed", note=f"{type(error).__name__}: {error}")
        self.report.end(name, time.monotonic() - start)
        for row in self.report.failed({name}):
            print(f"FAILED: {row['name']}: {row.get('note', '')}", flush=True)
        left = [row["name"] for row in self.report.left({name}) if row["name"] != PHASE]
        if left:
            print(f"SKIPPED: the {seconds or self.limit:.0f} s of {name} are over, and {len(left)} rows are left for the "
                  f"next call: {', '.join(left[:3])}{', ...' if left[3:] else ''}", flush=True)

    def seconds_of(self, name, names):
        """Divides the time that is left between this phase and the later ones of `names` which are not done."""
        later = [other for other in names[names.index(name):] if self.again or not self.report.is_done(other)]
        weights = {other: phases.PHASES[other][0] for other in {name, *later}}
        return max(1.0, (self.deadline - time.monotonic()) * weights[name] / sum(weights.values()))


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tools/gpu_check", description=TEXT,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", nargs="*", metavar="PHASE", help=", ".join(phases.PHASES))
    parser.add_argument("--pack", action="store_true",
                        help="build on this machine what a machine with a GPU needs, into build/gpu_pack/, and stop")
    parser.add_argument("--out", metavar="DIR", help="also copy the results and logs into this folder")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, metavar="S",
                        help="seconds after which the call stops by itself (%(default).0f)")
    parser.add_argument("--again", action="store_true", help="forget earlier results of the named phases")
    parser.add_argument("--commit", metavar="TEXT", help="the commit, for a tree without its history and without a pack")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N",
                        help="how many files to compile, or tests to run, at a time")
    parser.add_argument("--build-dir", metavar="DIR",
                        help="the build tree; the programs are in its bin/ (the pack's, or build/gpu; for --pack "
                        "build/gpu_tree)")
    parser.add_argument("--folder", default=os.path.join(ROOT, "build/gpu_check"), metavar="DIR", help=argparse.SUPPRESS)
    parser.add_argument("--dry-run", choices=["cpu", "cuda"], metavar="DEVICE",
                        help="small sizes and fake figures, on cpu, or on the CUDA runtime of tools/ptx, which "
                        "LD_PRELOAD names (cuda)")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.phases if name not in phases.PHASES]
    if unknown:
        parser.error(f"unknown phase '{unknown[0]}'; the phases are " + ", ".join(phases.PHASES))
    if options.jobs < 1 or options.limit_s <= 0:
        parser.error("--jobs and --limit-s must be above 0")
    options.phases = [name for name in phases.PHASES if name in options.phases or name == "machine" or not options.phases]
    return options


def main():
    start = time.monotonic()
    options = parse(sys.argv[1:])
    process.end_on_signals()
    add_to_path()
    if options.pack:
        return pack.make(options, commit_of(options))
    check = Check(options, start)
    for name in options.phases:
        check.phase(name, check.seconds_of(name, options.phases))
        if name == "machine" and check.report.failed({name}):
            break  # nothing else can run
    check.close()
    bad, left = check.report.failed(set(options.phases)), check.report.left(set(options.phases))
    print(f"\nresults: {check.report.path('md')}", flush=True)
    if bad:
        print(f"{len(bad)} rows failed", flush=True)
    if left:
        print(f"{len(left)} rows are left: call tools/gpu_check again", flush=True)
    return 1 if bad else 3 if left else 0


if __name__ == "__main__":
    sys.exit(main())
