//! Showing cached bytes to programs of this machine, which then read them without a call (docs/design/preload.md).
//!
//! Owns: which units of a file are copied into its export and when, and informing the streams of an open file about
//! reads that the mount did not see. Does not own: the memory (`amphi_shm`), when its content becomes invalid
//! (`inode::exported`), which programs get the memory (the front end).
//!
//! After a read that was a system call, a unit is copied into the export if a cache hit on it would be possible now
//! (`Hit`). For a stream, more and more units are copied ahead, up to 1 MiB, so that it makes one system call for each
//! MiB. For random reads the unit is copied when it is read a second time, since copying 64 KiB (5 us) for one read of
//! 4 KiB does not pay.

use super::{Hit, read_ahead};
use crate::api::Hints;
use crate::inode::{Inode, OpenFile};
use crate::mount::Mount;
use crate::telemetry::stats::Count;
use crate::telemetry::tunables::Tunable;
use amphi_pagecache::{UNIT, UNIT_BYTES};
use amphi_shm::export::Export;
use amphi_types::{ByteRange, Ino};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Most units that are copied into the export ahead of a stream.
const AHEAD_MAX: u64 = 16;
/// Files of at most this many units are copied into the export as a whole as soon as they are read.
const SMALL_UNITS: u64 = 4;
/// How long programs may read from the export without a renewal by the mount. If a mount was killed, its export can be
/// used at most for this time.
const LEASE_NS: u64 = 2_000_000_000;

/// The time until which exports may be used, by the clock of leases. 0 means that they may not be used any more.
pub(crate) fn lease_end_ns(mount: &Mount) -> u64 {
    let sharing = &mount.coherence.sharing;
    if sharing.is_lost() {
        return 0;
    }
    let end = mount.clock.boot_ns().saturating_add(LEASE_NS);
    // In sole mode, cached bytes are valid until the master says otherwise, as for hits.
    if sharing.is_alone() { end } else { end.min(sharing.leases.all_until_ns.load(Relaxed)) }
}

/// The export of the file, which `make` makes for a length if there is none or it is too short. Returns `None` if reads
/// of this open file must not be served from an export.
pub(crate) fn export(
    mount: &Mount,
    open: &OpenFile,
    make: impl FnOnce(u64) -> Option<Arc<Export>>,
) -> Option<Arc<Export>> {
    let serves = open.front.serves.load(Relaxed);
    if !open.flags.read || open.flags.direct || serves || mount.tunables.get(Tunable::SharedBytes) == 0 {
        return None;
    }
    let file = &open.file;
    let size = file.size();
    if let Some(export) = file.exported().get()
        && export.fits(size)
    {
        return Some(export);
    }
    let export = make(size.next_power_of_two())?;
    file.export(Some(export.clone()));
    Some(export)
}

/// The file's export is given up, and its memory is freed.
pub(crate) fn unexport(mount: &Mount, ino: Ino) {
    if let Some(file) = mount.files.get(ino)
        && file.exported().get().is_some_and(|export| export.is_given_up())
    {
        file.export(None);
    }
}

/// The program may have read from the export up to `offset`: its streams are informed.
pub(crate) fn passed(mount: &Arc<Mount>, open: &OpenFile, offset: u64) {
    let shared = &open.streams.shared;
    let from = shared.read_to.load(Relaxed);
    if offset > from && offset == shared.shown_to.load(Relaxed) && open.file.exported().get().is_some() {
        read_ahead(mount, open, ByteRange::new(from, offset), open.file.size());
    }
}

/// Shows what the program that has just read `len` bytes at `offset` by a call will probably read next.
pub(crate) fn show(mount: &Arc<Mount>, open: &OpenFile, offset: u64, len: u64) {
    let Some(export) = open.file.exported().get() else { return };
    if !open.flags.read || open.flags.direct {
        return;
    }
    access(mount, open, &export);
    let shared = &open.streams.shared;
    let end = offset.saturating_add(len);
    let size = open.file.size();
    let goes_on = offset == shared.shown_to.load(Relaxed) || offset == shared.read_to.load(Relaxed);
    let ahead = match goes_on {
        true => (shared.units.load(Relaxed) * 2).clamp(1, AHEAD_MAX),
        false => 0,
    };
    shared.units.store(ahead, Relaxed);
    shared.read_to.store(end, Relaxed);
    let at_once = goes_on || size <= SMALL_UNITS * UNIT;
    let (first, behind) = (offset / UNIT, end.div_ceil(UNIT).max(offset / UNIT + 1) + ahead);
    // A read of more bytes than the export has room for would evict the bytes that it has just copied there.
    let behind = behind.min(first + export.slots() as u64).min(size.div_ceil(UNIT).max(1));
    let mut shown_to = end;
    for unit in first..behind {
        let near = ByteRange::at(unit * UNIT, UNIT);
        let read = near.intersect(&ByteRange::new(offset, end));
        if !at_once && !export.note_miss(unit) {
            continue;
        }
        let near = if read.is_empty() { near } else { read };
        match show_unit(mount, open, &export, unit, near) {
            Some(run) if run.start <= shown_to => shown_to = shown_to.max(run.end),
            _ if read.is_empty() => break,
            _ => {}
        }
    }
    shared.shown_to.store(shown_to, Relaxed);
}

/// Tells the export whether the next read has to be a system call, because it renews the access time.
fn access(mount: &Mount, open: &OpenFile, export: &Export) {
    if !mount.tunables.on(Tunable::Atime) {
        return export.set_due(false);
    }
    let is_due = || open.file.access_is_due(mount.wall());
    export.set_due(is_due());
    if is_due() {
        // The cache has changed since.
        export.set_due(true);
    }
}

/// Shows the valid bytes of a unit that are around `near`, and where the file ends. Returns the range that was copied.
fn show_unit(mount: &Arc<Mount>, open: &OpenFile, export: &Export, unit: u64, near: ByteRange) -> Option<ByteRange> {
    let file = &open.file;
    // This is done before anything is looked up, so that later events invalidate the bytes that are copied here.
    let ticket = export.ticket();
    let alone = mount.coherence.sharing.is_alone();
    let hit = Hit::begin(mount, open, unit * UNIT, UNIT_BYTES, Hints::default())?;
    if open.member() != 0 || has_stores(file) || mount.coherence.sharing.is_lost() {
        return None;
    }
    let mut shown = None;
    mount.cache.show(file, unit, near, |run, bytes| {
        export.fill(ticket, unit, (run.start % UNIT) as usize, bytes);
        shown = Some(run);
    });
    if !hit.held(open) {
        export.all_change();
        return None;
    }
    if (alone || hit.token > 0) && !export.shows_size() {
        export.show_size(ticket, hit.size, if alone { u64::MAX } else { hit.token });
    }
    mount.stats.bytes(Count::Shown, shown.map_or(0, |run| run.len()));
    shown
}

/// Returns whether programs may have stored to pages of the file that the kernel has. If so, reads by these programs
/// have to come from the kernel's pages.
fn has_stores(file: &Inode) -> bool {
    (file.pages.any() || file.pages.is_taking()) && file.has_writers()
}
