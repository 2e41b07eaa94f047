"""tools/mutants: plants small bugs in a copy of the library and reports which ones the tests catch."""
import argparse
import fcntl
import json
import os
import signal
import sys
import time

from draw import Drawer, Mutant, apply, identity
from workspace import LIBRARY, PROGRAMS, Failure, Workspace, output_of

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDERS = ("core", "kernels", "autograd", "nn", "data", "distributed")
TRIED = ("caught", "timeout", "survived")  # the other outcomes are drawn again

EPILOG = """A mutant is a copy of the sources in which one line has one small change: another operator or constant, a negated
condition, a statement, lock or check removed. The tests catch a mutant if one of them fails or runs out of time. The script
draws mutants until N have been tried that change the program, builds what each affects in its own copy of the commit, and runs
the tests that can reach it, the nearest first. It never changes your files.

A line is drawn from all lines of .cpp files, and of headers that at most --header-users object files of the library include,
that at least one operator can change. Tests that check the sources or take minutes are not run.

Some mutants change nothing that a test could see: they only cost time, or the changed value is never used. Enter them in the
file of judgements, {"ID": {"verdict": "equivalent", "reason": "..."}}, and run the script again: it replaces them. A verdict
"gap" explains a survivor that tests should catch. Write the test, commit it, and run `tools/mutants --retry`.

Results are added to build/mutants/results.jsonl, one line per mutant. A run that was stopped goes on from there."""


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tools/mutants", description=__doc__.split(": ", 1)[1].capitalize(), epilog=EPILOG,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=40, metavar="N", help="try N mutants (default: 40)")
    parser.add_argument("--commit", default=None, help="mutate this commit (default: that of the saved results, or HEAD)")
    parser.add_argument("--seed", default=None, help="the seed of the draw (default: the hash of the first commit tried)")
    parser.add_argument("--header-users", type=int, default=8, metavar="K",
                        help="draw from headers that at most K object files of the library include (default: 8)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() + 2, metavar="N",
                        help="run N tests at a time; many tests mainly wait (default: the number of cores + 2)")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="test programs, separated by commas")
    parser.add_argument("--work", default=os.path.join(ROOT, "build", "mutants"), help="the work folder (default: build/mutants)")
    parser.add_argument("--judgements", default=os.path.join(ROOT, "tools", "mutation", "judgements.json"),
                        help="the file of judgements (default: tools/mutation/judgements.json)")
    parser.add_argument("--retry", action="store_true", help="try the survivors again with the tests of HEAD, or of --commit")
    parser.add_argument("--list", action="store_true", help="build, and print the first N mutants of the draw without trying them")
    parser.add_argument("--report", action="store_true", help="print the results so far as Markdown")
    options = parser.parse_args(arguments)
    options.programs = options.programs.split(",")
    unknown = sorted(set(options.programs) - set(PROGRAMS))
    if unknown:
        parser.error(f"unknown test program '{unknown[0]}'; the known ones are {', '.join(PROGRAMS)}")
    if options.count < 1 or options.jobs < 1:
        parser.error("--count and --jobs take a whole number from 1")
    return options


def say(text):
    print(f"[tools/mutants] {text}", flush=True)


class Results:
    """The file of results. A mutant that was tried again has several lines, and the last one counts."""

    def __init__(self, path):
        self.path, self.records = path, {}
        if os.path.exists(path):
            with open(path) as file:
                for line in file:
                    try:
                        record = json.loads(line)
                    except ValueError:
                        continue  # a run that was killed left half a line
                    self.records[record["index"]] = record

    def add(self, record):
        self.records[record["index"]] = record
        with open(self.path, "a+") as file:
            file.seek(0)
            whole = file.read()[-1:] in ("\n", "")
            file.write(("" if whole else "\n") + json.dumps(record) + "\n")

    def first(self):
        return next(iter(self.records.values()), None)

    def tried(self, judgements):
        """Returns the mutants that were tested and are not judged equivalent, in the order of the draw."""
        return [record for _, record in sorted(self.records.items())
                if record["outcome"] in TRIED and verdict(record, judgements) != "equivalent"]


def read_judgements(path):
    if not os.path.exists(path):
        return {}
    with open(path) as file:
        return json.load(file)


def verdict(record, judgements):
    return judgements.get(record["id"], {}).get("verdict", "")


def drawer(workspace, options, seed):
    """Returns a Drawer for the eligible files of the copy."""
    sources = {}
    for folder in FOLDERS:
        for path, _, names in os.walk(os.path.join(workspace.tree, folder)):
            for name in names:
                file = os.path.relpath(os.path.join(path, name), workspace.tree)
                users = [name for name in workspace.objects(file) if name.startswith(LIBRARY)]
                if (name.endswith(".cpp") and workspace.objects(file)) or \
                        (name.endswith(".h") and 0 < len(users) <= options.header_users):
                    sources[file] = workspace.read(file)
    return Drawer(sources, seed)


def try_one(workspace, mutant, seconds):
    """Returns the fields of a record that tell what became of the mutant."""
    start = time.monotonic()
    text = apply(workspace.read(mutant.file), mutant)
    outcome, test = workspace.try_mutant(mutant.file, text, seconds) if text is not None else ("gone", "")
    return {"outcome": outcome, "by": test, "seconds": round(time.monotonic() - start, 1)}


def run(options, results):
    judgements = read_judgements(options.judgements)
    first = results.first()
    default = first["commit"] if first and not options.retry else "HEAD"
    commit = output_of(["git", "rev-parse", "--verify", (options.commit or default) + "^{commit}"], ROOT).strip()
    seed = options.seed or (first["seed"] if first else commit)
    if first and (first["seed"] != seed or (first["commit"] != commit and not options.retry)):
        raise Failure(f"{results.path} has the results of commit {first['commit'][:10]} with seed {first['seed'][:10]}; "
                      "remove it to begin again")
    workspace = Workspace(ROOT, options.work, options.jobs, options.programs, say)
    say(f"building {commit[:10]} in {workspace.tree}")
    workspace.prepare(commit)
    if options.retry:
        survivors = [record for record in results.tried(judgements) if record["outcome"] == "survived"]
        say(f"{len(survivors)} survivors are tried again")
        seconds = workspace.baseline(commit, other_commit=True)
        for record in survivors:
            mutant = Mutant(*(record[field] for field in Mutant._fields))
            again = try_one(workspace, mutant, seconds)
            say(f"{record['id']} {mutant.file}:{mutant.line} {again['outcome']} {again['by']}")
            if again["by"] and not workspace.passes(again["by"]):  # it changed since its time was measured
                raise Failure(f"{again['by']} fails without a mutant")
            if again["outcome"] in TRIED:
                results.add({**record, **again, "retried": commit})
        return
    draws = drawer(workspace, options, seed)
    say(f"{len(draws.lines)} lines to draw from")
    if options.list:
        for index in range(options.count):
            mutant = draws.draw(index)
            print(f"{index} {mutant.file}:{mutant.line} {mutant.operator}\n- {mutant.before.strip()}\n+ {mutant.after.strip()}")
        return
    seconds = workspace.baseline(commit)
    say(f"{len(seconds)} tests pass without a mutant")
    index = 0
    while len(results.tried(judgements)) < options.count:
        if index not in results.records:
            mutant = draws.draw(index)
            known = {record["id"] for record in results.records.values()}
            record = {"index": index, "id": identity(mutant), "seed": seed, "commit": commit, **mutant._asdict()}
            record.update({"outcome": "drawn before", "by": "", "seconds": 0.0} if record["id"] in known
                          else try_one(workspace, mutant, seconds))
            results.add(record)
            say(f"{index}: {record['id']} {mutant.file}:{mutant.line} [{mutant.operator}] {record['outcome']} {record['by']} "
                f"({record['seconds']} s)")
        index += 1


def code(line):
    return "`" + line.strip().replace("|", "\\|") + "`"


def report(results, judgements):
    """Returns the results as Markdown."""
    tried = results.tried(judgements)
    caught = [record for record in tried if record["outcome"] != "survived"]
    at_first = [record for record in caught if "retried" not in record]
    records = sorted(results.records.values(), key=lambda record: record["index"])
    left = {name: sum(record["outcome"] == name for record in records) for name in ("invalid", "same code")}
    equivalent = [record for record in records if record["outcome"] in TRIED and verdict(record, judgements) == "equivalent"]
    lines = [f"{len(caught)} of {len(tried)} mutants were caught"
             + (f" ({100 * len(caught) // len(tried)}%), {len(at_first)} of them by the tests of the first run." if tried else "."),
             f"Drawn again: {left['invalid']} that the compiler rejected, {left['same code']} that compiled to the same objects, "
             f"{len(equivalent)} judged equivalent.", ""]
    if caught:
        lines += ["| caught | change | before | after | by |", "|---|---|---|---|---|"]
        lines += [f"| {r['file']}:{r['line']} | {r['operator']} | {code(r['before'])} | {code(r['after'])} | {r['by']}"
                  + (" (time-out)" if r["outcome"] == "timeout" else "") + (" (new)" if "retried" in r else "") + " |"
                  for r in caught]
    rest = [record for record in tried if record["outcome"] == "survived"] + equivalent
    if rest:
        lines += ["", "| survived | id | before | after | verdict |", "|---|---|---|---|---|"]
        for r in rest:
            judgement = judgements.get(r["id"], {"verdict": "not judged", "reason": ""})
            lines.append(f"| {r['file']}:{r['line']} | {r['id']} | {code(r['before'])} | {code(r['after'])} | "
                         f"{judgement['verdict']}: {judgement['reason']} |")
    return "\n".join(lines)


def interrupted(number, _):
    raise SystemExit(128 + number)


def main(arguments):
    options = parse(arguments)
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGHUP, interrupted)
    try:
        os.makedirs(options.work, exist_ok=True)
        results = Results(os.path.join(options.work, "results.jsonl"))
        if options.report:
            print(report(results, read_judgements(options.judgements)))
            return 0
        with open(os.path.join(options.work, ".lock"), "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise Failure(f"another run works in {options.work}: wait until it ends") from None
            run(options, results)
        say(report(results, read_judgements(options.judgements)).split("\n", 1)[0])
    except Failure as failure:
        print(f"[tools/mutants] {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
