"""What the phases do. Each takes a Check (check.py), puts rows into its report, and keeps to its deadline."""
import os
import re
import shutil
import sys

import bench
from process import run

# "2/5 Test #7: core.b ....Subprocess aborted***Exception:   0.50 sec"
TEST_LINE = re.compile(r"\s*\d+/(\d+) Test\s+#\d+: (\S+) \.*\s*(.*?)\s+([\d.]+) sec$")
ACCURACY_LINE = re.compile(r"test accuracy ([\d.]+) after ([\d.]+) s of training")

# What compute-sanitizer says where it cannot work: on virtual machines that hide the debugger's interface, say.
REFUSED = re.compile(r"not supported|Failed to initialize|unable to|InitializationError|No attachable process|error 999",
                     re.IGNORECASE)

# Work for the sanitizers: small, but with ragged ends; of several blocks, of a few long rows, of a few rows of a product.
SANITIZED = ["copy f32 5001", "add f32 5001", "gelu bf16 5001", "softmax f32 7 1001", "softmax bf16 7 1000",
             "softmax f32 2 20001", "layer_norm f32 7 1001", "layer_norm f32 2 20001", "layer_norm_backward f32 37 101",
             "batch_norm_backward f32 3 20 7", "cross_entropy f32 9 1001", "cross_entropy f32 2 20001",
             "cross_entropy_backward f32 9 1001", "cross_entropy_backward f32 2 20001", "adamw f32 3 5001",
             "linear f32 130 129 70", "linear bf16 130 136 72", "linear f32 3 129 70", "linear bf16 3 136 72",
             "conv2d f32 2 8 9 9 12 3 1 1", "conv2d_bias_relu f32 2 8 9 9 12 3 2 1", "conv2d_backward f32 2 8 9 9 12 3 1 1"]
# What it says of what it found, in case it does not come to its end.
FOUND = re.compile(r"^=========\s+(Invalid|Misaligned|Error: |Program hit|Barrier error)", re.MULTILINE)
# Of that, what it says only where it works.
WORKED = re.compile(r"^=========\s+(Invalid|Misaligned|Error: Race|Barrier error)", re.MULTILINE)


def cached(build, name):
    """A variable of the build's CMake cache."""
    try:
        with open(os.path.join(build, "CMakeCache.txt")) as file:
            for line in file:
                if line.startswith(name + ":"):
                    value = line.rstrip("\n").split("=", 1)[1]
                    return "" if value.endswith("NOTFOUND") else value
    except OSError:
        pass
    return ""


# What the phases run. Everything else, the emulator's tests before all, would only take time of a machine with a GPU.
TARGETS = ["bench_gpu_ops", "classifier", "tapestry-compare", "tapestry-run", "tests_core", "tests_distributed", "tests_gpu",
           "tests_ptx"]
GPU_TESTS = 4  # at a time: they share one GPU, and each takes a part of its memory for itself


def build(check):
    report = check.report
    for name, command in (("nvcc", ["nvcc", "--version"]), ("CMake", ["cmake", "--version"]),
                          ("PyTorch", [sys.executable, "-c", "import torch; print(torch.__version__, torch.version.cuda, "
                                       "'cuda' if torch.cuda.is_available() else 'sees no GPU')"])):
        found = run(command, 120)
        if name == "nvcc" and not found.ok:  # not on the PATH, perhaps, but where CMake finds it
            continue
        text = [line for line in found.text.splitlines() if line.strip()]
        report.row("build", name, "passed" if found.ok else "failed", seconds=found.seconds,
                   note=text[-2 if name == "nvcc" else 0] if found.ok and text else found.tail())
    log = check.log("configure")
    command = ["cmake", "--preset", "gpu", "-B", check.build, "-DPYTHON3_PROGRAM=" + sys.executable]
    capability = report.content["about"]["capability"].replace(".", "")
    if capability.isdigit():
        command.append("-DTAPESTRY_CUDA_ARCHITECTURES=" + capability)
    found = check.run(command, log)
    check.step("build", "configure", found)
    if not found.ok:
        return
    for name, library, header in (("NCCL", "NCCL_LIBRARY", "NCCL_INCLUDE_DIR"),
                                  ("cuDNN", "CUDNN_LIBRARY", "CUDNN_INCLUDE_DIR")):
        where, headers = cached(check.build, library), cached(check.build, header)
        report.row("build", name, "passed" if where and headers else "failed",
                   note=where if where and headers else
                   "not found in the toolkit, the system or Python's nvidia packages; CMake's "
                   f"{library} and {header} say where it is")
    # Whatever is wrong so far, or with one file: the other programs can be tried.
    command = ["cmake", "--build", check.build, "--parallel", str(check.jobs),
               *([] if check.all else ["--target", *TARGETS]), "--", "-k", "0"]
    found = check.run(command, check.log("compile"))
    errors = [line.strip() for line in found.text.splitlines() if re.search(r"\berror\b|undefined reference", line)]
    check.step("build", "compile", found, " / ".join(errors[:6]))


def ctest(check, name, select, each, jobs=None):
    """One row for the run, one for each test that did not pass, or with `each` for all."""
    report, passed, total, others = check.report, 0, 0, 0

    def on_line(line):
        nonlocal passed, total, others
        match = TEST_LINE.match(line)
        if not match:
            return
        total, test, seconds = int(match[1]), match[2], float(match[4])
        ok = match[3] == "Passed"
        result = match[3].replace("***", " ").strip()
        skipped = result == "Skipped"  # "Not Run": its program is not there
        passed += ok
        others += skipped
        report.row("test", name, "running", note=f"{passed} of {total} passed so far")
        if each or not ok:
            report.row("test", test, "passed" if ok else "not run" if skipped else "failed", seconds=seconds,
                       note="" if ok else f"{result}; see {os.path.basename(log)}")

    log = check.log(name.replace(" ", "-"))
    command = ["ctest", "--test-dir", check.build, "--output-on-failure", "--timeout", "300", "--parallel",
               str(min(check.jobs, jobs or check.jobs)), "--no-tests=error", *select]
    found = check.run(command, log, environment=check.require, on_line=on_line)
    report.keep(log)
    ok = found.ok and total > 0
    note = f"{passed} of {total} passed" + (f", {others} not run" if others else "")
    report.row("test", name, "passed" if ok else "failed", seconds=found.seconds,
               note=note if ok or passed < total else note + "; " + found.tail())


def refused(found):
    """Whether compute-sanitizer itself could not work, rather than found anything."""
    return (not found.ok and REFUSED.search(found.text) and not WORKED.search(found.text)
            and "ERROR SUMMARY: 0 errors" not in found.text)


def sanitize(check):
    tool = shutil.which("compute-sanitizer")
    toolkit = cached(check.build, "CMAKE_CUDA_COMPILER")
    beside = os.path.join(os.path.dirname(toolkit), "compute-sanitizer")
    tool = tool or (beside if os.path.exists(beside) else None)
    instructions = "instructions", [check.program("tests_ptx")], None
    operations = ("operations", [check.program("bench_gpu_ops"), "cuda"],
                  "".join(f"start {work}\n" for work in SANITIZED))
    models = "models", [check.program("tests_gpu"), "-#", "[#models_test]~[.]"], None
    for kind, programs in (("memcheck", [instructions, operations]), ("racecheck", [instructions, operations]),
                           ("memcheck", [models])):
        for what, command, text in programs:
            name = f"compute-sanitizer {kind}: {what}"
            why = "compute-sanitizer was not found" if not tool else "dry run" if check.dry else ""
            if not why and not os.path.exists(command[0]):
                why = f"{os.path.basename(command[0])} is not built"
            if why:
                check.report.row("test", name, "not run", note=why)
                continue
            log = check.log(f"{kind}-{what}")
            found = check.run([tool, "--tool", kind, "--error-exitcode", "99", *command], log, limit=120, text=text,
                              # Otherwise a block's end is not the end of what may be touched.
                              environment={**check.require, "TAPESTRY_CUDA_ALLOCATOR": "system"})
            check.report.keep(log)
            failures = [line for line in found.text.splitlines() if line.startswith("failed ")]
            missing = sum(line.startswith("none ") for line in found.text.splitlines())
            went = sum(line.startswith("ok ") for line in found.text.splitlines())
            if refused(found):
                check.report.row("test", name, "not run", seconds=found.seconds, note="refused: " + found.tail(3))
            elif found.status is None and not FOUND.search(found.text):
                check.report.row("test", name, "not run", seconds=found.seconds, note="took longer than its time" + (
                    f"; {went} of {len(SANITIZED)} operations went, the last lines: {found.tail(3)}" if text else ""))
            else:
                note = found.tail() if not found.ok else failures[0] if failures else "0 errors"
                note += f"; {missing} operations have no kernel" if missing else ""
                check.report.row("test", name, "passed" if found.ok and not failures else "failed",
                                 seconds=found.seconds, note=note)


def answers(check):
    """Whether a GPU does anything at all: tests that see none may only have been left out."""
    found = check.run([check.program("bench_gpu_ops"), "cuda"], check.log("gpu"), limit=120, text="start copy f32 5001\n")
    ok = found.ok and any(line.startswith("ok ") for line in found.text.splitlines())
    check.report.row("test", "a GPU answers", "passed" if ok else "failed", seconds=found.seconds,
                     note="" if ok else found.tail())
    return ok


def test(check):
    if check.dry:
        ctest(check, "tests of the instructions", ["-R", "^ptx\\."], each=True)
        sanitize(check)
    elif answers(check):
        ctest(check, "tests of the GPU", ["-L", "^gpu$", "-LE", "long|^device$"], each=True, jobs=GPU_TESTS)
        sanitize(check)
        if check.all:
            ctest(check, "all other tests", ["-LE", "^gpu$|long|tools"], each=False)


def accuracy(found):
    """(accuracy, seconds) from the last line of a classifier's run."""
    match = None
    for match in ACCURACY_LINE.finditer(found.text):
        pass
    return (float(match[1]), float(match[2])) if found.ok and match else None


def classifier(check, device):
    where = os.path.join(check.folder, f"classifier-{device}")
    shutil.rmtree(where, ignore_errors=True)
    data = ["--data", "fashion-mnist"] + (["--data-dir", check.data] if check.data else [])
    if check.dry:
        data = ["--data", "synthetic", "--synthetic-size", "64", "--epochs", "1", "--batch-size", "32", "--model", "mlp",
                "--threads", "1", "--workers", "0"]
        device = "cpu"
    command = [check.program("classifier"), "--seed", "1", "--device", device, "--run-dir", where, *data]
    log = check.log(f"classifier-{os.path.basename(where)}")
    found = check.run(command, log, limit=270)
    check.report.keep(log)
    return found


# The CPU's accuracy with seeds 1 to 3 spans 0.003.
LEAST_ACCURACY, ACCURACY_RANGE = 0.910, 0.006


def train(check):
    report = check.report
    nccl_ranks(check)
    ways_of_training(check)
    on_gpu = classifier(check, "cuda")
    result = accuracy(on_gpu)
    if not result:
        report.row("train", "classifier on cuda", "failed", seconds=on_gpu.seconds, note=on_gpu.tail())
        return
    report.row("train", "classifier on cuda", "running", value=result[0], unit="test accuracy",
               note=f"{result[1]:.1f} s of training; the CPU's accuracy was not there yet")
    on_cpu = classifier(check, "cpu")
    peer = accuracy(on_cpu)
    if on_cpu.status is None:
        report.row("train", "classifier on cuda", "passed" if result[0] >= LEAST_ACCURACY else "failed", value=result[0],
                   unit="test accuracy", note=f"at least {LEAST_ACCURACY} is asked for; {result[1]:.1f} s of training; "
                   f"the CPU's run, to compare with, took more than its {on_cpu.seconds:.0f} s")
        return
    if not peer:
        report.row("train", "classifier on cuda", "failed", value=result[0], unit="test accuracy",
                   note="nothing to compare it with, the CPU's run failed: " + on_cpu.tail())
        return
    ok = result[0] >= max(LEAST_ACCURACY, peer[0] - ACCURACY_RANGE)
    status = "fake" if check.dry else "passed" if ok else "failed"
    report.row("train", "classifier on cuda", status, value=result[0], unit="test accuracy",
               peer=peer[0], peer_name="the CPU with the same seed",
               note=f"at least {LEAST_ACCURACY} and {ACCURACY_RANGE} less than the CPU's are asked for; "
                    f"{result[1]:.1f} s of training, the CPU {peer[1]:.1f} s with {os.cpu_count()} cores")


def nccl_ranks(check):
    """Two ranks that NCCL takes for two hosts, since it refuses two on one GPU of one host."""
    name = "two NCCL ranks on one GPU"
    if check.dry:
        check.report.row("train", name, "not run", note="dry run")
        return
    command = [check.program("tapestry-run"), "--standalone", "--nproc-per-node", "2", "bash", "-c",
               'NCCL_HOSTID=tapestry-$RANK exec "$0" "$@"', check.program("tests_distributed"),
               "two ranks over NCCL share a GPU"]
    log = check.log("nccl-ranks")
    found = check.run(command, log, limit=120, environment=check.require)
    check.report.keep(log)
    if found.ok:
        check.report.row("train", name, "passed", seconds=found.seconds)
    elif re.search(r"ncclCommInit|Duplicate GPU|invalid usage", found.text):
        check.report.row("train", name, "not run", seconds=found.seconds, note="NCCL does not join: " + found.tail(4))
    else:
        check.report.row("train", name, "failed", seconds=found.seconds, note=found.tail())


def ways_of_training(check):
    """DataParallel, a split model and pipelines, on two logical devices of the GPU; all must end as one device does."""
    name = "ways of training on two devices"
    modes = "single,dp-master,dp-replicated,model,pipeline-1f1b,pipeline-gpipe,pipeline-zero-bubble"
    what = ["--device", "cuda", "--model", "cnn", "--modes", modes]
    if check.dry:
        what = ["--device", "cpu", "--model", "mlp", "--modes", "single,model", "--batch-size", "4", "--image-size", "8",
                "--steps", "1", "--warmup", "1", "--threads", "1"]
    log = check.log("ways")
    found = check.run([check.program("tapestry-compare"), "--devices", "2", "--rounds", "1", "--timeout", "60", *what], log,
                      limit=150, environment={**check.require, "TAPESTRY_LOGICAL_DEVICES": "2"})
    check.report.keep(log)
    status = ("fake" if check.dry else "passed") if found.ok else "failed"
    check.report.row("train", name, status, seconds=found.seconds, note="" if found.ok else found.tail())


def benchmarks(check):
    device = "cpu" if check.dry else "cuda"
    program = check.program("bench_gpu_ops")
    if not os.path.exists(program):
        check.report.row("bench", "bench_gpu_ops", "failed", note="it is not built: tools/gpu_check build")
        return
    peer = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer.py"), device]
    bench.run(check.report, [program, device], peer, check.deadline, fake=check.dry)


PHASES = {"build": build, "test": test, "train": train, "bench": benchmarks}
