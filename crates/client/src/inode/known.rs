//! `Known`: attributes of an inode except its size, and a copy of some of them for cache hits that take no lock.
//!
//! Owns: the view, times that this mount itself has set, opens and closes. Does not own: whether a view is applied
//! (`file`).

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
        3 => Pattern::GrowingLate,
        4 => Pattern::Striped,
        _ => Pattern::Growing,
    };
    let stripe_size = 1 << (word >> 8 & 31);
    Layout { pattern, stripe_size, stripe_count: (word >> 16) as u16, pool: (word >> 32) as u16 }
}

/// Attributes of an inode except its size.
pub(crate) struct Known {
    pub(crate) view: InodeView,
    /// When the request for `view` was sent, or when the answer arrived if it is the answer to a change by this mount.
    pub(super) at: u64,
    /// When an extended attribute was set last.
    pub(super) xattrs_at: u64,
    /// Time of the last write that is only in the cache, or a later time that was set explicitly.
    pub(crate) mtime: Timespec,
    /// The server may not have that time: the cache contains writes with it, or no request for the attributes was sent
    /// since.
    pub(crate) mtime_local: bool,
    /// `mtime` was set explicitly, and is not the time of a write.
    pub(crate) mtime_set: bool,
    /// Time of the latest read that renews the access time; it is sent with the next close.
    pub(crate) accessed: Option<Timespec>,
    /// The server has not been informed of this time.
    pub(crate) accessed_due: bool,
    /// Opens that have not been released.
    pub(crate) opens: Vec<Access>,
    /// Closes that are not sent before write-back has ended.
    pub(crate) closes: Vec<Access>,
    /// Closes that the server has not answered: a restarted server must get these opens before it gets the closes.
    pub(crate) closing: Vec<Access>,
    /// The request `Spread` was answered since the last writer closed.
    pub(crate) spread: bool,
}

impl Known {
    /// The state for a view whose request was sent at `at`.
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

    /// The modification time that write-back sends with its bytes; `None` if a time was set explicitly since.
    pub(crate) fn write_time(&self) -> Timespec {
        if self.mtime_set { Timespec::default() } else { self.mtime }
    }
}

/// Copies of parts of `Known::view`, and the advice of programs. Cache hits use them without a lock.
pub(crate) struct Hints {
    layout_packed: AtomicU64,
    advice: AtomicU8,
    /// How programs of this mount read the file, as the last one that has it open has advised: a `ReadAdvice`.
    reads: AtomicU8,
    /// A write has to remove the file's capabilities first.
    pub(super) capability: AtomicBool,
    /// The file has setuid or setgid bits, which a write by another user than root removes.
    pub(super) set_id: AtomicBool,
    /// The next read has to check whether it renews the access time. The file has changed since a read last checked
    /// that.
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

    /// Applies a view.
    pub(super) fn take(&self, view: &InodeView) {
        self.layout_packed.store(pack(view.layout), Relaxed);
        self.advice.store(view.advice.into(), Relaxed);
        self.capability.store(view.capability, Relaxed);
        self.set_id.store(view.attr.has_set_id(), Relaxed);
    }

    /// How programs of this mount read the file, as far as one that has it open has advised.
    pub(crate) fn read_advice(&self) -> ReadAdvice {
        match self.reads.load(Relaxed) {
            1 => ReadAdvice::Random,
            2 => ReadAdvice::Sequential,
            3 => ReadAdvice::Once,
            _ => ReadAdvice::Normal,
        }
    }

    /// A program advises how it will read the file.
    pub(crate) fn advise_reads(&self, advice: ReadAdvice) {
        self.reads.store(advice as u8, Relaxed);
    }

    /// The settings that the owner of the file has made for mounts.
    pub(crate) fn advice(&self) -> Advice {
        Advice::try_from(self.advice.load(Relaxed)).unwrap_or_default()
    }

    /// The layout of the bytes over objects.
    pub(crate) fn layout(&self) -> Layout {
        unpack(self.layout_packed.load(Relaxed))
    }
}
