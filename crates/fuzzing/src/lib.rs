//! Four properties that a fuzzer attacks. Bytes from the network never panic a receiver. Items of a log never panic the
//! start of a server, its check or an answer. The index of names answers like an ordered map. Bytes of a trace never
//! panic a reader.
//!
//! Owns: the treatment of the bytes that a fuzzer generates. Owns: what is done with the bytes of a fuzzer. `cargo
//! test` takes random ones for a second; `scripts/fuzz` lets libFuzzer search for those that reach new code, for as
//! long as one likes.
//!
//! Checksums would keep a fuzzer from reaching the code under test. So it works on what the checksums of frames, logs
//! and traces protect: the body of a frame with a right sum, items of records that are sealed as the server seals its
//! own, and the content of a block.
#![forbid(unsafe_code)]

mod frames;
mod log_replay;
mod names;
mod traces;

pub use frames::frames;
pub use log_replay::log_replay;
pub use names::names;
pub use traces::traces;
