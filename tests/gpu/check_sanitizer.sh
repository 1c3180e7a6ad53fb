#!/usr/bin/env bash
# The single ops at small sizes and the fused ops at odd ones (for races, the smallest) under compute-sanitizer:
# no access out of bounds anywhere, no race in a kernel of ours. Races that it reports inside the libraries'
# kernels are counted and passed over. A program that fails, or that has nothing to check on this GPU, is no proof.
# Each fused op is a process of its own, several at a time: most of the time goes into the host's side of the tool.
set -u
cd "$(dirname "$0")/../.." || exit
program=${GPU_OPS:-build/cuda/tests/gpu/test_gpu_ops}
fused=${GPU_FUSED:-build/cuda/tests/gpu/test_fused}
sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
if ! [ -x "$sanitizer" ]; then echo "not checked: compute-sanitizer was not found"; exit 0; fi

ops=$("$fused" '?' 2>&1 >/dev/null | sed -n 's/^  //p')    # from its usage
if ! [ "$ops" ]; then echo "not ok - $fused lists no ops"; exit 1; fi
logs=$(mktemp -d) || exit
trap 'rm -rf "$logs"' EXIT

check() { # tool, program and its arguments; false where it found something
    tool=$1 log=$logs/$1-${2##*/}-$3${4:+-$4}
    shift
    name="$tool of ${1##*/} ${*:2}"
    "$sanitizer" --tool "$tool" "$@" >"$log" 2>&1
    status=$?
    if grep -m1 '^not checked' "$log"; then return 0; fi
    case $tool in
    memcheck)
        [ $status = 0 ] && grep -q 'ERROR SUMMARY: 0 errors' "$log"
        good=$? found=$(grep -m1 -E 'Invalid|ERROR SUMMARY|not supported' "$log") ;;
    racecheck)
        races=$(grep 'Race reported' "$log") ours=$(grep -vE "$libraries" <<<"$races")
        [ $status = 0 ] && grep -q 'RACECHECK SUMMARY' "$log" && ! [ "$ours" ]
        good=$? found=$(sort -u <<<"$ours" | head -4)
        name="$name ($(grep -cE "$libraries" <<<"$races") reports in libraries)" ;;
    esac
    if [ "$good" = 0 ]; then echo "ok - $name"; else echo "not ok - $name: exit code $status, $found"; fi
    return "$good"
}
libraries='access at (cudnn|void cudnn|nvjet|cutlass|void cutlass|cublas|void cublas|sm[0-9]+_xmma|ampere_|gemm[^_])'
export -f check
export sanitizer libraries logs OMP_NUM_THREADS=1

# the longest first
{
    echo racecheck "$program" small
    echo memcheck "$program" small
    for op in $ops; do echo memcheck "$fused" odd "$op"; done
    for op in $ops; do echo racecheck "$fused" tiny "$op"; done
} | xargs -P "$(($(nproc) / 2 + 1))" -L1 bash -c 'check "$@"' check || exit 1
