#!/usr/bin/env python3
"""Builds the site of the documentation and opens it in headless Chromium: site_test.py BUILD_FOLDER

With PICTURES=FOLDER in the environment it writes screenshots there, and keeps the site beside them.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path[:0] = [os.path.join(ROOT, folder) for folder in ("tests/support", "tests/apps", "tools/site")]
import browser  # noqa: E402
import build  # noqa: E402
import environment  # noqa: E402
from page_test import OVERLAPS  # noqa: E402

failures = []


def check(condition, what):
    if not condition:
        failures.append(what)
        print("FAILED: " + what)


def plant(folder, files):
    for name, text in files.items():
        build.write(os.path.join(folder, name), text)


def test_planted(folder):
    """Each check of tools/docs finds a fault."""
    page = "# %s\n\n- **You will learn** a.\n- **You need** b.\n- **Time** 5 minutes.\n"
    exercises = "\n## Exercises\n" + "".join("\n<details><summary>Answer %d</summary>\n" % i for i in (1, 2, 3))
    plant(folder, {
        "docs/README.md": "# All\n\n## 1. One\n1. [a](a.md): is [b](b.md)\n2. [c](c.md)\n\nAlso [d](d.md).\n\n## Reference\n- [b](b.md)\n",
        "docs/a.md": page % "A" + "word " * 3000 + exercises, "docs/b.md": "# B\n", "docs/c.md": page % "C" + "```cpp\n# [none](x)\n```\n", "docs/d.md": "# D\n"})
    parts = build.sections(build.read(folder + "/docs/README.md"))
    check(parts == [("1. One", ["a.md", "b.md", "c.md"]), ("Reference", ["b.md"])], "the lists of docs/README.md are read: %s" % parts)
    faults = build.order_faults(folder, [p for _, pages in parts for p in pages])
    check([f.split(":")[0] for f in faults] == ["docs/README.md does not list d.md", "docs/README.md lists b.md 2 times"], "order: %s" % faults)
    faults = build.top_faults(folder, parts)
    check([f.split(" ")[0] for f in faults] == ["docs/a.md", "docs/b.md:", "docs/c.md:"], "lines at the top, and exercises: %s" % faults)
    plant(folder, {"site/a.html": '<a href="b.html#x">b</a><a href="b.html#y">b</a><a href="#z">z</a><a href="c.html">c</a><img src="https://cdn/x.js"><a href="https://other">o</a>',
                   "site/b.html": '<p id="x">'})
    faults = sorted(build.link_faults(folder + "/site"))
    check([f.split("a.html ")[1] for f in faults] ==
          ["links to #z: the page has no such section", "links to b.html#y: the page has no such section", "links to c.html, which does not exist", "loads https://cdn/x.js"], "links: %s" % faults)
    plant(folder, {"core/a.cpp": 'getenv("TAPESTRY_A"); variable("B_C")\nconst char* f(const char* name) { return getenv(name); }\nf("LONE_NAME")', "e.md": "| `TAPESTRY_A` | a |\n| `TAPESTRY_A`, `GONE` | b |\n"})
    faults = environment.faults(folder, folder + "/e.md")
    check(faults == ["B_C is read by core/a.cpp, but has no row", "LONE_NAME is read by core/a.cpp, but has no row", "GONE has a row, but no code reads it", "TAPESTRY_A has two rows"], "variables: %s" % faults)
    plant(folder, {"old/searchindex.js": "", "docs/reference/environment.md": ""})
    try:
        build.build(folder, folder + "/old", None)
        check(False, "a site with faults is not built")
    except build.Failure as failure:
        check("does not list d.md" in str(failure), "a build says its faults: %s" % failure)
    check(os.path.isfile(folder + "/old/searchindex.js"), "a build that fails leaves the site before")


def reached_headers():
    """The headers that a program gets from tapestry.h and portable.cuh and may include itself."""
    reached, todo = set(), ["tapestry.h", "kernels/cuda/portable.cuh"]
    while todo:
        path = todo.pop()
        if path in reached or not os.path.isfile(os.path.join(ROOT, path)):
            continue
        reached.add(path)
        todo += re.findall(r'#\s*include "tapestry/([^"]+)"', build.read(os.path.join(ROOT, path)))
    return {p for p in reached if "/internal/" not in p and not (p.startswith("kernels/") and p.endswith(".h")) and os.path.basename(os.path.dirname(p)) != "internal"}


def test_reference(site):
    headers = {p for p in reached_headers() if not p.startswith("kernels/") or p in ("kernels/cuda/portable.cuh", "kernels/cuda/launch.cuh")}
    check(len(headers) > 200, "there are %d public headers" % len(headers))
    listed = build.read(site + "/api/headers.html")
    names = build.read(site + "/api/index.html")
    for header in sorted(headers):
        page = os.path.join(site, "api", header + ".html")
        if not os.path.isfile(page) or 'href="%s.html"' % header not in listed:
            check(False, "%s has a page and is listed" % header)
            continue
        text = build.read(page)
        # Types at the margin of the file are those of a namespace.
        source = re.sub(r"namespace (?:\w+::)*(?:detail|internal)\b.*?\n}  // namespace", "", build.read(os.path.join(ROOT, header)), flags=re.DOTALL)
        for kind, name in re.findall(r"^(class|struct|enum class) (?:\[\[\w+\]\] )?(\w+)(?: final)?(?: :[^;{]*)? \{", source, re.MULTILINE):
            check(re.search(r'id="(?:\w+::)*%s"' % name, text), "%s %s of %s has an entry" % (kind, name, header))
            check(">%s</a>" % name in names, "%s is in the list of names" % name)
    for header, name in (("autograd/ops/loss.h", "cross_entropy"), ("nn/layers/linear.h", "nn::Linear"), ("distributed/fsdp/fsdp.h", "distributed::fully_shard")):
        check('id="%s"' % name in build.read(os.path.join(site, "api", header + ".html")), "%s has an entry" % name)
    check("Computes x W^T + b over the last dimension" in build.read(site + "/api/nn/layers/linear.h.html"), "entries have the documentation of the header")


def test_options(site, programs):
    text = build.read(site + "/reference/programs.html")
    for name in build.program_names(ROOT):
        built = os.path.isfile(os.path.join(programs, name))
        section = re.search(r"<h3>%s<.*?(?=<h3>|<h2>|</main>)" % re.escape(name), text, re.DOTALL)
        check(section and ("was not built" not in section.group() if built else "was not built" in section.group()), "%s has its options" % name)
    for option in ["tools/quickstart"] + ["--nproc-per-node"] * os.path.isfile(programs + "/tapestry-run") + ["gpt train<"] * os.path.isfile(programs + "/gpt"):
        check(option in text, "%s is on the page of options" % option)


def test_order(site):
    """Next leads through all pages that docs/README.md lists, and previous leads back."""
    parts = build.sections(build.read(os.path.join(ROOT, "docs/README.md")))
    wanted = [page[:-3] + ".html" for _, pages in parts for page in pages if not page.startswith("..")]
    page, walked, before = wanted[0], [], "index.html"
    while page and len(walked) < 500:
        text = build.read(os.path.join(site, page))
        walked.append(page)
        link = {rel: os.path.normpath(os.path.join(os.path.dirname(page), href)) for rel, href in re.findall(r'<a rel="(prev|next)" href="([^"]*)"', text)}
        check(link.get("prev") == before, "%s follows %s" % (page, before))
        before, page = page, link.get("next")
    check([p for p in walked if p in wanted] == wanted, "next leads through all pages in the order of docs/README.md")
    return wanted


def test_browser(site, pages):
    address = "file://" + site + "/"
    pictures = os.environ.get("PICTURES")
    with browser.Browser(300) as page:
        def wait(script):
            until = time.monotonic() + 30
            while time.monotonic() < until:
                try:
                    if page.run(script):
                        return True
                except RuntimeError:  # another page is being opened
                    pass
                time.sleep(0.01)
            return False

        def open_page(name):  # faster than page.open(), which opens an empty page first
            page.send("Page.navigate", url=address + name)
            check(wait("document.readyState === 'complete' && location.href === '%s'" % (address + name)), "%s opens" % name)

        page.size(1300)
        open_page("index.html")
        page.run("(i => { i.value = 'cross_entropy'; i.form.requestSubmit(); })(document.querySelector('header input'))")
        results = "[...document.querySelectorAll('#search-results li a')].map(a => a.href)"
        wait("document.readyState === 'complete' && ['/loss.h.html', '/tutorials/'].every(part => %s.some(link => link.includes(part)))" % results)
        found = page.run(results)
        check(any("/api/autograd/ops/loss.h.html" in link for link in found), "the search finds a name of the reference: %s" % found[:3])
        check(any("/tutorials/" in link for link in found), "and pages of the course")
        if found:
            page.open(found[0])
            check("cross_entropy" in page.run("document.body.innerText"), "a result leads to its page")
        open_page("search.html?q=nothing_of_that_name")
        check(wait("/did not match/.test(document.body.innerText)"), "the search says that it found nothing")

        open_page("tutorials/which-mode.html")
        papers = set()
        for _ in range(2):
            papers.add(page.run("getComputedStyle(document.body).backgroundColor"))
            page.run("document.getElementById('theme').click()")
        check(len(papers) == 2, "the button changes the theme")
        page.run("document.getElementById('theme').click()")
        chosen = page.run("document.documentElement.dataset.theme")
        open_page("index.html")
        check(page.run("document.documentElement.dataset.theme") == chosen, "another page has the chosen theme")
        page.size(390)
        check(not page.run("document.getElementById('pages').checkVisibility()"), "on a phone, the list of pages is closed")
        page.run("document.getElementById('menu').click()")
        check(page.run("document.getElementById('pages').checkVisibility()"), "its button opens it")

        # The text of the page has a peak that a test measures.
        open_page("reference/memory-calculator.html")
        measured = re.search(r'^([\d.]+) MiB$', build.read(os.path.join(ROOT, "docs/reference/memory-calculator.md")), re.MULTILINE)
        choose = "(all => { for (const [name, value] of Object.entries(all)) { const field = document.querySelector('#memory-calculator [name=' + name + ']'); field.value = value; field.dispatchEvent(new Event('input')); } return (document.getElementById('memory-result').dataset.peak || document.getElementById('memory-result').innerText); })(%s)"
        sizes = {"layers": 4, "width": 256, "words": 512, "tokens": 32, "batch": 8, "precision": "f32", "optimizer": "adamw", "parallel": "single"}
        peak = float(page.run(choose % json.dumps(sizes))) / 2**20
        check(abs(peak / float(measured.group(1)) - 1) < 0.05, "the calculated peak, %.1f MiB, is the measured one" % peak)
        halves = float(page.run(choose % json.dumps({"parallel": "shard=2"}))) / 2**20
        check(0.4 < halves / peak < 0.7, "two shards need about half each: %.1f of %.1f MiB" % (halves, peak))
        check(page.run(choose % json.dumps({"parallel": "pipeline=2,tensor=2"})).count(",") == 1, "a pipeline of two stages has two numbers")
        check("not one of" in page.run(choose % json.dumps({"parallel": "rings=2"})), "an unknown way is refused")

        page.size(1300)
        open_page("tutorials/write-a-model.html")
        answers = "[...document.querySelectorAll('main details')]"
        check(page.run(answers + ".length >= 3 && " + answers + ".every(a => !a.querySelector('p').checkVisibility())"), "answers of exercises are folded")
        page.run("document.querySelectorAll('main details > summary').forEach(s => s.click())")
        check(page.run(answers + ".every(a => a.querySelector('p').checkVisibility())"), "and a click opens them")
        colour = "getComputedStyle(document.querySelector('%s .highlight .mi')).color"
        check(page.run(colour % "main section > div" + " === " + colour % "main details"), "code of answers has the colours of other code")

        looked_at = ["reference/memory-calculator.html", "index.html", "overview.html", "tutorials/which-mode.html", "tutorials/splitting-a-model.html", "reference/environment.html", "api/nn/layers/linear.h.html"]
        for name in looked_at:
            open_page(name)
            for width in (390, 1300):
                page.size(width)
                # Only code and tables may scroll, and the text that they hide lies below what is beside them.
                page.run("document.querySelectorAll('main pre, main table').forEach(e => e.classList.add('scroll'))")
                wide = page.run("[...document.querySelectorAll('#pages, aside')].filter(e => e.scrollWidth > e.clientWidth).map(e => e.tagName)")
                check(not wide, "%s, %d px: %s scrolls sideways" % (name, width, wide))
                for theme in ("light", "dark"):
                    page.run("document.documentElement.dataset.theme = '%s'" % theme)
                    if pictures:
                        page.picture(os.path.join(pictures, "%s-%d-%s.png" % (name.replace("/", "-"), width, theme)))
                page.run("document.querySelectorAll('#pages, aside').forEach(e => { e.style.visibility = 'hidden'; })")
                faults = page.run(OVERLAPS)
                page.run("document.querySelectorAll('#pages, aside').forEach(e => { e.style.visibility = ''; })")
                for fault in faults:
                    check(False, "%s, %d px: %s" % (name, width, fault))
        check(not page.errors, "no script fails: %s" % page.errors[:3])
        # The texts of the other pages, in one page: opening each takes four times as long.
        texts = [(name, re.search(r"<main[^>]*>(.*)</main>", build.read(os.path.join(site, name)), re.DOTALL).group(1).replace("<details>", "<details open>"))
                 for name in pages + ["api/index.html", "api/core/tensor.h.html", "reference/programs.html"] if name not in looked_at]
        for width in (390, 1300):
            page.size(width)
            for name, text in texts:
                wide = page.run("document.querySelector('main').innerHTML = %s; document.documentElement.scrollWidth" % json.dumps(text))
                check(wide <= width, "%s scrolls sideways at %d px" % (name, width))
        outside = {r for r in page.requests if not r.startswith(("file:", "data:", "about:"))}
        check(not outside, "no page asks for another address: %s" % sorted(outside)[:3])
        test_pictures(page)


def test_pictures(page):
    """On a phone, the texts of pictures are 11 pixels high, and none lies on another one or outside."""
    folder = os.path.join(ROOT, "docs/pictures")
    pictures = [(name, build.read(os.path.join(folder, name))) for name in sorted(os.listdir(folder)) if name.endswith(".svg")]
    drawn = [(name, text) for name, text in pictures if "width='480'" in text]  # by tests/pictures
    check(len(drawn) > 10, "%d pictures are drawn for phones" % len(drawn))
    page.open("about:blank")
    page.size(390)
    for name, text in drawn:
        page.run("document.body.style.margin = '0 16px'; document.body.innerHTML = %s; Object.assign(document.querySelector('svg').style, { width: '100%%', height: 'auto' })" % json.dumps(text))
        faults = page.run(OVERLAPS) + page.run("""(() => {
            const svg = document.querySelector('svg'), view = svg.getBoundingClientRect();
            return [...svg.querySelectorAll('text, path')].flatMap(t => {
              const r = t.getBoundingClientRect(), size = parseFloat(getComputedStyle(t).fontSize) * view.width / 480;
              return [[size < 11, 'small'], [r.left < view.left - 0.5 || r.right > view.right + 0.5 || r.bottom > view.bottom + 0.5, 'outside']]
                .filter(([fault]) => fault).map(([, what]) => what + ': ' + (t.textContent || t.getAttribute('d').slice(0, 40))); }); })()""")
        check(not faults, "docs/pictures/%s: %s" % (name, faults[:4]))
    inks = set()
    for theme in ("light", "dark"):
        page.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": theme}])
        inks.add(page.run("getComputedStyle(document.querySelector('text')).fill"))
    check(len(inks) == 2, "pictures follow the theme: %s" % inks)


def main():
    tool = os.path.join(ROOT, "tools/docs")
    bin_folder = os.path.join(os.path.abspath(sys.argv[1]), "bin")
    folder = tempfile.mkdtemp(prefix="tapestry-site-")
    try:
        test_planted(os.path.join(folder, "planted"))
        done = subprocess.run([tool, "--out", folder + "/a b/site", "--programs", bin_folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400, check=False)
        if done.returncode and " missing; install " in done.stdout:
            print("skipped: " + done.stdout.strip())
            return 0 if not failures else 1
        print(done.stdout)
        check(done.returncode == 0, "tools/docs builds the site")
        if done.returncode == 0:
            site = folder + "/a b/site"
            test_reference(site)
            test_options(site, bin_folder)
            pages = test_order(site)
            if browser.find():
                os.rename(site, folder + "/site")  # it works from any folder
                test_browser(folder + "/site", pages)
            else:
                print("Chromium is missing: nothing was opened")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
