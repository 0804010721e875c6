//! libFuzzer on what the start of a server does with items of its log.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| amphi_fuzzing::log_replay(bytes));
