//! The known state of the descriptors of this process: a word for each number for reads, and one for writes.
//!
//! Owns: the words, and when they stop counting. Does not own: finding out what a descriptor is (`identify`).
//!
//! | kind | other bits |
//! |---|---|
//! | 0: nothing is known | 10: reads so far; 52: a stamp |
//! | 1: an open file of a mount | 10: map; 2: board; 16: handle; 32: its generation |
//! | 2: the kernel serves it | 52: a stamp |
//! | 3: as 1, while it is not certain yet that the map is still that of the file; the kernel serves it | as 1 |
//!
//! A word of kind 1 is valid as long as the mount has not raised the generation of the handle, which it does before any
//! close of the handle returns. Functions that change the meaning of a number put a word of kind 0 with a new stamp
//! there. A thread that identifies a number stores the result only in the place of the very word that it has seen
//! before; so a number that was closed and used again meanwhile is identified again. A child of `fork` has the words of
//! its parent, which are valid there as well: its descriptors are the same open files.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

/// Descriptors for which this library serves calls; calls on higher descriptors go to the kernel.
pub(crate) const DESCRIPTORS: usize = 4096;
/// Number of reads after which a descriptor is identified. That costs as much as two reads through a mount; a program
/// that reads a small file reads twice, and then closes it.
const READS_FIRST: u64 = 7;
/// How often that number doubles while mounts answer that they do not share what is read.
const DOUBLED_MAX: u32 = 7;
const READS_SHIFT: u32 = 2;
const READS: u64 = 0x3ff << READS_SHIFT;
const STAMP_SHIFT: u32 = 12;

const KIND: u64 = 3;
const UNKNOWN: u64 = 0;
const SHARED: u64 = 1;
const KERNEL: u64 = 2;
const UNCERTAIN: u64 = 3;

static WORDS: [AtomicU64; DESCRIPTORS] = [const { AtomicU64::new(0) }; DESCRIPTORS];
/// The words for writes: `map` is the place of a ring there.
static WRITERS: [AtomicU64; DESCRIPTORS] = [const { AtomicU64::new(0) }; DESCRIPTORS];
/// The probable position of a descriptor.
static POSITIONS: [AtomicU64; DESCRIPTORS] = [const { AtomicU64::new(0) }; DESCRIPTORS];
/// Descriptors whose large requests are the kernel's, because the file is in no named folder (`direct`).
static OUTSIDE: [AtomicBool; DESCRIPTORS] = [const { AtomicBool::new(false) }; DESCRIPTORS];
static STAMP: AtomicU64 = AtomicU64::new(1);
/// Answers of mounts, one after the other, that they do not share a file.
static UNSHARED: AtomicU32 = AtomicU32::new(0);
/// As `UNSHARED`, for writes.
static UNPOSTED: AtomicU32 = AtomicU32::new(0);
/// Whether posting is turned off.
static POSTS_OFF: AtomicBool = AtomicBool::new(false);
static OFF: AtomicBool = AtomicBool::new(false);

/// Every call goes to the kernel from now on.
pub fn turn_off() {
    OFF.store(true, Relaxed);
}

/// Every write goes to the kernel from now on.
pub fn turn_posts_off() {
    POSTS_OFF.store(true, Relaxed);
}

/// Whether every write goes to the kernel.
#[inline]
pub fn are_posts_off() -> bool {
    POSTS_OFF.load(Relaxed) || is_off()
}

/// Whether every call goes to the kernel.
#[inline]
pub fn is_off() -> bool {
    OFF.load(Relaxed)
}

/// An open file of a mount, decoded from its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shared {
    pub(crate) map: usize,
    pub(crate) board: usize,
    pub(crate) handle: usize,
    pub(crate) generation: u32,
}

impl Shared {
    pub(crate) fn word(self) -> u64 {
        SHARED
            | (self.map as u64 & 0x3ff) << 2
            | (self.board as u64 & 3) << 12
            | (self.handle as u64 & 0xffff) << 14
            | u64::from(self.generation) << 30
    }

    fn of(word: u64) -> Shared {
        Shared {
            map: (word >> 2 & 0x3ff) as usize,
            board: (word >> 12 & 3) as usize,
            handle: (word >> 14 & 0xffff) as usize,
            generation: (word >> 30) as u32,
        }
    }
}

/// The information in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Known {
    /// It is not known yet whether the file is shared.
    Nothing,
    Shared(Shared),
    Kernel,
}

#[inline]
pub(crate) fn word(fd: i32) -> Option<&'static AtomicU64> {
    WORDS.get(usize::try_from(fd).ok()?)
}

/// As `word`, for writes.
#[inline]
pub(crate) fn writer(fd: i32) -> Option<&'static AtomicU64> {
    WRITERS.get(usize::try_from(fd).ok()?)
}

#[inline]
pub(crate) fn position(fd: i32) -> Option<&'static AtomicU64> {
    POSITIONS.get(usize::try_from(fd).ok()?)
}

#[inline]
pub(crate) fn known(word: u64) -> Known {
    match word & KIND {
        UNKNOWN => Known::Nothing,
        SHARED => Known::Shared(Shared::of(word)),
        _ => Known::Kernel,
    }
}

/// One more read of an unidentified descriptor. Returns whether it is time to identify it.
pub(crate) fn note_read(place: &AtomicU64, seen: u64) -> bool {
    note(place, seen, &UNSHARED)
}

/// One more write by an unidentified descriptor. Returns whether it is time to identify it.
pub(crate) fn note_write(place: &AtomicU64, seen: u64) -> bool {
    note(place, seen, &UNPOSTED)
}

fn note(place: &AtomicU64, seen: u64, refused: &AtomicU32) -> bool {
    let first = READS_FIRST << refused.load(Relaxed).min(DOUBLED_MAX);
    if (seen & READS) >> READS_SHIFT >= first {
        return true;
    }
    let _ = place.compare_exchange(seen, seen + (1 << READS_SHIFT), SeqCst, Relaxed);
    false
}

/// Called when a mount has answered whether it shares a file.
pub(crate) fn note_answer(is_shared: bool) {
    count_answer(is_shared, &UNSHARED);
}

/// As `note_answer`, for writes.
pub(crate) fn note_writer_answer(is_shared: bool) {
    count_answer(is_shared, &UNPOSTED);
}

fn count_answer(is_shared: bool, refused: &AtomicU32) {
    if is_shared {
        refused.store(0, Relaxed);
    } else if refused.load(Relaxed) < DOUBLED_MAX {
        refused.fetch_add(1, Relaxed);
    }
}

/// Stores that the kernel serves a descriptor, if its word is still `seen`.
pub(crate) fn learn_foreign(place: &AtomicU64, seen: u64) {
    let now = KERNEL | STAMP.fetch_add(1, Relaxed) << STAMP_SHIFT;
    let _ = place.compare_exchange(seen, now, SeqCst, Relaxed);
}

/// Stores the identity of a descriptor if its word is still `seen`. `is_right` says whether the map is that of the
/// file.
///
/// A thread that uses a map for another file first takes the map, and then looks for words that lead to it. So this
/// function first stores the word, without anybody using it, and then asks. Either the other thread sees the word, or
/// `is_right` sees that the map was taken.
pub(crate) fn learn(place: &AtomicU64, seen: u64, shared: Shared, is_right: impl FnOnce() -> bool) {
    let uncertain = shared.word() & !KIND | UNCERTAIN;
    if place.compare_exchange(seen, uncertain, SeqCst, Relaxed).is_err() {
        return;
    }
    let now = if is_right() { shared.word() } else { unknown() };
    let _ = place.compare_exchange(uncertain, now, SeqCst, Relaxed);
}

fn unknown() -> u64 {
    UNKNOWN | STAMP.fetch_add(1, Relaxed) << STAMP_SHIFT
}

/// Called when a word has stopped counting.
pub(crate) fn doubt(place: &AtomicU64, seen: u64) {
    let _ = place.compare_exchange(seen, unknown(), SeqCst, Relaxed);
}

/// The words that lead to a map stop counting.
pub(crate) fn doubt_map(map: usize) {
    doubt_all(&WORDS, map);
}

/// As `doubt_map`, for the words that lead to a ring.
pub(crate) fn doubt_ring(ring: usize) {
    doubt_all(&WRITERS, ring);
}

fn doubt_all(words: &[AtomicU64], map: usize) {
    for place in words {
        let seen = place.load(SeqCst);
        if matches!(seen & KIND, SHARED | UNCERTAIN) && Shared::of(seen).map == map {
            doubt(place, seen);
        }
    }
}

/// Whether the descriptor was found to be no file of a named folder.
#[inline]
pub(crate) fn is_outside(fd: i32) -> bool {
    usize::try_from(fd).ok().and_then(|fd| OUTSIDE.get(fd)).is_some_and(|place| place.load(Relaxed))
}

/// The descriptor is no file of a named folder. If the number has just changed its meaning, requests of the new file go
/// to the kernel, which is slower and not wrong.
pub(crate) fn note_outside(fd: i32, is_outside: bool) {
    if let Some(place) = usize::try_from(fd).ok().and_then(|fd| OUTSIDE.get(fd))
        && place.load(Relaxed) != is_outside
    {
        place.store(is_outside, Relaxed);
    }
}

/// Called when the number means, or is about to mean, something else.
#[inline]
pub fn forget(fd: i32) {
    note_outside(fd, false);
    for place in word(fd).into_iter().chain(writer(fd)) {
        if place.load(SeqCst) & (KIND | READS) != 0 {
            place.store(unknown(), SeqCst);
        }
    }
}

/// As `forget`, for all numbers from `first` to `last`.
pub fn forget_from(first: u32, last: u32) {
    let last = (last as usize).min(DESCRIPTORS - 1);
    (first as usize..=last).for_each(|fd| forget(fd as i32));
}

/// Whether the kernel serves the descriptor, as far as is known.
#[inline]
pub fn is_known_foreign(fd: i32) -> bool {
    word(fd).is_none_or(|place| place.load(Relaxed) & KIND == KERNEL)
}

/// As `is_known_foreign`, for writes.
#[inline]
pub fn is_known_foreign_writer(fd: i32) -> bool {
    writer(fd).is_none_or(|place| place.load(Relaxed) & KIND == KERNEL)
}
