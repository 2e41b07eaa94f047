#!/usr/bin/env bash
# Tests tools/quickstart and tools/test in a copy of the tree and on a fake system. Every program that they call is
# a stub that logs its arguments, so the tests see what the scripts call, in which order, and how they stop.
# shellcheck disable=SC2016
set -uo pipefail
source_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# ---- the stubs ----

# program NAME [BODY]: makes a program that logs its call and runs BODY.
program() {
  printf '#!/bin/bash\necho "%s $*" >>"%s/log"\n%s\n' "$1" "$work" "${2-}" >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}

# The stub of apt-get: `install` puts each package's program or header into the fake system.
apt_body='
touch_header() { mkdir -p "$SYSROOT/usr/include/$(dirname "$1")" && touch "$SYSROOT/usr/include/$1"; }
case " $* " in *" --simulate "*) exit 0 ;; *" install "*) ;; *) exit 0 ;; esac
for package; do
  case $package in
    cmake | g++ | ninja-build | ccache | iproute2 | lld | patchelf | python3-pip | qemu-user | chromium | doxygen)
      name=${package%-build}
      [[ $package != g++ ]] || name=c++
      [[ $package != iproute2 ]] || name=ip
      [[ $package != lld ]] || name=ld.lld
      [[ $package != python3-pip ]] || name=pip3
      [[ $package != qemu-user ]] || name=qemu-x86_64
      cp "$STORE/$name" "$(dirname "$0")/" ;;
    libeigen3-dev) touch_header eigen3/Eigen/Core ;;
    nlohmann-json3-dev) touch_header nlohmann/json.hpp ;;
    zlib1g-dev) touch_header zlib.h ;;
    libdnnl-dev) touch_header oneapi/dnnl/dnnl.hpp ;;
    libcli11-dev) touch_header CLI/CLI.hpp ;;
    libgloo-dev) touch_header gloo/config.h ;;
    libpng-dev) touch_header png.h ;;
    libpcre2-dev) touch_header pcre2.h ;;
    libicu-dev) touch_header unicode/normalizer2.h ;;
    libjpeg-dev) touch_header jpeglib.h ;;
    catch2) touch_header catch2/catch.hpp ;;
    python3-myst-parser) mkdir -p "$SYSROOT/usr/lib/python3/dist-packages/myst_parser" ;;
    dataset-fashion-mnist)
      mkdir -p "$SYSROOT/usr/share/datasets/fashion-mnist"
      touch "$SYSROOT/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz" ;;
  esac
done'

# fresh_machine: creates a fake system with a shell, a few basic tools, and a clone of this tree.
fresh_machine() {
  rm -rf "${work:?}"/*
  mkdir -p "$work"/{bin,store,system,clone}
  local name
  for name in awk bash basename cat chmod cp cut date dirname env flock grep head mkdir nproc sed sort touch tr; do
    ln -s "$(command -v $name)" "$work/bin/$name"
  done
  cp -r "$source_root/tools" "$work/clone/"
  program cmake 'case "$*" in
  --version) echo "cmake version 3.25.1" ;;
  "--build --preset release"*)
    mkdir -p build/release/bin
    printf "#!/bin/bash\necho \"classifier \$*\" >>'"$work"'/log\n" >build/release/bin/classifier
    chmod +x build/release/bin/classifier
    printf "#!/bin/bash\necho \"tapestry-run \$1 \$2 \$3 \$(basename "\$4")\" >>'"$work"'/log\nshift 3\n\"\$@\"\n" >build/release/bin/tapestry-run
    chmod +x build/release/bin/tapestry-run
    printf "#!/bin/bash\necho \"tapestry-compare \$*\" >>'"$work"'/log\nprintf \"a is fastest\\\\n\\\\na table\\\\n\"\necho page >'"$work"'/clone/build/compare.html\n[[ \$* != *--fail* ]]\n" >build/release/bin/tapestry-compare
    chmod +x build/release/bin/tapestry-compare ;;
esac'
  local name
  for name in ninja c++ ccache ip ld.lld qemu-x86_64 chromium doxygen patchelf pip3; do program "$name"; done
  mv "$work"/bin/{cmake,ninja,c++,ccache,ip,ld.lld,patchelf,pip3,qemu-x86_64,chromium,doxygen} "$work/store/"
  program ctest
  program setarch 'shift; exec "$@"'
  program sudo 'exec "$@"'
  program apt-cache
  program apt-get "$apt_body"
  : >"$work/log"
}

# call SCRIPT [OPTIONS]: runs the script. Sets $status, $output to what it printed, and $calls to the calls it made, without
# those that only query. The array as_person is a command prefix that changes the user.
as_person=()
call() {
  local script=$1
  shift
  : >"$work/log"
  output=$(cd "$work" && ${as_person[@]+"${as_person[@]}"} env -i PATH="$work/bin" HOME="$work" SYSROOT="$work/system" \
    STORE="$work/store" "$work/clone/$script" "$@" 2>&1 </dev/null)
  status=$?
  calls=$(grep -vE '^(sudo|cmake --version|apt-cache|apt-get .* --simulate|git|ninja)' "$work/log")
}

# ---- the expectations ----

fail() {
  printf 'FAILED: %s: %s\n--- it printed:\n%s\n--- it called:\n%s\n\n' "$name" "$1" "$output" "$calls"
  failures=$((failures + 1))
}
has_status() { [[ $status == "$1" ]] || fail "exit status $status, not $1"; }
says() { [[ $output == *"$1"* ]] || fail "does not say '$1'"; }
called() { [[ $calls == "$1" ]] || fail "should have called: $1"; }

every='cmake ninja-build g++ libeigen3-dev nlohmann-json3-dev zlib1g-dev libcli11-dev'
declare -A every_of=([tools/quickstart]="$every dataset-fashion-mnist" [tools/test]="$every catch2 dataset-fashion-mnist")
install='-q -o DPkg::Lock::Timeout=300 install -y --no-install-recommends'
update='-q -o DPkg::Lock::Timeout=300 update'

for script in tools/quickstart tools/test; do
  name="$script: command line"
  fresh_machine
  call $script --help
  has_status 0
  says '--no-install'
  call $script --bogus
  has_status 2
  says "unknown option '--bogus'"
  for jobs in 0 x ''; do
    call $script --jobs "$jobs"
    has_status 2
    says "not '$jobs'"
  done
  call $script --jobs
  has_status 2
  called ''

  name="$script: --no-install on a fresh machine"
  call $script --no-install
  has_status 1
  says "Missing: $every"
  called ''

  name="$script: no package can be installed"
  fresh_machine
  program apt-get 'exit 100'
  call $script
  has_status 1
  says 'stopped in phase "packages"'
  says 'apt-get update failed'
  called "apt-get $update
apt-get $install ${every_of[$script]}"

  name="$script: one package source cannot be reached"
  program apt-get '[[ $* != *update ]] || exit 100'"$apt_body"
  call $script
  has_status 0
  says 'continuing with the existing package lists'

  name="$script: apt-get installs nothing"
  fresh_machine
  program apt-get
  call $script
  has_status 1
  says 'these packages did not bring the expected files: cmake'

  name="$script: a component of the archive is disabled"
  program apt-cache '[[ $2 != zlib1g-dev && $2 != libcli11-dev ]]'
  call $script
  has_status 1
  says 'do not have zlib1g-dev libcli11-dev: see the messages of apt-get update. Debian 12'
  mkdir -p "$work/system/etc"
  printf 'PRETTY_NAME="Ubuntu 24.04.1 LTS"\nID=ubuntu\n' >"$work/system/etc/os-release"
  call $script
  has_status 1
  says 'add-apt-repository universe'
  called "apt-get $update"

  name="$script: neither root nor sudo"
  fresh_machine
  rm "$work/bin/sudo"
  ((EUID != 0)) || { as_person=(setpriv --reuid=65534 --regid=65534 --clear-groups) && chown -R 65534 "$work"; }
  call $script
  as_person=()
  has_status 1
  says "installing them needs root or sudo. As root: apt-get install $every"
  called ''

  name="$script: no package manager"
  rm "$work/bin/apt-get"
  call $script
  has_status 1
  says 'apt-get is missing'

  name="$script: skips an optional package that cannot be installed"
  fresh_machine
  program apt-get '[[ "$*" != *--simulate*libdnnl-dev ]] || exit 100'"$apt_body"
  call $script
  has_status 0
  says 'libdnnl-dev is optional'
  [[ $calls != *libdnnl-dev* && $calls == *libgloo-dev* ]] || fail 'should install everything except libdnnl-dev'

  name="$script: cmake is too old"
  program cmake 'echo "cmake version 3.22.1"'
  call $script
  has_status 1
  says 'version 3.22.1 and 3.25 is needed'

  name="$script: the build fails"
  program cmake '[[ $1 != --version ]] || echo "cmake version 3.30.0"; [[ $1 != --build ]] || exit 3'
  call $script
  has_status 1
  says 'stopped in phase "build"'
  [[ $calls != *ctest* && $calls != *classifier\ --data* ]] || fail 'goes on after a failure'

  name="$script: a build folder that cannot be written"
  rm -rf "$work/clone/build"
  touch "$work/clone/build"
  call $script
  has_status 1
  says "cannot write to $work/clone/build"

  name="$script: a second script at the same time"
  rm "$work/clone/build"
  mkdir "$work/clone/build"
  exec 8>"$work/clone/build/.lock"
  flock 8
  call $script
  has_status 1
  says 'wait until it ends'
  exec 8>&-
done

name='quickstart: from nothing to a trained network'
fresh_machine
call tools/quickstart --jobs 3 -- --epochs 2 --run-dir 'a b'
has_status 0
called "apt-get $update
apt-get $install $every dataset-fashion-mnist ccache libdnnl-dev libgloo-dev libpng-dev libjpeg-dev libpcre2-dev
cmake --preset release -DTAPESTRY_UNITY=ON
cmake --build --preset release --parallel 3 --target classifier tapestry-run
tapestry-run --standalone --nproc-per-node 2 classifier
classifier --data fashion-mnist --model cnn --parallel ddp --epochs 2 --run-dir a b"
[[ $(sed 1d "$work/clone/build/times.tsv" | cut -f 3 | tr '\n' ' ') == 'packages configure build ready train ' ]] ||
  fail "build/times.tsv holds $(cat "$work/clone/build/times.tsv")"

name='quickstart: the second run installs nothing'
call tools/quickstart --jobs 3
has_status 0
says 'packages: all there'
called 'cmake --preset release -DTAPESTRY_UNITY=ON
cmake --build --preset release --parallel 3 --target classifier tapestry-run
tapestry-run --standalone --nproc-per-node 2 classifier
classifier --data fashion-mnist --model cnn --parallel ddp'

name='quickstart: --no-install with all packages installed'
call tools/quickstart --no-install
has_status 0

name='quickstart --all: every program, and no training'
call tools/quickstart --all --jobs 3
has_status 0
called 'cmake --preset release -DTAPESTRY_UNITY=ON -DTAPESTRY_BUILD_BENCHMARKS=ON
cmake --build --preset release --parallel 3 --target programs'
says "the programs are in $work/clone/build/release/bin"
call tools/quickstart --all -- --epochs 2
has_status 2

name='quickstart --compare: one program, which measures two devices and writes a page'
fresh_machine
call tools/quickstart --compare --jobs 3 -- --rounds 9
has_status 0
called "apt-get $update
apt-get $install $every libgloo-dev ccache libdnnl-dev libpng-dev libjpeg-dev libpcre2-dev
cmake --preset release -DTAPESTRY_UNITY=ON
cmake --build --preset release --parallel 3 --target tapestry-compare
tapestry-compare --devices 2 --model gpt --length 32 --batch-size 8 --optimizer adamw --steps 5 --html $work/clone/build/compare.html --rounds 9"
says $'\na is fastest\n'
says "the page: file://$work/clone/build/compare.html"
[[ $output != *'a table'* ]] || fail 'should print the answer alone'
grep -q 'a table' "$work/clone/build/compare.txt" || fail 'should keep the tables'
call tools/quickstart --compare -- --fail
has_status 1
says 'a is fastest'
says 'what failed is above'
call tools/quickstart --compare --all
has_status 2

name='quickstart: installs only the missing packages'
fresh_machine
call tools/quickstart
rm "$work/system/usr/include/zlib.h"
call tools/quickstart
has_status 0
[[ $calls == *"apt-get $install zlib1g-dev
"* ]] || fail 'should install zlib1g-dev alone'

name='quickstart: continues if only an optional package is missing'
rm "$work/bin/ccache"
call tools/quickstart --no-install
has_status 0
says '(optional: ccache)'

name='test: everything'
fresh_machine
call tools/test --jobs=2
has_status 0
[[ $calls == *"apt-get $install $every catch2 dataset-fashion-mnist ccache libdnnl-dev libgloo-dev libpng-dev libjpeg-dev libpcre2-dev libicu-dev iproute2 lld patchelf python3-pip qemu-user chromium doxygen python3-myst-parser
cmake --preset ci -DTAPESTRY_PTX_TESTS=ON
cmake --build --preset ci --parallel 2
ctest --preset ci --no-tests=error --parallel 5 --label-exclude long" ]] || fail 'wrong calls'

name='test: prints how long nvcc took'
mkdir -p "$work/clone/build/ci"
printf '# ninja log v5\n0\t9000\t1\ta.cu.o\tx\n0\t220000\t1\tb.cu.o\tx\n10\t4010\t1\ta.cu.o\tx\n0\t9000\t1\ta.cpp.o\tx\n' \
  >"$work/clone/build/ci/.ninja_log"
call tools/test
says 'nvcc: 224 s for 2 files'
[[ $output != *OVER* ]] || fail '224 s are within the budget'
printf '0\t240000\t1\tb.cu.o\tx\n' >>"$work/clone/build/ci/.ninja_log"
call tools/test
says 'nvcc: 244 s for 2 files, OVER ITS BUDGET'

name='test: --full, a preset, options of ctest'
call tools/test --jobs 2 --full --preset asan -- -R 'a|b'
called 'cmake --preset asan
cmake --build --preset asan --parallel 2
ctest --preset asan --no-tests=error --parallel 5 -R a|b'
[[ $calls != *setarch* ]] || fail 'address randomization should stay as it is'
for preset in asan tsan ci; do
  name="test: $preset on a system that randomizes 32 bits of addresses"
  mkdir -p "$work/system/proc/sys/vm"
  echo 32 >"$work/system/proc/sys/vm/mmap_rnd_bits"
  call tools/test --preset $preset
  has_status 0
  [[ $calls == *"setarch -R ctest"* && $preset == *san || $calls != *setarch* && $preset == ci ]] || fail 'wrong launcher'
done

name='test: --quick'
call tools/test --jobs 2 --quick
has_status 1
says 'none of the test programs'
program ninja 'case "$*" in *"-t targets all") for t in quick apps autograd core distributed harness launch nn; do echo "tests_$t: phony"; done ;; esac'
call tools/test --jobs 2 --quick -- --verbose
has_status 0
called 'cmake --preset release -DTAPESTRY_UNITY=ON -DTAPESTRY_BUILD_TESTS=ON -DTAPESTRY_QUICK_TESTS=ON
cmake --build --preset release --parallel 2 --target tests_quick
ctest --preset release --no-tests=error --parallel 5 --label-regex ^quick$ --verbose --label-exclude long'
for option in '--preset cpu' --full --changed '--part auto'; do
  call tools/test --quick $option
  has_status 2
  says 'leave out --preset'
done

# Which folders a change chooses is tested in parts_test.sh.
name='test: --part'
call tools/test --jobs 2 --preset asan --part 2/3
has_status 0
called 'cmake --preset asan
cmake --build --preset asan --parallel 2 --target tests_distributed tests_apps
setarch -R ctest --preset asan --no-tests=error --parallel 5 --label-regex ^(distributed|apps)$ --label-exclude long
ctest --preset asan --no-tests=error --parallel 5 --label-regex ^(distributed|apps)$ --label-exclude long'
for options in '--preset ci --part 1/3' '--part 2/3' '--preset asan --part 1/2' '--preset asan --part 1/3 --full' \
  '--preset tsan --changed --part=1/3' '--preset asan --part'; do
  call tools/test $options
  has_status 2
done
name='test: --part auto without git'
call tools/test --preset tsan --part auto
has_status 0
says 'the change is unknown'
says 'chooses part'
[[ $calls == *--target* && $calls == *--label-regex* ]] || fail 'should build and run a part'
name='test: --part auto'
program git 'case "$*" in
  "merge-base HEAD origin/main") echo 1111111aaa ;;
  "rev-parse HEAD") echo 0000001bbb ;;
  "diff --name-only --no-renames 1111111aaa --") printf "%s\n" core/a.h kernels/a.h autograd/a.h nn/a.h ;;
  "ls-files"*) echo tests/harness/new_test.cpp ;;
esac'
call tools/test --preset tsan --part auto
has_status 0
says 'commit 0000001 chooses part 2 of 3; 5 files differ from 1111111'
says 'building and running tests/{distributed,apps,harness,kernels,core}, about '
says 'though the change touches them: nn autograd'
[[ $calls == *'--target tests_distributed tests_apps tests_harness tests_core
'* ]] || fail 'should build the programs that this preset has'
name='test: --part auto with the preset ci'
call tools/test --part auto
says "the PTX machine's own tests are ON"  # kernels/a.h
program git 'case "$*" in
  "merge-base HEAD origin/main") echo 1111111aaa ;;
  "rev-parse HEAD") echo 0000001bbb ;;
  "diff --name-only --no-renames 1111111aaa --") echo nn/a.h ;;
esac'
call tools/test --part auto
has_status 0
says "the PTX machine's own tests are OFF"
[[ $calls == *'cmake --preset ci -DTAPESTRY_PTX_TESTS=OFF -DTAPESTRY_CPU_ARCH=auto
'* && $calls != *--target* && $calls != *--label-regex* ]] || fail 'should build and run everything else'
rm "$work/bin/git"

# changed FILE...: git reports these files as different from BASE.
changed() {
  printf '%s\n' "$@" >"$work/changed"
}
name='test --changed'
program git 'case "$*" in
  "merge-base HEAD main") echo base ;;
  "diff --name-only --no-renames bad --") exit 128 ;;
  diff*) cat "'"$work"'/changed" ;;
esac'
# A fake of ninja's list of headers for three object files. tests_new was never compiled.
mkdir -p "$work/clone/build/ci" "$work"/clone/tests/{support,core,nn,data,apps,autograd,new,structure}
touch "$work/clone/build/ci/.ninja_deps" "$work/clone/tests/support/golden.h"
program ninja 'case "$*" in
  *"-t targets all")
    for t in core nn data apps autograd new structure laboratory ptx_machine; do echo "tests_$t: phony"; done
    for t in programs docs_programs bench_gpu_ops; do echo "$t: phony"; done
    echo "tests/CMakeFiles/tests_linked.dir/support/other.cpp.o: CXX_COMPILER"
    for o in core/shape nn/module nn/shared apps/train autograd/softmax new/new; do
      [[ $o != nn/shared ]] && file=${o}_test || file=$o
      echo "tests/CMakeFiles/tests_${o%/*}.dir/$file.cpp.o: CXX_COMPILER"
    done ;;
  *"-t deps") printf "%s: #deps 2, deps mtime 1 (VALID)\n    ../../%s\n    %s\n\n" \
    CMakeFiles/tapestry.dir/nn/module.cpp.o nn/module.cpp include/tapestry/nn/module.h \
    tests/CMakeFiles/tests_core.dir/core/shape_test.cpp.o tests/core/shape_test.cpp include/tapestry/core/tensor.h \
    tests/CMakeFiles/tests_nn.dir/nn/module_test.cpp.o tests/nn/module_test.cpp include/tapestry/nn/module.h \
    tests/CMakeFiles/tests_linked.dir/support/other.cpp.o tests/support/other.cpp ../../tests/other/helper.h \
    tests/CMakeFiles/tests_nn.dir/nn/shared.cpp.o tests/nn/shared.cpp include/tapestry/core/tensor.h \
    tests/CMakeFiles/tests_apps.dir/apps/train_test.cpp.o tests/apps/train_test.cpp include/tapestry/apps/common/svg.h \
    tests/CMakeFiles/tests_support.dir/support/golden.cpp.o tests/support/golden.cpp include/tapestry/nn/module.h \
    tests/CMakeFiles/tests_autograd.dir/autograd/softmax_test.cpp.o tests/autograd/softmax_test.cpp ../../tests/support/golden.h \
    tests/CMakeFiles/tests_data.dir/batches/tests_data_0.cpp.o tests/data/npy_test.cpp ../../tests/data/text_test.cpp
    printf "    ../../tests/data/shared.h\n\n" ;;  # a third file of the last object
esac'
# affects TESTS TARGETS: checks which tests ctest runs, apart from those that every change runs, and which targets are
# built.
affects() {
  local tests
  has_status 0
  tests=$(sed -nE 's/^ctest .*--tests-regex ([^ ]*) .*/\1/p' <<<"$calls")
  [[ $tests == "$1" ]] || fail "should run $1, not $tests"
  [[ $calls == *"--target $2
"* ]] || fail "should build $2"
}
everything() {
  has_status 0
  says "everything is built and run: $1"
  [[ $calls != *--target* && $calls != *--tests-regex* ]] || fail 'should build and run everything'
}
new='^new\.new$'  # a test that was never compiled may include any header, so every change affects it
changed docs/tutorials/quickstart.md README.md
call tools/test --changed
affects '^docs\.|^structure\.|^tools\.programs$' 'docs_programs tests_structure'
says '2 files differ from base'
changed tools/site/build.py
call tools/test --changed
affects '^docs\.site$|^structure\.|^tools\.' 'bench_gpu_ops programs tests_structure'
changed nn/module.h
call tools/test --changed
affects "^apps\\.|^autograd\\.softmax\$|^consumer\\.|^docs\\.site\$|^launch\\.|^machine\\.op_softmax\$|$new|^nn\\.module\$|^structure\\.|^tools\\.gpu_check\$" \
  'bench_gpu_ops programs tests_apps tests_autograd tests_new tests_nn tests_structure'
changed tests/nn/module_test.cpp
call tools/test --changed=HEAD~1
affects "$new|^nn\\.module\$|^structure\\." 'tests_new tests_nn tests_structure'
says '1 files differ from HEAD~1'
changed tests/nn/shared.cpp
call tools/test --changed HEAD~1
affects "$new|^nn\\.|^structure\\." 'tests_new tests_nn tests_structure'
changed tests/nn/fresh_test.cpp
call tools/test --changed -- --verbose
affects "$new|^nn\\.fresh\$|^structure\\." 'tests_new tests_nn tests_structure'
changed tests/data/npy_test.cpp  # compiled together with text_test.cpp
call tools/test --changed
affects "^data\\.npy\$|$new|^structure\\." 'tests_data tests_new tests_structure'
changed tests/data/shared.h
call tools/test --changed
affects "^data\\.npy\$|^data\\.text\$|$new|^structure\\." 'tests_data tests_new tests_structure'
changed kernels/cuda/copy.cu  # only tests whose programs are built may run
call tools/test --changed
affects "^cuda_runtime\\.|^device_code\\.|^machine\\.|$new|^ptx\\.|^structure\\." 'tests_new tests_structure'
changed tools/ptx/tests/machine/float_test.cpp
call tools/test --changed
affects "^laboratory\\.|^ptx_machine\\.|^structure\\." 'tests_laboratory tests_ptx_machine tests_structure'
changed tools/ptx/float.cpp  # the library runs on the machine in tests
call tools/test --changed
affects "^cuda_runtime\\.|^laboratory\\.|^machine\\.|^ptx_machine\\.|^structure\\." \
  'programs tests_laboratory tests_ptx_machine tests_structure'
for file in CMakeLists.txt cmake/cuda.cmake CMakePresets.json core/tensor.h autograd/ops/softmax.cpp kernels/cpu/softmax.cpp \
  tests/CMakeLists.txt tests/support/golden.cpp tests/golden/softmax.npz tests/ptx/lanes.cu tests/other/helper.h; do
  changed "$file"
  call tools/test --changed
  [[ $file == tests/support/golden.cpp ]] || everything ''
done
name='test --changed with a precompiled header of the tests'
printf '#include "tapestry/nn/module.h"\n' >"$work/clone/tests/support/nets.cpp"
printf '#include "tests/support/nets.h"\n' >"$work/clone/tests/core/nets_test.cpp"
printf '#include "tapestry/core/tensor.h"\n' >"$work/clone/tests/core/plain_test.cpp"
printf '#include "tapestry/tapestry.h"\n' >"$work/clone/tests/data/whole_test.cpp"
program ninja 'case "$*" in
  *"-t targets all") for t in programs docs_programs bench_gpu_ops tests_core tests_data tests_structure; do echo "$t: phony"; done ;;
  *"-t deps") printf "%s: #deps 2, deps mtime 1 (VALID)\n    ../../%s\n    %s\n\n" \
    tests/CMakeFiles/tests_support.dir/cmake_pch.hxx.gch tests/pch.h include/tapestry/nn/module.h \
    tests/CMakeFiles/tests_core.dir/batches/tests_core_0.cpp.o tests/core/nets_test.cpp ../../tests/core/plain_test.cpp ;;
esac'
changed nn/module.cpp
call tools/test --changed
affects "^apps\\.|^core\\.nets\$|^data\\.whole\$|^docs\\.|^launch\\.|^structure\\.|^tools\\.gpu_check\$" \
  'bench_gpu_ops docs_programs programs tests_core tests_data tests_structure'
rm "$work/clone/build/ci/.ninja_deps"
changed tests/nn/module_test.cpp
call tools/test --changed
everything 'nothing was built'
: >"$work/changed"
call tools/test --changed
has_status 0
says 'nothing to test'
called ''
call tools/test --changed bad
has_status 1
says "git cannot compare with 'bad'"
rm "$work/bin/git"
call tools/test --changed
has_status 1
says 'needs git'

name='ptx_tests_wanted'
# wanted YES|NO COMMIT FILE...: checks what ptx_tests_wanted says.
wanted() {
  local verdict
  verdict=$(source "$source_root/tools/lib/changed.sh" && ptx_tests_wanted "${@:2}")
  [[ $verdict == "$1" ]] || fail "${*:2}: $verdict"
}
for digit in 0 4 8 c; do wanted yes abcdef$digit README.md; done
for digit in 1 2 3 5 b d e f; do wanted no 123450$digit README.md tools/test tests/ptx/lanes.cu core/tensor.h; done
for file in tools/ptx/float.cpp tools/ptx/tests/machine/float_test.cpp kernels/cuda/copy.cu core/cuda/runtime.cpp \
  docs/tutorials/cuda-without-a-gpu/sum.cu docs/reference/planted-bugs.md; do
  wanted yes abcdef1 README.md $file
done
wanted no abcdef1
wanted yes '' README.md  # there is no git

for call in 'bench_cpu --rounds' 'bench_memory --models' 'bench_ddp --venv' 'bench_modes --json' 'bench_fsdp --steps' 'bench_lm --rounds' 'bench_tokenizer --seed' 'vendor_deps --output'; do
  name="$call without its value"
  call tools/$call
  has_status 2
  says "${call#* } needs a value"
done
name='test: an unknown preset'
call tools/test --preset msan
has_status 2
says "not 'msan'"

name='test: a test fails'
program ctest 'exit 8'
call tools/test
has_status 1
says 'stopped in phase "test"'

# failing_once LINE...: a stub of ctest that fails, writes these lines into its list of failed tests, and passes if only these
# are run again.
failing_once() {
  mkdir -p "$work/clone/build/ci/Testing/Temporary"
  rm -f "$work/failed_list"
  (($# == 0)) || printf '%s\n' "$@" >"$work/failed_list"
  program ctest '[[ $* != *--rerun-failed* ]] || exit ${RERUN_STATUS-0}
cp '"$work"'/failed_list build/ci/Testing/Temporary/LastTestsFailed.log
exit 8'
}
name='test: --retry runs two tests that failed again'
failing_once 10:apps.chat 11:launch.faults
call tools/test --retry
has_status 0
says 'FLAKY: apps.chat launch.faults failed once'
[[ $calls == *'ctest --preset ci --no-tests=error --parallel 1 --rerun-failed' ]] || fail 'wrong second call'
name='test: --retry reports nothing if all pass'
program ctest
call tools/test --retry
has_status 0
[[ $output != *FLAKY* && $calls != *rerun-failed* ]] || fail 'a passing run is not repeated'
name='test: without --retry a test that failed is not run again'
failing_once 10:apps.chat
call tools/test
has_status 1
[[ $calls != *rerun-failed* ]] || fail 'ran it again'
name='test: --retry fails if a test fails twice'
failing_once 10:apps.chat
sed -i 's/RERUN_STATUS-0/RERUN_STATUS-8/' "$work/bin/ctest"
call tools/test --retry
has_status 1
[[ $output != *FLAKY* ]] || fail 'a test that fails twice is not flaky'
name='test: --retry does not repeat three tests'
failing_once 10:a 11:b 12:c
call tools/test --retry
has_status 1
says '3 tests failed'
[[ $calls != *rerun-failed* ]] || fail 'ran them again'
name='test: --retry fails if ctest fails without a failed test'
failing_once
call tools/test --retry
has_status 1
says 'ctest failed (exit status'

((failures == 0)) && echo 'all as expected'
exit $((failures > 0))
