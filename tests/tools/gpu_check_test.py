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
import check  # noqa: E402
import phases  # noqa: E402
import process  # noqa: E402
import profiler  # noqa: E402
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
        for other in ({"commit": "d"}, {"device": "B"}, {"dry_run": True}):
            self.assertEqual(self.report(**other).rows, [])

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
        late = process.Dialogue(["sleep", "60"], deadline=time.monotonic() + 0.2)
        start = time.monotonic()
        self.assertIn("no answer", late.ask("x", 30))
        self.assertLess(time.monotonic() - start, 10)
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
        self.program("tapestry-run", "exit 0")
        self.program("tapestry-compare", "exit 0")

    def test_without_a_gpu_no_test_is_run(self):
        self.program("ctest", "echo '1/1 Test #1: core.a ......   Passed    0.05 sec'")
        self.program("bench_gpu_ops", "echo 'failed there are no CUDA devices'")
        self.assertEqual(self.call("test", "--build-dir", self.folder).returncode, 1)
        rows = self.saved()
        self.assertEqual(rows["a GPU answers"]["status"], "failed")
        self.assertNotIn("tests of the GPU", rows)

    def test_each_result_of_ctest_becomes_a_row(self):
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

    def test_the_exit_status_is_0_if_all_tests_passed(self):
        self.program("ctest", "echo '1/1 Test #1: core.a ......   Passed    0.05 sec'")
        done = self.call("test", "--build-dir", self.folder)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.program("bench_gpu_ops", "echo of no interest >&2; while read -r line; do echo ok 1; done")
        self.assertEqual(self.call("test", "--again", "--build-dir", self.folder).returncode, 0)

    def test_a_phase_that_is_done_is_repeated_only_if_asked(self):
        self.program("ctest", "echo '1/1 Test #1: core.a ......   Passed    0.05 sec'")
        self.assertEqual(self.call("test", "--build-dir", self.folder).returncode, 0)
        self.program("ctest", "echo nothing")
        done = self.call("test", "--build-dir", self.folder)
        self.assertIn("done by an earlier call", done.stdout)
        self.assertEqual(done.returncode, 0)
        self.assertEqual(self.call("test", "--again", "--build-dir", self.folder).returncode, 1)

    def test_the_call_after_the_time_was_over_runs_only_the_missing_tests(self):
        self.program("ctest", "echo '1/3 Test #1: core.a ......   Passed    0.05 sec'; "
                              "echo '2/3 Test #2: core.b ......***Failed    0.05 sec'; sleep 60")
        real, log = time.monotonic, os.path.join(self.folder, "results/tests-of-the-GPU.log")

        def clock():  # leaps behind the deadline when both lines were read, however long a busy machine takes for them
            if not os.path.exists(log):
                return real()
            with open(log) as file:
                return real() + (1000 if "core.b" in file.read() else 0)

        path = os.path.join(self.folder, "bin") + ":" + os.environ["PATH"]
        with unittest.mock.patch.dict(os.environ, {"PATH": path}), unittest.mock.patch("time.monotonic", clock):
            one = self.check(limit=500)
            one.phase("test")
        self.assertEqual([row["name"] for row in one.report.failed({"test"})], ["core.b"])
        rows = self.saved()
        self.assertEqual(rows["tests of the GPU"]["status"], "left")
        self.assertIn("1 of 3 passed", rows["tests of the GPU"]["note"])
        self.assertEqual(rows["modes of training on two devices"]["status"], "left")
        self.assertEqual(rows[PHASE]["status"], "left")
        self.program("ctest", 'echo "$*" >"$(dirname "$0")/called"; echo "1/1 Test #3: core.c ......   Passed    0.05 sec"')
        self.assertEqual(self.call("test", "--build-dir", self.folder, "--commit", "c").returncode, 1)
        with open(os.path.join(self.folder, "bin/called")) as file:
            self.assertIn(r"-E ^(core\.a|core\.b)$", file.read())
        rows = self.saved()
        self.assertEqual(rows["tests of the GPU"]["status"], "failed")
        self.assertIn("2 of 3 passed", rows["tests of the GPU"]["note"])
        self.assertEqual(rows["modes of training on two devices"]["status"], "passed")
        self.assertEqual(rows[PHASE]["status"], "done")

    def test_the_exit_status_is_3_if_nothing_failed_and_something_is_left(self):
        self.program("ctest", "echo '1/2 Test #1: core.a ......   Passed    0.05 sec'; sleep 60")
        done = self.call("test", "--build-dir", self.folder, "--limit-s", "3")
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertIn("call tools/gpu_check again", done.stdout)

    def test_a_killed_run_leaves_the_rows_that_it_had_written(self):
        self.program("ctest", "echo '1/2 Test #1: core.a ......   Passed    0.05 sec'; sleep 5")
        command = [os.path.join(ROOT, "tools/gpu_check"), "test", "--build-dir", self.folder, "--folder",
                   os.path.join(self.folder, "results")]
        run = subprocess.Popen(command, env={**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"},
                               stdout=subprocess.DEVNULL)
        for _ in range(1200):  # a busy machine takes long to start programs
            time.sleep(0.05)
            if os.path.exists(os.path.join(self.folder, "results/gpu_check.json")) and "core.a" in self.saved():
                break
        run.kill()
        run.wait()
        rows = self.saved()
        self.assertEqual(rows["core.a"]["status"], "passed")
        self.assertEqual(rows[PHASE]["status"], "running")
        self.assertEqual(rows["tests of the GPU"]["note"], "1 of 2 passed so far")

    def test_modes_of_training_that_differ_are_a_failure(self):
        self.program("ctest", "echo '1/1 Test #1: core.a ......   Passed    0.05 sec'")
        for status, found in ((0, "passed"), (1, "failed")):
            self.program("tapestry-compare", f"[[ $TAPESTRY_LOGICAL_DEVICES == 2 ]] && exit {status}; exit 3")
            done = self.call("test", "--again", "--build-dir", self.folder)
            self.assertEqual(self.saved()["modes of training on two devices"]["status"], found)
            self.assertEqual(done.returncode, status)

    def test_nccl_that_refuses_is_no_failure_and_wrong_numbers_are(self):
        self.program("ctest", "echo '1/1 Test #1: core.a ......   Passed    0.05 sec'")
        for body, status in (("echo 'ncclCommInitRankConfig failed: Duplicate GPU detected'; exit 1", "not run"),
                             ("echo '[nccl] NCCL was not found: libnccl.so.2 is not here'; exit 1", "not run"),
                             ("echo '[init_process_group] this library was built without NCCL'; exit 1", "not run"),
                             ("echo 'ncclCommInitRankConfig failed on rank 0 (cuda:0): unhandled system error'; exit 1", "not run"),
                             ("echo 'ncclCommInitRankConfig failed on rank 0 (cuda:0): invalid argument'; exit 1", "failed"),
                             ("echo 'ncclAllReduce failed on rank 1 (cuda:0): invalid usage'; exit 1", "failed"),
                             ("echo 'CHECK( on_host<float>(x) == sum )'; exit 1", "failed"), ("exit 0", "passed")):
            self.program("tapestry-run", body)
            self.call("test", "--again", "--build-dir", self.folder)
            self.assertEqual(self.saved()["two NCCL ranks on one GPU"]["status"], status)


class Sanitizers(Case):
    def sanitize(self, body, *options):
        for name in ("tests_ptx", "tests_gpu", "bench_gpu_ops"):
            self.program(name, "while read -r line; do echo ok 1; done")
        self.program("compute-sanitizer", body)
        self.call("sanitize", "--again", "--build-dir", self.folder, *options)
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
            rows = self.sanitize(f'case "$*" in *bench_gpu_ops*) {body} ;; esac', "--limit-s", "3")
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
                              f"printf '#!/bin/bash\nwhile read -r l; do echo ok 1; done' >{folder}/bin/bench_gpu_ops && "
                              f"chmod +x {folder}/bin/bench_gpu_ops; echo cmake 4")
        self.program("ctest", "echo '1/1 Test #1: core.a ......   Passed    0.05 sec'")
        self.call("test", "--build-dir", folder, "--limit-s", "300")
        with open(os.path.join(self.folder, "results/gpu_check.json")) as file:
            rows = json.load(file)["rows"]
        self.assertEqual([row["phase"] for row in rows if row["name"] == PHASE], ["build", "test"])
        self.assertIn("core.a", [row["name"] for row in rows])
        self.call("test", "--build-dir", folder)  # the program exists now, so nothing must be built again
        with open(os.path.join(self.folder, "results/gpu_check.json")) as file:
            self.assertEqual({row["when"] for row in json.load(file)["rows"] if row["phase"] == "build"},
                             {row["when"] for row in rows if row["phase"] == "build"})

    def test_the_time_before_the_first_phase_counts(self):
        self.program("bench_gpu_ops", "while read -r line; do echo ok 1; done")
        self.program("nvidia-smi", "sleep 3; echo A, 1, 2 MiB, 9.0")
        self.program("ctest", "sleep 60")
        start = time.monotonic()
        done = self.call("test", "--build-dir", self.folder, "--limit-s", "4")
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertLess(time.monotonic() - start, 6)

    def test_steps_that_need_more_time_than_there_is_are_left(self):
        one = self.check(limit=600)
        one.deadline = time.monotonic() + 100
        self.assertIsNone(one.once("train", "a", ["true"], "a", 270))
        self.assertEqual(self.saved()["a"]["status"], "left")
        one.deadline = time.monotonic() + 250
        self.assertTrue(one.once("train", "a", ["true"], "a", 270).ok)

    def test_an_exception_in_a_phase_is_a_failed_row(self):
        one = self.check("--dry-run")
        with unittest.mock.patch.dict(phases.PHASES, {"test": lambda _: {}["x"]}):
            one.phase("test")
        self.assertEqual(self.saved()["tools/gpu_check itself"]["note"], "KeyError: 'x'")
        self.assertEqual(len(one.report.failed({"test"})), 1)


class Builds(Case):
    def build(self, cmake="", cmake_status=0, **options):
        self.program("nvcc", "echo 'Build cuda_13'; echo more")
        folder = os.path.join(self.folder, "build")
        self.program("cmake", f"[[ $1 == --version ]] && echo cmake version 3.30 && exit; mkdir -p {folder}; {cmake}\n"
                              f"echo called \"$@\"; exit {cmake_status}")
        done = self.call("build", "test", "--build-dir", folder, **options)
        return done, self.saved()

    def setUp(self):
        super().setUp()
        self.program("python3", f'case "$*" in *"import torch"*) echo 2.15 ;; *) exec {sys.executable} "$@" ;; esac')
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
        self.program("cmake", "echo cmake version 3.30")
        with unittest.mock.patch.dict(os.environ, {"PATH": self.only("cmake"), "CXX": ""}):
            phases.build(one)
        rows = self.saved()
        self.assertEqual({name: rows[name]["status"] for name in ("g++", "ninja", "cmake")},
                         {"g++": "failed", "ninja": "failed", "cmake": "passed"})
        self.assertIn("g++ is missing: install a C++20 compiler", rows["g++"]["note"])
        self.assertEqual(rows["git"]["status"], "not run")
        self.assertIn("--commit", rows["git"]["note"])
        self.assertNotIn("configure", rows)

    def test_missing_git_nvcc_and_pytorch_are_no_failures(self):
        one = self.check()
        self.program("cmake", "echo cmake version 3.30")
        with unittest.mock.patch.dict(os.environ, {"PATH": self.only("cmake", "g++", "ninja"), "CXX": ""}), \
                unittest.mock.patch.object(sys, "executable", "/nonexistent/python3"):
            phases.build(one)
        rows = self.saved()
        self.assertEqual({rows[name]["status"] for name in ("git", "nvcc", "PyTorch")}, {"not run"})
        self.assertEqual({rows[name]["status"] for name in ("configure", "compile")}, {"passed"})
        self.assertIn("PyTorch is missing", rows["PyTorch"]["note"])
        self.assertEqual(one.report.failed({"build"}), [])

    def test_vendor_libraries_that_are_missing_are_no_failure(self):
        script = ("printf '#!/bin/bash\\necho \"ok cuBLASLt 13.1 (/x) | cuDNN: not available: no file | NCCL 2.28 (/y)\"\\n'"
                  " >%s/build/bin/bench_gpu_ops" % self.folder)
        done, rows = self.build(f"mkdir -p {self.folder}/build/bin; {script}; chmod +x {self.folder}/build/bin/*")
        self.assertEqual([rows["library " + name]["status"] for name in ("cuBLASLt", "cuDNN", "NCCL")],
                         ["passed", "not run", "passed"], done.stdout)
        self.assertIn("no file", rows["library cuDNN"]["note"])

    def test_a_library_is_not_there_because_a_file_is(self):
        self.build(f"mkdir -p {self.folder}/build/bin; printf 'NCCL_LIBRARY:FILEPATH=/x/libnccl.so\\n' "
                   f">{self.folder}/build/CMakeCache.txt; printf '#!/bin/bash\\nexit 127' >{self.folder}/build/bin/bench_gpu_ops; "
                   f"chmod +x {self.folder}/build/bin/bench_gpu_ops")
        # The program cannot start, so the row must fail.
        self.assertEqual(self.saved()["libraries"]["status"], "failed")
        self.assertNotIn("library NCCL", self.saved())

    def test_a_file_that_does_not_compile_is_named(self):
        self.program("cmake", "[[ $1 == --version ]] && echo cmake version 3.30 && exit; [[ $1 == --build ]] || exit 0; "
                              "echo a.cu:7: error: no such thing; seq 100; echo ninja: stopped; exit 1")
        self.call("build", "--build-dir", self.folder)
        self.assertEqual(self.saved()["compile"]["note"], "a.cu:7: error: no such thing")

    def test_configure_fails(self):
        self.program("nvidia-smi", "echo A, 1, 2 MiB, 9.0")
        done, rows = self.build(cmake_status=1)
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
        self.program("bench_gpu_ops", "while read -r line; do echo ok; done")
        if ncu:
            self.program("ncu", ncu)
        done = self.call("profile", "--again", "--build-dir", self.folder,
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
            lines = file.read().splitlines()
        self.assertEqual(len(lines), 6)
        self.assertTrue(all("--clock-control none" in line for line in lines))


class Training(Case):
    def test_accuracy_is_read(self):
        line = "test accuracy 0.9180 after 12.5 s of training, seed 1; results in runs/x"
        self.assertEqual(phases.accuracy(process.Run(0, "x\n" + line, 1)), (0.918, 12.5))
        self.assertIsNone(phases.accuracy(process.Run(1, line, 1)))
        self.assertIsNone(phases.accuracy(process.Run(0, "nothing", 1)))

    def train(self, on_gpu, on_cpu, *options):
        self.program("classifier", 'case "$*" in *"--device cuda"*) a=%s ;; *) a=%s ;; esac\n'
                     'echo "test accuracy $a after 3.5 s of training, seed 1"' % (on_gpu, on_cpu))
        self.program("bench_gpu_ops", "")
        data = os.path.join(self.folder, "data")
        os.makedirs(data, exist_ok=True)
        with open(os.path.join(data, "train-images-idx3-ubyte.gz"), "w"):
            pass
        return self.call("train", "--again", "--build-dir", self.folder, "--data-dir", data, *options), self.saved()

    def test_the_gpu_must_reach_the_accuracy_of_the_cpu(self):
        for on_gpu, on_cpu, alone, beside in ((0.9180, 0.9170, "passed", "passed"), (0.9120, 0.9170, "passed", "passed"),
                                              (0.9100, 0.9170, "passed", "failed"), (0.9090, 0.9090, "failed", "passed")):
            done, rows = self.train(on_gpu, on_cpu)
            self.assertEqual(rows["classifier on cuda"]["status"], alone)
            self.assertEqual(rows["classifier on cuda beside the CPU"]["status"], beside)
            self.assertEqual(done.returncode, int("failed" in (alone, beside)))

    def test_a_cpu_that_takes_too_long_is_left_for_the_next_call(self):
        done, rows = self.train("0.9180", "$(sleep 60)", "--limit-s", "3")
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertEqual(rows["classifier on cuda"]["status"], "passed")
        self.assertEqual(rows["classifier on cuda beside the CPU"]["status"], "left")

    def test_missing_data_are_no_failure(self):
        self.program("bench_gpu_ops", "")
        self.program("classifier", "exit 1")
        done = self.call("train", "--build-dir", self.folder, "--data-dir", os.path.join(self.folder, "nothing"))
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(self.saved()["classifier on cuda"]["status"], "not run")


class DryRun(Case):
    def test_all_phases_run(self):
        if not BUILD:
            self.skipTest("no build folder was given")
        done = self.call("--dry-run", "--build-dir", BUILD, "--out", os.path.join(self.folder, "out"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        with open(os.path.join(self.folder, "out/gpu_check.md")) as file:
            self.assertIn("every figure is fake", file.read())
        rows = self.saved()
        self.assertEqual(rows["ptx.lanes"]["status"], "passed")
        self.assertEqual(rows["classifier on cuda"]["status"], "fake")
        self.assertEqual(rows["modes of training on two devices"]["status"], "fake")
        self.assertEqual(rows["ncu: " + profiler.PROFILED[0][0]]["status"], "not run")
        with open(os.path.join(self.folder, "results/gpu_check.json")) as file:
            statuses = {row["status"] for row in json.load(file)["rows"]
                        if row["phase"] in ("verify", "bench", "steps") and row["name"] != PHASE}
        self.assertLessEqual(statuses, {"fake", "no kernel"})
        self.assertEqual(rows["conv2d@custom f32: all layers"]["status"], "fake")
        self.assertEqual(rows["step_mlp f32 4, graph"]["status"], "fake")

    def test_benchmarks_for_the_sanitizers_run(self):
        if not BUILD:
            self.skipTest("no build folder was given")
        found = process.run([os.path.join(BUILD, "bin/bench_gpu_ops"), "cpu"], 60,
                            text="".join(f"start {work}\n" for work in phases.SANITIZED))
        self.assertEqual([line[:3] for line in found.text.splitlines()], ["ok "] * len(phases.SANITIZED), found.text)

    def test_a_dry_run_of_an_empty_build_folder_fails(self):
        self.assertEqual(self.call("--dry-run", "--build-dir", self.folder).returncode, 1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BUILD = sys.argv.pop()
    unittest.main()
