//! getattr and setattr, truncate included.
//!
//! Owns: how the server's attributes and what only this client knows come together, and the order of a truncate: range
//! lock, in company write locks on everything beyond the new end, nothing sets out beyond the new end, what is under
//! way lands, the server cuts, the cache is cut.

use super::{inode_reply, known};
use crate::api::Ctx;
use crate::cache::drop::Dirty;
use crate::coherence::group_lock;
use crate::coherence::locks::{self, Pin};
use crate::coherence::range_lock::Hold;
use crate::coherence::sharing;
use crate::coherence::tokens::{self, Told};
use crate::inode::{AskedAt, Inode, OpenFile};
use crate::mount::Mount;
use crate::telemetry::stats::Count;
use crate::writeback::flush;
use crate::writeback::write_behind;
use amphi_dlm::{Mode, TokenKey};
use amphi_types::{Attr, ByteRange, Cred, Errno, Ino, Kind, Result, SetAttr, limits};
use amphi_wire::{InodeView, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// How often the size is asked for as if nothing of this mount came between question and answer; then its own changes
/// are asked for too.
pub(crate) const TRIES: usize = 4;
/// How often it is found out where a file ends that is written there.
const LEARN_NS: u64 = 1_000_000_000;

pub(crate) async fn getattr(mount: Arc<Mount>, ctx: Ctx, ino: Ino) -> Result<Attr> {
    mount.stats.count(Count::GetAttr);
    match ask(&mount, &ctx.cred, ino).await {
        Err(Errno::Stale) => mount.coherence.unlinked.attr(ino),
        answer => answer.map(|(_, attr)| attr),
    }
}

/// Asks for an inode. Returns what the server says, and the attributes with what only this client knows.
///
/// `Inode::size` is what the attributes say, unless changes of this mount's own keep coming: then it is left alone, and
/// the size returned was the file's at some moment of the call.
pub(crate) async fn ask(mount: &Arc<Mount>, cred: &Cred, ino: Ino) -> Result<(InodeView, Attr)> {
    match ask_settled(mount, cred, ino).await? {
        Some(answer) => Ok(answer),
        None => ask_now(mount, cred, ino).await,
    }
}

/// As `ask`, but `None` if changes of this mount's own keep coming; otherwise `Inode::size` is what the attributes say.
async fn ask_settled(mount: &Arc<Mount>, cred: &Cred, ino: Ino) -> Result<Option<(InodeView, Attr)>> {
    for _ in 0..TRIES {
        let mut told = tokens::call(mount, ino.target(), cred, Request::GetAttr { ino }, &[]).await?;
        let view = inode_reply(told.take()?)?;
        let (attr, taken) = told.keep_size(view);
        if taken {
            return Ok(Some((view, attr)));
        }
    }
    Ok(None)
}

/// As `ask`, for a file that this mount itself changes all the time: the server asks it for its own changes, as it asks
/// others.
pub(crate) async fn ask_now(mount: &Arc<Mount>, cred: &Cred, ino: Ino) -> Result<(InodeView, Attr)> {
    loop {
        mount.stats.count(Count::GetAttrNow);
        let mut told = tokens::call(mount, ino.target(), cred, Request::GetAttrNow { ino }, &[]).await?;
        let view = inode_reply(told.take()?)?;
        let (mut attr, taken) = told.keep_size(view);
        if taken {
            return Ok((view, attr));
        }
        let rule = told.asked_at.rule();
        if mount.coherence.sharing.rule() != rule {
            // Whether locks tell the server what is here has changed meanwhile.
            continue;
        }
        let alone = rule & 1 == 1;
        // Alone there are no locks by which the server could ask, and nobody else who changes the file.
        let own = mount.files.get(ino).filter(|_| alone).map_or(0, |file| file.own_end());
        attr.size = view.attr.size.max(own);
        return Ok((view, attr));
    }
}

/// The attributes that an answer to something else than a question shows. If changes of this mount's own came in
/// between, so that its size is not taken, they are asked for.
pub(crate) async fn shown(mount: &Arc<Mount>, cred: &Cred, told: Told, view: InodeView) -> Attr {
    let (attr, taken) = told.keep_size(view);
    drop(told);
    if taken || view.attr.kind != Kind::File {
        return attr;
    }
    // What was done is done, whatever becomes of the question.
    ask(mount, cred, view.attr.ino).await.map_or(attr, |(_, fresh)| fresh)
}

/// Asks for the inode again after the server knew better: truncated or changed elsewhere.
pub(crate) async fn reload(mount: &Arc<Mount>, file: &Arc<Inode>) -> Result<()> {
    ask(mount, &Cred::root(), file.ino).await.map(|_| ())
}

/// The size of the file now: of the moment of the call or later. It stays true while the caller holds locks beyond
/// which nobody can change it.
pub(crate) async fn size_now(mount: &Arc<Mount>, file: &Arc<Inode>) -> Result<u64> {
    if tokens::is_sure(mount, file) || knows_end(mount, file) {
        return Ok(file.size());
    }
    ask(mount, &Cred::root(), file.ino).await.map(|(_, attr)| attr.size)
}

/// The end of the file now. `locked`: the caller has pinned write locks on all of every object, so that no other mount
/// changes it; then it stays known as long as this one keeps these locks.
pub(crate) async fn end_now(mount: &Arc<Mount>, file: &Arc<Inode>, locked: bool) -> Result<u64> {
    if knows_end(mount, file) {
        return Ok(file.size());
    }
    let known = match tokens::is_sure(mount, file) {
        true => Some(file.size()),
        false => ask_settled(mount, &Cred::root(), file.ino).await?.map(|(_, attr)| attr.size),
    };
    match known {
        Some(end) => {
            // Members of a group on other mounts move the end, too.
            if locked && file.group.id() == 0 {
                file.end_kept.store(true, SeqCst);
            }
            Ok(end)
        }
        None => ask_now(mount, &Cred::root(), file.ino).await.map(|(_, attr)| attr.size),
    }
}

/// Finds out where the file ends, behind the caller's back, and keeps that if this mount has all of its locks.
pub(crate) fn learn_end(mount: &Arc<Mount>, file: &Arc<Inode>) {
    let now = mount.clock.now_ns();
    let asked = file.end_asked_ns.load(SeqCst);
    let is_due = asked == 0 || now >= asked + LEARN_NS;
    if !is_due || file.end_asked_ns.compare_exchange(asked, now.max(1), SeqCst, SeqCst).is_err() {
        return;
    }
    let (here, file) = (mount.clone(), file.clone());
    mount.spawn(async move {
        let has_all = locks::covered(&file, locks::all_stripe_bits(&file));
        let pins =
            if has_all { locks::try_pin_objects(&here, &file, Mode::Write, ByteRange::ALL).await.ok() } else { None };
        if let Err(e) = end_now(&here, &file, pins.is_some()).await {
            tracing::debug!(ino = %file.ino, "the end is not known: {e}");
        }
    });
}

/// Whether `Inode::size` is the end of the file: alone once it was asked for, with other mounts as long as this one has
/// kept the write locks under which it was asked for.
pub(crate) fn knows_end(mount: &Mount, file: &Inode) -> bool {
    if mount.coherence.sharing.is_alone() {
        return tokens::is_sure(mount, file);
    }
    file.end_kept.load(SeqCst)
        && file.group.id() == 0
        && locks::covered(file, locks::all_stripe_bits(file))
        && mount.coherence.sharing.leases.in_touch_for(mount.clock.boot_ns(), file, ByteRange::ALL)
}

pub(crate) async fn setattr(
    mount: Arc<Mount>,
    ctx: Ctx,
    ino: Ino,
    set: SetAttr,
    open: Option<Arc<OpenFile>>,
) -> Result<Attr> {
    mount.stats.count(Count::SetAttr);
    match set_attr(mount.clone(), ctx, ino, set, open).await {
        Err(Errno::Stale) => mount.coherence.unlinked.change(ino, &set, mount.wall()),
        answer => answer,
    }
}

async fn set_attr(
    mount: Arc<Mount>,
    ctx: Ctx,
    ino: Ino,
    mut set: SetAttr,
    open: Option<Arc<OpenFile>>,
) -> Result<Attr> {
    if let Some(open) = &open
        && open.flags.write
    {
        set.open_for_write = true;
    }
    if set.size.is_some_and(|size| size > limits::FILE_MAX) {
        return Err(Errno::FileTooBig);
    }
    let member = open.as_ref().map_or(0, |open| open.member());
    let in_use = if open.is_none() { known::use_known(&mount, ino) } else { None };
    let file = open.map(|open| open.file.clone()).or_else(|| in_use.as_ref().map(|in_use| in_use.file().clone()));
    if let (Some(file), Some(_)) = (&file, set.atime) {
        let mut known = file.known.lock();
        (known.accessed, known.accessed_due) = (None, false);
    }
    match (file, set.size) {
        (Some(file), Some(size)) => truncate(&mount, &ctx.cred, &file, member, size, set).await,
        (None, Some(size)) => {
            // The locks that a truncate takes among several mounts need the file's layout. Alone, somebody may open the
            // file meanwhile: he is shown the old size or the new one, and no zeros between them.
            let asked_at = mount.asked_at();
            let (view, _) = ask(&mount, &ctx.cred, ino).await?;
            let file = known::know(&mount, view, asked_at);
            truncate(&mount, &ctx.cred, file.file(), 0, size, set).await
        }
        (file, None) => {
            if let (Some(file), Some(_)) = (&file, set.mtime) {
                // What is on its way has the time of its write, which must not come after this one.
                write_behind::drained(file).await;
            }
            let begun = sharing::begin(&mount);
            let pins = match &begun {
                None if set.mtime.is_some() => written_back(&mount, &ctx.cred, ino, file.as_ref()).await?,
                _ => Vec::new(),
            };
            let mut told = change(&mount, &ctx.cred, ino, set).await?;
            let view = inode_reply(told.take()?)?;
            if let (Some(file), Some(_)) = (&file, set.mtime) {
                explicit_time(&mount, file, &view);
            }
            let attr = told.keep_view(view);
            let partial =
                view.attr.kind == Kind::File && !mount.coherence.sharing.is_alone() && !told.grants_attributes();
            drop((told, pins, begun));
            // Another mount may have written what the answer does not know.
            if partial { getattr(mount, ctx, ino).await } else { Ok(attr) }
        }
    }
}

/// Before times are set among several mounts: what others have in their caches is written back, with the time of its
/// write, and nothing new is written while the locks are pinned.
async fn written_back(mount: &Arc<Mount>, cred: &Cred, ino: Ino, file: Option<&Arc<Inode>>) -> Result<Vec<Pin>> {
    if let Some(file) = file {
        return beyond(mount, file, 0).await;
    }
    let asked_at = mount.asked_at();
    let (view, _) = ask(mount, cred, ino).await?;
    if view.attr.kind != Kind::File {
        return Ok(Vec::new());
    }
    let file = known::know(mount, view, asked_at);
    beyond(mount, file.file(), 0).await
}

/// Sends a SetAttr.
pub(crate) async fn change(mount: &Arc<Mount>, cred: &Cred, ino: Ino, set: SetAttr) -> Result<tokens::Told> {
    tokens::call(mount, ino.target(), cred, Request::SetAttr { ino, set }, &[TokenKey::Attributes(ino)]).await
}

/// Dirty bytes written before a time was set carry none when they leave.
fn explicit_time(mount: &Mount, file: &Inode, view: &InodeView) {
    file.time_was_set(view.attr.mtime);
    if !mount.coherence.sharing.is_alone() {
        file.times_told();
    }
}

/// A hold on write-back: nothing sets out from an offset on until it is dropped.
pub(crate) struct Frozen {
    file: Arc<Inode>,
    mount: Arc<Mount>,
    from: u64,
}

impl Frozen {
    /// Holds back what lies from `from` on.
    pub(crate) fn from(mount: &Arc<Mount>, file: &Arc<Inode>, from: u64) -> Frozen {
        file.flights.lock().freeze(from);
        Frozen { file: file.clone(), mount: mount.clone(), from }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.file.flights.lock().thaw(self.from);
        self.file.signal.notify();
        self.mount.writeback.landed.notify();
    }
}

/// Changes the size, and whatever else `set` says.
pub(crate) async fn truncate(
    mount: &Arc<Mount>,
    cred: &Cred,
    file: &Arc<Inode>,
    member: u64,
    size: u64,
    set: SetAttr,
) -> Result<Attr> {
    let locks = move |mount: Arc<Mount>, file: Arc<Inode>| async move { beyond(&mount, &file, size).await };
    let all = (ByteRange::ALL, Hold::Exclusive);
    let (_guard, _begun, pins) = group_lock::enter_pinned(mount, file, member, all, locks).await?;
    resize(mount, cred, file, size, set, pins).await
}

/// Write locks on everything from `size` on: nobody else changes the end of the file there until they are dropped.
pub(crate) async fn beyond(mount: &Arc<Mount>, file: &Arc<Inode>, size: u64) -> Result<Vec<Pin>> {
    locks::pin_objects(mount, file, Mode::Write, ByteRange::new(size, u64::MAX)).await
}

/// As `truncate`, for a caller that holds the range lock on the whole file and, in company, `beyond`.
pub(crate) async fn resize(
    mount: &Arc<Mount>,
    cred: &Cred,
    file: &Arc<Inode>,
    size: u64,
    set: SetAttr,
    pins: Vec<Pin>,
) -> Result<Attr> {
    file.turn();
    tokens::outdated(mount, file.ino);
    let beyond = ByteRange::new(size, u64::MAX);
    // A write that passed its check before the range lock was taken has ended after this.
    mount.cache.barrier();
    if !pins.is_empty() {
        // Others may ask for the size as soon as the server has cut the file, before its answer is taken here: what
        // this mount tells them must not reach beyond the new end, so until then the server has to know of all that
        // does.
        flush::flush(mount, file, beyond).await;
        file.own_ends_by(size);
    }
    let _frozen = Frozen::from(mount, file, size);
    file.signal.until(|| !file.in_flight(beyond)).await;
    let done = async {
        let mut told = change(mount, cred, file.ino, set).await?;
        let view = inode_reply(told.take()?)?;
        Ok((told, view))
    };
    let (told, view) = match done.await {
        Ok(done) => done,
        Err(e) => {
            file.own_reaches(mount.cache.dirty_end(file));
            file.turn();
            return Err(e);
        }
    };
    mount.cache.forget(file, beyond, Dirty::Discard);
    file.own_ends_by(size);
    file.size.store(size, SeqCst);
    explicit_time(mount, file, &view);
    file.turn();
    // Nothing else changes the file here: the answer is as good as one that is asked for now.
    let adopted = file.adopt_change(view, told.asked_at, AskedAt::now(told.asked_at.rule()));
    drop(told);
    drop(pins);
    crate::writeback::deferred_close::send_closes(mount, file);
    Ok(adopted.attr)
}
