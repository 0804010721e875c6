//! libFuzzer on the reader of traces.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| amphi_fuzzing::traces(bytes));
