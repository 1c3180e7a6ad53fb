#!/usr/bin/env bash
# Runs test programs and scripts one after another: one line for each, the whole output of those that fail,
# and a closing line that counts single tests.
#
#   scripts/run_tests.sh PROGRAM|SCRIPT.sh ...
#
# A program reports as cmocka does; a script prints "ok - name" or "not ok - name" for each of its tests, or
# "not checked: reason" when this machine cannot run it. A program that crashes, hangs (TEST_TIMEOUT seconds,
# 300 by default) or runs no test counts as one failure more.
set -u
cd "$(dirname "$0")/.." || exit
export LC_ALL=C

TMPDIR=$(mktemp -d "${TMPDIR:-/tmp}/coda-tests.XXXXXX")
export TMPDIR
trap 'rm -rf "$TMPDIR"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

passed=0 failed=0
seconds() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.1f", b - a }'; }

for test in "$@"; do
    log=$TMPDIR/log
    # Compiling every kernel takes longer than any program may.
    limit=${TEST_TIMEOUT:-300}
    case $test in *check_*.sh) limit=3000 ;; esac
    start=$(date +%s.%N)
    timeout -k 10 "$limit" "./${test#./}" >"$log" 2>&1 </dev/null
    status=$?
    took=$(seconds "$start" "$(date +%s.%N)")

    ok=$(grep -cE '^(\[       OK \]|ok - )' "$log")
    bad=$(grep -c '^not ok - ' "$log")
    listed=$(sed -nE 's/^\[  FAILED  \] ([0-9]+) test\(s\), listed below:.*/\1/p' "$log" |
        awk '{ n += $1 } END { print n + 0 }')
    bad=$((bad + listed))
    reason=
    if [ $status = 124 ] || [ $status = 137 ]; then reason="stopped after $limit s"; bad=$((bad + 1))
    elif [ $status -gt 128 ]; then reason="killed by signal $((status - 128))"; bad=$((bad + 1))
    elif [ $status != 0 ] && [ $bad = 0 ]; then reason="exit code $status"; bad=1
    elif [ $((ok + bad)) = 0 ]; then
        reason=$(sed -n 's/^not checked: /not checked: /p' "$log" | head -1)
        [ -n "$reason" ] || { reason="ran no test"; bad=1; }
    fi
    passed=$((passed + ok)) failed=$((failed + bad))

    name=$(basename "$test")
    if [ $bad = 0 ]; then
        printf '  ok      %-28s %4d tests %7s s%s\n' "$name" "$ok" "$took" "${reason:+  $reason}"
    else
        printf '  FAILED  %-28s %4d of %d %7s s%s\n' "$name" "$bad" $((ok + bad)) "$took" "${reason:+  $reason}"
        sed 's/^/    | /' "$log"
    fi
done

echo
echo "$passed passed, $failed failed"
[ $failed = 0 ]
