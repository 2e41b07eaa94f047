# shellcheck shell=bash disable=SC2034,SC2086
# Shared by the scripts in tools/: phases and their times, packages, configuring and building. Sourced, not run.
set -euo pipefail
export LC_ALL=C.UTF-8

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
me=tools/$(basename "$0")
cores=$(nproc)
jobs=$cores
install=yes
phase_name=''
run_started=$EPOCHREALTIME
# shellcheck source-path=SCRIPTDIR source=cpu.sh
source "$root/tools/lib/cpu.sh"

# ---- messages and times -------------------------------------------------------------------

say() { printf '[%s] %s\n' "$me" "$*"; }

# die REASON: stops. All foreseen failures end here.
die() {
  trap - EXIT
  printf '\n[%s] stopped%s: %s\n' "$me" "${phase_name:+ in phase \"$phase_name\"}" "$*" >&2
  exit 1
}

# usage_error REASON: stops with exit status 2, as is usual for a wrong command line.
usage_error() {
  trap - EXIT
  printf '[%s] %s\nSee %s --help.\n' "$me" "$*" "$me" >&2
  exit 2
}

on_exit() {
  local status=$?
  ((status == 0)) || printf '\n[%s] stopped%s with exit status %d; the reason is above.\n' "$me" \
    "${phase_name:+ in phase \"$phase_name\"}" "$status" >&2
}
trap on_exit EXIT
trap 'trap - EXIT; printf "\n[%s] interrupted; run it again to go on.\n" "$me" >&2; exit 130' INT TERM

# seconds_since TIME: prints the seconds since then, with one decimal.
seconds_since() {
  local tenths=$(((${EPOCHREALTIME/./} - ${1/./}) / 100000))
  printf '%d.%d' $((tenths / 10)) $((tenths % 10))
}

# begin_phase NAME DESCRIPTION
begin_phase() {
  phase_name=$1
  phase_started=$EPOCHREALTIME
  cpu_of_children "$root/build/.cpu"
  phase_cpu_ms=$cpu_ms
  printf '\n[%s] %s: %s\n' "$me" "$1" "$2"
}

# Prints the time of the phase and adds a row to build/times.tsv.
end_phase() {
  local seconds cpu
  seconds=$(seconds_since "$phase_started")
  cpu_of_children "$root/build/.cpu"
  cpu=$(((cpu_ms - phase_cpu_ms) / 1000))
  say "$phase_name took $seconds s on $jobs of $cores cores, and $cpu s of CPU time"
  record "$phase_name" "$seconds" "$cpu"
  phase_name=''
}

# record PHASE SECONDS [CPU_SECONDS]
record() {
  printf '%s\t%s\t%s\t%s\t%s\t%s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$me" "$1" "$2" "$jobs" "${3-}" >>"$root/build/times.tsv"
}

# run COMMAND...: prints the command, runs it, and stops if it fails.
run() {
  printf '+'
  printf ' %q' "$@"
  printf '\n'
  local status=0
  "$@" || status=$?
  ((status == 0)) || die "'$*' failed (exit status $status); its own message is above."
}

# ---- packages ------------------------------------------------------------------------------------------------

# Headers and data sets are searched below this folder. The tests of these scripts set SYSROOT to a fake system.
sysroot=${SYSROOT-}

have_command() { command -v "$1" >/dev/null; }
have_header() {
  local folder
  for folder in "$sysroot"/usr/{include,local/include,include/*-linux-gnu} "$root/.deps/include"; do
    [[ ! -e $folder/$1 ]] || return 0
  done
  return 1
}

# is_present PACKAGE: looks for a file of the package, not for the package itself, so that a compiler or header that was
# installed in another way counts, too.
is_present() {
  case $1 in
    cmake) have_command cmake ;;
    ninja-build) have_command ninja ;;
    g++) have_command "${CXX:-c++}" ;;
    ccache) have_command ccache ;;
    libeigen3-dev) have_header eigen3/Eigen/Core || have_header Eigen/Core ;;
    nlohmann-json3-dev) have_header nlohmann/json.hpp ;;
    zlib1g-dev) have_header zlib.h ;;
    libdnnl-dev) have_header oneapi/dnnl/dnnl.hpp ;;
    libcli11-dev) have_header CLI/CLI.hpp ;;
    libgloo-dev) have_header gloo/config.h ;;
    libpng-dev) have_header png.h ;;
    libjpeg-dev) have_header jpeglib.h ;;
    libpcre2-dev) have_header pcre2.h ;;
    libicu-dev) have_header unicode/normalizer2.h ;;
    iproute2) have_command ip ;;
    lld) have_command ld.lld ;;
    python3-pip) have_command pip3 ;;
    python3-myst-parser) [[ -e $sysroot/usr/lib/python3/dist-packages/myst_parser ]] ;;
    qemu-user) have_command qemu-x86_64 ;;
    dpkg-dev) have_command dpkg-shlibdeps ;;
    chromium | doxygen | file | lintian | patchelf | python3) have_command "$1" ;;
    catch2) have_header catch2/catch.hpp || have_header catch2/catch_all.hpp ;;
    dataset-fashion-mnist) [[ -e $sysroot/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz ]] ;;
    time) [[ -x /usr/bin/time ]] ;;
    *) die "it is not known which file belongs to package $1 (tools/lib/setup.sh)" ;;
  esac
}

# missing_of PACKAGE...: prints the names of the missing packages.
missing_of() {
  local package
  for package; do is_present "$package" || printf '%s ' "$package"; done
}

# need_packages REQUIRED OPTIONAL: takes two lists of Debian package names, and installs the missing ones. With install=no it
# prints them instead, and stops if a required one is missing. An optional package that this system does not offer is
# skipped with a message.
need_packages() {
  local required optional
  required=$(missing_of $1)
  optional=$(missing_of $2)
  if [[ -z $required$optional ]]; then
    say "packages: all there ($1${2:+ $2})"
  elif [[ $install == no ]]; then
    printf 'Missing: %s\n' "$required${optional:+(optional: ${optional% })}"
    printf 'To install: apt-get install --no-install-recommends %s\n' "${required}${optional% }"
    [[ -z $required ]] || die "packages are missing, and --no-install was given."
    say 'continuing without the optional packages'
  elif [[ -z $required ]] && { ! have_command apt-get || { ((EUID != 0)) && ! have_command sudo; }; }; then
    say "these packages are optional, and cannot be installed here without apt-get and root or sudo: ${optional% }"
  else
    begin_phase packages "installing $required${optional% }"
    apt_install "$required" "$optional"
    required=$(missing_of $1)
    [[ -z $required ]] || die "apt-get succeeded, but these packages did not bring the expected files: $required"
    end_phase
  fi
}

# apt_install REQUIRED OPTIONAL
apt_install() {
  local required=$1 package unknown=''
  have_command apt-get || die "apt-get is missing; install these packages with your system's package manager (Debian names): $1${2% }"
  local -a sudo=()
  if ((EUID != 0)); then
    have_command sudo || die "packages are missing, and installing them needs root or sudo. As root: apt-get install $1${2% }"
    sudo=(sudo)
  fi
  local -a apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
  say 'updating the package lists'
  # If one of several package sources cannot be reached, the others may have everything.
  "${apt[@]}" update || say 'apt-get update failed (its own message is above): continuing with the existing package lists'
  for package in $required; do
    apt-cache show "$package" >/dev/null 2>&1 || unknown+=" $package"
  done
  [[ -z $unknown ]] || die "this system's package lists do not have$unknown: see the messages of apt-get update. $(where_packages_are)"
  for package in $2; do
    if "${apt[@]}" --simulate install --no-install-recommends $required "$package" >/dev/null 2>&1; then
      required+=$package' '
    else
      say "$package is optional, and this system cannot install it: continuing without it"
    fi
  done
  run "${apt[@]}" install -y --no-install-recommends $required
}

# On Ubuntu, most of these packages are in the component universe, which may be disabled.
where_packages_are() {
  if [[ -r $sysroot/etc/os-release && $(<"$sysroot/etc/os-release") == *ubuntu* ]]; then
    printf "Is Ubuntu's component universe enabled? apt-get install software-properties-common && add-apt-repository universe"
  else
    printf 'Debian 12, Debian 13 and Ubuntu 24.04 have them.'
  fi
}

# ---- configure and build -------------------------------------------------------------------------------------

# prepare_build_folder: makes build/, and takes its lock, so that one script runs in it at a time.
prepare_build_folder() {
  { mkdir -p "$root/build" && : >>"$root/build/times.tsv"; } 2>/dev/null ||
    die "cannot write to $root/build: make it writable, or clone the project into a writable folder."
  [[ -s $root/build/times.tsv ]] || printf 'when\tscript\tphase\tseconds\tjobs\tcpu_seconds\n' >"$root/build/times.tsv"
  exec {build_lock}>"$root/build/.lock"
  if have_command flock && ! flock --nonblock "$build_lock"; then
    die "another tools/quickstart or tools/test runs in $root/build: wait until it ends."
  fi
  # With these settings, clones in different folders share the compiler cache. The inode cache avoids hashing the same
  # headers for every file, which made a first build 20% longer.
  export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1 CCACHE_INODECACHE=1
  export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
}

check_cmake_version() {
  local version
  version=$(cmake --version | sed -n '1s/.*version //p')
  [[ $(printf '%s\n3.25\n' "$version" | sort -V | head -n 1) == 3.25 ]] ||
    die "cmake is version $version and 3.25 is needed ($(command -v cmake)); install a newer version (Debian 12 and Ubuntu 24.04 have one)."
}

# configure_preset PRESET [OPTION OF CMAKE...]
configure_preset() {
  check_cmake_version
  begin_phase configure "preset $1 in build/$1"
  run cmake --preset "$@"
  end_phase
}

# build_preset PRESET [TARGET...]
build_preset() {
  local preset=$1
  shift
  begin_phase build "${*:-everything} with $jobs jobs"
  run cmake --build --preset "$preset" --parallel "$jobs" ${1:+--target "$@"}
  end_phase
  nvcc_time "$root/build/$preset/.ninja_log"
}

# nvcc_time LOG: prints how long the CUDA files took when each was last compiled. Their budget in CI is 4 minutes.
nvcc_time() {
  [[ -e $1 ]] || return 0
  awk -F '\t' -v me="$me" '$4 ~ /\.cu\.o$/ { took[$4] = $2 - $1 }
    END {
      for (file in took) { ++files; sum += took[file] / 1000 }
      if (files) printf "[%s] nvcc: %d s for %d files%s\n", me, sum, files, (sum > 240 ? ", OVER ITS BUDGET OF 240 s" : "")
    }' "$1"
}

# ---- benchmarks ----------------------------------------------------------------------------------------------

# The benchmarks compare with this version of PyTorch. It is in a virtual environment outside the tree.
torch=2.15.0
venv=${XDG_CACHE_HOME:-$HOME/.cache}/tapestry/torch-$torch

need_pytorch() {
  ! "$venv/bin/python" -c "import torch, sys; sys.exit(not torch.__version__.startswith('$torch'))" 2>/dev/null || return 0
  [[ $install == yes ]] || die "PyTorch $torch is not in $venv, and --no-install was given."
  have_command python3 || die "PyTorch needs Python, which is missing: apt-get install python3-venv"
  begin_phase pytorch "installing PyTorch $torch into $venv"
  run python3 -m venv "$venv"
  run "$venv/bin/pip" install --quiet "torch==$torch" numpy
  end_phase
}

# build_benchmark PROGRAM: builds it in build/release/bin
build_benchmark() {
  begin_phase build "the program $1"
  (cd "$root" && run cmake --preset release -DTAPESTRY_UNITY=ON -DTAPESTRY_BUILD_BENCHMARKS=ON &&
    run cmake --build --preset release --target "$1" --parallel "$jobs")
  end_phase
}

# ---- command line --------------------------------------------------------------------------------------------

# need_value OPTION [VALUE...]: stops if there is no value.
need_value() { (($# > 1)) || usage_error "$1 needs a value"; }

# set_jobs N
set_jobs() {
  [[ $1 =~ ^[1-9][0-9]{0,3}$ ]] || usage_error "--jobs takes a whole number from 1, not '$1'"
  jobs=$1
}

# default_jobs: one job per core, but fewer if there are not 1.5 GB of memory per compiler.
default_jobs() {
  local kilobytes
  kilobytes=$(sed -n 's/^MemAvailable: *\([0-9]*\).*/\1/p' /proc/meminfo 2>/dev/null) || return 0
  [[ -n $kilobytes ]] || return 0
  local fit=$((kilobytes / 1500000))
  ((fit >= 1)) || fit=1
  ((fit >= cores)) || jobs=$fit
}
default_jobs
