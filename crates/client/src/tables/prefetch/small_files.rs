//! `SmallFilePrefetch`: small files of a directory that were opened ahead of a program, or are being opened.
//!
//! Owns: which files have been opened ahead, for which caller, and until when; the requests under way, and what this
//! mount has changed since they were sent; names of directories (`order`). Does not own: messages
//! (`prefetch::small_files`, whose head has the invariants of all of it), what changes and revocations end
//! (`coherence::opened_ahead`).

use super::kept_opens::{Kept, KeptOpens};
use super::order::{self, Directory};
use crate::inode::open_file::Closer;
use crate::inode::{Inode, Signal};
use amphi_types::{Cred, Ino, Name};
use amphi_wire::{Access, BATCH_BYTES_MAX, ReadPart};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Weak};

/// Most files that are open ahead.
pub(crate) const READY_MAX: usize = 1024;
/// Most files ahead of one reader.
const FILES_AHEAD_MAX: u64 = 256;
/// Most requests under way.
const UNDER_WAY_MAX: usize = 4;
/// How long a file stays open ahead. This is shorter than the life of a token.
pub(crate) const KEPT_NS: u64 = 20_000_000_000;
/// Most directories whose names are kept.
const DIRECTORIES_MAX: usize = 16;
/// Most names that are kept of all directories together.
const NAMES_TOTAL_MAX: usize = 4 * order::NAMES_MAX;
/// Most files whose directory is remembered since they were looked up.
const HOMES_MAX: usize = 8192;
/// The access with which files are opened ahead.
pub(crate) const READ: Access = Access { read: true, write: false };

/// The name or inode that a change concerns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Name(Ino, Name),
    Inode(Ino),
}

/// An open that the server counts and that no program has taken over yet. Dropping the value closes the open.
pub(crate) struct Opened {
    closer: Weak<dyn Closer>,
    file: Option<Arc<Inode>>,
}

impl Opened {
    /// An open of `file` for reading.
    pub(crate) fn new(closer: Weak<dyn Closer>, file: Arc<Inode>) -> Opened {
        file.life.idle_opens.fetch_add(1, SeqCst);
        Opened { closer, file: Some(file) }
    }

    /// The file, until the open is taken over.
    pub(crate) fn file(&self) -> Option<&Arc<Inode>> {
        self.file.as_ref()
    }

    /// Removes the open, because a program takes it over.
    pub(crate) fn take(&mut self) -> Option<Arc<Inode>> {
        let file = self.file.take()?;
        file.life.idle_opens.fetch_sub(1, SeqCst);
        Some(file)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let (Some(file), Some(closer)) = (self.take(), self.closer.upgrade()) {
            closer.released(&file, READ, true);
        }
    }
}

/// A file that was opened ahead.
pub(crate) struct Ready {
    pub(crate) opened: Opened,
    pub(crate) dir: Ino,
    pub(crate) name: Name,
    pub(crate) cred: Arc<Cred>,
    /// The caching mode in which the file was requested.
    pub(crate) rule: u64,
    pub(crate) until_ns: u64,
    /// Number of bytes that came with the open.
    pub(crate) bytes: u64,
    /// The file has no other name.
    pub(crate) alone_in_name: bool,
}

/// A request under way.
pub(crate) struct UnderWay {
    pub(crate) dir: Ino,
    pub(crate) files: BTreeMap<Ino, Name>,
    pub(crate) names: BTreeSet<Name>,
    /// Keys that were changed or revoked since the request was sent.
    pub(crate) spoiled: BTreeSet<Key>,
    /// The files of the answer are not used, only its locks.
    pub(crate) void: bool,
}

/// Unused entries, to be closed outside the lock.
pub(crate) type Spoilt = (Option<Ready>, Option<Kept>);

#[derive(Default)]
pub(crate) struct State {
    pub(crate) directories: BTreeMap<Ino, Directory>,
    /// Files that were looked up lately, with their directories.
    homes: BTreeMap<Ino, Ino>,
    homes_order: VecDeque<Ino>,
    pub(crate) ready: BTreeMap<Ino, Ready>,
    pub(crate) names: BTreeMap<(Ino, Name), Ino>,
    pub(crate) ready_bytes: u64,
    pub(crate) under_way: BTreeMap<u64, UnderWay>,
    pub(crate) kept: KeptOpens,
    /// Changes of this mount that are under way.
    pub(crate) changing: Vec<Key>,
    pub(crate) off_until_ns: u64,
    pub(crate) clock: u64,
}

/// The small files that a mount has fetched ahead.
#[derive(Default)]
pub(crate) struct SmallFilePrefetch {
    pub(crate) state: Mutex<State>,
    pub(crate) answered: Signal,
    /// Number of files that are open ahead, requests under way and kept opens; if it is 0, callers need not take the
    /// lock.
    pub(crate) busy: AtomicU64,
}

impl State {
    pub(crate) fn take_out(&mut self, ino: Ino) -> Option<Ready> {
        let ready = self.ready.remove(&ino)?;
        assert!(ready.bytes <= self.ready_bytes, "{ino}: {} of {} bytes ahead", ready.bytes, self.ready_bytes);
        self.ready_bytes -= ready.bytes;
        if self.names.get(&(ready.dir, ready.name.clone())) == Some(&ino) {
            self.names.remove(&(ready.dir, ready.name.clone()));
        }
        Some(ready)
    }

    /// Removes the files that satisfy `wanted`.
    pub(crate) fn take_all(&mut self, wanted: impl Fn(Ino, &Ready) -> bool) -> Vec<Ready> {
        let inodes: Vec<Ino> = self.ready.iter().filter(|(ino, r)| wanted(**ino, r)).map(|(ino, _)| *ino).collect();
        inodes.into_iter().filter_map(|ino| self.take_out(ino)).collect()
    }

    pub(crate) fn directory_of(&self, ino: Ino) -> Option<Ino> {
        let listed = self.directories.iter().find(|(_, d)| d.knows(ino)).map(|(dir, _)| *dir);
        listed.or_else(|| self.homes.get(&ino).copied())
    }

    /// The table of a directory. If it is new, it replaces those that were unused for longest.
    pub(crate) fn directory(&mut self, dir: Ino) -> &mut Directory {
        self.clock += 1;
        while self.directories.len() > DIRECTORIES_MAX
            || self.directories.values().map(Directory::len).sum::<usize>() > NAMES_TOTAL_MAX
        {
            let others = self.directories.iter().filter(|(d, _)| **d != dir);
            let Some(oldest) = others.min_by_key(|(_, d)| d.touched).map(|(d, _)| *d) else { break };
            self.directories.remove(&oldest);
        }
        let directory = self.directories.entry(dir).or_default();
        directory.touched = self.clock;
        directory
    }

    /// Called when a file of `dir` was looked up.
    pub(crate) fn note_home(&mut self, dir: Ino, ino: Ino) {
        if self.directories.get(&dir).is_some_and(|d| d.knows(ino)) {
            return;
        }
        if self.homes.insert(ino, dir).is_none() {
            self.homes_order.push_back(ino);
        }
        while self.homes_order.len() > HOMES_MAX
            && let Some(oldest) = self.homes_order.pop_front()
        {
            self.homes.remove(&oldest);
        }
    }

    pub(crate) fn is_asked(&self, ino: Ino) -> bool {
        self.under_way.values().any(|u| u.files.contains_key(&ino))
    }

    pub(crate) fn is_name_asked(&self, dir: Ino, name: &Name) -> bool {
        self.under_way.values().any(|u| u.dir == dir && u.names.contains(name))
    }

    /// Returns how many files to fetch ahead of a reader now, with a cache of `cache_bytes`. 0 means that nothing may
    /// be fetched. `short`: memory is short.
    pub(crate) fn window(&self, boot_ns: u64, short: bool, cache_bytes: u64, mean_bytes: u64) -> usize {
        let off = self.off_until_ns > boot_ns || short;
        let full = self.ready_bytes > cache_bytes / 8
            || self.ready.len() >= READY_MAX
            || self.under_way.len() >= UNDER_WAY_MAX;
        if off || full {
            return 0;
        }
        let fit = BATCH_BYTES_MAX as u64 / mean_bytes.max(1);
        FILES_AHEAD_MAX.min(fit.max(1)) as usize
    }

    /// Returns whether the answer to a request under way must not be used for a file any more.
    pub(crate) fn is_spoiled(&self, batch: u64, dir: Ino, part: &ReadPart) -> bool {
        let keys = [Key::Name(dir, part.name.clone()), Key::Inode(part.ino), Key::Inode(dir)];
        self.under_way.get(&batch).is_none_or(|u| u.void || keys.iter().any(|key| u.spoiled.contains(key)))
    }

    pub(crate) fn spoil(&mut self, key: &Key) -> Spoilt {
        for under_way in self.under_way.values_mut() {
            under_way.spoiled.insert(key.clone());
        }
        match key {
            Key::Inode(ino) => (self.take_out(*ino), self.kept.spoil(*ino)),
            Key::Name(dir, name) => {
                let ino = self.names.get(&(*dir, name.clone())).copied();
                (ino.and_then(|ino| self.take_out(ino)), None)
            }
        }
    }
}

impl SmallFilePrefetch {
    pub(crate) fn note_busy(&self, state: &State) {
        let all = state.ready.len() + state.under_way.len() + state.kept.len();
        self.busy.store(all as u64, Relaxed);
    }
}
