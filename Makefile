# One Makefile, not recursive; everything is built under $(B).
#   make | make check | make install DESTDIR= PREFIX= | make uninstall
#   make dist          a tarball of what is committed, its version from git
#   make GPU=cuda      with the CUDA engine, by nvcc 12.5 or newer (auto: if nvcc and an NVIDIA
#                      driver are installed; none: never)
#   make B=build/asan CFLAGS='-O1 -g -fsanitize=address,undefined' \
#     LDFLAGS='-fsanitize=address,undefined' check
#   make B=build/evex VNNI=evex    the kernels for AVX-VNNI in AVX-512's encoding
#   make B=build/arm64 CC=aarch64-linux-gnu-gcc-12     for ARM64 (scripts/deps --cross arm64)
B       ?= build
PREFIX  ?= /usr/local
LIBDIR  ?= $(PREFIX)/lib
CFLAGS  ?= -O2 -g
# scripts/check makes errors of warnings; other compilers may have more warnings than it knows.
WERROR  ?=
VERSION := 0.1.0
NVCC    ?= $(shell command -v nvcc)
GPU     ?= auto

TRIPLET := $(shell $(CC) -dumpmachine)
ARCH    := $(firstword $(subst -, ,$(TRIPLET)))
# A compiler that is named after its target gets the libraries of that target, from Debian's folder.
CROSS   := $(findstring $(TRIPLET)-,$(CC))
ifeq ($(origin AR),default)
AR      := $(CROSS)ar
endif
ifeq ($(origin LD),default)
LD      := $(CROSS)ld
endif
OBJCOPY ?= $(CROSS)objcopy
PKG_CONFIG ?= $(if $(CROSS),PKG_CONFIG_LIBDIR=/usr/lib/$(TRIPLET)/pkgconfig:/usr/share/pkgconfig )pkg-config
PKGS    := jansson zlib libpcre2-8 libutf8proc
ifneq ($(filter-out clean uninstall dist,$(or $(MAKECMDGOALS),all)),)
NEEDED  := $(PKGS) libcurl libedit sqlite3 libssl libcrypto
MISSING := $(strip $(foreach p,$(NEEDED),$(shell $(PKG_CONFIG) --exists $p 2>/dev/null || echo $p)))
$(if $(MISSING),$(error pkg-config does not find: $(MISSING); on Debian, run scripts/deps$(if $(CROSS), --cross arm64)))
endif
PKG_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(PKGS))
PKG_LIBS   := $(shell $(PKG_CONFIG) --libs $(PKGS))
# -ffp-contract=off: sums round the same way in every build; the kernels call fma explicitly.
# -fdebug-prefix-map: a build in another folder gives the same bytes.
# -fPIE, which most compilers imply: objects of programs are also parts of libzse.so.
PIE     := $(if $(findstring __PIE__,$(shell $(CC) -dM -E -x c /dev/null)),,-fPIE)
FLAGS   := $(addsuffix $() ,$(PIE))-std=c11 -D_GNU_SOURCE -DZSE_VERSION='"$(VERSION)"' -I. $(PKG_CFLAGS) -Wall -Wextra $(WERROR) \
           -Wstrict-prototypes -Wmissing-prototypes -Wshadow -ffp-contract=off -fno-math-errno -pthread \
           $(if $(filter -g%,$(CFLAGS)),-fdebug-prefix-map=$(CURDIR)=.) $(CPPFLAGS) $(CFLAGS)

# The device engine: gpu/backend and the ring of gpu/rt in C, gpu/kernels and the rest of gpu/rt in
# CUDA C++, compiled for a GPU (nvcc) or for the emulation (the C++ compiler).
DEVICE  := $(if $(filter auto,$(GPU)),$(if $(and $(NVCC),$(wildcard /proc/driver/nvidia/version)),cuda,none),$(GPU))
KERNELS := $(wildcard gpu/kernels/*.cu)
BACKEND := $(wildcard gpu/backend/*.c gpu/rt/*.c)
ifeq ($(DEVICE),cuda)
CUDA    := $(patsubst %/bin/,%,$(dir $(realpath $(NVCC))))
SMS     ?= 80 86 89 90
# -fmad=false has the same purpose as -ffp-contract=off.
NVFLAGS := -std=c++17 -O3 -fmad=false -I. -Xcompiler -Wall,-Wextra $(if $(WERROR),-Werror all-warnings) --threads 2
# The front end takes half of the time; it runs once for the oldest architecture before 9.0, and
# once for 9.0 and later, which have dependent launches (gpu/prim/prim.cuh).  *_hopper.cu needs
# more.  The PTX of the later ones is for future GPUs.
COMMA   := ,
SORTED  := $(shell printf '%s\n' $(SMS) | sort -n)
EARLY   := $(filter 7% 8%,$(SORTED))
LATE    := $(filter-out $(EARLY),$(SORTED))
gencode  = -gencode 'arch=compute_$(firstword $1)$(COMMA)code=[$(subst $() $(),$(COMMA),$(strip $(1:%=sm_%) $2))]'
NVCODE  := $(if $(EARLY),$(call gencode,$(EARLY),$(if $(LATE),,compute_$(firstword $(EARLY))))) \
           $(if $(LATE),$(call gencode,$(LATE),compute_$(firstword $(LATE))))
# *_hopper.cu is for compute capability 9.0 alone, the only one with wgmma.
$(B)/gpu/kernels/%_hopper.o: NVCODE := -gencode arch=compute_90a,code=sm_90a
CUDA_OBJS := $(patsubst %.cu,$(B)/%.o,$(KERNELS) gpu/rt/rt.cu)
GPU_LIBS := -L$(CUDA)/lib64 -L$(CUDA)/lib -lcudart_static -lstdc++ -ldl -lrt
endif
# Every memory access of an emulated kernel is checked if the compiler has -fsanitize=thread: its
# calls go to our checks, the sanitizer's library is not linked.
EMUFLAGS := -std=c++17 -O2 -g1 -I. -Wall -Wextra $(WERROR) -Wno-unknown-pragmas -Wno-unknown-warning-option \
            -Wno-tsan -Wno-psabi -ffp-contract=off -fno-math-errno -pthread
# These objects do not depend on CC and CFLAGS: builds may share them (E=build/emulated).
E       ?= $(B)/emulated
EMULATED = $(patsubst %,$(E)/%.o,$(basename $(KERNELS) $(wildcard gpu/rt/*.cc))) \
           $(call objects,$(BACKEND))

PROGRAMS := $(patsubst cmd/%.c,%,$(wildcard cmd/zse-*.c))
# Sources of other architectures.
OTHERS := $(if $(filter x86_64,$(ARCH)),,%_avx2.c %_avxvnni.c %_avx512.c %_amx.c) \
          $(if $(filter aarch64,$(ARCH)),,%_neon.c %_dotprod.c %_i8mm.c)
LIB   := $(filter-out $(OTHERS),$(wildcard libcommon/*/*.c libcommon/*/*/*.c)) \
         $(wildcard gpu/time/*.c) $(if $(filter cuda,$(DEVICE)),$(BACKEND),gpu/stub.c)
# The public library: its functions are thin, and call the library's.
API   := $(wildcard lib/*.c)
CMD   := $(filter-out cmd/zse-%,$(wildcard cmd/*.c))
UNIT  := $(patsubst %.c,$(B)/%,$(wildcard tests/unit/t-*.c))
BINS  := $(addprefix $(B)/,$(PROGRAMS))
# Sources that depend on the architecture.  All other objects are the same for any: a build may use
# those of another build with the same flags (O=build).  Of OWN it makes its own all the same.
O     ?= $(B)
BY_ARCH  := $(shell grep -lwE 'ZSE_X86|ZSE_ARM64' libcommon/*/*.c libcommon/*/*/*.c tests/unit/*.c)
OWN   ?=
HERE  := $(BY_ARCH) $(filter-out $(BY_ARCH),$(wildcard $(OWN)))
objects = $(patsubst %.c,$(B)/%.o,$(filter $(HERE),$1)) $(patsubst %.c,$(O)/%.o,$(filter-out $(HERE),$1))
OBJS  := $(call objects,$(LIB) $(API) $(CMD) $(addprefix cmd/,$(addsuffix .c,$(PROGRAMS))) \
           $(patsubst $(B)/%,%.c,$(UNIT)) $(BACKEND)) $(EMULATED)

all: $(BINS)

# -g1: tracking variables through unrolled loops would double the compile time of these files.
LINES   := $(if $(filter -g,$(CFLAGS)),-g1)
AVX512  := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16 -mavx512vbmi -mfma -mf16c $(LINES)
$(B)/%_avx2.o: SIMD := -mavx2 -mfma -mf16c $(LINES)
$(B)/%_avxvnni.o: SIMD := -mavx2 -mfma -mf16c -mavxvnni $(LINES)
EVEX    := libcommon/kernels/kernels_avxvnni.c libcommon/hw/roofline_avx2.c
$(EVEX:%.c=$(B)/%.o): SIMD += $(if $(filter evex,$(VNNI)),-DZSE_VNNI_EVEX)
$(B)/%_avx512.o: SIMD := $(AVX512)
$(B)/%_amx.o: SIMD := -mamx-tile -mamx-int8
$(B)/libcommon/kernels/%_amx.o: SIMD := $(AVX512) -mamx-tile -mamx-int8
# Before registers are allocated, gcc for ARM64 moves loads of weights ahead of sums, which then do
# not fit into the registers.
IN_ORDER := $(if $(filter aarch64,$(ARCH)),-fno-schedule-insns)
$(B)/libcommon/kernels/kernels_neon.o: SIMD := $(IN_ORDER)
$(B)/%_dotprod.o: SIMD := -march=armv8.2-a+dotprod $(IN_ORDER)
$(B)/%_i8mm.o: SIMD := -march=armv8.2-a+dotprod+i8mm $(IN_ORDER)
# The innermost loops: LOOPS, if given, follows CFLAGS there.
$(patsubst %,$(B)/libcommon/%.o,kernels/% quant/% convert/linalg% convert/gptq%): INNER := $(LOOPS)
# The folders that compute little: OUTER, if given, follows CFLAGS there, and TESTS in unit tests.
OUTSIDE := access history http hub mcp plan rag serve store template tools
$(patsubst %,$(O)/%.o,$(OUTSIDE:%=libcommon/%/%) cmd/%): INNER := $(OUTER)
COMPUTE := kernels gpu gptq half quantize tile
$(patsubst %.c,$(O)/%.o,$(filter-out $(COMPUTE:%=tests/unit/t-%%.c),$(wildcard tests/unit/t-*.c))): INNER := $(TESTS)
ifeq ($(ARCH),x86_64)
$(BY_ARCH:%.c=$(B)/%.o): FLAGS += -DZSE_X86
endif
ifeq ($(ARCH),aarch64)
$(BY_ARCH:%.c=$(B)/%.o): FLAGS += -DZSE_ARM64
endif
define COMPILE
	@mkdir -p $(@D)
	$(CC) $(FLAGS) $(SIMD) $(INNER) -MMD -MP -c -o $@ $<
endef
$(B)/%.o: %.c
	$(COMPILE)
ifneq ($(O),$(B))
$(if $(OWN)$(filter generic,$(ARCH)),,$(error O=$(O) is for ARCH=generic, or with OWN: this build compiles others))
$(O)/%.o: %.c
	$(COMPILE)
endif

# registry.c embeds this file.
$(O)/libcommon/plan/registry.o: libcommon/plan/models.json
# code_cost.c embeds this one.
$(O)/gpu/time/code_cost.o: tests/gpu/code-budgets

# assets.c embeds the files of the web interface, compressed, and a hash of them all, a part
# of their addresses.  The modules of the chat page are joined to one, which saves requests, as does
# the style inside the page; the hashes of what is inside are a part of its policy.
WEB   := $(sort $(wildcard libcommon/serve/web/*.html libcommon/serve/web/*.css libcommon/serve/web/*.js))
CHAT  := $(sort $(filter-out %/page.js,$(wildcard libcommon/serve/web/chat/*.js))) libcommon/serve/web/chat/page.js
$(O)/libcommon/serve/web/assets.o: FLAGS += -DZSE_WEB='"$(O)/web/"'
INSIDE := $(addprefix $(O)/web/,$(addsuffix .hash,style.css start.js))
$(O)/libcommon/serve/web/assets.o: $(WEB:libcommon/serve/%=$(O)/%.gz) $(O)/web/chat.js.gz $(O)/web/version $(INSIDE)
$(O)/web/version: $(WEB) $(CHAT) scripts/join-modules.awk scripts/inline-files.awk
	@mkdir -p $(@D)
	cat $^ | sha256sum | cut -c 1-16 | tr -d '\n' >$@
$(O)/web/chat.js: scripts/join-modules.awk $(CHAT)
	@mkdir -p $(@D)
	awk -f $^ >$@.tmp
	mv $@.tmp $@
$(O)/web/chat.js.gz: $(O)/web/chat.js
	gzip -9n <$< >$@
$(O)/web/index.html: scripts/inline-files.awk $(filter %.html %/style.css %/start.js,$(WEB)) $(O)/web/version
	awk -v version="$$(cat $(O)/web/version)" -f $< libcommon/serve/web/index.html >$@.tmp
	mv $@.tmp $@
$(O)/web/index.html.gz: $(O)/web/index.html
	gzip -9n <$< >$@
# the value of a hash in a policy: SHA-256 in base64; printf makes bytes of octal numbers
$(O)/web/%.hash: libcommon/serve/web/% scripts/octal.awk
	@mkdir -p $(@D)
	printf "$$(sha256sum <$< | awk -f scripts/octal.awk)" | base64 | tr -d '\n' >$@
$(O)/web/%.gz: libcommon/serve/web/% $(O)/web/version
	sed "s/@VERSION@/$$(cat $(O)/web/version)/g" $< | gzip -9n >$@

$(B)/%.o: %.cu
	@mkdir -p $(@D)
	$(NVCC) $(NVFLAGS) $(NVCODE) -MMD -MP -c -o $@ $<

$(E)/%.o: %.cu
	@mkdir -p $(@D)
	$(CXX) -x c++ $(EMUFLAGS) -fsanitize=thread -MMD -MP -c -o $@ $<
$(E)/gpu/rt/%.o: gpu/rt/%.cc
	@mkdir -p $(@D)
	$(CXX) $(EMUFLAGS) -MMD -MP -c -o $@ $<
$(B)/emulated/libgpu.a: $(EMULATED)
	@mkdir -p $(@D)
	@rm -f $@
	$(AR) rcs $@ $^

$(B)/libzse.a: $(call objects,$(LIB)) $(CUDA_OBJS)
	@mkdir -p $(@D)
	@rm -f $@
	$(AR) rcs $@ $^

# The public library (lib/zse.h): the objects that it needs, with no names but its own.  As no other
# name is visible, code for programs (-fPIE) serves as well as -fPIC, and all is compiled only once.
# A change that breaks programs that use the library changes SOVERSION.
SOVERSION := 0
SONAME    := libzse.so.$(SOVERSION)
$(B)/lib/$(SONAME): $(call objects,$(API)) $(B)/libzse.a lib/zse.map
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,$(SONAME) -Wl,--version-script=lib/zse.map -Wl,-z,defs -pthread -o $@ \
	  $(filter %.o %.a,$^) $(PKG_LIBS) $(GPU_LIBS) -lm
$(B)/lib/libzse.so: $(B)/lib/$(SONAME)
	ln -sf $(SONAME) $@
$(B)/lib/libzse.a: $(call objects,$(API)) $(B)/libzse.a
	@mkdir -p $(@D)
	@rm -f $@
	$(LD) -r -o $(B)/lib/zse.o $^
	$(OBJCOPY) --wildcard --keep-global-symbol='zse_*' $(B)/lib/zse.o
	$(AR) rcs $@ $(B)/lib/zse.o
	@rm -f $(B)/lib/zse.o
LIBRARIES := $(B)/lib/libzse.so $(B)/lib/libzse.a
lib: $(LIBRARIES)

# As archives: a program links only the parts that it uses, and needs only their libraries.
$(B)/libcmd.a: $(call objects,$(CMD))
	@mkdir -p $(@D)
	@rm -f $@
	$(AR) rcs $@ $^

$(B)/zse-chat: EXTRA := -ledit -lsqlite3
$(B)/zse-apikey $(B)/zse-audit: EXTRA := -lsqlite3 -lcrypto
$(B)/tests/unit/t-rag: EXTRA := -lsqlite3 -lcrypto
$(filter $(addprefix $(B)/tests/unit/t-,windows keys% audit%),$(UNIT)): EXTRA := -lsqlite3 -lcrypto
$(B)/tests/unit/t-history $(B)/tests/unit/t-foreign: EXTRA := -lsqlite3
$(B)/zse-serve: EXTRA := -lssl -lsqlite3 -lcrypto
$(patsubst %,$(B)/tests/unit/t-%,serve conn conversation job-lines): EXTRA := -lssl -lsqlite3 -lcrypto
$(B)/zse-%: $(O)/cmd/zse-%.o $(B)/libcmd.a $(B)/libzse.a
	$(CC) $(CFLAGS) $(LDFLAGS) -pthread -o $@ $^ $(PKG_LIBS) $(EXTRA) $(GPU_LIBS) -lm

# The same programs with the emulated device, for the tests: --device emulated.
$(B)/emulated/zse-chat: EXTRA := -ledit -lsqlite3
$(B)/emulated/zse-serve: EXTRA := -lssl -lsqlite3 -lcrypto
$(B)/emulated/zse-%: $(O)/cmd/zse-%.o $(call objects,tests/lib/fault.c) $(B)/libcmd.a $(B)/emulated/libgpu.a \
    $(B)/libzse.a
	$(CC) $(CFLAGS) $(LDFLAGS) -pthread -o $@ $^ $(PKG_LIBS) $(EXTRA) $(GPU_LIBS) -lstdc++ -lm

# Tests of the device: emulated in every build; natively with make check-gpu.
$(B)/tests/unit/t-gpu-forward $(B)/tests/gpu/t-gpu-forward $(B)/ptx/t-gpu-forward: EXTRA := -Xlinker --wrap=gpu_choose
$(B)/tests/unit/t-gpu-one-token $(B)/tests/gpu/t-gpu-one-token $(B)/ptx/t-gpu-one-token: \
    EXTRA := -Xlinker --wrap=gpu_n_sms
$(B)/tests/unit/t-gpu-grid: $(E)/tests/gpu/grid.o
$(B)/tests/gpu/t-gpu-grid: $(B)/tests/gpu/grid.o
$(B)/ptx/t-gpu-grid: $(B)/ptx/tests/gpu/grid.o
$(B)/tests/unit/t-gpu-%: $(O)/tests/unit/t-gpu-%.o $(B)/emulated/libgpu.a $(B)/libzse.a
	$(CC) $(CFLAGS) $(LDFLAGS) -pthread -o $@ $^ $(PKG_LIBS) $(EXTRA) -lcmocka $(GPU_LIBS) -lstdc++ -lm
$(B)/tests/gpu/t-gpu-%: $(O)/tests/unit/t-gpu-%.o $(B)/libzse.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -pthread -o $@ $^ $(PKG_LIBS) $(EXTRA) -lcmocka $(GPU_LIBS) -lm

ALLOC := malloc calloc realloc aligned_alloc strdup strndup asprintf vasprintf
$(B)/tests/unit/t-nomem: EXTRA := $(addprefix -Xlinker --wrap=,$(ALLOC))
$(B)/tests/unit/t-sigbus: $(O)/cmd/sigbus.o $(O)/cmd/cli.o $(O)/cmd/help_text.o
$(B)/tests/unit/t-cli: $(O)/cmd/cli.o $(O)/cmd/help_text.o
$(B)/tests/unit/t-wrap: $(O)/cmd/chat_wrap.o
$(B)/tests/unit/t-systemd: $(O)/cmd/serve_systemd.o $(O)/cmd/cli.o $(O)/cmd/help_text.o
$(B)/tests/unit/t-libzse: $(call objects,$(API))
$(B)/tests/unit/t-%: $(O)/tests/unit/t-%.o $(B)/libzse.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -pthread -o $@ $(filter %.o,$^) $(filter %.a,$^) $(PKG_LIBS) $(EXTRA) -lcmocka \
	  $(GPU_LIBS) -lm

$(B)/tests/bench/history $(B)/tests/bench/vectors: EXTRA := -lsqlite3 -lcrypto
$(B)/tests/bench/%: $(O)/tests/bench/%.o $(B)/libzse.a
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -pthread -o $@ $^ $(PKG_LIBS) $(EXTRA) $(GPU_LIBS) -lm

# Libraries that a test preloads (LD_PRELOAD): never built with a sanitizer.
$(B)/tests/lib/%.so: tests/lib/%.c
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE -O2 -Wall -Wextra $(WERROR) -shared -fPIC -o $@ $<

unit: $(UNIT) $(B)/tests/lib/nomem.so $(B)/tests/lib/stuck.so lib

# Compiler warnings for what this build does not compile: tests, fuzz targets, the device's backend,
# and the sources of the objects that another build made.
syntax: $(O)/web/chat.js.gz $(O)/web/version $(INSIDE) $(WEB:libcommon/serve/%=$(O)/%.gz)
	$(CC) $(FLAGS) -DZSE_X86 -DZSE_WEB='"$(O)/web/"' -fsyntax-only \
	  $(if $(filter-out $(B),$(O)),$(filter-out $(HERE),$(LIB) $(API) $(wildcard cmd/*.c))) \
	  $(wildcard tests/unit/t-*.c tests/lib/*.c tests/fuzz/*.c tests/bench/*.c) $(BACKEND)

EMULATED_BINS := $(addprefix $(B)/emulated/,zse-chat zse-bench zse-serve)
emulated: $(EMULATED_BINS)

# The device's tests on nvcc's code, without a GPU: an interpreter of PTX (tests/ptx) replaces the
# CUDA runtime.  The interpreter runs where it was built, so it may use every instruction.
PTX_CODE := arch=compute_90,code=compute_90
$(B)/ptx/gpu/kernels/%_hopper.o: PTX_CODE := arch=compute_90a,code=compute_90a
$(B)/ptx/gpu/kernels/expert_%.o $(B)/ptx/gpu/kernels/one_token.o: PTX_DEFINES := -DFEW_FORMATS
PTXFLAGS := -std=c++20 -O2 -ftree-vectorize -g1 -march=native -I. -I$(dir $(realpath $(NVCC)))../include -Wall -Wextra \
            $(WERROR) -ffp-contract=off -fno-math-errno -pthread
PTX_OBJS := $(patsubst %.cu,$(B)/ptx/%.o,$(KERNELS) gpu/rt/rt.cu)
PTX_RUN  := $(patsubst %.cc,$(B)/ptx/%.o,$(wildcard tests/ptx/*.cc))
PTX_TESTS := $(patsubst tests/unit/%.c,$(B)/ptx/%,$(wildcard tests/unit/t-gpu-*.c))
$(B)/ptx/%.o: %.cu
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -O3 -fmad=false -lineinfo -I. $(PTX_DEFINES) -gencode $(PTX_CODE) --no-compress -MMD -MP -c -o $@ $<
$(B)/ptx/tests/ptx/%.o: tests/ptx/%.cc
	@mkdir -p $(@D)
	$(CXX) $(PTXFLAGS) -MMD -MP -c -o $@ $<
# An archive: a test has the kernels that it uses.
$(B)/ptx/libgpu.a: $(PTX_OBJS) $(PTX_RUN) $(call objects,$(BACKEND))
	@rm -f $@
	$(AR) rcs $@ $^
$(B)/ptx/t-gpu-%: $(O)/tests/unit/t-gpu-%.o $(B)/ptx/libgpu.a $(B)/libzse.a
	$(CXX) $(CFLAGS) -pthread -o $@ $^ $(PKG_LIBS) $(EXTRA) -lcmocka -lm
$(B)/ptx/tests/ptx/t-ptx.o: tests/ptx/t-ptx.cu
	@mkdir -p $(@D)
	$(NVCC) -std=c++17 -O3 -lineinfo -I. -gencode $(PTX_CODE) --no-compress -MMD -MP -c -o $@ $<
$(B)/ptx/t-ptx: $(B)/ptx/tests/ptx/t-ptx.o $(PTX_RUN) $(B)/libzse.a
	$(CXX) $(CFLAGS) -pthread -o $@ $^ -lm
ptx-tests: $(B)/ptx/t-ptx $(PTX_TESTS)
check-ptx: ptx-tests
	for t in $(B)/ptx/t-ptx $(PTX_TESTS); do CMOCKA_MESSAGE_OUTPUT=TAP $$t || exit 1; done

GPU_TESTS := $(patsubst tests/unit/%.c,$(B)/tests/gpu/%,$(wildcard tests/unit/t-gpu-*.c))
gpu-tests: $(GPU_TESTS)
check-gpu: all $(GPU_TESTS)
	@test $(DEVICE) = cuda || { echo "make check-gpu: this is a build without CUDA; make GPU=cuda check-gpu" >&2; exit 1; }
	for t in $(GPU_TESTS); do CMOCKA_MESSAGE_OUTPUT=TAP $$t || exit 1; done

check: all unit emulated
	B=$(B) tests/run $(UNIT) | tee $(B)/check.tap | tests/lib/show
	tests/lib/count $(B)/check.tap

MAN  := $(wildcard man/*.[1357])
install: all lib
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(LIBDIR)/pkgconfig $(DESTDIR)$(PREFIX)/include \
	  $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
	  $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	install -m 755 $(BINS) $(DESTDIR)$(PREFIX)/bin
	install -m 644 lib/zse.h $(DESTDIR)$(PREFIX)/include
	install -m 644 $(B)/lib/libzse.a $(B)/lib/$(SONAME) $(DESTDIR)$(LIBDIR)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libzse.so
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|; s|@REQUIRES@|$(PKGS)|; s|@LIBS@|$(strip $(GPU_LIBS) -lm)|' \
	  lib/zse.pc.in >$(DESTDIR)$(LIBDIR)/pkgconfig/zse.pc
	for m in $(MAN); do install -D -m 644 $$m $(DESTDIR)$(PREFIX)/share/man/man$${m##*.}/$${m##*/}; done
	for p in $(PROGRAMS); do \
	  install -m 644 completions/$$p.bash $(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$p && \
	  install -m 644 completions/_$$p $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_$$p && \
	  install -m 644 completions/$$p.fish $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$$p.fish || exit 1; done

uninstall:
	for p in $(PROGRAMS); do rm -f $(DESTDIR)$(PREFIX)/bin/$$p \
	  $(DESTDIR)$(PREFIX)/share/bash-completion/completions/$$p $(DESTDIR)$(PREFIX)/share/zsh/site-functions/_$$p \
	  $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/$$p.fish; done
	for m in $(MAN); do rm -f $(DESTDIR)$(PREFIX)/share/man/man$${m##*.}/$${m##*/}; done
	rm -f $(DESTDIR)$(PREFIX)/include/zse.h $(DESTDIR)$(LIBDIR)/pkgconfig/zse.pc \
	  $(addprefix $(DESTDIR)$(LIBDIR)/,libzse.a libzse.so $(SONAME))

# The commit's tag v$(VERSION) makes it a release; another commit is named by its number and hash.
dist:
	@v=$(VERSION); \
	git describe --tags --exact-match --match v$$v HEAD >/dev/null 2>&1 || \
	  v=$$v+git$$(git rev-list --count HEAD).$$(git rev-parse --short=8 HEAD); \
	mkdir -p $(B) && git archive --format=tar.gz --prefix=zse-$$v/ -o $(B)/zse-$$v.tar.gz HEAD && \
	  echo $(B)/zse-$$v.tar.gz

completions: $(BINS)
	for p in $(BINS); do scripts/make-completions $$p completions || exit 1; done

clean:
	rm -rf $(B)

.PHONY: all lib unit syntax emulated gpu-tests ptx-tests check-ptx check-gpu check dist completions
.PHONY: install uninstall clean
.SECONDARY:
-include $(OBJS:.o=.d) $(CUDA_OBJS:.o=.d) $(PTX_OBJS:.o=.d) $(PTX_RUN:.o=.d) $(wildcard $(O)/tests/bench/*.d) \
         $(wildcard $(addsuffix /tests/gpu/*.d,$(E) $(B) $(B)/ptx))
