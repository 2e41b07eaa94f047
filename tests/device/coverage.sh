#!/usr/bin/env bash
# Holds the kernels that the emulated tests launched against those that nvcc compiled: none ships that was never run.
#   coverage.sh FOLDER OBJECT...    FOLDER has what TAPESTRY_EMULATED_KERNELS recorded; the objects are of .cu files
set -euo pipefail
export LC_ALL=C
folder=$1
shift

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# An object registers each of its kernels with the runtime by its symbol, a string of its data.
for object; do strings -d -n 8 "$object"; done | grep '^_ZN8tapestry7kernels4cuda' | sort -u >"$scratch/compiled" || true
sort -u "$folder"/*.txt >"$scratch/launched"
comm -23 "$scratch/compiled" "$scratch/launched" >"$scratch/missing"
missing=$(wc -l <"$scratch/missing")
printf '%d kernels are compiled for GPUs, %d of them were run by emulated tests\n' \
  "$(wc -l <"$scratch/compiled")" "$(($(wc -l <"$scratch/compiled") - missing))"
[[ -s $scratch/compiled ]] || { echo 'no kernels were found in the objects' >&2; exit 1; }
((missing == 0)) && exit
printf '%d kernels were never run; launch them in tests/emulated, or compile them no more:\n' "$missing" >&2
c++filt <"$scratch/missing" >&2
exit 1
