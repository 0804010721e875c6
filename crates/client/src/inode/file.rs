//! `Inode`: a file that is in the client's table.
//!
//! Owns: how the attributes in an answer (its view of the inode) are applied, and which uses keep the inode in the
//! table. Does not own: its parts, each of which has a file of its own (`known`, `size`, `fills`, ...), open files
//! (`open_file`), the table of all files (`table`).
//!
//! An `Inode` stays in the table while it is open, has cached bytes, or has a close that was not sent yet. The size is
//! determined by the client in sole mode, while it has changes that the server has not confirmed; otherwise by the
//! latest answer that no change of this mount overlapped. In shared mode other mounts change the size too. Then the
//! size is that of the server's answer joined with the end of this mount's own bytes; `tokens::is_sure` says whether it
//! is still valid.

use super::cluster_locks::{ClusterLocks, stripe_bit};
use super::exported::Exported;
use super::failures::Unreported;
use super::file_group::FileGroup;
use super::fills::Fills;
use super::front_pages::FilePages;
use super::known::{Hints, Known};
use super::range_lock::RangeLock;
use super::size::FileSize;
use super::ticks::tick;
use super::{AskedAt, Failures, Flights, Signal};
use crate::telemetry::stats::FileStats;
use amphi_pagecache::CachedBytes;
use amphi_pagecache::Locality;
use amphi_shm::export::Export;
use amphi_types::{Attr, ByteRange, Consistency, Ino, IoMode, Layout};
use amphi_wire::{Access, InodeView};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};

/// The result of applying a view.
pub(crate) struct Adopted {
    /// The attributes joined with the changes that only this client has.
    pub(crate) attr: Attr,
    /// `Inode::size` is the size in the answer joined with this mount's own changes: this mount made no change between
    /// request and answer.
    pub(crate) taken: bool,
    /// Nothing of this mount has reached the server since the request: joined with the changes that only this mount
    /// has, the view is complete.
    pub(crate) current: bool,
}

/// Uses that keep a file in the table beside its opens.
#[derive(Default)]
pub(crate) struct Life {
    /// Number of uses that are not opens; while there are any, the file stays in the table.
    pub(crate) uses: AtomicU32,
    /// The file has lost its last name, as far as this client knows.
    pub(crate) nameless: AtomicBool,
    /// Opens that no program uses yet: they were made ahead of a program, or kept for the next one.
    pub(crate) idle_opens: AtomicU32,
}

/// A use of a file that is not an open; after it is dropped, `InodeTable::reap` may be called.
pub(crate) struct Use(pub(crate) Arc<Inode>);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.life.uses.fetch_sub(1, SeqCst);
    }
}

/// A file.
pub(crate) struct Inode {
    pub(crate) ino: Ino,
    pub(crate) known: Mutex<Known>,
    pub(crate) hints: Hints,
    pub(crate) size: FileSize,
    pub(crate) life: Life,
    /// The pages of the file that a front end caches.
    pub(crate) pages: FilePages,
    pub(crate) range: RangeLock,
    pub(crate) cached: CachedBytes,
    pub(crate) flights: Mutex<Flights>,
    pub(crate) fills: Fills,
    pub(crate) signal: Signal,
    /// The group lock of the file.
    pub(crate) group: FileGroup,
    pub(crate) locks: ClusterLocks,
    /// Failures of write-back.
    pub(crate) failures: Failures,
    pub(crate) stats: Arc<FileStats>,
}

impl Inode {
    pub(super) fn new(view: InodeView, asked_at: AskedAt, mount: &Arc<Locality>) -> Inode {
        let exported = Exported::default();
        Inode {
            ino: view.attr.ino,
            known: Mutex::new(Known::new(view, asked_at.at)),
            hints: Hints::new(&view),
            size: FileSize::new(view.attr.size, asked_at.rule, exported.clone()),
            life: Life::default(),
            pages: FilePages::new(exported.clone()),
            range: RangeLock::new(exported),
            cached: CachedBytes::new(mount),
            flights: Mutex::default(),
            fills: Fills::default(),
            signal: Signal::default(),
            group: FileGroup::default(),
            locks: ClusterLocks::default(),
            failures: Failures::default(),
            stats: Arc::new(FileStats::new()),
        }
    }

    pub(crate) fn view(&self) -> InodeView {
        self.known.lock().view
    }

    /// Called when the file is open once more.
    pub(super) fn opens_as(&self, known: &mut Known, access: Access) {
        known.opens.push(access);
        if access.write {
            // From now on programs can store into pages that the kernel already has.
            self.exported().all_change();
        }
    }

    /// Returns whether this mount has the file open for writing.
    pub(crate) fn has_writers(&self) -> bool {
        self.known.lock().opens.iter().any(|a| a.write)
    }

    /// Returns whether executing the file gives capabilities.
    #[inline]
    pub(crate) fn gives_capabilities(&self) -> bool {
        self.hints.capability.load(Relaxed)
    }

    /// Returns whether the file has setuid or setgid bits, as far as this client knows.
    #[inline]
    pub(crate) fn has_set_id(&self) -> bool {
        self.hints.set_id.load(Relaxed)
    }

    /// Called when an extended attribute was set; `capability`: it is `security.capability`.
    pub(crate) fn has_xattrs(&self, capability: bool) {
        let mut known = self.known.lock();
        // Answers to requests that were sent before this moment may not show the attribute.
        known.xattrs_at = tick();
        known.at = known.xattrs_at;
        known.view.xattrs = true;
        known.view.capability |= capability;
        self.hints.capability.store(known.view.capability, Relaxed);
    }

    /// Called when the capabilities of the file were removed by a request that was sent at `asked`. If capabilities
    /// were set again since then, they may exist: the next write checks again.
    pub(crate) fn lose_capability(&self, asked: AskedAt) {
        let mut known = self.known.lock();
        if known.xattrs_at < asked.at {
            known.view.capability = false;
            self.hints.capability.store(false, Relaxed);
        }
    }

    /// Returns whether bytes of `range` are under way to the server.
    pub(crate) fn in_flight(&self, range: ByteRange) -> bool {
        self.flights.lock().overlap(range)
    }

    /// Works as `in_flight`, but only for requests with numbers up to `upto` (`Flights::last`).
    pub(crate) fn in_flight_upto(&self, range: ByteRange, upto: u64) -> bool {
        self.flights.lock().overlap_upto(range, upto)
    }

    /// The attributes joined with the changes that only this client has. In sole mode the client's own modification
    /// time is right, even if it was set back; in shared mode another mount may have written later.
    pub(crate) fn overlay(&self, mut attr: Attr, alone: bool) -> Attr {
        let known = self.known.lock();
        attr.size = self.size();
        // Dirty bytes will take storage; without this estimate a program would take the file for sparse. Dirty bytes
        // that overwrite stored bytes take no additional storage.
        let dirty = self.cached.dirty_bytes.load(SeqCst).div_ceil(512);
        let whole = attr.size.div_ceil(4096) * 8;
        attr.blocks = attr.blocks.max(whole.min(attr.blocks + dirty));
        if known.mtime_local {
            attr.mtime = if alone { known.mtime } else { attr.mtime.max(known.mtime) };
            attr.ctime = attr.ctime.max(known.write_time());
        }
        attr.atime = attr.atime.max(known.accessed.unwrap_or(attr.atime));
        attr
    }

    /// Applies a view whose request was sent at `asked_at`.
    pub(crate) fn adopt(&self, view: InodeView, asked_at: AskedAt) -> Adopted {
        self.take_view(view, asked_at, None)
    }

    /// Applies the view in the answer to a change by this mount itself: the request was sent at `asked`, and the size
    /// counts as of `asked_at`. Requests that were sent after the change may have been answered before it, so the view
    /// counts as of now. If another answer came since the change was sent, the time of the last change says which of
    /// the two shows the later state.
    pub(crate) fn adopt_change(&self, view: InodeView, asked: AskedAt, asked_at: AskedAt) -> Adopted {
        self.take_view(view, asked_at, Some(asked))
    }

    fn take_view(&self, mut view: InodeView, asked_at: AskedAt, change: Option<AskedAt>) -> Adopted {
        let mut known = self.known.lock();
        let latest = asked_at.at >= known.at;
        let generation = known.view.generation.max(view.generation);
        known.view.generation = generation;
        let shown = view.attr;
        let counts = match change {
            None => latest,
            Some(asked) => asked.at >= known.at || view.attr.ctime >= known.view.attr.ctime,
        };
        if counts {
            if change.is_some_and(|asked| asked.at <= known.xattrs_at) {
                view.xattrs |= known.view.xattrs;
                view.capability |= known.view.capability;
            }
            known.view = InodeView { generation, ..view };
            known.at = if change.is_some() { tick() } else { asked_at.at };
            self.hints.take(&view);
        }
        self.access_may_be_due(&known);
        let own_end = || self.size.own_end().max(self.size.unfinished_end());
        let own_before = own_end();
        let current = latest && self.size.epoch.load(SeqCst) <= asked_at.at;
        let quiet = current && self.cached.dirty_bytes.load(SeqCst) == 0;
        if quiet {
            // The server gave this answer after the last write-back, so the answer's modification time already accounts
            // for the writes that were in the cache.
            known.mtime_local = false;
        }
        let alone = asked_at.rule & 1 == 1;
        // In sole mode, what this client has in its cache takes precedence over the answer, which may show only a part
        // of a write.
        let knows = alone && self.size.sure_rule.load(SeqCst) == asked_at.rule;
        let whole = self.size.direct_writes.load(SeqCst) == 0;
        let news = if knows { quiet && whole } else { latest && self.size.turned.load(SeqCst) <= asked_at.at };
        if news {
            self.size.set(shown.size.max(if quiet { 0 } else { own_before }));
            let own = own_end();
            let disturbed = self.cached.dirty_bytes.load(SeqCst) > 0 || self.size.epoch.load(SeqCst) > asked_at.at;
            if own > own_before || (quiet && disturbed) {
                // A write came in between.
                self.size.grow(own);
            }
            if alone {
                self.size.sure_rule.store(asked_at.rule, SeqCst);
            }
        }
        drop(known);
        let mut attr = self.overlay(shown, alone);
        if !current {
            // Bytes that have reached the server since are neither in the answer nor dirty any more; too high an
            // estimate is better than a file that looks sparse.
            attr.blocks = attr.blocks.max(attr.size.div_ceil(4096) * 8);
        }
        Adopted { attr, taken: knows || news, current }
    }

    /// The failures that have not been reported and that some program may miss.
    pub(crate) fn unreported(&self) -> Option<Unreported> {
        let is_gone = self.life.nameless.load(SeqCst) && self.open_count() == 0;
        if is_gone { None } else { self.failures.unreported() }
    }

    /// Number of opens of this mount that have not been released.
    pub(crate) fn open_count(&self) -> u32 {
        let known = self.known.lock();
        known.opens.len() as u32
    }

    /// The opens that programs use at present.
    pub(crate) fn used_opens(&self) -> u32 {
        self.open_count().saturating_sub(self.life.idle_opens.load(SeqCst))
    }

    /// Every open of the file that the server counts.
    pub(crate) fn opens(&self) -> Vec<Access> {
        let known = self.known.lock();
        known.opens.iter().chain(&known.closes).chain(&known.closing).copied().collect()
    }

    /// Called when the server has answered a close.
    pub(crate) fn closed(&self, access: Access) {
        let mut known = self.known.lock();
        if let Some(i) = known.closing.iter().position(|a| *a == access) {
            known.closing.swap_remove(i);
        }
    }

    pub(crate) fn access_count(&self) -> u32 {
        let known = self.known.lock();
        (known.opens.len() + known.closes.len() + known.closing.len()) as u32
    }

    /// The shared memory that shows the file to programs on this machine.
    #[inline]
    pub(crate) fn exported(&self) -> &Exported {
        self.range.exported()
    }

    /// Gives the file another export, or none.
    pub(crate) fn export(&self, export: Option<Arc<Export>>) {
        self.range.export(export);
    }

    /// The length of the file as this mount knows it.
    pub(crate) fn size(&self) -> u64 {
        self.size.bytes.load(SeqCst)
    }

    /// A direct write extends the file to `end`. Answers from before this write must be applied before this call, or
    /// not at all.
    pub(crate) fn extend(&self, end: u64) {
        let _known = self.known.lock();
        self.size.turn();
        self.size.grow(end);
    }

    /// The layout of the bytes over objects.
    pub(crate) fn layout(&self) -> Layout {
        self.hints.layout()
    }

    /// Returns whether writes may land after they have returned, without a lock.
    pub(crate) fn is_commit(&self) -> bool {
        self.hints.advice().consistency() == Consistency::Commit
    }

    /// The I/O mode that the owner of the file has set.
    pub(crate) fn io_mode(&self) -> IoMode {
        self.hints.advice().mode()
    }

    /// The bits of the stripes that contain `range`; 0 if some of these stripes have no bit.
    pub(crate) fn stripe_bits(&self, range: ByteRange) -> u64 {
        let layout = self.layout();
        let (first, end) = layout.stripe_at(range.start);
        if end >= range.end {
            return stripe_bit(first);
        }
        let mut bits = 0;
        for (object, _) in layout.pieces(self.ino, range) {
            match stripe_bit(object.stripe) {
                0 => return 0,
                bit => bits |= bit,
            }
        }
        bits
    }

    /// The bits of all stripes that the file can have; 0 if some have no bit.
    pub(crate) fn all_stripe_bits(&self) -> u64 {
        match self.layout().stripes() {
            64 => u64::MAX,
            stripes @ 1..64 => (1 << stripes) - 1,
            _ => 0,
        }
    }

    /// Ends a fill.
    pub(crate) fn fill_ends(&self, id: u64) {
        self.fills.end(id);
        self.signal.notify();
    }

    /// Waits until the file shows the contents that the servers have, after a failure of write-back.
    pub(crate) async fn settled(&self) {
        self.signal.until(|| !self.failures.settling.is_running()).await;
    }
}
