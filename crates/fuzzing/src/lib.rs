//! Four properties that a fuzzer attacks: bytes of the network never panic a receiver, items of a log never panic the
//! start of a server, its check or an answer, the index of names answers as an ordered map, and bytes of a trace never
//! panic what reads it.
//!
//! Owns: what is done with a fuzzer's bytes. Does not own: who makes them. `cargo test` takes random ones for a second;
//! `scripts/fuzz` lets libFuzzer search for those that reach new code, for as long as one likes.
//!
//! Checksums would keep a fuzzer in front of the code that is to be tried, so those of frames, logs and traces give it
//! what lies behind them: the body of a frame whose sum is right, items of records that were sealed as the server seals
//! its own, the content of a block.
#![forbid(unsafe_code)]

mod frames;
mod log_replay;
mod names;
mod traces;

pub use frames::frames;
pub use log_replay::log_replay;
pub use names::names;
pub use traces::traces;
