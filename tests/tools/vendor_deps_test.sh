#!/usr/bin/env bash
# tools/vendor_deps, and a configuration of this tree that finds nothing but what it copied.
set -uo pipefail
source_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

fail() {
  printf 'FAILED: %s\n%s\n' "$1" "${2-}"
  failures=$((failures + 1))
}

# The tree, with a .deps/ and build trees of its own.
mkdir "$work/tree"
for entry in "$source_root"/*; do
  case ${entry##*/} in build | runs | tools) ;; *) ln -s "$entry" "$work/tree/" ;; esac
done
cp -r "$source_root/tools" "$work/tree/"
cd "$work/tree" || exit 1

output=$(tools/vendor_deps --bogus 2>&1)
[[ $? == 2 && $output == *"unknown option '--bogus'"* ]] || fail 'a wrong option' "$output"

# As data: four small files.
mkdir -p "$work/system/usr/share/datasets/fashion-mnist"
for name in train-images-idx3 train-labels-idx1 t10k-images-idx3 t10k-labels-idx1; do
  echo data | gzip >"$work/system/usr/share/datasets/fashion-mnist/$name-ubyte.gz"
done
ln -s /usr/include /usr/lib "$work/system/usr/"
[[ ! -d /usr/local/include ]] || ln -s /usr/local "$work/system/usr/local"

output=$(SYSROOT=$work/system tools/vendor_deps --no-install 2>&1)
status=$?
if [[ $output == *'this system has Catch2 3'* ]]; then  # as Ubuntu 24.04 and Debian 13 do: there is no more to see there
  [[ $status == 1 && ! -e .deps && -e /usr/include/catch2/catch_all.hpp ]] || fail 'Catch2 3 is not refused' "$output"
  ((failures == 0)) && echo 'all as expected, where Catch2 is version 3'
  exit $((failures > 0))
fi
((status == 0)) || fail 'vendor_deps' "$output"
for name in Eigen/Core nlohmann/json.hpp asio.hpp asio/ip/tcp.hpp CLI/CLI.hpp catch2/catch.hpp zlib.h; do
  [[ -f .deps/include/$name ]] || fail "no $name" "$output"
done
[[ -z $(find .deps -type l) ]] || fail 'links, which lead nowhere on another machine'
[[ $(zcat .deps/fashion-mnist/t10k-labels-idx1-ubyte.gz) == data ]] || fail 'no data'

head -c 70M /dev/zero >"$work/system/usr/share/datasets/fashion-mnist/big-ubyte.gz"
output=$(SYSROOT=$work/system tools/vendor_deps --no-install --output "$work/too-much" 2>&1)
[[ $? == 1 && $output == *'MiB of 64; --without-data is smaller'* ]] || fail 'too much is not refused' "$output"
[[ ! -e $work/too-much ]] || fail 'what was refused is there'
output=$(SYSROOT=$work/system tools/vendor_deps --no-install --without-data --output "$work/less" 2>&1) ||
  fail 'without data' "$output"
[[ -e $work/less/lib/libz.so.1 && ! -e $work/less/fashion-mnist ]] || fail 'something else than without data' "$output"

# A system that has none of them, for CMake.
output=$(cmake -S . -B build/x -G Ninja -DCMAKE_MAKE_PROGRAM="$(command -v ninja)" -DCMAKE_IGNORE_PREFIX_PATH='/;/usr;/usr/local' \
  -DTAPESTRY_CUDA=OFF -DTAPESTRY_BUILD_TESTS=ON 2>&1) || fail 'configure' "$output"
for variable in EIGEN_INCLUDE_DIR NLOHMANN_JSON_INCLUDE_DIR ASIO_INCLUDE_DIR CLI11_INCLUDE_DIR CATCH2_INCLUDE_DIR \
  ZLIB_INCLUDE_DIR ZLIB_LIBRARY_RELEASE; do
  value=$(sed -n "s/^$variable:[A-Z]*=//p" build/x/CMakeCache.txt)
  [[ $value == "$PWD"/.deps/* ]] || fail "$variable is '$value'"
done

# sees OBJECT HEADER: compiling the object reads the copy of the header.
sees() {
  local command
  command=$(ninja -C build/x -t commands "$1" | tail -n 1)
  output=$(cd build/x && eval "${command/ -o * -c / -c } -E -H -o /dev/null" 2>&1 >/dev/null)
  [[ $output == *"$PWD/.deps/include/$2"* ]] || fail "$1 does not read $2" "${output:0:500}"
}
library=CMakeFiles/tapestry.dir
sees $library/core/safetensors.cpp.o nlohmann/json.hpp
sees $library/distributed/comm/tcp_store.cpp.o asio/
sees $library/data/formats/input_file.cpp.o zlib.h
sees $library/kernels/cpu/gemm_eigen.cpp.o Eigen/Core
sees apps/CMakeFiles/classifier.dir/classifier/options.cpp.o CLI/CLI.hpp

# The library is one that programs find by its name.
printf '#include <zlib.h>\n#include <cstdio>\nint main() { return std::puts(zlibVersion()) < 0; }\n' >"$work/z.cpp"
output=$("${CXX:-c++}" -I.deps/include "$work/z.cpp" .deps/lib/libz.so "-Wl,-rpath,$PWD/.deps/lib" -o "$work/z" 2>&1 &&
  ldd "$work/z" && "$work/z") || fail 'a program with zlib' "$output"
[[ $output == *"$PWD/.deps/lib/libz.so.1"* ]] || fail 'a program takes another zlib' "$output"

((failures == 0)) && echo 'all as expected'
exit $((failures > 0))
