# shellcheck shell=bash disable=SC2034
# Chooses the test programs of a sanitizer run, for tools/test --part. This file is sourced, not run.

# The folders of tests/ that contain tests, and ptx_machine, whose files are in tools/ptx/tests: the part in which each is run,
# and its cost in CPU seconds under ASan (compiling and running; tests/apps includes the programs that it starts). The parts
# cost about the same. .ci/run prints the costs of the folders that it ran. Folders without a part are not run under sanitizers
# (tests/CMakeLists.txt). Touched folders are added in this order, the cheap ones first.
sanitizer_parts='
harness       1    8
cudnn         1   23
planner       3   39
data_parallel 1   57
cuda_runtime  3   60
kernels       3   63
launch        3   92
data          3   95
tensor_parallel 1 40
pipeline      1  110
core          1  120
ptx_machine   3  146
nn            3  290
distributed   2  390
apps          2  390
autograd      1  460
device        -    -
device_code   -    -
pictures      -    -
ptx           -    -
structure     -    -
'

# folders_of FILE: prints the folders of tests/ that a change of FILE calls for. A file of the build, of tests/support or of
# the documentation calls for none.
folders_of() {
  case $1 in
    tests/support/cudnn/*) printf 'cudnn' ;;
    tests/support/cublaslt/*) printf 'kernels' ;;
    tests/support/nccl/*) printf 'distributed' ;;
    tests/golden/*) printf 'autograd' ;;
    tools/ptx/tests/*) printf 'ptx_machine' ;;
    tests/*/*) printf '%s' "$(cut -d / -f 2 <<<"$1")" ;;
    core/cuda/*) printf 'core cuda_runtime' ;;
    kernels/cuda/vendor/*) printf 'kernels cudnn' ;;
    kernels/*) printf 'kernels' ;;
    distributed/data_parallel/*) printf 'data_parallel' ;;
    distributed/pipeline/*) printf 'pipeline' ;;
    distributed/planner/*) printf 'planner' ;;
    distributed/tensor/* | distributed/expert/*) printf 'tensor_parallel' ;;
    distributed/context/* | distributed/placement/*) printf 'distributed tensor_parallel' ;;
    distributed/launch/*) printf 'launch' ;;
    core/* | autograd/* | nn/* | data/* | distributed/* | apps/*) printf '%s' "${1%%/*}" ;;
    tools/ptx/runtime/*) printf 'cuda_runtime' ;;
    tools/ptx/*) printf 'ptx_machine' ;;
  esac
}

# base_of_change: prints the commit with which HEAD is compared: where this branch left origin/main or main, or else HEAD's
# first parent. Fails if there is none.
base_of_change() {
  local base name
  for name in origin/main main; do
    base=$(git merge-base HEAD "$name" 2>/dev/null) || continue
    [[ $base == "$(git rev-parse HEAD)" ]] || { printf '%s' "$base" && return; }
  done
  git rev-parse --verify --quiet 'HEAD^'
}

# part_of_commit HASH: prints the part that a commit chooses.
part_of_commit() { printf '%d' $((16#${1:0:7} % 3 + 1)); }

# plan_part PART [FILE...]: PART is 1, 2 or 3, and the files are those of the change. Sets `part_folders` to the folders of
# the part and those that the change touches, `part_left_out` to touched folders that would take too long, and `part_percent`
# to the share of the whole that the run costs. If all touched folders cost more than a third of the whole, they are added
# only while the run costs at most half of the whole.
plan_part() {
  local wanted=$1 file folder part cost whole=0 run=0 touched_cost=0
  shift
  local -A touched=() costs=()
  local order=()
  for file; do
    for folder in $(folders_of "$file"); do touched[$folder]=1; done
  done
  part_folders=() part_left_out=()
  while read -r folder part cost; do
    [[ -n $folder && $part != - ]] || continue
    whole=$((whole + cost))
    [[ -z ${touched[$folder]-} ]] || touched_cost=$((touched_cost + cost))
    if [[ $part == "$wanted" ]]; then
      part_folders+=("$folder")
      run=$((run + cost))
    elif [[ -n ${touched[$folder]-} ]]; then
      order+=("$folder")
      costs[$folder]=$cost
    fi
  done <<<"$sanitizer_parts"
  for folder in ${order[@]+"${order[@]}"}; do
    if ((touched_cost * 3 <= whole || (run + costs[$folder]) * 2 <= whole)); then
      part_folders+=("$folder")
      run=$((run + costs[$folder]))
    else
      part_left_out+=("$folder")
    fi
  done
  part_percent=$((100 * run / whole))
}
