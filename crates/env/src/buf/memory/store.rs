//! Which chunk of memory is used next, and which memory goes back: bookkeeping over addresses.
//!
//! Owns: runs and chunks that nobody uses, whose turn it is. Does not own: mapping and giving back (`memory`); it touches no memory.
//!
//! A run is `RUN_BYTES` at a multiple of that, cut into chunks of one class. Memory goes back, and from one class to another, as a whole run
//! of which nothing is in use, oldest first, so that the huge pages it consists of stay whole: direct I/O to and from small pages has less
//! than half the rate, and a page that comes anew costs many times what its use costs.
//! Only where what is kept beyond the bound is scattered over runs in use do single chunks go, of the class that was not asked for longest.
//!
//! Invariants: a chunk is in use, in `used` or in `fresh` of the class of its run; a run is in `runs` or in `bare`, or under way between
//! them with its caller.

use super::{CHUNKS_KEPT_BYTES, CLASSES, RUN_BYTES, chunk_bytes};
use std::collections::{BTreeMap, VecDeque};

/// Each `decay` gives back this part of what is kept beyond and was not wanted.
const DECAY: usize = 8;
/// Calls of `decay` in a stretch: what was wanted in this one or the one before stays.
const STRETCH: usize = 12;

/// A place in memory.
pub(super) type Address = usize;

/// Chunks of one size.
#[derive(Default)]
struct Class {
    /// Touched; used last at the back: that is taken first, since it may still be in a cache of the processor.
    used: VecDeque<Address>,
    /// Zeros, never touched or given back.
    fresh: Vec<Address>,
    /// The fewest there were in `used` in this stretch of `decay`s and in the one before: so many were not wanted.
    least: [usize; 2],
    /// When it was asked for a chunk last, in events.
    asked: u64,
}

impl Class {
    fn note_taken(&mut self) {
        self.least = self.least.map(|least| least.min(self.used.len()));
    }
}

struct Run {
    class: usize,
    /// Chunks in use or being given back, and chunks in `used`.
    out: usize,
    touched: usize,
    /// When a chunk came back last, in events and in `decay`s.
    order: u64,
    since: usize,
}

/// Memory to give back to the system, which nobody finds meanwhile: then `Store::gave_back`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GiveBack {
    pub(super) at: Address,
    pub(super) bytes: usize,
    /// The class of a single chunk; nothing for a run.
    chunk: Option<usize>,
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
    /// Runs that were given back.
    bare: Vec<Address>,
    /// Runs of which nothing is in use and something touched, by their order.
    idle: BTreeMap<u64, Address>,
    /// Touched bytes that nobody uses, and how many there may be whatever is in use.
    kept: usize,
    kept_max: usize,
    /// Bytes of chunks in use, and how many there may be with those kept, if that allows more.
    out: usize,
    held_max: usize,
    events: u64,
    decays: usize,
}

fn run_of(at: Address) -> Address {
    at & !(RUN_BYTES - 1)
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

    /// How many touched bytes may wait now.
    fn bound(&self) -> usize {
        self.kept_max.max(self.held_max.saturating_sub(self.out))
    }

    /// A chunk of a class; nothing if a new run is needed. `zero`: zeros are better than what was used. Then `excess` is to be asked.
    pub(super) fn take(&mut self, class: usize, zero: bool) -> Option<Taken> {
        if zero && let Some(taken) = self.take_fresh(class) {
            return Some(taken);
        }
        if self.classes[class].used.is_empty() {
            // What another class has touched is there; what is fresh would have to come from the system.
            self.convert(class);
        }
        let chunks = &mut self.classes[class];
        chunks.asked = self.events;
        if let Some(at) = chunks.used.pop_back() {
            chunks.note_taken();
            self.kept -= chunk_bytes(class);
            self.leaves(at).touched -= 1;
            return Some(Taken { at, is_zero: false });
        }
        if self.classes[class].fresh.is_empty()
            && let Some(run) = self.bare.pop()
        {
            self.add(class, run);
        }
        self.take_fresh(class)
    }

    fn take_fresh(&mut self, class: usize) -> Option<Taken> {
        let at = self.classes[class].fresh.pop()?;
        self.leaves(at);
        Some(Taken { at, is_zero: true })
    }

    /// A chunk of its run is in use.
    fn leaves(&mut self, at: Address) -> &mut Run {
        let run = self.runs.get_mut(&run_of(at)).expect("a chunk has a run");
        if run.out == 0 {
            self.idle.remove(&run.order);
        }
        run.out += 1;
        self.out += chunk_bytes(run.class);
        run
    }

    /// A chunk of its run is not in use any more.
    fn rests(&mut self, at: Address) {
        let run = self.runs.get_mut(&run_of(at)).expect("a chunk has a run");
        run.out -= 1;
        self.out -= chunk_bytes(run.class);
        if run.out == 0 && run.touched > 0 {
            self.idle.insert(run.order, run_of(at));
        }
    }

    /// A new run of zeros, at a multiple of `RUN_BYTES`.
    pub(super) fn add(&mut self, class: usize, run: Address) {
        self.runs.insert(run, Run { class, out: 0, touched: 0, order: 0, since: 0 });
        self.classes[class].fresh.extend(chunks(class, run).rev());
    }

    /// A chunk comes back. Then `excess` is to be asked.
    pub(super) fn keep(&mut self, class: usize, at: Address) {
        self.events += 1;
        let run = self.runs.get_mut(&run_of(at)).expect("a chunk has a run");
        run.touched += 1;
        (run.order, run.since) = (self.events, self.decays);
        self.rests(at);
        self.kept += chunk_bytes(class);
        self.classes[class].used.push_back(at);
    }

    /// What is to be given back now that the chunk at `wanted` was taken or has come back: a run, or a chunk of the class that was not asked for
    /// longest.
    pub(super) fn excess(&mut self, wanted: Address) -> Option<GiveBack> {
        if self.kept <= self.bound() {
            return None;
        }
        if let Some((run, _)) = self.oldest_idle().filter(|(run, _)| *run != run_of(wanted)) {
            return Some(self.give_back_run(run));
        }
        let with_used = (0..CLASSES).filter(|&class| !self.classes[class].used.is_empty());
        let coldest = with_used.min_by_key(|&class| self.classes[class].asked)?;
        Some(give_back_chunk(coldest, self.take_oldest(coldest)?))
    }

    fn give_back_run(&mut self, run: Address) -> GiveBack {
        self.remove(run);
        GiveBack { at: run, bytes: RUN_BYTES, chunk: None }
    }

    /// The memory is zeros now.
    pub(super) fn gave_back(&mut self, what: GiveBack) {
        match what.chunk {
            Some(class) => {
                self.classes[class].fresh.push(what.at);
                self.out += what.bytes;
                self.rests(what.at);
            }
            None => self.bare.push(what.at),
        }
    }

    /// The run of which nothing was in use for longest, and since which `decay`.
    fn oldest_idle(&self) -> Option<(Address, usize)> {
        let (_, run) = self.idle.first_key_value()?;
        Some((*run, self.runs[run].since))
    }

    /// Forgets a run of which nothing is in use.
    fn remove(&mut self, at: Address) {
        let Some(run) = self.runs.remove(&at) else { return };
        let chunks = &mut self.classes[run.class];
        let elsewhere = |chunk: &Address| run_of(*chunk) != at;
        chunks.used.retain(elsewhere);
        chunks.fresh.retain(elsewhere);
        chunks.note_taken();
        self.idle.remove(&run.order);
        self.kept -= run.touched * chunk_bytes(run.class);
    }

    /// Gives a class the touched run of another one that was not used for longest.
    fn convert(&mut self, class: usize) {
        let Some((at, since)) = self.oldest_idle() else { return };
        self.remove(at);
        let used = &mut self.classes[class].used;
        let before = used.len();
        used.extend(chunks(class, at).rev());
        let touched = used.len() - before;
        self.kept += touched * chunk_bytes(class);
        self.events += 1;
        self.runs.insert(at, Run { class, out: 0, touched, order: self.events, since });
        self.idle.insert(self.events, at);
    }

    /// What is to be given back as time goes by: a part of what is kept beyond 48 MiB and was not wanted lately, or `all` beyond.
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
        // Small ones first: the large ones serve direct requests, which a huge page makes faster.
        for class in 0..CLASSES {
            while self.kept > least
                && let Some(at) = self.take_unwanted(class, all)
            {
                back.push(give_back_chunk(class, at));
            }
            if now.is_multiple_of(STRETCH) {
                let chunks = &mut self.classes[class];
                chunks.least = [chunks.used.len(), chunks.least[0]];
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

    /// The chunk of a class that was not used for longest.
    fn take_oldest(&mut self, class: usize) -> Option<Address> {
        let chunks = &mut self.classes[class];
        let at = chunks.used.pop_front()?;
        chunks.least = chunks.least.map(|least| least.saturating_sub(1));
        chunks.note_taken();
        self.kept -= chunk_bytes(class);
        self.leaves(at).touched -= 1;
        // It is under way, not in use.
        self.out -= chunk_bytes(class);
        Some(at)
    }
}

fn give_back_chunk(class: usize, at: Address) -> GiveBack {
    GiveBack { at, bytes: chunk_bytes(class), chunk: Some(class) }
}

/// The chunks of a run.
fn chunks(class: usize, run: Address) -> impl DoubleEndedIterator<Item = Address> {
    let size = chunk_bytes(class);
    (0..RUN_BYTES / size).map(move |i| run + i * size)
}

#[cfg(test)]
mod tests;
