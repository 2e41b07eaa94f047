#!/usr/bin/env python3
"""Opens pages of tapestry-compare in headless Chromium: page_test.py FOLDER, written by compare_page_test.cpp.

page.html    modes of all states, one with a hostile name     noisy.html   nothing is decided
limited.html the same, and devices hold 22 MiB
result.json  the JSON of page.html                            empty.html   every mode failed
cases.json   predictions of the planner, for its twin in the page
With PICTURES=FOLDER in the environment it writes screenshots there.
"""
import json
import math
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import browser  # noqa: E402

HOSTILE = "</script><img src=x onerror=alert(1)>"

# Boxes of text that overlap others, stick out of the page, or are cut. Of a picture's text too.
OVERLAPS = r"""(() => {
  const seen = [], faults = [], style = new Map();
  const hidden = el => { for (let e = el; e; e = e.parentElement) {
      if (!style.has(e)) { const s = getComputedStyle(e); style.set(e, s.display === 'none' || s.visibility === 'hidden' || s.clipPath !== 'none' && s.position === 'absolute' && e.clientWidth <= 1 || e.tagName === 'TITLE' || e.tagName === 'OPTION'); }
      if (style.get(e)) return true;
      if (e.tagName === 'DETAILS' && !e.open && !el.closest('summary')) return true; }
    return false; };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let n; (n = walk.nextNode());) {
    const el = n.parentElement;
    if (!n.data.trim() || /^(SCRIPT|STYLE|NOSCRIPT)$/.test(el.tagName) || hidden(el) || el.closest('.skip')) continue;
    const range = document.createRange();
    range.selectNodeContents(n);
    for (const r of range.getClientRects()) {
      if (r.width < 1 || r.height < 1) continue;
      if (!el.closest('.scroll') && (r.left < -0.5 || r.right > innerWidth + 0.5)) faults.push('outside: ' + n.data.slice(0, 60) + ' ' + r.left.toFixed(0) + '..' + r.right.toFixed(0));
      // A line's box is higher than its letters.
      const inset = r.height * 0.2;
      seen.push({ x0: r.left + 1, x1: r.right - 1, y0: r.top + inset, y1: r.bottom - inset, text: n.data.trim(), node: n });
    }
    const box = el.closest('svg') ? null : el;
    if (box && getComputedStyle(box).overflowX === 'hidden' && box.scrollWidth > box.clientWidth + 1) faults.push('cut: ' + n.data.slice(0, 60));
    if (parseFloat(getComputedStyle(el).fontSize) < 10.5) faults.push('small: ' + n.data.slice(0, 60));
  }
  for (const svg of document.querySelectorAll('svg text')) {
    const r = svg.getBoundingClientRect();
    if (r.width && (r.left < -0.5 || r.right > innerWidth + 0.5)) faults.push('outside: ' + svg.textContent);
  }
  seen.sort((a, b) => a.y0 - b.y0);
  for (let i = 0; i < seen.length; ++i) for (let k = i + 1; k < seen.length && seen[k].y0 < seen[i].y1; ++k) {
    const a = seen[i], b = seen[k];
    if (a.node !== b.node && Math.min(a.x1, b.x1) - Math.max(a.x0, b.x0) > 0.5 && Math.min(a.y1, b.y1) - Math.max(a.y0, b.y0) > 0.5) faults.push('overlap: ' + a.text.slice(0, 50) + ' | ' + b.text.slice(0, 50));
  }
  if (document.documentElement.scrollWidth > innerWidth) faults.push('the page scrolls sideways: ' + document.documentElement.scrollWidth + ' > ' + innerWidth);
  return [...new Set(faults)];
})()"""

failures = []


def check(condition, what):
    if not condition:
        failures.append(what)
        print("FAILED: " + what)


def changed_page(folder, name, change):
    """A copy of page.html whose data change() has changed; its address."""
    with open(os.path.join(folder, "page.html"), encoding="utf-8") as file:
        before, data, after = re.fullmatch(r'(.*id="data">)(.*?)(</script>.*)', file.read(), re.S).groups()
    data = json.loads(data)
    change(data)
    with open(os.path.join(folder, name + ".html"), "w", encoding="utf-8") as file:
        file.write(before + json.dumps(data).replace("<", "\\u003c") + after)
    return "file://" + os.path.join(folder, name + ".html")


def set_range(page, name, value):
    page.run("(e => { e.value = %s; e.dispatchEvent(new Event('input')); })($('%s'))" % (json.dumps(str(value)), name))


def sentence(pieces):
    return "".join(p if isinstance(p, str) else p.get("mode", p.get("strong")) for p in pieces)


def test_layout(page, url, name):
    pictures = os.environ.get("PICTURES")
    for theme in ("light", "dark"):
        page.open(url + "#theme=" + theme)
        for width in (390, 768, 1024, 1300):
            page.size(width)
            for limit in ("max", "min", "mid") if theme == "light" else ("max",):
                if page.run("!!$('limit')"):
                    page.run("(e => { e.value = '%s' === 'mid' ? (Number(e.min) + Number(e.max)) / 2 : e.%s; e.dispatchEvent(new Event('input')); })($('limit'))" %
                             (limit, limit if limit != "mid" else "max"))
                for fault in page.run(OVERLAPS):
                    check(False, "%s, %s, %d px, limit %s: %s" % (name, theme, width, limit, fault))
                if limit == "max" and width in (390, 1300) and pictures:
                    page.picture(os.path.join(pictures, "%s-%s-%d.png" % (name, theme, width)), 1)


def test_widths(page, name):
    for width in (390, 768, 1024, 1300):
        page.size(width)
        for fault in page.run(OVERLAPS):
            check(False, "%s, %d px: %s" % (name, width, fault))


def test_answers(page, url, result):
    page.size(1300)
    page.open(url)
    check(page.run("$('answer').textContent") == result["answer"]["headline"], "the headline is that of the JSON")
    check(page.run("$('lead').textContent") == result["answer"]["lead"], "so is the sentence below it")
    check([n.strip() for n in page.run("[...document.querySelectorAll('#notes p')].map(e => e.textContent)")] == result["answer"]["notes"], "and the notes")
    rows = page.run("[...document.querySelectorAll('#ledger tbody th')].map(e => e.firstChild.textContent)")
    places = [p["name"] for p in result["answers"][-1]["places"]]
    check(rows[:len(places)] == places, "rows are in the order of the answer: %s" % rows)
    check(len(rows) == len(result["modes"]), "failed modes keep their row")
    check(page.run("document.querySelectorAll('#ledger .dot').length") ==
          sum(len(m["rounds"]) for m in result["modes"] if m["status"] == "ok"), "each round is a dot")
    for answer in result["answers"][1:-1]:  # the slider answers anew
        mib = -(-answer["limit_bytes"] // (1 << 20))
        page.run("state.limit = %d; update('limit')" % mib)
        expected = next(a for a in reversed(result["answers"]) if (a["limit_bytes"] or 1 << 60) <= mib << 20)
        headline = re.sub("^Within .* MiB a device", "Within %d MiB a device" % mib, sentence(expected["headline"]))
        check(page.run("$('answer').textContent") == headline, "the answer within %d MiB: %s" % (mib, page.run("$('answer').textContent")))
        shown = page.run("[...document.querySelectorAll('#ledger tbody tr:not(.over):not(.bad) th')].map(e => e.firstChild.textContent)")
        check(shown == [p["name"] for p in expected["places"]], "rows within %d MiB" % mib)
    check("limit=" in page.run("location.hash"), "the limit stands in the address")


def test_state(page, url):
    page.open(url + "#limit=20&t=3&b=single&n=2&nonsense=%E0%A4%A&micro=abc")
    check(page.run("[state.limit, state.b, state.n].join()") == "20,single,2", "the address sets the state")
    before = page.run("$('answer').textContent + $('figB').textContent")
    page.open(url + "#limit=20&t=3&b=single&n=2")
    check(page.run("$('answer').textContent + $('figB').textContent") == before, "a link shows the same page")
    page.open(url + "#a=" + "%3Cimg%3E" + "&theme=evil&limit=-5&n=3")
    check(page.run("state.theme") == "" and page.run("state.limit") == 0, "values out of range are ignored")


def test_memory(page, url):
    page.open(url)
    check(page.run("$('answer').textContent").startswith("Within 22 MiB a device"), "--memory sets the slider: %s" % page.run("$('answer').textContent"))
    check(page.run("document.title") == page.run("$('answer').textContent"), "and the title")
    check(page.run("$('limit-text').textContent") == "22 MiB", "which says so")
    page.run("(e => { e.value = e.max; e.dispatchEvent(new Event('input')); })($('limit'))")
    check("limit=0" in page.run("location.hash"), "no limit is a choice, too")


def test_places(page, url, result):
    page.open(url)
    modes = [m for m in result["modes"] if m["status"] == "ok" and m["name"] != "single"]
    check(page.run("document.querySelectorAll('#cards .card').length") == len(modes), "a card a mode")
    check(page.run("document.querySelectorAll('#cards path[stroke]').length") == sum(len(m["traffic"]) for m in modes), "an arrow for each pair of devices")
    rows = page.run("[...document.querySelectorAll('#parts table')].map(t => t.tBodies[0].rows.length)")
    check(rows == [sum(len(m["holdings"]) for m in modes), sum(len(m["traffic"]) for m in modes)], "parts and messages as tables: %s" % rows)
    cards = page.run("[...document.querySelectorAll('#cards .card p')].map(e => e.textContent)")
    check(all(("Changes %d line" % m["changed_lines"]) in text and m["changed_lines"] == sum(c[0] == "+" for c in m["changes"])
              for m, text in zip(sorted(modes, key=lambda m: m["step_ms"]), cards)), "how many lines a mode changes: %s" % cards)
    check(page.run("[...document.querySelectorAll('#changes pre')].map(e => [...e.children].map(c => c.textContent))") == [m["changes"] for m in sorted(modes, key=lambda m: m["step_ms"])], "and which")
    titles = page.run("[...$('figA').querySelectorAll('title')].map(e => e.textContent)")
    check(any(t.startswith("rank 0: bucket 3, 0.4 MiB along replicate, ") for t in titles), "a span says what it moves: %s" % titles)
    page.run("state.t = 0.6 * modeNamed(state.a).step_ms; showMoment()")
    check("all devices: backward 0, and behind it bucket 3, 0.4 MiB along replicate. " in page.run("$('readA').textContent"), "and so does the sentence: %s" % page.run("$('readA').textContent"))
    said = page.run("[{ name: 'wait for fsdp 3 all_gather', subject: { block: 'fc1', bucket: null, bytes: 2048, axis: 'shard' } }, { name: 'fc1 all_gather', subject: { block: 'fc1', bucket: null, bytes: 3 << 20, axis: 'shard' } }, { name: 'forward 1', subject: { block: null, bucket: null, bytes: null, axis: null } }].map(saidOf)")
    check(said == ["wait for fsdp 3 all_gather, block fc1, 2.0 KiB along shard", "fc1 all_gather, 3.0 MiB along shard", "forward 1"], "blocks are named once: %s" % said)
    check(page.run("document.querySelectorAll('#figA .dim').length") == 0, "all spans are drawn alike")
    page.run("$('path').click()")
    critical = page.run("spansOf(modeNamed(state.a)).filter(s => s.critical).length")
    check(0 < critical < page.run("spansOf(modeNamed(state.a)).length"), "some spans are critical: %d" % critical)
    check(page.run("document.querySelectorAll('#figA .dim').length") > 0 and "path=1" in page.run("location.hash"), "the critical path dims the others")


def mesh(text, step_ms, memory_mib, idle_ms, **exposed_ms):
    sizes = dict(axis.rpartition("=")[::2] for axis in text.split(","))
    work = step_ms - idle_ms - sum(exposed_ms.values())
    return {"mesh": text, "step_ms": step_ms, "peak_bytes": memory_mib << 20, "idle_ms": idle_ms, "bubble_ms": idle_ms, "exposed_comm_ms": sum(exposed_ms.values()),
            "forward_ms": 0.25 * work, "backward_ms": 0.625 * work, "update_ms": 0.125 * work, "why": "%g ms bubble" % idle_ms,
            "axes": [{"axis": axis, "size": int(sizes.get(axis, 1)), "bytes_sent": 3 << 20, "exposed_ms": x} for axis, x in exposed_ms.items()]}


def test_sweep(page, url, folder):
    """The meshes of a number of devices, fastest first, and those that do not fit into the memory at the end."""
    page.open(url)
    check(page.run("$('sweep')") is None, "without a sweep there is no section")
    meshes = [mesh("pipeline=2,replicate=4", 12.5, 25, 1, pipeline=0.5, replicate=3), mesh("replicate=2,shard=4", 12.75, 15, 0, replicate=0.5, shard=3),
              mesh("shard=8", 14, 12, 0, shard=4), *[mesh("replicate=%d" % n, 30 + n, 60, 0, replicate=1) for n in range(3, 12)],
              mesh(HOSTILE + "=8", 400, 11, 100, **{HOSTILE: 50})]
    changed = changed_page(folder, "sweep", lambda data: data.update(sweep={"devices": 8, "rows": meshes}))
    page.open(changed)
    rows, answer = "[...document.querySelectorAll('#sweeptable tbody tr')].map(r => [r.cells[0].textContent, r.cells[1].firstChild.textContent].join(' '))", "$('sweepanswer').textContent"
    check(page.run(rows)[:4] == ["1 pipeline=2,replicate=4", "2 replicate=2,shard=4", "3 shard=8", "4 replicate=3"], "fastest first: %s" % page.run(rows))
    check(len(page.run(rows)) == 12 and page.run("$('sweep-note').textContent").startswith("1 more mesh is slower. "), "twelve of thirteen are shown")
    check(page.run(answer) == "Of 13 meshes of 8 devices, pipeline=2,replicate=4 is predicted to be fastest: 12.5 ms a step, 8.0\u00d7 one device. "
          "replicate=2,shard=4 would take 2% longer.", page.run(answer))
    widths = page.run("[...document.querySelectorAll('#sweeptable tbody tr:first-child .segs i')].map(e => parseFloat(e.style.width))")
    check(len(widths) == 6 and all(abs(w / sum(widths) - part / 12.5) < 1e-3 for w, part in zip(widths, [2, 5, 1, 0.5, 3, 1])), "a bar has work, each axis and the bubble: %s" % widths)
    page.run("state.limit = 20; update('limit')")
    check(page.run(rows)[:4] == ["1 replicate=2,shard=4", "2 shard=8", "3 %s=8" % HOSTILE, "\u2013 pipeline=2,replicate=4"], "the memory of a device decides: %s" % page.run(rows))
    check(page.run(answer).startswith("Within 20 MiB a device, of 13 meshes of 8 devices, replicate=2,shard=4"), page.run(answer))
    check(page.run("document.querySelectorAll('img').length") == 0, "names are text")
    test_widths(page, "sweep")
    page.run("state.limit = 5; update('limit')")
    check(page.run(answer) == "Within 5 MiB a device, of 13 meshes of 8 devices, none fits. %s=8 needs least, 11 MiB." % HOSTILE, page.run(answer))


def test_network(page, folder):
    """The sweep says what is assumed of hosts and links."""
    for i, (assumed, said) in enumerate([
            ({"devices_per_host": 4, "links_per_host": 1, "link": None, "cross": {"latency_us": None, "bandwidth_gbs": 0.1}}, " 4 devices a host; between hosts 0.1 GB/s, as given."),
            ({"devices_per_host": 1, "links_per_host": 2, "link": {"latency_us": 0, "bandwidth_gbs": 5}, "cross": None},
             " A link has 0 \u00b5s and 5 GB/s, as given. 1 device a host, with 2 links; between hosts the same links as inside one."),
            ({"devices_per_host": 8, "links_per_host": 1, "link": None, "cross": None}, "memory of its own.")]):
        page.open(changed_page(folder, "network%d" % i, lambda data: data.update(sweep={"devices": 8, "rows": [mesh("shard=8", 14, 12, 0, shard=4)], **assumed})))
        note = page.run("$('sweep-note').textContent")
        check(note.endswith(said), note)


def test_axes(page, folder):
    """A mode of several axes: its arrows have the colours of their axes."""
    def change(data):
        m = next(m for m in data["modes"] if m["name"] == "ddp")
        m["traffic"] = [[0, 2, 3 << 18, "replicate", "gradients"], [2, 0, 3 << 18, "replicate", "gradients"], [0, 1, 1 << 20, "shard", "parameters", "forward"],
                        [0, 1, 1 << 20, "shard", "gradients", "backward"], [0, 2, 1 << 20, "pipeline", "activations"], [0, 3, 1 << 20, "other", "x"]]
        data["predictions"] = [{"name": "ddp", "axes": [{"axis": "shard", "bytes_sent": 3 << 20}]}]
        data["modes"] = [x for x in data["modes"] if x["name"] in ("single", "ddp")]
        for answer in data["answers"]:
            answer["places"] = [p for p in answer["places"] if p["name"] in ("single", "ddp")]

    page.open(changed_page(folder, "axes", change))
    colors = page.run("[...document.querySelectorAll('#cards path[stroke]')].map(e => e.getAttribute('stroke'))")
    check(len(colors) == 5 and len(set(colors)) == 4 and len(set(page.run("[...document.querySelectorAll('#cards path[stroke]')].map(e => e.getAttribute('d'))"))) == 5, "an arrow for each pair of devices and axis, a colour for each axis: %s" % colors)
    check(page.run("document.querySelector('.card .axistag').closest('.facts').textContent") == "replicate 1.5 MiBshard 2.0 MiB, predicted 3.0pipeline 1.0 MiBother 1.0 MiB",
          "what each axis sends: %s" % page.run("document.querySelector('.card').textContent"))
    titles = page.run("[...document.querySelectorAll('#cards path[stroke] title')].map(e => e.textContent)")
    check("device 0 to 1, axis shard: parameters 1.0 MiB in forward, gradients 1.0 MiB in backward" in titles, "the kinds and phases: %s" % titles)
    check(page.run("$('legend3').textContent").endswith("sent along replicatesent along shardsent along pipelinesent along other"), "the legend names them")
    test_widths(page, "axes")


def test_keyboard(page, url):
    page.open(url)
    reached = set()
    for _ in range(80):
        page.key("Tab", "Tab", 9)
        reached.add(page.run("document.activeElement.id || document.activeElement.tagName"))
    check({"btn-guess", "btn-compare", "btn-picture", "btn-link", "btn-theme", "limit", "path", "scrub", "k-n", "k-bk", "own", "SUMMARY", "SELECT"} <= reached,
          "Tab reaches every control: %s" % sorted(reached))
    page.run("$('limit').focus()")
    before = page.run("$('limit').getAttribute('aria-valuetext')")
    for _ in range(3):
        page.key("ArrowLeft", "ArrowLeft", 37)
    check(page.run("$('limit').getAttribute('aria-valuetext')") != before, "the arrow keys move the slider")
    page.run("$('scrub').focus()")
    before = page.run("$('readA').textContent + $('tout').textContent")
    for _ in range(5):
        page.key("ArrowRight", "ArrowRight", 39)
    check(page.run("$('readA').textContent + $('tout').textContent") != before, "and the moment on the clock")
    check(page.run("[...document.querySelectorAll('svg[role=img]')].every(e => e.getAttribute('aria-label') || e.getAttribute('aria-labelledby'))"), "pictures have names")
    check(page.run("[...document.querySelectorAll('input[type=range]')].every(e => e.getAttribute('aria-label') || e.labels.length)"), "sliders have names")


def test_predicted_clock(page, url):
    """A prediction has a timeline: beside its measurement, of a failed mode, and for other sliders."""
    page.open(url)
    texts = lambda figure: page.run("[$('%s').querySelector('.res').textContent, $('%s').querySelector('.whyline').textContent]" % (figure, figure))
    name = page.run("state.a")
    page.run("$('figA').querySelector('.beside').click()")
    check(page.run("state.b") == "predicted " + name and "b=predicted" in page.run("location.hash"), "a prediction stands beside its measurement, and in the address")
    check(page.run("document.activeElement.closest('figure').id") == "figB", "and has the focus")
    result, why = texts("figB")
    twin = page.run("predict(modeNamed(state.a).predicted_as, DATA.profile, DATA.link, simSetup(N))")
    check(result == page.run("ms(%r) + ' ms, peak ' + mib(%r) + ' MiB'" % (twin["step_s"] * 1000, max(sum(m.values()) for m in twin["memory"]))), "it is that of the planner: %s" % result)
    check(why.startswith("Predicted") and "measured: " in why, why)
    boxes = "[...$('figB').querySelector('svg').querySelectorAll('rect')].map(r => [r.querySelector('title') && r.querySelector('title').textContent, Number(r.getAttribute('x')), Number(r.getAttribute('width'))])"
    drawn = [b for b in page.run(boxes) if b[0] and b[0].startswith("device 3: ")]
    spans = page.run("shownNamed(state.b).objects.filter(s => s.device === 3)")
    check(len(spans) > 3 and {b[0].split(": ")[1].split(",")[0] for b in drawn} == {s["name"] for s in spans}, "each device has the spans of its row: %s" % drawn)
    x = page.run("(g => [0, 1].map(t => g.x(t)))(geometry())")
    backward = next(s for s in spans if s["name"] == "backward")
    box = next(b for b in drawn if b[0].startswith("device 3: backward"))
    check(abs(box[1] - (x[0] + backward["begin"] * (x[1] - x[0]))) < 0.01 and abs(box[2] - (backward["end"] - backward["begin"]) * (x[1] - x[0])) < 1, "on the clock of the measurement: %s" % box)
    page.run("$('path').click()")
    critical = page.run("critical_path(planned(modeNamed(state.a), state.n, simLink()))")
    dim = page.run("[...$('figB').querySelectorAll('.dim')].filter(e => e.textContent.startsWith('device 3: ')).length")
    check(len(critical) >= 3 and dim == len(twin["timeline"]) - len(critical), "a prediction has a critical path: %s, %d dim" % (critical, dim))
    memory = page.run("shownNamed(state.b).memory_over_time")
    check(abs(max(sum(s[1:]) for s in memory["samples"]) / max(sum(m.values()) for m in twin["memory"]) - 1) < 1e-12 and len(memory["samples"]) > 7, "and memory over time, up to the peak: %s" % memory)
    check(page.run("$('figB').querySelectorAll('svg')[1].querySelectorAll('path').length") >= 3, "which is drawn by kind")
    page.run("state.t = %r; showMoment()" % ((backward["begin"] + backward["end"]) / 2))
    check(name + ", predicted: " in page.run("$('readB').textContent") and " of them activations." in page.run("$('readB').textContent"), "a sentence says what happens: %s" % page.run("$('readB').textContent"))
    test_widths(page, "predicted")
    set_range(page, "k-n", 1)
    result, why = texts("figB")
    check(page.run("state.n") == 2 and why.startswith("Simulated for 2 devices") and page.run("shownNamed(state.b).devices.length") == 2, "it follows the sliders: %s" % why)
    link = page.run("location.href")
    before = page.run("$('figB').textContent")
    page.open(link)
    check(page.run("$('figB').textContent") == before, "a link shows the same")
    page.open(url + "#b=predicted%20pipeline-zero-bubble")
    check(page.run("shownNamed(state.b).devices.length") == 4, "a stage a device")
    set_range(page, "k-n", 6)
    check(page.run("state.b") == page.run("defaults.b"), "a mode that cannot run on so many devices is not shown")
    page.open(url + "#b=predicted%20nonsense")
    check(page.run("state.b") == page.run("defaults.b"), "nor one that does not exist")


def test_hostile(page, url):
    page.open(url)
    check(page.run("document.querySelectorAll('img').length") == 0, "a name makes no element")
    check(page.run("document.body.innerText").count(HOSTILE) > 0, "a hostile name is text")
    check(page.run("document.querySelectorAll('script').length") == 2, "nor a script")


def test_guess(page, url):
    page.open(url)
    page.run("$('btn-guess').click()")
    check("?" in page.run("$('answer').textContent"), "Guess first asks")
    hidden = page.run("[...document.querySelectorAll('#ledger .segs')].length")
    check(hidden == 1, "and hides all steps but that of single")
    page.run("(e => { e.value = e.max; e.dispatchEvent(new Event('input')); })(document.querySelector('.guess input'))")
    page.run("[...document.querySelectorAll('.guess button')].pop().click()")
    check("Farthest" in page.run("$('guess').textContent"), "the widest gap is named")
    check(page.run("document.querySelectorAll('#ledger .you').length") > 0, "guesses are drawn")


def test_other(page, url, folder):
    page.open(url)
    for file, expected in (("result.json", "B is result.json"), ("noisy.html", "B is noisy.html"), ("cases.json", "Cannot compare")):
        root = page.send("DOM.getDocument")["root"]["nodeId"]
        node = page.send("DOM.querySelector", nodeId=root, selector="#other-file")["nodeId"]
        page.send("DOM.setFileInputFiles", nodeId=node, files=[os.path.join(folder, file)])
        page.run("new Promise(done => setTimeout(done, 150))")
        check(expected in page.run("$('compared').textContent"), "compare with %s: %s" % (file, page.run("$('compared').textContent")))
        if file == "result.json":
            check("slower in 0, faster in 0" in page.run("$('compared').textContent"), "a result does not differ from itself")
            check(page.run("document.querySelectorAll('#ledger .segsb').length") > 0, "B is a thin bar")
        check(page.run("document.querySelectorAll('img').length") == 0, "B makes no element")


def test_picture(page, url):
    page.open(url)
    check(page.run("(s => s.getAttribute('width') + 'x' + s.getAttribute('height'))(pictureSvg())") == "1200x630", "the picture is 1200x630")
    check(page.run("""(() => { const svg = pictureSvg(); document.body.append(svg); const out = [...svg.querySelectorAll('text')].filter(t => { const b = t.getBBox(); return b.x < 0 || b.x + b.width > 1201 || b.y + b.height > 631; }).length; svg.remove(); return out; })()""") == 0,
          "nothing sticks out of the picture")


def test_what_if(page, url):
    page.open(url)
    for n in range(page.run("COUNTS.length")):
        set_range(page, "k-n", n)
        check(page.run("document.querySelectorAll('#simbars .simrow').length") == page.run("SIMULATED.length"), "every mode has a row at %d devices" % page.run("state.n"))
    check("cannot run" in page.run("$('simbars').textContent"), "a mode that cannot run says so")
    before = page.run("$('simbars').textContent")
    set_range(page, "k-bk", 0)
    check(page.run("$('simbars').textContent") != before, "smaller buckets change the steps")
    before = page.run("$('simbars').textContent")
    meshes = "[...document.querySelectorAll('#simmeshes .mode')].map(e => e.textContent)"
    steps = page.run("[...document.querySelectorAll('#simmeshes .v b')].map(e => Number(e.textContent))")
    n = page.run("state.n")
    check(n == 64 and len(steps) == 12 and steps == sorted(steps), "the fastest twelve meshes are rows: %s" % steps)
    check(all(math.prod(int(axis.split("=")[1]) for axis in name.split(",")) == n for name in page.run(meshes)), "which multiply to the devices: %s" % page.run(meshes))
    set_range(page, "k-n", 0)
    check(page.run(meshes) == [], "one device has no mesh")
    set_range(page, "k-n", 1)
    check(page.run(meshes + ".sort()") == ["context=2", "expert=2", "pipeline=2", "replicate=2", "shard=2", "tensor=2"], "two devices have six: %s" % page.run(meshes))
    page.run("$('own').click()")
    check("As measured" not in page.run("$('simanswer').textContent"), "devices of their own are not those of the measurement")
    set_range(page, "k-bw", -1)
    check(page.run("$('simbars').textContent") != before, "a slower link changes the steps")


RUN_CASES = """(cases => { let wrong = []; for (const c of cases) {
  const link = c.link_with ? link_with(c.link, c.link_with[0], c.link_with[1]) : c.link;
  const p = c.devices ? simulate_devices(c.plan, c.profile, link, c.setup, c.devices) : predict(c.plan, c.profile, link, c.setup);
  const own = p === null ? null : [p.step_s, p.breakdown.forward_s, p.breakdown.backward_s, p.breakdown.exposed_comm_s, p.breakdown.update_s, p.breakdown.idle_s, p.bubble_s, ...p.axes.flatMap(a => [a.bytes_sent, a.exposed_s]), ...p.memory.map(total)];
  const timeline = p && [p.rows, ...p.timeline.map(s => [s.row, s.beside, s.activity, s.name, s.begin, s.end, s.subject.block || '', s.subject.bucket ?? -1, s.subject.bytes || 0, s.subject.axis || ''])];
  const memory = p && [p.memory_over_time.device, ...p.memory_over_time.samples.map(s => [s.begin_s, ...ITEMS.map(i => s.items[i])])];
  const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);
  if (!same(own, c.expected) || (c.timeline && !(same(timeline, c.timeline) && same(memory, c.memory) && same(critical_path(p), c.critical_path)))) wrong.push(c.mode); }
  return wrong; })"""


def test_twin(page, url, folder):
    with open(os.path.join(folder, "cases.json")) as file:
        cases = json.load(file)
    page.open(url)

    def wrong(some=cases):
        return [mode for i in range(0, len(some), 100) for mode in page.run(RUN_CASES + "(" + json.dumps(some[i:i + 100]) + ")")]

    check(len(cases) >= 100, "there are %d cases" % len(cases))
    with open(os.path.join(folder, "sweeps.json")) as file:
        for c in json.load(file):
            own = page.run("(c => sweep(c.profile, c.link, c.setup, c.devices).map(x => [x.name, x.prediction.step_s]))(%s)" % json.dumps(c))
            check(own == c["rows"], "the twin sweeps the same meshes of %d devices" % c["devices"])
    first = wrong()
    check(not first, "the twin equals the planner, but not in %d cases: %s" % (len(first), sorted(set(first))))
    # A planted difference must be found: another order of additions changes the last bit of some sums.
    page.run("CostModel.prototype.sum = function (blocks, value) { let t = 0; for (let k = blocks.end; k-- > blocks.begin;) t += value(this.profile.blocks[k]); return t; }")
    check(wrong(cases[:100]), "a changed order of additions is found")
    page.open(url)
    page.run("add_span = (timeline, row, activity, name, begin, end, subject = no_subject) => { if (end > begin) timeline.push({ row, beside: false, activity, name, begin, end: end * (1 + Number.EPSILON), subject }); }")
    check(wrong(cases[:100]), "and a changed end of a span")


def main():
    folder = sys.argv[1]
    if not browser.find():
        print("skipped: Chromium is missing; install it with: apt-get install chromium")
        return 0
    with open(os.path.join(folder, "result.json")) as file:
        result = json.load(file)
    url = "file://" + os.path.join(folder, "page.html")
    size = os.path.getsize(os.path.join(folder, "page.html"))
    check(size < 900_000, "the page has %d bytes" % size)
    with browser.Browser(limit_s=150) as page:
        for name in ("page", "noisy", "empty", "limited"):
            test_layout(page, "file://" + os.path.join(folder, name + ".html"), name)
        test_answers(page, url, result)
        test_state(page, url)
        test_memory(page, "file://" + os.path.join(folder, "limited.html"))
        test_places(page, url, result)
        test_sweep(page, url, folder)
        test_network(page, folder)
        test_axes(page, folder)
        test_keyboard(page, url)
        test_predicted_clock(page, url)
        test_hostile(page, url)
        test_guess(page, url)
        test_other(page, url, folder)
        test_picture(page, url)
        test_what_if(page, url)
        test_twin(page, url, folder)
        check(not page.errors, "scripts fail: %s" % page.errors[:3])
        outside = [r for r in page.requests if not r.startswith(("file://" + folder, "about:", "data:", "blob:"))]
        check(not outside, "requests: %s" % outside)
    print("%d failures" % len(failures))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
