//! The order of steps: a step waits for the steps that it followed on the same name, node, open file or bytes.
//!
//! While a step is planned, each object that it touches adds the steps that touched it before; `take` returns those of
//! them for which its thread must wait. The steps of one thread are in order anyway. A thread that begins waits for the
//! last step that had ended by then, since some thread must have started it.

use crate::plan::places::{NodeId, Place, Slot};
use amphi_trace::spans::Spans;
use std::collections::BTreeMap;

/// A step: thread and number.
type At = (usize, usize);

/// For each thread the last of its steps that touched something.
#[derive(Clone, Debug, Default)]
struct Touched(BTreeMap<usize, usize>);

impl Touched {
    fn add(&mut self, (thread, n): At) {
        self.0.insert(thread, n);
    }
}

/// For a range of bytes: the last write and the reads since, with the ends of these calls.
#[derive(Clone, Debug, Default)]
struct Bytes {
    write: Option<Timed>,
    reads: Vec<Timed>,
}

#[derive(Clone, Copy, Debug)]
struct Timed {
    at: At,
    end_ns: u64,
}

/// A range that the step being planned touches.
#[derive(Clone, Copy, Debug)]
struct Range {
    node: NodeId,
    from: u64,
    to: u64,
    writes: bool,
}

/// Most reads of a range for which a later write waits.
const READS_MAX: usize = 64;

#[derive(Default)]
pub(super) struct Order {
    now_ns: u64,
    wanted: BTreeMap<usize, usize>,
    ranges: Vec<Range>,
    bytes: BTreeMap<NodeId, Spans<Bytes>>,
    /// The last change of a name, and the steps that have used it since.
    changes: BTreeMap<Place, At>,
    uses: BTreeMap<Place, Touched>,
    /// The step that last made or renamed a node, and the steps that have used the node since.
    made: BTreeMap<NodeId, At>,
    node_uses: BTreeMap<NodeId, Touched>,
    /// The step that opened the file, and the steps that have used it.
    slots: BTreeMap<Slot, (At, Touched)>,
    /// Last steps of all threads, and the last one to end, by its end.
    last: Touched,
    ended: BTreeMap<u64, At>,
    barrier: Option<At>,
    is_barrier: bool,
}

impl Order {
    /// Begins the planning of a call that began at this time.
    pub(super) fn begins(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        self.wanted.clear();
        self.ranges.clear();
        self.is_barrier = false;
    }

    fn want(&mut self, (thread, n): At) {
        let known = self.wanted.entry(thread).or_insert(n);
        *known = (*known).max(n);
    }

    fn want_all(&mut self, touched: &Touched) {
        touched.0.iter().for_each(|(thread, n)| self.want((*thread, *n)));
    }

    /// Makes the step wait for the open of this file. Steps that use it at the same time do not wait for each other.
    pub(super) fn uses_slot(&mut self, slot: Slot) {
        if let Some((opened, _)) = self.slots.get(&slot) {
            let opened = *opened;
            self.want(opened);
        }
    }

    pub(super) fn used_slot(&mut self, slot: Slot, at: At) {
        if let Some((_, users)) = self.slots.get_mut(&slot) {
            users.add(at);
        }
    }

    pub(super) fn opened(&mut self, slot: Slot, node: NodeId, at: At) {
        self.slots.insert(slot, (at, Touched::default()));
        self.used_node(node, at);
    }

    /// Makes the step wait for all steps that use the open file.
    pub(super) fn closes_slot(&mut self, slot: Slot) {
        self.uses_slot(slot);
        if let Some((_, users)) = self.slots.get(&slot).cloned() {
            self.want_all(&users);
        }
    }

    pub(super) fn reads(&mut self, node: NodeId, from: u64, to: u64) {
        self.ranges.push(Range { node, from, to, writes: false });
    }

    pub(super) fn writes(&mut self, node: NodeId, from: u64, to: u64) {
        self.ranges.push(Range { node, from, to, writes: true });
    }

    /// Returns whether all of a range was written by a step that is planned.
    pub(super) fn is_written(&mut self, node: NodeId, from: u64, to: u64) -> bool {
        let mut all = true;
        self.bytes.entry(node).or_default().visit(from, to, |_, bytes| all &= bytes.write.is_some());
        all
    }

    pub(super) fn uses_name(&mut self, place: &Place) {
        if let Some(change) = self.changes.get(place).copied() {
            self.want(change);
        }
        self.uses_node(place.0);
    }

    pub(super) fn used_name(&mut self, place: Place, at: At) {
        self.uses.entry(place).or_default().add(at);
    }

    pub(super) fn changes_name(&mut self, place: &Place) {
        self.uses_name(place);
        if let Some(users) = self.uses.get(place).cloned() {
            self.want_all(&users);
        }
    }

    pub(super) fn changed_name(&mut self, place: Place, node: NodeId, at: At) {
        self.uses.remove(&place);
        self.used_node(place.0, at);
        self.changes.insert(place, at);
        self.made.insert(node, at);
    }

    /// Makes the step wait until the node exists.
    pub(super) fn uses_node(&mut self, node: NodeId) {
        if let Some(made) = self.made.get(&node).copied() {
            self.want(made);
        }
    }

    pub(super) fn used_node(&mut self, node: NodeId, at: At) {
        self.node_uses.entry(node).or_default().add(at);
    }

    /// Makes the step wait for all steps that used the node by its path, or names in it.
    pub(super) fn removes(&mut self, node: NodeId) {
        self.uses_node(node);
        if let Some(users) = self.node_uses.get(&node).cloned() {
            self.want_all(&users);
        }
    }

    /// The step waits for all steps before it, and all behind it wait for it.
    pub(super) fn waits_for_all(&mut self) {
        let all = self.last.clone();
        self.want_all(&all);
        self.is_barrier = true;
    }

    /// The steps for which a step of `thread` has to wait.
    pub(super) fn take(&mut self, thread: usize, is_first: bool) -> Vec<At> {
        if let Some(barrier) = self.barrier {
            self.want(barrier);
        }
        if is_first && let Some((_, at)) = self.ended.range(..=self.now_ns).next_back() {
            self.want(*at);
        }
        let now_ns = self.now_ns;
        for Range { node, from, to, writes } in self.ranges.clone() {
            let mut found = Vec::new();
            self.bytes.entry(node).or_default().visit(from, to, |_, bytes| {
                let reads = if writes { &bytes.reads[..] } else { &[] };
                // Calls that overlapped in time had no order.
                found.extend(bytes.write.iter().chain(reads).filter(|t| t.end_ns <= now_ns).map(|t| t.at));
            });
            found.into_iter().for_each(|at| self.want(at));
        }
        self.wanted.iter().filter(|(t, _)| **t != thread).map(|(t, n)| (*t, *n)).collect()
    }

    /// The number of the step that was planned.
    pub(super) fn added(&mut self, at: At, end_ns: u64) {
        self.last.add(at);
        self.ended.insert(end_ns, at);
        // A thread that begins waits only for the last step.
        while self.ended.len() > 4096 {
            self.ended.pop_first();
        }
        if self.is_barrier {
            self.barrier = Some(at);
        }
        for Range { node, from, to, writes } in std::mem::take(&mut self.ranges) {
            let timed = Timed { at, end_ns };
            let spans = self.bytes.entry(node).or_default();
            if writes {
                spans.set(from, to, Bytes { write: Some(timed), reads: Vec::new() });
                continue;
            }
            spans.visit(from, to, |_, bytes| {
                bytes.reads.retain(|read| read.at.0 != at.0);
                if bytes.reads.len() < READS_MAX {
                    bytes.reads.push(timed);
                }
            });
        }
    }
}
