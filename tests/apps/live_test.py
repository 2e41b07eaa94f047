#!/usr/bin/env python3
"""Opens the page of --live in headless Chromium during a training: live_test.py PROGRAMS FOLDER.

With PICTURES=FOLDER in the environment it writes screenshots there.
"""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.parse

from page_test import OVERLAPS

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import browser  # noqa: E402

HOSTILE = "</script><img src=x onerror=alert(1)>"
WIDTHS = (390, 768, 1024, 1300)
LIMIT_S = 270  # less than the time limit of a test
end = time.monotonic() + LIMIT_S
failures = []


def check(condition, what):
    if not condition:
        failures.append(what)
        print("FAILED: " + what)


def wait(condition, what):
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.02)


class Training:
    """A program that trains with --live, and the address of its page."""

    def __init__(self, folder, command):
        self.log = os.path.join(folder, "log")
        with open(self.log, "w") as log:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            # With a low priority, so that the browser answers while the training keeps all cores busy.
            self.process = subprocess.Popen(["nice", "-n", "10"] + command, stdout=log, stderr=subprocess.STDOUT, env=environment, start_new_session=True)
        wait(lambda: self.address() or self.process.poll() is not None, "the address is printed")
        self.url = self.address()
        if not self.url:
            raise RuntimeError(self.text())

    def text(self):
        with open(self.log) as log:
            return log.read()

    def address(self):
        found = re.search(r"live page: (http://127\.0\.0\.1:\d+/[0-9a-f]{32}/), and ", self.text())
        return found and found[1]

    def stop(self):
        os.kill(self.process.pid, signal.SIGINT)

    def status(self):
        """The exit status, after the end."""
        return self.process.wait(timeout=max(1, end - time.monotonic()))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def open_page(page, url):
    page.open(url)
    if url.startswith("http"):
        wait(lambda: asked(page) > 0, "the page asks")


def layout(page, url, name, themes):
    pictures = os.environ.get("PICTURES")
    for theme in themes:
        open_page(page, url + "#theme=" + theme)
        page.run("$('numbers').open = true")
        for width in WIDTHS:
            page.size(width)
            for fault in page.run(OVERLAPS):
                check(False, "%s, %s, %d px: %s" % (name, theme, width, fault))
            if pictures and width in (390, 1300):
                page.picture(os.path.join(pictures, "%s-%s-%d.png" % (name, theme, width)), 1)


RESTED = "Number(document.documentElement.dataset.rested || 0)"  # how often a paused page did not ask


def asked(page):
    return page.run("Number(document.documentElement.dataset.asked || 0)")


def hear(page, condition, what):
    """Waits until the page, after another answer of the program, fulfils a condition."""
    before = asked(page)
    wait(lambda: asked(page) > before, "the page asks")
    wait(lambda: page.run(condition), what)


def test_keyboard(page, url):
    page.size(1300)
    open_page(page, url)
    reached = set()
    for _ in range(12):
        page.key("Tab", "Tab", 9)
        reached.add(page.run("document.activeElement.id || document.activeElement.tagName"))
    expected = {"btn-theme", "scrub", "SUMMARY"} | ({"btn-pause"} if url.startswith("http") else set())
    check(expected <= reached, "Tab reaches every control: %s" % sorted(reached))
    page.run("$('scrub').focus()")
    before = page.run("$('courses').textContent")
    for _ in range(8):
        page.key("ArrowLeft", "ArrowLeft", 37)
    chosen = page.run("state.step")
    check(0 <= chosen < page.run("lastStep()"), "the arrow keys choose a step: %s" % chosen)
    check(page.run("location.hash") == "#step=%d" % chosen, "which stands in the address")
    page.key("Home", "Home", 36)  # a point of the curve may be the mean of more than eight steps
    check(page.run("$('courses').textContent") != before, "and the sentences change")
    check(page.run("[...document.querySelectorAll('svg[role=img], img, input, progress')].every(e => e.getAttribute('aria-label') || e.alt)"), "pictures and controls have names")


def test_hostile_readers(training, page):
    """Other programs of the machine, and pages of other sites, get nothing and stop nothing."""
    address = urllib.parse.urlsplit(training.url)

    def status(path, headers, method="GET"):
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
        connection.request(method, path, headers=headers)
        return connection.getresponse().status

    own = {"Host": address.netloc}
    check(status(address.path, own) == 200, "the page is there")
    check(status(address.path, {"Host": "evil.example:%d" % address.port}) == 403, "not under another name")
    check(status(address.path + "live.json", {**own, "Origin": "http://evil.example"}) == 403, "nor for another site")
    check(status(address.path.replace(address.path[1], "g" if address.path[1] != "g" else "h", 1) + "live.json", own) == 404, "nor with another secret")
    check(status("/", own) == 404, "nor without")
    check(status(address.path, own, "POST") == 405, "nor to write")
    held = []
    for i in range(60):  # more than the server keeps
        s = socket.create_connection((address.hostname, address.port), timeout=60)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.sendall([b"GET %s HTTP/1.1\r\nHost: %s\r\n\r\n" % (address.path.encode(), address.netloc.encode()),  # and does not read
                   b"\x16\x03\x01\x02\x00" + os.urandom(200), b"GET ", b""][i % 4])
        held.append(s)
    before = page.run("lastStep()")
    hear(page, "lastStep() > %d && !$('notes').textContent" % before, "the training and the page go on")
    for s in held:
        s.close()


def test_classifier(page, programs, folder):
    run = os.path.join(folder, "run")
    training = [os.path.join(programs, "classifier"), "--live", "--run-dir", run, "--data", "synthetic", "--synthetic-size", "2048",
                "--model", "mlp", "--schedule", "constant", "--epochs", "1000000", "--batch-size", "32", "--workers", "0", "--parallel", "ddp"]
    with Training(folder, [os.path.join(programs, "tapestry-run"), "--nproc-per-node", "2"] + training) as t:
        page.size(1300)
        page.open(t.url)
        hear(page, "LIVE.rows.length === 2 && LIVE.evaluated.length > 1 && SAMPLES.length === 2", "rows, measurements and samples come")
        first = page.run("lastStep()")
        hear(page, "lastStep() > %d" % first, "the page follows the run")
        check(page.run("[...document.querySelectorAll('#ledger tbody th .mode')].map(e => e.textContent).join()") == "rank 0,rank 1", "every rank has a row")
        check(page.run("document.querySelectorAll('#courses svg').length") == 4, "loss, accuracy, throughput and memory")
        check(page.run("document.querySelectorAll('#sample-list img').length") == 2, "pictures")
        check(page.run("[...document.querySelectorAll('#sample-list img')].every(e => e.complete && e.naturalWidth > 100)"), "which can be drawn")
        page.run("$('btn-pause').click()")
        paused = page.run("lastStep()")
        rested = page.run(RESTED)
        wait(lambda: page.run(RESTED) > rested + 1, "the page does not ask")
        check(page.run("lastStep()") == paused, "Pause holds the page")
        page.run("$('btn-pause').click()")
        test_hostile_readers(t, page)
        layout(page, t.url, "running", ("light", "dark"))
        test_keyboard(page, t.url)
        page.open(t.url)
        hear(page, "lastStep() > 0", "a page that is opened later")
        t.stop()
        wait(lambda: page.run("LIVE.state") != "running", "the page hears of the end")
        check("Stopped after step" in page.run("$('answer').textContent"), page.run("$('answer').textContent"))
        check("--resume --run-dir" in page.run("$('notes').textContent"), "and how to go on")
        check(t.status() == 130, "the run stops: %s" % t.text())
        last = page.run("JSON.stringify(LIVE)")
        outside = [r for r in page.requests if not r.startswith((t.url, "about:", "data:"))]
        check(not outside, "requests: %s" % outside)
    check(not page.errors, "scripts fail: %s" % page.errors[:3])

    file = os.path.join(run, "live.html")
    check(os.path.getsize(file) < 900_000, "the file has %d bytes" % os.path.getsize(file))
    layout(page, "file://" + file, "file", ("light",))
    check(page.run("JSON.stringify(LIVE)") == last, "the file has the last state")
    check(page.run("document.querySelectorAll('#sample-list img').length") == 2, "and the samples")
    test_keyboard(page, "file://" + file)


def rank_of(process, rank):
    """The process id of a rank that a launcher started."""
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        try:
            with open("/proc/%d/stat" % pid) as stat, open("/proc/%d/environ" % pid) as environment:
                if int(stat.read().rsplit(")", 1)[1].split()[1]) == process.pid and "RANK=%d" % rank in environment.read().split("\0"):
                    return pid
        except OSError:  # it has ended, or belongs to someone else
            pass
    raise RuntimeError("there is no rank %d" % rank)


def test_failed(page, programs, folder):
    """A rank is killed: the page, and the file that stays, say which."""
    run = os.path.join(folder, "failed")
    with Training(folder, [os.path.join(programs, "tapestry-run"), "--nproc-per-node", "2", os.path.join(programs, "classifier"), "--live",
                           "--run-dir", run, "--data", "synthetic", "--model", "demo", "--epochs", "1000000", "--parallel", "ddp"]) as t:
        page.open(t.url)
        hear(page, "LIVE.rows.length === 2", "the training runs")
        check("All run on " + socket.gethostname() in page.run("$('ranks-text').textContent"), "one host is named once")
        page.run("LIVE.rows[1].host = 'node-2'; showRanks()")
        check(page.run("[...document.querySelectorAll('#ledger tbody .why')].map(e => e.textContent.split(',')[0]).join()") == socket.gethostname() + ",node-2",
              "each of several hosts is named in the row of its rank")
        os.kill(rank_of(t.process, 1), signal.SIGKILL)
        check(t.status() == 137, "the launcher ends: %s" % t.text())
        wait(lambda: page.run("LIVE.state !== 'running' || $('notes').textContent !== ''"), "the page hears of it")
    page.errors.clear()  # requests that nobody answered any more
    page.open("file://" + os.path.join(run, "live.html"))
    check(page.run("LIVE.state") == "failed" and "Failed after step" in page.run("$('answer').textContent"), "the file says that the run failed")
    check("lost its connection to rank 1" in page.run("document.querySelector('#notes .warning').textContent"), page.run("$('notes').textContent"))
    check("rank 1" in page.run("document.querySelector('#notes pre').textContent"), "and where each rank was")
    for fault in page.run(OVERLAPS):
        check(False, "failed: " + fault)


def test_lost(page, programs, folder):
    """A program that is killed: the page says so."""
    run = os.path.join(folder, "killed")
    with Training(folder, [os.path.join(programs, "classifier"), "--live", "--run-dir", run, "--data", "synthetic", "--model", "demo",
                           "--epochs", "1000000", "--parallel", "dp"]) as t:
        page.open(t.url)
        hear(page, "LIVE.evaluated.length > 0", "the training runs")
        t.process.kill()
        wait(lambda: "No answer from the program" in page.run("$('notes').textContent"), "the page says that nobody answers")
        for fault in page.run(OVERLAPS):
            check(False, "without a program: " + fault)
    page.errors.clear()  # the requests that nobody answered
    page.open("file://" + os.path.join(run, "live.html"))
    check("had not ended" in page.run("$('notes').textContent"), "and so does its file")


def test_gpt(page, programs, folder):
    run, text = os.path.join(folder, "gpt"), os.path.join(folder, "text")
    with open(text, "w") as file:
        file.write("the cat sees a bird. the bird sees a cat. " * 200)
    with Training(folder, [os.path.join(programs, "gpt"), "train", "--live", "--run-dir", run, "--text", text, "--layers", "2", "--width", "16",
                           "--heads", "2", "--context", "64", "--batch-size", "2", "--steps", "100000", "--eval-every", "10", "--eval-windows", "4",
                           "--sample", "8", "--sample-prompt", HOSTILE, "--parallel", "dp"]) as t:
        page.open(t.url)
        hear(page, "LIVE.evaluated.length > 2 && SAMPLES.length > 2", "samples come")
        check(page.run("document.querySelector('.texts pre').textContent").startswith(HOSTILE), "a sample is text")
        check(page.run("document.querySelectorAll('img').length") == 0, "and makes no element")
        check(page.run("LIVE.rows.map(r => r.name).join()") == "cpu,cpu:1" or page.run("LIVE.rows.length") == 2, "every device has a row")
        layout(page, t.url, "gpt", ("dark",))
        t.stop()
        check(t.status() == 130, "gpt train stops: %s" % t.text())
    page.open("file://" + os.path.join(run, "live.html"))
    check(page.run("document.querySelectorAll('img').length") == 0 and page.run("document.querySelectorAll('script').length") == 2, "nor in the file")


def test_tune(page, programs, folder):
    gpt, model, run, text = os.path.join(programs, "gpt"), os.path.join(folder, "base"), os.path.join(folder, "tune"), os.path.join(folder, "text")
    subprocess.run([gpt, "train", "--run-dir", model, "--text", text, "--layers", "1", "--width", "16", "--heads", "2", "--context", "32", "--batch-size", "2",
                    "--steps", "1", "--sample", "0"], check=True, stdout=subprocess.DEVNULL, timeout=60)
    with Training(folder, [gpt, "tune", "--live", "--run-dir", run, "--model", os.path.join(model, "model"), "--text", text, "--val", text, "--length", "16", "--batch-size", "2",
                           "--steps", "100000", "--eval-every", "10", "--eval-sequences", "4", "--sample", "4", "--sample-prompt", "the"]) as t:
        page.open(t.url)
        hear(page, "LIVE.evaluated.length > 2 && SAMPLES.length > 2 && LIVE.rows.length === 1", "measurements and samples come")
        check(page.run("$('what').textContent").startswith("gpt tune: ") and "held-out sequences" in page.run("$('answer').textContent"), page.run("$('answer').textContent"))
        t.stop()
        wait(lambda: page.run("LIVE.state") != "running", "the page hears of the end")
        check("gpt tune --resume --run-dir" in page.run("$('notes').textContent"), "and how to go on")
        check(t.status() == 130, "gpt tune stops: %s" % t.text())


def main():
    programs, folder = sys.argv[1:]
    if not browser.find():
        print("skipped: Chromium is missing; install it with: apt-get install chromium")
        return 0
    with browser.Browser(limit_s=LIMIT_S) as page:
        test_classifier(page, programs, folder)
        test_failed(page, programs, folder)
        test_lost(page, programs, folder)
        test_gpt(page, programs, folder)
        test_tune(page, programs, folder)
        check(not page.errors, "scripts fail: %s" % page.errors[:3])
    print("%d failures" % len(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
