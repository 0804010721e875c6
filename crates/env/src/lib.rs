//! The only interface to the outside: disk, network, clock, randomness, spawn.
//!
//! Owns: the traits (`api`), the aligned buffer `Buf`, the production implementation (`real`, on compio) and the
//! simulated one (`sim`, virtual time, faults, one seed). Does not own: framing (`transport`), threads of
//! workers (`sched`), disk structures (`zone`).
//!
//! Invariants: there is one `Env` per thread, and nothing in it is Send. No code above this crate uses std time,
//! threads, files or random hashing (lint-enforced), so the code that runs in production is the code that the simulator
//! crashes. Both implementations pass the suite in `conformance`.

pub mod addr;
mod api;
pub mod buf;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod memory_groups;
pub mod real;
pub mod sim;

pub use api::{Conn, Disk, DiskMode, Ends, Env, IoBuf, Kept, Listener, Load, PeerMemory, Rx, Time, Tx, timeout};
pub use buf::Buf;
pub use real::RealEnv;
pub use sim::{Sim, SimEnv};
