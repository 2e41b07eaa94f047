"""Tests the report and the phases of tools/gpu_check with fake programs, and makes one dry run with the programs of a
build. usage: gpu_check_test.py [BUILD_FOLDER]; without it, the dry run is skipped"""
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
import unittest
import unittest.mock

sys.dont_write_bytecode = True
from gpu_check_case import ROOT, Case  # noqa: E402
import bench  # noqa: E402
import items  # noqa: E402
import pack  # noqa: E402
import phases  # noqa: E402
import process  # noqa: E402
import profiler  # noqa: E402
import values  # noqa: E402
from report import PHASE  # noqa: E402

BUILD = None


class Reports(Case):
    def test_rows_are_written_at_once_and_replaced_by_name(self):
        report = self.report()
        report.begin("test")
        self.assertEqual(self.saved()[PHASE]["status"], "running")
        report.row("test", "a", "failed", note="why | so")
        report.row("test", "a", "passed", seconds=1.5)
        self.assertEqual(self.saved("also")["a"]["status"], "passed")
        self.assertEqual(report.failed({"test"}), [])
        report.end("test", 1.0)
        self.assertEqual(self.saved()[PHASE]["status"], "done")
        self.assertTrue(report.is_done("test"))
        report.forget("test")
        self.assertEqual(report.rows, [])
        with open(os.path.join(self.folder, "also/gpu_check.md")) as file:
            self.assertIn("| a | passed |", file.read())

    def test_a_phase_with_a_row_left_is_not_done(self):
        for status in ("left", "running"):
            report = self.report(commit=status)
            report.begin("test")
            report.row("test", "a", status)
            report.end("test", 1.0)
            self.assertFalse(report.is_done("test"))
            self.assertFalse(report.is_final("test", "a"))
            self.assertEqual(len(report.left({"test"})), 2)  # the unfinished row and the row of its phase
            self.assertEqual(report.failed({"test"}), [])

    def test_rows_of_the_same_machine_and_commit_are_kept(self):
        self.report().row("build", "a", "passed")
        report = self.report()
        report.begin("test")
        self.assertEqual(list(self.saved()), ["a", PHASE])
        for other in ({"commit": "d"}, {"device": "B"}, {"dry_run": True}, {"pack": "1"}):
            self.assertEqual(self.report(**other).rows, [])

    def test_a_row_that_was_running_when_two_calls_ended_has_failed(self):
        for call in range(3):
            report = self.report()
            row = report.find("test", "a")
            if call < 2:
                self.assertFalse(report.is_final("test", "a"))
                report.row("test", "a", "running")  # and the machine goes away
            else:
                self.assertEqual(row["status"], "failed")
                self.assertIn("two calls ended while it ran", row["note"])
        report.forget("test")
        report.row("test", "a", "running")
        report.row("test", "a", "passed")
        self.assertEqual(self.report().find("test", "a")["status"], "passed")

    def test_the_first_result_is_a_small_file_of_its_own(self):
        report = self.report()
        for name, status in (("values: a", "passed"), ("values: b", "passed"), ("values: c", "failed")):
            report.row("smoke", name, status)
        report.row("first", "copy f32 8", "measured", value=0.5, unit="ms", times={"ours": [0.5] * 7})
        report.row("steps", "step_mlp f32 8", "measured", value=0.5, unit="ms")
        report.summarize(("machine", "smoke"), "first")
        with open(os.path.join(self.folder, "also/gpu_first.json")) as file:
            rows = {row["name"]: row for row in json.load(file)["rows"]}
        self.assertEqual(list(rows), ["2 rows", "values: c", "copy f32 8"])
        self.assertEqual(rows["2 rows"]["status"], "passed")
        self.assertNotIn("times", rows["copy f32 8"])
        with open(os.path.join(self.folder, "results/gpu_first.md")) as file:
            text = file.read()
        self.assertIn("| copy f32 8 | measured | 0.5 ms |", text)
        self.assertIn("## smoke: 2 passed, 1 failed", text)

    def test_planted_links_are_not_followed(self):
        report = self.report()
        victim = os.path.join(self.folder, "victim")
        with open(victim, "w") as file:
            file.write("kept")
        for name in ("results/gpu_check.json.new", "also/gpu_check.md.new", "also/gpu_check.json", "also/logs.tar.gz.new",
                     "log"):
            os.symlink(victim, os.path.join(self.folder, name))
        report.row("test", "a", "passed")
        report.keep(victim)
        with self.assertRaises(OSError):
            process.run(["echo", "text"], 10, log=os.path.join(self.folder, "log"))
        self.assertEqual(self.saved()["a"]["status"], "passed")
        with open(victim) as file:
            self.assertEqual(file.read(), "kept")

    def test_all_logs_go_into_one_archive(self):
        report = self.report()
        for name in ("a", "b", "a"):
            with open(os.path.join(self.folder, name), "w") as file:
                file.write(name)
            report.keep(file.name)
        report.keep(os.path.join(self.folder, "missing"))
        with tarfile.open(os.path.join(self.folder, "also/logs.tar.gz")) as tar:
            self.assertEqual(sorted(tar.getnames()), ["a", "b"])

    def test_a_damaged_results_file_is_replaced(self):
        os.makedirs(os.path.join(self.folder, "results"))
        with open(os.path.join(self.folder, "results/gpu_check.json"), "w") as file:
            file.write('{"rows": [')
        self.assertEqual(self.report().rows, [])


class Processes(Case):
    def test_a_program_and_its_children_are_stopped_at_the_limit(self):
        start = time.monotonic()
        found = process.run(["bash", "-c", "echo begun; sleep 60 & sleep 60"], 0.5)
        self.assertLess(time.monotonic() - start, 10)
        self.assertIsNone(found.status)
        self.assertIn("begun", found.text)
        self.assertIn("time limit", found.tail())

    def test_a_child_in_another_session_that_keeps_the_output_is_not_waited_for(self):
        with unittest.mock.patch.object(process, "GRACE", 0.5):
            start = time.monotonic()
            found = process.run(["bash", "-c", "setsid sleep 5 & echo begun; sleep 60"], 0.5)
        self.assertLess(time.monotonic() - start, 4)
        self.assertIsNone(found.status)
        self.assertIn("begun", found.text)

    def test_output_goes_line_by_line_to_the_callback_and_the_log(self):
        lines, log = [], os.path.join(self.folder, "log")
        found = process.run(["bash", "-c", "cat; echo b >&2; exit 3"], 10, log=log, on_line=lines.append, text="a\n")
        self.assertEqual((found.status, lines), (3, ["a", "b"]))
        with open(log) as file:
            self.assertEqual(file.read(), "a\nb\n")
        self.assertFalse(process.run(["/nonexistent"], 1).ok)

    def test_a_dialogue_ends_with_its_program_or_its_deadline(self):
        silent = process.Dialogue(["sleep", "60"])
        self.assertIn("no answer", silent.ask("x", 0.2))
        self.assertFalse(silent.alive)
        self.assertTrue(silent.ask("x", 0.2).startswith("failed"))
        late = process.Program(["sleep", "60"], lambda: 0.2)
        start = time.monotonic()
        self.assertIn("no answer", late.ask("x", 30))
        self.assertLess(time.monotonic() - start, 10)
        self.assertIn("No such file", process.Program(["/nonexistent"]).ask("x", 1))
        gone = process.Dialogue(["bash", "-c", "read line; echo ok; exit 5"])
        self.assertEqual(gone.ask("x", 5), "ok")
        self.assertIn("status 5", gone.ask("x", 5))

    def test_a_program_that_never_answers_is_started_three_times(self):
        count = os.path.join(self.folder, "started")
        silent = process.Program([self.program("silent", f"echo >>{count}; read line; echo failed no torch; exit 1")])
        for _ in range(6):
            self.assertEqual(silent.ask("x", 5), "failed no torch")
            silent.close()
        with open(count) as file:
            self.assertEqual(len(file.readlines()), 3)


class Tests(Case):
    """The phase machine and the tests that use a GPU. Values are not compared here."""

    def setUp(self):
        super().setUp()
        self.ours()
        patch = unittest.mock.patch.object(items, "smoke", list)
        patch.start()
        self.addCleanup(patch.stop)

    def tests(self, **bodies):
        """Creates a test program for each name, and the list of tests."""
        for name, body in bodies.items():
            self.program("tests_" + name, body)
        with open(os.path.join(self.folder, "tests.json"), "w") as file:
            json.dump([{"name": "core." + name, "program": "bin/tests_" + name, "arguments": ["-#"],
                        "environment": {"ONE": "1"}, "skip": "skipped: no"} for name in bodies], file)

    def smoke(self, *arguments, limit=60):
        one = self.check(*arguments, limit=limit)
        one.phase("machine")
        if not one.report.failed({"machine"}):
            one.phase("smoke", one.left())
        one.close()
        return one, self.saved()

    def test_without_a_gpu_no_test_is_run(self):
        self.tests(a="exit 0")
        self.program("bench_gpu_ops", "[[ $2 == libraries ]] && echo ok && exit; echo 'failed there are no CUDA devices'")
        done = self.call("smoke", "--build-dir", self.folder)
        self.assertEqual(done.returncode, 1)
        rows = self.saved()
        self.assertEqual(rows["a GPU answers"]["status"], "failed")
        self.assertNotIn("core.a", rows)
        self.assertRegex(done.stdout, "glibc [0-9.]+; .*absent: .*ncu")

    def test_each_test_becomes_a_row(self):
        self.tests(a='[[ "$* $ONE$TAPESTRY_REQUIRE_CUDA" == "-# 11" && -e $TAPESTRY_SOURCE_DIR/tools/gpu_check ]]',
                   b="echo why; exit 1", c="kill -SEGV $$", d="echo 'skipped: no CUDA device'")
        _, rows = self.smoke()
        self.assertEqual({name: row["status"] for name, row in rows.items() if name.startswith("core.")},
                         {"core.a": "passed", "core.b": "failed", "core.c": "failed", "core.d": "not run"})
        self.assertEqual(rows["core.b"]["note"], "exit status 1; why")
        self.assertEqual(rows["core.c"]["note"], "exit status -11; ")

    def test_the_exit_status_is_0_if_all_tests_passed(self):
        self.tests(a="exit 0")
        self.program("bench_gpu_ops", "echo of no interest >&2; [[ $2 == libraries ]] && echo ok\n"
                                      "while read -r line; do echo ok 1; done")
        done = self.call("counters", "--again", "--build-dir", self.folder)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_phase_that_is_done_is_repeated_only_if_asked(self):
        self.tests(a="exit 0")
        self.assertEqual(self.smoke()[1]["core.a"]["status"], "passed")
        self.tests(a="exit 1")
        self.assertEqual(self.smoke()[1]["core.a"]["status"], "passed")
        done = self.call("smoke", "--build-dir", self.folder, "--commit", "c")
        self.assertIn("done by an earlier call", done.stdout)
        self.assertEqual(done.returncode, 0)

    def test_a_test_that_hangs_when_the_seconds_of_its_phase_are_over_is_left_for_the_next_call(self):
        self.tests(a="exit 0", b="sleep 60")
        one, rows = self.smoke(limit=3)
        self.assertEqual((rows["core.a"]["status"], rows["core.b"]["status"]), ("passed", "left"))
        self.assertEqual(rows[PHASE]["status"], "left")
        self.tests(a="exit 1", b="exit 0")
        one, rows = self.smoke()
        self.assertEqual((rows["core.a"]["status"], rows["core.b"]["status"]), ("passed", "passed"))
        self.assertEqual(one.report.left({"smoke"}), [])

    def test_a_test_that_hangs_longer_than_its_own_time_has_failed(self):
        self.tests(a="exit 0", b="echo begun; sleep 60")
        with unittest.mock.patch.object(phases, "TEST_LIMIT", 0.5):
            _, rows = self.smoke()
        self.assertEqual(rows["core.b"]["status"], "failed")
        self.assertIn("stopped at its time limit; begun", rows["core.b"]["note"])

    def test_tests_of_nccl_need_nccl(self):
        self.program("bench_gpu_ops", "[[ $2 == libraries ]] && echo 'ok NCCL: not available: no file'\n"
                                      "while read -r line; do echo ok 1; done")
        self.tests(nccl_backend="exit 1", a="exit 0")
        _, rows = self.smoke()
        self.assertEqual((rows["core.a"]["status"], rows["core.nccl_backend"]["status"]), ("passed", "not run"))

    def test_a_dry_run_calls_no_nccl(self):
        self.tests(nccl_backend="exit 1", a="exit 0")
        _, rows = self.smoke("--dry-run", "cuda")
        self.assertEqual((rows["core.a"]["status"], rows["core.nccl_backend"]["status"]), ("passed", "not run"))

    def test_ctest_lists_the_tests_of_a_build_tree(self):
        answer = {"tests": [{"name": "gpu.a", "command": [self.folder + "/bin/tests_gpu", "-#", "[#a]"], "properties": [
            {"name": "ENVIRONMENT", "value": ["A=b=c", "D="]},
            {"name": "SKIP_REGULAR_EXPRESSION", "value": ["skipped: no"]}]}]}
        self.program("ctest", f"cat <<'END'\n{json.dumps(answer)}\nEND")
        path = os.path.join(self.folder, "bin") + ":" + os.environ["PATH"]
        with unittest.mock.patch.dict(os.environ, {"PATH": path}):
            self.assertEqual(pack.tests(self.folder), [{
                "name": "gpu.a", "program": "bin/tests_gpu", "arguments": ["-#", "[#a]"],
                "environment": {"A": "b=c", "D": ""}, "skip": "skipped: no"}])


class More(Case):
    def more(self):
        """Runs the phase more without values and times."""
        one = self.check("--again")
        with unittest.mock.patch.object(values, "verify"), unittest.mock.patch.object(bench, "measure_all"):
            one.phase("more")
        return self.saved()

    def test_modes_of_training_that_differ_are_a_failure(self):
        for status, found in ((0, "passed"), (1, "failed")):
            self.program("tapestry-compare", f"[[ $TAPESTRY_LOGICAL_DEVICES == 2 ]] && exit {status}; exit 3")
            self.assertEqual(self.more()["modes of training on two devices"]["status"], found)

    def test_nccl_that_refuses_is_no_failure_and_wrong_numbers_are(self):
        for body, status in (("echo 'ncclCommInitRankConfig failed: Duplicate GPU detected'; exit 1", "not run"),
                             ("echo '[nccl] NCCL was not found: libnccl.so.2 is not here'; exit 1", "not run"),
                             ("echo '[init_process_group] this library was built without NCCL'; exit 1", "not run"),
                             ("echo 'ncclCommInitRankConfig failed on rank 0 (cuda:0): unhandled system error'; exit 1", "not run"),
                             ("echo 'ncclCommInitRankConfig failed on rank 0 (cuda:0): invalid argument'; exit 1", "failed"),
                             ("echo 'ncclAllReduce failed on rank 1 (cuda:0): invalid usage'; exit 1", "failed"),
                             ("echo 'CHECK( on_host<float>(x) == sum )'; exit 1", "failed"), ("exit 0", "passed")):
            self.program("tapestry-run", body)
            self.assertEqual(self.more()["two NCCL ranks on one GPU"]["status"], status)

    def test_groups_of_nccl_need_two_gpus_and_say_so(self):
        self.program("tapestry-run", '[[ $3 == 2 ]] && exit; [[ $3 == gpu && $5 == overlapping* ]] || exit 1\n'
                                     "echo '[rank 0] skipped: 1 GPU is visible, and this test needs 2'")
        with unittest.mock.patch("builtins.print") as printed:
            rows = self.more()
        self.assertEqual(rows["two NCCL ranks on one GPU"]["status"], "passed")
        row = rows["NCCL groups on streams of their own"]
        self.assertEqual((row["status"], row["note"]), ("not run", "skipped: 1 GPU is visible, and this test needs 2"))
        self.assertIn("SKIPPED: NCCL groups on streams of their own: skipped: 1 GPU is visible, and this test needs 2",
                      [call.args[0] for call in printed.call_args_list])

    def sanitize(self, body, limit=60):
        for name in ("tests_ptx", "tests_gpu", "bench_gpu_ops"):
            self.program(name, "while read -r line; do echo ok 1; done")
        one = self.check("--again", limit=limit)
        one.tool = lambda name: self.program(name, body)
        one.report.forget("more")
        phases.sanitize(one)
        return self.saved()

    def test_a_sanitizer_that_cannot_work_is_no_failure(self):
        for body, status in (("echo 'Error: Device not supported. Please refer to'; exit 1", "not run"),
                             ("shift 4; \"$@\"; echo '========= ERROR SUMMARY: 0 errors'", "passed"),
                             ("echo '========= Invalid __global__ write of size 4 bytes'; echo unable to go on; exit 99",
                              "failed"),
                             ("echo '========= Program hit cudaErrorUnknown (error 999)'; exit 99", "not run"),
                             ("echo 'failed [bench] wrong'; echo '========= ERROR SUMMARY: 0 errors'", "failed")):
            rows = self.sanitize(body)
            self.assertEqual(rows["compute-sanitizer memcheck: operations"]["status"], status, body)
            self.assertEqual(rows["compute-sanitizer memcheck: models"]["status"], status, body)

    def test_a_stopped_sanitizer_counts_if_it_had_found_something(self):
        for body, status in (("echo ok 1; echo ok 2; sleep 60", "left"),
                             ("echo '========= Invalid __global__ write of size 4 bytes'; sleep 60", "failed")):
            rows = self.sanitize(f'case "$*" in *bench_gpu_ops*) {body} ;; esac', 2)
            row = rows["compute-sanitizer memcheck: operations"]
            self.assertEqual(row["status"], status)

    def test_a_sanitizer_at_its_own_limit_says_how_far_it_came(self):
        row = phases.of_sanitizer(process.Run(None, "ok 1\nok 2\n", 120), "start x")
        self.assertEqual(row["status"], "not run")
        self.assertIn(f"2 of {len(phases.SANITIZED)} operations", row["note"])


class Runs(Case):
    def test_a_call_builds_first_if_nothing_is_built(self):
        folder = os.path.join(self.folder, "build")
        self.program("cmake", f"[[ $1 == --build ]] && mkdir -p {folder}/bin && "
                              f"printf '#!/bin/bash\n[[ $2 == libraries ]] && echo ok; while read -r l; do echo ok 1; done' "
                              f">{folder}/bin/bench_gpu_ops && chmod +x {folder}/bin/bench_gpu_ops; echo cmake 4")
        for name in ("g++", "ninja"):
            self.program(name, "exit 0")
        done = self.call("counters", "--build-dir", folder, "--limit-s", "300", path=self.folder + "/bin:/usr/bin:/bin")
        self.assertEqual(done.returncode, 0, done.stdout)
        with open(os.path.join(self.folder, "results/gpu_check.json")) as file:
            rows = json.load(file)["rows"]
        self.assertEqual([row["phase"] for row in rows if row["name"] == PHASE], ["machine", "counters"])
        self.assertEqual(self.saved()["compile"]["status"], "passed")
        self.call("counters", "--build-dir", folder)  # the programs exist now, so nothing must be built again
        self.assertNotIn("compile", self.saved())

    def test_the_time_before_the_first_phase_counts(self):
        self.ours()
        self.program("nvidia-smi", "sleep 2; echo A, 1, 2 MiB, 9.0")
        self.program("tapestry-compare", "sleep 60")
        start = time.monotonic()
        done = self.call("more", "--build-dir", self.folder, "--limit-s", "4")
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertIn("call tools/gpu_check again", done.stdout)
        self.assertLess(time.monotonic() - start, 12)

    def test_the_phases_share_the_time(self):
        one, names = self.check(limit=540), list(phases.PHASES)
        self.assertEqual(sum(share for share, _ in phases.PHASES.values()), 540)
        self.assertAlmostEqual(one.seconds_of("machine", names), 30, delta=1)
        one.deadline = time.monotonic() + 300  # what is left when the programs are there
        self.assertAlmostEqual(one.seconds_of("smoke", names), 300 * 180 / 510, delta=1)
        for name in names[1:-1]:
            one.report.end(name, 1)
        self.assertAlmostEqual(one.seconds_of("more", names), 300, delta=1)
        self.assertGreater(one.seconds_of("smoke", names), 200)  # --again: it is not done then

    def test_a_phase_whose_seconds_are_over_says_what_it_skips(self):
        one = self.check()
        with unittest.mock.patch.dict(phases.PHASES, {"steps": (1, lambda c: c.report.row("steps", "a", "left"))}), \
                unittest.mock.patch("builtins.print") as printed:
            one.phase("steps", 7)
        self.assertIn("SKIPPED: the 7 s of steps are over, and 1 rows are left for the next call: a",
                      [call.args[0] for call in printed.call_args_list])

    def test_steps_that_need_more_time_than_there_is_are_left(self):
        one = self.check(limit=600)
        one.until = time.monotonic() + 100
        self.assertIsNone(one.once("train", "a", ["true"], "a", 270))
        self.assertEqual(self.saved()["a"]["status"], "left")
        one.until = time.monotonic() + 250
        self.assertTrue(one.once("train", "a", ["true"], "a", 270).ok)

    def test_an_exception_in_a_phase_is_a_failed_row(self):
        one = self.check("--dry-run", "cpu")
        with unittest.mock.patch.dict(phases.PHASES, {"steps": (1, lambda _: {}["x"])}):
            one.phase("steps")
        self.assertEqual(self.saved()["tools/gpu_check itself"]["note"], "KeyError: 'x'")
        self.assertEqual(len(one.report.failed({"steps"})), 1)


class Machine(Case):
    def machine(self, cmake="", cmake_status=0, **options):
        folder = os.path.join(self.folder, "build")
        self.program("cmake", f"[[ $1 == --version ]] && echo cmake version 3.30 && exit; mkdir -p {folder}; {cmake}\n"
                              f"echo called \"$@\"; exit {cmake_status}")
        done = self.call("machine", "--build-dir", folder, **options)
        return done, self.saved()

    def setUp(self):
        super().setUp()
        for name in ("g++", "ninja"):
            self.program(name, f"echo {name} 1.2")

    def only(self, *names):
        """Returns a PATH with only these fake programs and the few programs that the script itself needs."""
        bare = os.path.join(self.folder, "bare")
        os.makedirs(bare)
        for name in ("bash", "dirname"):
            os.symlink(shutil.which(name), os.path.join(bare, name))
        for name in names:
            os.symlink(os.path.join(self.folder, "bin", name), os.path.join(bare, name))
        return bare

    def test_missing_tools_are_named_before_anything_is_built(self):
        one = self.check()
        one.commit_given = False
        one.build = os.path.join(self.folder, "nothing")
        self.program("cmake", "echo cmake version 3.30")
        with unittest.mock.patch.dict(os.environ, {"PATH": self.only("cmake"), "CXX": ""}):
            one.phase("machine")
        rows = self.saved()
        self.assertEqual({name: rows[name]["status"] for name in ("g++", "ninja", "git", "nvcc", "PyTorch", "ncu")},
                         {"g++": "failed", "ninja": "failed", "git": "not run", "nvcc": "not run", "PyTorch": "not run",
                          "ncu": "not run"})
        self.assertIn("g++ is missing: install a C++20 compiler, or let CXX name one, or bring a pack", rows["g++"]["note"])
        self.assertIn("--commit", rows["git"]["note"])
        self.assertNotIn("configure", rows)

    def test_vendor_libraries_that_are_missing_are_no_failure(self):
        script = ("printf '#!/bin/bash\\necho \"ok cuBLASLt 13.1 (/x) | cuDNN: not available: no file | NCCL 2.28 (/y)\"\\n'"
                  " >%s/build/bin/bench_gpu_ops" % self.folder)
        done, rows = self.machine(f"mkdir -p {self.folder}/build/bin; {script}; chmod +x {self.folder}/build/bin/*")
        self.assertEqual([rows["library " + name]["status"] for name in ("cuBLASLt", "cuDNN", "NCCL")],
                         ["passed", "not run", "passed"], done.stdout)
        self.assertIn("no file", rows["library cuDNN"]["note"])
        self.assertIn("cuBLASLt 13.1 (/x); NCCL 2.28 (/y); absent: ", done.stdout)
        self.assertRegex(done.stdout, "absent: .*cuDNN")

    def test_a_library_is_not_there_because_a_file_is(self):
        self.machine(f"mkdir -p {self.folder}/build/bin; printf 'NCCL_LIBRARY:FILEPATH=/x/libnccl.so\\n' "
                   f">{self.folder}/build/CMakeCache.txt; printf '#!/bin/bash\\nexit 127' >{self.folder}/build/bin/bench_gpu_ops; "
                   f"chmod +x {self.folder}/build/bin/bench_gpu_ops")
        # The program cannot start, so the row must fail.
        self.assertEqual(self.saved()["libraries"]["status"], "failed")
        self.assertNotIn("library NCCL", self.saved())

    def test_a_file_that_does_not_compile_is_named(self):
        self.program("cmake", "[[ $1 == --version ]] && echo cmake version 3.30 && exit; [[ $1 == --build ]] || exit 0; "
                              "echo a.cu:7: error: no such thing; seq 100; echo ninja: stopped; exit 1")
        self.call("machine", "--build-dir", os.path.join(self.folder, "build"))
        self.assertEqual(self.saved()["compile"]["note"], "a.cu:7: error: no such thing")

    def test_configure_fails(self):
        self.program("nvidia-smi", "echo A, 1, 2 MiB, 9.0")
        done, rows = self.machine(cmake_status=1)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(rows["configure"]["note"], f"called --preset gpu -B {self.folder}/build .*-DTAPESTRY_CUDA_ARCHITECTURES=90")
        self.assertNotIn("compile", rows)

    def test_command_line(self):
        self.assertEqual(self.call("tset").returncode, 2)
        self.assertEqual(self.call("--jobs", "0").returncode, 2)
        self.assertEqual(self.call("--limit-s", "0").returncode, 2)
        self.assertIn("python3 is missing", self.call(path=self.only()).stderr)


NCU = r'''
==PROF== Connected to process 1
==PROF== Profiling "softmax": 0%....100% - 2 passes
ok y: 1
==PROF== Disconnected from process 1
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","1","row_in_registers(Rows<float>, int)","gpu__time_duration.sum","us","312.5"
"0","1","row_in_registers(Rows<float>, int)","launch__registers_per_thread","register/thread","40"
"1","1","row_in_registers(Rows<float>, int)","gpu__time_duration.sum","us","310.1"
'''

NCU_COUNTED = r'''
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","1","rows_kernel(float const*)","gpu__time_duration.sum","us","312.5"
"0","1","rows_kernel(float const*)","l1tex__average_t_sectors_per_requests_pipe_lsu_mem_global_op_ld.ratio","sector/request","16.00"
"0","1","rows_kernel(float const*)","l1tex__average_t_sectors_per_requests_pipe_lsu_mem_global_op_st.ratio","sector/request","7.5"
"0","1","rows_kernel(float const*)","smsp__thread_inst_executed_per_inst_executed.ratio","","31.2"
"1","1","rows_kernel(float const*)","smsp__thread_inst_executed_per_inst_executed.ratio","","31.2"
"2","1","another(int)","smsp__thread_inst_executed_per_inst_executed.ratio","","1,024.0"
'''
MACHINE = """# a comment
work\tkernel\tsectors a load\tsectors a store\tlanes an instruction
small\trows_kernel\t4.00\t4.00\t-
large\trows_kernel\t16.00\t4.00\t31.00
"""


class Profiles(Case):
    def profile(self, ncu=None):
        self.ours()
        if ncu:
            self.program("ncu", ncu)
        done = self.call("counters", "--again", "--build-dir", self.folder,
                         path=os.path.join(self.folder, "bin") + ":/usr/bin:/bin")
        return done, self.saved()

    def test_a_missing_ncu_is_a_note(self):
        done, rows = self.profile()
        self.assertEqual(done.returncode, 0, done.stdout)
        found = [row for name, row in rows.items() if name.startswith("ncu: ")]
        self.assertEqual([(row["status"], row["note"]) for row in found], [("not run", "ncu was not found")] * 6)

    def test_an_ncu_that_may_not_read_counters_is_a_note(self):
        done, rows = self.profile("echo '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission'; exit 1")
        self.assertEqual(done.returncode, 0, done.stdout)
        row = rows["ncu: " + profiler.PROFILED[0][0]]
        self.assertEqual(row["status"], "not run")
        self.assertIn("ncu refused", row["note"])

    def test_counters_of_the_machine_stand_beside_those_of_ncu(self):
        path = os.path.join(self.folder, "counters.tsv")
        with open(path, "w") as file:
            file.write(MACHINE)
        rows = profiler.counted(path)
        self.assertEqual(rows, {"rows_kernel": {"sectors a load": [4, 16], "sectors a store": [4, 4],
                                                "lanes an instruction": [31]}})
        self.assertEqual(profiler.beside(profiler.kernels(NCU_COUNTED), rows),
                         "rows_kernel: sectors a load 16.00 (machine 16.00), sectors a store 7.50 (machine 4.00) "
                         "DIFFERENT, lanes an instruction 31.20 (machine 31.00)")
        self.assertEqual(profiler.counted(path + ".none"), {})
        # The committed rows have the columns that ncu's counters are compared with.
        self.assertEqual(set().union(*profiler.counted().values()), set(profiler.COUNTED.values()))

    def test_metrics_are_read_and_clocks_are_left_alone(self):
        called = os.path.join(self.folder, "called")
        done, rows = self.profile(f"echo \"$*\" >>{called}; cat <<'END'{NCU}END")
        self.assertEqual(done.returncode, 0, done.stdout)
        row = rows["ncu: " + profiler.PROFILED[0][0]]
        self.assertEqual(row["status"], "measured")
        self.assertEqual(row["note"], "0: row_in_registers: time 312.5 us, registers per thread 40 register/thread; "
                                      "1: row_in_registers: time 310.1 us")
        with open(called) as file:
            lines = [line for line in file.read().splitlines() if line != "--version"]
        self.assertEqual(len(lines), 6)
        self.assertTrue(all("--clock-control none" in line for line in lines))


class DryRun(Case):
    def test_all_phases_run(self):
        if not BUILD:
            self.skipTest("no build folder was given")
        done = self.call("--dry-run", "cpu", "--build-dir", BUILD, "--out", os.path.join(self.folder, "out"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(os.path.join(self.folder, "out/gpu_check.md")) as file:
            self.assertIn("every figure is fake", file.read())
        rows = self.saved()
        self.assertEqual(rows["ptx.lanes"]["status"], "passed")
        self.assertEqual(rows["modes of training on two devices"]["status"], "fake")
        self.assertEqual(rows["ncu: " + profiler.PROFILED[0][0]]["status"], "not run")
        with open(os.path.join(self.folder, "results/gpu_check.json")) as file:
            rows = [row for row in json.load(file)["rows"] if row["name"] != PHASE]
        statuses = {row["status"] for row in rows if row["phase"] in ("smoke", "first", "steps", "policy", "wgmma", "more")}
        self.assertLessEqual(statuses, {"fake", "no kernel", "passed", "not run"})
        self.assertEqual({row["phase"] for row in rows}, set(phases.PHASES))
        names = [row["name"] for row in rows if row["status"] == "fake"]
        for name in ("conv2d@custom f32: all layers", "step_mlp_captured f32 4, graph", "values: linear@custom f16 24 24 24"):
            self.assertIn(name, names)

    def test_benchmarks_for_the_sanitizers_run(self):
        if not BUILD:
            self.skipTest("no build folder was given")
        found = process.run([os.path.join(BUILD, "bin/bench_gpu_ops"), "cpu"], 60,
                            text="".join(f"start {work}\n" for work in phases.SANITIZED))
        self.assertEqual([line[:3] for line in found.text.splitlines()], ["ok "] * len(phases.SANITIZED), found.text)

    def test_a_dry_run_of_an_empty_build_folder_fails(self):
        self.assertEqual(self.call("--dry-run", "cpu", "--build-dir", self.folder).returncode, 1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BUILD = sys.argv.pop()
    unittest.main()
