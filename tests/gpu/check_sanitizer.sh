#!/usr/bin/env bash
# The single ops at small sizes and the fused ops at odd ones (for races, the smallest) under compute-sanitizer:
# no access out of bounds anywhere, no race in a kernel of ours. Races that it reports inside the libraries'
# kernels are counted and passed over. A program that fails, or that has nothing to check on this GPU, is no proof.
set -u
cd "$(dirname "$0")/../.." || exit
program=${GPU_OPS:-build/cuda/tests/gpu/test_gpu_ops}
fused=${GPU_FUSED:-build/cuda/tests/gpu/test_fused}
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if ! [ -x "$sanitizer" ]; then echo "not checked: compute-sanitizer was not found"; exit 0; fi

log=$(mktemp) || exit
trap 'rm -f "$log"' EXIT
failed=0
report() { # name, whether it holds, detail
    if [ "$2" = 0 ]; then echo "ok - $1"; else echo "not ok - $1: $3"; failed=1; fi
}

# Leaves the log and the exit code; false, and says so, where the program has nothing to check.
sanitize() { # tool, program and its arguments
    "$sanitizer" --tool "$@" >"$log" 2>&1
    status=$?
    ! grep -m1 '^not checked' "$log"
}

memory() { # name, program and its arguments
    name=$1
    shift
    sanitize memcheck "$@" || return
    [ $status = 0 ] && grep -q 'ERROR SUMMARY: 0 errors' "$log"
    report "memcheck of $name" $? "exit code $status, $(grep -m1 -E 'Invalid|ERROR SUMMARY|not supported' "$log")"
}
memory "every op" "$program" small
memory "every fused op" "$fused" odd

libraries='access at (cudnn|void cudnn|nvjet|cutlass|void cutlass|cublas|void cublas|sm[0-9]+_xmma|ampere_|gemm[^_])'
races() { # name, program and its arguments
    name=$1
    shift
    sanitize racecheck "$@" || return
    theirs=$(grep 'Race reported' "$log" | grep -cE "$libraries")
    ours=$(grep 'Race reported' "$log" | grep -cvE "$libraries")
    [ $status = 0 ] && grep -q 'RACECHECK SUMMARY' "$log" && [ "$ours" = 0 ]
    report "racecheck of $name ($theirs reports in libraries)" $? \
           "exit code $status, $(grep 'Race reported' "$log" | grep -vE "$libraries" | head -1)"
}
races "every op" "$program" small
races "every fused op" "$fused" tiny
exit $failed
