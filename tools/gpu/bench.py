"""The benchmarks: work, goals, and turns of Tapestry, PyTorch and a copy within one run."""
import itertools
import math
import statistics
import time

from process import NO_ANSWER, Dialogue

ROUNDS = 7
TURN_MS = 20.0  # that one turn should take
MAX_CALLS = 500
ANSWER_LIMIT = 60  # seconds, for one answer
FIRST_LIMIT = 180  # that brings PyTorch with it
MOST_SILENT = 3  # works in a row for which PyTorch is started once more

# Largest difference of a sample, as a share of the largest sample: f32 sums of up to 8192 products in any order, bf16
# results that were rounded in either program.
TOLERANCE = {"f32": 1e-4, "bf16": 1.6e-2}
# PyTorch keeps log-probabilities of 8 to 16 in bf16, which is to 1/32, and takes their exponential: 5% were seen.
LOOSE = {"cross_entropy_backward bf16": 1e-1}

COPY = "copy f32 268435456"
COPY_BYTES = 2 * 4 * 268435456

# ResNet-50's convolutions at 224 x 224: channels, size, filters, window, stride, padding.
RESNET50 = [
    (3, 224, 64, 7, 2, 3), (64, 56, 64, 1, 1, 0), (64, 56, 64, 3, 1, 1), (64, 56, 256, 1, 1, 0),
    (256, 56, 64, 1, 1, 0), (256, 56, 128, 1, 1, 0), (128, 56, 128, 3, 2, 1), (128, 28, 512, 1, 1, 0),
    (256, 56, 512, 1, 2, 0), (512, 28, 128, 1, 1, 0), (128, 28, 128, 3, 1, 1), (512, 28, 256, 1, 1, 0),
    (256, 28, 256, 3, 2, 1), (256, 14, 1024, 1, 1, 0), (512, 28, 1024, 1, 2, 0), (1024, 14, 256, 1, 1, 0),
    (256, 14, 256, 3, 1, 1), (1024, 14, 512, 1, 1, 0), (512, 14, 512, 3, 2, 1), (512, 7, 2048, 1, 1, 0),
    (1024, 14, 2048, 1, 2, 0), (2048, 7, 512, 1, 1, 0), (512, 7, 512, 3, 1, 1)]
BATCH = 64


class Item:
    """Work that both programs know. `passes`: how often all elements are read or written by who wastes nothing; then the
    goal is a share of the copy's bandwidth. Otherwise it is a ratio of the peer's time to ours ("speed"), or of our
    host time to the peer's ("cost"); "launch" is a part of that, for itself, and has neither goal nor peer."""

    def __init__(self, work, goal, passes=None, kind="speed", mean_of=None, launches=1):
        self.work, self.goal, self.passes, self.kind = work, goal, passes, kind
        self.mean_of = mean_of  # the goal is one of a geometric mean over all items of this name
        self.launches = launches  # of kernels in one of its operations

    @property
    def dtype(self):
        return self.work.split()[1]

    @property
    def tolerance(self):
        return LOOSE.get(" ".join(self.work.split()[:2]), TOLERANCE[self.dtype])

    @property
    def gigabytes(self):
        name, _, *sizes = self.work.split()
        sizes = [int(n) for n in sizes]
        if name == "batch_norm_backward":
            sizes.append(sizes[-1])
        return self.passes * math.prod(sizes) * (4 if self.dtype == "f32" else 2) / 1e9


def items():
    """In the order in which a run that is cut short should have them. Memory-bound tensors have 512 MiB."""
    n = 1 << 27
    memory = [("softmax", 2, .95, [(16384, 8192), (131072, 1024)]), ("layer_norm", 2, .95, [(65536, 2048)]),
              ("copy", 2, .95, [(n,)]), ("add", 3, .95, [(n,)]), ("gelu", 2, .95, [(n,)]), ("adamw", 7, .95, [(4, n // 4)]),
              ("cross_entropy", 1, .90, [(16384, 8192)]), ("cross_entropy_backward", 2, .90, [(16384, 8192)]),
              ("layer_norm_backward", 3, .90, [(65536, 2048)]),
              # The sums have to be there before the first result: all is read twice.
              ("batch_norm_backward", 5, .90, [(160, 64, 112)])]
    for name, passes, goal, shapes in memory:
        for shape in shapes:
            yield Item(f"{name} f32 {' '.join(map(str, shape))}", goal, passes)
            if name not in ("adamw", "batch_norm_backward"):
                twice = (2 * shape[0],) + shape[1:]
                yield Item(f"{name} bf16 {' '.join(map(str, twice))}", goal, passes)
    for size in (2048, 4096, 8192):
        yield Item(f"linear f32 {size} {size} {size}", 1.0)
        yield Item(f"linear bf16 {size} {size} {size}", .55)
    yield Item("launch f32 500", None, kind="launch")
    for name, launches in (("eager_mul", 1), ("eager_mul_backward", 2)):
        yield Item(f"{name} f32 500", .5, kind="cost", launches=launches)
    for name, goal in (("conv2d", .85), ("conv2d_bias_relu", 1.0), ("conv2d_backward", .85)):
        for c, size, k, window, stride, padding in RESNET50:
            yield Item(f"{name} f32 {BATCH} {c} {size} {size} {k} {window} {stride} {padding}", goal, mean_of=name)


def small_items():
    """One of each kind, at sizes for a dry run."""
    kinds = {}
    for item in items():
        kinds.setdefault(tuple(item.work.split()[:2]), small(item))
    return kinds.values()


def small(item):
    name, dtype, *sizes = item.work.split()
    if name.startswith("conv2d"):
        sizes = ["2", sizes[1] if sizes[1] == "3" else "8", "7", "7", "8"] + sizes[5:]
    elif name == "adamw":
        sizes = ["4", "100"]
    else:
        sizes = [str(min(int(n), 24)) for n in sizes]
    return Item(" ".join([name, dtype, *sizes]), item.goal, item.passes, item.kind, item.mean_of, item.launches)


class FakePeer:
    """Agrees with whatever it is compared with, in fake times: for dry runs."""
    alive = True

    def ask(self, line, _limit):
        return "ok" if line.startswith("start") else "1"

    def close(self):
        pass


def differs(ours, theirs, tolerance):
    """Why the samples are not the same result; empty if they are."""
    a, b = [float(x) for x in ours.split()[1:]], [float(x) for x in theirs.split()[1:]]
    if len(a) != len(b) or not a:
        return f"{len(a)} samples against {len(b)}"
    scale = max(abs(x) for x in b) or 1.0
    worst = max((abs(x - y) / scale if math.isfinite(x) and math.isfinite(y) else math.inf) for x, y in zip(a, b))
    return "" if worst <= tolerance else f"differs from PyTorch by {worst:.3g} of the largest sample"


def milliseconds(program, calls):
    """The time of a call, or why there is none."""
    answer = program.ask(f"time {calls}", ANSWER_LIMIT)
    try:
        return float(answer), None
    except ValueError:
        return None, answer


def calls_of_a_turn(item, time_of_call):
    return 1 if item.kind != "speed" else max(1, min(MAX_CALLS, math.ceil(TURN_MS / max(time_of_call, 1e-6))))


def spread(times):
    return (max(times) - min(times)) / statistics.median(times)


class Bench:
    """Talks to three programs: ours, the peer, and a peer that copies."""

    def __init__(self, report, ours, peer, copier, fake=False):
        self.report, self.ours, self.peer, self.copier, self.fake = report, ours, peer, copier, fake
        self.ratios = {}  # of items that share a goal
        self.launch = None  # the host's time for a bare one
        answer = copier.ask("start " + COPY, FIRST_LIMIT)
        self.can_copy = answer.startswith("ok")
        if not self.can_copy:
            report.row("bench", "copy", "not run", note=answer)

    def row(self, item, status, **fields):
        if self.fake and status == "measured":
            status = "fake"
        return self.report.row("bench", item.work, status, **fields)

    def measure(self, item):
        answer = self.ours().ask("start " + item.work, ANSWER_LIMIT)
        if answer.startswith("none"):
            return self.row(item, "no kernel", note=answer.removeprefix("none "))
        if not answer.startswith("ok"):
            return self.row(item, "failed", note=answer.removeprefix("failed "))
        if item.kind == "launch":
            return self.turns(item, {})
        theirs = self.peer.ask("start " + item.work, ANSWER_LIMIT)
        if not theirs.startswith("ok"):
            return self.turns(item, {}, "PyTorch, to compare with: " + theirs)
        # A wrong result is timed all the same: there may be no second chance on this machine.
        return self.turns(item, {"peer": self.peer}, wrong="" if self.fake else differs(answer, theirs, item.tolerance))

    def turns(self, item, peers, alone="", wrong=""):
        programs = {"ours": self.ours(), **peers}
        if item.passes and self.can_copy:
            programs["copy"] = self.copier
        calls, times = {}, {name: [] for name in programs}
        for name, program in programs.items():
            first, why = milliseconds(program, 1)
            if why is None:  # and a turn that does not count: clocks rise only under load
                first, why = milliseconds(program, calls_of_a_turn(item, first))
            if why is not None:
                return self.stopped(item, name, why, wrong)
            calls[name] = calls_of_a_turn(item, first)
        for _, (name, program) in itertools.product(range(ROUNDS), programs.items()):
            time_of_call, why = milliseconds(program, calls[name])
            if why is not None:
                return self.stopped(item, name, why, wrong)
            times[name].append(time_of_call)
        return self.judge(item, times, alone, wrong)

    def stopped(self, item, name, why, wrong):
        return self.row(item, "failed" if wrong or name == "ours" else "not run",
                        note="; ".join([*([wrong] if wrong else []), f"{name}: {why}"]))

    def judge(self, item, times, alone="", wrong=""):
        median = {name: statistics.median(t) for name, t in times.items()}
        notes = [f"median of {ROUNDS}, spread " + ", ".join(f"{name} {spread(t):.0%}" for name, t in times.items())]
        fields = {"value": median["ours"], "unit": "ms", "better": "<=" if item.kind == "cost" else ">=",
                  "ratio": None, "times": times}
        if item.kind != "speed":
            fields["unit"] = "ms of host time an operation"
        if item.kind == "launch":
            self.launch = median["ours"]
        if "peer" in median:
            fields["peer"], fields["peer_name"] = median["peer"], "PyTorch"
            speed = median["peer"] / median["ours"]
            if not item.passes:
                fields["ratio"] = 1 / speed if item.kind == "cost" else speed
                if item.kind == "cost" and self.launch:
                    bare = item.launches * self.launch
                    notes.append(f"bare launches take {bare:.4g} of that, the frameworks themselves "
                                 f"{median['ours'] - bare:.4g} and {median['peer'] - bare:.4g}")
            else:
                notes.append(f"{speed:.2f} times as fast as PyTorch")
        if item.passes:
            fields["gigabytes_a_second"] = bandwidth = item.gigabytes / median["ours"] * 1e3
            if "copy" in median:
                fields["copy_gigabytes_a_second"] = copy = COPY_BYTES / 1e9 / median["copy"] * 1e3
                fields["ratio"] = bandwidth / copy
                notes.insert(0, f"{bandwidth:.0f} GB/s, copy {copy:.0f} GB/s: the ratio is of these")
            else:
                notes.insert(0, f"{bandwidth:.0f} GB/s")
        note = "; ".join([*([wrong] if wrong else []), *notes, *([alone] if alone else [])])
        if item.mean_of and fields["ratio"] and not wrong:
            self.ratios.setdefault(item.mean_of, []).append((item, fields["ratio"]))
        if item.goal and not item.mean_of:
            fields["goal"] = item.goal
            fields["reached"] = not wrong and fields["ratio"] is not None and (
                fields["ratio"] <= item.goal if item.kind == "cost" else fields["ratio"] >= item.goal)
        return self.row(item, "failed" if wrong else "measured", note=note, **fields)

    def mean(self, name):
        """The row of a goal that several items share."""
        found = self.ratios.get(name, [])
        if not found:
            return
        ratio = statistics.geometric_mean(ratio for _, ratio in found)
        goal = found[0][0].goal
        note = f"geometric mean of PyTorch's time by ours, {len(found)} layers of ResNet-50"
        self.report.row("bench", f"{name}: all layers", "fake" if self.fake else "measured", ratio=ratio, goal=goal,
                        better=">=", reached=ratio >= goal, note=note)


def program(command, deadline, environment=None):
    """A dialogue that is started again when it has ended."""
    dialogue = [Dialogue(command, environment, deadline)]

    def current():
        if not dialogue[0].alive:
            dialogue[0] = Dialogue(command, environment, deadline)
        return dialogue[0]

    return current


def run(report, ours_command, peer_command, deadline, fake=False):
    """All items, until the deadline. Rows in the report."""
    ours = program(ours_command, deadline, {"OMP_NUM_THREADS": "1"} if fake else None)

    def pytorch():
        return FakePeer() if fake else Dialogue(peer_command, deadline=deadline)

    peer, copier = pytorch(), pytorch()
    bench = Bench(report, ours, peer, copier, fake)
    over, silent = "the phase's time was over", 0
    for item in small_items() if fake else items():
        if time.monotonic() > deadline:
            bench.row(item, "not run", note=over)
            continue
        row = bench.measure(item)
        if NO_ANSWER in row.get("note", "") and time.monotonic() > deadline:
            row = bench.row(item, "not run", note=over)
        print(f"  {item.work}: {row['status']} {row.get('note', '')}", flush=True)
        # After an error on the GPU a process gets nothing but errors: the next work has another.
        if row["status"] == "failed":
            ours().close()
        if item.kind != "launch":
            silent = 0 if "peer" in row else silent + (row["status"] in ("measured", "not run"))
        if silent:
            peer.close()
        if not peer.alive and silent < MOST_SILENT:
            bench.peer = peer = pytorch()
        if bench.can_copy and not copier.alive:
            bench.copier = copier = pytorch()
            bench.can_copy = copier.ask("start " + COPY, FIRST_LIMIT).startswith("ok")
        if item.mean_of:
            bench.mean(item.mean_of)
    for dialogue in (ours(), peer, copier):
        dialogue.close()
