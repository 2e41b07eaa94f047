# shellcheck shell=bash
# Finds the targets and tests that a change can affect, for tools/test --changed. This file is sourced, not run.
#
# The result may contain targets that the change does not affect, but it must contain all that it affects. It comes from
# three sources:
#  - the headers that each object file was compiled with, as ninja recorded them (ninja -t deps);
#  - the include direction core <- kernels <- autograd <- nn <- distributed <- apps, and core <- data, which
#    tests/structure checks. Every test uses core, and with Tensor's methods autograd and the CPU kernels;
#  - what tests read or run without including it: programs, documentation, scripts.

# changed_files BASE: files that differ from the commit BASE, uncommitted and new files included.
changed_files() {
  git diff --name-only --no-renames "$1" -- && git ls-files --others --exclude-standard
}

# default_base: the commit where this branch left main; on main itself, the last commit.
default_base() {
  local name
  for name in main origin/main; do
    ! git merge-base HEAD "$name" 2>/dev/null || return 0
  done
  printf 'HEAD'
}

# downstream FOLDER: prints FOLDER and all folders of the library that may include it.
downstream() {
  case $1 in
    nn) printf 'nn distributed apps' ;;
    data) printf 'data distributed apps' ;;
    distributed) printf 'distributed apps' ;;
    apps) printf 'apps' ;;
  esac
}

# plan_changes BUILD FILE...: sets `plan_all` to the reason if everything has to be built and run. Otherwise sets
# `plan_targets` to the targets to build and `plan_tests` to an expression for ctest -R.
plan_changes() {
  local build=$1 file
  shift
  plan_all='' plan_targets=()
  local -A tests=([structure]=1) targets=([tests_structure]=1)
  # The users of `files` are found through ninja's list of headers. A change in one of `folders` affects everything that
  # may include the folder.
  local -A files=() folders=()
  for file; do
    case $file in
      CMakeLists.txt | */CMakeLists.txt | *.cmake | *.cmake.in | CMakePresets.json | .ci/* | tools/test | tools/lib/*)
        plan_all="$file decides how things are built and tested" && return ;;
      docs/pictures/* | docs/tutorials/from-naive-to-fast/*)
        tests[docs]=1 tests[pictures]=1 targets[docs_programs]=1 targets[tests_pictures]=1 ;;
      docs/tutorials/five-diffs.md)
        tests[docs]=1 tests[apps.programs]=1 targets[docs_programs]=1 targets[tests_apps]=1 targets[programs]=1 ;;
      *.md | docs/*) tests[docs]=1 tests[tools.programs]=1 targets[docs_programs]=1 ;;
      tools/ptx/tests/*) tests[ptx_machine]=1 tests[laboratory]=1 targets[tests_ptx_machine]=1 targets[tests_laboratory]=1 ;;
      tools/ptx/*)  # the library runs on the machine in the others
        tests[ptx_machine]=1 tests[laboratory]=1 tests[cuda_runtime]=1 tests[machine]=1
        targets[tests_ptx_machine]=1 targets[tests_laboratory]=1 targets[tests_cuda_runtime]=1
        targets[tests_gpu]=1 targets[tests_ptx]=1 targets[programs]=1 ;;
      tools/docs | tools/site/*)
        tests[docs.site]=1 tests[tools]=1 targets[programs]=1 targets[bench_gpu_ops]=1 targets[tests_ptx]=1 ;;
      tools/bench/* | tools/gpu/* | tools/*) tests[tools]=1 targets[programs]=1 targets[bench_gpu_ops]=1 targets[tests_ptx]=1 ;;
      tests/tools/*) tests[tools]=1 targets[programs]=1 targets[bench_gpu_ops]=1 targets[tests_ptx]=1 ;;
      tests/consumer/*) tests[consumer]=1 targets[programs]=1 targets[load_late]=1 ;;
      tests/*_test.cpp)  # alone, it affects itself
        files[$file]=1 ;;
      tests/*.cpp | tests/*.h) files[$file]=1 ;;
      kernels/cuda/*.cu | kernels/cuda/*.cuh)  # the tests of the CPU do not use them
        files[$file]=1
        tests[device_code]=1 tests[machine]=1 tests[ptx]=1 tests[cuda_runtime]=1
        targets[tests_cuda_runtime]=1 targets[tests_gpu]=1 targets[tests_device_code]=1 targets[tests_ptx]=1 ;;
      tapestry.h | core/* | kernels/* | autograd/*) plan_all="every test uses $file" && return ;;
      nn/* | data/* | distributed/* | apps/*)
        files[$file]=1 folders[${file%%/*}]=1
        # These tests run programs. Ninja does not know that, so they are listed here. The site has the comments of headers,
        # the options of programs and the variables that any file reads.
        tests[apps]=1 tests[launch]=1 tests[tools.gpu_check]=1 tests[docs.site]=1
        targets[programs]=1 targets[bench_gpu_ops]=1 targets[tests_ptx]=1 targets[tests_apps]=1 targets[tests_launch]=1
        [[ $file != *.h || $file == apps/* ]] || tests[consumer]=1 targets[load_late]=1 ;;
      .clang-format | .gitignore | LICENSE) ;;
      *) plan_all="it is not known what uses $file" && return ;;
    esac
  done
  if ((${#files[@]})); then
    [[ -e $build/.ninja_deps ]] || { plan_all="nothing was built in $build yet" && return; }
    local object objects known=0
    # Every test program links the object files of tests/support, but only the files that include the header use them. So
    # a changed object file counts as a change of its header.
    while ((known < ${#files[@]})); do
      known=${#files[@]}
      objects=$(objects_using "$build")
      while read -r object; do
        [[ $object != */tests_support.dir/support/*.cpp.o ]] || files[tests/support/$(basename "$object" .cpp.o).h]=1
      done <<<"$objects"
    done
    if [[ $objects == *.gch* ]]; then
      # Ninja's list does not show who uses a header that is precompiled, so the #include lines of the tests do.
      objects=$(sed '/\.gch$/d' <<<"$objects" && tests_including "${!folders[@]}")
      tests[docs]=1 targets[docs_programs]=1
    fi
    while read -r object; do
      [[ -z $object ]] || add_object "$object"
    done <<<"$objects"
    for file in "${!files[@]}"; do  # a new file has no object yet
      [[ $file != tests/*_test.cpp ]] || add_object "tests/CMakeFiles/tests_$(cut -d / -f 2 <<<"$file").dir/${file#tests/}.o"
    done
  fi
  local name expression=''
  for name in $(printf '%s\n' "${!tests[@]}" | sort); do
    # A name without a dot selects all tests of a folder; `folder.file` selects one test.
    [[ $name != *.* || -z ${tests[${name%%.*}]-} ]] || continue
    [[ $name == *.* ]] && expression+="|^${name//./\\.}$" || expression+="|^$name\\."
  done
  plan_tests=${expression#|}
  mapfile -t plan_targets < <(printf '%s\n' "${!targets[@]}" | sort)
}

# objects_using BUILD: prints the object files outside the library that a change affects. These were compiled with one of
# `files`, or with a header of a folder downstream of one of `folders`. Object files that were never compiled are printed
# too, because their headers are unknown. Instead of an object of several test files (tests/batches.cmake), this prints the
# objects that its files would have if compiled singly.
objects_using() {
  local folder
  {
    printf '%s\n' "${!files[@]}" | sed 's/^/file /'
    for folder in "${!folders[@]}"; do
      printf '%s\n' $(downstream "$folder") | sed 's/^/folder /'
    done
    ninja -C "$1" -t targets all | sed -n 's/^\([^:]*\.o\): .*/object \1/p'
    ninja -C "$1" -t deps
  } | awk -v root="$root/" '
    $1 == "file" { file[$2] = 1; next }
    $1 == "folder" { folder[$2] = 1; next }
    $1 == "object" { unknown[$2] = 1; next }
    /^[^ ].*: #deps/ {
      object = substr($0, 1, index($0, ": #deps") - 1)
      batch = object ~ /\/batches\//
      used = 0
      delete unknown[object]
      next
    }
    /^ / && (batch || !used) {
      path = $1
      # The compiler cache writes paths relative to the build tree, which is build/PRESET.
      if (!sub(/^(.*\/)?include\/tapestry\//, "", path) && !sub(/^\.\.\/\.\.\//, "", path)) sub("^" root, "", path)
      if (batch && path ~ /^tests\/.*_test\.cpp$/) {  # changed test files are added by name
        sub(/^tests\//, "", path)
        singly[object] = singly[object] substr(object, 1, index(object, "/batches/")) path ".o\n"
        next
      }
      top = path
      sub(/\/.*/, "", top)
      if ((path in file) || ((top in folder) && path ~ /\//)) { used = 1; affected[object] = 1 }
    }
    END {
      for (object in affected) printf "%s", (object in singly) ? singly[object] : object "\n"
      for (object in unknown) print object
    }' | grep -vE '^CMakeFiles/tapestry(_base|_v3|_hopper)?\.dir/' | sort -u
}

# tests_including FOLDER...: prints the object files that test files would have if compiled singly, of those that include
# tapestry.h or a header downstream of a folder, directly or through headers of tests/.
tests_including() {
  local folder pattern='tapestry/tapestry\.h' found='' before=none
  for folder; do pattern+="|tapestry/($(downstream "$folder" | tr ' ' '|'))/[^\"]*"; done
  while [[ $found != "$before" ]]; do
    before=$found
    found=$(cd "$root" && grep -rlE --include='*.h' --include='*.cpp' "^#include \"($pattern)\"" tests | sort)
    # A header of tests/support may be implemented by a file that includes what it does not.
    while read -r folder; do
      [[ -z $folder ]] || pattern+="|${folder//./\\.}"
    done < <(sed -n 's|\.cpp$|.h|; /\.h$/p' <<<"$found" | sort -u)
  done
  sed -nE 's|^tests/(([^/]*)/.*_test\.cpp)$|tests/CMakeFiles/tests_\2.dir/\1.o|p' <<<"$found"
}

# add_object OBJECT: adds its target, and the tests that it can affect, to `targets` and `tests`.
add_object() {
  local target folder test
  target=$(sed -nE 's|.*CMakeFiles/([^/]*)\.dir/.*|\1|p' <<<"$1")
  case $target in
    tests_support)  # these objects are linked into all programs, and ninja's list of headers does not show it
      [[ -e tests/support/$(basename "$1" .cpp.o).h ]] || plan_all="every test uses ${1##*.dir/}" ;;
    tests_headers | tests_singles) targets[$target]=1 ;;
    tests_*)
      [[ $target != tests_device ]] || target=tests_gpu
      targets[$target]=1
      folder=${target#tests_}
      [[ -d tests/$folder || $folder =~ ^(gpu|ptx_machine|laboratory)$ ]] || { plan_all="it is not known which tests use ${1##*.dir/}" && return; }
      [[ $folder != gpu ]] || folder=machine  # tests/device, which the PTX machine runs
      if [[ $1 == *_test.cpp.o && $folder != docs ]]; then
        test=${1##*/}
        tests[$folder.${test%_test.cpp.o}]=1
        # tests/autograd runs in tests_gpu, too.
        [[ $folder != autograd ]] || { tests[machine.op_${test%_test.cpp.o}]=1 && targets[tests_gpu]=1; }
      else
        tests[$folder]=1
        [[ $folder != autograd ]] || { tests[machine]=1 && targets[tests_gpu]=1; }
      fi ;;
    docs_five_diffs) tests[apps.programs]=1 targets[tests_apps]=1 ;;
    docs_*)  # tests_docs compares what some of them print
      tests[docs.${target#docs_}]=1 targets[$target]=1 targets[tests_docs]=1 ;;
    bench_*) targets[bench_gpu_ops]=1 ;;
    apps_compare | apps_common | *) ;;  # programs: plan_changes has added all of them
  esac
}

# ptx_tests_wanted COMMIT FILE...: prints yes if the PTX machine's own tests (tools/ptx/tests), and the library for old processors
# (cmake/processors.cmake), are worth the time for a change of these files: they change the machine, a kernel or what launches it,
# the build, or a page whose commands these tests run. Other changes rarely break these tests, so only
# every fourth commit, chosen by its hash, runs them. Prints yes without a commit, such as where there is no git.
ptx_tests_wanted() {
  local commit=${1-} file
  [[ $commit =~ ^[0-9a-f]+$ ]] || { echo yes && return; }
  for file in "${@:2}"; do
    case $file in
      CMakeLists.txt | */CMakeLists.txt | cmake/* | CMakePresets.json) echo yes && return ;;  # flags and linker
      tools/ptx/* | kernels/* | core/cuda/* | docs/tutorials/cuda-without-a-gpu* | docs/reference/planted-bugs.md) echo yes && return ;;
    esac
  done
  if ((0x${commit: -1} % 4 == 0)); then echo yes; else echo no; fi
}

# keep_known_targets PRESET: removes targets from `plan_targets` that this preset does not have; asan has no tests_structure.
keep_known_targets() {
  local known target kept=()
  known=" $(ninja -C "build/$1" -t targets all | sed -n 's/: phony$//p' | tr '\n' ' ') "
  for target in "${plan_targets[@]}"; do
    if [[ $known == *" $target "* ]]; then kept+=("$target"); else say "the preset $1 has no $target"; fi
  done
  plan_targets=("${kept[@]}")
}
