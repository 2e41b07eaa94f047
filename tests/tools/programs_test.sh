#!/usr/bin/env bash
# usage: programs_test.sh PROGRAM...
# Every program and script that the documentation calls must exist: PROGRAM... are those that `tools/quickstart --all`
# builds, scripts are files in tools/. Calls are found in code: a name before ` --`, a path build/.../bin/NAME, and every
# tapestry-NAME, bench_NAME and tools/NAME.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

foreign=' cmake ctest torchrun srun mpirun git ninja python3 pip nsys ncu tensorboard compute-sanitizer cuda-gdb gdb systemd-run '
failures=0

# calls FILE...: prints each name that the files call once, with the file.
calls() {
  local file
  for file; do
    grep -oE '(^|`|[$&;|] |bin/|-- )[a-z][a-z0-9_-]* --[a-z]|build/[a-z<>]+/bin/[a-z][a-z0-9_-]*|\b(tapestry-|bench_|tools/)[a-z][a-z_]*[a-z]' "$file" |
      sed -E 's/ --[a-z]$//; s/^(`|[$&;|] |bin\/|-- )//; s/^build\/[a-z<>]+\/bin\///' | sort -u | sed "s|^|$file |"
  done
}

# exists NAME: succeeds if NAME is one of our programs or scripts, or does not belong to this project.
exists() {
  case $1 in
    tools/*) [[ -e $1 ]] ;;
    tests_*) [[ -d tests/${1#tests_} || $1 == tests_gpu ]] ;;
    bench_gpu_ops) true ;;  # built with the tests, if there is a CUDA compiler
    bench_*) [[ -e tools/$1 || " $programs " == *" $1 "* ]] ;;
    docs_*) true ;;  # programs of pages, which cmake/pages.cmake compares with these pages
    tapestry-config | tapestry-targets) true ;;
    tapestry-tools) true ;;  # a Debian package, in which programs are called tapestry-NAME
    tapestry-gpt | tapestry-classifier) exists "${1#tapestry-}" ;;
    tapestry-ptx) [[ -d tools/ptx ]] ;;  # built with the tests
    *) [[ " $programs " == *" $1 "* || $foreign == *" $1 "* ]] ;;
  esac
}

programs=$*
mapfile -t pages < <(printf '%s\n' README.md apps/README.md tools/README.md; find docs -name '*.md')
found=0
while read -r page name; do
  found=$((found + 1))
  exists "$name" || { printf '%s calls %s, which does not exist\n' "$page" "$name" && failures=$((failures + 1)); }
done < <(calls "${pages[@]}")
((found > 20)) || { printf 'only %d calls were found: the search is wrong\n' "$found" && failures=$((failures + 1)); }

# Tests the search itself. Each of these lines calls a program that does not exist, so the search must find all of them.
page=$(mktemp)
trap 'rm -f "$page"' EXIT
for line in 'run `nothing --fast`' 'nothing --fast' '$ nothing --fast' 'build/release/bin/nothing' 'see tapestry-nothing' \
  'tools/nothing' 'bench_nothing' 'tapestry-run --standalone -- nothing --fast'; do
  printf '%s\n' "$line" >"$page"
  wrong=0
  while read -r _ name; do exists "$name" || wrong=1; done < <(calls "$page")
  ((wrong)) || { printf 'a missing program is not seen in: %s\n' "$line" && failures=$((failures + 1)); }
done

((failures == 0)) && printf '%d calls of programs that exist\n' "$found"
exit $((failures > 0))
