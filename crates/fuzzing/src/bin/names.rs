//! libFuzzer on the index of names.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| amphi_fuzzing::names(bytes));
