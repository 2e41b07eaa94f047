#!/usr/bin/env python3
"""Makes a wheel from a build tree. tools/wheel calls this after a build, and tests/tools/wheel_test.py without one.

The wheel has one folder, tapestry/, with what `cmake --install` puts below its prefix, and the shared libraries that it needs.
The latter get names of their own, such as libdnnl-tapestry.so.2, so that a process may have other copies of them. Not carried
are the libraries that every system has (PROVIDED), and NVIDIA's.
"""
import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

# The name on a package index, such as PyPI. It is also in the file's name.
NAME = "tapestry"
PROGRAMS = ["tapestry-compare", "tapestry-run", "tapestry-checkpoint", "tapestry-ptx", "tapestry-config", "classifier", "gpt"]
# Systems with glibc have these. A CUDA build gets NVIDIA's runtime from the user's toolkit.
PROVIDED = re.compile(r"(ld-linux-x86-64|lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+|z|cudart))\.so(\.|$)")
GLIBC = 36  # the wheel promises to run with glibc 2.36, or with what its files need if that is newer
LIBSTDCXX = 30  # systems with that glibc have GLIBCXX_3.4.30 of GCC 12
MEGABYTES = 25
# Headers of these packages are compiled into the files: the variable of CMake's cache, and a file that it finds.
HEADER_ONLY = {"TAPESTRY_EIGEN_INCLUDE_DIR": "Eigen/Core", "TAPESTRY_JSON_INCLUDE_DIR": "nlohmann/json.hpp",
               "TAPESTRY_CLI11_INCLUDE_DIR": "CLI/CLI.hpp"}
# Tapestry uses neither ICU's data (30 MB), since normal forms are tables in ICU's code, nor Gloo's transport over InfiniBand.
HOLLOW = re.compile(r"lib(icudata|ibverbs)\.so\.")
# A process must not have two OpenMP runtimes of one name, so this library keeps its name. The system's is preferred, because
# code of the system's compiler may need a newer one than that of the wheel.
OPENMP = "libgomp.so.1"
SYSTEM_FOLDERS = ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64"]


def fail(reason):
    sys.exit(f"[wheel] {reason}")


def output(*command, **options):
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)
    if done.returncode != 0:
        fail(f"'{' '.join(map(str, command))}' failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


class Elf:
    """The dynamic section of a file."""

    def __init__(self, path):
        text = output("objdump", "-p", path)
        self.needed = re.findall(r"^ +NEEDED +(\S+)", text, re.M)
        self.soname = (re.findall(r"^ +SONAME +(\S+)", text, re.M) or [""])[0]
        self.glibc = max((int(minor) for minor in re.findall(r"\bGLIBC_2\.(\d+)", text)), default=0)
        self.libstdcxx = max((int(minor) for minor in re.findall(r"\bGLIBCXX_3\.4\.(\d+)", text)), default=0)


def install(build, prefix):
    """Installs the build tree, without what a wheel cannot hold (links) or leaves out (the programs of tutorials)."""
    output("cmake", "--install", build, "--prefix", prefix, "--strip")
    library = prefix / "lib"
    if not library.is_dir():
        fail(f"the build tree {build} installs into no folder lib: configure it with -DCMAKE_INSTALL_LIBDIR=lib")
    for program in (prefix / "bin").iterdir():
        if program.name not in PROGRAMS:
            program.unlink()
    shutil.rmtree(prefix / "share")
    names = set()
    for file in list(library.rglob("libtapestry*.so*")):
        if file.is_symlink():
            file.unlink()
        else:
            name = Elf(file).soname
            for targets in (library / "cmake/tapestry").glob("tapestry-targets*.cmake"):
                targets.write_text(targets.read_text().replace(f"/{file.name}", f"/{name}"))
            file.rename(file.with_name(name))
            names.add(name)
    for name in names:  # the file that a linker finds for -l
        (library / name).with_suffix("").write_text(f"INPUT({name})\n")


def libraries_of(files, folder):
    """The shared libraries that files need, as the dynamic linker finds them: their paths by name."""
    found = {}
    environment = dict(os.environ, LD_LIBRARY_PATH=str(folder))
    for file in files:
        for line in output("ldd", file, env=environment).splitlines():
            words = re.match(r"\s*(\S+) => (.+?)( \(0x[0-9a-f]+\))?$", line)
            if words and not PROVIDED.match(words[1]):
                if not words[2].startswith("/"):
                    fail(f"{file.name} needs {words[1]}, which is {words[2]}")
                found[words[1]] = Path(words[2])
    return {name: path for name, path in found.items() if folder not in path.parents}


def hollow(library, copy):
    """Makes a library with the same symbols and versions, and nothing behind them."""
    symbols = re.findall(r" ([TDR]) (\w+)(?:@@([\w.]+))?$", output("nm", "-D", "--defined-only", library), re.M)
    code = "".join(f"void {name}(void) {{ __builtin_trap(); }}\n" if kind == "T" else f"const long {name}[64] = {{0}};\n"
                   for kind, name, _ in symbols)
    versions = sorted({version for _, _, version in symbols if version})
    script = copy.with_name("versions.map")
    script.write_text("".join(f"{version} {{ {' '.join(f'{name};' for _, name, its in symbols if its == version)} }};\n"
                              for version in versions) or "{ *; };\n")
    output("cc", "-shared", "-nostdlib", f"-Wl,-soname,{library.name}", f"-Wl,--version-script={script}", "-o", copy, "-x", "c",
           "-", input=code)
    script.unlink()


def carry(prefix):
    """Copies the libraries that the installed files need into lib/, and makes all files find each other. Returns the originals."""
    library = prefix / "lib"
    files = [path for folder in (prefix / "bin", library) for path in folder.rglob("*") if path.is_file() and is_elf(path)]
    originals = libraries_of(files, library)
    for name, path in list(originals.items()):
        if HOLLOW.match(name):  # does not need what the original needs
            for unused in libraries_of([path], library):
                originals.pop(unused, None)
    names = {name: name if name == OPENMP else name.replace(".so", "-tapestry.so", 1) for name in originals}
    (library / "openmp").mkdir()
    for name, path in originals.items():
        copy = library / "openmp" / name if name == OPENMP else library / names[name]
        hollow(path, copy) if HOLLOW.match(name) else shutil.copy(path, copy)
        copy.chmod(0o755)
        files.append(copy)
    for file in files:
        elf = Elf(file)
        up = os.path.relpath(library, file.parent)
        folders = ["$ORIGIN" if up == "." else f"$ORIGIN/{up}"]
        if OPENMP in elf.needed:
            folders += SYSTEM_FOLDERS + [f"$ORIGIN/{os.path.relpath(library / 'openmp', file.parent)}"]
        renamed = [name for name in elf.needed if names.get(name, name) != name]
        if elf.soname in originals:
            output("patchelf", "--set-soname", names[elf.soname], file)
        if renamed:
            output("patchelf", *[word for name in renamed for word in ("--replace-needed", name, names[name])], file)
        output("patchelf", "--set-rpath", ":".join(folders), file)  # patchelf 0.14 cannot do both at once
    elfs = [Elf(file) for file in files]
    glibc = max(GLIBC, *(elf.glibc for elf in elfs))
    if max(elf.libstdcxx for elf in elfs) > LIBSTDCXX:  # a name of a wheel says nothing of libstdc++
        glibc = max(glibc, int(os.confstr("CS_GNU_LIBC_VERSION").split(".")[1]))
    return originals, glibc


def package_of(path):
    """The Debian package that a file belongs to, and its version."""
    path = os.path.realpath(path)
    for known in (path, re.sub(r"^/usr", "", path)):
        owner = subprocess.run(["dpkg", "-S", known], capture_output=True, text=True)
        if owner.returncode == 0:
            return output("dpkg-query", "-W", "-f", "${Package} ${Version} (source ${source:Package} ${source:Version})",
                          owner.stdout.split(": ")[0]).split(" ", 1)
    fail(f"{path} belongs to no package of dpkg, so its licence is not known; build wheels on Debian, with Debian's libraries")


def licences(build, originals, folder):
    """Collects the licences of everything in the wheel."""
    cache = (build / "CMakeCache.txt").read_text()
    sources = {name: path for name, path in sorted(originals.items())}
    for variable, header in HEADER_ONLY.items():
        where = re.search(rf"^{variable}:PATH=(.*)$", cache, re.M)
        if where:
            sources[header] = Path(where[1]) / header
    folder.mkdir(parents=True)
    shutil.copy(Path(__file__).resolve().parents[2] / "LICENSE", folder / "LICENSE")
    rows, common = [], set()
    for name, path in sources.items():
        package, version = package_of(path)
        copyright = Path("/usr/share/doc", package, "copyright")
        if not copyright.is_file():
            fail(f"{copyright} is missing, so the licence of {name} is not known: install {package} again, with its documentation")
        text = copyright.read_text()
        (folder / f"{package}.txt").write_text(text)
        common.update(re.findall(r"/usr/share/common-licenses/([A-Za-z0-9.-]*[A-Za-z0-9])", text))
        rows.append(f"{name}: {package} {version}\n")
    for name in common:
        if Path("/usr/share/common-licenses", name).exists():
            shutil.copy(f"/usr/share/common-licenses/{name}", folder / f"common-{name}.txt")
    (folder / "CARRIED.txt").write_text(
        "Shared libraries in tapestry/lib, and headers that are compiled into the files, by Debian package. Debian publishes\n"
        "the source packages. The shared libraries differ from Debian's in their names and search paths. ICU has no data, and\n"
        "libibverbs no code: only the names of its functions are there.\n\n"
        + "".join(rows))


def metadata(version, tag, folder):
    root = Path(__file__).resolve().parents[2]
    files = "".join(f"License-File: {path.name}\n" for path in sorted((folder / "licenses").iterdir()))
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {version}\nSummary: A deep-learning framework in C++20: library, headers "
        f"and programs\nLicense: MIT\n{files}Requires-Python: >=3.7\nDescription-Content-Type: text/markdown\n\n"
        + (root / "docs/reference/installing.md").read_text())
    (folder / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: tapestry\nRoot-Is-Purelib: false\nTag: {tag}\n")


def write_wheel(stage, record, wheel, compression):
    """Zips the files of a folder, with the time 1980-01-01, so that equal files make equal wheels."""
    rows = []
    with zipfile.ZipFile(wheel, "w", compression) as archive:
        for path in sorted(path for path in stage.rglob("*") if path.is_file()):
            name = path.relative_to(stage).as_posix()
            data = path.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}\n")
            add(archive, name, data, path.stat().st_mode)
        add(archive, record, "".join(rows) + f"{record},,\n", 0o100644)


def add(archive, name, data, mode):
    entry = zipfile.ZipInfo(name)
    entry.external_attr = (0o100755 if mode & 0o100 else 0o100644) << 16
    archive.writestr(entry, data, archive.compression, 9)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path, help="a build tree, in which everything is built")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the wheel")
    parser.add_argument("--stored", action="store_true", help="compress nothing, which saves time in tests")
    options = parser.parse_args()
    options.build = options.build.resolve()
    if not (options.build / "CMakeCache.txt").is_file():
        fail(f"{options.build} is no build tree: tools/wheel makes build/package")
    for tool in ("patchelf", "objdump", "ldd", "dpkg", "cc"):
        if not shutil.which(tool):
            fail(f"{tool} is missing: apt-get install patchelf binutils dpkg gcc")
    with tempfile.TemporaryDirectory(dir=options.build) as outer:
        stage, prefix = Path(outer, "stage"), Path(outer, "stage/tapestry")
        install(options.build, prefix)
        version = output(prefix / "bin/tapestry-config", "--version").strip()
        originals, glibc = carry(prefix)
        tag = f"py3-none-manylinux_2_{glibc}_x86_64"
        name = re.sub("[-_.]+", "_", NAME)
        info = stage / f"{name}-{version}.dist-info"
        licences(options.build, originals, info / "licenses")
        metadata(version, tag, info)
        shutil.copy(Path(__file__).with_name("module.py"), prefix / "__init__.py")
        programs = [program for program in PROGRAMS if (prefix / "bin" / program).exists()]
        (info / "entry_points.txt").write_text(
            "[console_scripts]\n" + "".join(f"{program} = tapestry:run_program\n" for program in programs))
        wheel = options.out / f"{name}-{version}-{tag}.whl"
        unfinished = Path(outer, wheel.name)
        write_wheel(stage, f"{info.name}/RECORD", unfinished, zipfile.ZIP_STORED if options.stored else zipfile.ZIP_DEFLATED)
        size = unfinished.stat().st_size / 1e6
        if size > MEGABYTES and not options.stored:
            fail(f"{wheel.name} has {size:.1f} MB, more than {MEGABYTES}")
        options.out.mkdir(parents=True, exist_ok=True)
        for old in options.out.glob(f"{name}-*.whl"):  # the command for pip names all wheels of the folder
            old.unlink()
        shutil.move(unfinished, wheel)
    print(f"{wheel}: {size:.1f} MB, {len(originals)} libraries of others, {', '.join(programs)}")


if __name__ == "__main__":
    main()
