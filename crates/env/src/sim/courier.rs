//! `Courier`: a say in what simulated connections carry, for tests that know the messages in the bytes.
//!
//! Owns: the interface. Does not own: the connections (`net`), the meaning of the bytes. Without a courier all bytes
//! arrive as they were sent. A courier that always returns its input changes nothing, not even the trace.

use crate::Time;

/// One direction of a connection at some moment.
#[derive(Clone, Copy, Debug)]
pub struct Leg<'a> {
    /// The number of the connection; no number is used twice.
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

/// The fate of bytes that were sent.
#[derive(Debug, Default)]
pub struct Carried {
    /// The bytes that are delivered now.
    pub bytes: Vec<u8>,
    /// `Courier::due` has to be called then.
    pub due_at: Option<Time>,
    /// The connection has to be broken then.
    pub break_at: Option<Time>,
}

/// Decides which of the sent bytes arrive. It is not informed of connections that end.
pub trait Courier {
    /// Called when these bytes were sent. For the sender they have left.
    fn take(&mut self, leg: &Leg<'_>, bytes: &[u8]) -> Carried;
    /// Called when a time that it requested has come, and the connection still exists.
    fn due(&mut self, leg: &Leg<'_>) -> Carried;
}
