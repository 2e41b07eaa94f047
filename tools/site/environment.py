"""Finds the environment variables that the library and the programs read."""
import glob
import os
import re

FOLDERS = ("core", "kernels", "autograd", "nn", "data", "distributed", "apps", "tools/ptx")
NAME = r"[A-Z][A-Z0-9]*(?:_[A-Za-z0-9]+)+|RANK|HOME|PATH"


def variables(root):
    """A dict from each variable to the files that read it."""
    found = {}
    for folder in FOLDERS:
        for path in glob.glob(os.path.join(root, folder, "**", "*.*"), recursive=True):
            file = os.path.relpath(path, root)
            if not path.endswith((".cpp", ".h", ".cu", ".cuh")) or file.startswith("tools/ptx/tests/"):
                continue
            with open(path, encoding="utf-8") as source:
                text = source.read()
            names = set(re.findall(r'(?:getenv|variable)\("(\w+)"\)', text))
            names |= set(re.findall(r'"(TAPESTRY_[A-Z0-9_]*[A-Z0-9])"', text))
            if re.search(r"getenv\((?!\")", text):  # the file has a function that reads the variable of a given name
                names |= set(re.findall('"(%s)"' % NAME, text))
                for prefix in re.findall(r'"([A-Z_]+_)"\) \+ name', text):
                    names |= {prefix + name for names in re.findall(r"name\s*:\s*\{([^}]*)\}", text) for name in re.findall(r'"(\w+)"', names)}
            for name in names:
                found.setdefault(name, []).append(file)
    return found


def faults(root, page):
    """What differs between the variables that the code reads and the rows of a page."""
    with open(page, encoding="utf-8") as file:
        described = re.findall(r"^\| (`.*?) \|", file.read(), re.MULTILINE)
    described = [name for cell in described for name in re.findall(r"`(\w+)`", cell)]
    read = variables(root)
    return (["%s is read by %s, but has no row" % (name, ", ".join(files)) for name, files in sorted(read.items()) if name not in described] +
            ["%s has a row, but no code reads it" % name for name in described if name not in read] +
            ["%s has two rows" % name for name in sorted(set(described)) if described.count(name) > 1])
