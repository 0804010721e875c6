//! `Known`: what is known of an inode beside its size, and the same again for hits that take no lock.
//!
//! Owns: the view, times of this mount's own, opens and closes. Does not own: when a view counts (`file`).

use amphi_types::{Advice, Layout, Pattern, Timespec};
use amphi_wire::{Access, InodeView, ReadAdvice};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};

/// A layout in one word: pattern, log2 of the stripe size, count, pool.
fn pack(layout: Layout) -> u64 {
    let shift = u64::from(layout.stripe_size.trailing_zeros());
    layout.pattern as u64 | shift << 8 | u64::from(layout.stripe_count) << 16 | u64::from(layout.pool) << 32
}

fn unpack(word: u64) -> Layout {
    let pattern = match word & 0xff {
        0 => Pattern::GrowingNear,
        1 => Pattern::StripedNear,
        2 => Pattern::Whole,
        3 => Pattern::Growing,
        _ => Pattern::Striped,
    };
    let stripe_size = 1 << (word >> 8 & 31);
    Layout { pattern, stripe_size, stripe_count: (word >> 16) as u16, pool: (word >> 32) as u16 }
}

/// What is known of an inode beside its size.
pub(crate) struct Known {
    pub(crate) view: InodeView,
    /// When `view` was asked for; when it came, if it is of the answer to a change of this mount's own.
    pub(super) at: u64,
    /// When an extended attribute was set last.
    pub(super) xattrs_at: u64,
    /// Time of the last write that is only in the cache, or set explicitly after it.
    pub(crate) mtime: Timespec,
    /// That time is not yet known to be the server's: the cache holds writes with it, or nobody has asked since.
    pub(crate) mtime_local: bool,
    /// `mtime` was set, not that of a write.
    pub(crate) mtime_set: bool,
    /// Time of the latest read that counts; goes with the next close.
    pub(crate) accessed: Option<Timespec>,
    /// The server has not been told of it.
    pub(crate) accessed_due: bool,
    /// Opens that have not been released.
    pub(crate) opens: Vec<Access>,
    /// Closes that wait for write-back.
    pub(crate) closes: Vec<Access>,
    /// Closes that the server has not answered: one that restarts must hear of these opens before it hears the close.
    pub(crate) closing: Vec<Access>,
    /// `Spread` was answered since the last writer closed.
    pub(crate) spread: bool,
}

impl Known {
    /// Of a view that was asked for at `at`.
    pub(super) fn new(view: InodeView, at: u64) -> Known {
        Known {
            mtime: view.attr.mtime,
            spread: false,
            at,
            xattrs_at: 0,
            view,
            mtime_local: false,
            mtime_set: false,
            accessed: None,
            accessed_due: false,
            opens: Vec::new(),
            closes: Vec::new(),
            closing: Vec::new(),
        }
    }

    /// What write-back says of when its bytes were written: nothing, if a time was set since.
    pub(crate) fn write_time(&self) -> Timespec {
        if self.mtime_set { Timespec::default() } else { self.mtime }
    }
}

/// What `Known::view` says, again, and what programs advise, for hits that take no lock.
pub(crate) struct Hints {
    layout_packed: AtomicU64,
    advice: AtomicU8,
    /// How programs of this mount read it, as the last of them has said that has it open: a `ReadAdvice`.
    reads: AtomicU8,
    /// A write takes its capabilities away first.
    pub(super) capability: AtomicBool,
    /// Setuid or setgid, which others than root take away with a write.
    pub(super) set_id: AtomicBool,
    /// The next read asks whether it brings the access time forward. Something has changed since the last one asked.
    pub(crate) atime_due: AtomicBool,
}

impl Hints {
    pub(super) fn new(view: &InodeView) -> Hints {
        Hints {
            layout_packed: AtomicU64::new(pack(view.layout)),
            advice: AtomicU8::new(view.advice.into()),
            reads: AtomicU8::new(ReadAdvice::Normal as u8),
            capability: AtomicBool::new(view.capability),
            set_id: AtomicBool::new(view.attr.has_set_id()),
            atime_due: AtomicBool::new(true),
        }
    }

    /// Takes a view that counts.
    pub(super) fn take(&self, view: &InodeView) {
        self.layout_packed.store(pack(view.layout), Relaxed);
        self.advice.store(view.advice.into(), Relaxed);
        self.capability.store(view.capability, Relaxed);
        self.set_id.store(view.attr.has_set_id(), Relaxed);
    }

    /// How programs of this mount read it, as far as one that has it open has said.
    pub(crate) fn read_advice(&self) -> ReadAdvice {
        match self.reads.load(Relaxed) {
            1 => ReadAdvice::Random,
            2 => ReadAdvice::Sequential,
            3 => ReadAdvice::Once,
            _ => ReadAdvice::Normal,
        }
    }

    /// A program says how it reads.
    pub(crate) fn advise_reads(&self, advice: ReadAdvice) {
        self.reads.store(advice as u8, Relaxed);
    }

    /// What the owner of the file asked of mounts.
    pub(crate) fn advice(&self) -> Advice {
        Advice::try_from(self.advice.load(Relaxed)).unwrap_or_default()
    }

    /// Where the bytes lie.
    pub(crate) fn layout(&self) -> Layout {
        unpack(self.layout_packed.load(Relaxed))
    }
}
