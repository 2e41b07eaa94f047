#!/usr/bin/env bash
# Trains the classifier's MLP on Fashion-MNIST for one epoch with one process, and then with two that average their gradients.
#   training.sh FOLDER PROCESSES    FOLDER contains the programs; PROCESSES is 2, or 1 to leave out the second run
# Each run must reach 80% test accuracy.
set -euo pipefail
export LC_ALL=C
programs=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# train NAME COMMAND...
train() {
  local name=$1
  shift
  "$@" --model mlp --data fashion-mnist --epochs 1 --run-dir "$scratch/$name" >"$scratch/log" 2>&1 ||
    { cat "$scratch/log" >&2; exit 1; }
  accuracy=$(sed -nE 's/^(\[0\] )?test accuracy ([0-9.]+) .*/\2/p' "$scratch/log")
  echo "test accuracy of $name: $accuracy"
  awk -v accuracy="$accuracy" 'BEGIN { exit !(accuracy >= 0.8) }' || { cat "$scratch/log" >&2; exit 1; }
}
train 'one process' "$programs/classifier"
[[ $2 == 2 ]] || { echo 'Gloo is missing (libgloo-dev): the training with two processes is left out' && exit; }
train 'two processes' "$programs/tapestry-run" --standalone --nproc-per-node 2 "$programs/classifier" --parallel ddp
