#!/usr/bin/env bash
# Compiles every CUDA source for every architecture, without a device, and reads what ptxas says: no kernel may
# spill more than 64 bytes, no wgmma may be serialised. Then links ./train and starts it without a driver.
#
# NVCC: the compiler, from make. CUDA=0 leaves the check out.
set -u
cd "$(dirname "$0")/.." || exit
export LC_ALL=C

sources=$(find kernels/cuda tests/gpu -name '*.cu' -o -name '*.cpp' 2>/dev/null | sort)
if [ "${CUDA:-auto}" = 0 ]; then echo "not checked: CUDA=0"; exit 0; fi
if [ -z "${NVCC:-}" ]; then echo "not checked: there is no nvcc"; exit 0; fi
if [ -z "$sources" ]; then echo "not checked: there are no CUDA sources"; exit 0; fi

failures=0
pass() { echo "ok - $1"; }
fail() { echo "not ok - $1"; failures=$((failures + 1)); }

log=$TMPDIR/cuda-build.log
MAKEFLAGS='' make -k -j"$(nproc)" CUDA=1 NVCC="$NVCC" cuda-objects >"$log" 2>&1
built=$?

for source in $sources; do
    object=build/cuda/$source.o
    # Without cuDNN's headers its file is left out of the build, and the set-up step has said so.
    [ "${source##*.}" = cpp ] && ! grep -q '^CUDNN_FOUND := 1' build/cuda*.mk && continue
    if [ ! -f "$object" ] || [ "$source" -nt "$object" ]; then
        fail "$source compiles"
        continue
    fi
    pass "$source compiles"
    [ "${source##*.}" = cu ] || continue
    complaint=$(awk '
        /Compiling entry function/ { split($0, part, "\x27"); kernel = part[2]; arch = part[4] }
        /Function properties for/  { kernel = $NF }
        /bytes spill stores/ {
            match($0, /[0-9]+ bytes spill stores/); stores = substr($0, RSTART) + 0
            match($0, /[0-9]+ bytes spill loads/);  loads = substr($0, RSTART) + 0
            if (stores > 64 || loads > 64)
                print "    " kernel " (" arch ") spills: " stores " bytes stored, " loads " loaded"
        }
        /C75[0-9][0-9]|[Ss]erialized|serialised/ { print "    " $0 }' "${object%.o}.log")
    if [ -z "$complaint" ]; then pass "$source keeps its registers and its wgmma apart"
    else fail "$source keeps its registers and its wgmma apart"; echo "$complaint"; fi
done

if [ $built != 0 ]; then
    fail "the CUDA build links"
    grep -vE '^  (compile|link) ' "$log"
else
    pass "the CUDA build links"
    for arch in sm_80 sm_90a; do
        if grep -q "for '$arch'" build/cuda/kernels/cuda/*.log build/cuda/kernels/cuda/fused/*.log; then pass "the binary holds $arch"
        else fail "the binary holds $arch"; fi
    done
    if grep -q 'arch=compute_80,code=\[.*compute_80\]' build/cuda/flags; then pass "the binary holds PTX for newer GPUs"
    else fail "the binary holds PTX for newer GPUs"; cat build/cuda/flags; fi
    needed=$(ldd build/cuda/train)
    if echo "$needed" | grep -qE 'libcuda\.so|libnccl|not found'; then
        fail "train needs neither the driver's library nor NCCL"; echo "$needed"
    else pass "train needs neither the driver's library nor NCCL"; fi
    if build/cuda/train --help >"$TMPDIR/help" 2>&1; then pass "train starts without a driver"
    else fail "train starts without a driver"; cat "$TMPDIR/help"; fi
    bench="build/cuda/train bench configs/demo.json --model.vocab=512 --data.tokenizer= --steps=1 --warmup=0"
    if $bench --run.device=cpu >"$TMPDIR/bench" 2>&1; then pass "train trains on the CPU without a driver"
    else fail "train trains on the CPU without a driver"; cat "$TMPDIR/bench"; fi
    if [ ! -e /proc/driver/nvidia/version ]; then
        $bench --run.device=cuda >"$TMPDIR/bench" 2>&1
        if [ $? = 2 ] && grep -q 'error: run.device=cuda: .*driver' "$TMPDIR/bench"; then
            pass "without a driver, run.device=cuda is refused"
        else fail "without a driver, run.device=cuda is refused"; cat "$TMPDIR/bench"; fi
    fi
fi

# The examples of docs/EPILOGUES.md: that with rows in a program that uses the primitives as its table says, the bias with its
# case, and the declaration that the text asks for.
block() { # which of the page's blocks of code, how far it is indented
    awk -v n="$1" -v indent="$2" '$0 == indent "```cpp" { n--; on = 1; next } $0 == indent "```" { on = 0 } on && !n' \
        docs/EPILOGUES.md
}
example=$TMPDIR/bias_sm90.cu
{
    block 2 ""
    echo '#include "tests/gpu/fused_cases.cuh"'
    echo 'void cuda_bias(const OpContext *, Tensor out, Tensor a, Tensor w, const float *bias);'
    block 1 "   "
    echo 'Case example(const Sizes &s) { return bias_case(s); }'
    echo 'struct WithRows : Epilogue {'
    echo '    typedef Tile16<64> Tile;'
    echo '    static constexpr int COLUMNS = 64, BUFFER = Tile::BYTES, LOAD_BYTES = BUFFER;'
    echo '    struct Params { CUtensorMap x, out; RowNorm norm; RowSums sums; const float *row_bias; };'
    echo '    RowSum sum;'
    block 1 "" | sed 's/^        r\[0\] = /        sum.clear();\n&/'
    echo '    static __device__ void fetch(const Params &p, uint32_t buffer, uint32_t ready, int row, int col)'
    echo '    {'
    echo '        tma_load(buffer, &p.x, ready, col, row);'
    echo '    }'
    echo '    __device__ void chunk(const Params &, float (&acc)[32], uint32_t buffer, Rows, int)'
    echo '    {'
    echo '        uint32_t all[COLUMNS / 16][4];'
    echo '        Tile::load(all, buffer);'
    echo '        for (int slice = 0; slice < 4; slice++) {'
    echo '            for (int i = 0; i < 4; i++) {'
    echo '                float2 x = unpack(all[slice][i]);'
    echo '                sum.add(i, x.x = r[i % 2] * acc[8 * slice + 2 * i] + bias[i % 2]);'
    echo '                all[slice][i] = pack(x.x, x.y);'
    echo '            }'
    echo '            Tile::store(buffer, slice, all[slice]);'
    echo '        }'
    echo '    }'
    echo '    static __device__ void store(const Params &p, uint32_t buffer, int row, int col)'
    echo '    {'
    echo '        tma_store(&p.out, buffer, col, row);'
    echo '    }'
    echo '    __device__ void end(const Params &p, Rows rows, ColumnTile tile) { sum.put(p.sums, rows, tile); }'
    echo '};'
    echo 'void with_rows(const FusedCall &call, Tensor a, Tensor w, const WithRows::Params &p)'
    echo '{'
    echo '    launch_program<WithRows, false, false>(call, a, w, a.rows, w.rows, a.cols, p);'
    echo '}'
} >"$example"
if "$NVCC" -std=c++17 -gencode arch=compute_90a,code=sm_90a -I. -c -o "$TMPDIR/bias.o" "$example" >"$log" 2>&1; then
    pass "the examples of docs/EPILOGUES.md compile"
else fail "the examples of docs/EPILOGUES.md compile"; cat "$log"; fi

# A member whose name is wrong would be silently empty.
refused() { # what the compiler shall say of the bias, and a command of sed that spoils it
    block 2 "" | sed "$2" >"$example"
    if "$NVCC" -std=c++17 -gencode arch=compute_90a,code=sm_90a -I. -c -o "$TMPDIR/bias.o" "$example" >"$log" 2>&1 ||
        ! grep -q "$1" "$log"; then fail "a program is refused: $1"; cat "$log"
    else pass "a program is refused: $1"; fi
}
fetch='static __device__ void fetch(const Params \&p, uint32_t to, uint32_t ready, int row, int col) { tma_load(to, \&p.out, ready, col, row); }'
refused "BUFFER without store" 's/void store(/void stroe(/'
refused "LOAD_BYTES without fetch" 's/BUFFER = Tile::BYTES/&, LOAD_BYTES = BUFFER/'
refused "fetch without LOAD_BYTES" "s/^    static __device__ void store(/$fetch\n&/"
refused "COLUMNS of a chunk: 32 or 64" 's/COLUMNS = 64/COLUMNS = 48/'
[ $failures = 0 ]
