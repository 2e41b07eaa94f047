"""The Python side of benchmarks that alternate between Tapestry and PyTorch."""
import collections
import os
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


def one_per_core_first(cpus, core_of):
    """The processors in an order that begins with one of each core."""
    taken, order = collections.Counter(), []
    for cpu in sorted(cpus):
        order.append((taken[core_of(cpu)], cpu))
        taken[core_of(cpu)] += 1
    return [cpu for _, cpu in sorted(order)]


def keep_to(threads):
    """Lets this process use only `threads` processors, because XLA and TensorFlow start a thread for each that they may use.
    Takes processors of different cores, where the system would also put the threads of the other programs."""
    def core_of(cpu):
        path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        if not os.path.exists(path):
            return cpu
        with open(path) as f:
            return f.read()

    os.sched_setaffinity(0, one_per_core_first(os.sched_getaffinity(0), core_of)[:threads])


def cpu_name():
    """The processor's name, with its family and model, because virtual machines have names such as "AMD EPYC"."""
    fields = {}
    with open("/proc/cpuinfo") as f:
        for line in f:
            name, _, value = line.partition(":")
            fields.setdefault(name.strip(), value.strip())
    if "model name" not in fields:
        return platform.processor()
    return f"{fields['model name']} (family {fields.get('cpu family')}, model {fields.get('model')})"
