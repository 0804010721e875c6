//! The choice of the chunk of memory that is used next, and of the memory that is returned to the system: bookkeeping
//! over addresses.
//!
//! Owns: unused runs and chunks, and the order of their use. Does not own: mapping and giving back (`memory`); it
//! touches no memory.
//!
//! A run is `RUN_BYTES` at a multiple of that, cut into chunks of one class. Memory is returned to the system, and
//! moved from one class to another, as a whole run of which nothing is in use, oldest first, so that its huge pages
//! stay whole: direct I/O to and from small pages has less than half the rate, and a new page costs many times as much
//! as its use. Only if the kept memory beyond the bound is scattered over runs in use, single chunks are returned, of
//! the class that was least recently needed.
//!
//! Chunks are taken from the run to which a chunk was returned last. That chunk may still be in the processor's cache,
//! and chunks that are taken together are adjacent, so that they become free together.
//!
//! Invariants: a chunk is in use, being returned, or in `used` or `fresh` of its run. A run is in `runs` or in `bare`,
//! or its caller is moving it between the two.

use super::{CHUNKS_KEPT_BYTES, CLASSES, RUN_BYTES, chunk_bytes};
use std::collections::{BTreeMap, BTreeSet};

/// Each `decay` returns this part of the unused memory beyond the minimum.
const DECAY: usize = 8;
/// Calls of `decay` in a stretch. Memory that was needed in this stretch or the previous one stays.
const STRETCH: usize = 12;

/// A place in memory.
pub(super) type Address = usize;

/// Chunks of one size.
#[derive(Default)]
struct Class {
    /// Runs with used chunks by their order, and how many such chunks.
    with_used: BTreeMap<u64, Address>,
    used: usize,
    /// Runs with fresh chunks.
    with_fresh: BTreeSet<Address>,
    /// The minimum of `used` in this interval of `decay`s and in the previous one: this many chunks were not needed.
    least: [usize; 2],
    /// When it was asked for a chunk last, in events.
    asked: u64,
}

impl Class {
    fn note_taken(&mut self) {
        self.least = self.least.map(|least| least.min(self.used));
    }
}

struct Run {
    class: usize,
    /// Touched chunks that are not in use; chunks of zeros, never touched or returned to the system. One bit for each
    /// chunk.
    used: u64,
    fresh: u64,
    /// When a chunk came back last, in events and in `decay`s.
    order: u64,
    since: usize,
}

impl Run {
    /// No chunk is in use or being returned, and some were touched.
    fn is_idle(&self) -> bool {
        self.used != 0 && self.used | self.fresh == all_chunks(self.class)
    }
}

/// Memory to be returned to the system, which is not available meanwhile: then call `Store::gave_back`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GiveBack {
    pub(super) at: Address,
    pub(super) bytes: usize,
    /// The class of a single chunk; nothing for a run.
    chunk: Option<usize>,
}

impl GiveBack {
    /// A whole run.
    pub(super) fn run(at: Address) -> GiveBack {
        GiveBack { at, bytes: RUN_BYTES, chunk: None }
    }
}

/// A chunk that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    pub(super) at: Address,
    /// All of it is zero.
    pub(super) is_zero: bool,
}

pub(super) struct Store {
    classes: [Class; CLASSES],
    runs: BTreeMap<Address, Run>,
    /// Runs that were returned.
    bare: Vec<Address>,
    /// Runs that are idle, by their order.
    idle: BTreeMap<u64, Address>,
    /// Touched bytes that are not in use, and their bound independent of the use.
    kept: usize,
    kept_max: usize,
    /// Bytes of chunks in use, and the bound for them together with kept ones, if that permits more.
    out: usize,
    held_max: usize,
    events: u64,
    decays: usize,
}

fn run_of(at: Address) -> Address {
    at & !(RUN_BYTES - 1)
}

/// A bit for each chunk of a run.
fn all_chunks(class: usize) -> u64 {
    u64::MAX >> (u64::BITS as usize - RUN_BYTES / chunk_bytes(class))
}

fn bit_of(class: usize, at: Address) -> u64 {
    1 << ((at - run_of(at)) / chunk_bytes(class))
}

/// The first chunk of a set.
fn first(class: usize, run: Address, set: u64) -> Address {
    run + set.trailing_zeros() as usize * chunk_bytes(class)
}

impl Store {
    pub(super) fn new() -> Store {
        Store {
            classes: Default::default(),
            runs: BTreeMap::new(),
            bare: Vec::new(),
            idle: BTreeMap::new(),
            kept: 0,
            kept_max: CHUNKS_KEPT_BYTES,
            out: 0,
            held_max: 0,
            events: 0,
            decays: 0,
        }
    }

    pub(super) fn keep_bytes(&mut self, max: usize, held: usize) {
        (self.kept_max, self.held_max) = (max.max(CHUNKS_KEPT_BYTES), held);
    }

    /// Returns how many touched bytes may be kept for reuse now.
    fn bound(&self) -> usize {
        self.kept_max.max(self.held_max.saturating_sub(self.out))
    }

    fn run(&mut self, at: Address) -> &mut Run {
        self.runs.get_mut(&run_of(at)).expect("a chunk has a run")
    }

    /// A chunk of a class; `None` if a new run is needed. `zero`: zeroed memory is preferred to used memory. After this
    /// call `excess` has to be called.
    pub(super) fn take(&mut self, class: usize, zero: bool) -> Option<Taken> {
        let fresh = if zero { self.take_fresh(class) } else { None };
        let taken = fresh.or_else(|| {
            if self.classes[class].used == 0 {
                // Memory that another class has touched is available; fresh memory would have to come from the system.
                self.convert(class);
            }
            self.classes[class].asked = self.events;
            if let Some((_, &run)) = self.classes[class].with_used.last_key_value() {
                return Some(Taken { at: self.take_used(class, run), is_zero: false });
            }
            if self.classes[class].with_fresh.is_empty()
                && let Some(run) = self.bare.pop()
            {
                self.add(class, run);
            }
            self.take_fresh(class)
        })?;
        self.out += chunk_bytes(class);
        Some(taken)
    }

    fn take_fresh(&mut self, class: usize) -> Option<Taken> {
        let at = *self.classes[class].with_fresh.first()?;
        let run = self.run(at);
        let chunk = first(class, at, run.fresh);
        run.fresh &= run.fresh - 1;
        let (none_left, order) = (run.fresh == 0, run.order);
        self.idle.remove(&order);
        if none_left {
            self.classes[class].with_fresh.remove(&at);
        }
        Some(Taken { at: chunk, is_zero: true })
    }

    /// The first used chunk of a run that has some.
    fn take_used(&mut self, class: usize, at: Address) -> Address {
        let run = self.run(at);
        let chunk = first(class, at, run.used);
        run.used &= run.used - 1;
        let (none_left, order) = (run.used == 0, run.order);
        self.idle.remove(&order);
        let chunks = &mut self.classes[class];
        if none_left {
            chunks.with_used.remove(&order);
        }
        chunks.used -= 1;
        chunks.note_taken();
        self.kept -= chunk_bytes(class);
        chunk
    }

    /// A new run of zeros, at a multiple of `RUN_BYTES`.
    pub(super) fn add(&mut self, class: usize, run: Address) {
        let order = self.next_event();
        self.runs.insert(run, Run { class, used: 0, fresh: all_chunks(class), order, since: 0 });
        self.classes[class].with_fresh.insert(run);
    }

    /// Touched bytes that are unused.
    pub(super) fn kept(&self) -> usize {
        self.kept
    }

    /// Bytes of chunks in use.
    pub(super) fn in_use(&self) -> usize {
        self.out
    }

    /// Returns whether a run that was touched ahead of its use may be added, so that `goal` bytes are kept, and never
    /// more than the bound.
    pub(super) fn wants_touched(&self, goal: usize) -> bool {
        self.kept + RUN_BYTES <= goal.min(self.bound())
    }

    /// A run whose memory was touched ahead of its use, at a multiple of `RUN_BYTES`. It is treated as if its chunks
    /// had been used: the first request for memory gets it, whatever its class.
    pub(super) fn add_touched(&mut self, run: Address) {
        let (class, order, since) = (CLASSES - 2, self.next_event(), self.decays);
        let used = all_chunks(class);
        self.runs.insert(run, Run { class, used, fresh: 0, order, since });
        self.idle.insert(order, run);
        let chunks = &mut self.classes[class];
        chunks.with_used.insert(order, run);
        chunks.used += used.count_ones() as usize;
        self.kept += used.count_ones() as usize * chunk_bytes(class);
    }

    /// A run of zeros that was returned, for `add_touched`.
    pub(super) fn take_bare(&mut self) -> Option<Address> {
        self.bare.pop()
    }

    fn next_event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    /// Called when a chunk is returned to the store. After this call `excess` has to be called.
    pub(super) fn keep(&mut self, class: usize, at: Address) {
        let (order, since) = (self.next_event(), self.decays);
        let run = self.run(at);
        let before = std::mem::replace(&mut run.order, order);
        run.since = since;
        run.used |= bit_of(class, at);
        if run.is_idle() {
            self.idle.insert(order, run_of(at));
        }
        let chunks = &mut self.classes[class];
        chunks.with_used.remove(&before);
        chunks.with_used.insert(order, run_of(at));
        chunks.used += 1;
        self.kept += chunk_bytes(class);
        self.out -= chunk_bytes(class);
    }

    /// The memory to return to the system now that the chunk at `wanted` was taken or returned: a run, or a chunk of
    /// the least recently needed class.
    pub(super) fn excess(&mut self, wanted: Address) -> Option<GiveBack> {
        if self.kept <= self.bound() {
            return None;
        }
        if let Some((run, _)) = self.oldest_idle().filter(|(run, _)| *run != run_of(wanted)) {
            return Some(self.give_back_run(run));
        }
        let with_used = (0..CLASSES).filter(|&class| self.classes[class].used > 0);
        let coldest = with_used.min_by_key(|&class| self.classes[class].asked)?;
        Some(give_back_chunk(coldest, self.take_oldest(coldest)?))
    }

    fn give_back_run(&mut self, run: Address) -> GiveBack {
        self.remove(run);
        GiveBack::run(run)
    }

    /// Called when the content of the memory is zero now.
    pub(super) fn gave_back(&mut self, what: GiveBack) {
        let Some(class) = what.chunk else {
            self.bare.push(what.at);
            return;
        };
        let run = self.run(what.at);
        run.fresh |= bit_of(class, what.at);
        let order = run.order;
        if run.is_idle() {
            self.idle.insert(order, run_of(what.at));
        }
        self.classes[class].with_fresh.insert(run_of(what.at));
    }

    /// The run that has been idle for longest, and since which `decay`.
    fn oldest_idle(&self) -> Option<(Address, usize)> {
        let (_, run) = self.idle.first_key_value()?;
        Some((*run, self.runs[run].since))
    }

    /// Forgets a run that is idle; its used chunks.
    fn remove(&mut self, at: Address) -> u64 {
        let Some(run) = self.runs.remove(&at) else { return 0 };
        let used = run.used.count_ones() as usize;
        let chunks = &mut self.classes[run.class];
        chunks.with_used.remove(&run.order);
        chunks.with_fresh.remove(&at);
        chunks.used -= used;
        chunks.note_taken();
        self.idle.remove(&run.order);
        self.kept -= used * chunk_bytes(run.class);
        run.used
    }

    /// Gives a class the run that has been idle for the longest time. The whole run counts as touched.
    fn convert(&mut self, class: usize) {
        let Some((at, since)) = self.oldest_idle() else { return };
        self.remove(at);
        let (order, used) = (self.next_event(), all_chunks(class));
        self.runs.insert(at, Run { class, used, fresh: 0, order, since });
        self.idle.insert(order, at);
        let chunks = &mut self.classes[class];
        chunks.with_used.insert(order, at);
        chunks.used += used.count_ones() as usize;
        self.kept += used.count_ones() as usize * chunk_bytes(class);
    }

    /// The memory to return to the system as time passes: a part of the memory kept beyond 48 MiB that was not needed
    /// lately, or with `all` everything beyond.
    pub(super) fn decay(&mut self, all: bool) -> Vec<GiveBack> {
        self.decays += 1;
        let now = self.decays;
        let mut back = Vec::new();
        let part = |beyond: usize| if all { beyond } else { beyond.div_ceil(DECAY) };
        let least = self.kept - part(self.kept.saturating_sub(CHUNKS_KEPT_BYTES));
        while self.kept > least
            && let Some((run, since)) = self.oldest_idle()
            && (all || now - since >= 2 * STRETCH)
        {
            back.push(self.give_back_run(run));
        }
        let bound = if all { CHUNKS_KEPT_BYTES } else { self.bound() };
        let least = self.kept - part(self.kept.saturating_sub(bound));
        // Small classes come first: the large ones serve direct requests, which are faster with huge pages.
        for class in 0..CLASSES {
            while self.kept > least
                && let Some(at) = self.take_unwanted(class, all)
            {
                back.push(give_back_chunk(class, at));
            }
            if now.is_multiple_of(STRETCH) {
                let chunks = &mut self.classes[class];
                chunks.least = [chunks.used, chunks.least[0]];
            }
        }
        back
    }

    /// The same, of those that were not wanted, or of `all`.
    fn take_unwanted(&mut self, class: usize, all: bool) -> Option<Address> {
        let chunks = &self.classes[class];
        let unwanted = chunks.least[0].min(chunks.least[1]) > 0;
        if all || unwanted { self.take_oldest(class) } else { None }
    }

    /// A used chunk of the run that none came back to for longest.
    fn take_oldest(&mut self, class: usize) -> Option<Address> {
        let chunks = &mut self.classes[class];
        let (_, &run) = chunks.with_used.first_key_value()?;
        chunks.least = chunks.least.map(|least| least.saturating_sub(1));
        Some(self.take_used(class, run))
    }
}

fn give_back_chunk(class: usize, at: Address) -> GiveBack {
    GiveBack { at, bytes: chunk_bytes(class), chunk: Some(class) }
}

#[cfg(test)]
mod tests;
