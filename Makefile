# Two commands for newcomers: `make demo` and `make test`. Each does its own set-up.
.PHONY: setup build demo test bench

CARGO_PATH := $(HOME)/.cargo/bin:$(PATH)

setup:
	@scripts/setup

build: setup
	PATH="$(CARGO_PATH)" cargo build --release --locked -p amphi

demo: build
	target/release/amphi demo

test: setup
	PATH="$(CARGO_PATH)" cargo test --locked --workspace

bench: build
	target/release/amphi bench
