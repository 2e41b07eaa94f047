#!/usr/bin/env bash
# Checks that tests have launched every kernel that nvcc compiled.
#   coverage.sh FOLDER OBJECT...    FOLDER contains what TAPESTRY_EMULATED_LAUNCHES or TAPESTRY_PTX_LAUNCHES recorded; the
#                                   objects are of .cu files. NOT_RUN=FILE lists symbols of kernels that need not run.
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
comm -23 "$scratch/compiled" <(sort -u "$scratch/launched" ${NOT_RUN:+"$NOT_RUN"}) >"$scratch/missing"
missing=$(wc -l <"$scratch/missing")
printf '%d kernels are compiled for GPUs, %d of them were run by tests or need not run\n' \
  "$(wc -l <"$scratch/compiled")" "$(($(wc -l <"$scratch/compiled") - missing))"
[[ -s $scratch/compiled ]] || { echo 'no kernels were found in the objects' >&2; exit 1; }
((missing == 0)) && exit
printf '%d kernels were never run; launch them in tests, or do not compile them:\n' "$missing" >&2
c++filt <"$scratch/missing" >&2
exit 1
