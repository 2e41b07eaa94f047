"""The functions that run the phases of tools/gpu_check. Each takes a Check (see check.py), writes rows into its report,
and ends when its seconds are over."""
import concurrent.futures
import os
import re
import shutil
import sys

import bench
import items
import pack
import profiler
import values
from process import run

ROOT = pack.ROOT

# Matches error messages that mean that NCCL is missing, or that NCCL or the machine does not support two ranks on one
# GPU. Other errors of NCCL are failures: "invalid usage" and "invalid argument" come from wrong calls.
NO_NCCL = re.compile(r"Duplicate GPU|use the same GPU|\[nccl\] NCCL |built without NCCL|"
                     r"(ncclGetUniqueId|ncclCommInitRankConfig) failed on rank \d+ .*: unhandled (system|cuda) error")

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

TEST_LIMIT = 60  # seconds for one test of the GPU
GPU_TESTS = 8  # the number of tests that run at a time; they share one GPU, and each reserves a part of its memory


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


# ---- machine ----


def machine(check):
    """Says what is there and what is absent, gets the programs, and lets a GPU compute something."""
    check.until = check.deadline  # nothing can run without it, so it takes the time that it needs
    for program in (check.peer, check.copier):  # PyTorch loads meanwhile
        program.begin()
    found = versions(check)
    if check.packed and not unpacked(check):
        check.packed = False
        check.use(os.path.join(ROOT, "build/gpu"))
    if not check.packed and not check.dry:
        build(check)
    if os.path.exists(check.program("bench_gpu_ops")):
        libraries(check, found)
    elif not check.report.failed({"machine"}):
        check.report.row("machine", "bench_gpu_ops", "failed", note="it is not in " + check.build)
    about = check.report.content["about"]
    there = "; ".join(f"{name} {text}" for name, text in found.items() if text)
    absent = ", ".join(name for name, text in found.items() if not text) or "nothing"
    print(f"{about['device']}, driver {about['driver'] or '-'}, compute capability {about['capability'] or '-'}; {there}; "
          f"absent: {absent}", flush=True)
    if not check.report.failed({"machine"}):
        answers(check)


def versions(check):
    """Writes a row for each tool that is used if it is there. Returns their versions by name; an absent one has an empty
    text. glibc is the one of this machine."""
    found = {"glibc": (os.confstr("CS_GNU_LIBC_VERSION") or "").removeprefix("glibc "),
             "PyTorch": check.report.content["about"]["PyTorch"]}
    for name in ("nvcc", "ncu", "compute-sanitizer"):
        tool = check.tool(name)
        text = run([tool, "--version"], 20).text if tool else ""
        version = re.search(r"(release|[Vv]ersion) (\d[\d.]*)", text)
        found[name] = version[2] if version else "there" if tool else ""
    for name, text in found.items():
        check.report.row("machine", name, "passed" if text else "not run", note=text or f"{name} is absent")
    return found


def unpacked(check):
    """Unpacks the programs of the pack. Returns False, with a row that says why, if they do not start here."""
    why = pack.unpack()
    if not why:
        found = run([check.program("bench_gpu_ops"), "cpu", "libraries"], 60)
        why = "" if found.ok else "its programs do not start here: " + found.tail(2)
    text = ("the pack is not used; the programs are built instead. " + why) if why else pack.about()
    check.report.row("machine", "pack", "not run" if why else "passed", note=text)
    if why:
        print("pack: " + text, flush=True)
    return not why


def missing_tools(check):
    """Writes one row for each tool that the build needs. Returns True if one is missing. All missing tools are named at
    once."""
    compiler, missing = os.environ.get("CXX") or "g++", False
    for name, command, why in (
            (compiler, [compiler, "--version"], "install a C++20 compiler, or let CXX name one"),
            ("cmake", ["cmake", "--version"], "install CMake 3.25 or newer"),
            ("ninja", ["ninja", "--version"], "install Ninja")):
        found = run(command, 60)
        if not found.ok:
            missing = True
            check.report.row("machine", name, "failed", note=f"{name} is missing: {why}, or bring a pack (--pack)")
    if not shutil.which("git") and not check.commit_given:
        check.report.row("machine", "git", "not run", note="git is missing: the commit of these results is unknown unless "
                         "--commit says it")
    return missing


def build(check):
    report = check.report
    if not os.path.exists(os.path.join(check.build, "build.ninja")):
        if os.path.exists(check.program("bench_gpu_ops")):
            return  # somebody has put the programs there
        if missing_tools(check):
            return
        command = ["cmake", "--preset", "gpu", "-B", check.build, "-DTAPESTRY_PYTHON=" + sys.executable]
        capability = report.content["about"]["capability"].replace(".", "")
        if capability.isdigit():
            command.append("-DTAPESTRY_CUDA_ARCHITECTURES=" + capability)
        found = check.run(command, check.log("configure"))
        check.step("machine", "configure", found)
        if not found.ok:
            return
    # If one file does not compile, the programs that do not need it can still be tried.
    command = ["cmake", "--build", check.build, "--parallel", str(check.jobs), "--target", *pack.TARGETS, "--", "-k", "0"]
    found = check.run(command, check.log("compile"))
    errors = [line.strip() for line in found.text.splitlines() if re.search(r"\berror\b|undefined reference", line)]
    check.step("machine", "compile", found, " / ".join(errors[:6]))


def libraries(check, versions_):
    """Writes one row for each vendor library that the program finds at run time, and adds their versions to `versions_`.
    A missing library is not a failure."""
    found = run([check.program("bench_gpu_ops"), "cpu", "libraries"], 60)
    answer = next((line for line in found.text.splitlines() if line.startswith("ok")), "")
    for text in filter(None, (part.strip() for part in answer[2:].split(" | "))):
        name, missing = re.split(r"[ :]", text)[0], "not available" in text
        check.libraries[name] = not missing
        versions_[name] = "" if missing else text.removeprefix(name).strip()
        check.report.row("machine", "library " + name, "not run" if missing else "passed", note=text)
    if not answer:
        check.report.row("machine", "libraries", "failed", note=found.tail())


def answers(check):
    """Checks that a GPU computes a result. The tests do not show this, because they are skipped if they find no GPU."""
    found = check.run([check.program("bench_gpu_ops"), check.dry or "cuda"], check.log("gpu"), 60,
                      text="start copy f32 5001\n")
    ok = found.ok and any(line.startswith("ok ") for line in found.text.splitlines())
    check.report.row("machine", "a GPU answers", "passed" if ok else "left" if check.cut_short(found) else "failed",
                     seconds=found.seconds, note="" if ok else found.tail())


# ---- smoke ----


def gpu_tests(check, phase):
    """Runs the tests that use a GPU, several at a time, and writes a row for each."""
    try:
        tests = pack.tests(check.build)
    except (OSError, ValueError) as error:
        check.report.row(phase, "tests of the GPU", "not run", note=f"the list of tests is missing: {error}")
        return
    if check.dry == "cpu":
        tests = [test for test in tests if test["name"].startswith("ptx.")]
    for test in tests:
        why = "dry run: NCCL needs a driver" if check.dry else "" if check.libraries.get("NCCL", True) else "NCCL is not available"
        if "nccl" in test["name"] and why:
            check.report.row(phase, test["name"], "not run", note=why)
    tests = [test for test in tests if not check.report.is_final(phase, test["name"])]
    environment = {} if check.dry == "cpu" else {"TAPESTRY_REQUIRE_CUDA": "1"}

    def result_of(test):
        if check.left() < 1:
            return None
        return run([os.path.join(check.build, test["program"]), *test["arguments"]],
                   min(TEST_LIMIT * check.patience, check.left()), check.folder, {**test["environment"], **environment},
                   check.log(test["name"]))

    with concurrent.futures.ThreadPoolExecutor(min(check.jobs, GPU_TESTS)) as pool:
        running = {pool.submit(result_of, test): test for test in tests}
        for future in concurrent.futures.as_completed(running):
            test, found = running[future], future.result()
            if not found or check.cut_short(found):
                check.report.row(phase, test["name"], "left")
                continue
            skipped = found.ok and test["skip"] and re.search(test["skip"], found.text)
            status = "not run" if skipped else "passed" if found.ok else "failed"
            check.report.row(phase, test["name"], status, seconds=found.seconds,
                             note="" if status == "passed" else found.tail(3 if skipped else 12))
            if status == "failed":
                check.report.keep(check.log(test["name"]))


def chosen(check, all_items):
    """In a dry run, returns one small item for each name and dtype."""
    return [items.small(item) for item in items.one_of_each(all_items)] if check.dry else list(all_items)


def smoke(check):
    values.verify(check, "smoke", chosen(check, items.smoke()))
    gpu_tests(check, "smoke")


# ---- first, steps, policy, wgmma ----


def first(check):
    bench.measure_all(check, "first", chosen(check, items.first()))
    check.report.summarize(("machine", "smoke"), "first")
    print("the first result: " + os.path.join(check.folder, "gpu_first.md"), flush=True)


def steps(check):
    bench.measure_all(check, "steps", chosen(check, items.steps()))


def policy(check):
    bench.measure_all(check, "policy", chosen(check, items.policy()))


def wgmma(check):
    of_wgmma = [item for item in items.verified(items.wgmma()) if not item.library]
    values.verify(check, "wgmma", chosen(check, of_wgmma))
    bench.measure_all(check, "wgmma", chosen(check, items.wgmma()))


# ---- more ----


# Each is a row: its name, the number of ranks, a program that starts the test, and the test.
NCCL_TESTS = [
    # NCCL refuses two ranks of one host on one GPU, so each rank pretends to be on a host of its own.
    ("two NCCL ranks on one GPU", "2", ["bash", "-c", 'NCCL_HOSTID=tapestry-$RANK exec "$0" "$@"'],
     "two ranks over NCCL share a GPU"),
    ("NCCL groups on streams of their own", "gpu", [], "overlapping groups over NCCL on streams of their own"),
]


def nccl_ranks(check):
    for name, ranks, starter, test in NCCL_TESTS:
        if check.dry:
            check.report.row("more", name, "not run", note="dry run")
            continue
        command = [check.program("tapestry-run"), "--standalone", "--nproc-per-node", ranks, *starter,
                   check.program("tests_distributed"), test]
        found = check.once("more", name, command, name.replace(" ", "-"), 60, environment={"TAPESTRY_REQUIRE_CUDA": "1"})
        if not found:
            continue
        skipped = re.search("skipped: .*", found.text)
        if found.ok and skipped:
            print(f"SKIPPED: {name}: {skipped[0]}", flush=True)
            check.report.row("more", name, "not run", seconds=found.seconds, note=skipped[0])
        elif found.ok:
            check.report.row("more", name, "passed", seconds=found.seconds)
        elif NO_NCCL.search(found.text):
            check.report.row("more", name, "not run", seconds=found.seconds, note="NCCL does not connect: " + found.tail(4))
        else:
            check.report.row("more", name, "failed", seconds=found.seconds, note=found.tail())


def modes_of_training(check):
    """Trains with DataParallel, with a split model and with pipelines on two logical devices of the GPU. All of them
    must give the result of training on one device."""
    name = "modes of training on two devices"
    modes = "single,dp-master,dp-replicated,model,pipeline-1f1b,pipeline-gpipe,pipeline-zero-bubble"
    what = ["--device", "cuda", "--model", "cnn", "--modes", modes]
    if check.dry:
        what = ["--device", check.dry, "--model", "mlp", "--modes", "single,model", "--batch-size", "4", "--image-size", "8",
                "--steps", "1", "--warmup", "1", "--threads", "1"]
    found = check.once("more", name, [check.program("tapestry-compare"), "--devices", "2", "--rounds", "1", "--timeout",
                                      str(60 * check.patience), *what], "modes", 60, environment={"TAPESTRY_LOGICAL_DEVICES": "2"})
    if found:
        check.report.row("more", name, ("fake" if check.dry else "passed") if found.ok else "failed",
                         seconds=found.seconds, note="" if found.ok else found.tail())


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
                check.report.row("more", name, "not run", note=why)
                continue
            # With the system's allocator, each tensor is its own allocation, so that the sanitizer detects accesses
            # behind its end.
            found = check.once("more", name, [tool, "--tool", kind, "--error-exitcode", "99", *command],
                               f"{kind}-{what}", 90, text=text,
                               environment={"TAPESTRY_REQUIRE_CUDA": "1", "TAPESTRY_CUDA_ALLOCATOR": "system"}, partial=FOUND)
            if found:
                check.report.row("more", name, seconds=found.seconds, **of_sanitizer(found, text))


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


def more(check):
    modes_of_training(check)
    nccl_ranks(check)
    sanitize(check)
    all_items = [*items.operations(), *items.policy(), *items.compiled_steps(), *items.tutorial()]
    done = {item.work for item in items.smoke()}
    values.verify(check, "more", chosen(check, [item for item in items.verified(all_items) if item.work not in done]))
    done = {(item.work, item.modes) for item in [*items.first(), *items.policy()]}
    bench.measure_all(check, "more", chosen(check, [item for item in all_items if (item.work, item.modes) not in done]))


# The phases run in this order, because the machine may be available only for a short time: correctness first, then
# what decides most. The numbers are their shares of a call's time: its seconds, if it has 540.
PHASES = {"machine": (30, machine), "smoke": (180, smoke), "first": (40, first), "steps": (100, steps),
          "policy": (80, policy), "wgmma": (30, wgmma), "counters": (50, profiler.profile), "more": (30, more)}
