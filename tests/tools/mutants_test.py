"""Tests tools/mutants: the changes that it makes to lines of C++, and whole runs on a small project whose compiler and test
program are scripts."""
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools/mutation"))
import draw  # noqa: E402
import mutants  # noqa: E402
import sandbox  # noqa: E402
import workspace  # noqa: E402


def changed(line, operator=None):
    """Returns the changed versions of a line, of all operators or of one."""
    found = draw.changes(line, draw.code_lines(line)[0])
    return found.get(operator, []) if operator else sorted(sum(found.values(), []))


class Changes(unittest.TestCase):
    def test_each_operator(self):
        for operator, line, expected in (
                ("relation", "if (a < b && c >= d)", ["if (a <= b && c >= d)", "if (a < b && c > d)"]),
                ("relation", "return x == y;", ["return x != y;"]),
                ("relation", "std::vector<int> x(n);", []),
                ("relation", "auto f = [] -> bool { return g; };", []),
                ("arithmetic", "f(a + b, -c, *d);", ["f(a - b, -c, *d);"]),
                ("arithmetic", "const char* x = y % 2;", ["const char* x = y * 2;"]),
                ("assignment", "sum += x;", ["sum -= x;"]),
                ("logic", "a && b || c", ["a || b || c", "a && b && c"]),
                ("logic", "T&& x = f(y & 1);", ["T&& x = f(y | 1);"]),
                ("negated condition", "if (a < f(b)) return;", ["if (!(a < f(b))) return;"]),
                ("negated condition", "if (a &&", []),  # the condition goes on in the next line
                ("negated condition", "if (auto x = f(); x > 1) return;", []),
                ("removed check", 'check(f(a, b) < c, "no ", d);', ['check(true || (f(a, b) < c), "no ", d);']),
                ("removed check", "check_pair(a, b);", []),
                ("constant", "f(10, x2, 0);", ["f(11, x2, 0);", "f(9, x2, 0);", "f(10, x2, 1);"]),
                ("constant", "x = 0.5f * true;", ["x = 1.0f * true;", "x = 0.5f * false;"]),
                ("constant", "x = 1'000'000 + 1e-5;", []),
                ("off by one", "f(x.size(), a[i]);", ["f(x.size() + 1, a[i]);", "f(x.size() - 1, a[i]);", "f(x.size(), a[i + 1]);"]),
                ("off by one", "f([x](int) {}, [y] { return y; });", []),
                ("removed not", "if (!a.b() && c != d)", ["if (a.b() && c != d)"]),
                ("removed move", "f(std::move(a.b), c);", ["f(a.b, c);"]),
                ("swapped arguments", "g(f(a, b->c), 1);", ["g(f(b->c, a), 1);"]),
                ("swapped arguments", "void f(int a, int b);", []),
                ("min and max", "std::min(a, b)", ["std::max(a, b)"]),
                ("dropped statement", "  f(x).g(y);", ["  ;"]),
                ("dropped statement", "  x.y[i] = z;", ["  ;"]),
                ("dropped statement", "  if (a) return b;", ["  ;"]),
                ("dropped statement", "  continue;", ["  ;"]),
                ("dropped statement", "  int x = 1;", []),
                ("dropped statement", "  return f(x);", []),
                ("dropped statement", "  f(a,", []),
                ("removed lock", "  const std::lock_guard lock(mutex_);", ["  ;"])):
            with self.subTest(operator=operator, line=line):
                self.assertEqual(sorted(changed(line, operator)), sorted(expected))

    def test_comments_strings_messages_and_directives_stay(self):
        for line in ("// if (a < b)", "/* a < b */", "#if A < 1", 'auto x = "1";', "char c = '1';", '"say 1 < " , a < b);',
                     'auto text = R"x(a < b)x";', "template <int N = 1>", "using A = B<1>;", "namespace a {"):
            with self.subTest(line=line):
                self.assertEqual(changed(line), [])
        text = 'check(a < b, "expected ", a + 1,\n      " not ", b + 1);\n/* x < y\n x < y */ c < d;\n#define A 1 < \\\n  2 < 3\n'
        found = [bool(draw.changes(line, code)) for line, code in zip(text.split("\n"), draw.code_lines(text))]
        self.assertEqual(found, [True, False, False, True, False, False, False])
        self.assertNotIn(True, ["+ 2" in line for line in changed(text.split("\n")[0])])

    def test_draws_depend_on_the_seed_and_index_alone(self):
        sources = {"b.cpp": "x = a + b;\ny = a < b;\n", "a.cpp": "// nothing\nreturn !x;\n"}
        first = [draw.Drawer(sources, "s").draw(i) for i in range(30)]
        self.assertEqual(first, [draw.Drawer(dict(reversed(list(sources.items()))), "s").draw(i) for i in range(30)])
        self.assertNotEqual(first, [draw.Drawer(sources, "t").draw(i) for i in range(30)])
        self.assertEqual({(m.file, m.line) for m in first}, {("b.cpp", 1), ("b.cpp", 2), ("a.cpp", 2)})

    def test_a_mutant_finds_its_line_again(self):
        mutant = draw.Mutant("a.cpp", 2, "constant", "x = 1;", "x = 2;")
        self.assertEqual(draw.apply("a\nx = 1;\nb\n", mutant), "a\nx = 2;\nb\n")
        self.assertEqual(draw.apply("x = 1;\na\nb\nc\nd\nx = 1;\n", mutant), "x = 2;\na\nb\nc\nd\nx = 1;\n")
        self.assertIsNone(draw.apply("x = 3;\n", mutant))
        self.assertEqual(draw.identity(mutant), draw.identity(mutant._replace(line=9, before="  x = 1;")))

    def test_near_tests_run_first(self):
        def order(file, *names):
            return sorted(names, key=lambda name: workspace.nearness(workspace.Test({"name": name}), file))

        self.assertEqual(order("kernels/cpu/norm_batch.cpp", "core.shape", "autograd.view", "nn.norm", "kernels.slot"),
                         ["nn.norm", "kernels.slot", "autograd.view", "core.shape"])
        self.assertEqual(order("distributed/pipeline/internal/mailbox.cpp", "distributed.a", "launch.b", "pipeline.c"),
                         ["pipeline.c", "distributed.a", "launch.b"])


# Stands for ninja and the compiler: an object is the source without lines that say "unused". "x / y" does not compile.
NINJA = r"""#!/bin/bash
cd "$2" && shift 2
echo "$*" >>ninja.log
if [[ $* == *"-t deps" ]]; then
  printf 'CMakeFiles/tapestry.dir/core/shape.cpp.o: #deps 1, deps mtime 1 (VALID)\n    ../../core/shape.cpp\n    include/tapestry/core/shape.h\n\n'
  printf 'tests/CMakeFiles/tests_core.dir/core/shape_test.cpp.o: #deps 1, deps mtime 1 (VALID)\n    include/tapestry/core/shape.h\n\n'
  exit
fi
compile() {
  ! grep -q 'x / y' ../../core/$1 || exit 1
  mkdir -p "$(dirname "$2")" && grep -v unused ../../core/$1 >"$2"
}
for target; do
  case $target in
    tapestry) compile shape.cpp CMakeFiles/tapestry.dir/core/shape.cpp.o ;;
    tests_core) compile shape.h tests/CMakeFiles/tests_core.dir/core/shape_test.cpp.o ;;
  esac
done
"""
CTEST = r"""#!/bin/bash
entry() {
  printf '{"name": "%s", "command": ["%s/tests_%s", "%s"], "properties": [{"name": "WORKING_DIRECTORY", "value": "%s"}]}' \
    "$1" "$(dirname "$0")" "${1%%.*}" "${1#*.}" "$2"
}
printf '{"tests": [%s, %s, %s]}' "$(entry core.shape "$2")" "$(entry core.broken "$2")" "$(entry docs.page "$2")"
"""
# The test checks one line of each file. Each kind of fault has its own end.
TESTS_CORE = r"""#!/bin/bash
[[ $1 != broken ]] || exit 1
object=CMakeFiles/tapestry.dir/core/shape.cpp.o
touch /forbidden 2>/dev/null && exit 1
[[ ! -e slow ]] || sleep 60
! grep -q 'c - d' $object || sleep 600
! grep -q 'e >= f' $object || { kill -9 -1; exit 1; }
grep -q 'a + b' $object && grep -q 'g < h' tests/CMakeFiles/tests_core.dir/core/shape_test.cpp.o
"""
SHAPE_CPP = "p = a + b;\nq = c + d;\nr = e > f;\ns = x * y;\nt = g + unused;\nu = i + j;\n"
SHAPE_H = "v = g < h;\n"


class Runs(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.realpath(folder.name)
        self.root = os.path.join(self.folder, "project")
        self.work = os.path.join(self.root, "build", "mutants")  # the default
        os.makedirs(self.work)
        if not sandbox.Sandbox(self.work).unshare:
            self.skipTest("this system does not let 'unshare' make namespaces")
        for name, text in (("core/shape.cpp", SHAPE_CPP), ("core/shape.h", SHAPE_H), (".gitignore", "/build/\n")):
            self.write(os.path.join(self.root, name), text)
        for name, text in (("ninja", NINJA), ("ctest", CTEST), ("tests_core", TESTS_CORE),
                           ("cmake", "#!/bin/bash\nmkdir -p build/cpu\n")):
            self.write(os.path.join(self.folder, "bin", name), text, executable=True)
        path = os.environ["PATH"]
        self.addCleanup(os.environ.__setitem__, "PATH", path)
        os.environ["PATH"] = os.path.join(self.folder, "bin") + ":" + path
        for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "c"]):
            subprocess.run(["git", *command], cwd=self.root, check=True)

    def write(self, path, text, executable=False):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
        if executable:
            os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)

    def workspace(self):
        made = workspace.Workspace(self.root, self.work, 2, ("core",), lambda text: None)
        made.prepare("HEAD")
        return made

    def test_outcomes(self):
        made = self.workspace()
        seconds = made.baseline("c")
        self.assertEqual(list(seconds), ["core.shape"])  # core.broken fails without a mutant; docs.page is not run
        self.addCleanup(setattr, workspace, "GRACE", workspace.GRACE)
        workspace.GRACE = 1
        for old, new, expected in (("a + b", "a - b", ("caught", "core.shape")),
                                   ("c + d", "c - d", ("timeout", "core.shape")),
                                   ("e > f", "e >= f", ("caught", "core.shape")),  # kills all processes of its namespace
                                   ("x * y", "x / y", ("invalid", "")),
                                   ("g + unused", "g - unused", ("same code", "")),
                                   ("i + j", "i - j", ("survived", ""))):
            with self.subTest(new):
                self.assertEqual(made.try_mutant("core/shape.cpp", SHAPE_CPP.replace(old, new), seconds), expected)
                self.assertEqual(made.read("core/shape.cpp"), SHAPE_CPP)
        self.assertEqual(made.try_mutant("core/shape.h", SHAPE_H.replace("<", "<="), seconds), ("caught", "core.shape"))
        with open(os.path.join(made.build_folder, "tests/CMakeFiles/tests_core.dir/core/shape_test.cpp.o")) as file:
            self.assertEqual(file.read(), SHAPE_H)  # the test program was built again without the mutant

    def command(self, *arguments):
        """Returns a command that runs the script on this project."""
        code = ("import sys; sys.dont_write_bytecode = True; sys.path.insert(0, sys.argv[1]); import mutants, workspace; "
                "mutants.ROOT = sys.argv[2]; workspace.GRACE = 1; sys.exit(mutants.main(sys.argv[3:]))")
        return [sys.executable, "-c", code, os.path.join(ROOT, "tools/mutation"), self.root, "--work", self.work, "--programs",
                "core", "--judgements", os.path.join(self.folder, "judgements.json"), *arguments]

    def call(self, *arguments):
        return subprocess.run(self.command(*arguments), text=True, capture_output=True, timeout=120, check=False)

    def records(self):
        with open(os.path.join(self.work, "results.jsonl")) as file:
            return [json.loads(line) for line in file]

    def test_a_killed_run_restores_the_source_and_goes_on(self):
        made = self.workspace()
        made.baseline(subprocess.run(["git", "rev-parse", "HEAD"], cwd=self.root, text=True, capture_output=True,
                                     check=True).stdout.strip())
        slow = os.path.join(made.build_folder, "slow")
        self.write(slow, "")  # the test of the first mutant takes longer than the run
        copy = os.path.join(made.tree, "core/shape.cpp")

        def sources():
            return made.read("core/shape.cpp") + made.read("core/shape.h")

        running = subprocess.Popen(self.command("--count", "3", "--seed", "s"), stdout=subprocess.DEVNULL)
        end = time.monotonic() + 60
        log = os.path.join(self.work, "test-0.log")
        while (sources() == SHAPE_CPP + SHAPE_H or not os.path.exists(log)) and time.monotonic() < end:
            time.sleep(0.01)
        running.send_signal(signal.SIGTERM)
        self.assertEqual(running.wait(60), 128 + signal.SIGTERM)
        self.assertEqual(sources(), SHAPE_CPP + SHAPE_H)
        os.remove(slow)
        self.write(copy, "left by SIGKILL")
        with open(os.path.join(self.work, "results.jsonl"), "a") as file:
            file.write('{"half a line')
        result = self.call("--count", "3", "--seed", "s")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("of 3 mutants were caught", result.stdout)
        self.assertEqual(made.read("core/shape.cpp"), SHAPE_CPP)
        self.assertEqual(subprocess.run(["git", "status", "--porcelain"], cwd=self.root, text=True, capture_output=True,
                                        check=True).stdout, "")

    def test_judgements_and_new_tests(self):
        self.assertEqual(self.call("--count", "7", "--seed", "s").returncode, 0)
        survivors = [r for r in self.records() if r["outcome"] == "survived"]
        self.assertTrue(survivors)
        self.assertEqual({r["before"] for r in survivors} - {"u = i + j;", "q = c + d;", "r = e > f;"}, set())
        count = len(self.records())
        self.assertEqual(self.call("--count", "7").returncode, 0)  # the seed is that of the results
        self.assertEqual(len(self.records()), count)
        with open(os.path.join(self.folder, "judgements.json"), "w") as file:
            json.dump({survivors[0]["id"]: {"verdict": "equivalent", "reason": "nobody reads u"}}, file)
        self.assertEqual(self.call("--count", "7").returncode, 0)
        tried = [r for r in self.records() if r["outcome"] in mutants.TRIED]
        self.assertEqual(len(tried), 8)  # one more, in place of the equivalent one
        self.write(os.path.join(self.folder, "bin/tests_core"), "#!/bin/bash\n[[ $1 == shape ]] && grep -q 'i + j' "
                   "CMakeFiles/tapestry.dir/core/shape.cpp.o\n", executable=True)
        self.assertEqual(self.call("--retry").returncode, 0)
        self.assertTrue(all(r["outcome"] != "survived" or "retried" not in r or r["before"] != "u = i + j;"
                            for r in self.records()))
        report = self.call("--report").stdout
        self.assertIn("1 judged equivalent", report)
        self.assertIn("equivalent: nobody reads u", report)
        other = self.call("--count", "7", "--seed", "t")
        self.assertEqual(other.returncode, 1)
        self.assertIn("remove it to begin again", other.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
