//! `Budget`: memory of payloads on their way to a server, over all of its connections.
//!
//! Owns: the number of bytes under way, the waiting payloads, and the choice of the connection that is cut for others.
//! Does not own: the memory itself, and payloads that have arrived: requests are bounded by the credits of their
//! sessions.
//!
//! A payload takes its memory before its first byte is received, and a sender may be slow. So a few connections that
//! each send most of 64 MiB and then nothing could hold all memory of the machine. Therefore the payloads on their way
//! have a budget, which the threads of a server divide. Payloads that find it used up wait in the order in which they
//! came, and the flow control of their streams makes their senders wait too. A payload on its way only needs bytes of
//! its own stream, so it never waits here for a lock or a disk. While other connections wait, a payload that takes
//! longer than `SLOW_MAX` to arrive loses its connection, and its client sends it again over a new one.
//!
//! Small payloads have a budget of their own, so that a few large ones do not hold up a client that writes a file.

use super::connection::ConnState;
use crate::bell::{Bell, Ending};
use amphi_env::{Env, Time};
use amphi_types::limits::PAYLOAD_MAX;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// Largest payload that counts as small: a batch of small files, a piece of a stream.
const SMALL_MAX: usize = 1 << 20;
/// Budget of small payloads: more bytes than a network has under way.
const SMALL_BYTES: usize = 64 << 20;
/// Budget of larger payloads: three of the largest.
const LARGE_BYTES: usize = 3 * PAYLOAD_MAX;
/// How long the arrival of a payload may take while others wait for its memory: 64 MiB at 32 MiB/s.
const SLOW_MAX: Duration = Duration::from_secs(2);
/// The interval at which a waiting payload checks for such slow ones.
const LOOK: Duration = Duration::from_millis(250);

struct UnderWay {
    bytes: usize,
    since: Time,
    conn: Rc<ConnState>,
}

struct Part {
    free: usize,
    under_way: BTreeMap<u64, UnderWay>,
    /// Payloads that wait, in order.
    waiting: VecDeque<u64>,
}

impl Part {
    fn new(bytes: usize) -> Part {
        Part { free: bytes, under_way: BTreeMap::new(), waiting: VecDeque::new() }
    }
}

struct Inner {
    parts: RefCell<[Part; 2]>,
    bell: Bell,
    last: std::cell::Cell<u64>,
}

/// The budget for payloads on their way.
#[derive(Clone)]
pub(crate) struct Budget(Rc<Inner>);

impl Default for Budget {
    fn default() -> Budget {
        Budget::of_one_of(1)
    }
}

/// Memory of one payload. It is returned when this value is dropped, after the payload has arrived or its connection
/// has ended.
pub(crate) struct Room {
    inner: Rc<Inner>,
    part: usize,
    number: u64,
}

impl Drop for Room {
    fn drop(&mut self) {
        {
            let mut parts = self.inner.parts.borrow_mut();
            let part = &mut parts[self.part];
            if let Some(ended) = part.under_way.remove(&self.number) {
                part.free += ended.bytes;
            }
            part.waiting.retain(|number| *number != self.number);
            if part.waiting.is_empty() {
                return;
            }
        }
        self.inner.bell.ring();
    }
}

impl Budget {
    /// The share of one of this many threads: at least enough for four small payloads and one of the largest size.
    pub(crate) fn of_one_of(threads: usize) -> Budget {
        let small = (SMALL_BYTES / threads.max(1)).max(4 * SMALL_MAX);
        let large = (LARGE_BYTES / threads.max(1)).max(PAYLOAD_MAX);
        let parts = RefCell::new([Part::new(small), Part::new(large)]);
        Budget(Rc::new(Inner { parts, bell: Bell::default(), last: std::cell::Cell::new(0) }))
    }

    /// Takes memory for a payload, as soon as there is some and no earlier payload waits for it.
    pub(crate) async fn take<E: Env>(&self, env: &E, conn: &Rc<ConnState>, bytes: usize) -> Room {
        let part = usize::from(bytes > SMALL_MAX);
        self.0.last.set(self.0.last.get() + 1);
        let room = Room { inner: self.0.clone(), part, number: self.0.last.get() };
        if self.enter(env, conn, &room, bytes) {
            return room;
        }
        self.0.parts.borrow_mut()[part].waiting.push_back(room.number);
        while amphi_env::timeout(env, LOOK, self.0.bell.until(|| self.enter(env, conn, &room, bytes).then_some(())))
            .await
            .is_none()
        {
            self.cut_slow(env.now(), part);
        }
        // The next payload may fit as well.
        self.0.bell.ring();
        room
    }

    fn enter<E: Env>(&self, env: &E, conn: &Rc<ConnState>, room: &Room, bytes: usize) -> bool {
        let part = &mut self.0.parts.borrow_mut()[room.part];
        let is_next = part.waiting.front().is_none_or(|first| *first == room.number);
        if !is_next || part.free < bytes {
            return false;
        }
        part.waiting.retain(|number| *number != room.number);
        part.free -= bytes;
        part.under_way.insert(room.number, UnderWay { bytes, since: env.now(), conn: conn.clone() });
        true
    }

    fn cut_slow(&self, now: Time, part: usize) {
        let parts = self.0.parts.borrow();
        for slow in parts[part].under_way.values().filter(|u| now.since(u.since) >= SLOW_MAX) {
            let why =
                format!("{} bytes did not arrive within {SLOW_MAX:?}, and others wait for their memory", slow.bytes);
            slow.conn.cut.cut(Ending::Violation(why));
        }
    }

    /// Bytes that are in use.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.0.parts.borrow().iter().flat_map(|p| p.under_way.values()).map(|u| u.bytes).sum()
    }
}
