"""tools/docs: builds the documentation as a site."""
import argparse
import glob
import html
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.parse

import api
import environment

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
ABOUT = """Builds the documentation as a site: the pages of docs/, the reference of all public names, and the options of all
programs. Open build/docs/index.html; it needs no server and no network."""
EPILOG = """docs/README.md lists all pages, each once, and its lists are the order of the site: to add a page, add a line there. Warnings,
links without a target and variables without a row in docs/reference/environment.md are errors."""
PACKAGES = "doxygen python3-myst-parser"
# The program that the main.cpp of a folder makes, where it is not named as the folder is.
PROGRAM_NAMES = {"compare": "tapestry-compare", "launch": "tapestry-run", "checkpoint": "tapestry-checkpoint", "ptx": "tapestry-ptx"}
LINK = re.compile(r"(!?\[(?:[^\[\]`]|`[^`]*`|\[[^\]]*\])*\]\()([^()\s]+)(\))")
FENCE = re.compile(r"^ *(```+|~~~+)")


class Failure(Exception):
    pass


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def outside_code(text, change):
    """Applies change() to each run of lines that is not in a fenced block."""
    parts, lines, fence = [], [], None
    for line in text.splitlines(keepends=True):
        found = FENCE.match(line)
        if fence is None and found:
            parts.append(change("".join(lines)))
            lines, fence = [line], found.group(1)
        elif fence and line.strip() == fence:
            parts.append("".join(lines) + line)
            lines, fence = [], None
        else:
            lines.append(line)
    return "".join(parts) + (change("".join(lines)) if fence is None else "".join(lines))


def sections(index):
    """The headings of docs/README.md, each with the pages that the list below it names, in order."""
    found = []
    for part in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        items = "\n".join(re.findall(r"^ *(?:-|\d+\.) .*", body, re.MULTILINE))
        found.append((heading.strip(), [m.group(2).split("#")[0] for m in LINK.finditer(items)]))
    return found


def order_faults(root, listed):
    """Pages that docs/README.md does not list once."""
    pages = sorted(os.path.relpath(p, os.path.join(root, "docs")) for p in glob.glob(os.path.join(root, "docs", "**", "*.md"), recursive=True))
    pages.remove("README.md")
    return (["docs/README.md does not list %s: add it to one of the lists" % p for p in pages if p not in listed] +
            ["docs/README.md lists %s %d times: a page has one place" % (p, listed.count(p)) for p in pages if listed.count(p) > 1])


def top_faults(root, parts):
    """Pages of the course that do not say what they teach, what they need and how long they take, or ask fewer than three questions."""
    faults = []
    for page in [page for heading, pages in parts if heading[0].isdigit() or heading == "Side door" for page in pages]:
        path = os.path.join(root, "docs", page)
        if page.startswith("..") or not os.path.isfile(path):
            continue
        text = read(path)
        found = re.match(r"# .*\n\n- \*\*You will learn\*\* .*\n- \*\*You need\*\* .*\n- \*\*Time\*\* (\d+) minutes\b", text)
        prose = []
        outside_code(text, lambda part, prose=prose: prose.append(part) or part)
        words = len(" ".join(prose).split())
        minutes = words / 200 + (text.count("\n") - "".join(prose).count("\n")) / 20
        if not found:
            faults.append("docs/%s: write below its title the lines '- **You will learn** ...', '- **You need** ...' and '- **Time** N minutes'" % page)
        elif re.findall(r"^<details><summary>Answer (\d+)</summary>$", text.partition("\n## Exercises\n")[2], re.MULTILINE)[:3] != ["1", "2", "3"]:
            faults.append("docs/%s: ask three questions under '## Exercises', and fold their answers: <details><summary>Answer 1</summary>" % page)
        elif abs(int(found.group(1)) - minutes) > 5:
            faults.append("docs/%s says %s minutes, but 200 words and 20 lines of code a minute take %.0f" % (page, found.group(1), minutes))
    return faults


class Stage:
    """Copies pages into the folder that Sphinx reads, and all that they link to."""

    def __init__(self, root, folder):
        self.root, self.folder = root, folder
        self.headers = set(api.public_headers(root))
        self.done, self.open, self.faults = set(), [], []

    def name(self, path):
        """The site's name of a file or folder of the repository, without .md, or None."""
        if os.path.isdir(os.path.join(self.root, path)):
            if not os.path.isfile(os.path.join(self.root, path, "README.md")):
                self.open.append(path)
                return "folders/" + path
            path = posixpath.join(path, "README.md")
        if not os.path.isfile(os.path.join(self.root, path)):
            return None
        if path == "docs/README.md":
            return "index"
        if path in self.headers:
            return "api/" + path
        self.open.append(path)
        if path.startswith("docs/") and path.endswith(".md"):
            return path[len("docs/"):-3]
        if path.endswith("README.md") or path == "CHANGELOG.md":
            return {"README.md": "overview", "CHANGELOG.md": "changes"}.get(path) or "folders/" + posixpath.dirname(path)
        return "files/" + path

    def linked(self, page, target):
        """The target of a link of a page, as the site has it."""
        parts = urllib.parse.urlsplit(target)
        if parts.scheme or parts.netloc or not parts.path:
            return target
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), parts.path))
        name = self.name(path)
        if name is None:
            self.faults.append("%s links to %s, which does not exist" % (page, target))
            return target
        here = self.name(page)
        if path.endswith((".svg", ".png")):
            shutil.copyfile(os.path.join(self.root, path), self.made("pictures/" + path.replace("/", "-")))
            return posixpath.relpath("pictures/" + path.replace("/", "-"), posixpath.dirname(here))
        return posixpath.relpath(name + ".md", posixpath.dirname(here)) + ("#" + parts.fragment if parts.fragment else "")

    def made(self, name):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return path

    def page(self, page, extra=""):
        text = read(os.path.join(self.root, page))

        def change(part):
            part = LINK.sub(lambda m: m.group(1) + self.linked(page, m.group(2)) + m.group(3), part)
            return re.sub(r"<picture>.*?</picture>", lambda m: self.picture(page, m.group()), part, flags=re.DOTALL)

        text = outside_code(text, change)
        outside = "" if page.startswith("docs/") else "---\norphan: true\n---\n"
        write(self.made(self.name(page) + ".md"), outside + text + extra)

    def picture(self, page, element):
        """A picture of two themes: classes of the style sheet follow the switch of the page, which <picture> would not."""
        text = html.unescape(re.search(r'alt="([^"]*)"', element).group(1))
        dark = re.search(r'srcset="([^"]*)"', element).group(1)
        light = re.search(r'src="([^"]*)"', element).group(1)
        return "".join("```{image} %s\n:class: only-%s\n:alt: %s\n```\n" % (self.linked(page, path), theme, json.dumps(text, ensure_ascii=False))
                       for theme, path in (("light", light), ("dark", dark)))

    def listing(self, folder):
        """A page for a folder without a README: its files."""
        files = sorted(f for f in os.listdir(os.path.join(self.root, folder)) if os.path.isfile(os.path.join(self.root, folder, f)))
        up = "../" * (folder.count("/") + 1)
        write(self.made("folders/" + folder + ".md"), "---\norphan: true\n---\n# %s\n\n" % folder +
              "".join("- [%s](%s%s.md)\n" % (f, up, self.name(folder + "/" + f)) for f in files))

    def source(self, path):
        language = {".py": "python", ".tsv": "none", ".svg": "xml"}.get(os.path.splitext(path)[1], "cpp")
        write(self.made("files/" + path + ".md"), "---\norphan: true\n---\n# %s\n\n````%s\n%s\n````\n" % (path, language, read(os.path.join(self.root, path))))

    def everything(self, index_extra):
        self.page("docs/README.md", index_extra)
        self.open += ["docs/" + os.path.relpath(p, os.path.join(self.root, "docs"))
                      for p in glob.glob(os.path.join(self.root, "docs", "**", "*.md"), recursive=True)] + ["README.md"]
        while self.open:
            path = self.open.pop()
            if path in self.done or path.endswith((".svg", ".png")) or path == "docs/README.md":
                continue
            self.done.add(path)
            if os.path.isdir(os.path.join(self.root, path)):
                self.listing(path)
            elif path.endswith(".md"):
                self.page(path)
            else:
                self.source(path)


def reference(root, work, stage):
    """Writes a page for each public header, and a list of all names."""
    warnings = api.run_doxygen(root, api.public_headers(root), os.path.join(work, "doxygen"))
    if warnings:
        raise Failure("Doxygen warns about the public headers:\n" + warnings)
    names, headers = [], []
    for header, text, declared in api.pages(root, os.path.join(work, "doxygen")):
        up = "../" * header.count("/")
        write(stage.made("api/" + header + ".md"), "---\norphan: true\n---\n[All names](%sindex.md) · [All headers](%sheaders.md)\n\n" % (up or "", up or "") + text)
        about = re.search(r'^(?!#)(\S.*?[.:])(?= |$)', text.split("```")[0].partition("\n")[2], re.MULTILINE)
        headers.append("- [%s](%s.md)%s" % (api.escaped(header), header, ": " + about.group(1) if about else ""))
        names += [(name, kind, header) for name, kind in declared]
    by_place = {}
    for name, kind, header in names:
        space, _, last = name.rpartition("::")
        by_place.setdefault(space, set()).add((last, kind, header, name))
    text = "# All public names\n\nEach name of the public headers, by namespace. [All headers](headers.md) lists the same by file. `#include \"tapestry/tapestry.h\"` includes all of them.\n\n"
    for space in sorted(by_place):
        rows = sorted(by_place[space], key=lambda n: (n[0].lower(), n))
        text += "## %s\n\n" % (api.escaped("tapestry::" + space) if space else "tapestry")
        text += '<p class="names">%s</p>\n\n' % " · ".join('<a href="%s.html#%s">%s</a>' % (header, api.anchor_of(name), html.escape(last)) for last, _, header, name in rows)
    write(stage.made("api/index.md"), text)
    write(stage.made("api/headers.md"), "# All public headers\n\n" + "\n".join(headers) + "\n")


def output_of(command, cwd):
    done = subprocess.run(command, cwd=cwd, env={**os.environ, "COLUMNS": "100"}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)
    if done.returncode:
        raise Failure("'%s' failed (exit status %d):\n%s" % (" ".join(command), done.returncode, done.stdout))
    return done.stdout


def program_names(root):
    folders = glob.glob(os.path.join(root, "apps", "*", "main.cpp")) + [os.path.join(root, p, "main.cpp") for p in ("distributed/launch", "distributed/checkpoint", "tools/ptx")]
    names = [os.path.basename(os.path.dirname(path)) for path in folders]
    return sorted(PROGRAM_NAMES.get(name, name) for name in names)


def options_page(root, folder):
    """The text of --help of all programs and scripts. Returns the page, and the programs that are not built."""
    text, missing = "# Options of all programs\n\nThis page is what each program prints with `--help`. Defaults that depend on the machine are those of the machine that built this site.\n\n## Programs\n\n", []
    shown = lambda command, path: "### %s\n\n````text\n%s\n````\n\n" % (command, output_of([path] + command.split()[1:] + ["--help"], root).rstrip())  # noqa: E731
    for name in program_names(root):
        path = folder and shutil.which(os.path.join(folder, name))
        if not path:
            missing.append(name)
            text += "### %s\n\nIt was not built when this site was made.\n\n" % name
            continue
        text += shown(name, path)
        if name == "gpt":
            commands = re.search(r"^Commands:\n((?:  .*\n)+)", output_of([path, "--help"], root), re.MULTILINE)
            text += "".join(shown("gpt " + command, path) for command in re.findall(r"^  (\S+)", commands.group(1), re.MULTILINE))
        if name == "tapestry-ptx":
            text += shown("tapestry-ptx run", path)
    text += "## Scripts\n\nA person runs these in a clone of the repository.\n\n"
    for path in sorted(glob.glob(os.path.join(root, "tools", "*"))):
        if os.path.isfile(path) and os.access(path, os.X_OK):
            text += shown("tools/" + os.path.basename(path), path)
    return text, missing


def link_faults(site):
    """Links of the finished pages that lead to no file or to no element, and addresses of other sites that a page would load."""
    files, faults = {}, []
    for path in glob.glob(os.path.join(site, "**", "*.html"), recursive=True):
        text = read(path)
        files[os.path.relpath(path, site)] = (set(re.findall(r'\s(?:id|name)="([^"]+)"', text)), text)
    for file, (_, text) in files.items():
        for kind, link in set(re.findall(r'<\w+[^>]*?\s(href|src)="([^"]*)"', text)):
            parts = urllib.parse.urlsplit(html.unescape(link))
            if parts.scheme or parts.netloc:
                if kind == "src" and parts.scheme != "data":
                    faults.append("%s loads %s" % (file, link))
                continue
            target = posixpath.normpath(posixpath.join(posixpath.dirname(file), urllib.parse.unquote(parts.path))) if parts.path else file
            if not os.path.isfile(os.path.join(site, target)):
                faults.append("%s links to %s, which does not exist" % (file, link))
            elif parts.fragment and target in files and urllib.parse.unquote(parts.fragment) not in files[target][0]:
                faults.append("%s links to %s: the page has no such section" % (file, link))
    return faults


def calculator(root):
    """The script of the page that calculates memory: the planner of tapestry-compare's page, what it measured, and the form."""
    planner = re.findall(r"\bplanner/\w+\.js", read(os.path.join(root, "apps/CMakeLists.txt")))
    parts = [read(os.path.join(root, path)) for path in ["apps/common/page/dom.js"] + ["apps/compare/page/" + name for name in planner]]
    blocks, form = (read(os.path.join(ROOT, "tools/site/calculator", name)) for name in ("blocks.json", "calculator.js"))
    return "(() => {\n'use strict';\n%s\nconst BLOCKS = %s;\n%s})();\n" % ("\n".join(parts), blocks, form)


def build(root, out, programs):
    """Writes the site to `out`. What is there is replaced when the new site is complete, and stays if a Failure is raised."""
    work = tempfile.mkdtemp(prefix="tapestry-docs-")
    try:
        site = os.path.join(work, "site")
        missing = build_site(root, work, site, programs)
        if os.path.isdir(out):
            shutil.rmtree(out)
        os.makedirs(os.path.dirname(out), exist_ok=True)
        shutil.move(site, out)
        return missing
    finally:
        shutil.rmtree(work, ignore_errors=True)


def build_site(root, work, site, programs):
    stage = Stage(root, os.path.join(work, "pages"))
    parts = sections(read(os.path.join(root, "docs/README.md")))
    faults = order_faults(root, [page for _, pages in parts for page in pages]) + top_faults(root, parts) + environment.faults(root, os.path.join(root, "docs/reference/environment.md"))
    if faults:
        raise Failure("\n".join(faults))
    extra = ""
    for heading, pages in parts:
        own = [p for p in pages if p.endswith(".md") and not p.startswith("..")]
        if heading == "Reference":
            own += ["api/index.md", "api/headers.md", "reference/programs.md"]
        extra += "\n```{toctree}\n:hidden:\n:caption: %s\n\n%s\n```\n" % (heading, "\n".join(p[:-3] for p in own))
    stage.everything(extra)
    reference(root, work, stage)
    options, missing = options_page(root, programs)
    write(stage.made("reference/programs.md"), options)
    if stage.faults:
        raise Failure("\n".join(stage.faults))
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", os.path.join(ROOT, "tools/site"), "-d", os.path.join(work, "doctrees"), stage.folder, site]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, check=False)
    except subprocess.TimeoutExpired as late:
        raise Failure("Sphinx did not end within %d seconds, and was stopped; try again when the machine has less to do" % late.timeout) from late
    if done.returncode:
        raise Failure("Sphinx has warnings, which are errors:\n" + done.stdout.replace(stage.folder + "/", ""))
    write(os.path.join(site, "_static/memory-calculator.js"), calculator(root))
    faults = link_faults(site)
    if faults:
        raise Failure("\n".join(faults))
    return missing


def main():
    parser = argparse.ArgumentParser(prog="tools/docs", description=ABOUT, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", metavar="FOLDER", default=os.path.join(ROOT, "build/docs"), help="where the site is written (build/docs); what is there is removed")
    parser.add_argument("--programs", metavar="FOLDER", help="the folder of the built programs (build/ci/bin, or else build/release/bin)")
    arguments = parser.parse_args()
    if not shutil.which("doxygen"):
        sys.exit("[docs] Doxygen is missing; install it with: apt-get install --no-install-recommends " + PACKAGES)
    out = os.path.realpath(arguments.out)
    if os.path.isdir(out) and os.listdir(out) and not os.path.isfile(os.path.join(out, "searchindex.js")):
        sys.exit("[docs] %s is not empty and holds no site; give --out another folder, or remove it" % out)
    programs = arguments.programs or next((p for p in (os.path.join(ROOT, "build", preset, "bin") for preset in ("ci", "release")) if os.path.isdir(p)), None)
    try:
        missing = build(ROOT, out, programs and os.path.abspath(programs))
    except Failure as failure:
        sys.exit("%s\n[docs] the site was not built; the reasons are above" % failure)
    if missing:
        print("[docs] not built, so their options are left out: %s; tools/quickstart --all builds them" % " ".join(missing))
    print("[docs] wrote %s" % os.path.join(out, "index.html"))


if __name__ == "__main__":
    main()
