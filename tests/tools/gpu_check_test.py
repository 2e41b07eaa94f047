"""tools/gpu_check's logic, with stand-ins for the programs that it calls, and one dry run of the real ones.
usage: gpu_check_test.py [BUILD_FOLDER]; without one there is no dry run"""
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import unittest.mock

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools/gpu"))
import bench  # noqa: E402
import check  # noqa: E402
import phases  # noqa: E402
import process  # noqa: E402
from report import PHASE, Report  # noqa: E402

BUILD = None
ABOUT = {"device": "A", "driver": "1", "commit": "c", "dry_run": False}


class Case(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def program(self, name, body, interpreter="#!/bin/bash"):
        path = os.path.join(self.folder, "bin", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(f"{interpreter}\n{body}\n")
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return path

    def report(self, **about):
        return Report(os.path.join(self.folder, "results"), {**ABOUT, **about}, os.path.join(self.folder, "also"))

    def saved(self, folder="results"):
        with open(os.path.join(self.folder, folder, "gpu_check.json")) as file:
            return {row["name"]: row for row in json.load(file)["rows"]}

    def call(self, *arguments, path=None, **options):
        """tools/gpu_check with this test's programs first on the PATH."""
        environment = {**os.environ, "PATH": path or os.path.join(self.folder, "bin") + ":" + os.environ["PATH"]}
        return subprocess.run([os.path.join(ROOT, "tools/gpu_check"), "--folder", os.path.join(self.folder, "results"),
                               *arguments], env=environment, text=True, capture_output=True, timeout=120, check=False,
                              **options)


class Reports(Case):
    def test_rows_are_written_as_they_come_and_replaced(self):
        report = self.report()
        report.begin("test")
        self.assertEqual(self.saved()[PHASE]["status"], "running")
        report.row("test", "a", "failed", note="why | so")
        report.row("test", "a", "passed", seconds=1.5)
        self.assertEqual(self.saved("also")["a"]["status"], "passed")
        self.assertEqual(report.failed({"test"}), [])
        report.row("test", "b", "running")
        self.assertEqual(len(report.failed({"test"})), 1)
        report.end("test", 1.0)
        self.assertEqual(self.saved()[PHASE]["status"], "done")
        report.begin("test")
        self.assertEqual(list(self.saved()), [PHASE])
        with open(os.path.join(self.folder, "also/gpu_check.md")) as file:
            self.assertIn(f"{PHASE} | running", file.read())

    def test_other_phases_of_the_same_machine_and_commit_stay(self):
        self.report().row("build", "a", "passed")
        report = self.report()
        report.begin("test")
        self.assertEqual(list(self.saved()), ["a", PHASE])
        self.assertEqual(report.failed({"build"}), [])
        for other in ({"commit": "d"}, {"device": "B"}, {"dry_run": True}):
            self.assertEqual(self.report(**other).rows, [])

    def test_logs_are_one_file(self):
        report = self.report()
        for name in ("a", "b", "a"):
            with open(os.path.join(self.folder, name), "w") as file:
                file.write(name)
            report.keep(file.name)
        with tarfile.open(os.path.join(self.folder, "also/logs.tar.gz")) as tar:
            self.assertEqual(sorted(tar.getnames()), ["a", "b"])

    def test_a_broken_file_is_begun_anew(self):
        os.makedirs(os.path.join(self.folder, "results"))
        with open(os.path.join(self.folder, "results/gpu_check.json"), "w") as file:
            file.write('{"rows": [')
        self.assertEqual(self.report().rows, [])


class Processes(Case):
    def test_a_program_is_stopped_at_its_limit_with_all_it_started(self):
        start = time.monotonic()
        found = process.run(["bash", "-c", "echo begun; sleep 60 & sleep 60"], 0.5)
        self.assertLess(time.monotonic() - start, 10)
        self.assertIsNone(found.status)
        self.assertIn("begun", found.text)
        self.assertIn("time limit", found.tail())

    def test_who_leaves_its_session_and_keeps_the_output_is_not_waited_for(self):
        with unittest.mock.patch.object(process, "GRACE", 0.5):
            start = time.monotonic()
            found = process.run(["bash", "-c", "setsid sleep 5 & echo begun; sleep 60"], 0.5)
        self.assertLess(time.monotonic() - start, 4)
        self.assertIsNone(found.status)
        self.assertIn("begun", found.text)

    def test_output_comes_line_by_line_and_to_the_log(self):
        lines, log = [], os.path.join(self.folder, "log")
        found = process.run(["bash", "-c", "cat; echo b >&2; exit 3"], 10, log=log, on_line=lines.append, text="a\n")
        self.assertEqual((found.status, lines), (3, ["a", "b"]))
        with open(log) as file:
            self.assertEqual(file.read(), "a\nb\n")
        self.assertFalse(process.run(["/nonexistent"], 1).ok)

    def test_dialogues_end(self):
        silent = process.Dialogue(["sleep", "60"])
        self.assertIn("no answer", silent.ask("x", 0.2))
        self.assertFalse(silent.alive)
        self.assertTrue(silent.ask("x", 0.2).startswith("failed"))
        late = process.Dialogue(["sleep", "60"], deadline=time.monotonic() + 0.2)
        start = time.monotonic()
        self.assertIn("no answer", late.ask("x", 30))
        self.assertLess(time.monotonic() - start, 10)
        gone = process.Dialogue(["bash", "-c", "read line; echo ok; exit 5"])
        self.assertEqual(gone.ask("x", 5), "ok")
        self.assertIn("status 5", gone.ask("x", 5))


CTEST = r"""
cat <<END
Test project x
      Start  1: core.a
1/7 Test  #1: core.a ...........................   Passed    0.05 sec
2/7 Test #12: core.b ...........................***Failed    0.50 sec
it said so
3/7 Test  #3: core.c ...........................***Timeout 300.03 sec
4/7 Test  #4: core.d ...........................***Skipped   0.00 sec
5/7 Test  #5: core.e ...........................***Not Run   0.00 sec
6/7 Test  #6: core.f ...........................***Exception: SegFault  0.01 sec
7/7 Test  #7: core.g ...........................Subprocess aborted***Exception:   0.01 sec
END
"""


class Tests(Case):
    def setUp(self):
        super().setUp()
        self.program("bench_gpu_ops", "while read -r line; do echo ok 1; done")

    def test_no_gpu(self):
        self.program("ctest", "echo '1/1 Test #1: core.a ......   Passed    0.05 sec'")
        self.program("bench_gpu_ops", "echo 'failed there are no CUDA devices'")
        self.assertEqual(self.call("test", "--build-dir", self.folder).returncode, 1)
        rows = self.saved()
        self.assertEqual(rows["a GPU answers"]["status"], "failed")
        self.assertNotIn("tests of the GPU", rows)

    def test_each_result_of_ctest_is_seen(self):
        self.program("ctest", CTEST + 'echo "$* $TAPESTRY_REQUIRE_CUDA" >"$(dirname "$0")/called"; exit 8')
        done = self.call("test", "--build-dir", self.folder)
        self.assertEqual(done.returncode, 1, done.stdout)
        rows = self.saved()
        self.assertEqual({name: row["status"] for name, row in rows.items() if name.startswith("core.")},
                         {"core.a": "passed", "core.b": "failed", "core.c": "failed", "core.d": "not run",
                          "core.e": "failed", "core.f": "failed", "core.g": "failed"})
        self.assertIn("SegFault", rows["core.f"]["note"])
        self.assertIn("Subprocess aborted", rows["core.g"]["note"])
        self.assertEqual(rows["tests of the GPU"]["status"], "failed")
        self.assertIn("1 of 7 passed", rows["tests of the GPU"]["note"])
        with open(os.path.join(self.folder, "bin/called")) as file:
            self.assertTrue(file.read().strip().endswith(" 1"))

    def test_all_passed(self):
        self.program("ctest", "echo '1/1 Test #1: core.a ......   Passed    0.05 sec'")
        done = self.call("test", "--build-dir", self.folder)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.program("bench_gpu_ops", "echo of no interest >&2; while read -r line; do echo ok 1; done")
        self.assertEqual(self.call("test", "--build-dir", self.folder).returncode, 0)
        self.program("ctest", "echo nothing")
        self.assertEqual(self.call("test", "--build-dir", self.folder).returncode, 1)

    def test_a_killed_run_keeps_what_it_had(self):
        self.program("ctest", "echo '1/2 Test #1: core.a ......   Passed    0.05 sec'; sleep 5")
        command = [os.path.join(ROOT, "tools/gpu_check"), "test", "--build-dir", self.folder, "--folder",
                   os.path.join(self.folder, "results")]
        run = subprocess.Popen(command, env={**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"},
                               stdout=subprocess.DEVNULL)
        for _ in range(200):
            time.sleep(0.05)
            if os.path.exists(os.path.join(self.folder, "results/gpu_check.json")) and "core.a" in self.saved():
                break
        run.kill()
        run.wait()
        rows = self.saved()
        self.assertEqual(rows["core.a"]["status"], "passed")
        self.assertEqual(rows[PHASE]["status"], "running")
        self.assertEqual(rows["tests of the GPU"]["note"], "1 of 2 passed so far")

    def test_a_sanitizer_that_cannot_work_is_no_failure(self):
        self.program("ctest", "echo '1/1 Test #1: core.a ......   Passed    0.05 sec'")
        self.program("tests_ptx", "echo fine")
        self.program("tests_gpu", "echo fine")
        for body, status in (("echo 'Error: Device not supported. Please refer to'; exit 1", "not run"),
                             ("shift 4; \"$@\"; echo '========= ERROR SUMMARY: 0 errors'", "passed"),
                             ("echo '========= Invalid __global__ write of size 4 bytes'; echo unable to go on; exit 99",
                              "failed"),
                             ("echo '========= Program hit cudaErrorUnknown (error 999)'; exit 99", "not run"),
                             ("echo 'failed [bench] wrong'; echo '========= ERROR SUMMARY: 0 errors'", "failed")):
            self.program("compute-sanitizer", body)
            self.call("test", "--build-dir", self.folder)
            self.assertEqual(self.saved()["compute-sanitizer memcheck: operations"]["status"], status, body)
            self.assertEqual(self.saved()["compute-sanitizer memcheck: models"]["status"], status, body)

    def test_a_sanitizer_that_is_stopped_has_found_what_it_said(self):
        self.program("ctest", "echo '1/1 Test #1: core.a ......   Passed    0.05 sec'")
        self.program("tests_ptx", "echo fine")
        for body, status in (("echo ok 1; echo ok 2; sleep 60", "not run"),
                             ("echo '========= Invalid __global__ write of size 4 bytes'; sleep 60", "failed")):
            self.program("compute-sanitizer", f'case "$*" in *bench_gpu_ops*) {body} ;; esac')
            self.call("test", "--build-dir", self.folder, "--minutes", "0.05")
            row = self.saved()["compute-sanitizer memcheck: operations"]
            self.assertEqual(row["status"], status)
            self.assertIn(f"2 of {len(phases.SANITIZED)} operations" if status == "not run" else "Invalid", row["note"])


class Runs(Case):
    def test_what_is_not_built_is_built_first_in_the_same_time(self):
        folder = os.path.join(self.folder, "build")
        self.program("cmake", f"[[ $1 == --build ]] && mkdir -p {folder}/bin && sleep 1 && "
                              f"printf '#!/bin/bash\nwhile read -r l; do echo ok 1; done' >{folder}/bin/bench_gpu_ops && "
                              f"chmod +x {folder}/bin/bench_gpu_ops; echo cmake 4")
        self.program("ctest", "echo '1/1 Test #1: core.a ......   Passed    0.05 sec'")
        self.call("test", "--build-dir", folder, "--minutes", "5")
        with open(os.path.join(self.folder, "results/gpu_check.json")) as file:
            rows = json.load(file)["rows"]
        self.assertEqual([row["phase"] for row in rows if row["name"] == PHASE], ["build", "test"])
        self.assertGreater(next(row["seconds"] for row in rows if (row["phase"], row["name"]) == ("test", PHASE)), 1)
        self.assertIn("core.a", [row["name"] for row in rows])
        self.call("test", "--build-dir", folder)  # and now it is there
        with open(os.path.join(self.folder, "results/gpu_check.json")) as file:
            self.assertEqual({row["when"] for row in json.load(file)["rows"] if row["phase"] == "build"},
                             {row["when"] for row in rows if row["phase"] == "build"})

    def test_its_own_start_counts(self):
        self.program("bench_gpu_ops", "")
        self.program("nvidia-smi", "sleep 1; echo A, 1, 2 MiB, 9.0")
        self.call("test", "--build-dir", self.folder)
        self.assertGreater(self.saved()[PHASE]["seconds"], 1)

    def test_a_mistake_in_a_phase_is_its_failure(self):
        one = check.Check(check.parse(["--dry-run", "--build-dir", self.folder,
                                       "--folder", os.path.join(self.folder, "results")]))
        with unittest.mock.patch.dict(phases.PHASES, {"test": lambda _: {}["x"]}):
            one.phase("test")
        self.assertEqual(self.saved()["tools/gpu_check itself"]["note"], "KeyError: 'x'")
        self.assertEqual(len(one.report.failed({"test"})), 1)


class Builds(Case):
    def build(self, cache, cmake_status=0):
        self.program("nvcc", "echo 'Build cuda_13'; echo more")
        folder = os.path.join(self.folder, "build")
        self.program("cmake", f"[[ $1 == --version ]] && echo cmake version 3.30 && exit; mkdir -p {folder}; "
                              f"printf '{cache}' >{folder}/CMakeCache.txt; echo called \"$@\"; exit {cmake_status}")
        done = self.call("build", "test", "--build-dir", folder)
        return done, self.saved()

    def setUp(self):
        super().setUp()
        self.program("python3", f'case "$*" in *"import torch"*) echo 2.15 ;; *) exec {sys.executable} "$@" ;; esac')

    def test_what_is_missing_fails(self):
        headers = "NCCL_INCLUDE_DIR:PATH=/x\\nCUDNN_INCLUDE_DIR:PATH=/x\\n"
        done, rows = self.build(headers + "NCCL_LIBRARY:FILEPATH=/x/libnccl.so\\nCUDNN_LIBRARY:FILEPATH=CUDNN_LIBRARY-NOTFOUND\\n")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(rows["NCCL"]["status"], "passed")
        self.assertEqual(rows["cuDNN"]["status"], "failed")
        self.assertIn("compile", rows)  # what does not need it can be tried
        self.assertNotIn("tests of the GPU", rows)  # nothing to test

    def test_a_file_that_does_not_compile_is_named(self):
        self.program("cmake", "[[ $1 == --version ]] && echo cmake version 3.30 && exit; [[ $1 == --build ]] || exit 0; "
                              "echo a.cu:7: error: no such thing; seq 100; echo ninja: stopped; exit 1")
        self.call("build", "--build-dir", self.folder)
        self.assertEqual(self.saved()["compile"]["note"], "a.cu:7: error: no such thing")

    def test_configure_fails(self):
        self.program("nvidia-smi", "echo A, 1, 2 MiB, 9.0")
        done, rows = self.build("", 1)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(rows["configure"]["note"], f"called --preset gpu -B {self.folder}/build .*-DTAPESTRY_CUDA_ARCHITECTURES=90")
        self.assertNotIn("compile", rows)

    def test_command_line(self):
        self.assertEqual(self.call("tset").returncode, 2)
        self.assertEqual(self.call("--jobs", "0").returncode, 2)
        bare = os.path.join(self.folder, "bare")
        os.makedirs(bare)
        for name in ("bash", "dirname"):
            os.symlink(shutil.which(name), os.path.join(bare, name))
        self.assertIn("there is no python3", self.call(path=bare).stderr)


def times(ours, peer, copy=None):
    found = {"ours": [ours] * 7, "peer": [peer] * 7}
    return {**found, "copy": [copy] * 7} if copy else found


class Talker:
    def __init__(self, *answers):
        self.answers = list(answers)

    def ask(self, _line, _limit):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


class Benchmarks(Case):
    def bench(self, ours, peer=Talker("ok 1"), copier=Talker("ok 1"), fake=False):
        return bench.Bench(self.report(), lambda: ours, peer, copier, fake)

    def test_goals(self):
        b = self.bench(None)
        speed, cost = bench.Item("linear f32 8 8 8", 1.0), bench.Item("eager_mul f32 500", 0.5, kind="cost")
        self.assertTrue(b.judge(speed, times(2.0, 2.0))["reached"])
        self.assertFalse(b.judge(speed, times(2.1, 2.0))["reached"])
        self.assertTrue(b.judge(cost, times(1.0, 2.0))["reached"])
        self.assertFalse(b.judge(cost, times(1.1, 2.0))["reached"])
        n = 1 << 28
        memory = bench.Item(f"gelu f32 {n}", 0.95, passes=2)
        row = b.judge(memory, times(1.0, 5.0, 0.96))
        self.assertAlmostEqual(row["ratio"], 0.96)
        self.assertTrue(row["reached"])
        self.assertFalse(b.judge(memory, times(1.0, 5.0, 0.94))["reached"])
        half = bench.Item(f"gelu bf16 {n}", 0.95, passes=2)
        self.assertAlmostEqual(b.judge(half, times(1.0, 5.0, 0.96))["ratio"], 0.48)
        self.assertFalse(b.judge(half, times(1.0, 5.0))["reached"])  # there was no copy

    def test_layers_share_a_goal(self):
        b = self.bench(None)
        for ratio in (0.5, 2.0, 0.9):
            b.judge(bench.Item(f"conv2d f32 {ratio}", 0.85, mean_of="conv2d"), times(1.0, ratio))
        b.mean("conv2d")
        row = self.saved()["conv2d: all layers"]
        self.assertAlmostEqual(row["ratio"], 0.9 ** (1 / 3))
        self.assertTrue(row["reached"])

    def test_results_are_compared(self):
        self.assertEqual(bench.differs("ok 1 2 3", "ok 1 2 3.0001", bench.TOLERANCE["f32"]), "")
        self.assertIn("differs", bench.differs("ok 1 2 3", "ok 1 2 3.01", bench.TOLERANCE["f32"]))
        self.assertEqual(bench.differs("ok 1 2 3", "ok 1 2 3.01", bench.TOLERANCE["bf16"]), "")
        for wrong in ("ok nan 2 3", "ok 1 2 inf", "ok 1 2", "ok"):
            self.assertNotEqual(bench.differs(wrong, "ok 1 2 3", bench.TOLERANCE["f32"]), "")

    def test_programs_that_cannot(self):
        item = bench.Item("linear f32 8 8 8", 1.0)
        for ours, status in ((Talker("none [gemm] no kernel"), "no kernel"), (Talker("failed out of memory"), "failed"),
                             (Talker("ok 2"), "failed"), (Talker("ok 1", "failed died"), "failed")):
            self.assertEqual(self.bench(ours).measure(item)["status"], status)
        self.assertIn("differs from PyTorch", self.bench(Talker("ok 2")).measure(item)["note"])
        b = self.bench(Talker("ok 1"), copier=Talker("failed no torch"))
        self.assertEqual(self.saved()["copy"]["status"], "not run")
        self.assertFalse(b.can_copy)

    def test_without_pytorch_ours_is_measured(self):
        program = self.program("ours", "while read -r word rest; do [[ $word == start ]] && echo ok 1 || echo 0.5; done")
        count = os.path.join(self.folder, "started")
        peer = self.program("peer", f"echo >>{count}; while read -r line; do echo failed no torch; done")
        works = ["linear f32 8 8 8", "gelu f32 1000", "eager_mul f32 5"] + [f"conv2d f32 {n}" for n in range(6)]
        items = [bench.Item(works[0], 1.0), bench.Item(works[1], .95, 2), bench.Item(works[2], .5, kind="cost"),
                 *(bench.Item(work, .85, mean_of="conv2d") for work in works[3:])]
        with unittest.mock.patch.object(bench, "items", lambda: items):
            bench.run(self.report(), [program], [peer], time.monotonic() + 60)
        rows = self.saved()
        for work in works:
            self.assertEqual((rows[work]["status"], rows[work]["value"], rows[work]["ratio"]), ("measured", 0.5, None))
            self.assertIn("PyTorch", rows[work]["note"])
        self.assertFalse(rows["gelu f32 1000"]["reached"])
        self.assertNotIn("conv2d: all layers", rows)
        with open(count) as file:
            self.assertEqual(len(file.readlines()), 1 + bench.MOST_SILENT)  # and the one that copies

    def test_turns(self):
        asked = []

        class Timed(Talker):
            def ask(self, line, limit):
                asked.append((self, line))
                return "ok 1" if line.startswith("start") else "0.5"

        ours, peer = Timed(), Timed()
        row = self.bench(ours, peer).measure(bench.Item("linear f32 8 8 8", 1.0))
        self.assertEqual((row["status"], row["ratio"]), ("measured", 1.0))
        turns = [who for who, line in asked if line == "time 40"]  # 20 ms of calls of 0.5; the first does not count
        self.assertEqual(turns, [ours, peer] * (1 + bench.ROUNDS))

    def test_a_wrong_result_is_timed_and_has_failed(self):
        row = self.bench(Talker("ok 2", "0.5"), Talker("ok 1", "0.9")).measure(bench.Item("linear f32 8 8 8", 1.0))
        self.assertEqual((row["status"], row["value"], row["peer"], row["reached"]), ("failed", 0.5, 0.9, False))
        self.assertIn("differs from PyTorch", row["note"])
        b = self.bench(Talker("ok 2", "0.5"), Talker("ok 1", "0.9"))
        b.measure(bench.Item("conv2d f32 1", 0.85, mean_of="conv2d"))
        self.assertEqual(b.ratios, {})

    def test_a_bare_launch_has_no_peer(self):
        class Nobody:
            def ask(self, line, _limit):
                raise AssertionError(line)

        b = self.bench(Talker("ok 1", "0.002"), Nobody())
        row = b.measure(bench.Item("launch f32 500", None, kind="launch"))
        self.assertEqual((row["status"], row["value"], "goal" in row), ("measured", 0.002, False))
        row = b.judge(bench.Item("eager_mul_backward f32 500", 0.5, kind="cost", launches=2), times(0.005, 0.009))
        self.assertIn("0.004 of that, the frameworks themselves 0.001 and 0.005", row["note"])
        self.assertFalse(row["reached"])  # the goal is one of the whole

    def test_what_has_its_own_goal_comes_before_the_layers(self):
        alone = [item.mean_of is None for item in bench.items()]
        self.assertEqual(alone, sorted(alone, reverse=True))

    def test_a_program_that_hangs_when_time_is_over_has_not_failed(self):
        program = self.program("silent", "sleep 60")
        start = time.monotonic()
        with unittest.mock.patch.object(bench, "items", lambda: [bench.Item("linear f32 8 8 8", 1.0)]):
            bench.run(self.report(), [program], [program], start + 0.3)
        self.assertLess(time.monotonic() - start, 10)
        self.assertEqual(self.saved()["linear f32 8 8 8"]["status"], "not run")

    def test_what_is_left_when_time_is_over_says_so(self):
        program = self.program("ours", "while read -r line; do echo ok; done")
        bench.run(self.report(), [program], [program], time.monotonic() - 1)
        self.assertEqual({row["status"] for row in self.saved().values()}, {"not run"})

    def test_after_a_failure_the_program_is_another(self):
        count = os.path.join(self.folder, "started")
        ours = self.program("ours", f"echo >>{count}; while read -r line; do echo failed an illegal address; done")
        peer = self.program("peer", "while read -r line; do echo ok 1; done")
        with unittest.mock.patch.object(bench, "items", lambda: [bench.Item(f"linear f32 {n}", 1.0) for n in (8, 9)]):
            bench.run(self.report(), [ours], [peer], time.monotonic() + 60)
        with open(count) as file:
            self.assertGreaterEqual(len(file.readlines()), 2)

    def test_bytes(self):
        self.assertAlmostEqual(bench.Item("batch_norm_backward f32 160 64 112", .9, 5).gigabytes,
                               5 * 4 * 160 * 64 * 112 * 112 / 1e9)
        self.assertTrue(all(item.passes is None or item.gigabytes / item.passes * item.passes > 0.24
                            for item in bench.items()))


class Training(Case):
    def test_accuracy_is_read(self):
        line = "test accuracy 0.9180 after 12.5 s of training, seed 1; results in runs/x"
        self.assertEqual(phases.accuracy(process.Run(0, "x\n" + line, 1)), (0.918, 12.5))
        self.assertIsNone(phases.accuracy(process.Run(1, line, 1)))
        self.assertIsNone(phases.accuracy(process.Run(0, "nothing", 1)))

    def train(self, on_gpu, on_cpu, nccl="exit 0", compare="exit 0"):
        self.program("classifier", 'case "$*" in *"--device cuda"*) a=%s ;; *) a=%s ;; esac\n'
                     'echo "test accuracy $a after 3.5 s of training, seed 1"' % (on_gpu, on_cpu))
        self.program("bench_gpu_ops", "")
        self.program("tapestry-run", nccl)
        self.program("tapestry-compare", compare)
        return self.call("train", "--build-dir", self.folder), self.saved()

    def test_the_gpu_must_reach_what_the_cpu_does(self):
        for on_gpu, on_cpu, status in ((0.9180, 0.9170, "passed"), (0.9120, 0.9170, "passed"), (0.9100, 0.9170, "failed"),
                                       (0.9090, 0.9090, "failed")):
            done, rows = self.train(on_gpu, on_cpu)
            self.assertEqual(rows["classifier on cuda"]["status"], status)
            self.assertEqual(done.returncode, int(status == "failed"))

    def test_a_cpu_that_takes_too_long_is_no_failure(self):
        self.program("classifier", 'case "$*" in *"--device cuda"*) ;; *) sleep 60 ;; esac\necho "test accuracy 0.9180 after 3 s of training"')
        self.program("bench_gpu_ops", "")
        self.program("tapestry-run", "exit 0")
        self.program("tapestry-compare", "exit 0")
        done = self.call("train", "--build-dir", self.folder, "--minutes", "0.05")
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("took more than", self.saved()["classifier on cuda"]["note"])

    def test_nccl_that_refuses_is_no_failure_and_wrong_numbers_are(self):
        _, rows = self.train(0.918, 0.917, "echo 'ncclCommInitRankConfig failed: Duplicate GPU detected'; exit 1")
        self.assertEqual(rows["two NCCL ranks on one GPU"]["status"], "not run")
        _, rows = self.train(0.918, 0.917, "echo 'CHECK( on_host<float>(x) == sum )'; exit 1")
        self.assertEqual(rows["two NCCL ranks on one GPU"]["status"], "failed")


    def test_ways_of_training_that_differ_are_a_failure(self):
        for status, found in ((0, "passed"), (1, "failed")):
            done, rows = self.train(0.918, 0.917, compare=f'[[ $TAPESTRY_LOGICAL_DEVICES == 2 ]] && exit {status}; exit 3')
            self.assertEqual(rows["ways of training on two devices"]["status"], found)
            self.assertEqual(done.returncode, status)


class DryRun(Case):
    def test_everything(self):
        if not BUILD:
            self.skipTest("no build folder was given")
        done = self.call("--dry-run", "--build-dir", BUILD, "--out", os.path.join(self.folder, "out"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(os.path.join(self.folder, "out/gpu_check.md")) as file:
            self.assertIn("every figure is fake", file.read())
        rows = self.saved()
        self.assertEqual(rows["ptx.lanes"]["status"], "passed")
        self.assertEqual(rows["classifier on cuda"]["status"], "fake")
        self.assertEqual(rows["ways of training on two devices"]["status"], "fake")
        statuses = {row["status"] for row in rows.values() if row["phase"] == "bench" and row["name"] != PHASE}
        self.assertLessEqual(statuses, {"fake", "no kernel"})
        self.assertEqual(rows["conv2d: all layers"]["status"], "fake")

    def test_work_for_the_sanitizers(self):
        if not BUILD:
            self.skipTest("no build folder was given")
        found = process.run([os.path.join(BUILD, "bin/bench_gpu_ops"), "cpu"], 60,
                            text="".join(f"start {work}\n" for work in phases.SANITIZED))
        self.assertEqual([line[:3] for line in found.text.splitlines()], ["ok "] * len(phases.SANITIZED), found.text)

    def test_nothing_is_built(self):
        self.assertEqual(self.call("--dry-run", "--build-dir", self.folder).returncode, 1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BUILD = sys.argv.pop()
    unittest.main()
