"""The functions that run the phases of tools/gpu_check. Each takes a Check (see check.py), writes rows into its report,
and ends before its deadline."""
import os
import re
import shutil
import sys

import bench
import items
import profiler
import values
from process import run

# "2/5 Test #7: core.b ....Subprocess aborted***Exception:   0.50 sec"
TEST_LINE = re.compile(r"\s*\d+/(\d+) Test\s+#\d+: (\S+) \.*\s*(.*?)\s+([\d.]+) sec$")
ACCURACY_LINE = re.compile(r"test accuracy ([\d.]+) after ([\d.]+) s of training")

# Matches error messages that mean that NCCL is missing, or that NCCL or the machine does not support two ranks on one
# GPU. Other errors of NCCL are failures: "invalid usage" and "invalid argument" come from wrong calls.
NO_NCCL = re.compile(r"Duplicate GPU|use the same GPU|\[nccl\] NCCL |built without NCCL|(ncclGetUniqueId|ncclCommInitRankConfig) "
                     r"failed on rank \d+ .*: unhandled (system|cuda) error")

# Matches messages with which compute-sanitizer refuses to run, for example on a virtual machine without the debugger
# interface.
REFUSED = re.compile(r"not supported|Failed to initialize|unable to|InitializationError|No attachable process|error 999",
                     re.IGNORECASE)
# Matches messages with which compute-sanitizer reports an error in a kernel. Such a message is a failure even if the
# program is stopped before its end.
FOUND = re.compile(r"^=========\s+(Invalid|Misaligned|Error: |Program hit|Barrier error)", re.MULTILINE)
# Matches the messages that compute-sanitizer prints only if it works on this machine.
WORKED = re.compile(r"^=========\s+(Invalid|Misaligned|Error: Race|Barrier error)", re.MULTILINE)

# Benchmarks that run under compute-sanitizer. They are small, and their sizes are not multiples of a block size. They
# cover the kernels for one block, for several blocks, for few long rows, and for a product with few rows.
SANITIZED = ["copy f32 5001", "transpose bf16 70 41", "add f32 5001", "gelu bf16 5001", "softmax f32 7 1001", "softmax bf16 7 1000",
             "softmax f32 2 20001", "layer_norm f32 7 1001", "layer_norm f32 2 20001", "layer_norm_backward f32 37 101",
             "batch_norm_backward f32 3 20 7", "cross_entropy f32 9 1001", "cross_entropy f32 2 20001",
             "cross_entropy_backward f32 9 1001", "cross_entropy_backward f32 2 20001", "adamw f32 3 5001",
             "embedding_backward f32 70 700 10", "embedding_backward bf16 70 700 16",
             "linear@custom f32 130 129 70", "linear@custom bf16 130 136 72", "linear@custom f32 3 129 70",
             "linear@custom bf16 3 136 72", "linear_backward@custom f32 130 129 70",
             "linear_backward@custom bf16 130 136 72", "linear_backward@custom bf16 130 129 71",
             "linear_backward@custom bf16 130 134 70", "linear_backward@custom f16 130 129 72", "attention_backward@custom f32 2 3 33 16",
             "attention@custom bf16 1 2 150 64", "linear@wgmma bf16 72 136 72", "attention@wgmma bf16 1 2 150 64",
             "attention@wgmma bf16 1 2 150 128", "attention_backward@custom bf16 1 2 70 128",
             "attention_backward@custom bf16 1 1 33 17",
             "conv2d@custom f32 2 8 9 9 12 3 1 1", "conv2d_bias_relu@custom f32 2 8 9 9 12 3 2 1",
             "conv2d_backward@custom f32 2 8 9 9 12 3 1 1", "conv2d@custom bf16 2 16 12 12 24 3 1 1",
             "conv2d_bias_relu@custom bf16 2 3 17 17 72 7 2 3", "conv2d_backward@custom bf16 2 16 12 12 72 3 2 1"]

# The programs that the phases need. All others would only cost time on a machine with a GPU.
TARGETS = ["bench_gpu_ops", "classifier", "tapestry-compare", "tapestry-run", "tests_core", "tests_distributed", "tests_gpu",
           "tests_ptx"]
GPU_TESTS = 4  # the number of tests that run at a time; they share one GPU, and each reserves a part of its memory


def cached(build, name):
    """Returns the value of a variable in CMakeCache.txt, or an empty string if it is not there."""
    try:
        with open(os.path.join(build, "CMakeCache.txt")) as file:
            for line in file:
                if line.startswith(name + ":"):
                    value = line.rstrip("\n").split("=", 1)[1]
                    return "" if value.endswith("NOTFOUND") else value
    except OSError:
        pass
    return ""


# ---- build ----


def tools(check):
    """Writes one row for each tool that the build needs. Returns True if none is missing. All missing tools are named
    at once."""
    report = check.report
    compiler = os.environ.get("CXX") or "g++"
    needed = True
    for name, command, why in (
            (compiler, [compiler, "--version"], "install a C++20 compiler, or let CXX name one"),
            ("cmake", ["cmake", "--version"], "install CMake 3.25 or newer"),
            ("ninja", ["ninja", "--version"], "install Ninja"),
            ("nvcc", ["nvcc", "--version"], "")):
        found = run(command, 60)
        text = [line.strip() for line in found.text.splitlines() if line.strip()]
        if found.ok:
            report.row("build", name, "passed", note=text[-1 if name == "nvcc" else 0] if text else "")
        elif name == "nvcc":
            report.row("build", name, "not run", note="nvcc is not on the PATH; CMake may find it elsewhere")
        else:
            needed = False
            report.row("build", name, "failed", note=f"{name} is missing: {why}")
    if not shutil.which("git"):
        report.row("build", "git", "not run", note="git is missing" + (
            "" if check.commit_given else ": the commit of these results is unknown unless --commit says it"))
    found = run([sys.executable, "-c", "import torch; print(torch.__version__, torch.version.cuda, "
                 "'cuda' if torch.cuda.is_available() else 'sees no GPU')"], 120)
    report.row("build", "PyTorch", "passed" if found.ok else "not run", seconds=found.seconds, note=found.text.strip() if
               found.ok else "PyTorch is missing: there is nothing to compare values and times with. " + found.tail(1))
    return needed


def build(check):
    report = check.report
    configured = os.path.exists(os.path.join(check.build, "build.ninja")) and report.is_final("build", "configure")
    if not configured:
        if not tools(check):
            return
        command = ["cmake", "--preset", "gpu", "-B", check.build, "-DTAPESTRY_PYTHON=" + sys.executable]
        capability = report.content["about"]["capability"].replace(".", "")
        if capability.isdigit():
            command.append("-DTAPESTRY_CUDA_ARCHITECTURES=" + capability)
        found = check.run(command, check.log("configure"))
        check.step("build", "configure", found)
        if not found.ok:
            return
    # If one file does not compile, the programs that do not need it can still be tried.
    command = ["cmake", "--build", check.build, "--parallel", str(check.jobs),
               *([] if check.all else ["--target", *TARGETS]), "--", "-k", "0"]
    found = check.run(command, check.log("compile"))
    errors = [line.strip() for line in found.text.splitlines() if re.search(r"\berror\b|undefined reference", line)]
    check.step("build", "compile", found, " / ".join(errors[:6]))
    libraries(check)


def libraries(check):
    """Writes one row for each vendor library that the program finds at run time. A missing library is not a failure."""
    program = check.program("bench_gpu_ops")
    if not os.path.exists(program):
        return
    found = run([program, "cpu", "libraries"], 60)
    answer = next((line for line in found.text.splitlines() if line.startswith("ok")), "")
    for text in filter(None, (part.strip() for part in answer[2:].split(" | "))):
        missing = "not available" in text
        check.report.row("build", "library " + re.split(r"[ :]", text)[0], "not run" if missing else "passed", note=text)
    if not answer:
        check.report.row("build", "libraries", "failed", note=found.tail())


# ---- test ----


def ctest(check, name, select, each, jobs=None):
    """Runs tests by ctest. Writes one row for the run, and one for each test that did not pass. With `each`, writes one
    row for every test. Tests that have a row from an earlier call are not run again."""
    report = check.report
    if report.is_final("test", name):
        return
    known = {row["name"]: row["status"] for row in report.rows if row.get("of") == name and row["status"] not in
             ("left", "running")}
    passed, seen, total = sum(s == "passed" for s in known.values()), len(known), len(known)

    def on_line(line):
        nonlocal passed, seen, total
        match = TEST_LINE.match(line)
        if not match:
            return
        total, test, seconds = len(known) + int(match[1]), match[2], float(match[4])
        ok = match[3] == "Passed"
        result = match[3].replace("***", " ").strip()
        skipped = result == "Skipped"  # not the same as "Not Run", which means that the test's program is missing
        passed, seen = passed + ok, seen + 1
        report.row("test", name, "running", note=f"{passed} of {total} passed so far")
        if each or not ok:
            report.row("test", test, "passed" if ok else "not run" if skipped else "failed", seconds=seconds, of=name,
                       note="" if ok else f"{result}; see {os.path.basename(log)}")

    log = check.log(name.replace(" ", "-"))
    exclude = ["-E", "^(" + "|".join(map(re.escape, known)) + ")$"] if known else []
    slots = min(check.jobs, jobs) if jobs else 2 * (check.jobs + 2)  # as many as tools/test uses
    command = ["ctest", "--test-dir", check.build, "--output-on-failure", "--timeout", "300", "--parallel", str(slots),
               *([] if known else ["--no-tests=error"]), *select, *exclude]
    found = check.run(command, log, environment=check.require, on_line=on_line)
    report.keep(log)
    if check.cut_short(found):
        report.row("test", name, "left", seconds=found.seconds,
                   note=f"{passed} of {total} passed before the time was over; call tools/gpu_check again")
        return
    ok = found.ok and total > 0 and "failed" not in known.values()
    skipped = sum(row["status"] == "not run" for row in report.rows if row.get("of") == name)
    note = f"{passed} of {total} passed" + (f", {skipped} not run" if skipped else "")
    report.row("test", name, "passed" if ok else "failed", seconds=found.seconds,
               note=note if ok or passed < total else note + "; " + found.tail())


def answers(check):
    """Checks that a GPU computes a result. The tests do not show this, because they are skipped if they find no GPU."""
    if check.report.is_final("test", "a GPU answers"):  # an earlier call has checked it
        return check.report.find("test", "a GPU answers")["status"] == "passed"
    found = check.once("test", "a GPU answers", [check.program("bench_gpu_ops"), "cuda"], "gpu", 120,
                       text="start copy f32 5001\n")
    if not found:
        return False
    ok = found.ok and any(line.startswith("ok ") for line in found.text.splitlines())
    check.report.row("test", "a GPU answers", "passed" if ok else "failed", seconds=found.seconds,
                     note="" if ok else found.tail())
    return ok


def test(check):
    if check.dry:
        ctest(check, "tests of the instructions", ["-R", "^ptx\\."], each=True)
    elif not answers(check):
        return
    else:
        ctest(check, "tests of the GPU", ["-L", "^gpu$", "-LE", "long|^device$"], each=True, jobs=GPU_TESTS)
    nccl_ranks(check)
    modes_of_training(check)
    if check.all and not check.dry:
        ctest(check, "all other tests", ["-LE", "^gpu$|long|tools"], each=False)


def nccl_ranks(check):
    """Runs two NCCL ranks on one GPU. NCCL refuses this if both ranks are on the same host, so each rank pretends to be
    on a different host."""
    name = "two NCCL ranks on one GPU"
    if check.dry:
        check.report.row("test", name, "not run", note="dry run")
        return
    command = [check.program("tapestry-run"), "--standalone", "--nproc-per-node", "2", "bash", "-c",
               'NCCL_HOSTID=tapestry-$RANK exec "$0" "$@"', check.program("tests_distributed"),
               "two ranks over NCCL share a GPU"]
    found = check.once("test", name, command, "nccl-ranks", 120, environment=check.require)
    if not found:
        return
    if found.ok:
        check.report.row("test", name, "passed", seconds=found.seconds)
    elif NO_NCCL.search(found.text):
        check.report.row("test", name, "not run", seconds=found.seconds, note="NCCL does not connect: " + found.tail(4))
    else:
        check.report.row("test", name, "failed", seconds=found.seconds, note=found.tail())


def modes_of_training(check):
    """Trains with DataParallel, with a split model and with pipelines on two logical devices of the GPU. All of them
    must give the result of training on one device."""
    name = "modes of training on two devices"
    modes = "single,dp-master,dp-replicated,model,pipeline-1f1b,pipeline-gpipe,pipeline-zero-bubble"
    what = ["--device", "cuda", "--model", "cnn", "--modes", modes]
    if check.dry:
        what = ["--device", "cpu", "--model", "mlp", "--modes", "single,model", "--batch-size", "4", "--image-size", "8",
                "--steps", "1", "--warmup", "1", "--threads", "1"]
    found = check.once("test", name, [check.program("tapestry-compare"), "--devices", "2", "--rounds", "1", "--timeout",
                                      "60", *what], "modes", 150,
                       environment={**check.require, "TAPESTRY_LOGICAL_DEVICES": "2"})
    if found:
        check.report.row("test", name, ("fake" if check.dry else "passed") if found.ok else "failed",
                         seconds=found.seconds, note="" if found.ok else found.tail())


# ---- verify, bench, steps, profile ----


def with_programs(phase, function):
    """Returns a phase that needs bench_gpu_ops and its counterpart in PyTorch (peer.py)."""

    def of_phase(check):
        device = "cpu" if check.dry else "cuda"
        program = check.program("bench_gpu_ops")
        if not os.path.exists(program):
            check.report.row(phase, "bench_gpu_ops", "failed", note="it is not built: tools/gpu_check build")
            return
        peer = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer.py"), device]
        function(check, [program, device], peer)

    return of_phase


def chosen(check, all_items):
    return items.one_of_each(all_items) if check.dry else list(all_items)


def verify(check, ours, peer):
    values.verify(check, chosen(check, items.verified()), ours, peer)


def operations(check, ours, peer):
    bench.measure_all(check, "bench", chosen(check, [*items.operations(), *items.tutorial()]), ours, peer)


def steps(check, ours, peer):
    bench.measure_all(check, "steps", chosen(check, items.steps()), ours, peer)


# ---- sanitize ----


def refused(found):
    """Returns True if compute-sanitizer itself could not run, so that its failure says nothing about the kernels."""
    return (not found.ok and REFUSED.search(found.text) and not WORKED.search(found.text)
            and "ERROR SUMMARY: 0 errors" not in found.text)


def sanitize(check):
    tool = check.tool("compute-sanitizer")
    instructions = "instructions", [check.program("tests_ptx")], None
    operations_ = ("operations", [check.program("bench_gpu_ops"), "cuda"],
                   "".join(f"start {work}\n" for work in SANITIZED))
    models = "models", [check.program("tests_gpu"), "-#", "[#models_test]~[.]"], None
    for kind, programs in (("memcheck", [instructions, operations_]), ("racecheck", [instructions, operations_]),
                           ("memcheck", [models])):
        for what, command, text in programs:
            name = f"compute-sanitizer {kind}: {what}"
            why = "compute-sanitizer was not found" if not tool else "dry run" if check.dry else ""
            if not why and not os.path.exists(command[0]):
                why = f"{os.path.basename(command[0])} is not built"
            if why:
                check.report.row("sanitize", name, "not run", note=why)
                continue
            # With the system's allocator, each tensor is its own allocation, so that the sanitizer detects accesses
            # behind its end.
            found = check.once("sanitize", name, [tool, "--tool", kind, "--error-exitcode", "99", *command],
                               f"{kind}-{what}", 120, text=text,
                               environment={**check.require, "TAPESTRY_CUDA_ALLOCATOR": "system"}, partial=FOUND)
            if found:
                check.report.row("sanitize", name, seconds=found.seconds, **of_sanitizer(found, text))


def of_sanitizer(found, text):
    """Returns the status and the note for a run of compute-sanitizer."""
    failures = [line for line in found.text.splitlines() if line.startswith("failed ")]
    missing = sum(line.startswith("none ") for line in found.text.splitlines())
    went = sum(line.startswith("ok ") for line in found.text.splitlines())
    if refused(found):
        return {"status": "not run", "note": "refused: " + found.tail(3)}
    if found.status is None and not FOUND.search(found.text):
        return {"status": "not run", "note": "took longer than its time" + (
            f"; {went} of {len(SANITIZED)} operations went, the last lines: {found.tail(3)}" if text else "")}
    note = found.tail() if not found.ok else failures[0] if failures else "0 errors"
    return {"status": "passed" if found.ok and not failures else "failed",
            "note": note + (f"; {missing} operations have no kernel" if missing else "")}


# ---- train ----

# The smallest accepted accuracy, and the largest accepted difference between the GPU and the CPU. On the CPU, the
# accuracies with seeds 1 to 3 differ by at most 0.003.
LEAST_ACCURACY, ACCURACY_RANGE = 0.910, 0.006


def accuracy(found):
    """Reads (accuracy, seconds of training) from the last line of the classifier's output. Returns None if it
    failed."""
    match = None
    for match in ACCURACY_LINE.finditer(found.text):
        pass
    return (float(match[1]), float(match[2])) if found.ok and match else None


def classifier(check, name, device):
    """Trains the classifier. Returns None if an earlier call has done it, if the data set is missing, or if too little
    time is left."""
    if not check.dry and not check.has_data():
        check.report.row("train", name, "not run", note="Fashion-MNIST is not here: tools/vendor_deps puts it into .deps/, "
                         "and --data-dir says where it is")
        return None
    where = os.path.join(check.folder, f"classifier-{device}")
    shutil.rmtree(where, ignore_errors=True)
    data = ["--data", "fashion-mnist"] + (["--data-dir", check.data] if check.data else [])
    if check.dry:
        data = ["--data", "synthetic", "--synthetic-size", "64", "--epochs", "1", "--batch-size", "32", "--model", "mlp",
                "--threads", "1", "--workers", "0"]
    command = [check.program("classifier"), "--seed", "1", "--device", "cpu" if check.dry else device, "--run-dir", where,
               *data]
    return check.once("train", name, command, f"classifier-{device}", 270)


def train(check):
    """Trains the classifier on the GPU and on the CPU. The GPU's accuracy must be at least LEAST_ACCURACY, and must
    differ from the CPU's by at most ACCURACY_RANGE."""
    report, on_gpu, beside = check.report, "classifier on cuda", "classifier on cuda beside the CPU"
    found = classifier(check, on_gpu, "cuda")
    if found:
        result = accuracy(found)
        if not result:
            report.row("train", on_gpu, "failed", seconds=found.seconds, note=found.tail())
        else:
            right = "fake" if check.dry else "passed" if result[0] >= LEAST_ACCURACY else "failed"
            report.row("train", on_gpu, right, value=result[0], unit="test accuracy",
                       note=f"must be at least {LEAST_ACCURACY}; {result[1]:.1f} s of training")
    row = report.find("train", on_gpu) or {}
    if "value" not in row:
        return
    found = classifier(check, beside, "cpu")
    if not found:
        return
    peer = accuracy(found)
    if not peer:
        report.row("train", beside, "not run" if found.status is None else "failed", seconds=found.seconds,
                   note="on the CPU: " + found.tail())
        return
    right = row["value"] >= peer[0] - ACCURACY_RANGE
    report.row("train", beside, "fake" if check.dry else "passed" if right else "failed", value=row["value"],
               unit="test accuracy", peer=peer[0], peer_name="the CPU with the same seed",
               note=f"may be {ACCURACY_RANGE} below the CPU; the CPU trained for {peer[1]:.1f} s on {os.cpu_count()} cores")


# The phases run in this order, because the machine may be available only for a short time: correctness first, then
# speed, then long runs.
PHASES = {"build": build, "test": test, "verify": with_programs("verify", verify),
          "bench": with_programs("bench", operations), "steps": with_programs("steps", steps),
          "profile": with_programs("profile", profiler.profile), "sanitize": sanitize, "train": train}
