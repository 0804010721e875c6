//! Telemetry: the counters and reports of a mount, and the tunables that can be set while it runs.
//!
//! Owns: counters of the mount, of files, open files and jobs; recordings of calls; the status document; tunables. Does
//! not own: the places where something is counted. Every part of the client counts its own events.

pub(crate) mod call_times;
pub mod calls;
pub(crate) mod jobs;
pub mod record;
pub(crate) mod stats;
pub mod status;
pub(crate) mod tunables;
