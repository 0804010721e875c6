//! `Budget`: memory of payloads that are on their way to a server, over all of its connections.
//!
//! Owns: how many bytes may be under way, who waits for some, and which connection gives its own up. Does not own: the
//! memory, and what becomes of a payload that has arrived: requests are bounded by the credits of their sessions.
//!
//! A payload takes its memory before its first byte is received, and a sender may take its time. So a handful of
//! connections that send most of 64 MiB each and then nothing would hold what the machine has. Here the payloads under
//! way have a budget; those that find it used up wait in the order in which they came, and their senders with them, by
//! the flow control of their streams. Whoever is under way only needs bytes of its own stream to end, so nobody waits
//! here for a lock or a disk. While somebody waits, a payload that has been under way for `SLOW_MAX` costs its
//! connection: its client sends it again over a new one.
//!
//! Small payloads have a part of their own, so that a few large ones hold nobody up who writes a file.

use super::connection::ConnState;
use crate::bell::{Bell, Ending};
use amphi_env::{Env, Time};
use amphi_types::limits::PAYLOAD_MAX;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

/// Bytes of a payload that counts as small: a batch of small files, a piece of a stream.
const SMALL_MAX: usize = 1 << 20;
/// Bytes of small payloads under way: more than a network has on its way.
const SMALL_BYTES: usize = 64 << 20;
/// Bytes of larger ones: three of the largest.
const LARGE_BYTES: usize = 3 * PAYLOAD_MAX;
/// How long a payload may be under way while others wait for its memory: 64 MiB over a network of 32 MiB/s.
const SLOW_MAX: Duration = Duration::from_secs(2);
/// How often who waits looks for such.
const LOOK: Duration = Duration::from_millis(250);

struct UnderWay {
    bytes: usize,
    since: Time,
    conn: Rc<ConnState>,
}

struct Part {
    free: usize,
    under_way: BTreeMap<u64, UnderWay>,
    /// Who waits, in order.
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

/// Memory of payloads under way.
#[derive(Clone)]
pub(crate) struct Budget(Rc<Inner>);

impl Default for Budget {
    fn default() -> Budget {
        let parts = RefCell::new([Part::new(SMALL_BYTES), Part::new(LARGE_BYTES)]);
        Budget(Rc::new(Inner { parts, bell: Bell::default(), last: std::cell::Cell::new(0) }))
    }
}

/// Memory of one payload; its drop gives it back, when the payload has arrived or its connection has ended.
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
    /// Takes memory for a payload, as soon as there is some and nobody who came before waits for it.
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
        // The next one may fit as well.
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

    /// Bytes that are taken.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> usize {
        self.0.parts.borrow().iter().flat_map(|p| p.under_way.values()).map(|u| u.bytes).sum()
    }
}
