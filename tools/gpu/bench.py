"""Measures times and compares them with goals. Tapestry, its peer (PyTorch, or NVIDIA's libraries under the policy vendor)
and a copy of memory run alternately, so that a change of the clock rate affects all of them."""
import itertools
import math
import statistics

from items import PEAK
from values import LEAST, PEER_LIMIT, limit_of

ROUNDS = 7
TURN_MS = 20.0  # how long one turn should take
MAX_CALLS = 500
ANSWER_LIMIT = 20  # seconds for the times of one turn
COMPILE_LIMIT = 240  # seconds for an answer that has to compile a model

COPY = "copy f32 268435456"
COPY_BYTES = 2 * 4 * 268435456


class FakePeer:
    """Replaces PyTorch's program in dry runs. It answers with fake times, and with no values."""

    def ask(self, line, _limit):
        return "ok" if line.startswith("prepare") else "1" if line.startswith("time") else "failed this is a dry run"

    def begin(self):
        return True

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
    """Times items with the programs of `check`: `ours`; `peer`, which is PyTorch's; `vendor`, a second process of ours for
    NVIDIA's libraries; `copier`, a second process of PyTorch, which measures the bandwidth of a copy."""

    def __init__(self, check, phase):
        self.check, self.report, self.phase = check, check.report, phase
        self.launch = None  # the host's time for a kernel launch without a framework
        self.copies = None  # True if the copier works, None if this was not tried yet

    def row(self, name, status, **fields):
        if self.check.dry and status == "measured":
            status = "fake"
        return self.report.row(self.phase, name, status, **fields)

    def can_copy(self):
        if self.copies is None:
            answer = self.check.copier.ask("prepare " + COPY, PEER_LIMIT)
            self.copies = answer.startswith("ok")
            if not self.copies:
                self.row("copy", "not run", note=answer)
        return self.copies

    def measure(self, item, mode="eager"):
        """Times one item beside its peer, PyTorch in one mode or the vendor's library, and writes its row."""
        name = row_name(item, mode)
        if missing := self.check.lacks(item):
            return self.row(name, "not run", note=f"{missing} is not available")
        answer = self.check.ours.ask("prepare " + item.work, limit_of(item))
        if answer.startswith("none"):
            return self.row(name, "no kernel", note=answer.removeprefix("none "))
        if not answer.startswith("ok"):
            return self.row(name, "failed", note=answer.removeprefix("failed "))
        if item.kind == "launch":
            return self.turns(item, mode, {})
        chosen = answer.removeprefix("ok").strip()  # what the policy `auto` has chosen, if it had to choose
        if item.beside == "vendor":
            peer = self.check.vendor
            missing = self.check.lacks(item.by_vendor)
            theirs = f"{missing} is not available" if missing else peer.ask("prepare " + item.by_vendor.work, limit_of(item))
        else:
            peer = self.check.peer
            theirs = peer.ask("prepare " + (item.work if mode == "eager" else f"{mode}:{item.work}"),
                              COMPILE_LIMIT if mode == "compiled" else PEER_LIMIT)
        if not theirs.startswith("ok"):
            return self.turns(item, mode, {}, "; ".join(filter(None, (
                chosen, f"{item.beside} is not there to compare with: {theirs}"))))
        return self.turns(item, mode, {"peer": peer}, chosen)

    def turns(self, item, mode, peers, alone=""):
        programs = {"ours": self.check.ours, **peers}
        if item.passes and self.can_copy():
            programs["copy"] = self.check.copier
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
            fields["peer"], fields["peer_name"] = median["peer"], item.beside if mode == "eager" else "PyTorch, " + mode
            speed = median["peer"] / median["ours"]
            if not item.passes:
                fields["ratio"] = 1 / speed if item.kind == "cost" else speed
                if item.kind == "cost" and self.launch:
                    bare = item.launches * self.launch
                    notes.append(f"of that, bare launches take {bare:.4g}; Tapestry itself takes "
                                 f"{median['ours'] - bare:.4g}, PyTorch {median['peer'] - bare:.4g}")
            else:
                notes.append(f"{speed:.2f} times as fast as {item.beside}")
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
        # It is timed although it is wrong, because the machine may not be available again.
        if self.report.wrong(item):
            fields["reached"] = False
            notes.insert(0, "values of this operation are wrong, see the row of its values")
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
                     note=f"geometric mean over {len(rows)} layers of the time of {rows[0]['peer_name']} divided by ours")


def row_name(item, mode):
    return f"{item.work}, {mode}" if item.kind == "step" else item.work


def measure_all(check, phase, items):
    """Measures each item in each mode, until the time is over. Items with a row from an earlier call are skipped."""
    bench, left = Bench(check, phase), []
    for item, mode in ((item, mode) for item in items for mode in item.modes):
        name = row_name(item, mode)
        if check.report.is_final(phase, name):
            if item.kind == "launch":
                bench.launch = check.report.find(phase, name).get("value")
            continue
        if check.left() < LEAST:
            left.append(name)
            continue
        bench.row(name, "running")
        row = bench.measure(item, mode)
        if check.left() <= 0 and row["status"] in ("failed", "not run"):  # it failed only because the time was over
            row = bench.row(name, "left")
        print(f"  {name}: {row['status']} {row.get('note', '')}", flush=True)
        if row["status"] == "failed":  # restart the program: after a GPU error, every CUDA call of a process fails
            check.ours.close()
        if item.kind != "launch" and "peer" not in row and row["status"] in ("measured", "not run"):
            (check.vendor if item.beside == "vendor" else check.peer).close()
        if item.mean_of and row["status"] in ("measured", "fake"):
            bench.mean(item)
    check.report.leave(phase, left)
