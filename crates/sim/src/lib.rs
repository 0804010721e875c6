//! Whole clusters in one deterministic process: the real server and the real client over simulated disks, network and
//! time, with crashes and broken connections, compared with a reference file system.
//!
//! Owns: the reference (`reference`), random programs (`generate`, `perform`), what may be lost in crashes (`survive`),
//! runs of one seed. Does not own: the simulated environment (`amphi_env::sim`).
//!
//! Invariant: a run is a function of its seed, so every failure can be repeated with one command.
#![forbid(unsafe_code)]

pub mod callbacks;
pub mod cluster;
pub mod dice;
pub mod generate;
pub mod hostile;
pub mod kernel;
pub mod linear;
pub mod observe;
pub mod op;
pub mod perform;
pub mod plant;
pub mod program;
pub mod reference;
pub mod run;
mod shards;
pub mod shared;
pub mod survive;
