"""The pack: the programs of tools/gpu_check in one archive, which travels with the tree to a machine with a GPU and needs
nothing there but glibc and the GPU's driver."""
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

import process

DAY = 86400.0  # seconds: a build has no other limit
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
FOLDER = os.path.join(ROOT, "build/gpu_pack")
UNPACKED = os.path.join(ROOT, "build/gpu_unpacked")
TREE = os.path.join(ROOT, "build/gpu_tree")
MOST = 64 << 20  # bytes of the tree and the pack together, which is what machines for rent accept
# The programs that the phases need. All others would only cost time on a machine with a GPU.
TARGETS = ["bench_gpu_ops", "tapestry-compare", "tapestry-run", "tests_core", "tests_distributed", "tests_gpu", "tests_ptx"]
# Tests with the shared CUDA runtime, and uncompressed PTX in the library, run on the stand-in runtime too. The programs find
# their libraries, and those that these load (--disable-new-dtags), beside themselves. The ci preset's objects are the
# same, so that a compiler cache serves both. The kernels, half of the pack, are in the library alone.
CONFIGURE = ["--preset", "ci", "-DTAPESTRY_BUILD_BENCHMARKS=ON", "-DTAPESTRY_LINK_BASE=OFF",
             "-DCMAKE_BUILD_RPATH=$ORIGIN/../lib;$ORIGIN", "-DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags"]
# What glibc and the kernel provide. Every other library is carried.
OF_THE_SYSTEM = re.compile(r"^(linux-vdso|ld-linux|lib(c|m|dl|rt|pthread|resolv|util)\.so)")


def file():
    return os.path.join(FOLDER, "pack.tar.xz")


def manifest():
    """Returns what the pack says about itself, or an empty dict if there is no pack."""
    try:
        with open(os.path.join(FOLDER, "manifest.json")) as text:
            return json.load(text)
    except (OSError, ValueError):
        return {}


def digest(path):
    """Identifies the pack. Times of files do not, because copying keeps or changes them."""
    with open(path, "rb") as data:
        return hashlib.sha256(data.read()).hexdigest()


def about():
    found = manifest()
    return f"{found.get('commit', '?')}, {found.get('glibc', '?')}, {os.path.getsize(file()) / (1 << 20):.1f} MiB"


def unpack():
    """Unpacks the pack, unless an earlier call has done it. Returns the reason if it fails, or an empty string."""
    stamp = os.path.join(UNPACKED, "unpacked")
    try:
        found = digest(file())
        if manifest().get("sha256") not in (None, found):
            return f"{file()} is not the file that its manifest.json describes: copy build/gpu_pack again"
        if os.path.exists(stamp):
            with open(stamp) as text:
                if text.read() == found:
                    return ""
        shutil.rmtree(UNPACKED, ignore_errors=True)
        with tarfile.open(file()) as tar:
            tar.extractall(UNPACKED, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
        with open(stamp, "w") as text:
            text.write(found)
        return ""
    except Exception as error:  # also lzma.LZMAError, which Pythons without lzma do not know
        return f"{file()} cannot be unpacked ({type(error).__name__}: {error}): make it again by tools/gpu_check --pack"


def tests(build):
    """Returns the tests that use a GPU, as dicts of name, program, arguments, environment and skip. They are in a
    file of the pack; a build tree asks ctest."""
    path = os.path.join(build, "tests.json")
    if os.path.exists(path):
        with open(path) as text:
            return json.load(text)
    listed = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1", "-L", "^gpu$", "-LE", "long"],
                            capture_output=True, text=True, check=False)
    found = []
    for test in json.loads(listed.stdout)["tests"]:
        properties = {each["name"]: each["value"] for each in test["properties"]}
        program, *arguments = test["command"]
        found.append({"name": test["name"], "program": os.path.relpath(program, build), "arguments": arguments,
                      "environment": dict(each.split("=", 1) for each in properties.get("ENVIRONMENT", [])),
                      "skip": "|".join(properties.get("SKIP_REGULAR_EXPRESSION", []))})
    return found


def libraries(program):
    """Returns {name: path} of the shared libraries that the program loads and that must be carried."""
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    found = subprocess.run(["ldd", program], capture_output=True, text=True, check=False, env=environment).stdout
    missing = re.findall(r"(\S+) => not found", found)
    if missing:
        raise SystemExit(f"[tools/gpu_check] {program} does not find {', '.join(missing)} here; build it again")
    return {name: path for name, path in re.findall(r"(\S+) => (/\S+)", found) if not OF_THE_SYSTEM.match(name)}


def put(source, destination):
    """Copies a program or library without its symbols. Anything that is not an ELF file is copied as it is."""
    os.makedirs(os.path.dirname(destination), exist_ok=True)
    done = subprocess.run(["strip", "--strip-unneeded", "-o", destination, source], capture_output=True, check=False)
    if done.returncode:
        shutil.copy(source, destination)
    shutil.copymode(source, destination)


def tree_bytes():
    """Returns the bytes of the files that git tracks or does not ignore."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT,
                            capture_output=True, text=True, check=False).stdout
    paths = (os.path.join(ROOT, name) for name in listed.split("\0") if name)
    return sum(os.lstat(path).st_size for path in paths if os.path.lexists(path))


def make(options, commit):
    """Builds the programs, unless --build-dir names a tree that has them, and packs them. Returns the exit status."""
    build = os.path.abspath(options.build_dir or TREE)
    if not options.build_dir:
        for command in (["cmake", *CONFIGURE, "-B", build],
                        ["cmake", "--build", build, "--parallel", str(options.jobs), "--target", *TARGETS]):
            print("+", " ".join(command), flush=True)
            if not process.run(command, DAY, ROOT, on_line=lambda line: print(line, flush=True)).ok:
                return 1
    new = FOLDER + ".new"
    shutil.rmtree(new, ignore_errors=True)
    try:
        pack(build, commit, new)
        size, tree = os.path.getsize(os.path.join(new, "pack.tar.xz")), tree_bytes()
        print(f"the pack has {size / (1 << 20):.1f} MiB; with the tree {(size + tree) / (1 << 20):.1f} MiB", flush=True)
        if size + tree > MOST:
            raise SystemExit(f"[tools/gpu_check] the pack and the tree exceed {MOST >> 20} MiB; remove untracked files")
        shutil.rmtree(FOLDER, ignore_errors=True)
        os.rename(new, FOLDER)
    finally:  # a pack that was made before is kept until there is a better one
        shutil.rmtree(new, ignore_errors=True)
    print(file(), flush=True)
    return 0


def pack(build, commit, new):
    """Makes the pack and its manifest in the folder `new`. Raises SystemExit with the reason if something is missing."""
    content = os.path.join(new, "content")
    carried = {}
    for tool in ("ldd", "strip"):
        if not shutil.which(tool):
            raise SystemExit(f"[tools/gpu_check] {tool} is missing: apt-get install binutils libc-bin")
    for name in TARGETS:
        program = os.path.join(build, "bin", name)
        if not os.path.exists(program):
            raise SystemExit(f"[tools/gpu_check] {program} is not built; leave out --build-dir, or build it")
        carried.update(libraries(program))
        put(program, os.path.join(content, "bin", name))
    for name, path in carried.items():
        put(os.path.realpath(path), os.path.join(content, "lib", name))
    # A library may load others, which this machine has and another one lacks.
    outside = {name for program in TARGETS for name, path in libraries(os.path.join(content, "bin", program)).items()
               if not path.startswith(content)}
    if outside:
        raise SystemExit(f"[tools/gpu_check] the packed programs do not load {', '.join(sorted(outside))} from the pack; "
                         "configure the build tree with " + " ".join(CONFIGURE[2:]))
    try:
        found = tests(build)
    except (OSError, ValueError, KeyError) as error:
        raise SystemExit(f"[tools/gpu_check] ctest does not list the tests of {build} ({type(error).__name__}: {error})")
    absent = sorted({test["program"] for test in found if not os.path.exists(os.path.join(content, test["program"]))})
    if absent or not found:
        raise SystemExit("[tools/gpu_check] " + (f"tests of the GPU run {', '.join(absent)}: add the program to TARGETS"
                                                 if absent else f"{build} has no test with the label gpu"))
    with open(os.path.join(content, "tests.json"), "w") as text:
        json.dump(found, text)
    archive = os.path.join(new, "pack.tar.xz")
    with tarfile.open(archive, "w:xz") as tar:
        tar.add(content, ".")
    shutil.rmtree(content)
    with open(os.path.join(new, "manifest.json"), "w") as text:
        json.dump({"commit": commit, "glibc": os.confstr("CS_GNU_LIBC_VERSION"), "sha256": digest(archive)}, text)
