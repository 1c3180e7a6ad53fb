#!/usr/bin/env bash
# Measures again what README.md, docs/GPU.md and docs/FUSED.md say of starts, steps, layers, ops, copies and errors against
# FP64. Curves and gradients beside PyTorch's are loss_curves.py's and test_against_torch.py's; what FUSED.md has under "What
# limits them" names its own commands. Needs an otherwise idle Hopper GPU, PyTorch, and what `make CUDA=1 train cuda-objects`
# builds.
#
#   scripts/figures.sh DIR [PART ...]
#
# PART, in DIR/PART.txt with its commands, the GPU and the date:
#   starts    first and second start: seconds until the first step has been made, 1B, 8B and 70B's layers
#   steps     the 1B step and its memory against PyTorch
#   layers    one layer at three widths against PyTorch
#   ops       each fused op against cublasLt and a separate kernel
#   kernels   separate kernels against copies
#   errors    each fused op against FP64
# Measured choices go to DIR/cache; for each first start to a folder in it, which must not be there yet.
set -u
cd "$(dirname "$0")/.." || exit
[ $# -ge 1 ] || { sed -n '2,/^set -u/s/^# \{0,1\}//p' "$0" | sed '/^set -u/d' >&2; exit 2; }
dir=$1
shift
parts=${*:-starts steps layers ops kernels errors}
programs=build/cuda/tests/gpu
for part in $parts; do
    case $part in
    starts|steps|layers|ops|kernels|errors) ;;
    *) echo "figures.sh: no part is called $part: starts, steps, layers, ops, kernels, errors" >&2; exit 2 ;;
    esac
done
for program in ./train $programs/bench_layer $programs/bench_fused $programs/bench_ops $programs/test_fused; do
    [ -x "$program" ] || { echo "figures.sh: $program is not there: make CUDA=1 train cuda-objects" >&2; exit 2; }
done
nvidia-smi -L >/dev/null 2>&1 || { echo "figures.sh: no GPU was found: nvidia-smi -L lists none" >&2; exit 2; }
mkdir -p "$dir" && dir=$(cd "$dir" && pwd) || exit
export XDG_CACHE_HOME=$dir/cache

failed=0
measure() { # a command; its output, behind it
    echo "\$ $*"
    "$@" 2>&1 || { echo "failed: exit code $?"; failed=1; }
}
starts() { # folder of choices, config and options: what the first start takes, and the second
    for _ in first second; do
        XDG_CACHE_HOME=$dir/cache/$1 measure ./train bench "${@:2}" --run.device=cuda --warmup=2 --steps=8
    done
}

for part in $parts; do
    {
        nvidia-smi --query-gpu=name,driver_version,power.limit --format=csv,noheader
        date -u +%F
        case $part in
        starts)
            starts 1b_none configs/llama3_1b.json --train.recompute=swiglu --fusion=none
            starts 1b configs/llama3_1b.json --train.recompute=swiglu
            starts 8b configs/llama3_8b.json
            starts 70b configs/width_70b.json ;;
        steps) measure python3 scripts/bench_vs_torch.py --fusion=off,auto,auto+bf16 step ;;
        layers) measure python3 scripts/bench_vs_torch.py --fusion=off,auto layer ;;
        ops) measure python3 scripts/bench_fused.py ;;
        kernels) measure $programs/bench_ops 8b ;;
        errors)
            measure $programs/test_fused >"$dir/test_fused.log"
            measure python3 scripts/fused_errors.py "$dir/test_fused.log" ;;
        esac
    } >"$dir/$part.txt"
    echo "$dir/$part.txt"
done
exit $failed
