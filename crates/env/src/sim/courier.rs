//! `Courier`: a say in what simulated connections carry, for tests that know the messages in the bytes.
//!
//! Owns: the interface. Does not own: the connections (`net`), what the bytes mean. Without a courier bytes arrive as
//! they were sent; one that always answers with what it was given changes nothing, not even the trace.

use crate::Time;

/// One direction of a connection at a moment.
#[derive(Clone, Copy, Debug)]
pub struct Leg<'a> {
    /// The connection; never the same number twice.
    pub conn: u64,
    /// Whether the side that sends has dialled.
    pub dialled: bool,
    /// Node that sends.
    pub from: &'a str,
    /// Node that receives.
    pub to: &'a str,
    /// Virtual time.
    pub now: Time,
}

/// What becomes of bytes.
#[derive(Debug, Default)]
pub struct Carried {
    /// They go on their way now.
    pub bytes: Vec<u8>,
    /// `Courier::due` is to be asked then.
    pub due_at: Option<Time>,
    /// The connection breaks then.
    pub break_at: Option<Time>,
}

/// Decides what arrives of what is sent. It is told nothing of connections that end.
pub trait Courier {
    /// These bytes were sent; for the sender they have left.
    fn take(&mut self, leg: &Leg<'_>, bytes: &[u8]) -> Carried;
    /// A time that it asked for has come, and the connection still is.
    fn due(&mut self, leg: &Leg<'_>) -> Carried;
}
