#!/usr/bin/env bash
# Trains the classifier on a few synthetic images, on the CPU and on the PTX machine.
#   classifier.sh PROGRAM    the environment chooses the CUDA runtime
# The MLP must have the same losses, to 5 digits. The CNN's dropout draws other numbers on each device, so it must only end.
set -euo pipefail
export LC_ALL=C
program=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# train MODEL DEVICE IMAGES: prints the losses of training and of the test
train() {
  "$program" --model "$1" --data synthetic --synthetic-size "$3" --batch-size 4 --epochs 1 --device "$2" \
    --run-dir "$scratch/$1-$2" >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
  sed -nE 's/.*"train_loss":([0-9.e+-]+),.*"test_loss":([0-9.e+-]+),.*/\1 \2/p' "$scratch/$1-$2/metrics.jsonl"
}
here=$(train mlp cpu 8)
there=$(train mlp cuda 8)
echo "losses of the MLP on the CPU: $here; on the PTX machine: $there"
awk -v a="$here" -v b="$there" 'BEGIN {
  if (split(a, x, " ") != 2 || split(b, y, " ") != 2) exit 1
  for (i = 1; i <= 2; ++i) if (x[i] <= 0 || (x[i] - y[i]) ^ 2 > (1e-5 * x[i]) ^ 2) exit 1
}'
cnn=$(train cnn cuda 4)
echo "losses of the CNN on the PTX machine: $cnn"
[[ $cnn == *' '* ]]
