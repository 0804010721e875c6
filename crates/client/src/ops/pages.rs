//! Reads and writes of a front end's page cache in shared mode, mostly for mappings.
//!
//! Owns: how pages get locks. Does not own: how they are dropped before a lock is returned (`coherence::front_pages`),
//! writes to bytes that are in pages (`inode::front_pages`).
//!
//! Invariants: a page in the front end is covered by a lock that is held, or is being dropped. While pages are being
//! dropped, the front end waits for reads of these pages that are under way and for the write-back of dirty ones. Such
//! a request must not wait for anything that may wait for the lock. It is sent to the target without a lock of its own,
//! and pages that were read in this way are dropped a second time. A read that is not covered by locks which are held
//! or being returned may not be sent so, because other mounts may have newer bytes. Such a read waits for its lock, and
//! its pages are left out of the dropping (`Waiting`). So are the pages of a write for which the target has to call
//! back locks of other mounts (`WaitingWrite`); they are dropped after the write. If the lock was returned before the
//! pages were dropped, the target has a note of what other mounts have changed since, and write-back leaves those bytes
//! out.

use crate::coherence::attributes::size_now;
use crate::coherence::front_pages;
use crate::coherence::lease;
use crate::inode::front_pages::PAGE;
use crate::inode::overwrite::Overwrite;
use crate::inode::range_lock::{Guard, Hold};
use crate::inode::without_lock::{Free, Waiting, WaitingWrite, Way};
use crate::inode::{Inode, OpenFile};
use crate::locks::group_lock;
use crate::locks::{self, Pin};
use crate::mount::Mount;
use crate::objects::read::{Under, direct_pieces, read_piece};
use crate::objects::write::{WriteKind, write_piece};
use crate::ops::read::shared;
use crate::policy::decision::Mode;
use crate::telemetry::tunables::Tunable;
use crate::writeback::flush;
use amphi_dlm::Mode as LockMode;
use amphi_env::Buf;
use amphi_pagecache::Segments;
use amphi_types::{ByteRange, Errno, Result, TargetId, limits};
use amphi_wire::{Cover, LockExtent};
use futures_channel::oneshot;
use futures_util::future::{Either, join_all, select};
use smallvec::smallvec;
use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// How long a read of a page waits for the end of the dropping, in nanoseconds. The read then comes after the request
/// that waits for the lock. Otherwise a program that always touches pages that were just dropped would delay other
/// mounts for as long as it runs. The front end may wait for this very page, so after this time the read continues
/// without a lock.
const HELD_BACK_NS: u64 = 10_000_000;

/// Pause before a target that has too many notes is asked for a note again, in nanoseconds.
const NOTES_PAUSE_NS: u64 = 10_000_000;

/// The locks of an ordinary request.
type Held = (Guard, Vec<Pin>);

/// How a request for pages is carried out.
enum Entry {
    /// The request holds locks.
    Held(Held),
    /// The request runs without a lock, because the pages are being dropped so that the lock over them can be returned.
    /// When the request has ended, the pages that it has read are dropped as well.
    Free(Free),
}

/// The locks that an ordinary request needs.
#[derive(Clone, Copy)]
struct Needs {
    /// Bytes under the range lock.
    range: ByteRange,
    hold: Hold,
    /// Bytes under locks of the cluster.
    locked: ByteRange,
    mode: LockMode,
    extent: LockExtent,
}

/// Waits for the range lock and locks of the cluster, unless the pages are taken back first.
async fn hold(mount: &Arc<Mount>, file: &Arc<Inode>, member: u64, needs: Needs) -> Result<Entry> {
    let Needs { range, hold, .. } = needs;
    if hold == Hold::Shared && file.pages.is_being_dropped() {
        let over = pin!(file.signal.until(|| !file.pages.is_taking()));
        select(over, pin!(mount.life.pauses.pause(HELD_BACK_NS))).await;
    }
    loop {
        if let Some(free) = Free::begin(file, range) {
            return Ok(Entry::Free(free));
        }
        let (sender, held) = oneshot::channel::<Result<Held>>();
        let (mount2, file2) = (mount.clone(), file.clone());
        // The request runs in its own task, because a request for a lock is not given up half-way.
        mount.spawn(async move {
            let _ = sender.send(take(&mount2, &file2, member, needs).await);
        });
        let taken = pin!(file.signal.until(|| file.pages.is_taking()));
        match select(held, taken).await {
            Either::Left((Ok(held), _)) => return held.map(Entry::Held),
            Either::Left((Err(_), _)) => return Err(Errno::NotConnected),
            Either::Right(_) => {}
        }
    }
}

async fn take(mount: &Arc<Mount>, file: &Arc<Inode>, member: u64, needs: Needs) -> Result<Held> {
    let Needs { range, hold, locked, mode, extent } = needs;
    loop {
        let guard = group_lock::enter(file, member, range, hold).await?;
        let (mount2, file2) = (mount.clone(), file.clone());
        let pins = async move { locks::pin_spans(&mount2, &file2, mode, locked, extent).await };
        if let Some(pins) = group_lock::unless_asked(mount, file, member, pins).await {
            return Ok((guard, pins?));
        }
    }
}

/// Reads bytes that go into pages, by the cache or past it as `mode` says.
pub(crate) async fn read(mount: &Arc<Mount>, open: &OpenFile, asked: ByteRange, mode: Mode) -> Result<Segments> {
    let file = &open.file;
    lease::touch(mount, file, asked).await?;
    file.pages.note_of(open.front.emptied_rule.load(SeqCst), asked, mount.coherence.sharing.rule());
    let pages = asked.align_out(PAGE).intersect(&ByteRange::new(0, limits::FILE_MAX));
    let (locked, extent) = locked_for_read(mount, open, pages);
    let needs = Needs { range: pages, hold: Hold::Shared, locked, mode: LockMode::Read, extent };
    match hold(mount, file, open.member(), needs).await? {
        Entry::Held(_held) => {
            let data = shared::unlocked(mount, file, asked, pages, mode).await;
            if !open.front.serves.load(SeqCst) {
                file.pages.read_ns.store(mount.clock.now_ns(), SeqCst);
            }
            data
        }
        Entry::Free(free) => {
            file.pages.note_of(open.front.emptied_rule.load(SeqCst), asked, mount.coherence.sharing.rule());
            flush::flush_and_forget(mount, file, asked).await;
            if let Some(data) = read_protected(mount, file, asked, pages, &free).await {
                return data;
            }
            drop(free);
            // Other requests of this mount may have written these bytes, and keep them.
            let waiting = Waiting::begin(file, pages);
            let _held = take(mount, file, open.member(), needs).await?;
            let _free = waiting.granted();
            file.pages.note_of(open.front.emptied_rule.load(SeqCst), asked, mount.coherence.sharing.rule());
            flush::flush_and_forget(mount, file, asked).await;
            let notes = file.pages.taking.lock().notes.clone();
            read_past(mount, file, asked, &|target| notes.get(&target).map_or(Under::Lock, |left| Under::Note(*left)))
                .await
        }
    }
}

/// Reads bytes without locks of its own. These bytes are covered by locks that are held or being returned, and the read
/// delays the return of these locks. Returns `None` if other mounts may write some of the bytes.
async fn read_protected(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    asked: ByteRange,
    pages: ByteRange,
    free: &Free,
) -> Option<Result<Segments>> {
    let layout = file.layout();
    let targets: BTreeSet<TargetId> =
        layout.spans(file.ino, pages).into_keys().map(|object| layout.target(file.ino, object.stripe)).collect();
    let ways: Vec<Way<'_>> = targets.into_iter().map(|target| free.way(target)).collect();
    let is_protected = ways.iter().all(|way| matches!(way, Way::Protected(_)));
    if !is_protected || !locks::permit(mount, file, LockMode::Read, pages) {
        return None;
    }
    Some(read_past(mount, file, asked, &|_| Under::Lock).await)
}

/// The range that is locked for a read of pages. For a small file that the front end reads ahead, it is the whole file.
/// The front end requests many pieces at once, and separate lock requests would look like those of many clients. If
/// other mounts compete for the file, open files that the front end serves lock only the requested pages, without
/// growth, so that no mount drops pages because of other bytes.
fn locked_for_read(mount: &Mount, open: &OpenFile, pages: ByteRange) -> (ByteRange, LockExtent) {
    let file = &open.file;
    if !open.front.serves.load(SeqCst) {
        return (pages, LockExtent::Grown);
    }
    if mount.tunables.on(Tunable::Contention) && mount.is_contended(file) {
        return (pages, LockExtent::Exact);
    }
    let end = file.size().max(pages.end);
    let is_small = end <= mount.tunables.get(Tunable::LargeRead);
    (if is_small { ByteRange::new(0, end).align_out(PAGE) } else { pages }, LockExtent::Grown)
}

/// Reads bytes past the cache, because the bytes in the cache may be newer than the target assumes for a page that is
/// read in this way.
async fn read_past(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    asked: ByteRange,
    under: &(dyn Fn(TargetId) -> Under + Sync),
) -> Result<Segments> {
    let range = asked.intersect(&ByteRange::new(0, size_now(mount, file).await?));
    if range.is_empty() {
        return Ok(Segments::new());
    }
    let parts = join_all(direct_pieces(file, range).into_iter().map(|(object, piece)| {
        let under = under(file.layout().target(file.ino, object.stripe));
        async move { read_piece(mount, file, object, piece, under).await }
    }))
    .await;
    let mut data = Segments::new();
    for part in parts {
        let (bytes, zeros) = part?;
        data.push(bytes);
        if zeros > 0 {
            data.push(Buf::zeroed(zeros as usize));
        }
    }
    Ok(data)
}

/// Writes pages back, or through pages that stay. Returns the locks that it holds, with the bytes and their places, if
/// these may be put into the cache.
pub(crate) async fn write(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    member: u64,
    range: ByteRange,
    mut data: Buf,
    write_back: bool,
) -> Result<Option<(Held, ByteRange, Buf)>> {
    lease::touch(mount, file, range).await?;
    file.pages.keep();
    let (mode, extent) = (LockMode::Write, LockExtent::Grown);
    let needs = Needs { range, hold: Hold::Exclusive, locked: range, mode, extent };
    let entry = hold(mount, file, member, needs).await?;
    if write_back && matches!(entry, Entry::Free(_)) {
        note_changes(mount, file, range).await?;
    }
    let range = if write_back { within_end(mount, file, range).await? } else { range };
    let data = data.split_to(range.len() as usize);
    let free = match entry {
        _ if range.is_empty() => return Ok(None),
        Entry::Held(held) => return Ok(Some((held, range, data))),
        Entry::Free(free) => free,
    };
    file.pages.keep();
    file.size.turn();
    crate::coherence::tokens::outdated(mount, file.ino);
    flush::flush_and_forget(mount, file, range).await;
    let mut done = Ok(());
    for (part, mut rest) in parts(file, range, data, write_back) {
        for (object, piece) in direct_pieces(file, part) {
            let bytes = rest.split_to(piece.len() as usize);
            done = done.and(write_free(mount, file, object, piece, bytes, &free).await);
        }
    }
    mount.cache.forget(file, range, amphi_pagecache::Dirty::Keep);
    file.size.turn();
    crate::coherence::tokens::outdated(mount, file.ino);
    done.map(|()| None)
}

/// The part of `range` that lies inside the file. Write-back of a page makes no file longer, whatever size the front
/// end assumes, since another mount may have truncated it. The caller keeps other mounts from truncating the file, by
/// locks or by notes of the targets.
async fn within_end(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange) -> Result<ByteRange> {
    // The file is at least as long as the bytes that this mount has written under locks that it still holds.
    if range.end <= file.size.own_end() {
        return Ok(range);
    }
    let end = size_now(mount, file).await?;
    Ok(ByteRange::new(range.start, range.end.min(end).max(range.start)))
}

/// Makes targets note the changes of other mounts, where no write lock of this mount prevents such changes.
async fn note_changes(mount: &Arc<Mount>, file: &Arc<Inode>, range: ByteRange) -> Result<()> {
    for (object, piece) in direct_pieces(file, range) {
        if !locks::permit(mount, file, LockMode::Write, piece) {
            note_of(mount, file, file.layout().target(file.ino, object.stripe)).await?;
        }
    }
    Ok(())
}

async fn write_free(
    mount: &Arc<Mount>,
    file: &Arc<Inode>,
    object: amphi_types::ObjectId,
    piece: ByteRange,
    bytes: Buf,
    free: &Free,
) -> Result<()> {
    let target = file.layout().target(file.ino, object.stripe);
    let note = match free.way(target) {
        Way::Protected(_until_written) if locks::permit(mount, file, LockMode::Write, piece) => {
            let kind = WriteKind::Direct { server_lock: false, kill_suidgid: false, cover: Cover::None };
            write_piece(mount, file, object, piece.start, bytes, kind).await?;
            file.extend(piece.end);
            return Ok(());
        }
        Way::Left(note) => note,
        // Other mounts may have cached the previous content of these bytes, so the target calls their locks back. A
        // request that waits for such a note does not keep locks of this mount from being returned, because the other
        // mount may wait for these very locks.
        Way::Protected(until_written) => {
            drop(until_written);
            note_of(mount, file, target).await?
        }
    };
    let _waiting = WaitingWrite::begin(file, piece.align_out(PAGE));
    // The target knows where the file ends now, since another mount may have truncated it.
    match write_piece(mount, file, object, piece.start, bytes, WriteKind::Left(note)).await {
        Err(Errno::Stale) => {
            tracing::error!(ino = %file.ino, "a mapped page was not written back: its target was restarted meanwhile");
            mount.writeback.errors.note(Errno::Io, mount.clock.now_ns());
            file.failures.note(Errno::Io, piece);
            Err(Errno::Io)
        }
        written => written,
    }
}

/// The number of the target's note, for a request that goes without a lock.
async fn note_of(mount: &Arc<Mount>, file: &Arc<Inode>, target: TargetId) -> Result<u64> {
    loop {
        match front_pages::have_noted(mount, file, target).await {
            Ok(Some(note)) => return Ok(note),
            Ok(None) => unreachable!("pages are being taken back until the request has ended"),
            // Other requests of this mount end soon.
            Err(Errno::NoMem) => mount.life.pauses.pause(NOTES_PAUSE_NS).await,
            Err(e) => return Err(e),
        }
    }
}

/// An append was written at another offset than the front end assumed, so the front end has a copy of its bytes in the
/// wrong pages, those at the offset `told`. These pages are dropped.
pub(crate) async fn misplaced(mount: &Arc<Mount>, file: &Arc<Inode>, told: ByteRange, overwrite: Option<Overwrite>) {
    if let Some(overwrite) = overwrite {
        overwrite.settle(mount.coherence.sharing.pages()).await;
    }
    crate::coherence::front_pages::drop_overwritten(mount, file.ino, told.align_out(PAGE)).await;
}

/// The parts of `data` for `range` that have to be written. Bytes that a write has replaced since the page was read are
/// left out.
pub(crate) fn parts(
    file: &Inode,
    range: ByteRange,
    mut data: Buf,
    write_back: bool,
) -> impl Iterator<Item = (ByteRange, Buf)> {
    let left = if write_back { file.pages.left(range) } else { smallvec![range] };
    let mut at = range.start;
    left.into_iter().map(move |part| {
        if part == range {
            return (part, std::mem::take(&mut data));
        }
        drop(data.split_to((part.start - at) as usize));
        at = part.end;
        (part, data.split_to(part.len() as usize))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::KernelPages;
    use crate::coherence::front_pages;
    use crate::tests::{World, block_on};
    use amphi_types::Ino;
    use parking_lot::Mutex;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    /// A model of a kernel that counts how often it is asked to drop pages, and that drops them slowly.
    struct Drops {
        begun: AtomicU64,
        hits: AtomicU64,
        ended: Mutex<Vec<(u64, ByteRange)>>,
    }

    impl KernelPages for Drops {
        fn drop_pages(&self, _: Ino, range: ByteRange, done: Box<dyn FnOnce() + Send>) {
            let number = self.begun.fetch_add(1, SeqCst) + 1;
            let before = self.hits.load(SeqCst);
            for _ in 0..2000 {
                std::hint::spin_loop();
                if self.hits.load(SeqCst) > before {
                    break;
                }
            }
            self.ended.lock().push((number, range));
            done();
        }

        fn drop_overwritten(&self, ino: Ino, range: ByteRange, done: Box<dyn FnOnce() + Send>) {
            self.drop_pages(ino, range, done);
        }
    }

    /// Goal: if a caller is informed that its pages are read without a lock, they are dropped after that. Method: two
    /// threads request pages of their own while a third one repeatedly drops all pages. In each round, every such
    /// answer needs a drop that began later.
    #[test]
    fn pages_that_come_without_a_lock_are_taken_again() {
        const ROUNDS: usize = 2000;
        let mut w = World::new(1, &[]);
        let open = w.create("f", crate::OpenFlags::READ_WRITE);
        let (mount, file) = (w.client.mount.clone(), open.file.clone());
        let drops = Arc::new(Drops { begun: AtomicU64::new(0), hits: AtomicU64::new(0), ended: Mutex::default() });
        mount.coherence.sharing.set_pages(Some(drops.clone()));
        let (turn, is_over) = (Barrier::new(3), AtomicBool::new(true));
        let asked: Mutex<Vec<(u64, ByteRange)>> = Mutex::default();
        let mut missed = Vec::new();
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (file, drops, turn, is_over, asked) = (&file, &drops, &turn, &is_over, &asked);
                scope.spawn(move || {
                    let page = ByteRange::at(thread * PAGE, PAGE);
                    for _ in 0..ROUNDS {
                        let mut mine = Vec::new();
                        turn.wait();
                        while !is_over.load(SeqCst) {
                            let begun = drops.begun.load(SeqCst);
                            // Only a few requests without a lock run at a time, so that the rounds end.
                            if mine.len() < 8 && Free::begin(file, page).is_some() {
                                mine.push((begun, page));
                                drops.hits.fetch_add(1, SeqCst);
                            }
                        }
                        asked.lock().append(&mut mine);
                        turn.wait();
                    }
                });
            }
            for round in 0..ROUNDS {
                is_over.store(false, SeqCst);
                turn.wait();
                block_on(front_pages::take_all(&mount, &file));
                // On a busy machine the other threads may not have had their turn yet.
                for _ in 0..100 {
                    if drops.hits.load(SeqCst) > 0 {
                        break;
                    }
                    std::thread::yield_now();
                    block_on(front_pages::take_all(&mount, &file));
                }
                is_over.store(true, SeqCst);
                turn.wait();
                let ended = std::mem::take(&mut *drops.ended.lock());
                for (begun, page) in asked.lock().drain(..) {
                    if !ended.iter().any(|(number, range)| *number > begun && range.contains(&page)) {
                        missed.push((round, begun, page));
                    }
                }
            }
        });
        assert_eq!(missed, []);
        assert!(drops.hits.load(SeqCst) > 0 && !file.pages.is_taking());
        mount.coherence.sharing.set_pages(None);
    }

    /// Goal: a cached write of several units that fails leaves none of its bytes. Method: one thread writes two units
    /// repeatedly while another one adds and drops pages. After each attempt all bytes are those of the last write that
    /// succeeded.
    #[test]
    fn a_refused_write_leaves_nothing() {
        const LEN: usize = 128 << 10;
        let mut w = World::new(1, &[]);
        let open = w.create("f", crate::OpenFlags::READ_WRITE);
        open.set_io_mode(amphi_types::IoMode::Buffered);
        let (ctx, hints) = (crate::api::Ctx::root(), crate::api::Hints::default());
        let op = w.client.write(&ctx, &open, 0, Buf::zeroed(LEN), hints);
        assert_eq!(w.run(op), Ok(LEN));
        let (client, range, is_over) = (w.client.clone(), ByteRange::new(0, LEN as u64), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    open.file.pages.note(range);
                    open.file.pages.forget();
                }
            });
            let (mut last, mut into) = (0, vec![0; LEN]);
            let mut mixed = None;
            for round in 0..5000 {
                let byte = round as u8;
                if client.try_write(&ctx, &open, 0, &vec![byte; LEN], hints).is_some() {
                    last = byte;
                }
                let is_there = client.mount.cache.read(&open.file, range, &mut into);
                if !is_there || into.iter().any(|b| *b != last) {
                    mixed = Some(round);
                    break;
                }
            }
            is_over.store(true, SeqCst);
            assert_eq!(mixed, None);
        });
        drop((open, client));
        w.check_clean();
    }
}
