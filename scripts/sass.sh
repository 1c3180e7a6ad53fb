#!/usr/bin/env bash
# Machine code of the kernels whose name contains K, one file for each object, in build/sass/.
#
#   scripts/sass.sh K OBJECT.cu.o ...       (make sass K=name)
set -u
cd "$(dirname "$0")/.." || exit
name=$1
shift
cuobjdump=$(command -v cuobjdump || echo "$(dirname "${NVCC:-/usr/local/cuda/bin/nvcc}")/cuobjdump")
[ -x "$cuobjdump" ] || { echo "cuobjdump was not found: it comes with the CUDA toolkit" >&2; exit 1; }
mkdir -p build/sass
found=0
for object in "$@"; do
    sass=build/sass/$(basename "$object" .cu.o).sass
    "$cuobjdump" --dump-sass "$object" | awk -v name="$name" '
        /^code for/ { arch = $3 }
        /Function :/ { on = index($0, name); if (on) print "\n// " arch }
        on' >"$sass"
    if [ -s "$sass" ]; then echo "$sass: $(grep -c 'Function :' "$sass") functions"; found=1; else rm -f "$sass"; fi
done
[ $found = 1 ] || { echo "no kernel has \"$name\" in its name" >&2; exit 1; }
