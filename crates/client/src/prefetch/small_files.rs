//! Small files of a directory, fetched ahead of a program that opens them one after the other.
//!
//! Owns: the messages that open files ahead, and giving prefetched opens to programs. Does not own: the table of these
//! files (`tables::prefetch::small_files`), which files come next (`order`), which changes and revocations end them
//! (`coherence::opened_ahead`), the bytes (`cache`), the locks (`locks`), names and attributes in shared mode
//! (`tokens`).
//!
//! One message (`ReadBatch`) looks up several names, opens the files for reading and brings attributes, a read lock on
//! stripe 0 and the bytes. Each of these opens is a real open: the server has checked the caller's permission and
//! counts the open. So a later open of the file by the same caller needs no message, and the read that follows finds
//! the bytes in the cache. An open that no program takes over is closed like any open file.
//!
//! Invariants:
//! * **Permission.** A prefetched open is given only to a caller with exactly the credentials for which the server
//!   checked it, and only while nothing can have changed since: in sole mode, this mount has changed neither the name
//!   nor the inode since the request; in shared mode, the attributes token that came with the answer has not been
//!   revoked since. Both are also checked for changes while the request is under way (`UnderWay::spoiled`). The bytes
//!   are in the cache like those of other files: only an open file can read them.
//! * **Bytes.** The bytes enter the cache under the pinned lock that came with them, as a fill. This is done only for a
//!   file that was not in this mount's table from before the request until the answer, so no write, truncate or lock of
//!   this mount can lie between (`InodeTable::open_ahead`).
//! * **Names.** In sole mode, a look-up is answered from here only for a file with one link, and for the same
//!   credentials. In shared mode the tokens that came with the answer permit the look-up.
//! * **Waiting.** An open or look-up of a file that is being fetched waits for that answer. The server waits for no
//!   mount before it gives the answer.
//!
//! Bounds: `READY_MAX` files opened ahead, an eighth of the cache, and `UNDER_WAY_MAX` requests. Nothing is fetched
//! while the memory group is short of memory. Files that no program has opened within `KEPT_NS` are closed; their bytes
//! stay in the cache.

mod fetch;
pub(crate) mod kept;

use crate::api::{Ctx, OpenFlags};
use crate::coherence::closes;
use crate::coherence::sharing;
use crate::coherence::tokens;
use crate::inode::OpenFile;
use crate::mount::Mount;
use crate::tables::prefetch::kept_opens::Opener;
use crate::tables::prefetch::small_files::Ready;
use crate::telemetry::stats::Count;
use crate::telemetry::tunables::Tunable;
use amphi_types::{Attr, Cred, Ino, Kind, Name};
use amphi_wire::DirEntry;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// The state of prefetching, for users: files, requests under way, and whether nothing may be fetched for a while.
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

/// Opens without a message a file that was opened ahead for this caller, or whose last open is kept. Returns `None` if
/// there is no such open.
pub(crate) fn take(mount: &Arc<Mount>, ctx: &Ctx, ino: Ino, flags: OpenFlags) -> Option<Arc<OpenFile>> {
    if mount.prefetch.small_files.busy.load(Relaxed) == 0 || !takes_over(flags) {
        return None;
    }
    kept::take(mount, ctx, ino, flags).or_else(|| take_ahead(mount, ctx, ino, flags))
}

fn take_ahead(mount: &Arc<Mount>, ctx: &Ctx, ino: Ino, flags: OpenFlags) -> Option<Arc<OpenFile>> {
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
        state.kept.note(ino, Opener { cred: ready.cred.clone(), rule: ready.rule });
        mount.prefetch.small_files.note_busy(&state);
        ready.opened.take()?
    };
    mount.stats.count(Count::Open);
    mount.stats.count(Count::SmallAheadUsed);
    opened(mount, &ctx.cred, ino);
    Some(Arc::new(mount.open_file(ready, flags, ctx, true)))
}

/// Returns whether a prefetched open is still what an open would return.
fn may_use(mount: &Mount, ready: &Ready, cred: &Cred, alone: bool) -> bool {
    let rule = mount.coherence.sharing.rule();
    let Some(file) = ready.opened.file() else { return false };
    let in_time = mount.clock.boot_ns() < ready.until_ns;
    let certain = if rule & 1 == 1 { alone } else { tokens::holds_attributes(mount, file.ino) };
    ready.rule == rule && *ready.cred == *cred && in_time && certain
}

/// Works as `take`, for a file whose prefetch may still be under way.
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

/// The attributes of a name that was looked up ahead, in sole mode.
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
    let file = ready.opened.file()?;
    let attr = file.overlay(file.view().attr, true);
    drop((state, begun));
    mount.stats.count(Count::LookupCached);
    Some(attr)
}

/// Waits until a name is no longer being fetched. Returns whether the name was being fetched.
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

/// Called when a file is opened for reading. The file may be one of many that a program opens in order.
pub(crate) fn opened(mount: &Arc<Mount>, cred: &Cred, ino: Ino) {
    if !is_on(mount) {
        return;
    }
    let now_ns = mount.clock.now_ns();
    let mut guard = mount.prefetch.small_files.state.lock();
    let state = &mut *guard;
    let Some(dir) = state.directory_of(ino) else { return };
    let mean_bytes = state.directories.get(&dir).map_or(0, |d| d.mean_bytes);
    let (short, cache_bytes) = (mount.policy.group_short.load(Relaxed), mount.tunables.get(Tunable::CacheBytes));
    let window = state.window(mount.clock.boot_ns(), short, cache_bytes, mean_bytes);
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

/// Called when a name was looked up: its file has a directory.
pub(crate) fn looked_up(mount: &Mount, dir: Ino, attr: &Attr) {
    if !is_on(mount) || attr.kind != Kind::File {
        return;
    }
    mount.prefetch.small_files.state.lock().note_home(dir, attr.ino);
}

/// Called when a part of a listing has arrived, the entries behind cookie `from`.
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

/// Closes files that no program has opened for a while: prefetched and kept ones.
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
        let kept = kept::ended(mount, &mut state.kept);
        mount.prefetch.small_files.note_busy(&state);
        drop(state);
        drop((gone, kept));
    }
    closes::hurry_all(mount);
}
