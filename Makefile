# Two commands for newcomers: `make demo` and `make test`. Each does its own set-up.
.PHONY: setup build preload capi dist demo test bench mpiio spank install install-files deb

CARGO_PATH := $(HOME)/.cargo/bin:$(PATH)

setup:
	@scripts/setup

build: setup
	PATH="$(CARGO_PATH)" cargo build --release --locked -p amphi
	$(MAKE) preload

# What `amphi run` puts in front of programs: target/preload/libamphi_preload.so.
preload: setup
	PATH="$(CARGO_PATH)" cargo build --profile preload --locked -p amphi-preload

# The C library: target/capi/libamphi.so.1, libamphi.a, include/amphi.h, amphi.pc.
capi: setup
	PATH="$(CARGO_PATH)" cargo build --profile dist --locked -p amphi-capi
	scripts/capi target/dist/libamphi_capi.a target/capi $(PREFIX)

demo: build
	target/release/amphi demo

# There are no tests in doc comments: looking for them in each crate takes a minute. Many end-to-end tests wait for
# deadlines, so one test more than there are cores.
test: setup preload
	PATH="$(CARGO_PATH)" RUST_TEST_THREADS=$$(($$(nproc) + 1)) cargo test --locked --workspace --lib --bins --tests

dist: setup
	PATH="$(CARGO_PATH)" cargo build --profile dist --locked -p amphi

bench: dist preload
	target/dist/amphi bench

# The MPI-IO cache for each MPI library that is installed: target/mpiio/libamphi_mpiio_*.so.
mpiio: setup
	PATH="$(CARGO_PATH)" cargo build --release --locked -p amphi-mpiio
	scripts/mpiio target/release/libamphi_mpiio.a target/mpiio

# The SPANK plugin for the installed Slurm (Debian: libslurm-dev): target/spank/spank_amphi.so. Slurm loads only plugins
# that were built for its own version.
SPANK ?= target/spank
SLURM_INCLUDE ?= /usr/include
spank:
	mkdir -p $(SPANK)
	gcc -std=gnu11 -Wall -Wextra -Werror -O2 -fPIC -shared -DAMPHI_PREFIX='"$(PREFIX)"' -I$(SLURM_INCLUDE) \
	  -o $(SPANK)/spank_amphi.so deploy/slurm/spank_amphi.c

PREFIX ?= /usr/local
# Where mount(8) looks for the helper of a type, systemd for units, and both for users to make.
HELPERS ?= /sbin
UNITS ?= $(PREFIX)/lib/systemd/system
SYSUSERS ?= $(PREFIX)/lib/sysusers.d
ZSH ?= $(PREFIX)/share/zsh/site-functions
SHARE := $(DESTDIR)$(PREFIX)/share
# What is installed, and the program that writes its manual (the same one, unless it is for another machine).
BINARY ?= target/dist/amphi
SHIMS ?= target/mpiio
PRELOAD ?= target/preload
CAPI ?= target/capi
install: dist mpiio preload capi install-files

# The same without building: BINARY, SHIMS, PRELOAD, CAPI and SPANK name what is there.
install-files:
	install -D $(BINARY) $(DESTDIR)$(PREFIX)/bin/amphi
	install -d $(DESTDIR)$(PREFIX)/lib/amphi
	for shim in $(wildcard $(SHIMS)/libamphi_mpiio_*.so); do install -m 644 $$shim $(DESTDIR)$(PREFIX)/lib/amphi || exit; done
	for lib in $(wildcard $(PRELOAD)/libamphi_preload.so); do install -m 644 $$lib $(DESTDIR)$(PREFIX)/lib/amphi || exit; done
	if [ -e $(CAPI)/libamphi.so.1 ]; then \
	  install -d $(DESTDIR)$(PREFIX)/lib/pkgconfig $(DESTDIR)$(PREFIX)/include $(SHARE)/doc/amphi/examples/c && \
	  install -m 644 $(CAPI)/libamphi.so.1 $(CAPI)/libamphi.a $(DESTDIR)$(PREFIX)/lib && \
	  ln -sf libamphi.so.1 $(DESTDIR)$(PREFIX)/lib/libamphi.so && \
	  install -m 644 $(CAPI)/include/amphi.h $(DESTDIR)$(PREFIX)/include && \
	  sed 's|^prefix=.*|prefix=$(PREFIX)|' $(CAPI)/amphi.pc > $(DESTDIR)$(PREFIX)/lib/pkgconfig/amphi.pc && \
	  install -D -m 644 crates/capi/amphi.3 $(SHARE)/man/man3/amphi.3 && \
	  install -m 644 examples/c/* $(SHARE)/doc/amphi/examples/c; fi
	install -d $(SHARE)/man/man1 $(SHARE)/man/man8 $(DESTDIR)$(HELPERS) $(DESTDIR)$(UNITS) $(DESTDIR)$(SYSUSERS)
	$(BINARY) man --dir $(SHARE)/man/man1
	mv $(SHARE)/man/man1/*.8 $(SHARE)/man/man8
	ln -sf mount.fuse.amphi.8 $(SHARE)/man/man8/mount.amphi.8
	install -d $(SHARE)/bash-completion/completions $(DESTDIR)$(ZSH) $(SHARE)/fish/vendor_completions.d
	$(BINARY) completions bash > $(SHARE)/bash-completion/completions/amphi
	$(BINARY) completions zsh > $(DESTDIR)$(ZSH)/_amphi
	$(BINARY) completions fish > $(SHARE)/fish/vendor_completions.d/amphi.fish
	for name in mount.fuse.amphi mount.amphi; do ln -sf $(PREFIX)/bin/amphi $(DESTDIR)$(HELPERS)/$$name; done
	for unit in deploy/systemd/*.service deploy/systemd/*.target; do \
	  sed 's|@BIN@|$(PREFIX)/bin|' $$unit > $(DESTDIR)$(UNITS)/$${unit##*/} || exit; done
	install -m 644 deploy/systemd/amphi.sysusers $(DESTDIR)$(SYSUSERS)/amphi.conf
	install -d $(SHARE)/doc/amphi/examples
	install -m 644 deploy/systemd/mnt-amphi.mount.example $(SHARE)/doc/amphi/examples/mnt-amphi.mount
	install -d $(SHARE)/doc/amphi/examples/prometheus
	install -m 644 deploy/prometheus/* $(SHARE)/doc/amphi/examples/prometheus
	install -d $(SHARE)/doc/amphi/examples/slurm
	install -m 755 deploy/slurm/prolog deploy/slurm/epilog $(SHARE)/doc/amphi/examples/slurm
	install -m 644 deploy/slurm/spank_amphi.c $(SHARE)/doc/amphi/examples/slurm
	install -m 755 deploy/slurm/job $(DESTDIR)$(PREFIX)/lib/amphi/slurm-job
	for lib in $(wildcard $(SPANK)/spank_amphi.so); do install -m 644 $$lib $(DESTDIR)$(PREFIX)/lib/amphi || exit; done

# target/deb/amphi_VERSION_ARCHITECTURE.deb
deb: dist mpiio preload capi
	scripts/deb
