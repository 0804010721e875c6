//! `Gate`: what a connection receives.
//!
//! Owns: the questions that are asked of a frame before its payload comes. Does not own: the answers, but for those of
//! the handshake.

use amphi_env::Buf;
use amphi_wire::frame::FrameKind;
use amphi_wire::{Lane, RequestId};

/// Decides about a frame whose header and body are sound, before its payload is received: where the payload has to be
/// relative to an aligned address, or why the connection ends.
pub(crate) trait Gate {
    /// The right to memory for a payload, dropped when the payload has arrived.
    type Room;

    /// Waits until memory for a payload may be taken.
    fn room(&mut self, bytes: usize) -> impl Future<Output = Self::Room>;

    fn admit(&mut self, kind: FrameKind, lane: Lane, id: RequestId, pad: u16) -> Result<usize, String>;

    /// The memory of this process, as named for the reply to a request, in which the server has put `len` bytes.
    fn placed(&mut self, id: RequestId, _at: u64, _len: usize) -> Result<Buf, String> {
        Err(format!("slot {} number {} has named no memory", id.slot, id.seq))
    }

    /// The most bytes of the body of such a frame that may arrive before it is admitted.
    fn body_max(&self, kind: FrameKind) -> usize {
        kind.body_max()
    }
}

/// Admits nothing but the handshake.
pub(crate) struct HandshakeOnly;

impl Gate for HandshakeOnly {
    type Room = ();

    async fn room(&mut self, _bytes: usize) {}

    fn admit(&mut self, kind: FrameKind, _: Lane, _: RequestId, _: u16) -> Result<usize, String> {
        if kind.is_handshake() { Ok(0) } else { Err(format!("a {kind:?} before the handshake is done")) }
    }

    /// A client before the end of its handshake gets no more memory than a handshake needs.
    fn body_max(&self, kind: FrameKind) -> usize {
        kind.body_max().min(FrameKind::Hello.body_max())
    }
}
