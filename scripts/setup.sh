#!/usr/bin/env bash
# Finds what coda.c is built from and writes it down for make.
#
#   scripts/setup.sh deps FILE.mk          cJSON, OpenBLAS, cmocka; installs what is missing
#   scripts/setup.sh cuda FILE.mk NVCC     CUDA runtime, cuBLASLt, cuDNN and its frontend headers
#
# A library counts as found when a small program that uses it compiles, links, runs and is right: package
# lists and paths are only hints. make calls this when FILE.mk is absent; `make setup` calls it again.
#
# Settings (environment):
#   EXTRA_CFLAGS, EXTRA_LIBS   where your own builds of the libraries are, tried first
#   SETUP_FORCE_LOCAL=1        ignore installed libraries, unpack packages into build/deps without root
#   CUDNN_HOME                 folder with include/cudnn.h and lib/ when cuDNN is not beside the toolkit
set -u
cd "$(dirname "$0")/.." || exit
export LC_ALL=C

mode=${1:?usage: scripts/setup.sh deps FILE.mk | cuda FILE.mk NVCC}
made=${2:?usage: scripts/setup.sh deps FILE.mk | cuda FILE.mk NVCC}
CC=${CC:-cc}
deps=build/deps
root=$deps/root
force_local=${SETUP_FORCE_LOCAL:-0}
mkdir -p build "$(dirname "$made")"
probe=$(mktemp -d build/probe.XXXXXX)
trap 'rm -rf "$probe"' EXIT

say() { printf '  %-14s %s\n' "$1" "$2"; }
have() { command -v "$1" >/dev/null 2>&1; }

# ---- probes ---------------------------------------------------------------------------------------

# try NAME "CFLAGS" "LIBS": compiles, links and runs $probe/NAME.c; its output is in $probe/NAME.out.
try() {
    # shellcheck disable=SC2086
    $CC -O2 $2 -o "$probe/$1" "$probe/$1.c" $3 >"$probe/$1.log" 2>&1 &&
        timeout 60 "$probe/$1" >"$probe/$1.out" 2>>"$probe/$1.log"
}

multiarch=$($CC -print-multiarch 2>/dev/null || true)
local_lib=$root/usr/lib/${multiarch:-x86_64-linux-gnu}
local_cflags="-isystem $PWD/$root/usr/include"
# Old-style RPATH, because it also holds for what the libraries need themselves (libgfortran for OpenBLAS).
local_rpath="-Wl,--disable-new-dtags -Wl,-rpath,$PWD/$local_lib"
local_libs="-L$PWD/$local_lib $local_rpath"

# find_simple NAME LIB: sets cflags, libs, where.
find_simple() {
    if [ -n "${EXTRA_CFLAGS:-}${EXTRA_LIBS:-}" ] && try "$1" "${EXTRA_CFLAGS:-}" "${EXTRA_LIBS:-} $2"; then
        cflags=${EXTRA_CFLAGS:-}; libs="${EXTRA_LIBS:-} $2"; where="EXTRA_CFLAGS, EXTRA_LIBS"; return 0
    fi
    if [ "$force_local" != 1 ] && try "$1" "" "$2"; then
        cflags=; libs=$2; where=system; return 0
    fi
    if [ -d "$root" ] && try "$1" "$local_cflags" "$local_libs $2"; then
        cflags=$local_cflags; libs="$local_libs $2"; where=$root; return 0
    fi
    return 1
}

write_probes() {
    cat >"$probe/cjson.c" <<'C'
#include <cjson/cJSON.h>
#include <stdio.h>
int main(void)
{
    cJSON *j = cJSON_ParseWithLengthOpts("{\"a\":[1,2.5]}", 14, NULL, 1);
    if (!j || cJSON_GetObjectItemCaseSensitive(j, "a")->child->next->valuedouble != 2.5) return 1;
    cJSON_Delete(j);
    puts(cJSON_Version());
    return 0;
}
C
    cat >"$probe/cmocka.c" <<'C'
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
static void passes(void **state) { (void)state; assert_int_equal(1, 1); }
int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(passes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
C
    # Checks products against plain loops at sizes around the kernels' tiles, then measures a matrix product
    # on one thread. Prints: parallel (2 = OpenMP), GFLOP/s, kernel, version.
    cat >"$probe/openblas.c" <<'C'
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
int openblas_get_parallel(void);
char *openblas_get_corename(void);
static float value(int i, int step) { return (float)((long)i * step % 101) / 50.0f - 1.0f; }
static int wrong(int m, int n, int k, int ta, int tb)
{
    float *a = malloc(sizeof(float) * m * k), *b = malloc(sizeof(float) * k * n), *c = malloc(sizeof(float) * m * n);
    for (int i = 0; i < m * k; i++) a[i] = value(i, 7919);
    for (int i = 0; i < k * n; i++) b[i] = value(i, 10473);
    for (int i = 0; i < m * n; i++) c[i] = value(i, 31);
    cblas_sgemm(CblasRowMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, m, n, k, 0.5f,
                a, ta ? m : k, b, tb ? k : n, 1.0f, c, n);
    int bad = 0;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            double sum = 0;
            for (int p = 0; p < k; p++) sum += (double)a[ta ? p * m + i : i * k + p] * b[tb ? j * k + p : p * n + j];
            double want = value(i * n + j, 31) + 0.5 * sum;
            if (!(fabs(c[i * n + j] - want) < 1e-4 * (1 + fabs(want)))) bad = 1;
        }
    free(a); free(b); free(c);
    return bad;
}
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }
int main(void)
{
    static const int size[] = {1, 5, 31, 67, 131};
    for (int m = 0; m < 5; m++)
        for (int n = 0; n < 5; n++)
            for (int k = 0; k < 5; k += 2)
                for (int t = 0; t < 4; t++)
                    if (wrong(size[m], size[n], size[k], t & 1, t >> 1)) {
                        fprintf(stderr, "sgemm is wrong at m %d n %d k %d with kernel %s\n", size[m], size[n],
                                size[k], openblas_get_corename());
                        return 1;
                    }
    int s = 384;
    float *a = calloc(3 * s * s, sizeof(float));
    double best = 1e9;
    for (int r = 0; r < 12; r++) {
        double start = now();
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, s, s, s, 1, a, s, a + s * s, s, 0, a + 2 * s * s, s);
        if (now() - start < best) best = now() - start;
    }
    printf("%d %.0f %s %s\n", openblas_get_parallel(), 2e-9 * s * s * s / best, openblas_get_corename(),
           openblas_get_config());
    return 0;
}
C
    # Choosing another kernel after OpenBLAS has started.
    cat >"$probe/redispatch.c" <<'C'
void gotoblas_dynamic_quit(void);
void gotoblas_dynamic_init(void);
int main(void) { gotoblas_dynamic_quit(); gotoblas_dynamic_init(); return 0; }
C
}

# openblas_at "CFLAGS" "LIBS" WHERE WANTED_PARALLEL. Sets cflags, libs, where, blas_core, blas_report.
# The kernel that OpenBLAS picks by itself may be wrong or, on a processor newer than the library, slow by a
# multiple: then the fastest correct kernel that this processor can run is chosen instead.
openblas_at() {
    local core line speed best=0 chosen=none
    blas_wrong=
    for core in "" SkylakeX Haswell; do
        case $core in
        SkylakeX) grep -qw avx512dq /proc/cpuinfo 2>/dev/null || continue ;;
        Haswell) grep -qw avx2 /proc/cpuinfo 2>/dev/null || continue ;;
        esac
        if [ -n "$core" ]; then export OPENBLAS_CORETYPE=$core; else unset OPENBLAS_CORETYPE; fi
        if OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 try openblas "$1" "$2 -lm"; then
            read -r parallel speed kernel line <"$probe/openblas.out"
            [ "$parallel" -ge "$4" ] || { unset OPENBLAS_CORETYPE; return 1; }
            # Another kernel than OpenBLAS's own choice has to be clearly better.
            if [ "$chosen" = none ] || [ "$speed" -gt $((best * 5 / 4)) ]; then
                best=$speed; chosen=$core
                blas_report="$(echo "$line" | grep -oE 'OpenBLAS [0-9.]+' | head -1), kernel $kernel, $speed GFLOP/s a core"
                blas_parallel=$parallel
            fi
        elif [ -z "$core" ] && [ -x "$probe/openblas" ]; then
            blas_wrong="$(tail -1 "$probe/openblas.log")"
        fi
        rm -f "$probe/openblas"
    done
    unset OPENBLAS_CORETYPE
    [ "$chosen" != none ] || return 1
    blas_core=
    if [ -n "$chosen" ]; then
        if try redispatch "$1" "$2"; then blas_core=$chosen
        elif [ -n "$blas_wrong" ]; then return 1; fi
    fi
    cflags=$1; libs=$2; where=$3
}

# OpenMP builds first: another threading library would compete with our own threads for the cores.
find_openblas() {
    local wanted dir
    for wanted in 2 0; do
        if [ -n "${EXTRA_CFLAGS:-}${EXTRA_LIBS:-}" ]; then
            openblas_at "${EXTRA_CFLAGS:-}" "${EXTRA_LIBS:-} -lopenblas" "EXTRA_CFLAGS, EXTRA_LIBS" $wanted && return 0
        fi
        if [ "$force_local" != 1 ]; then
            # Debian keeps the variants apart; -lopenblas alone is whichever the administrator preferred.
            for dir in /usr/lib/*/openblas-openmp; do
                [ -d "$dir" ] || continue
                openblas_at "-isystem /usr/include/$(basename "$(dirname "$dir")")/openblas-openmp" \
                    "-L$dir -Wl,-rpath,$dir -lopenblas" "$dir" $wanted && return 0
            done
            openblas_at "-isystem /usr/include/openblas" "-lopenblaso" system $wanted && return 0
            openblas_at "-isystem /usr/include/openblas" "-lopenblas" system $wanted && return 0
        fi
        dir=$PWD/$local_lib/openblas-openmp
        if [ -d "$dir" ]; then
            openblas_at "-isystem $PWD/$root/usr/include/$(basename "$local_lib")/openblas-openmp" \
                "-L$dir -Wl,--disable-new-dtags -Wl,-rpath,$dir $local_rpath -lopenblas" "$dir" $wanted && return 0
        fi
        [ "${1:-}" = any ] || return 1
    done
    return 1
}

# ---- installation ---------------------------------------------------------------------------------

as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
can_be_root() { [ "$(id -u)" = 0 ] || { have sudo && sudo -n true 2>/dev/null; }; }

# Each returns non-zero when a package could not be had; the probes then have the last word.
install_packages() {
    echo "  installing: $*"
    local log=build/setup-apt.log
    # The package lists of a fresh machine are empty or old, so a failure is tried again with new ones.
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -y -q --no-install-recommends install "$@" >"$log" 2>&1 && return 0
    echo "  refreshing the package lists (apt-get update)"
    as_root apt-get -q update >>"$log" 2>&1 || echo "  apt-get update failed: no network? see $log"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -y -q --no-install-recommends install "$@" >>"$log" 2>&1 &&
        return 0
    echo "  apt-get install failed: see $log"
    return 1
}

unpack_packages() {
    local package log=build/setup-apt.log own="" missing="" name
    echo "  unpacking into $root: $*"
    mkdir -p "$deps/apt/lists/partial" "$deps/apt/cache/archives/partial" "$deps/debs"
    : >"$log"
    for package in "$@"; do
        if ! (cd "$deps/debs" && apt-get -q download "$package" >>../../../"$log" 2>&1); then
            if [ -z "$own" ]; then
                # Without root the machine's package lists cannot be renewed, but a private copy can.
                echo "  refreshing a private copy of the package lists (apt-get update)"
                own="-o Dir::State::lists=$PWD/$deps/apt/lists -o Dir::Cache=$PWD/$deps/apt/cache"
                # shellcheck disable=SC2086
                apt-get -q $own update >>"$log" 2>&1 || echo "  apt-get update failed: no network? see $log"
            fi
            # shellcheck disable=SC2086
            (cd "$deps/debs" && apt-get -q $own download "$package" >>../../../"$log" 2>&1) ||
                missing="$missing $package"
        fi
    done
    mkdir -p "$root"
    for name in "$deps"/debs/*.deb; do
        [ -f "$name" ] && dpkg-deb -x "$name" "$root" >>"$log" 2>&1
    done
    # Static archives are most of the volume and never linked.
    find "$root" -name '*.a' -delete
    rm -rf "$deps/debs" "$deps/apt"
    [ -z "$missing" ] || echo "  could not be downloaded:$missing (see $log)"
}

give_up() {
    echo
    echo "Missing: $*"
    if have apt-get; then
        echo "Install it, then run make again:"
        echo "    sudo apt-get update && sudo apt-get install$install"
    else
        echo "Install it with your package manager, then run make again. Packages elsewhere:"
        echo "    Fedora:     dnf install cjson-devel openblas-devel libcmocka-devel"
        echo "    Arch Linux: pacman -S cjson openblas cmocka"
        echo "Libraries in a place of your own: make EXTRA_CFLAGS=-I... EXTRA_LIBS=-L..."
    fi
    exit 1
}

# ---- the host libraries ---------------------------------------------------------------------------

setup_deps() {
    local tool missing_tools="" install="" runtime="" missing=""
    echo "Looking for what coda.c is built from:"
    for tool in "$CC:gcc libc6-dev" python3:python3 xz:xz-utils; do
        have "${tool%%:*}" || missing_tools="$missing_tools ${tool#*:}"
    done
    if [ -n "$missing_tools" ]; then
        # shellcheck disable=SC2086
        if have apt-get && can_be_root; then install_packages $missing_tools; fi
        have "$CC" || { install=" gcc libc6-dev"; give_up "a C compiler ($CC)"; }
        have python3 || say python3 "not found: needed by tests and scripts, not by the program"
        have xz || say xz "not found: the demo compares itself with it"
        multiarch=$($CC -print-multiarch 2>/dev/null || true)
    fi
    say compiler "$($CC --version | head -1)"

    write_probes
    find_simple cjson -lcjson || { install="$install libcjson-dev"; runtime="$runtime libcjson1"; }
    find_openblas || { install="$install libopenblas-openmp-dev"
                       runtime="$runtime libopenblas0-openmp libgfortran5 libquadmath0"; }
    find_simple cmocka -lcmocka || { install="$install libcmocka-dev"; runtime="$runtime libcmocka0"; }
    if [ -n "$install" ] && have apt-get; then
        # shellcheck disable=SC2086
        if [ "$force_local" != 1 ] && can_be_root; then install_packages $install
        else unpack_packages $install $runtime; fi
    fi

    local all_cflags="" all_libs=""
    if find_simple cjson -lcjson; then
        say cJSON "found $(cat "$probe/cjson.out") ($where)"
        all_cflags="$cflags"; all_libs="$libs"
    else
        say cJSON "not found"; missing="$missing cJSON"
    fi
    if find_openblas any; then
        say OpenBLAS "found $blas_report ($where)"
        [ "$blas_parallel" = 2 ] || say "" "this build does not use OpenMP: training on the CPU will be slower"
        [ -z "$blas_core" ] || say "" "(OpenBLAS itself would have picked a kernel that is slower or wrong here)"
        all_cflags="$all_cflags $cflags"; all_libs="$all_libs $libs"
        [ -z "$blas_core" ] || all_cflags="$all_cflags -DOPENBLAS_KERNEL=\\\"$blas_core\\\""
    else
        say OpenBLAS "not found${blas_wrong:+ in working order: $blas_wrong}"; missing="$missing OpenBLAS"
    fi
    local test_cflags="" test_libs=""
    if find_simple cmocka -lcmocka; then
        say cmocka "found ($where)"
        test_cflags=$cflags; test_libs=$libs
    else
        say cmocka "not found"; missing="$missing cmocka"
    fi
    # shellcheck disable=SC2086
    [ -z "$missing" ] || give_up $missing

    # Written relative to the tree, so that it can be moved.
    {
        echo "# Written by scripts/setup.sh; make setup writes it again."
        echo "DEP_CFLAGS  := $all_cflags"
        echo "DEP_LIBS    := $all_libs"
        echo "TEST_CFLAGS := $test_cflags"
        echo "TEST_LIBS   := $test_libs"
    } | sed "s|$PWD/|\$(CURDIR)/|g" >"$made.tmp" && mv "$made.tmp" "$made"
}

# ---- CUDA -----------------------------------------------------------------------------------------

frontend_version=1.18.0

# The frontend is headers only; every wheel of the version holds the same ones, so the platform is fixed.
fetch_frontend() {
    local dir=$deps/cudnn-frontend-$frontend_version
    [ -f "$dir/include/cudnn_frontend.h" ] && return 0
    mkdir -p "$dir"
    echo "  fetching nvidia-cudnn-frontend $frontend_version (headers) from PyPI"
    python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.11 --implementation cp \
        --platform manylinux_2_28_x86_64 --platform manylinux_2_27_x86_64 --platform manylinux2014_x86_64 \
        -d "$dir" "nvidia-cudnn-frontend==$frontend_version" >build/setup-pip.log 2>&1 || return 1
    python3 - "$dir" <<'PY'
import glob, sys, zipfile
folder = sys.argv[1]
with zipfile.ZipFile(glob.glob(folder + "/*.whl")[0]) as wheel:
    wheel.extractall(folder, [n for n in wheel.namelist() if n.startswith("include/") or "LICENSE" in n])
PY
    rm -f "$dir"/*.whl
    [ -f "$dir/include/cudnn_frontend.h" ]
}

setup_cuda() {
    local nvcc=$1 home lib flags="" cudnn=0 version found=0
    home=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
    CC=${CXX:-c++}
    echo "Looking for CUDA ($nvcc):"
    cat >"$probe/cuda.c" <<'C'
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <stdio.h>
int main(void)
{
    int count;
    cudaGetDeviceCount(&count);   /* fails without a driver, but must link and start */
    printf("%d.%d\n", CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    return cublasLtGetVersion() == 0;
}
C
    cat >"$probe/cudnn.c" <<'C'
#include <cudnn.h>
#include <stdio.h>
int main(void)
{
    printf("%d.%d.%d\n", CUDNN_MAJOR, CUDNN_MINOR, CUDNN_PATCHLEVEL);
    return cudnnGetVersion() < 90000;
}
C
    for lib in "$home/lib64" "$home/lib" "$home"/targets/*-linux/lib ""; do
        [ -z "$lib" ] || [ -d "$lib" ] || continue
        flags=${lib:+-L$lib -Wl,-rpath,$lib}
        if try cuda "-x c++ -I$home/include" "-x none $flags -lcublasLt -lcudart"; then found=1; break; fi
    done
    if [ $found = 0 ]; then
        say CUDA "nvcc is here, but a program with cuBLASLt does not build: $(grep -m1 -iE 'error|cannot' "$probe/cuda.log")"
        say "" "building without CUDA (NVCC=path picks another toolkit)"
        echo "CUDA_FOUND := 0" >"$made"
        return 0
    fi
    say CUDA "found $(cat "$probe/cuda.out") ($home)"
    local cflags="-isystem $home/include" libs="$flags -lcublasLt -lcudart" try_home
    for try_home in "${CUDNN_HOME:-}" "$home"; do
        [ -n "$try_home" ] || continue
        for lib in "$try_home/lib64" "$try_home/lib" ""; do
            [ -z "$lib" ] || [ -d "$lib" ] || continue
            if try cudnn "-x c++ -I$home/include -I$try_home/include" \
                   "-x none $flags ${lib:+-L$lib -Wl,-rpath,$lib} -lcudnn"; then
                version=$(cat "$probe/cudnn.out"); cudnn=1
                [ "$try_home" = "$home" ] || cflags="$cflags -isystem $try_home/include"
                libs="$libs ${lib:+-L$lib -Wl,-rpath,$lib} -lcudnn"
                break 2
            fi
        done
    done
    if [ $cudnn = 0 ]; then
        say cuDNN "not found, version 9 needed (CUDNN_HOME=path names its folder): reference attention only"
    elif ! fetch_frontend; then
        say cuDNN "found $version, but its frontend headers could not be fetched (python3 -m pip, see build/setup-pip.log)"
        say "" "reference attention only; make setup tries again"
        cudnn=0
    else
        say cuDNN "found $version with frontend $frontend_version"
        cflags="$cflags -isystem $PWD/$deps/cudnn-frontend-$frontend_version/include"
    fi
    {
        echo "# Written by scripts/setup.sh; make setup writes it again."
        echo "CUDA_FOUND  := 1"
        echo "CUDA_CFLAGS := $cflags"
        echo "CUDA_LIBS   := $libs"
        echo "CUDNN_FOUND := $cudnn"
    } | sed "s|$PWD/|\$(CURDIR)/|g" >"$made.tmp" && mv "$made.tmp" "$made"
}

case $mode in
deps) setup_deps ;;
cuda) setup_cuda "${3:?usage: scripts/setup.sh cuda FILE.mk NVCC}" ;;
*) echo "scripts/setup.sh: unknown mode $mode" >&2; exit 2 ;;
esac
