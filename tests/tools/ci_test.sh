#!/usr/bin/env bash
# Tests .ci/run in a copy of the tree, with stubs of tools/test and of the compiler that take a known amount of CPU time.
set -uo pipefail
source_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
mkdir -p "$work"/clone/{.ci,tools/lib} "$work/bin"
cp "$source_root"/.ci/{run,speed.cpp} "$work/clone/.ci/"
cp "$source_root/tools/lib/cpu.sh" "$work/clone/tools/lib/"

# burn N: takes N units of CPU time.
cat >"$work/bin/burn" <<'END'
#!/usr/bin/env bash
for ((i = 0; i < $1 * 20000; ++i)); do :; done
END
printf '#!/usr/bin/env bash\necho "c++ $*" >>"%s/log"\n"%s/bin/burn" 1\n' "$work" "$work" >"$work/bin/compiler"
# The stub takes 10 units in a child of a child, as compilers do, and 50 under ASan. It fails if its options are those in the
# file `failing`.
cat >"$work/clone/tools/test" <<END
#!/usr/bin/env bash
echo "test \$*" >>"$work/log"
preset=ci
[[ "\$*" != *--preset* ]] || preset=\$(sed -E 's/.*--preset ([a-z]+).*/\1/' <<<"\$*")
mkdir -p build/\$preset
printf 'now\ttools/test\tbuild\t7.1\t2\t31\n' >>build/times.tsv
units=10
[[ \$preset != asan ]] || units=50
(bash -c "'$work/bin/burn' \$units; exit 0")
now=\$(date +%s)
{
  printf '# ninja log v5\n'
  printf '0\t9000\t1000\told.cpp.o\tx\n'
  printf '0\t4000\t%s000000000\tCMakeFiles/tapestry.dir/core/a.cpp.o\tx\n' "\$now"
  for i in 1 2 3 4 5 6 7 8 9; do
    printf '100\t%s\t%s000000000\ttests/CMakeFiles/tests_nn.dir/batches/tests_nn_%s.cpp.o\tx\n' \$((i * 100 + 100)) "\$now" "\$i"
  done
  printf '0\t50\t%s000000000\ttests/CMakeFiles/tests_core.dir/core/cheap_test.cpp.o\tx\n' "\$now"
  printf '0\t9000\t%s000000000\tbin/tests_nn\tx\n' "\$now"
} >build/\$preset/.ninja_log
echo ' 1/12 Test  #7: nn.linear ..................................   Passed    2.25 sec'
echo '12/12 Test #12: core.shape .................................***Failed    1.50 sec'
[[ "\$*" != "\$(cat "$work/failing")" ]]
END
chmod +x "$work"/bin/* "$work/clone/tools/test"

fail() {
  printf 'FAILED: %s: %s\n--- it printed:\n%s\n\n' "$name" "$1" "$output"
  failures=$((failures + 1))
}
# call BUDGET FAILING: runs .ci/run with this budget. tools/test fails if it is called with the options FAILING.
call() {
  sed -i "s/^budget=.*/budget=$1/" "$work/clone/.ci/run"
  printf '%s' "$2" >"$work/failing"
  : >"$work/log"
  rm -rf "$work/clone/build"
  output=$(cd / && CXX="$work/bin/compiler" "$work/clone/.ci/run" 2>&1)
  status=$?
  calls=$(grep '^test' "$work/log")
}
says() { [[ $output == *"$1"* ]] || fail "does not say '$1'"; }
all='test --retry --part auto
test --retry --preset asan --part auto
test --retry --preset tsan --part auto'

# The margins are wide, because the same work takes more CPU time on a busy machine.
name='within the budget'
call 300 none
[[ $status == 0 ]] || fail "exit status $status, not 0"
[[ $calls == "$all" ]] || fail "it called: $calls"
[[ $(grep -c '^c++ .*\.ci/speed\.cpp' "$work/log") == 3 ]] || fail 'should compile .ci/speed.cpp three times'
says ' of 300 units of CPU time are spent'
units=$(sed -nE 's/.* ([0-9]+) of 300 units.*/\1/p' <<<"$output" | tail -n 1)
((units >= 35 && units <= 150)) || fail "70 units of work were measured as $units"
[[ $output =~ '==== TSan: 0 min 0'[0-9]' s on '[0-9]+' cores; '[0-9]+' s of CPU time, build 31 ====' ]] ||
  fail 'should print the times of the phases'
says '      4.0  CMakeFiles/tapestry.dir/core/a.cpp.o
      0.9  tests/CMakeFiles/tests_nn.dir/batches/tests_nn_9.cpp.o'
says '      2.2  nn.linear
      1.5  core.shape'
says 'compiling + running: core 0+2 nn 4+2'
[[ $output != *old.cpp* && $output != *cheap_test* && $output != *bin/tests_nn* ]] ||
  fail 'should list the ten dearest object files of this run alone'

name='over the budget in the second step'
call 25 none
[[ $status == 1 ]] || fail "exit status $status, not 1"
says 'OVER BUDGET'
[[ $calls == "$(head -n 2 <<<"$all")" ]] || fail "should stop after the second step, but called: $calls"

name='over the budget in the first step'
call 2 none
[[ $status == 1 && $calls == 'test --retry --part auto' ]] || fail "exit status $status after: $calls"

name='stops at the first failure'
call 300 '--retry --preset asan --part auto'
[[ $status == 1 ]] || fail "exit status $status, not 1"
says 'ASan and UBSan failed (exit status 1)'
[[ $calls == "$(head -n 2 <<<"$all")" ]] || fail "should stop after the second step, but called: $calls"

name='the compiler of a fresh machine comes with the first step'
mv "$work/bin/compiler" "$work/bin/later"
sed -i "s|^mkdir|cp '$work/bin/later' '$work/bin/compiler'; mkdir|" "$work/clone/tools/test"
call 300 none
[[ $status == 0 ]] || fail "exit status $status, not 0"
[[ $(head -n 2 "$work/log") == 'test --retry --part auto
c++ '* ]] || fail "should compile after the first step, but called: $(cat "$work/log")"

((failures == 0)) && echo 'all as expected'
exit $((failures > 0))
