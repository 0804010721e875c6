//! The messages that fetch files ahead.
//!
//! Owns: asking, and what becomes of each part of the answer. Does not own: which files may be given to programs
//! (`small_files`).

use crate::coherence::tokens::{self, Told};
use crate::conn::replies::unexpected;
use crate::inode::Inode;
use crate::locks::coming::Coming;
use crate::mount::Mount;
use crate::tables::prefetch::order::NAMES_MAX;
use crate::tables::prefetch::small_files::{KEPT_NS, Key, Opened, READ, READY_MAX, Ready, State, UnderWay};
use crate::telemetry::stats::Count;
use amphi_env::Buf;
use amphi_types::{ByteRange, Cred, Errno, Ino, Name, ObjectId};
use amphi_wire::{BATCH_PARTS_MAX, FileAhead, ReadPart, Reply, Request};
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

/// Entries that are requested at once when the names of a directory are needed.
const ENTRIES: u32 = 1024;
/// Files of at most this many bytes are read ahead: one unit of the cache.
const SMALL_BYTES_MAX: u32 = 64 << 10;
/// Cache memory is allocated in units of this many bytes.
const UNIT: u64 = amphi_pagecache::UNIT;
const _: () = assert!(SMALL_BYTES_MAX as u64 <= UNIT, "a small file is one unit of the cache");

/// A request that is entered in the table. From now on the files that it requests count as being fetched. When the
/// value is dropped, they no longer do.
pub(super) struct Batch {
    mount: Arc<Mount>,
    id: u64,
    dir: Ino,
    parts: Vec<ReadPart>,
}

/// Records requests for those files of `plan` that are not cached. The caller reports how busy the table is.
pub(super) fn begin(
    mount: &Arc<Mount>,
    state: &mut State,
    dir: Ino,
    opening: Ino,
    plan: Vec<(Name, Ino)>,
) -> Option<Batch> {
    let mut parts = Vec::new();
    for (name, ino) in plan {
        let at_hand = ino == opening || state.ready.contains_key(&ino) || state.is_asked(ino);
        // Each other target would need its own message.
        if at_hand || ino.target() != dir.target() || parts.len() >= BATCH_PARTS_MAX {
            continue;
        }
        let file = mount.files.get(ino);
        if file.as_ref().is_some_and(|f| f.open_count() > 0) {
            continue;
        }
        parts.push(ReadPart { name, ino, data: file.is_none() });
    }
    parts.truncate(READY_MAX.saturating_sub(state.ready.len()));
    if parts.is_empty() {
        return None;
    }
    state.clock += 1;
    let under_way = UnderWay {
        dir,
        files: parts.iter().map(|p| (p.ino, p.name.clone())).collect(),
        names: parts.iter().map(|p| p.name.clone()).collect(),
        spoiled: state.changing.iter().cloned().collect::<BTreeSet<Key>>(),
        void: false,
    };
    let before = state.under_way.insert(state.clock, under_way);
    assert!(before.is_none(), "two requests for small files have the number {}", state.clock);
    Some(Batch { mount: mount.clone(), id: state.clock, dir, parts })
}

impl Drop for Batch {
    fn drop(&mut self) {
        let small_files = &self.mount.prefetch.small_files;
        {
            let mut state = small_files.state.lock();
            state.under_way.remove(&self.id);
            small_files.note_busy(&state);
        }
        small_files.answered.notify();
    }
}

/// Sends the request, and processes the answer.
pub(super) async fn run(mount: Arc<Mount>, cred: Cred, batch: Batch) {
    let object = |ino| ObjectId { ino, stripe: 0 };
    let coming: Vec<Option<Coming>> =
        batch.parts.iter().map(|p| p.data.then(|| Coming::new(&mount, object(p.ino)))).collect();
    let op = Request::ReadBatch {
        dir: batch.dir,
        parts: batch.parts.clone(),
        bytes_max: SMALL_BYTES_MAX,
        ask_back: true,
        tokens: mount.coherence.sharing.uses_tokens(),
    };
    mount.stats.bytes(Count::SmallAheadAsked, batch.parts.len() as u64);
    let asked_ns = mount.clock.boot_ns();
    let told = tokens::call(&mount, batch.dir.target(), &cred, op, &[]).await;
    let cred = Arc::new(cred);
    let result = told.and_then(|mut told| match told.take()? {
        Reply::FilesAhead(files) if files.len() == batch.parts.len() => Ok((files, told)),
        other => Err(unexpected(&other)),
    });
    let (files, mut told) = match result {
        Ok(answer) => answer,
        Err(e) => {
            tracing::debug!(dir = %batch.dir, "fetching small files ahead: {e}");
            return;
        }
    };
    let mut payload = told.take_payload().unwrap_or_default();
    let sum: usize = files.iter().flatten().filter_map(|f| f.bytes).map(|n| n as usize).sum();
    // An answer that was given before has lost its payload.
    let whole = sum == payload.len();
    let (mut got, mut with_bytes, mut got_bytes) = (0, 0, 0);
    let mut later = Vec::new();
    for ((part, result), coming) in batch.parts.iter().zip(files).zip(coming) {
        match result {
            Ok(found) => {
                let bytes = found.bytes.filter(|_| whole).map(|n| payload.split_to(n as usize));
                with_bytes += u64::from(found.bytes.is_some());
                got_bytes += found.bytes.map_or(0, u64::from);
                got += 1;
                let file = accept(&mount, &batch, &told, part, found, bytes, coming);
                keep(&mount, &batch, &told, part, file, &cred, asked_ns);
            }
            Err(e) => {
                drop(coming);
                if e == Errno::Again {
                    later.push((part.name.clone(), part.ino));
                }
            }
        }
    }
    assert!(!whole || payload.is_empty(), "{} bytes of an answer belong to no file", payload.len());
    let contended = told.contended_places.iter().filter_map(|&at| mount.files.get(batch.parts.get(at)?.ino));
    contended.for_each(|file| mount.note_contention(&file, true));
    mount.stats.bytes(Count::SmallAheadGot, got as u64);
    note(&mount, &batch, got, (with_bytes, got_bytes), later);
}

/// Adds one file: its open, its attributes, its lock, and its bytes if they are certain.
fn accept(
    mount: &Arc<Mount>,
    batch: &Batch,
    told: &Told,
    part: &ReadPart,
    found: FileAhead,
    bytes: Option<Buf>,
    coming: Option<Coming>,
) -> (Opened, u64) {
    let size = found.inode.attr.size;
    let (file, fill) = mount.files.open_ahead(found.inode, READ, told.asked_at, ByteRange::new(0, size));
    let closer: Weak<Mount> = Arc::downgrade(mount);
    let opened = Opened::new(closer, file.clone());
    // In sole mode, this mount truncates a file that is not in its table without a lock. From here on the file is in
    // the table.
    let bytes = bytes.filter(|_| !mount.prefetch.small_files.state.lock().is_spoiled(batch.id, batch.dir, part));
    let pin = coming.zip(found.lock).and_then(|(coming, (lock, range))| coming.granted(lock, range));
    told.keep_entry(batch.dir, &part.name, part.ino, Some(found.inode), &found.tokens);
    let mut filled = 0;
    if let Some(id) = fill {
        if let (Some(_), Some(bytes)) = (&pin, bytes)
            && put(mount, &file, id, size, bytes)
        {
            filled = size;
        }
        file.fill_ends(id);
    }
    drop(pin);
    (opened, filled)
}

/// Puts the bytes of a file into the cache, under its pinned lock.
fn put(mount: &Arc<Mount>, file: &Arc<Inode>, fill: u64, size: u64, bytes: Buf) -> bool {
    if size == 0 {
        return true;
    }
    if !mount.make_room(size.next_multiple_of(UNIT)) {
        return false;
    }
    mount.stats.bytes(Count::Fill, size);
    // A unit that kept the buffer in which its bytes arrived would also keep the memory of the other files in that
    // buffer.
    let own = if bytes.len() as u64 >= UNIT { bytes.len() as u64 } else { 0 };
    let bytes = if own > 0 { Buf::copy_of(&bytes) } else { bytes };
    let true_still = |part| file.fills.is_true(fill, part);
    let copied = mount.cache.fill(file, ByteRange::new(0, size), &Arc::new(bytes), true, true_still);
    mount.stats.moved(Count::CopiedIn, own + copied);
    true
}

/// Keeps an open for a later program, unless something has changed meanwhile.
fn keep(
    mount: &Arc<Mount>,
    batch: &Batch,
    told: &Told,
    part: &ReadPart,
    (opened, bytes): (Opened, u64),
    cred: &Arc<Cred>,
    asked_ns: u64,
) {
    let Some(file) = opened.file().cloned() else { return };
    let rule = mount.coherence.sharing.rule();
    let certain = rule & 1 == 1 || tokens::holds_attributes(mount, part.ino);
    let mut guard = mount.prefetch.small_files.state.lock();
    let state = &mut *guard;
    let spoiled = state.is_spoiled(batch.id, batch.dir, part);
    if spoiled || !certain || told.asked_at.rule() != rule || state.ready.contains_key(&part.ino) {
        drop(guard);
        drop(opened);
        return;
    }
    let alone_in_name = file.view().attr.nlink == 1;
    let (dir, name, cred) = (batch.dir, part.name.clone(), cred.clone());
    state.names.insert((dir, name.clone()), part.ino);
    state.ready_bytes += bytes;
    let until_ns = asked_ns.saturating_add(KEPT_NS);
    let before = state.ready.insert(part.ino, Ready { opened, dir, name, cred, rule, until_ns, bytes, alone_in_name });
    assert!(before.is_none(), "{}: a file is opened ahead twice", part.ino);
    mount.prefetch.small_files.note_busy(state);
}

/// Notes how large the files are, and which to request once more.
fn note(mount: &Mount, batch: &Batch, got: usize, (with_bytes, bytes): (u64, u64), later: Vec<(Name, Ino)>) {
    let now_ns = mount.clock.now_ns();
    let mut state = mount.prefetch.small_files.state.lock();
    let Some(directory) = state.directories.get_mut(&batch.dir) else { return };
    assert!(got + later.len() <= batch.parts.len(), "{got} and {} of {} files", later.len(), batch.parts.len());
    let refused = batch.parts.len() - got - later.len();
    (0..refused).for_each(|_| directory.note_wasted(now_ns));
    mount.stats.bytes(Count::SmallAheadLater, later.len() as u64);
    directory.note_sizes(with_bytes, bytes);
    directory.ask_later(later);
}

/// Reads the names of a directory whose files are opened one after the other without having been listed.
pub(super) async fn load(mount: Arc<Mount>, cred: Cred, dir: Ino) {
    let mut from = 0;
    for _ in 0..NAMES_MAX / ENTRIES as usize {
        let op = Request::ReadDir { dir, cookie: from, max: ENTRIES, plus: false };
        let Ok(Reply::Entries { entries, end, .. }) = mount.call(dir.target(), &cred, op).await else { return };
        super::listed(&mount, dir, from, &entries, end);
        match entries.last() {
            Some(last) if !end => from = last.cookie,
            _ => return,
        }
    }
}
