//! The state of a mount and its cluster as people and monitoring see it, computed from numbers that both count anyway.
//!
//! Owns: the shape of those numbers (`snapshot`), rates between two looks (`change`), the screen of `amphi top`
//! (`screen`, `terminal`, `report`), busy files (`files`), contention (`contention`), calibrations of a machine
//! (`limits`), findings (`findings`), explanations (`explain`), the page of `amphi top --web` (`page`), and the
//! metrics of `amphi metrics` (`metrics`). Does not own: how the numbers are read, keys and sockets (the `amphi`
//! program).
//!
//! Invariants: no I/O and no clock. Unknown counters are shown under their own names, never lost; absent numbers count
//! as 0, so a newer program can read an older mount.
#![forbid(unsafe_code)]

pub mod calibration;
pub mod change;
pub mod contention;
pub mod explain;
pub mod files;
pub mod findings;
pub mod limits;
pub mod metrics;
pub mod page;
pub mod report;
pub mod screen;
pub mod snapshot;
pub mod terminal;
mod unit;

#[cfg(test)]
mod tests;

pub use change::Change;
pub use findings::Finding;
pub use snapshot::Snapshot;
