#!/usr/bin/env bash
# Checks that tests have launched every kernel that nvcc compiled.
#   coverage.sh FOLDER OBJECT...    FOLDER contains what TAPESTRY_PTX_LAUNCHES recorded; the
#                                   objects are of .cu files. NOT_RUN=FILE lists symbols of kernels that do not run, below
#                                   a comment with the reason. A listed kernel that did run is an error.
set -euo pipefail
export LC_ALL=C
folder=$1
shift

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# An object registers each of its kernels with the runtime by its symbol, a string constant of the host code. The fat
# binary beside it names device functions too, so only the sections of string constants are read.
names_in() {
  local section
  for section in $(readelf -SW "$1" | grep -oE '\.rodata\.str[0-9.]+' | sort -u); do
    readelf -W -p "$section" "$1"
  done
}
for object; do names_in "$object"; done | sed -n 's/^ *\[ *[0-9a-f]*\] *\(_ZN8tapestry7kernels4cuda.*\)$/\1/p' |
  sort -u >"$scratch/compiled" || true
cut -d ' ' -f 1 "$folder"/* | sort -u >"$scratch/launched"
sed '/^#/d' ${NOT_RUN:+"$NOT_RUN"} </dev/null | sort -u >"$scratch/listed"
if comm -12 "$scratch/listed" "$scratch/launched" | grep . >"$scratch/needless"; then
  printf 'these kernels run; take them from %s:\n' "$NOT_RUN" >&2
  cat "$scratch/needless" >&2
  exit 1
fi
if comm -23 "$scratch/listed" "$scratch/compiled" | grep . >"$scratch/gone"; then
  printf 'these kernels do not exist; take them from %s:\n' "$NOT_RUN" >&2
  cat "$scratch/gone" >&2
  exit 1
fi
comm -23 "$scratch/compiled" <(sort -u "$scratch/launched" "$scratch/listed") >"$scratch/missing"
missing=$(wc -l <"$scratch/missing")
printf '%d kernels are compiled for GPUs, %d of them were run by tests or need not run\n' \
  "$(wc -l <"$scratch/compiled")" "$(($(wc -l <"$scratch/compiled") - missing))"
[[ -s $scratch/compiled ]] || { echo 'no kernels were found in the objects' >&2; exit 1; }
((missing == 0)) && exit
printf '%d kernels were never run; launch them in tests, or do not compile them:\n' "$missing" >&2
c++filt <"$scratch/missing" >&2
exit 1
