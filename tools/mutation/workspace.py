"""The work folder of tools/mutants: a copy of one commit, its build, and its tests."""
import hashlib
import io
import json
import os
import re
import subprocess
import tarfile
import threading
import time

from sandbox import Sandbox

PRESET = "cpu"
# The library, and the programs that are linked with a part of its object files (cmake/base.cmake).
PROGRAMS_OF_BASE = ["tapestry", "classifier", "tapestry-run"]
# The folders of the library's object files.
LIBRARY = ("CMakeFiles/tapestry.dir/", "CMakeFiles/tapestry_base.dir/")
# A test may take GRACE seconds and FACTOR times as long as without a mutant.
GRACE, FACTOR = 40, 6
# The test programs that run the library.
PROGRAMS = ("core", "kernels", "autograd", "nn", "data", "distributed", "data_parallel", "pipeline", "planner", "launch", "apps",
            "harness", "cuda_runtime")
# The programs whose tests can reach a folder, nearest first.
REACH = {
    "core": ("core", "cuda_runtime", "kernels", "autograd", "data", "nn", "data_parallel", "pipeline", "planner", "distributed",
             "launch", "apps", "harness"),
    "kernels": ("kernels", "autograd", "nn", "core", "data_parallel", "pipeline", "distributed", "apps", "harness"),
    "autograd": ("autograd", "nn", "core", "harness", "data_parallel", "pipeline", "distributed", "apps", "planner"),
    "nn": ("nn", "data_parallel", "pipeline", "planner", "distributed", "apps"),
    "data": ("data", "apps", "distributed"),
    "distributed": ("distributed", "data_parallel", "pipeline", "planner", "launch", "apps"),
}
USES = re.compile(r"^(\S+): #deps \d+")


class Failure(Exception):
    """A reason to stop, for the person who runs the script."""


def output_of(command, folder, text=True):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=text, check=False)
    if done.returncode:
        message = done.stderr if text else done.stderr.decode(errors="replace")
        raise Failure(f"'{' '.join(command)}' failed: {message.strip()}")
    return done.stdout


def digest(path):
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


class Test:
    def __init__(self, entry):
        properties = {p["name"]: p["value"] for p in entry.get("properties", ())}
        self.name, self.command = entry["name"], entry.get("command", [])
        self.program, _, self.unit = self.name.partition(".")
        self.folder = properties.get("WORKING_DIRECTORY", ".")
        self.environment = dict(value.split("=", 1) for value in properties.get("ENVIRONMENT", ()))
        self.labels = properties.get("LABELS", ())


def nearness(test, file):
    """Returns a number that is smaller for a test that is nearer to the file."""
    parts = file.split("/")
    stem = os.path.splitext(parts[-1])[0]
    reach = REACH[parts[0]]
    own = [p for p in reversed(parts[:-1]) if p in PROGRAMS]  # distributed/pipeline/internal/x.cpp: pipeline, distributed
    order = own + [p for p in reach if p not in own]
    words, others = set(stem.split("_")), set(test.unit.split("_"))
    # norm_batch.cpp is tested by tests/autograd/norm_test.cpp.
    same = test.unit == stem or stem.startswith(test.unit) or test.unit.startswith(stem)
    return (0 if same else 1 if words & others and test.program in own + list(reach[:4]) else 2,
            order.index(test.program))


class Workspace:
    def __init__(self, root, work, jobs, programs, say):
        self.root, self.work, self.jobs, self.programs, self.say = root, work, jobs, programs, say
        self.tree = os.path.join(work, "tree")
        self.build_folder = os.path.join(self.tree, "build", PRESET)
        self.sandbox = Sandbox(work)
        if not self.sandbox.unshare:
            raise Failure("'unshare' cannot make the namespaces that protect this machine from mutants; install util-linux and "
                          "iproute2, and run as root or allow user namespaces")
        self.environment = {**os.environ, "CCACHE_BASEDIR": self.tree, "CCACHE_NOHASHDIR": "1", "CCACHE_SLOPPINESS":
                            "pch_defines,time_macros,include_file_mtime,include_file_ctime"}
        self.tests, self.users = [], {}
        self.stopping = False

    # ---- the copy of the sources ----

    def unpack(self, commit):
        """Makes the copy equal to the commit. Files that are equal already keep their time stamps."""
        archive = output_of(["git", "archive", "--format=tar", commit], self.root, text=False)
        kept = set()
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            for entry in tar:
                path = os.path.join(self.tree, entry.name)
                kept.add(entry.name)
                if entry.isdir():
                    os.makedirs(path, exist_ok=True)
                elif entry.issym():
                    if not os.path.islink(path):
                        os.symlink(entry.linkname, path)
                else:
                    data = tar.extractfile(entry).read()
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    if digest(path) != hashlib.sha256(data).hexdigest():
                        with open(path, "wb") as file:
                            file.write(data)
                    os.chmod(path, entry.mode)
        for folder, folders, files in os.walk(self.tree):
            folders[:] = [f for f in folders if os.path.join(folder, f) != os.path.join(self.tree, "build")]
            for name in files:
                path = os.path.join(folder, name)
                if os.path.relpath(path, self.tree) not in kept:
                    os.remove(path)

    def read(self, file):
        with open(os.path.join(self.tree, file), encoding="utf-8", newline="") as source:
            return source.read()

    def write(self, file, text):
        with open(os.path.join(self.tree, file), "w", encoding="utf-8", newline="") as source:
            source.write(text)

    # ---- building ----

    def command(self, command, **environment):
        with open(os.path.join(self.work, "build.log"), "w") as log:
            return subprocess.run(command, cwd=self.tree, env={**self.environment, **environment}, stdin=subprocess.DEVNULL,
                                  stdout=log, stderr=subprocess.STDOUT, check=False).returncode == 0

    def must(self, command):
        if not self.command(command):
            raise Failure(f"'{' '.join(command)}' failed without a mutant; see {self.work}/build.log")

    def ninja(self, targets, mutant=False):
        # Objects of mutants do not go into the compiler cache, because nobody will need them again.
        return self.command(["ninja", "-C", self.build_folder, *targets], **({"CCACHE_READONLY": "1"} if mutant else {}))

    def prepare(self, commit):
        """Copies and builds the commit, and reads its tests and the headers of each object."""
        self.unpack(commit)
        self.must(["cmake", "--preset", PRESET, "-DTAPESTRY_BUILD_TESTS=ON", "-DTAPESTRY_WERROR=ON",
                   "-DCMAKE_LINK_DEPENDS_NO_SHARED=ON"])
        self.read_tests()
        self.build_all()
        self.read_tests()  # ctest lists the command of a test only when its program exists
        deps = output_of(["ninja", "-C", self.build_folder, "-t", "deps"], self.tree)
        self.users = {}
        compiled = None
        for line in deps.splitlines():
            if not line.startswith(" "):
                match = USES.match(line)
                compiled = match and match.group(1)
            elif compiled:
                file = self.source_of(line.strip())
                if file:
                    self.users.setdefault(file, set()).add(compiled)

    def read_tests(self):
        listing = json.loads(output_of(["ctest", "--test-dir", self.build_folder, "--show-only=json-v1"], self.tree))
        self.tests = [test for test in map(Test, listing["tests"])
                      if test.program in self.programs and "long" not in test.labels]

    def source_of(self, path):
        """Returns the name of a source file of this tree as ninja's list has it, relative to the tree."""
        link = path.find("include/tapestry/")
        if link >= 0 and (link == 0 or path.startswith(self.build_folder)):
            return path[link + len("include/tapestry/"):]
        path = os.path.relpath(os.path.join(self.build_folder, path), self.tree)
        return None if path.startswith(("../", "build/")) else path

    def build_all(self):
        targets = ["tapestry", *sorted({f"tests_{test.program}" for test in self.tests})]
        if not self.ninja(targets):
            raise Failure(f"the build fails without a mutant; see {self.work}/build.log")

    def objects(self, file):
        return sorted(self.users.get(file, ()))

    def state_of(self, objects):
        return [digest(os.path.join(self.build_folder, name)) for name in objects]

    # ---- testing ----

    def passes(self, name):
        """Whether the test passes without a mutant."""
        test = next(test for test in self.tests if test.name == name)
        return self.first_failure([test], {name: 0}) is None

    def baseline(self, commit, other_commit=False):
        """Runs all tests without a mutant. Returns their times in seconds. Tests that fail are not used. With
        `other_commit`, tests that another commit has too keep their times and are not run again."""
        path = os.path.join(self.work, "baseline.json")
        known = {}
        try:
            with open(path) as file:
                saved = json.load(file)
            if saved["programs"] == sorted(self.programs):
                if saved["commit"] == commit:
                    return saved["seconds"]
                known = saved["seconds"] if other_commit else {}
        except (OSError, ValueError, KeyError):
            pass
        seconds, lock = {test.name: known[test.name] for test in self.tests if test.name in known}, threading.Lock()

        def measure(test, log):
            start = time.monotonic()
            status = self.sandbox.run(test.command, self.folder_of(test), test.environment, log, 300, lambda: self.stopping)
            return status, time.monotonic() - start

        def work(pending, slot):
            while True:
                with lock:
                    if not pending or self.stopping:
                        return
                    test = pending.pop(0)
                for _ in range(2):
                    status, took = measure(test, os.path.join(self.work, f"test-{slot}.log"))
                    if status == 0:
                        seconds[test.name] = took
                        break
                else:
                    with open(os.path.join(self.work, f"test-{slot}.log"), errors="replace") as log:
                        last = [line.strip() for line in log if line.strip()][-1:]
                    self.say(f"left out, because it fails without a mutant: {test.name} (status {status}) {' '.join(last)}")

        self.in_threads(work, [test for test in self.tests if test.name not in seconds])
        if 2 * len(seconds) < len(self.tests):
            raise Failure(f"only {len(seconds)} of {len(self.tests)} tests pass without a mutant; the reasons are above")
        with open(path, "w") as file:
            json.dump({"commit": commit, "programs": sorted(self.programs), "seconds": seconds}, file)
        return seconds

    def folder_of(self, test):
        return os.path.join(self.build_folder, test.folder)

    def in_threads(self, work, pending):
        threads = [threading.Thread(target=work, args=(pending, slot), daemon=True) for slot in range(self.jobs)]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        except BaseException:  # a signal: the threads end their tests first
            self.stopping = True
            for thread in threads:
                thread.join()
            raise

    def order(self, file, seconds):
        """Returns the tests that can reach the file: the nearest first, and the short ones first among equals."""
        reach = set(REACH[file.split("/")[0]]) & set(self.programs)
        tests = [test for test in self.tests if test.program in reach and test.name in seconds]
        return sorted(tests, key=lambda test: (nearness(test, file), seconds[test.name]))

    def first_failure(self, tests, seconds):
        """Runs the tests, several at a time, until one fails twice in a row. Returns (name, "failed" or "timeout"), or None
        if all pass."""
        lock, found = threading.Lock(), []

        def work(pending, slot):
            log = os.path.join(self.work, f"test-{slot}.log")
            while True:
                with lock:
                    if not pending or found or self.stopping:
                        return
                    test = pending.pop(0)
                limit = GRACE + FACTOR * seconds[test.name]
                for attempt in range(2):  # a test that fails once may have failed because of other programs' load
                    status = self.sandbox.run(test.command, self.folder_of(test), test.environment, log, limit,
                                              lambda: bool(found) or self.stopping)
                    if status == 0 or status is None:
                        break
                else:
                    with lock:
                        found.append((test.name, "timeout" if status == "timeout" else "failed"))
                    return

        self.in_threads(work, list(tests))
        return found[0] if found else None

    def try_mutant(self, file, text, seconds):
        """Builds and tests the tree with `text` in place of the file. Returns (outcome, test): outcome is "invalid" if the
        compiler rejects the mutant, "same code" if it compiles to the same objects, "caught", "timeout" or "survived"."""
        original = self.read(file)
        objects = self.objects(file)
        before = self.state_of(objects)
        in_tests = [name for name in objects if not name.startswith(LIBRARY)]
        tests = self.order(file, seconds)
        try:
            self.write(file, text)
            if not self.ninja(PROGRAMS_OF_BASE, mutant=True):
                return "invalid", ""
            if not in_tests:
                if self.state_of(objects) == before:
                    return "same code", ""
                failure = self.first_failure(tests, seconds)
                return (("caught" if failure[1] == "failed" else "timeout"), failure[0]) if failure else ("survived", "")
            # The header is compiled into test programs, too. Each program is built when its tests are due.
            while tests:
                program = tests[0].program
                if not self.ninja([f"tests_{program}"], mutant=True):
                    return "invalid", ""
                due = [test for test in tests if test.program == program]
                tests = [test for test in tests if test.program != program]
                failure = self.first_failure(due, seconds)
                if failure:
                    return ("caught" if failure[1] == "failed" else "timeout"), failure[0]
            return ("same code" if self.state_of(objects) == before else "survived"), ""
        finally:
            try:
                self.write(file, original)
            except BaseException:  # a signal may end the write in the middle
                self.write(file, original)
                raise
            if not self.ninja(PROGRAMS_OF_BASE):
                raise Failure(f"the build fails after the source was restored; see {self.work}/build.log")
            if in_tests:
                self.build_all()
