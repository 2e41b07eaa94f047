#!/usr/bin/env python3
"""usage: wheel_test.py BUILD [torch]

Makes a wheel from a build tree, installs it into a virtual environment without network, and uses it there: programs train,
README's model is compiled, found by tapestry-config and by find_package, and the library shares its OpenMP threads with another
library that has a runtime of its own. With `torch`, only the last is done, with PyTorch, in the environment that the first run left.
"""
import glob
import hashlib
import base64
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

source = Path(__file__).resolve().parents[2]
build = Path(sys.argv[1]).resolve()
work = build / "wheel"
venv = work / "venv"
# Nothing else of the caller's environment reaches the programs. A build with the shared CUDA runtime needs it from outside.
clean = {"PATH": f"{venv}/bin:{os.environ['PATH']}", "HOME": str(work), "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive",
         "TAPESTRY_CACHE_DIR": ""}
failures = 0


def check(condition, what):
    global failures
    if not condition:
        print(f"FAILED: {what}")
        failures += 1


def run(*command, **options):
    """Runs a command and returns what it prints on both streams. Fails the test if its exit status is not 0."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          **dict({"env": clean, "cwd": work}, **options))
    check(done.returncode == 0, f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stdout}")
    return done.stdout


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(0)


def make_wheel():
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    (work / "tapestry-0.0.1-py3-none-any.whl").touch()  # of an earlier version; pip would be given both
    run(sys.executable, source / "tools/packaging/pack.py", build, "--out", work, "--stored", env=os.environ)
    wheels = list(work.glob("*.whl"))
    check(len(wheels) == 1 and re.fullmatch(r"tapestry-[\d.]+-py3-none-manylinux_2_\d\d_x86_64\.whl", wheels[0].name), f"the wheel: {wheels}")
    return wheels[0]


def check_content(wheel):
    """The record is complete and true, no private header is there, and each carried library has its licence."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        record = next(name for name in names if name.endswith(".dist-info/RECORD"))
        rows = [row.rsplit(",", 2) for row in archive.read(record).decode().splitlines()]
        check(sorted(row[0] for row in rows) == sorted(names), "RECORD lists other files than the wheel holds")
        for name, digest, size in rows:
            if size and int(size) < 1e6:
                found = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).rstrip(b"=").decode()
                check(digest == f"sha256={found}", f"RECORD has a wrong hash of {name}")
        carried = archive.read(next(name for name in names if name.endswith("licenses/CARRIED.txt"))).decode()
        licences = [re.sub(r".*licenses/|\.txt$", "", name) for name in names if "/licenses/" in name]
    for package in ("eigen", "json", "dnnl", "gloo", "gomp"):
        if package in carried:
            check(any(package in name for name in licences), f"there is no licence of {package}: {licences}")
    check("libgomp.so.1: " in carried, f"the wheel carries no libgomp: {carried}")
    check(not [name for name in names if "/internal/" in name or name.startswith("tapestry/include/") and
               not name.endswith((".h", ".cuh"))], "the wheel holds files that are not public headers")


def check_programs():
    text = run("tapestry-run", "--version")
    check(re.match(r"tapestry-run \(Tapestry\) \d+\.\d+\.\d+\nprocessors: .*\nlibraries: .*OpenMP", text), f"--version: {text}")
    check(f"loaded: {venv}" in text, f"the library of another folder was loaded: {text}")
    if glob.glob(f"{venv}/lib/python*/site-packages/tapestry/lib/glibc-hwcaps"):
        old = run("tapestry-run", "--version", env=dict(clean, GLIBC_TUNABLES="glibc.cpu.hwcaps=-AVX2"))
        check("glibc-hwcaps" not in old, f"a processor without AVX2 loads {old}")
        has_avx2 = " avx2 " in Path("/proc/cpuinfo").read_text()
        check(("glibc-hwcaps" in text) == has_avx2, f"a processor {'with' if has_avx2 else 'without'} AVX2 loads {text}")
    program = next(venv.glob("lib/python*/site-packages/tapestry/bin/classifier"))
    # Of the system's libraries, only those that every system has are used. It may have an OpenMP runtime, or not.
    loaded = re.findall(r"=> (/\S+)", run(program, env=dict(clean, LD_TRACE_LOADED_OBJECTS="1")))
    foreign = [path for path in loaded if str(venv) not in path]
    usual = re.compile(r".*/lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|z|gomp|cudart)\.so\.\d+$")
    check(len(foreign) < len(loaded) and all(map(usual.match, foreign)), f"libraries of the system: {foreign}")
    text = run("tapestry-run", "--standalone", "--nproc-per-node", "2", "classifier", "--model", "demo", "--parallel", "ddp",
               "--epochs", "1")
    check("accuracy" in text, f"the classifier printed no accuracy: {text}")
    check("train" in run("gpt", "--help") and "mode" in run("tapestry-compare", "--help"), "--help of gpt or tapestry-compare")


def check_models():
    """README's program is compiled and run, with tapestry-config and with find_package."""
    readme = (source / "README.md").read_text()
    (work / "main.cpp").write_text(re.search(r"```cpp\n(.*?)```", readme, re.S)[1])
    options = ["tapestry-config", "--cflags", "--libs"]
    run("sh", "-c", f"c++ main.cpp $({' '.join(options)}) -o by_config")
    tutorial = (source / "docs/tutorials/write-a-model.md").read_text()
    (work / "CMakeLists.txt").write_text(re.search(r"```cmake\n(.*?)```", tutorial, re.S)[1])
    folder = run("tapestry-config", "--cmake-dir").strip()
    run("cmake", "-S", ".", "-B", "model", "-DCMAKE_BUILD_TYPE=Debug", f"-Dtapestry_DIR={folder}")
    run("cmake", "--build", "model")
    results = [run(program) for program in (work / "by_config", work / "model/my_model")]
    check(results[0] == results[1] and "step 200, loss 0." in results[0], f"README's model printed {results}")


REGION = """#include "tapestry/core/parallel.h"
extern "C" void region(int threads) {
  tapestry::set_num_threads(threads);
  tapestry::parallel_for(1 << 20, 1, [](std::int64_t, std::int64_t) {});
}
"""
OTHER = """#include <omp.h>
extern "C" void other(int threads) {
  int count = 0;
#pragma omp parallel num_threads(threads)
#pragma omp atomic
  ++count;
}
"""
# Loads libraries in the order of the arguments.
LOAD = """
import ctypes, os, sys
def load_tapestry():
    global region
    region = ctypes.CDLL('./region.so').region
def load_other():
    global other
    ctypes.CDLL('./libgomp-other.so.1', ctypes.RTLD_GLOBAL)  # as PyTorch does
    other = ctypes.CDLL('./other.so').other
def load_torch():
    global torch
    import torch
for name in sys.argv[1:]:
    globals()['load_' + name]()
def threads():
    return len(os.listdir('/proc/self/task'))
"""
# Prints the number of threads of the process after both libraries have used 4.
BOTH_REGIONS = LOAD + """
region(4)
other(4)
print(threads())
"""
WITH_TORCH = LOAD + """
torch.set_num_threads(4)
x = torch.randn(512, 512)
torch.relu(torch.mm(x, x))
before = threads()
region(4)
print(torch.__version__, before, threads())
"""


def compile_region():
    (work / "region.cpp").write_text(REGION)
    run("sh", "-c", "c++ -shared -fPIC region.cpp $(tapestry-config --cflags --libs) -o region.so")


def check_openmp():
    """The team of one OpenMP runtime has 4 threads; with two runtimes, the process would have 7."""
    compile_region()
    (work / "other.cpp").write_text(OTHER)
    run("c++", "-shared", "-fPIC", "-fopenmp", "other.cpp", "-o", "other.so")
    shutil.copy(next(venv.glob("lib/python*/site-packages/tapestry/lib/openmp/libgomp.so.1")), work / "libgomp-other.so.1")
    run("patchelf", "--set-soname", "libgomp-other.so.1", "libgomp-other.so.1")
    run("patchelf", "--replace-needed", "libgomp.so.1", "libgomp-other.so.1", "other.so")
    run("patchelf", "--set-rpath", "$ORIGIN", "other.so")
    for order in (["tapestry", "other"], ["other", "tapestry"]):
        threads = run(venv / "bin/python", "-c", BOTH_REGIONS, *order).strip()
        check(threads == "4", f"after loading {' and '.join(order)}, the process has {threads} threads instead of 4")


def check_torch():
    pythons = [os.environ.get("TAPESTRY_TORCH_PYTHON", ""), *glob.glob(os.path.expanduser("~/.cache/tapestry/torch-*/bin/python")),
               sys.executable]
    environment = dict(clean, LD_LIBRARY_PATH=":".join(filter(None, [clean.get("LD_LIBRARY_PATH"), os.environ.get("LD_LIBRARY_PATH")])))
    for python in filter(os.path.exists, pythons):
        if subprocess.run([python, "-c", "import torch"], env=environment, capture_output=True).returncode == 0:
            break
    else:
        skip("no Python here imports PyTorch, so that OpenMP's threads are not shared with it in a test; TAPESTRY_TORCH_PYTHON names one")
    for order in (["tapestry", "torch"], ["torch", "tapestry"]):
        version, before, after = run(python, "-W", "ignore", "-c", WITH_TORCH, *order, env=environment).split()[-3:]
        check(before == after, f"PyTorch {version}, {' and '.join(order)}: the library's threads are not those of PyTorch, {before} became {after}")
        print(f"{' and '.join(order)}: {after} threads, PyTorch {version}")


def main():
    runtime = re.search(r"=> (/\S+)/libcudart\.so", run("ldd", build / "lib/libtapestry.so", cwd="/"))
    if runtime:
        clean["LD_LIBRARY_PATH"] = runtime[1]
    if sys.argv[2:] == ["torch"]:
        if not (work / "region.so").exists():
            skip("tools.wheel was skipped or failed")
        return check_torch()
    for tool in ("patchelf", "objdump", "dpkg"):
        if not shutil.which(tool):
            skip(f"{tool} is not installed, and no wheel can be made without it")
    if subprocess.run([sys.executable, "-c", "import pip, venv"], capture_output=True).returncode != 0:
        skip(f"{sys.executable} has no pip or no venv (python3-venv, python3-pip)")
    wheel = make_wheel()
    check_content(wheel)
    run(sys.executable, "-m", "venv", "--without-pip", venv, cwd="/")
    pip = [sys.executable, "-m", "pip", "--python", venv / "bin/python", "--disable-pip-version-check"]
    run(*pip, "install", "--no-index", "--no-compile", wheel)
    check_programs()
    check_models()
    check_openmp()
    # What check_torch needs is left behind.
    wheel.unlink()


main()
sys.exit(failures > 0)
