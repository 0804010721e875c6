//! libFuzzer on what a receiver does with bytes of the network.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| amphi_fuzzing::frames(bytes));
