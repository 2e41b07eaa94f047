"""The results of tools/gpu_check: rows, written to a JSON and a Markdown file as they come."""
import contextlib
import datetime
import json
import os
import tarfile

# The status of a row is one of these words:
#   passed, failed   the result of a check
#   measured         a time was measured; another column says whether it reaches its goal
#   no kernel        the operation has no kernel for this dtype yet
#   not run          something optional is missing on this machine; the note names it
#   left             the time was over before it could run; the next call runs it
#   running          it has started. If no program is running any more, it was killed; a second call tries it once more.
#   fake             a dry run wrote this row
#   done             the phase has run to its end
BAD = ("failed",)
OPEN = ("left", "running")
NAME = "gpu_check"
PHASE = "the phase itself"


def same_machine(old, new):
    """Returns True if the rows of an earlier call are for the same commit and machine, so that this report keeps
    them."""
    keys = ("commit", "pack", "device", "driver", "dry_run")
    return all(old.get(key) == new.get(key) for key in keys)


class Report:
    """The rows of all phases. They are stored in `folder` and copied to the folder `also`. Rows of earlier calls for
    the same machine and commit are kept."""

    def __init__(self, folder, about, also=None):
        self.folder, self.also, self.kept = folder, also, []
        self.content = {"about": about, "rows": []}
        os.makedirs(folder, exist_ok=True)
        if also:
            os.makedirs(also, exist_ok=True)
        try:
            with open(self.path("json")) as file:
                old = json.load(file)
            if same_machine(old["about"], about):
                self.content["rows"] = old["rows"]
        except (OSError, ValueError, KeyError):
            pass
        for row in self.rows:
            if row["status"] != "running" or row["name"] == PHASE:
                continue
            if row.get("killed"):
                row.update(status="failed", note="two calls ended while it ran; --again repeats it")
            row["killed"] = True

    def path(self, extension):
        return os.path.join(self.folder, f"{NAME}.{extension}")

    @property
    def rows(self):
        return self.content["rows"]

    def find(self, phase, name):
        return next((row for row in self.rows if (row["phase"], row["name"]) == (phase, name)), None)

    def is_final(self, phase, name):
        """Returns True if the row exists and need not be computed again."""
        row = self.find(phase, name)
        return bool(row) and row["status"] not in OPEN

    def wrong(self, item):
        """Returns True if the values of this item, or those of another size of the same name and dtype, are wrong."""
        of = f"{item.name} {item.dtype}"
        rows = [row for row in self.rows if row["name"].startswith("values: ") and row.get("of") == of]
        same = [row for row in rows if row["name"] == "values: " + item.work]
        return any(row["status"] in BAD for row in same or rows)

    def is_done(self, phase):
        return self.is_final(phase, PHASE)

    def forget(self, phase):
        self.content["rows"] = [row for row in self.rows if row["phase"] != phase]

    def begin(self, phase):
        self.row(phase, PHASE, "running", note="has begun, and not ended")

    def row(self, phase, name, status, **fields):
        """Adds a row, or replaces the row with this name, and writes the files."""
        row = self.put(phase, name, status, fields)
        self.write()
        return row

    def leave(self, phase, names):
        """Adds rows for the next call, and writes the files once."""
        for name in names:
            self.put(phase, name, "left", {})
        if names:
            self.write()

    def put(self, phase, name, status, fields):
        when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        if status == "left":
            fields.setdefault("note", "the time was over; call tools/gpu_check again")
        row = {"phase": phase, "name": name, "status": status, "when": when, **fields}
        old = self.find(phase, name) or {}
        ran = ("running", *BAD, "not run")  # the row of a program that was stopped is first one of these, and then left
        if name == PHASE:
            pass
        elif status in ran and old.get("killed"):
            row["killed"] = True
        elif status == "left" and old.get("status") in ran:  # it ran when the seconds of its phase were over
            if old.get("killed"):
                row.update(status="failed", note="the time of two calls was over while it ran; --again repeats it")
            else:
                row["killed"] = True
        at = [i for i, old in enumerate(self.rows) if (old["phase"], old["name"]) == (phase, name)]
        if at:
            self.rows[at[0]] = row
        else:
            self.rows.append(row)
        return row

    def end(self, phase, seconds):
        """Ends the phase: its status becomes `left` if one of its rows is unfinished, and `done` otherwise."""
        left = any(row["status"] in OPEN for row in self.rows if row["phase"] == phase and row["name"] != PHASE)
        self.row(phase, PHASE, "left" if left else "done", seconds=seconds)

    def failed(self, phases):
        return [row for row in self.rows if row["phase"] in phases and row["status"] in BAD]

    def left(self, phases):
        """Returns the unfinished rows of these phases. A later call has to run them."""
        return [row for row in self.rows if row["phase"] in phases and row["status"] in OPEN]

    def write(self):
        self.write_files(NAME, self.content)

    def summarize(self, counted, phase):
        """Writes gpu_first.json and .md: how many rows of the phases `counted` passed, those that failed, and the rows of
        `phase` without their single times."""
        rows = []
        for name in counted:
            of_phase = [row for row in self.rows if row["phase"] == name and row["name"] != PHASE]
            rows += [{"phase": name, "name": f"{n} rows", "status": status, "count": n}
                     for status, n in counts(of_phase).items() if status not in BAD]
            rows += [row for row in of_phase if row["status"] in BAD]
        rows += [{key: value for key, value in row.items() if key != "times"} for row in self.rows
                 if row["phase"] == phase and row["name"] != PHASE]
        self.write_files("gpu_first", {"about": self.content["about"], "rows": rows})

    def write_files(self, name, content):
        for extension, text in (("json", json.dumps(content, indent=1) + "\n"), ("md", markdown(content))):
            for folder in filter(None, (self.folder, self.also)):
                path = os.path.join(folder, f"{name}.{extension}")
                with open(removed(path + ".new"), "x") as file:
                    file.write(text)
                os.replace(path + ".new", path)

    def keep(self, file):
        """Adds a log file to the archive logs.tar.gz in the folder `also`. All logs are in one archive, because some
        machines return only a few files."""
        if not self.also or not os.path.exists(file):
            return
        self.kept = [*(old for old in self.kept if old != file), file]
        archive = os.path.join(self.also, "logs.tar.gz")
        with tarfile.open(removed(archive + ".new"), "x:gz") as tar:
            for log in self.kept:
                tar.add(log, os.path.basename(log))
        os.replace(archive + ".new", archive)


def removed(path):
    """Removes what a killed run left at `path`, and returns `path`. Mode "x" then creates the file, and so never
    writes through a link that someone has planted there."""
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)
    return path


def counts(rows):
    """Returns how many rows have each status."""
    found = {}
    for row in rows:
        found[row["status"]] = found.get(row["status"], 0) + row.get("count", 1)
    return found


def cell(value):
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def goal_text(row):
    if "goal" not in row:
        return ""
    if row.get("ratio") is None:
        return f"{row['better']} {row['goal']}"
    return f"{row['better']} {row['goal']}: {'reached' if row['reached'] else 'NOT reached'}"


def markdown(report):
    about, rows = report["about"], report["rows"]
    lines = [f"# GPU check: {about['device']}", ""]
    if about["dry_run"]:
        lines += ["**Dry run: no GPU was used, and every figure is fake. It shows only that the scripts work.**", ""]
    lines += ["| | |", "|---|---|"] + [f"| {key} | {cell(value)} |" for key, value in about.items()] + [""]
    for phase in dict.fromkeys(row["phase"] for row in rows):
        of_phase = [row for row in rows if row["phase"] == phase]
        lines += [f"## {phase}: " + (", ".join(f"{n} {status}" for status, n in
                                              counts(row for row in of_phase if row["name"] != PHASE).items())
                  or "nothing yet"), ""]
        if any("value" in row or "ratio" in row for row in of_phase):
            lines += ["| what | status | Tapestry | peer | ratio | goal | note |", "|---|---|---|---|---|---|---|"]
            for row in of_phase:
                value = (f"{cell(row['value'])} {row['unit']}" if "value" in row else
                         f"took {cell(row['seconds'])} s" if "seconds" in row else "")
                peer = f"{cell(row['peer'])} {row['unit']}, {row['peer_name']}" if "peer" in row else ""
                ratio = cell(row["ratio"]) if row.get("ratio") is not None else ""
                lines.append(f"| {cell(row['name'])} | {row['status']} | {value} | {cell(peer)} | {ratio} | "
                             f"{goal_text(row)} | {cell(row.get('note', ''))} |")
        else:
            lines += ["| what | status | seconds | note |", "|---|---|---|---|"]
            lines += [f"| {cell(row['name'])} | {row['status']} | {cell(row.get('seconds', ''))} | "
                      f"{cell(row.get('note', ''))} |" for row in of_phase]
        lines.append("")
    return "\n".join(lines)
