#!/usr/bin/env bash
# make demo: from nothing to a trained model, step by step. Everything is made from seeds and nothing is
# downloaded; what it makes lies in build/demo (corpus) and runs/demo (the run).
set -eu
cd "$(dirname "$0")/.."
export LC_ALL=C
work=build/demo run=runs/demo
begun=$(date +%s)
# Set-up and build count too: field 22 is when make began, in hundredths of a second since the machine did.
if [ "$(cat /proc/$PPID/comm 2>/dev/null)" = make ]; then
    begun=$((begun - $(awk -v up="$(cut -d. -f1 /proc/uptime)" '{ print int(up - $22 / 100) }' /proc/$PPID/stat)))
fi

step() { printf '\n== %s  (%d s since the start)\n' "$1" $(($(date +%s) - begun)); }

step "1/5 a corpus of small stories"
./train story generate --seed=1 --bytes=14000000 --held-out=0.03 --out=$work
entropy=$(./train story entropy $work/held_out.txt)
echo "$entropy"
H=$(echo "$entropy" | sed -nE 's/^entropy: ([0-9.]+) bits\/byte.*/\1/p')
if command -v xz >/dev/null; then
    head -c 4000000 $work/train.txt | xz -9e | wc -c |
        awk '{ printf "xz -9e leaves %.3f bits/byte of its first 4 MB\n", 8 * $1 / 4e6 }'
fi

step "2/5 a tokenizer and token shards"
# More tokens than the corpus has use for: learning stops where no pair occurs twice, at about a word a token.
./train tokenize $work/train.txt --val-file=$work/held_out.txt --document-separator=blank --tokenizer=train:4096 \
    --out=$work --overwrite=true

step "3/5 training"
./train configs/demo.json --run.dir=$run --run.overwrite=true --data.reference_bits_per_byte="$H"

step "4/5 200 stories from the model"
./train sample $run --count=200 --run.seed=1 --sample.temperature=0.8 >$work/samples.txt
head -n 5 $work/samples.txt    # three of them

step "5/5 do they hold together?"
./train story check $work/held_out.txt
./train story check $work/samples.txt --against=$work/train.txt
echo "What a model of this size does not learn is to come back to the place where a story began; only stories that do hold together."

printf '\nThe whole demo took %d s, set-up and build included. See %s/report.html; try ./train sample %s\n' \
    $(($(date +%s) - begun)) $run $run
