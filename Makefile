# coda.c
#
#   make                ./train; with CUDA where a toolkit is found
#   make demo           set up, build, make a corpus, train a small model on the CPU, report and sample
#   make test           everything that needs no GPU; where nvcc is found, also that every kernel compiles well
#   make test-gpu       everything that needs a GPU
#   make bench          steady-state step times of the benchmark configs
#   make sass K=name    machine code of the kernels whose name contains K, in build/sass/
#   make setup          look for the libraries again (make does it by itself the first time)
#   make clean          remove what was built; make distclean also forgets the libraries
#
# Settings: CUDA=0 leaves CUDA out, CUDA=1 insists on it; NVCC=path picks a toolkit; ARCH=sm_90a builds for
# one architecture; NVTX=0 leaves the profiling ranges out. A change of settings rebuilds what it concerns.

CC       ?= cc
CXX      ?= c++
OPT      ?= -O3 -march=native
# Everything of -ffast-math that keeps NaN, infinities and the order of sums.
CFLAGS   := -std=gnu11 -D_GNU_SOURCE= $(OPT) -fno-math-errno -fno-trapping-math -fopenmp -g
CXXFLAGS := -std=gnu++17 -O1 -g
WARNINGS := -Wall -Wextra -Wshadow
# An undeclared function is taken to return int, which cuts pointers in half.
C_WARNINGS := -Wstrict-prototypes -Werror=implicit-function-declaration
CPPFLAGS := -I. $(EXTRA_CFLAGS)
LDLIBS   := $(EXTRA_LIBS)

comma := ,
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
# Objects of test programs are kept, not taken for passing stages.
.SECONDARY:
# One job a core, unless -j says otherwise.
MAKEFLAGS += --no-builtin-rules -j$(shell nproc)

# ---- with CUDA or without --------------------------------------------------------------------------

ifeq ($(origin NVCC),undefined)
    NVCC := $(firstword $(wildcard $(CUDA_HOME)/bin/nvcc) $(shell command -v nvcc) \
        $(wildcard /usr/local/cuda/bin/nvcc))
endif
HAVE_DEVICE := $(shell { test -e /dev/nvidia0 || nvidia-smi -L; } >/dev/null 2>&1 && echo 1)

CUDA ?= auto
override WITH_CUDA := $(if $(filter 0,$(CUDA)),,$(if $(NVCC),1))
ifeq ($(CUDA)$(WITH_CUDA),1)
    $(error CUDA=1, but no nvcc was found. Name it: make CUDA=1 NVCC=/path/to/nvcc)
endif
# The demo and the CPU tests wait for no CUDA build on a machine that cannot use it.
ifeq ($(CUDA)$(HAVE_DEVICE),auto)
ifneq ($(filter demo test tests,$(MAKECMDGOALS)),)
    override WITH_CUDA :=
endif
endif

# ---- libraries: scripts/setup.sh probes them by compiling and writes these two files ---------------

DEPS_MK := build/deps.mk
CUDA_MK := build/cuda$(subst /,-,$(NVCC)).mk
ifeq ($(filter clean distclean setup,$(MAKECMDGOALS)),)
    include $(DEPS_MK)
    ifdef WITH_CUDA
        include $(CUDA_MK)
    endif
endif

$(DEPS_MK): scripts/setup.sh
	@CC="$(CC)" EXTRA_CFLAGS="$(EXTRA_CFLAGS)" EXTRA_LIBS="$(EXTRA_LIBS)" scripts/setup.sh deps $@

$(CUDA_MK): scripts/setup.sh
	@CXX="$(CXX)" scripts/setup.sh cuda $@ $(NVCC)

ifeq ($(CUDA_FOUND),0)
    override WITH_CUDA :=
endif

# ---- sources ---------------------------------------------------------------------------------------

O := build/$(if $(WITH_CUDA),cuda,cpu)

C_SOURCES  := train.c $(wildcard commands/*.c model/*.c data/*.c kernels/*.c kernels/cpu/*.c)
CU_SOURCES := $(wildcard kernels/cuda/*.cu kernels/cuda/*/*.cu)
C_TESTS    := $(wildcard tests/test_*.c)
GPU_TESTS  := $(wildcard tests/gpu/test_*.c tests/gpu/test_*.cu)
GPU_BENCHES := $(wildcard tests/gpu/bench_*.c tests/gpu/bench_*.cu)

OBJECTS := $(C_SOURCES:%.c=$(O)/%.o)
CPPFLAGS += $(DEP_CFLAGS)
LDLIBS   += $(DEP_LIBS) -lm -ldl
LINK     := $(CC)

ifdef WITH_CUDA
    C_SOURCES += $(wildcard kernels/cuda/*.c kernels/cuda/*/*.c)
    CUDNN_SOURCES := $(if $(filter 1,$(CUDNN_FOUND)),$(wildcard kernels/cuda/attention_cudnn.cpp))
    OBJECTS := $(C_SOURCES:%.c=$(O)/%.o) $(CU_SOURCES:%.cu=$(O)/%.cu.o) $(CUDNN_SOURCES:%.cpp=$(O)/%.cpp.o)
    CPPFLAGS += $(CUDA_CFLAGS) -DWITH_CUDA $(if $(CUDNN_SOURCES),-DWITH_CUDNN)
    CPPFLAGS += $(if $(filter 0,$(NVTX)),-DNVTX_DISABLE)
    LDLIBS   += $(CUDA_LIBS)
    LINK     := $(CXX)

    # Machine code for A100 and H100/H200, and PTX that the driver compiles for everything newer. Files named
    # *_sm90.cu use instructions that only sm_90a has.
    SM90 := -gencode arch=compute_90a,code=sm_90a
    GENCODE := $(if $(ARCH),-gencode arch=$(ARCH:sm_%=compute_%)$(comma)code=$(ARCH), \
        -gencode arch=compute_80,code=[sm_80,compute_80] $(SM90))
    NVCCFLAGS := -O3 -std=c++17 -lineinfo -Xptxas -v -Xcompiler -Wall -Xcompiler -fopenmp
endif

# Tests link against everything but main as a library, and with the files of tests/ that are no test themselves.
# A constructor that nothing refers to has to be named.
LIBRARY := $(filter-out $(O)/train.o,$(OBJECTS))
HELPERS := $(patsubst %.c,$(O)/%.o,$(filter-out tests/test_%,$(wildcard tests/*.c)))
GPU_HELPERS := $(filter-out tests/gpu/test_% tests/gpu/bench_%,$(wildcard tests/gpu/*.c))
GPU_HELPERS := $(GPU_HELPERS:%.c=$(O)/%.o)
LINKED  := $(HELPERS) $(O)/kernels/cpu/openblas_kernel.o $(O)/libcoda.a
TESTS   := $(C_TESTS:%.c=$(O)/%)
# The mainloop on the CPU: tests/emulated/ stands in for what only a GPU has.
EMULATED := $(O)/tests/test_mainloop
GPU_TESTS := $(patsubst %.cu,$(O)/%,$(patsubst %.c,$(O)/%,$(GPU_TESTS)))
GPU_BENCHES := $(patsubst %.cu,$(O)/%,$(patsubst %.c,$(O)/%,$(GPU_BENCHES)))

# ---- rules -----------------------------------------------------------------------------------------

.PHONY: all setup demo test test-gpu tests cuda-objects bench sass clean distclean FORCE

all: train

# ./train is whichever of the two builds was made last.
train: $(O)/train build/variant
	@cp -f $< $@

build/variant: FORCE
	@echo '$(O)' | cmp -s - $@ || echo '$(O)' > $@

# Holds every flag; it changes only when they do, and then everything is compiled again.
FLAGS := $(CC) $(CXX) $(NVCC) $(CFLAGS) $(CXXFLAGS) $(WARNINGS) $(C_WARNINGS) $(CPPFLAGS) $(NVCCFLAGS) $(GENCODE) \
    $(LDLIBS) $(TEST_LIBS)
$(O)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(FLAGS)' | cmp -s - $@ || echo '$(FLAGS)' > $@

$(O)/train: $(OBJECTS)
	@echo "  link    $@"
	@$(LINK) -fopenmp -o $@ $(OBJECTS) $(LDLIBS)

$(O)/%.o: %.c $(O)/flags
	@mkdir -p $(@D)
	@echo "  compile $<"
	@$(CC) $(CFLAGS) $(WARNINGS) $(C_WARNINGS) $(CPPFLAGS) $(if $(filter tests/%,$<),$(TEST_CFLAGS)) \
	    -MMD -MP -c -o $@ $<

# The log of a run says what the program was built from.
GIT_VERSION := $(or $(shell git describe --always --dirty --abbrev=10 2>/dev/null),unknown)
$(O)/git: FORCE
	@mkdir -p $(@D)
	@echo '$(GIT_VERSION)' | cmp -s - $@ || echo '$(GIT_VERSION)' > $@
$(O)/model/machine.o: $(O)/git
$(O)/model/machine.o: private CPPFLAGS += -DBUILD_GIT='"$(GIT_VERSION)"' -DBUILD_FLAGS='"$(strip $(CC) $(CFLAGS))"'

$(O)/%.cpp.o: %.cpp $(O)/flags
	@mkdir -p $(@D)
	@echo "  compile $<"
	@$(CXX) $(CXXFLAGS) $(WARNINGS) -Wno-missing-field-initializers $(CPPFLAGS) -DCUDNN_FRONTEND_SKIP_JSON_LIB \
	    -MMD -MP -c -o $@ $<

# What ptxas says of registers, spills and wgmma is kept beside the object for tests/check_cuda_build.sh.
$(O)/%.cu.o: %.cu $(O)/flags
	@mkdir -p $(@D)
	@echo "  compile $<"
	@$(NVCC) $(NVCCFLAGS) $(if $(filter %_sm90.cu,$<),$(SM90),$(GENCODE)) $(CPPFLAGS) \
	    $(if $(filter tests/%,$<),$(TEST_CFLAGS)) -MMD -MP -MF $(@:.o=.d) -c -o $@ $< >$(@:.o=.log) 2>&1 \
	    || { cat $(@:.o=.log); exit 1; }
	@grep -E 'warning|C75[0-9][0-9]' $(@:.o=.log) || true

$(O)/libcoda.a: $(LIBRARY)
	@rm -f $@ && ar rcs $@ $^

$(TESTS): $(O)/tests/%: $(O)/tests/%.o $(LINKED)
	@echo "  link    $@"
	@$(LINK) -fopenmp -o $@ $^ $(LDLIBS) $(TEST_LIBS)

$(EMULATED): tests/test_mainloop.cpp $(O)/flags
	@mkdir -p $(@D)
	@echo "  compile $<"
	@$(CXX) -std=gnu++17 -O2 -g $(WARNINGS) -Wno-unknown-pragmas -Wno-missing-field-initializers \
	    -Itests/emulated -I. -MMD -MP -o $@ $<

# This test counts what a step asks of the host.
$(O)/tests/gpu/test_gpu_model: COUNTED := $(addprefix -Wl$(comma)--wrap=, cudaMalloc cudaMallocAsync cudaHostAlloc \
    cudaMallocHost cudaDeviceSynchronize cudaStreamSynchronize cudaEventSynchronize cudaMemcpy)

$(O)/tests/gpu/%: $(O)/tests/gpu/%.o $(GPU_HELPERS) $(LINKED)
	@echo "  link    $@"
	@$(LINK) -fopenmp $(COUNTED) -o $@ $^ $(LDLIBS) $(TEST_LIBS)

$(O)/tests/gpu/%: $(O)/tests/gpu/%.cu.o $(GPU_HELPERS) $(LINKED)
	@echo "  link    $@"
	@$(LINK) -fopenmp -o $@ $^ $(LDLIBS) $(TEST_LIBS)

-include $(OBJECTS:.o=.d) $(HELPERS:.o=.d) $(GPU_HELPERS:.o=.d) $(TESTS:=.d) $(EMULATED:=.d)
-include $(foreach program,$(GPU_TESTS) $(GPU_BENCHES),$(program).d $(program).cu.d)

# ---- what one asks for -----------------------------------------------------------------------------

setup:
	@rm -f build/*.mk
	@$(MAKE) --no-print-directory $(DEPS_MK) $(if $(WITH_CUDA),$(CUDA_MK))

demo: train
	@scripts/demo.sh

tests: $(TESTS) $(EMULATED)
cuda-objects: $(O)/train $(GPU_TESTS) $(GPU_BENCHES)

test: train $(TESTS) $(EMULATED)
	@NVCC='$(NVCC)' CUDA='$(CUDA)' scripts/run_tests.sh $(TESTS) $(EMULATED) $(wildcard tests/check_*.sh tests/test_*.py)

test-gpu: train $(GPU_TESTS)
	@$(if $(WITH_CUDA),,echo "make test-gpu needs a CUDA toolkit: none was found" >&2; exit 1;) \
	TEST_TIMEOUT=$${TEST_TIMEOUT:-1200} scripts/run_tests.sh $(GPU_TESTS) $(wildcard tests/gpu/*.sh tests/gpu/*.py)

# Whole steps of two layers at three widths. The finer measurements take arguments: each says which at its top.
bench: train $(if $(WITH_CUDA),$(GPU_BENCHES))
	@for config in width_1b width_7b width_70b; do ./train bench configs/$$config.json || exit 1; done
	@$(if $(WITH_CUDA),echo "built for finer measurements:" $(GPU_BENCHES))

sass: $(OBJECTS)
	@test -n "$(K)" || { echo "usage: make sass K=part-of-a-kernel-name" >&2; exit 2; }
	@NVCC='$(NVCC)' scripts/sass.sh "$(K)" $(filter %.cu.o,$(OBJECTS))

clean:
	rm -rf build/cpu build/cuda build/variant build/sass train

distclean: clean
	rm -rf build
