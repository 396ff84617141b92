# One Makefile, not recursive; everything it makes lies under $(B).
#   make | make check | make install DESTDIR= PREFIX= | make uninstall
#   make B=build/asan CFLAGS='-O1 -g -fsanitize=address,undefined' LDFLAGS='-fsanitize=address,undefined' check
B       ?= build
PREFIX  ?= /usr/local
CFLAGS  ?= -O2 -g
VERSION := 0.1.0
NVCC    ?= $(shell command -v nvcc)

ARCH    := $(shell $(CC) -dumpmachine | cut -d- -f1)
PKGS    := jansson libcurl zlib libpcre2-8 libutf8proc
ifneq ($(filter-out clean uninstall,$(or $(MAKECMDGOALS),all)),)
MISSING := $(foreach p,$(PKGS) libedit sqlite3 libssl libcrypto,$(shell pkg-config --exists $p 2>/dev/null || echo $p))
$(if $(strip $(MISSING)),$(error pkg-config does not find: $(strip $(MISSING)); on Debian, scripts/deps installs what is needed))
endif
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS))
PKG_LIBS   := $(shell pkg-config --libs $(PKGS))
# -ffp-contract=off: a sum rounds the same way in every build; the kernels say fma where they mean it.
FLAGS   := -std=c11 -D_GNU_SOURCE -DZSE_VERSION='"$(VERSION)"' -I. $(PKG_CFLAGS) -Wall -Wextra -Werror \
           -Wstrict-prototypes -Wmissing-prototypes -Wshadow -ffp-contract=off -fno-math-errno -pthread \
           $(if $(filter x86_64,$(ARCH)),-DZSE_X86) $(CFLAGS)

PROGRAMS := $(patsubst cmd/%.c,%,$(wildcard cmd/zse-*.c))
LIB   := $(filter-out $(if $(filter x86_64,$(ARCH)),,%_avx2.c %_avx512.c %_amx.c),$(wildcard libcommon/*/*.c)) $(wildcard gpu/stub.c)
CMD   := $(filter-out cmd/zse-%,$(wildcard cmd/*.c))
UNIT  := $(patsubst %.c,$(B)/%,$(wildcard tests/unit/t-*.c))
BINS  := $(addprefix $(B)/,$(PROGRAMS))
OBJS  := $(patsubst %.c,$(B)/%.o,$(LIB) $(CMD) $(addprefix cmd/,$(addsuffix .c,$(PROGRAMS))) $(patsubst $(B)/%,%.c,$(UNIT)))

all: $(BINS)

$(B)/%_avx2.o: SIMD := -mavx2 -mfma -mf16c
$(B)/%_avx512.o: SIMD := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16 -mavx512vbmi -mfma -mf16c
$(B)/%_amx.o: SIMD := -mamx-tile -mamx-int8
$(B)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(FLAGS) $(SIMD) -MMD -MP -c -o $@ $<

$(B)/libzse.a: $(patsubst %.c,$(B)/%.o,$(LIB))
	@rm -f $@
	$(AR) rcs $@ $^

$(B)/zse-chat: EXTRA := -ledit
$(B)/zse-apikey $(B)/zse-audit $(B)/tests/unit/t-access: EXTRA := -lsqlite3 -lcrypto
$(B)/zse-serve $(B)/tests/unit/t-serve: EXTRA := -lssl -lsqlite3 -lcrypto
$(B)/zse-%: $(B)/cmd/zse-%.o $(patsubst %.c,$(B)/%.o,$(CMD)) $(B)/libzse.a
	$(CC) $(CFLAGS) $(LDFLAGS) -pthread -o $@ $^ $(PKG_LIBS) $(EXTRA) -lm

$(B)/tests/unit/t-%: $(B)/tests/unit/t-%.o $(B)/libzse.a
	$(CC) $(CFLAGS) $(LDFLAGS) -pthread -o $@ $^ $(PKG_LIBS) $(EXTRA) -lcmocka -lm

$(B)/tests/bench/%: $(B)/tests/bench/%.o $(B)/libzse.a
	$(CC) $(CFLAGS) $(LDFLAGS) -pthread -o $@ $^ $(PKG_LIBS) -lm

unit: $(UNIT)

check: all $(UNIT)
	B=$(B) tests/run $(UNIT) | tee $(B)/check.tap | tests/lib/show
	tests/lib/count $(B)/check.tap

MAN  := $(wildcard man/*.[157])
install: all
	install -d $(DESTDIR)$(PREFIX)/bin $(DESTDIR)$(PREFIX)/lib $(DESTDIR)$(PREFIX)/share/man/man1 \
	  $(DESTDIR)$(PREFIX)/share/bash-completion/completions $(DESTDIR)$(PREFIX)/share/zsh/site-functions \
	  $(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d
	install -m 755 $(BINS) $(DESTDIR)$(PREFIX)/bin
	install -m 644 $(B)/libzse.a $(DESTDIR)$(PREFIX)/lib
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
	rm -f $(DESTDIR)$(PREFIX)/lib/libzse.a

completions: $(BINS)
	for p in $(BINS); do scripts/make-completions $$p completions || exit 1; done

clean:
	rm -rf $(B)

.PHONY: all unit check completions install uninstall clean
.SECONDARY:
-include $(OBJS:.o=.d) $(wildcard $(B)/tests/bench/*.d)
