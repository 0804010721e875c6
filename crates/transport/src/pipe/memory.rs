//! Payloads beside the stream, as the two halves of a connection send and receive them.
//!
//! Owns: from which moment on payloads are passed in this way, and the copying of payloads that requests name. Does not
//! own: the rules (`beside`).

use super::{Gate, Inbound, Outbound, SendChannel, StreamRx, StreamTx, gone, lost};
use crate::bell::{Ending, step_aside};
use crate::beside::{self, Beside, OtherEnd, Taken};
use amphi_env::{Buf, Ends as _, Env, PeerMemory as _, Rx as _, Tx as _};
use amphi_wire::frame::{FrameKind, Head, Place};
use amphi_wire::handshake::SignedHello;
use std::io;
use std::rc::Rc;

/// From now on payloads may be in the memory that the client at the other end has passed; if it passed none, nothing
/// changes.
pub(crate) fn take_memory<E: Env>(out: &mut Outbound<E>, inb: &mut Inbound<E>) {
    if let (Outbound::Stream(tx), Inbound::Stream(rx)) = (out, inb)
        && let Some(memory) = rx.rx.memory()
    {
        let taken = Rc::new(Taken::new(memory, tx.tx.ends()));
        (tx.beside, rx.beside) = (Beside::Taken(taken.clone()), Beside::Taken(taken));
    }
}

/// From now on payloads may lie in the part of this process's memory that the server at the other end has. Returns that
/// end.
pub(crate) fn passed_memory<E: Env>(out: &mut Outbound<E>, inb: &mut Inbound<E>) -> Option<OtherEnd> {
    let (Outbound::Stream(tx), Inbound::Stream(rx)) = (out, inb) else { return None };
    (tx.beside, rx.beside) = (Beside::Passed, Beside::Passed);
    Some(OtherEnd::new(tx.tx.ends()))
}

impl<E: Env> Outbound<E> {
    /// Sends the hello, and with it the memory of this process's buffers, if it can be passed; returns whether it was.
    pub(crate) async fn send_with_memory(&mut self, hello: SignedHello) -> Result<bool, Ending> {
        match self {
            Outbound::Stream(tx) if matches!(tx.channel, SendChannel::Off) => {
                let staged = tx.stage(Head::new(FrameKind::Hello), &hello);
                staged.map_err(|e| Ending::Lost(format!("a hello cannot be encoded: {e:?}")))?;
                tx.flush_with_memory().await.map_err(|e| lost(&e))
            }
            _ => self.send(super::Message::Hello(hello)).await.map(|()| false),
        }
    }
}

impl<E: Env> Inbound<E> {
    /// Returns whether the client at the other end has passed memory that can be used.
    pub(crate) fn has_memory(&mut self) -> bool {
        match self {
            Inbound::Stream(rx) => rx.rx.memory().is_some(),
            Inbound::Local(_) => false,
        }
    }

    /// Returns whether the payload of the last message was passed in memory.
    pub(crate) fn was_beside(&self) -> bool {
        matches!(self, Inbound::Stream(rx) if rx.was_beside)
    }
}

impl<E: Env> StreamTx<E> {
    /// Returns whether the other end has memory of this process, so that places for replies can be named.
    pub(crate) fn has_passed_memory(&self) -> bool {
        matches!(self.beside, Beside::Passed)
    }

    /// Sends what was added, and passes the memory of this process's buffers with it if possible; returns whether it
    /// was passed.
    async fn flush_with_memory(&mut self) -> io::Result<bool> {
        let mut head = std::mem::take(&mut self.stage);
        head.set_window(0..self.filled);
        self.filled = 0;
        let (passed, mut head) = self.tx.send_with_memory(head).await;
        head.set_window(0..head.capacity());
        self.stage = head;
        passed
    }
}

impl<E: Env> StreamRx<E> {
    /// The payload of a frame that says where it lies. A server copies it; a client finds it in the memory that it has
    /// named.
    pub(super) async fn beside_stream(
        &self,
        gate: &mut impl Gate,
        head: &Head,
        pad: usize,
    ) -> Result<Option<Buf>, Ending> {
        let foreign = |why: &str| Ending::Violation(format!("a {:?} names memory {why}", head.kind));
        let len = head.payload_len as usize;
        match (&self.beside, head.place) {
            (Beside::Taken(taken), Some(Place::At(page))) if head.kind == FrameKind::Request => {
                let at = beside::at(page, head.pad);
                if !taken.memory.has(at, len) {
                    return Err(foreign("beyond its end"));
                }
                let _room = gate.room(len).await;
                let mut payload = Buf::scratch_padded(pad, len);
                for (n, part) in payload.chunks_mut(beside::COPY_BYTES).enumerate() {
                    if n > 0 {
                        step_aside(1).await;
                    }
                    taken.memory.read(at + (n * beside::COPY_BYTES) as u64, part);
                }
                // A client that has given the connection up may use the memory for something else.
                if taken.ends.is_abandoned() {
                    return Err(gone());
                }
                Ok(Some(payload).filter(|_| len > 0))
            }
            (Beside::Taken(taken), Some(Place::ForReply(page))) => {
                let is_there = taken.note_room(head.id, beside::at(page, head.pad), len);
                if is_there { Ok(None) } else { Err(foreign("for its reply that it does not have")) }
            }
            (Beside::Passed, Some(Place::At(page))) if head.kind == FrameKind::Reply => {
                let placed = gate.placed(head.id, beside::at(page, head.pad), len).map_err(Ending::Violation)?;
                Ok(Some(placed).filter(|_| len > 0))
            }
            _ => Err(foreign("where none was passed")),
        }
    }
}
