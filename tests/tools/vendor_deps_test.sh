#!/usr/bin/env bash
# Tests tools/vendor_deps. The files that it copies must be enough to configure and compile this tree on a machine without
# these packages.
set -uo pipefail
source_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
  printf 'FAILED: %s\n%s\n' "$1" "${2-}"
  failures=$((failures + 1))
}

# A copy of the tree, with its own .deps/ and build trees.
mkdir "$work/tree"
for entry in "$source_root"/*; do
  case ${entry##*/} in build | runs | tools) ;; *) ln -s "$entry" "$work/tree/" ;; esac
done
cp -r "$source_root/tools" "$work/tree/"
cd "$work/tree" || exit 1

output=$(tools/vendor_deps --bogus 2>&1)
[[ $? == 2 && $output == *"unknown option '--bogus'"* ]] || fail 'an unknown option must be refused' "$output"

# Four small files replace the data set.
mkdir -p "$work/system/usr/share/datasets/fashion-mnist"
for name in train-images-idx3 train-labels-idx1 t10k-images-idx3 t10k-labels-idx1; do
  echo data | gzip >"$work/system/usr/share/datasets/fashion-mnist/$name-ubyte.gz"
done
ln -s /usr/include /usr/lib "$work/system/usr/"
[[ ! -d /usr/local/include ]] || ln -s /usr/local "$work/system/usr/local"

output=$(SYSROOT=$work/system tools/vendor_deps --no-install 2>&1)
status=$?
# On Ubuntu 24.04 and Debian 13, vendor_deps refuses the system's Catch2 3, so nothing else can be tested.
if [[ $output == *'this system has Catch2 3'* ]]; then
  [[ $status == 1 && ! -e .deps && -e /usr/include/catch2/catch_all.hpp ]] || fail 'Catch2 3 must be refused' "$output"
  ((failures == 0)) && echo 'all as expected on a system with Catch2 3'
  exit $((failures > 0))
fi
((status == 0)) || fail 'vendor_deps' "$output"
for name in Eigen/Core nlohmann/json.hpp CLI/CLI.hpp catch2/catch.hpp zlib.h; do
  [[ -f .deps/include/$name ]] || fail "no $name" "$output"
done
[[ -z $(find .deps -type l) ]] || fail 'there are symbolic links, which are broken on another machine'
[[ $(zcat .deps/fashion-mnist/t10k-labels-idx1-ubyte.gz) == data ]] || fail 'the data were not copied'

head -c 70M /dev/zero >"$work/system/usr/share/datasets/fashion-mnist/big-ubyte.gz"
output=$(SYSROOT=$work/system tools/vendor_deps --no-install --output "$work/too-much" 2>&1)
[[ $? == 1 && $output == *'the limit is 64; try --without-data'* ]] || fail 'a tree above the limit must be refused' "$output"
[[ ! -e $work/too-much ]] || fail 'a refused copy must not be left behind'
output=$(SYSROOT=$work/system tools/vendor_deps --no-install --without-data --output "$work/less" 2>&1) ||
  fail '--without-data must succeed' "$output"
[[ -e $work/less/lib/libz.so.1 && ! -e $work/less/fashion-mnist ]] || fail '--without-data must copy everything except the data' "$output"

# CMake is told to ignore the system's folders.
output=$(cmake -S . -B build/x -G Ninja -DCMAKE_MAKE_PROGRAM="$(command -v ninja)" -DCMAKE_IGNORE_PREFIX_PATH='/;/usr;/usr/local' \
  -DTAPESTRY_CUDA=OFF -DTAPESTRY_BUILD_TESTS=ON 2>&1) || fail 'configure' "$output"
for variable in TAPESTRY_{EIGEN,JSON,CLI11,CATCH2}_INCLUDE_DIR \
  ZLIB_INCLUDE_DIR ZLIB_LIBRARY_RELEASE; do
  value=$(sed -n "s/^$variable:[A-Z]*=//p" build/x/CMakeCache.txt)
  [[ $value == "$PWD"/.deps/* ]] || fail "$variable is '$value'"
done

# sees OBJECT HEADER: checks that compiling the object file reads the copied header.
sees() {
  local command
  command=$(ninja -C build/x -t commands "$1" | tail -n 1)
  output=$(cd build/x && eval "${command/ -o * -c / -c } -E -H -o /dev/null" 2>&1 >/dev/null)
  [[ $output == *"$PWD/.deps/include/$2"* ]] || fail "$1 does not read $2" "${output:0:500}"
}
library=CMakeFiles/tapestry_base.dir
sees $library/core/safetensors.cpp.o nlohmann/json.hpp
sees $library/data/formats/internal/input_file.cpp.o zlib.h
sees $library/kernels/cpu/matmul_eigen.cpp.o Eigen/Core
sees apps/CMakeFiles/apps_common.dir/common/command_line.cpp.o CLI/CLI.hpp

# A program that is linked with the copied zlib must load it by name at run time.
printf '#include <zlib.h>\n#include <cstdio>\nint main() { return std::puts(zlibVersion()) < 0; }\n' >"$work/z.cpp"
output=$("${CXX:-c++}" -I.deps/include "$work/z.cpp" .deps/lib/libz.so "-Wl,-rpath,$PWD/.deps/lib" -o "$work/z" 2>&1 &&
  ldd "$work/z" && "$work/z") || fail 'a program with zlib' "$output"
[[ $output == *"$PWD/.deps/lib/libz.so.1"* ]] || fail 'the program loads another zlib' "$output"

((failures == 0)) && echo 'all as expected'
exit $((failures > 0))
