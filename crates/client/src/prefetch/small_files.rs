//! Small files of a directory, fetched ahead of a program that opens them one after the other (FEATURES X1).
//!
//! Owns: which files have been opened ahead, for whom, and until when; the messages that fetch them; what the mount has
//! changed while one was under way. Does not own: which files come next (`order`), the bytes (`cache`), the locks
//! (`locks`), names and attributes in company (`tokens`).
//!
//! One message (`ReadBatch`) looks a number of names up, opens the files for reading and brings attributes, a read lock
//! on stripe 0 and the bytes. The open is a real one: the server checked the caller's permission and counts it. So an
//! open of the file by the same caller takes it over without a message, the read that follows finds the bytes in the
//! cache, and what is not taken over is closed as any open file is.
//!
//! Invariants:
//! * **Permission.** What was opened ahead is handed out only to a caller with the very credentials for which the
//!   server checked it, and only while nothing can have changed since: alone, this mount has changed neither the name
//!   nor the inode since the question; in company, the attributes token that came with the answer has not been revoked
//!   since. Both are looked at also for what comes in while the question is under way (`UnderWay::spoiled`). The bytes
//!   are in the cache like others: only an open file reads them.
//! * **Bytes.** They enter the cache under the pinned lock that came with them, as a fill, and only of a file that this
//!   mount knew nothing of from before the question until the answer: so no write, cut or lock of its own can lie
//!   between (`InodeTable::open_ahead`).
//! * **Names.** Alone, a look-up is answered from here only for a file with one link, for the same credentials; in
//!   company the tokens that came along answer it.
//! * **Waiting.** An open or look-up of a file that is on its way waits for that answer; the server waits for nobody
//!   before it gives it.
//!
//! Bounds: `READY_MAX` files opened ahead, an eighth of the cache, `UNDER_WAY_MAX` questions; nothing while the memory
//! group is short. What nobody has opened within `KEPT_NS` is closed; its bytes stay as others do.

mod fetch;
mod order;

use crate::api::{Ctx, OpenFlags};
use crate::coherence::sharing;
use crate::coherence::tokens;
use crate::inode::{Inode, OpenFile, Signal};
use crate::mount::Mount;
use crate::telemetry::stats::Count;
use crate::telemetry::tunables::Tunable;
use crate::writeback::deferred_close;
use amphi_types::{Attr, Cred, Ino, Kind, Name, TargetId};
use amphi_wire::{Access, BATCH_BYTES_MAX, DirEntry, ReadPart, Request};
use order::Directory;
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Files opened ahead.
const READY_MAX: usize = 1024;
/// Files to be ahead of a reader at most.
const FILES_AHEAD_MAX: u64 = 256;
/// Questions under way.
const UNDER_WAY_MAX: usize = 4;
/// How long a file stays open ahead: less than a token lives.
const KEPT_NS: u64 = 20_000_000_000;
/// Directories of which names are kept.
const DIRECTORIES_MAX: usize = 16;
/// Names kept of all of them.
const NAMES_TOTAL_MAX: usize = 4 * order::NAMES_MAX;
/// Files of which the directory is remembered since they were looked up.
const HOMES_MAX: usize = 8192;
/// How long nothing is fetched after the answer to a change was lost: it may still happen.
const OPEN_END_NS: u64 = 180_000_000_000;
/// How files are opened ahead.
const READ: Access = Access { read: true, write: false };

/// What a change concerns.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Name(Ino, Name),
    Inode(Ino),
}

/// An open that the server counts and nobody has taken over yet; dropped, it is closed.
struct Opened {
    mount: Arc<Mount>,
    file: Option<Arc<Inode>>,
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(file) = self.file.take() {
            crate::ops::open::release(&self.mount, &file, READ, true);
        }
    }
}

/// A file opened ahead.
struct Ready {
    opened: Opened,
    dir: Ino,
    name: Name,
    cred: Arc<Cred>,
    /// The rule of caching under which it was asked for.
    rule: u64,
    until_ns: u64,
    /// Bytes that came with it.
    bytes: u64,
    /// It has no other name.
    alone_in_name: bool,
}

/// A question under way.
struct UnderWay {
    dir: Ino,
    files: BTreeMap<Ino, Name>,
    names: BTreeSet<Name>,
    /// What has been changed or revoked since it was asked.
    spoiled: BTreeSet<Key>,
    /// Nothing of its answer counts but locks.
    void: bool,
}

#[derive(Default)]
struct State {
    directories: BTreeMap<Ino, Directory>,
    /// Files looked up of late, and their directories.
    homes: BTreeMap<Ino, Ino>,
    homes_order: VecDeque<Ino>,
    ready: BTreeMap<Ino, Ready>,
    names: BTreeMap<(Ino, Name), Ino>,
    ready_bytes: u64,
    under_way: BTreeMap<u64, UnderWay>,
    /// Changes of this mount under way.
    changing: Vec<Key>,
    off_until_ns: u64,
    clock: u64,
}

/// What a mount has fetched ahead.
#[derive(Default)]
pub(crate) struct SmallFilePrefetch {
    state: Mutex<State>,
    answered: Signal,
    /// Files opened ahead and questions under way, to look at before the lock is taken.
    busy: AtomicU64,
}

impl State {
    fn take_out(&mut self, ino: Ino) -> Option<Ready> {
        let ready = self.ready.remove(&ino)?;
        self.ready_bytes -= ready.bytes;
        if self.names.get(&(ready.dir, ready.name.clone())) == Some(&ino) {
            self.names.remove(&(ready.dir, ready.name.clone()));
        }
        Some(ready)
    }

    /// Takes out what `wanted` says.
    fn take_all(&mut self, wanted: impl Fn(Ino, &Ready) -> bool) -> Vec<Ready> {
        let inodes: Vec<Ino> = self.ready.iter().filter(|(ino, r)| wanted(**ino, r)).map(|(ino, _)| *ino).collect();
        inodes.into_iter().filter_map(|ino| self.take_out(ino)).collect()
    }

    fn directory_of(&self, ino: Ino) -> Option<Ino> {
        let listed = self.directories.iter().find(|(_, d)| d.knows(ino)).map(|(dir, _)| *dir);
        listed.or_else(|| self.homes.get(&ino).copied())
    }

    /// The table of a directory, which takes the place of those unused for longest.
    fn directory(&mut self, dir: Ino) -> &mut Directory {
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

    fn is_asked(&self, ino: Ino) -> bool {
        self.under_way.values().any(|u| u.files.contains_key(&ino))
    }

    fn is_name_asked(&self, dir: Ino, name: &Name) -> bool {
        self.under_way.values().any(|u| u.dir == dir && u.names.contains(name))
    }

    /// How far to be ahead of a reader now; 0: nothing may be fetched.
    fn window(&self, mount: &Mount, mean_bytes: u64) -> usize {
        let off = self.off_until_ns > mount.clock.boot_ns() || mount.policy.group_short.load(Relaxed);
        let full = self.ready_bytes > mount.tunables.get(Tunable::CacheBytes) / 8
            || self.ready.len() >= READY_MAX
            || self.under_way.len() >= UNDER_WAY_MAX;
        if off || full {
            return 0;
        }
        let fit = BATCH_BYTES_MAX as u64 / mean_bytes.max(1);
        FILES_AHEAD_MAX.min(fit.max(1)) as usize
    }

    /// Whether what a question under way says of a file counts no more.
    fn is_spoiled(&self, batch: u64, dir: Ino, part: &ReadPart) -> bool {
        let keys = [Key::Name(dir, part.name.clone()), Key::Inode(part.ino), Key::Inode(dir)];
        self.under_way.get(&batch).is_none_or(|u| u.void || keys.iter().any(|key| u.spoiled.contains(key)))
    }

    fn spoil(&mut self, key: &Key) -> Option<Ready> {
        for under_way in self.under_way.values_mut() {
            under_way.spoiled.insert(key.clone());
        }
        match key {
            Key::Inode(ino) => self.take_out(*ino),
            Key::Name(dir, name) => {
                let ino = self.names.get(&(*dir, name.clone())).copied()?;
                self.take_out(ino)
            }
        }
    }
}

impl SmallFilePrefetch {
    fn note_busy(&self, state: &State) {
        self.busy.store((state.ready.len() + state.under_way.len()) as u64, Relaxed);
    }
}

/// What is fetched ahead now, for people: files, questions under way, and whether nothing may be fetched for a while.
pub(crate) fn gauges(mount: &Mount) -> [(&'static str, u64); 3] {
    let state = mount.prefetch.small_files.state.lock();
    let off = state.off_until_ns > mount.clock.boot_ns();
    [
        ("readahead_small_ready", state.ready.len() as u64),
        ("readahead_small_under_way", state.under_way.len() as u64),
        ("readahead_small_off", u64::from(off)),
    ]
}

fn is_on(mount: &Mount) -> bool {
    mount.tunables.on(Tunable::SmallAhead)
}

fn takes_over(flags: OpenFlags) -> bool {
    flags.read && !flags.write && !flags.truncate && !flags.exec
}

/// Opens a file that was opened ahead for this caller, without a message; `None` if it was not.
pub(crate) fn take(mount: &Arc<Mount>, ctx: &Ctx, ino: Ino, flags: OpenFlags) -> Option<Arc<OpenFile>> {
    if mount.prefetch.small_files.busy.load(Relaxed) == 0 || !takes_over(flags) {
        return None;
    }
    let begun = sharing::begin(mount);
    let ready = {
        let mut state = mount.prefetch.small_files.state.lock();
        if !may_use(mount, state.ready.get(&ino)?, &ctx.cred, begun.is_some()) {
            return None;
        }
        let mut ready = state.take_out(ino)?;
        if let Some(directory) = state.directories.get_mut(&ready.dir) {
            directory.note_used();
        }
        mount.prefetch.small_files.note_busy(&state);
        ready.opened.file.take()?
    };
    mount.stats.count(Count::Open);
    mount.stats.count(Count::SmallAheadUsed);
    opened(mount, &ctx.cred, ino);
    Some(Arc::new(mount.open_file(ready, flags, ctx, true)))
}

/// Whether what was opened ahead is still what an open would find.
fn may_use(mount: &Mount, ready: &Ready, cred: &Cred, alone: bool) -> bool {
    let rule = mount.coherence.sharing.rule();
    let Some(file) = &ready.opened.file else { return false };
    let in_time = mount.clock.boot_ns() < ready.until_ns;
    let certain = if rule & 1 == 1 { alone } else { tokens::holds_attributes(mount, file.ino) };
    ready.rule == rule && *ready.cred == *cred && in_time && certain
}

/// As `take`, of a file that is perhaps on its way.
pub(crate) async fn arrived(mount: &Arc<Mount>, ctx: &Ctx, ino: Ino, flags: OpenFlags) -> Option<Arc<OpenFile>> {
    if mount.prefetch.small_files.busy.load(Relaxed) == 0
        || !takes_over(flags)
        || !mount.prefetch.small_files.state.lock().is_asked(ino)
    {
        return None;
    }
    mount.prefetch.small_files.answered.until(|| !mount.prefetch.small_files.state.lock().is_asked(ino)).await;
    take(mount, ctx, ino, flags)
}

/// The attributes of a name that was looked up ahead, while this mount is alone.
pub(crate) fn find(mount: &Arc<Mount>, cred: &Cred, dir: Ino, name: &[u8]) -> Option<Attr> {
    if mount.prefetch.small_files.busy.load(Relaxed) == 0 {
        return None;
    }
    let begun = sharing::begin(mount)?;
    let key = (dir, Name::new(name.to_vec()).ok()?);
    let state = mount.prefetch.small_files.state.lock();
    let ready = state.ready.get(state.names.get(&key)?)?;
    if !ready.alone_in_name || !may_use(mount, ready, cred, true) {
        return None;
    }
    let file = ready.opened.file.as_ref()?;
    let attr = file.overlay(file.view().attr, true);
    drop((state, begun));
    mount.stats.count(Count::LookupCached);
    Some(attr)
}

/// Waits until a name is not on its way any more. Returns whether it was.
pub(crate) async fn name_arrived(mount: &Arc<Mount>, dir: Ino, name: &Name) -> bool {
    if mount.prefetch.small_files.busy.load(Relaxed) == 0
        || !mount.prefetch.small_files.state.lock().is_name_asked(dir, name)
    {
        return false;
    }
    mount
        .prefetch
        .small_files
        .answered
        .until(|| !mount.prefetch.small_files.state.lock().is_name_asked(dir, name))
        .await;
    true
}

/// A file is opened for reading: perhaps it is one of many.
pub(crate) fn opened(mount: &Arc<Mount>, cred: &Cred, ino: Ino) {
    if !is_on(mount) {
        return;
    }
    let now_ns = mount.clock.now_ns();
    let mut guard = mount.prefetch.small_files.state.lock();
    let state = &mut *guard;
    let Some(dir) = state.directory_of(ino) else { return };
    let mean_bytes = state.directories.get(&dir).map_or(0, |d| d.mean_bytes);
    let window = state.window(mount, mean_bytes);
    let directory = state.directory(dir);
    let load = directory.wants_names(ino);
    let plan = directory.on_open(now_ns, ino, window);
    let asked = if plan.is_empty() { None } else { fetch::begin(mount, state, dir, ino, plan) };
    mount.prefetch.small_files.note_busy(state);
    drop(guard);
    if load {
        mount.spawn(fetch::load(mount.clone(), cred.clone(), dir));
    }
    if let Some(batch) = asked {
        mount.spawn(fetch::run(mount.clone(), cred.clone(), batch));
    }
}

/// A name was looked up: its file has a directory.
pub(crate) fn looked_up(mount: &Mount, dir: Ino, attr: &Attr) {
    if !is_on(mount) || attr.kind != Kind::File {
        return;
    }
    let mut state = mount.prefetch.small_files.state.lock();
    if state.directories.get(&dir).is_some_and(|d| d.knows(attr.ino)) {
        return;
    }
    if state.homes.insert(attr.ino, dir).is_none() {
        state.homes_order.push_back(attr.ino);
    }
    while state.homes_order.len() > HOMES_MAX
        && let Some(oldest) = state.homes_order.pop_front()
    {
        state.homes.remove(&oldest);
    }
}

/// A part of a listing has come, of what lies behind cookie `from`.
pub(crate) fn listed(mount: &Mount, dir: Ino, from: u64, entries: &[DirEntry], end: bool) {
    if !is_on(mount) {
        return;
    }
    let to = if end { None } else { entries.last().map(|e| e.cookie) };
    if !end && to.is_none() {
        return;
    }
    let files = entries.iter().filter(|e| e.kind == Kind::File).map(|e| (e.cookie, e.name.clone(), e.ino));
    mount.prefetch.small_files.state.lock().directory(dir).learn(from, to, files);
}

/// A change by this mount: what was fetched ahead of what it concerns counts no more, nor what is being fetched.
pub(crate) struct Changing {
    mount: Arc<Mount>,
    keys: Vec<Key>,
    answered: bool,
}

/// To be called before the request is sent.
pub(crate) fn changing(mount: &Arc<Mount>, op: &Request) -> Option<Changing> {
    let name = |dir: &Ino, name: &Name| Key::Name(*dir, name.clone());
    let keys = match op {
        Request::Make { dir, name: n, .. } | Request::Unlink { dir, name: n } | Request::RmDir { dir, name: n } => {
            vec![name(dir, n)]
        }
        Request::Link { ino, dir, name: n } => vec![Key::Inode(*ino), name(dir, n)],
        Request::Rename { from, from_name, to, to_name, .. } => vec![name(from, from_name), name(to, to_name)],
        Request::Open { ino, access, .. } if access.write => vec![Key::Inode(*ino)],
        Request::SetAttr { ino, .. }
        | Request::SetXattr { ino, .. }
        | Request::RemoveXattr { ino, .. }
        | Request::SetLayout { ino, .. } => vec![Key::Inode(*ino)],
        _ => return None,
    };
    let mut gone = Vec::new();
    {
        let mut state = mount.prefetch.small_files.state.lock();
        for key in &keys {
            gone.extend(state.spoil(key));
            if let Key::Inode(ino) = key {
                // Whoever may not search a directory any more must not find its names here.
                gone.extend(state.take_all(|_, r| r.dir == *ino));
            }
        }
        state.changing.extend(keys.iter().cloned());
        mount.prefetch.small_files.note_busy(&state);
    }
    drop(gone);
    for key in &keys {
        // A file that loses its last name is to go at once.
        if let Key::Name(dir, _) = key {
            deferred_close::hurry(mount, dir.target());
        }
    }
    Some(Changing { mount: mount.clone(), keys, answered: false })
}

impl Changing {
    /// The answer has come.
    pub(crate) fn ends(&mut self) {
        self.answered = true;
    }
}

impl Drop for Changing {
    fn drop(&mut self) {
        let mut state = self.mount.prefetch.small_files.state.lock();
        for key in &self.keys {
            if let Some(at) = state.changing.iter().position(|k| k == key) {
                state.changing.swap_remove(at);
            }
        }
        let mut gone = Vec::new();
        if !self.answered {
            state.off_until_ns = self.mount.clock.boot_ns().saturating_add(OPEN_END_NS);
            state.under_way.values_mut().for_each(|u| u.void = true);
            gone = state.take_all(|_, _| true);
            self.mount.prefetch.small_files.note_busy(&state);
        }
        drop(state);
        drop(gone);
    }
}

/// Attributes tokens of these inodes were revoked: somebody changes them.
pub(crate) fn revoked(mount: &Arc<Mount>, target: TargetId, inodes: impl Iterator<Item = Ino>) {
    if mount.prefetch.small_files.busy.load(Relaxed) == 0 {
        deferred_close::hurry(mount, target);
        return;
    }
    let gone: Vec<Ready> = {
        let mut state = mount.prefetch.small_files.state.lock();
        let gone = inodes.filter_map(|ino| state.spoil(&Key::Inode(ino))).collect();
        mount.prefetch.small_files.note_busy(&state);
        gone
    };
    drop(gone);
    deferred_close::hurry(mount, target);
}

/// Nothing counts any more that was fetched of these targets, or of all without.
pub(crate) fn lose(mount: &Mount, targets: Option<&[TargetId]>) {
    let of = |target: TargetId| targets.is_none_or(|t| t.contains(&target));
    let gone = {
        let mut state = mount.prefetch.small_files.state.lock();
        state.under_way.values_mut().filter(|u| of(u.dir.target())).for_each(|u| u.void = true);
        let gone = state.take_all(|ino, _| of(ino.target()));
        mount.prefetch.small_files.note_busy(&state);
        gone
    };
    drop(gone);
}

/// Closes what nobody has opened for a while.
pub(crate) fn tick(mount: &Arc<Mount>) {
    if mount.prefetch.small_files.busy.load(Relaxed) > 0 {
        let (now_ns, boot_ns) = (mount.clock.now_ns(), mount.clock.boot_ns());
        let on = is_on(mount);
        let mut state = mount.prefetch.small_files.state.lock();
        let gone = state.take_all(|_, r| !on || r.until_ns <= boot_ns);
        for ready in &gone {
            mount.stats.count(Count::SmallAheadWasted);
            if let Some(directory) = state.directories.get_mut(&ready.dir) {
                directory.note_wasted(now_ns);
            }
        }
        mount.prefetch.small_files.note_busy(&state);
        drop(state);
        drop(gone);
    }
    deferred_close::hurry_all(mount);
}
