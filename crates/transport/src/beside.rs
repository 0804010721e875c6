//! Payloads beside the stream: in memory that the client has passed to the server over a Unix socket.
//!
//! Owns: which payloads are passed in memory, the places that a client has named for replies, and what each end may
//! conclude when the other end closes the connection. Does not own: the memory (`env`), frames (`wire`), when
//! connections are made (`link`, `server`). The rules and why they hold: docs/design/shared_memory.md.
//!
//! Invariants: the server copies the payload that a request names, and uses the copy only if the client had not given
//! the connection up when the copy was complete. A client names no memory for a reply again before that reply has come,
//! or the server has closed its end of the connection for which it was named.

use amphi_env::buf::ALIGN;
use amphi_env::{Buf, Conn, Ends, Env, PeerMemory, Rx, Tx};
use amphi_wire::RequestId;
use amphi_wire::frame::{Head, Place};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

/// Shorter payloads are sent in the stream, bytes: a copy through the socket costs less than the care for a place.
/// Buffers below 64 KiB do not lie in memory that can be passed.
pub(crate) const BESIDE_MIN_BYTES: usize = 32 << 10;
/// Bytes that are copied at once; other tasks may run in between.
pub(crate) const COPY_BYTES: usize = 1 << 20;
/// Shortest pause between two checks whether a server has closed its end.
const LOOK_MIN: Duration = Duration::from_millis(1);
const LOOK_MAX: Duration = Duration::from_millis(100);

type EndsOf<E> = <<<E as Env>::Conn as Conn>::Tx as Tx>::Ends;
type MemoryOf<E> = <<<E as Env>::Conn as Conn>::Rx as Rx>::Memory;

/// Bytes from the start of the memory for a place in a frame.
pub(crate) fn at(page: u32, pad: u16) -> u64 {
    u64::from(page) * ALIGN as u64 + u64::from(pad)
}

fn page_and_pad(at: u64) -> Option<(u32, u16)> {
    Some((u32::try_from(at / ALIGN as u64).ok()?, (at % ALIGN as u64) as u16))
}

/// The state of payloads passed in memory on one half of a connection.
pub(crate) enum Beside<E: Env> {
    /// All payloads are in the stream.
    Nothing,
    /// The other end has this process's memory.
    Passed,
    /// This end can use memory of the other end's process.
    Taken(Rc<Taken<E>>),
}

/// Memory that a client has passed to this server for one connection.
pub(crate) struct Taken<E: Env> {
    pub(crate) memory: MemoryOf<E>,
    pub(crate) ends: EndsOf<E>,
    /// The places for replies: for the request of each slot, the first byte and the length.
    rooms: RefCell<BTreeMap<u16, (RequestId, u64, usize)>>,
}

impl<E: Env> Taken<E> {
    pub(crate) fn new(memory: MemoryOf<E>, ends: EndsOf<E>) -> Taken<E> {
        Taken { memory, ends, rooms: RefCell::default() }
    }

    /// The client has named a place for the reply to a request. Returns false if the memory has no such place.
    pub(crate) fn note_room(&self, id: RequestId, at: u64, len: usize) -> bool {
        let is_there = self.memory.has(at, len);
        if is_there {
            self.rooms.borrow_mut().insert(id.slot, (id, at, len));
        }
        is_there
    }

    fn room(&self, id: RequestId, len: usize) -> Option<u64> {
        let rooms = self.rooms.borrow();
        rooms.get(&id.slot).filter(|(of, _, room)| *of == id && len <= *room).map(|(_, at, _)| *at)
    }

    fn forget_room(&self, id: RequestId) {
        let mut rooms = self.rooms.borrow_mut();
        if rooms.get(&id.slot).is_some_and(|(of, ..)| *of == id) {
            rooms.remove(&id.slot);
        }
    }
}

impl<E: Env> Beside<E> {
    /// Says in the header of a frame where its payload lies, if that is not in the stream.
    pub(crate) fn describe(&self, head: &mut Head, payload: &Buf) {
        if payload.len() < BESIDE_MIN_BYTES || head.sealed {
            return;
        }
        let at = match self {
            Beside::Nothing => None,
            Beside::Passed => payload.place(),
            Beside::Taken(taken) => taken.room(head.id, payload.len()),
        };
        if let Some((page, pad)) = at.and_then(page_and_pad) {
            (head.place, head.pad, head.payload_crc) = (Some(Place::At(page)), pad, None);
        }
    }

    /// Says in the header of a request where its reply may be put.
    pub(crate) fn describe_room(&self, head: &mut Head, room: &Buf) {
        if let (Beside::Passed, Some((page, pad))) = (self, room.place().and_then(page_and_pad)) {
            (head.place, head.pad, head.payload_len) = (Some(Place::ForReply(page)), pad, room.len() as u32);
        }
    }

    /// A frame was encoded: the payload of a reply is written to the place that its header names.
    pub(crate) fn carry_out(&self, head: &Head, payload: Option<&Buf>) {
        let Beside::Taken(taken) = self else { return };
        if let (Some(Place::At(page)), Some(payload)) = (head.place, payload) {
            taken.memory.write(at(page, head.pad), payload);
        }
        taken.forget_room(head.id);
    }
}

/// A place for the payload of a reply, if the payload is long enough to be passed in memory, and such memory is
/// available.
pub(crate) fn room_for_reply(pad: u16, len: usize) -> Option<Buf> {
    let fits = (BESIDE_MIN_BYTES..=amphi_types::limits::PAYLOAD_MAX).contains(&len);
    let room = fits.then(|| Buf::scratch_padded(usize::from(pad), len))?;
    room.place().is_some().then_some(room)
}

/// The server's end of a connection over which a client has passed its memory.
#[derive(Clone)]
pub(crate) struct OtherEnd(Rc<dyn Other>);

trait Other {
    fn abandon(&self);
    fn is_closed(&self) -> bool;
}

impl<T: Ends> Other for T {
    fn abandon(&self) {
        Ends::abandon(self);
    }

    fn is_closed(&self) -> bool {
        Ends::is_closed(self)
    }
}

impl OtherEnd {
    pub(crate) fn new(ends: impl Ends) -> OtherEnd {
        OtherEnd(Rc::new(ends))
    }

    /// From now on, whatever the server reads from the memory through this connection is ignored.
    pub(crate) fn abandon(&self) {
        self.0.abandon();
    }
}

/// Memory that was named for replies which did not come. The server may write there until it has closed its end.
pub(crate) struct Lost {
    rooms: Vec<Buf>,
    end: OtherEnd,
}

impl Lost {
    pub(crate) fn new(rooms: Vec<Buf>, end: OtherEnd) -> Lost {
        Lost { rooms, end }
    }

    /// Holds the memory until the server can write there no more.
    pub(crate) async fn outlast<E: Env>(self, env: E) {
        let mut pause = LOOK_MIN;
        while !self.end.0.is_closed() {
            env.sleep(pause).await;
            pause = (pause * 2).min(LOOK_MAX);
        }
    }
}

impl Drop for Lost {
    fn drop(&mut self) {
        if !self.rooms.is_empty() && !self.end.0.is_closed() {
            // The process continues without the task that held the memory, so the memory is never used again.
            std::mem::forget(std::mem::take(&mut self.rooms));
        }
    }
}
