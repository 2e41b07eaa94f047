#!/usr/bin/env bash
# Tests the library on processors without AVX.
#   old_processor.sh train CLASSIFIER LIBRARIES AVX2_LIBRARIES
#     trains a small network on emulated processors, with the libtapestry.so for any x86-64 in the folder LIBRARIES. The loss
#     must be that of this processor. With that for AVX2 in AVX2_LIBRARIES, the program must end with a message. Either folder
#     may be empty, if the build has no such library.
#   old_processor.sh values PROGRAM
#     runs a test program on this processor with the library that an old one loads, without the long test
set -euo pipefail
export LC_ALL=C

if [[ $1 == values ]]; then
  export GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX2 DNNL_MAX_CPU_ISA=SSE41
  library=$(LD_TRACE_LOADED_OBJECTS=1 "$2" | grep libtapestry)
  [[ $library != *glibc-hwcaps* ]] || { echo "the dynamic linker chose the library for AVX2: $library" >&2 && exit 1; }
  exec "$2" -\# '~[.]~[#bf16_sweep_long_test]'
fi

classifier=$2 libraries=$3 avx2_libraries=$4
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
emulator=$(command -v qemu-x86_64) || { echo 'skipped: there is no qemu-x86_64 (package qemu-user)' && exit; }

# train NAME COMMAND...: `status` is the exit status, and `loss` that of two training steps.
train() {
  local folder="$scratch/$1"
  shift
  status=0
  OMP_NUM_THREADS=1 timeout 120 "$@" "$classifier" --model demo --data synthetic --synthetic-size 16 --batch-size 8 --epochs 1 \
    --workers 0 --run-dir "$folder" >"$scratch/log" 2>&1 || status=$?
  loss=$(sed -nE 's/.*"train_loss":([0-9.]+).*/\1/p' "$folder/metrics.jsonl" 2>/dev/null) || loss=''
}
fail() {
  cat "$scratch/log" >&2
  echo "$1 (exit status $status)" >&2
  exit 1
}

if [[ -n $libraries ]]; then
  train native env LD_LIBRARY_PATH="$libraries"
  [[ $status == 0 && -n $loss ]] || fail 'training failed on this processor'
  here=$loss
  for processor in qemu64 Nehalem; do  # without and with SSE4.1
    train "$processor" "$emulator" -cpu "$processor" -E LD_LIBRARY_PATH="$libraries"
    [[ $status == 0 && -n $loss ]] || fail "training failed on the emulated processor $processor"
    echo "training loss: $here here, $loss on $processor"
    # Sums in another order differ in their last bits, and the first step's difference enters the second.
    awk -v a="$here" -v b="$loss" 'BEGIN { exit !(a - b < 1e-4 * a && b - a < 1e-4 * a) }' || fail 'the losses differ'
  done
fi
if [[ -n $avx2_libraries ]]; then
  train avx2 "$emulator" -cpu Nehalem -E LD_LIBRARY_PATH="$avx2_libraries"
  [[ $status == 1 && $(<"$scratch/log") == "tapestry: this processor has no AVX2"* ]] ||
    fail 'a library for AVX2 should end the program with a message'
  echo "with the library for AVX2: $(<"$scratch/log")"
fi
