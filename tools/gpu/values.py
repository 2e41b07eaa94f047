"""The phase `verify` compares every result and every gradient, at realistic sizes, with PyTorch in float64."""
import math

from process import Program

START_LIMIT = 120  # seconds for one answer; the time of the first one includes loading PyTorch


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


def compare(item, ours, reference, peer):
    """Compares Tapestry's results with the reference. Returns (True if they are right, a note). `peer` is PyTorch's
    answer in the dtype of the item; if it is a failure, it is ignored."""
    ours, reference = parse(ours), parse(reference)
    if list(ours) != list(reference):
        return False, f"the results are {', '.join(ours)}, and should be {', '.join(reference)}"
    peer = parse(peer) if peer.startswith("ok") else {}
    wrong, notes = [], []
    for name, expected in reference.items():
        off = distance(ours[name], expected)
        of_peer = distance(peer[name], expected) if name in peer else None
        allowed = item.allowed(of_peer)
        text = f"{name} differs by {off:.2g} of its largest element" + (
            f", PyTorch by {of_peer:.2g}" if of_peer is not None else "")
        notes.append((off, text))
        if not off <= allowed:
            wrong.append(f"{text}; allowed is {allowed:.2g}")
    if wrong:
        return False, f"{len(wrong)} of {len(reference)} are wrong: " + "; ".join(wrong[:6])
    worst = max(notes)[1]
    return True, f"{len(reference)} results are right; the worst: {worst}"


def verify(check, items, ours_command, peer_command):
    """Verifies each item until the time is over. Items with a row from an earlier call are skipped."""
    ours = check.ours(ours_command)
    peer = Program(peer_command, check.deadline)
    for item in items:
        name = item.work
        if check.report.is_final("verify", name):
            continue
        if check.left() < 5:
            check.report.row("verify", name, "left")
            continue
        status, note = verify_one(check, item, ours, peer)
        if check.left() <= 0:  # the time is over, so a missing answer does not mean that the program failed
            status, note = "left", ""
        check.report.row("verify", name, status, note=note)
        print(f"  {name}: {status} {note}", flush=True)
        if status == "failed":  # restart the program: after a GPU error, every CUDA call of a process fails
            ours.close()
    ours.close()
    peer.close()


def verify_one(check, item, ours, peer):
    answer = ours.ask("start " + item.work, START_LIMIT)
    if answer.startswith("none"):
        return "no kernel", answer.removeprefix("none ")
    if not answer.startswith("ok"):
        return "failed", answer.removeprefix("failed ")
    if check.dry:
        return ("fake", "") if all(map(math.isfinite, sum(parse(answer).values(), []))) else ("failed", "not finite")
    reference = peer.ask("reference " + item.work, START_LIMIT)
    if not reference.startswith("ok"):
        return "not run", "there is no reference to compare with. PyTorch: " + reference
    right, note = compare(item, answer, reference, peer.ask("start " + item.work, START_LIMIT))
    return "passed" if right else "failed", note
