"""Compares results and gradients, at realistic sizes, with PyTorch in float64. Without PyTorch, Tapestry's kernels for CPUs
compute what they are compared with."""
import concurrent.futures
import math

OURS_LIMIT = 30  # seconds for one answer of Tapestry; the first one starts the GPU
PEER_LIMIT = 60  # seconds for one answer of PyTorch, whose first one loads it, of the CPU, or of a whole step
LEAST = 5  # seconds that must be left for an item to begin


def parse(answer):
    """Parses an answer such as `ok y: 1 2 3 | dx: 4 5 6` into a dict of results by name."""
    parts = (part.partition(":") for part in answer.removeprefix("ok").split(" | "))
    return {name.strip(): [float(number) for number in numbers.split()] for name, _, numbers in parts}


def distance(found, reference):
    """Returns the largest difference divided by the largest element of the reference. It is infinite if a difference is
    NaN or infinite, or if the lengths differ."""
    if len(found) != len(reference) or not reference:
        return math.inf
    scale = max(abs(x) for x in reference) or 1.0
    differences = [abs(x - y) / scale for x, y in zip(found, reference)]
    return max(differences) if all(math.isfinite(d) for d in differences) else math.inf


def compare(item, ours, reference, peer="", by_cpu=False):
    """Compares Tapestry's results with the reference. Returns (True if they are right, a note). `peer` is PyTorch's
    answer in the dtype of the item; if it is a failure, it is ignored. A reference of Tapestry's CPU kernels is in that
    dtype too, so the tolerance is twice as large, and for a whole step the largest one."""
    ours, reference = parse(ours), parse(reference)
    if list(ours) != list(reference):
        return False, f"the results are {', '.join(ours)}, and should be {', '.join(reference)}"
    peer = parse(peer) if peer.startswith("ok") else {}
    wrong, notes = [], []
    for name, expected in reference.items():
        off = distance(ours[name], expected)
        of_peer = distance(peer[name], expected) if name in peer else None
        allowed = 2 * item.allowed(math.inf) if by_cpu else item.allowed(of_peer)
        text = f"{name} differs by {off:.2g} of its largest element" + (
            f", PyTorch by {of_peer:.2g}" if of_peer is not None else "")
        notes.append((off, text))
        if not off <= allowed:
            wrong.append(f"{text}; allowed is {allowed:.2g}")
    if wrong:
        return False, f"{len(wrong)} of {len(reference)} are wrong: " + "; ".join(wrong[:6])
    worst = max(notes)[1]
    return True, f"{len(reference)} results are right; the worst: {worst}"


def limit_of(item):
    """Returns the seconds that Tapestry has for its first answer about an item."""
    return PEER_LIMIT if item.kind == "step" else OURS_LIMIT


def verify(check, phase, items):
    """Compares the values of each item until the time is over. Items with a row from an earlier call are skipped."""
    left = []
    for item in items:
        name = "values: " + item.work
        if check.report.is_final(phase, name):
            continue
        if check.left() < LEAST:
            left.append(name)
            continue
        check.report.row(phase, name, "running")
        status, note = verify_one(check, item)
        if check.left() <= 0:  # the time is over, so a missing answer does not mean that the program failed
            status, note = "left", ""
        check.report.row(phase, name, status, note=note, of=f"{item.name} {item.dtype}")
        print(f"  {name}: {status} {note}", flush=True)
        if status == "failed":  # restart the program: after a GPU error, every CUDA call of a process fails
            check.ours.close()
    check.report.leave(phase, left)


def verify_one(check, item):
    if missing := check.lacks(item):
        return "not run", f"{missing} is not available"
    if check.dry == "cpu":
        answer = check.ours.ask("start " + item.work, limit_of(item))
        finite = answer.startswith("ok") and all(map(math.isfinite, sum(parse(answer).values(), [])))
        return ("no kernel", answer) if answer.startswith("none") else ("fake", "") if finite else ("failed", answer)
    with concurrent.futures.ThreadPoolExecutor() as pool:  # both compute at the same time
        answer = pool.submit(check.ours.ask, "start " + item.work, limit_of(item))
        reference = pool.submit(check.peer.ask, "reference " + item.work, PEER_LIMIT)
        answer, reference = answer.result(), reference.result()
    if answer.startswith("none"):
        return "no kernel", answer.removeprefix("none ")
    if not answer.startswith("ok"):
        return "failed", answer.removeprefix("failed ")
    if reference.startswith("ok"):
        # A whole step may differ as much as PyTorch's does.
        peer = check.peer.ask("start " + item.work, PEER_LIMIT) if item.kind == "step" else ""
        right, note = compare(item, answer, reference, peer)
    else:
        cpu = check.cpu.ask("start " + item.work, PEER_LIMIT)
        if not cpu.startswith("ok"):
            return "not run", f"there is nothing to compare with. PyTorch: {reference}; the CPU: {cpu}"
        right, note = compare(item, answer, cpu, by_cpu=True)
        note += "; compared with Tapestry on the CPU, because PyTorch says: " + reference.removeprefix("failed ")
    return "passed" if right else "failed", note
