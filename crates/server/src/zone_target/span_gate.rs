//! `SpanGate`: order among requests on the same blocks of an object.
//!
//! Owns: which byte spans of which objects are being read, written or cut now. Does not own: locks of clients
//! (`amphi_dlm`): a client's lock permits caching, this gate orders disk operations.
//!
//! The data store plans a change, lets the disk work, and commits. Two concurrent plans on the same block would lose
//! one of the changes, and the blocks of a read must not be freed and reused meanwhile. So changes hold their
//! block-rounded span exclusively, and reads share it. Writes of different bytes may share the blocks at their edges:
//! `edges` orders them there.
//!
//! Invariants: overlapping spans are served first come, first served. A wait that is dropped has no further effect. The
//! number of waiters is bounded by the credits of the sessions.

use crate::zone_target::gate::Hold;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, Ino, ObjectId};
use futures_channel::oneshot;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;

#[derive(Clone, Copy)]
struct Span {
    id: u64,
    /// Whole blocks.
    range: ByteRange,
    hold: Hold,
    /// The bytes of a write that shares its edges.
    bytes: Option<ByteRange>,
}

impl Span {
    fn conflicts(&self, other: &Span) -> bool {
        match (self.bytes, other.bytes) {
            (Some(a), Some(b)) => a.overlaps(&b),
            _ => self.range.overlaps(&other.range) && (self.hold == Hold::Exclusive || other.hold == Hold::Exclusive),
        }
    }
}

#[derive(Default)]
struct Spans {
    held: Vec<Span>,
    waiting: VecDeque<(Span, oneshot::Sender<SpanGuard>)>,
}

#[derive(Default)]
struct Table {
    next: u64,
    objects: BTreeMap<ObjectId, Spans>,
}

/// Spans of all objects of one target.
#[derive(Clone, Default)]
pub struct SpanGate {
    table: Rc<RefCell<Table>>,
}

/// A span that is held. Dropping it admits the next ones.
#[must_use = "dropping the guard lets go of the span"]
pub struct SpanGuard {
    table: Rc<RefCell<Table>>,
    object: ObjectId,
    id: u64,
}

impl SpanGate {
    /// Waits until nothing that conflicts with `range` of `object` is held or was requested earlier. Dropping the
    /// future gives the place in the queue up.
    pub async fn take(&self, object: ObjectId, range: ByteRange, hold: Hold) -> SpanGuard {
        self.enter(object, range, hold, None).await
    }

    /// Works as `take`, for a write of `bytes` that may share the blocks at its edges with other writes
    /// (`SharedBlocks`).
    pub async fn take_bytes(&self, object: ObjectId, bytes: ByteRange) -> SpanGuard {
        self.enter(object, bytes.align_out(BLOCK), Hold::Exclusive, Some(bytes)).await
    }

    async fn enter(&self, object: ObjectId, range: ByteRange, hold: Hold, bytes: Option<ByteRange>) -> SpanGuard {
        assert!(bytes.is_none_or(|b| range.contains(&b)), "{object:?}: {range:?} does not cover {bytes:?}");
        let (receiver, span) = {
            let mut table = self.table.borrow_mut();
            table.next += 1;
            let span = Span { id: table.next, range, hold, bytes };
            let spans = table.objects.entry(object).or_default();
            let free = !spans.held.iter().any(|s| s.conflicts(&span))
                && !spans.waiting.iter().any(|(s, w)| !w.is_canceled() && s.conflicts(&span));
            if free {
                spans.held.push(span);
                (None, span)
            } else {
                let (sender, receiver) = oneshot::channel();
                spans.waiting.push_back((span, sender));
                (Some(receiver), span)
            }
        };
        match receiver {
            None => SpanGuard { table: self.table.clone(), object, id: span.id },
            Some(receiver) => receiver.await.expect("a queued span is granted before its sender is dropped"),
        }
    }

    /// Returns whether a request works or waits on an object of the file.
    pub fn is_busy(&self, ino: Ino) -> bool {
        !self.busy_objects(ino).is_empty()
    }

    /// The objects of the file that a request works or waits on, existing or not.
    pub fn busy_objects(&self, ino: Ino) -> Vec<ObjectId> {
        let of_file = ObjectId { ino, stripe: 0 }..=ObjectId { ino, stripe: u32::MAX };
        self.table.borrow().objects.range(of_file).map(|(id, _)| *id).collect()
    }
}

impl Drop for SpanGuard {
    fn drop(&mut self) {
        let mut granted = Vec::new();
        {
            let mut table = self.table.borrow_mut();
            let Some(spans) = table.objects.get_mut(&self.object) else { return };
            debug_assert!(spans.held.iter().any(|s| s.id == self.id), "a guard's span is held");
            spans.held.retain(|s| s.id != self.id);
            let mut blocked: Vec<Span> = Vec::new();
            let mut still = VecDeque::new();
            while let Some((span, waiter)) = spans.waiting.pop_front() {
                if waiter.is_canceled() {
                    continue;
                }
                if spans.held.iter().chain(&blocked).any(|s| s.conflicts(&span)) {
                    blocked.push(span);
                    still.push_back((span, waiter));
                } else {
                    debug_assert!(!spans.held.iter().any(|s| s.conflicts(&span)), "held spans do not conflict");
                    spans.held.push(span);
                    granted.push((span.id, waiter));
                }
            }
            spans.waiting = still;
            if spans.held.is_empty() && spans.waiting.is_empty() {
                table.objects.remove(&self.object);
            }
        }
        for (id, waiter) in granted {
            // If a waiter has ended, its grant is returned as an error; dropping that gives the grant to the next one.
            drop(waiter.send(SpanGuard { table: self.table.clone(), object: self.object, id }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;
    use futures_util::task::noop_waker;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    const OBJECT: ObjectId = ObjectId { ino: Ino(7), stripe: 0 };
    type Taking = Pin<Box<dyn Future<Output = SpanGuard>>>;

    fn start(gate: &SpanGate, start: u64, end: u64, hold: Hold) -> Taking {
        let gate = gate.clone();
        async move { gate.take(OBJECT, ByteRange::new(start, end), hold).await }.boxed_local()
    }

    fn poll(f: &mut Taking) -> Option<SpanGuard> {
        match f.as_mut().poll(&mut Context::from_waker(&noop_waker())) {
            Poll::Ready(g) => Some(g),
            Poll::Pending => None,
        }
    }

    /// Goal: disjoint spans run together, overlapping ones in order, dropped waits leave nothing.
    #[test]
    fn overlapping_spans_queue() {
        let gate = SpanGate::default();
        let a = poll(&mut start(&gate, 0, 10, Hold::Exclusive)).expect("free");
        let b = poll(&mut start(&gate, 10, 20, Hold::Exclusive)).expect("disjoint");
        let mut c = start(&gate, 5, 15, Hold::Shared);
        assert!(poll(&mut c).is_none());
        let mut d = start(&gate, 14, 16, Hold::Exclusive);
        assert!(poll(&mut d).is_none());
        drop(b);
        assert!(poll(&mut d).is_none(), "d came after c, which still waits for a");
        drop(c);
        drop(a);
        drop(poll(&mut d).expect("c has gone"));
        assert!(!gate.is_busy(OBJECT.ino));
    }
    /// Goal: writes of neighbouring bytes of a block run together, and writes of the same bytes run in order. Readers
    /// and other requests for the block wait.
    #[test]
    fn writes_share_their_edges() {
        let gate = SpanGate::default();
        let write = |start: u64, end: u64| {
            let gate = gate.clone();
            async move { gate.take_bytes(OBJECT, ByteRange::new(start, end)).await }.boxed_local()
        };
        let a = poll(&mut write(100, 5000)).expect("free");
        let b = poll(&mut write(5000, 9000)).expect("other bytes of the block");
        assert!(poll(&mut write(4999, 5001)).is_none(), "bytes of both");
        let mut read = start(&gate, 4096, 8192, Hold::Shared);
        assert!(poll(&mut read).is_none());
        let mut later = write(9000, 9100);
        drop(poll(&mut later).expect("not in a block that the reader waits for"));
        let mut behind = write(8100, 8150);
        assert!(poll(&mut behind).is_none());
        drop((a, b));
        drop(poll(&mut read).expect("both have gone"));
        drop(poll(&mut behind).expect("the reader has gone"));
        assert!(!gate.is_busy(OBJECT.ino));
    }
}
