"""How tools/bench_cpu spends its time: the sides take turns until the rounds or the time of a work is used up."""
import statistics
import time

from turns import rest

# A peer whose fastest step takes this many times the median step of the fastest one is not measured again. It could only
# become the fastest by a change of the machine.
HOPELESS = 1.4
ROUNDS_BEFORE_JUDGING = 2


def is_low(variant):
    return variant.endswith("bf16")


def hopeless(times):
    """The peers that cannot be the fastest any more. A peer in f32 is compared with those in f32, and one in bf16 with all,
    as in the tables (cpu_report.best_peer)."""
    peers = {v: t for v, t in times.items() if not v.startswith("tapestry")}
    medians = {v: statistics.median(t) for v, t in peers.items()}
    best = {False: min((m for v, m in medians.items() if not is_low(v)), default=0), True: min(medians.values(), default=0)}
    return {v for v, t in peers.items() if min(t) > HOPELESS * best[is_low(v)]}


def take_turns(sides, repeats, rounds, deadline, now=time.monotonic, pause=rest):
    """sides: variant -> function of a number of steps that returns their times. Yields {variant: times} after each round,
    at least once. Ends after `rounds` rounds, or where the next one would not end before `deadline`."""
    times = {variant: [] for variant in sides}
    for side in sides.values():
        side(repeats)  # warm up
    left_out = set()
    for number in range(rounds):
        start = now()
        for variant, side in sides.items():
            if variant not in left_out:
                pause()
                times[variant] += side(repeats)
        yield times
        if number + 1 >= ROUNDS_BEFORE_JUDGING:
            left_out = hopeless(times)
        if now() + (now() - start) > deadline:
            return


class Budget:
    """Divides the time that is left evenly among the works that are left."""

    def __init__(self, minutes, works, now=time.monotonic):
        self.now, self.works = now, works
        self.end = now() + 60 * minutes if minutes else float("inf")

    def begin_work(self):
        """Returns until when the work may compile, and until when it may run."""
        start, share = self.now(), (self.end - self.now()) / max(1, self.works)
        self.works -= 1
        return start + share / 2, start + share

    def is_over(self):
        return self.now() >= self.end
