"""What a GPU check found: rows, written to a JSON and a Markdown file as they come."""
import datetime
import json
import os
import shutil
import tarfile

# Statuses: passed, failed, measured, no kernel, not run (with the reason in the note), fake (of a dry run); running, and for
# a phase done: what is still running when nothing writes any more did not come to its end.
BAD = ("failed", "running")
NAME = "gpu_check"
PHASE = "the phase itself"


def same_machine(old, new):
    """Whether rows found earlier belong into this report."""
    keys = ("commit", "device", "driver", "dry_run")
    return all(old.get(key) == new.get(key) for key in keys)


class Report:
    """Rows of the phases, kept in `folder` and copied to `also`. Phases that ran earlier on the same machine and commit
    stay."""

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

    def path(self, extension):
        return os.path.join(self.folder, f"{NAME}.{extension}")

    @property
    def rows(self):
        return self.content["rows"]

    def begin(self, phase):
        """Forgets what an earlier run of the phase found."""
        self.content["rows"] = [row for row in self.rows if row["phase"] != phase]
        self.row(phase, PHASE, "running", note="did not come to its end")

    def row(self, phase, name, status, **fields):
        """Adds a row, or replaces the one of this name."""
        when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        row = {"phase": phase, "name": name, "status": status, "when": when, **fields}
        at = [i for i, old in enumerate(self.rows) if (old["phase"], old["name"]) == (phase, name)]
        if at:
            self.rows[at[0]] = row
        else:
            self.rows.append(row)
        self.write()
        return row

    def end(self, phase, seconds):
        self.row(phase, PHASE, "done", seconds=seconds)

    def failed(self, phases):
        """What is bad of these phases; of one that is running, without itself."""
        return [row for row in self.rows if row["phase"] in phases and row["status"] in BAD and row["name"] != PHASE]

    def write(self):
        for extension, text in (("json", json.dumps(self.content, indent=1) + "\n"), ("md", markdown(self.content))):
            with open(self.path(extension) + ".new", "w") as file:
                file.write(text)
            os.replace(self.path(extension) + ".new", self.path(extension))
            if self.also:
                shutil.copy(self.path(extension), self.also)

    def keep(self, file):
        """A log goes where the report goes, into one file with the others: machines may hand back a few files only."""
        if not self.also:
            return
        self.kept = [*(old for old in self.kept if old != file), file]
        archive = os.path.join(self.also, "logs.tar.gz")
        with tarfile.open(archive + ".new", "w:gz") as tar:
            for log in self.kept:
                tar.add(log, os.path.basename(log))
        os.replace(archive + ".new", archive)


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
        lines += ["**Dry run: no GPU was used, and every figure is fake. It shows that the scripts work, nothing else.**",
                  ""]
    lines += ["| | |", "|---|---|"] + [f"| {key} | {cell(value)} |" for key, value in about.items()] + [""]
    for phase in dict.fromkeys(row["phase"] for row in rows):
        of_phase = [row for row in rows if row["phase"] == phase]
        counts = {}
        for row in of_phase:
            counts[row["status"]] = counts.get(row["status"], 0) + 1
        lines += [f"## {phase}: " + ", ".join(f"{n} {status}" for status, n in counts.items()), ""]
        if any("value" in row for row in of_phase):
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
