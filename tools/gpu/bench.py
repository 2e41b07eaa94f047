"""The phases `bench` and `steps` measure times and compare them with goals. Tapestry, PyTorch and a copy of memory run
alternately, so that a change of the clock rate affects all of them."""
import itertools
import math
import statistics

from items import PEAK
from process import Program

ROUNDS = 7
TURN_MS = 20.0  # how long one turn should take
MAX_CALLS = 500
ANSWER_LIMIT = 60  # seconds for one answer
PREPARE_LIMIT = 240  # seconds for an answer that may have to load PyTorch and compile a model

COPY = "copy f32 268435456"
COPY_BYTES = 2 * 4 * 268435456


class FakePeer:
    """Replaces PyTorch's program in dry runs. It answers with fake times."""

    def ask(self, line, _limit):
        return "ok" if line.startswith("prepare") else "1"

    def close(self):
        pass


def milliseconds(program, calls):
    """Asks the program to time its benchmark. Returns (milliseconds per call, None), or (None, the reason of a
    failure)."""
    answer = program.ask(f"time {calls}", ANSWER_LIMIT)
    try:
        return float(answer), None
    except ValueError:
        return None, answer


def calls_of_a_turn(item, time_of_call):
    return 1 if item.kind in ("cost", "launch") else max(1, min(MAX_CALLS, math.ceil(TURN_MS / max(time_of_call, 1e-6))))


def spread(times):
    return (max(times) - min(times)) / statistics.median(times)


class Bench:
    """Times items. `ours` is Tapestry's program and `peer` is PyTorch's. `copier` is a second process of PyTorch, which
    measures the bandwidth of a copy. All three have a method ask()."""

    def __init__(self, report, ours, peer, copier, fake=False, phase="bench"):
        self.report, self.ours, self.peer, self.copier, self.fake = report, ours, peer, copier, fake
        self.phase = phase
        self.launch = None  # the host's time for a kernel launch without a framework
        self.copies = None  # True if the copier works, None if this was not tried yet

    def row(self, name, status, **fields):
        if self.fake and status == "measured":
            status = "fake"
        return self.report.row(self.phase, name, status, **fields)

    def can_copy(self):
        if self.copies is None:
            answer = self.copier.ask("prepare " + COPY, PREPARE_LIMIT)
            self.copies = answer.startswith("ok")
            if not self.copies:
                self.row("copy", "not run", note=answer)
        return self.copies

    def measure(self, item, mode="eager"):
        """Times one item beside PyTorch in one mode, and writes its row."""
        name = row_name(item, mode)
        answer = self.ours.ask("prepare " + item.work, ANSWER_LIMIT)
        if answer.startswith("none"):
            return self.row(name, "no kernel", note=answer.removeprefix("none "))
        if not answer.startswith("ok"):
            return self.row(name, "failed", note=answer.removeprefix("failed "))
        if item.kind == "launch":
            return self.turns(item, mode, {})
        theirs = self.peer.ask("prepare " + (item.work if mode == "eager" else f"{mode}:{item.work}"), PREPARE_LIMIT)
        chosen = answer.removeprefix("ok").strip()  # what the policy `auto` has chosen, if it had to choose
        if not theirs.startswith("ok"):
            return self.turns(item, mode, {}, "; ".join(filter(None, (
                chosen, "PyTorch is not there to compare with: " + theirs))))
        return self.turns(item, mode, {"peer": self.peer}, chosen)

    def turns(self, item, mode, peers, alone=""):
        programs = {"ours": self.ours, **peers}
        if item.passes and self.can_copy():
            programs["copy"] = self.copier
        calls, times = {}, {name: [] for name in programs}
        for name, program in programs.items():
            first, why = milliseconds(program, 1)
            if why is None:  # a warm-up that is not recorded, because clock rates rise only under load
                first, why = milliseconds(program, calls_of_a_turn(item, first))
            if why is not None:
                return self.stopped(item, mode, name, why)
            calls[name] = calls_of_a_turn(item, first)
        for _, (name, program) in itertools.product(range(ROUNDS), programs.items()):
            time_of_call, why = milliseconds(program, calls[name])
            if why is not None:
                return self.stopped(item, mode, name, why)
            times[name].append(time_of_call)
        return self.judge(item, times, mode, alone)

    def stopped(self, item, mode, name, why):
        return self.row(row_name(item, mode), "failed" if name == "ours" else "not run", note=f"{name}: {why}")

    def judge(self, item, times, mode="eager", alone=""):
        median = {name: statistics.median(t) for name, t in times.items()}
        notes = [f"median of {ROUNDS}, spread " + ", ".join(f"{name} {spread(t):.0%}" for name, t in times.items())]
        fields = {"value": median["ours"], "unit": "ms", "better": "<=" if item.kind == "cost" else ">=",
                  "ratio": None, "times": times}
        if item.kind in ("cost", "launch"):
            fields["unit"] = "ms of host time per operation"
        if item.kind == "launch":
            self.launch = median["ours"]
        if "peer" in median:
            fields["peer"], fields["peer_name"] = median["peer"], "PyTorch" if mode == "eager" else "PyTorch, " + mode
            speed = median["peer"] / median["ours"]
            if not item.passes:
                fields["ratio"] = 1 / speed if item.kind == "cost" else speed
                if item.kind == "cost" and self.launch:
                    bare = item.launches * self.launch
                    notes.append(f"of that, bare launches take {bare:.4g}; Tapestry itself takes "
                                 f"{median['ours'] - bare:.4g}, PyTorch {median['peer'] - bare:.4g}")
            else:
                notes.append(f"{speed:.2f} times as fast as PyTorch")
        if mode == "autocast":
            notes.append("PyTorch computes in bf16 here, Tapestry in f32")
        if item.passes:
            fields["gigabytes_per_second"] = bandwidth = item.gigabytes / median["ours"] * 1e3
            if "copy" in median:
                fields["copy_gigabytes_per_second"] = copy = COPY_BYTES / 1e9 / median["copy"] * 1e3
                fields["ratio"] = bandwidth / copy
                notes.insert(0, f"{bandwidth:.0f} GB/s; a copy has {copy:.0f} GB/s, and the ratio is of these two")
            else:
                notes.insert(0, f"{bandwidth:.0f} GB/s")
        if item.flops:
            self.of_peak(item, median["ours"], notes)
        if alone:
            notes.append(alone)
        goal = item.goal.get(mode) if isinstance(item.goal, dict) else item.goal
        if goal and not item.mean_of:
            fields["goal"] = goal
            fields["reached"] = fields["ratio"] is not None and (
                fields["ratio"] <= goal if item.kind == "cost" else fields["ratio"] >= goal)
        if item.mean_of:
            fields["mean_of"] = item.mean_of
        wrong = self.report.find("verify", item.work)
        # It is timed although it is wrong, because the machine may not be available again.
        if wrong and wrong["status"] == "failed":
            fields["reached"] = False
            notes.insert(0, "its results are wrong, see the phase verify")
        return self.row(row_name(item, mode), "measured", note="; ".join(notes), **fields)

    def of_peak(self, item, time, notes):
        """Writes the row for the rate of operations."""
        flops, goal = item.flops
        ratio = flops / (time / 1e3) / PEAK
        text = f"{flops / time / 1e9:.0f} TFLOP/s"
        notes.append(text)
        self.row(f"{item.work}: of peak", "measured", ratio=ratio, better=">=",
                 **({"goal": goal, "reached": ratio >= goal} if goal else {}),
                 note=f"{text} of {PEAK / 1e12:.0f}, the peak of an H100 or H200 (SXM) in bf16")

    def mean(self, item):
        """Writes a row for the goal that several items share. It uses the rows of those items that were measured."""
        rows = [row for row in self.report.rows if row.get("mean_of") == item.mean_of and row.get("ratio")
                and row.get("reached") is not False]
        if rows:
            ratio = statistics.geometric_mean(row["ratio"] for row in rows)
            goal = {"goal": item.goal, "reached": ratio >= item.goal} if item.goal else {}
            self.row(f"{item.mean_of}: all layers", "measured", ratio=ratio, better=">=", **goal,
                     note=f"geometric mean over {len(rows)} layers of PyTorch's time divided by ours")


def row_name(item, mode):
    return f"{item.work}, {mode}" if item.kind == "step" else item.work


def measure_all(check, phase, items, ours_command, peer_command):
    """Measures each item in each mode, until the time is over. Items with a row from an earlier call are skipped."""
    ours = check.ours(ours_command)
    peer, copier = (FakePeer() if check.dry else Program(peer_command, check.deadline) for _ in range(2))
    bench = Bench(check.report, ours, peer, copier, check.dry, phase)
    for item, mode in ((item, mode) for item in items for mode in item.modes):
        name = row_name(item, mode)
        if check.report.is_final(phase, name):
            if item.kind == "launch":
                bench.launch = check.report.find(phase, name).get("value")
            continue
        row = bench.measure(item, mode) if check.left() >= 5 else bench.row(name, "left")
        if check.left() <= 0 and row["status"] in ("failed", "not run"):  # it failed only because the time was over
            row = bench.row(name, "left")
        print(f"  {name}: {row['status']} {row.get('note', '')}", flush=True)
        if row["status"] == "failed":  # restart the program: after a GPU error, every CUDA call of a process fails
            ours.close()
        if item.kind != "launch" and "peer" not in row and row["status"] in ("measured", "not run"):
            peer.close()
        if item.mean_of and row["status"] in ("measured", "fake"):
            bench.mean(item)
    for program in (ours, peer, copier):
        program.close()
