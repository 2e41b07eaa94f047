"""Tests the pack of tools/gpu_check, a call in which something fails in each phase, and a call that is stopped. Fake programs
give the answers.
usage: gpu_check_lease_test.py [BUILD_FOLDER]"""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest
import unittest.mock

sys.dont_write_bytecode = True
from gpu_check_case import ROOT, Case  # noqa: E402
import bench  # noqa: E402
import check  # noqa: E402
import items  # noqa: E402
import pack  # noqa: E402
import phases  # noqa: E402
import profiler  # noqa: E402
import values  # noqa: E402


class Packs(Case):
    """A pack is made in the folder `here`, and used in the folder `there`, which has nothing but it and the scripts."""

    def scripts(self, root):
        folder = os.path.join(self.folder, root)
        shutil.copytree(os.path.join(ROOT, "tools/gpu"), os.path.join(folder, "tools/gpu"))
        shutil.copy(os.path.join(ROOT, "tools/gpu_check"), os.path.join(folder, "tools"))
        return folder

    def run_in(self, root, *arguments):
        path = f"{self.folder}/path:{os.path.dirname(sys.executable)}:/usr/bin:/bin"
        environment = {"PATH": path, "HOME": self.folder}
        return subprocess.run([os.path.join(root, "tools/gpu_check"), *arguments], env=environment, text=True,
                              capture_output=True, timeout=120, check=False)

    def setUp(self):
        super().setUp()
        for name in pack.TARGETS:
            self.program(name, "exit 0")
        self.ours()
        shutil.copy(shutil.which("bash"), os.path.join(self.folder, "bin/tests_ptx"))
        self.loads("$(dirname $1)/../lib/libown.so.1")
        self.listed("tests_gpu")
        os.makedirs(os.path.join(self.folder, "lib"))
        with open(os.path.join(self.folder, "lib/libown.so.1"), "w") as file:
            file.write("[]")
        self.here, self.there = self.scripts("here"), self.scripts("there")

    def listed(self, *programs):
        """Lists one test of each program."""
        with open(os.path.join(self.folder, "tests.json"), "w") as file:
            json.dump([{"name": "a", "program": "bin/" + name, "arguments": [], "environment": {}, "skip": ""}
                       for name in programs], file)

    def loads(self, path):
        """A fake ldd: tests_ptx loads glibc and a library."""
        ldd = self.program("ldd", f"[[ $1 == */tests_ptx ]] && echo libown.so.1 '=>' {path} && echo libc.so.6 '=>' /lib/libc.so.6")
        os.makedirs(os.path.join(self.folder, "path"), exist_ok=True)
        os.replace(ldd, os.path.join(self.folder, "path/ldd"))

    def bring(self):
        made = self.run_in(self.here, "--pack", "--build-dir", self.folder, "--commit", "abc")
        self.assertEqual(made.returncode, 0, made.stdout + made.stderr)
        self.assertRegex(made.stdout, r"the pack has [0-9.]+ MiB; with the tree [0-9.]+ MiB\n.*/pack\.tar\.xz")
        os.makedirs(os.path.join(self.there, "build"), exist_ok=True)
        shutil.rmtree(os.path.join(self.there, "build/gpu_pack"), ignore_errors=True)
        shutil.move(os.path.join(self.here, "build/gpu_pack"), os.path.join(self.there, "build"))

    def rows(self):
        with open(os.path.join(self.there, "build/gpu_check/gpu_check.json")) as file:
            content = json.load(file)
        return content["about"], {row["name"]: row for row in content["rows"]}

    def test_a_pack_runs_in_another_folder_without_a_build_tree(self):
        self.bring()
        done = self.run_in(self.there, "machine")
        about, rows = self.rows()
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(about["commit"], "abc")
        self.assertEqual(rows["pack"]["status"], "passed")
        self.assertNotIn("compile", rows)
        unpacked = os.path.join(self.there, "build/gpu_unpacked")
        self.assertEqual(subprocess.run([unpacked + "/bin/tests_ptx", "-c", "exit 7"], check=False).returncode, 7)
        self.assertEqual(os.listdir(unpacked + "/lib"), ["libown.so.1"])
        stamp = os.path.getmtime(unpacked + "/unpacked")
        self.run_in(self.there, "machine")  # it is unpacked once
        self.assertEqual(os.path.getmtime(unpacked + "/unpacked"), stamp)

    def test_another_pack_is_unpacked_whatever_its_time_is(self):
        self.bring()
        self.run_in(self.there, "machine")
        self.program("tests_gpu", "exit 3")
        self.bring()
        os.utime(os.path.join(self.there, "build/gpu_pack/pack.tar.xz"), (1, 1))
        first = self.rows()[0]["pack"]
        self.run_in(self.there, "machine")
        program = os.path.join(self.there, "build/gpu_unpacked/bin/tests_gpu")
        self.assertEqual(subprocess.run([program], check=False).returncode, 3)
        self.assertNotEqual(self.rows()[0]["pack"], first)  # rows of the other programs are not kept

    def test_the_commit_is_that_of_the_programs(self):
        options = check.parse([])
        for of_tree, packed, expected in (("a", True, "b (the pack; the tree is at a)"), ("b", True, "b"), ("", True, "b"),
                                          ("a", False, "a"), ("", False, "unknown (--commit says it)")):
            with unittest.mock.patch.object(pack, "manifest", lambda: {"commit": "b"}), \
                    unittest.mock.patch.object(check, "first_line", lambda c, of_tree=of_tree: of_tree if c[1] == "rev-parse" else ""):
                self.assertEqual(check.commit_of(options, packed), expected)

    def test_a_damaged_pack_and_programs_that_do_not_start_are_named(self):
        self.bring()
        file = os.path.join(self.there, "build/gpu_pack/pack.tar.xz")
        with open(file, "r+b") as out:
            out.truncate(os.path.getsize(file) // 2)
        self.run_in(self.there, "machine")
        self.assertIn("is not the file that its manifest.json describes", self.rows()[1]["pack"]["note"])
        os.remove(os.path.join(self.there, "build/gpu_pack/manifest.json"))
        done = self.run_in(self.there, "machine")
        self.assertEqual(done.returncode, 1)
        self.assertIn("cannot be unpacked", self.rows()[1]["pack"]["note"])
        self.assertIn("make it again by tools/gpu_check --pack", done.stdout)
        self.program("bench_gpu_ops", "echo version GLIBC_2.99 not found; exit 1")
        shutil.rmtree(os.path.join(self.there, "build"))
        self.bring()
        self.run_in(self.there, "machine")
        note = self.rows()[1]["pack"]["note"]
        self.assertIn("its programs do not start here: exit status 1; version GLIBC_2.99 not found", note)

    def test_a_library_that_would_not_be_loaded_from_the_pack_stops_the_packing(self):
        self.loads(os.path.join(self.folder, "lib/libown.so.1"))
        made = self.run_in(self.here, "--pack", "--build-dir", self.folder)
        self.assertEqual(made.returncode, 1)
        self.assertIn("do not load libown.so.1 from the pack", made.stderr)

    def test_a_program_that_is_not_built_stops_the_packing(self):
        os.remove(os.path.join(self.folder, "bin/tests_gpu"))
        made = self.run_in(self.here, "--pack", "--build-dir", self.folder)
        self.assertEqual(made.returncode, 1)
        self.assertIn("bin/tests_gpu is not built", made.stderr)

    def test_a_packing_that_stops_keeps_the_pack_that_was_there(self):
        packs = os.path.join(self.here, "build/gpu_pack")
        for wrong in (["tests_other"], []):
            self.listed("tests_gpu")
            self.assertEqual(self.run_in(self.here, "--pack", "--build-dir", self.folder).returncode, 0)
            before = pack.digest(packs + "/pack.tar.xz")
            self.listed(*wrong)
            made = self.run_in(self.here, "--pack", "--build-dir", self.folder)
            self.assertEqual(made.returncode, 1)
            self.assertIn("bin/tests_other: add the program to TARGETS" if wrong else "no test with the label gpu", made.stderr)
            self.assertEqual(pack.digest(packs + "/pack.tar.xz"), before)
            self.assertEqual(os.listdir(os.path.dirname(packs)), ["gpu_pack"])


# A fake bench_gpu_ops with a failure for each phase: a crash, a hang and a wrong value by the name of the benchmark. After a
# wrong value, nothing works until it is started again.
BROKEN = """
work= poisoned=
while read -r word name rest; do
  [[ -z $poisoned ]] || { echo failed an illegal address; continue; }
  [[ $word == time ]] || work=$name
  case $work in
    crash) kill -SEGV $$ ;;
    hang) sleep 60 ;;
    wrong) [[ $word == time ]] && echo 0.5 || echo "ok y: 2"
      [[ $word != start ]] || poisoned=1 ;;
    *) [[ $word == time ]] && echo 0.5 || echo "ok y: 1" ;;
  esac
done
"""


class Lease(Case):
    """A call in which something fails in each phase. No failure takes time from the other phases."""

    NAMES = ("smoke", "first", "steps", "policy", "wgmma")

    def lease(self, limit, answer_limit):
        """Returns the status of each row."""
        one = self.check(limit=limit)
        good = self.program("good", BROKEN.replace("crash)", "a)").replace("hang)", "b)").replace("wrong)", "c)"))
        one.peer, one.copier, one.cpu, one.vendor = (one.talk([good]) for _ in range(4))
        lists = {name: [items.Item(f"{work} f32 {i}") for work in ("good", "crash", "wrong", "hang", "after")]
                 for i, name in enumerate(self.NAMES)}
        start = time.monotonic()
        with contextlib.ExitStack() as patches:
            for name, found in lists.items():
                patches.enter_context(unittest.mock.patch.object(items, name, lambda found=found: found))
            patches.enter_context(unittest.mock.patch.multiple(values, LEAST=0.1, OURS_LIMIT=answer_limit))
            patches.enter_context(unittest.mock.patch.object(bench, "LEAST", 0.1))
            for name in list(phases.PHASES)[:-1]:
                one.phase(name, one.seconds_of(name, list(phases.PHASES)))
        one.close()
        self.assertLess(time.monotonic() - start, limit + 3)
        return {(row["phase"], row["name"]): row["status"] for row in one.report.rows}

    def name(self, phase, work):
        return phase, ("values: " if phase == "smoke" else "") + f"{work} f32 {self.NAMES.index(phase)}"

    def setUp(self):
        super().setUp()
        self.program("bench_gpu_ops", "[[ $2 == libraries ]] && echo ok && exit" + BROKEN)
        with open(os.path.join(self.folder, "tests.json"), "w") as file:
            json.dump([], file)

    def test_a_crash_a_hang_and_a_wrong_value_in_each_phase(self):
        found = self.lease(60, 0.7)
        for phase in self.NAMES:
            done = "passed" if phase == "smoke" else "measured"
            for work, status in {"good": done, "crash": "failed", "wrong": "failed" if phase == "smoke" else done,
                                 "hang": "failed", "after": done}.items():
                self.assertEqual(found[self.name(phase, work)], status, (phase, work))
        self.assertEqual(found["wgmma", "values: wrong f32 4"], "failed")
        self.assertEqual(found["counters", "ncu: " + profiler.PROFILED[0][0]], "not run")
        self.assertTrue(os.path.exists(os.path.join(self.folder, "results/gpu_first.json")))

    def test_a_hang_ends_with_its_phase_and_a_second_call_goes_on(self):
        found = self.lease(8, 60)
        for phase in self.NAMES:
            self.assertEqual([found[self.name(phase, work)] for work in ("hang", "after")], ["left", "left"], phase)
        for phase in ("smoke", "steps", "policy"):  # the hang in one phase takes no time from the next
            self.assertIn(found[self.name(phase, "good")], ("passed", "measured"), phase)
        found = self.lease(8, 60)  # what hangs again has failed, so that a third call gets to what is behind it
        for phase in ("smoke", "steps", "policy"):
            self.assertEqual([found[self.name(phase, work)] for work in ("hang", "after")], ["failed", "left"], phase)
        found = self.lease(60, 60)
        for phase in ("smoke", "steps", "policy"):
            self.assertIn(found[self.name(phase, "after")], ("passed", "measured"), phase)


class Signals(Case):
    def test_sigterm_stops_all_programs_and_leaves_the_rows_that_were_written(self):
        started = os.path.join(self.folder, "started")
        hang = f"sleep 300 & echo $$ $! >>{started}; sleep 300"
        for name in ("tests_gpu", "tapestry-compare"):
            self.program(name, hang)
        self.ours()
        with open(os.path.join(self.folder, "tests.json"), "w") as file:
            json.dump([{"name": name, "program": "bin/tests_gpu", "arguments": [], "environment": {}, "skip": ""}
                       for name in ("a", "b")], file)
        for phase in ("smoke", "more"):  # one starts programs in threads of its own
            command = [os.path.join(ROOT, "tools/gpu_check"), phase, "--build-dir", self.folder, "--folder",
                       os.path.join(self.folder, "results"), "--jobs", "1"]
            run = subprocess.Popen(command, env={**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"},
                                   stdout=subprocess.DEVNULL)
            self.assertTrue(self.soon(lambda: os.path.exists(started) and os.path.getsize(started)))
            run.terminate()
            self.assertEqual(run.wait(30), 128 + signal.SIGTERM)
            with open(started) as file:
                pids = file.read().split()
            os.remove(started)
            self.assertEqual(len(pids), 2, "a program was started after the signal")
            for pid in pids:
                self.assertTrue(self.soon(lambda pid=pid: not self.lives(pid)), pid)
            self.assertEqual(self.saved()["a GPU answers"]["status"], "passed")
        self.assertEqual(self.saved()["modes of training on two devices"]["status"], "running")

    def soon(self, condition):
        """Waits until the condition is true, at most 60 s: a busy machine takes long to start programs."""
        return any(condition() or time.sleep(0.05) for _ in range(1200))

    def lives(self, pid):
        try:
            with open(f"/proc/{pid}/stat") as file:
                return file.read().rsplit(")", 1)[1].split()[0] != "Z"  # nobody may have waited for it yet
        except OSError:
            return False


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
