#!/usr/bin/env bash
# Tests tools/lib/parts.sh: every folder of tests is in a part, the parts are balanced, and a change chooses the right folders.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
source tools/lib/parts.sh
failures=0
fail() { printf 'FAILED: %s\n' "$1" && failures=$((failures + 1)); }

for folder in tests/*/; do
  name=$(basename "$folder")
  [[ -n $(find "$folder" -name '*_test.cpp' -print -quit) ]] || continue
  count=$(grep -cE "^$name +([123-]) " <<<"$sanitizer_parts")
  ((count == 1)) || fail "tests/$name is listed $count times in tools/lib/parts.sh, not once: give it the part that costs least"
done
while read -r name part cost; do
  [[ -z $name || $name == ptx_machine || -n $(find "tests/$name" -name '*_test.cpp' -print -quit 2>/dev/null) ]] ||
    fail "tools/lib/parts.sh lists tests/$name, which has no tests"
done <<<"$sanitizer_parts"

declare -A costs=([1]=0 [2]=0 [3]=0)
while read -r name part cost; do
  [[ -z $name || $part == - ]] || costs[$part]=$((costs[$part] + cost))
done <<<"$sanitizer_parts"
whole=$((costs[1] + costs[2] + costs[3]))
for part in 1 2 3; do
  share=$((100 * costs[$part] / whole))
  ((share >= 28 && share <= 39)) || fail "part $part costs $share% of the whole, not about a third"
done

# chooses PART FILES FOLDERS: with these files changed, the run of PART contains FOLDERS beside those of the part.
chooses() {
  local own added
  plan_part "$1"
  own=" ${part_folders[*]} "
  # shellcheck disable=SC2086
  plan_part "$1" $2
  added=$(for folder in "${part_folders[@]}"; do [[ $own == *" $folder "* ]] || printf '%s ' "$folder"; done)
  [[ ${added% } == "$3" ]] || fail "part $1 with $2 adds '${added% }', not '$3'"
}
plan_part 3
[[ " ${part_folders[*]} " == *' nn '* && " ${part_folders[*]} " != *' autograd '* ]] || fail 'part 3 is not that of the table'
for file in README.md CMakeLists.txt tools/test tests/CMakeLists.txt tests/support/catch.h tests/structure/structure_test.cpp \
  tests/device/models_test.cpp; do
  chooses 1 "$file" ''
done
chooses 1 nn/layers/linear.cpp nn
chooses 3 nn/layers/linear.cpp ''
chooses 1 tests/nn/linear_test.cpp nn
chooses 2 core/tensor.h core
chooses 2 core/cuda/runtime.cpp 'cuda_runtime core'
chooses 2 kernels/cpu/conv.cpp kernels
chooses 2 kernels/cuda/vendor/cudnn.cpp 'cudnn kernels'
chooses 2 autograd/ops/conv.cpp autograd
chooses 2 tests/golden/conv.py autograd
chooses 2 'data/prefetcher.cpp apps/gpt/main.cpp' data
chooses 1 'distributed/ddp/ddp.cpp distributed/pipeline/stage.cpp distributed/planner/plan.cpp' 'planner distributed'
chooses 1 'distributed/launch/main.cpp distributed/data_parallel/replicas.cpp' launch
chooses 2 'distributed/context/ring.cpp' tensor_parallel
chooses 1 'distributed/placement/convert.cpp' distributed
chooses 1 tools/ptx/warp.cpp ptx_machine
chooses 1 tools/ptx/runtime/api.cpp cuda_runtime

# The cost of a large change is bounded, and what is left out is named. A single folder is never left out.
everywhere='core/a.cpp kernels/a.cpp autograd/a.cpp nn/a.cpp data/a.cpp distributed/a.cpp apps/a.cpp'
for part in 1 2 3; do
  # shellcheck disable=SC2086
  plan_part $part $everywhere
  ((part_percent <= 50)) || fail "a change of all folders costs $part_percent% with part $part"
  ((${#part_left_out[@]} > 0)) || fail "a change of all folders leaves out none with part $part"
  for folder in core kernels autograd nn data distributed apps; do
    [[ " ${part_folders[*]} ${part_left_out[*]} " == *" $folder "* ]] || fail "part $part neither runs nor leaves out $folder"
  done
  while read -r name _; do
    [[ -n $name ]] || continue
    plan_part $part "tests/$name/a_test.cpp"
    ((${#part_left_out[@]} == 0)) || fail "part $part leaves out tests/$name, the only folder touched"
  done <<<"$sanitizer_parts"
done

# base_of_change, in repositories made for this
repository=$(mktemp -d)
trap 'rm -rf "$repository"' EXIT
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a
unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE
if command -v git >/dev/null; then
  cd "$repository" || exit
  git init -q .
  ! base_of_change >/dev/null || fail 'a repository without commits has a base'
  git commit -q --allow-empty -m 1
  ! base_of_change >/dev/null || fail 'the first commit has a base'
  first=$(git rev-parse HEAD)
  git commit -q --allow-empty -m 2
  [[ $(base_of_change) == "$first" ]] || fail 'the base without origin/main is not the parent'
  second=$(git rev-parse HEAD)
  git update-ref refs/remotes/origin/main "$second"
  [[ $(base_of_change) == "$first" ]] || fail 'the base on main is not the parent'
  git commit -q --allow-empty -m 3
  git commit -q --allow-empty -m 4
  [[ $(base_of_change) == "$second" ]] || fail 'the base of a branch is not where it left main'
fi
[[ $(part_of_commit 0000002ffff) == 3 && $(part_of_commit 0000003ffff) == 1 ]] || fail 'a commit chooses the wrong part'

((failures == 0)) && echo 'all as expected'
exit $((failures > 0))
