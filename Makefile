# Two commands for newcomers: `make demo` and `make test`. Each does its own set-up.
.PHONY: setup build preload dist demo test bench mpiio install

CARGO_PATH := $(HOME)/.cargo/bin:$(PATH)

setup:
	@scripts/setup

build: setup
	PATH="$(CARGO_PATH)" cargo build --release --locked -p amphi
	$(MAKE) preload

# What `amphi run` puts in front of programs: target/preload/libamphi_preload.so.
preload: setup
	PATH="$(CARGO_PATH)" cargo build --profile preload --locked -p amphi-preload

demo: build
	target/release/amphi demo

test: setup preload
	PATH="$(CARGO_PATH)" cargo test --locked --workspace

dist: setup
	PATH="$(CARGO_PATH)" cargo build --profile dist --locked -p amphi

bench: dist preload
	target/dist/amphi bench

# The MPI-IO cache for each MPI library that is installed: target/mpiio/libamphi_mpiio_*.so.
mpiio: setup
	PATH="$(CARGO_PATH)" cargo build --release --locked -p amphi-mpiio
	scripts/mpiio target/release/libamphi_mpiio.a target/mpiio

PREFIX ?= /usr/local
# Where mount(8) looks for the helper of a type.
HELPERS ?= /sbin
SHARE := $(DESTDIR)$(PREFIX)/share
install: dist mpiio preload
	install -D target/dist/amphi $(DESTDIR)$(PREFIX)/bin/amphi
	install -d $(DESTDIR)$(PREFIX)/lib/amphi
	install -m 755 target/mpiio/libamphi_mpiio_*.so target/preload/libamphi_preload.so $(DESTDIR)$(PREFIX)/lib/amphi
	install -d $(SHARE)/man/man1 $(SHARE)/bash-completion/completions
	target/dist/amphi man > $(SHARE)/man/man1/amphi.1
	target/dist/amphi completions bash > $(SHARE)/bash-completion/completions/amphi
	install -d $(DESTDIR)$(HELPERS)
	for name in mount.fuse.amphi mount.amphi; do ln -sf $(PREFIX)/bin/amphi $(DESTDIR)$(HELPERS)/$$name; done
