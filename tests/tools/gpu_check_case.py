"""The base class of the tests of tools/gpu_check. It creates fake programs and reads the rows that a run writes."""
import json
import os
import stat
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(ROOT, "tools/gpu"))
import check  # noqa: E402
from report import Report  # noqa: E402

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

    def ours(self):
        """Creates a fake bench_gpu_ops, which finds a GPU and no vendor library."""
        return self.program("bench_gpu_ops", "[[ $2 == libraries ]] && echo ok; while read -r line; do echo ok 1; done")

    def report(self, **about):
        return Report(os.path.join(self.folder, "results"), {**ABOUT, **about}, os.path.join(self.folder, "also"))

    def saved(self, folder="results"):
        with open(os.path.join(self.folder, folder, "gpu_check.json")) as file:
            return {row["name"]: row for row in json.load(file)["rows"]}

    def check(self, *arguments, limit=60):
        """Creates a Check object directly, without running the command-line program."""
        return check.Check(check.parse(["--build-dir", self.folder, "--folder", os.path.join(self.folder, "results"),
                                        "--limit-s", str(limit), "--commit", "c", *arguments]))

    def call(self, *arguments, path=None, **options):
        """Runs tools/gpu_check as a process. The fake programs of this test come first on its PATH."""
        environment = {**os.environ, "PATH": path or os.path.join(self.folder, "bin") + ":" + os.environ["PATH"]}
        return subprocess.run([os.path.join(ROOT, "tools/gpu_check"), "--folder", os.path.join(self.folder, "results"),
                               *arguments], env=environment, text=True, capture_output=True, timeout=120, check=False,
                              **options)
