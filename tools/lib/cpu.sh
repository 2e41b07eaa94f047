# shellcheck shell=bash
# Measures CPU time. Sourced by tools/lib/setup.sh and .ci/run.

# cpu_of_children FILE: sets `cpu_ms` to the milliseconds of CPU, user and system, that all ended child processes of this
# shell took, with the children they waited for. FILE is overwritten: bash prints these times, and in $(...) it would print
# those of a subshell, which has had no children.
cpu_of_children() {
  local fields field minutes seconds
  times >"$1"
  # The second line is that of the children: 1m2.345s 0m6.789s
  { read -r _ && read -r -a fields; } <"$1"
  cpu_ms=0
  for field in "${fields[@]}"; do
    minutes=${field%m*} seconds=${field#*m}
    seconds=${seconds//[^0-9]/}
    cpu_ms=$((cpu_ms + minutes * 60000 + 10#$seconds))
  done
}
