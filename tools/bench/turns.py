"""The Python side of benchmarks that alternate between Tapestry and PyTorch."""
import platform
import subprocess
import sys
import time


class Ours:
    """A program that answers lines `NAME REPEATS` with REPEATS times in milliseconds (turns.h)."""

    def __init__(self, program, *arguments):
        self.process = subprocess.Popen([program, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, name, repeats):
        self.process.stdin.write(f"{name} {repeats}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line.strip():
            raise SystemExit(f"the program ended while running {name}")
        return [float(t) for t in line.split()]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def theirs(step, repeats):
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1e3)
    return times


def answer_turns(works):
    """The other side of Ours, in Python. `works` maps a name to a function that makes its step, which is made when it is
    first asked for."""
    steps = {}
    for line in sys.stdin:
        name, repeats = line.split()
        if name not in steps:
            steps[name] = works[name]()
        print(*(f"{t:.6f}" for t in theirs(steps[name], int(repeats))), flush=True)


def rest():
    time.sleep(0.02)  # the other side's OpenMP threads stop spinning in this time


def cpu_name():
    return next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
                platform.processor())
