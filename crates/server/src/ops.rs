//! Operations: one file for each operation, or for a few that belong together.
//!
//! Owns: answering each request once, and finding the operation for it. Does not own: the contents of slots (`slots`).
//!
//! Reads are executed again when they are sent again. All other requests go through a slot: they are executed once, and
//! answered from the slot afterwards. If a request is sent again while the original is executing, the new one waits for
//! it.

mod accept;
mod allocate;
mod attr;
mod batch;
mod cached_read;
mod contended;
mod data;
pub(crate) mod file_lock;
mod flush;
mod full;
mod grant;
mod link;
mod lock;
mod make;
mod moved;
pub(crate) mod names;
mod open;
mod pages;
pub(crate) mod quota;
mod read_batch;
mod read_way;
mod remove;
mod rename;
mod rights;
pub(crate) mod scrub;
mod shards;
pub(crate) mod subtree;
mod way;
mod xattr;

pub use attr::{at_once, view};
pub use flush::flush_agent;
#[cfg(test)]
pub(crate) use open::KEPT_FOR;
pub use open::{Opening, after_close, open_here, present};
pub use rights::right_of;

use crate::counters::add;
use crate::session::reach::{Terms, named_by};
use crate::session::slots::Begin;
use crate::worker::Worker;
use crate::worker::request::RequestCx;
use crate::zone_target::Target;
use crate::zone_target::residency::HeldInodes;
use amphi_env::{Buf, Env};
use amphi_types::{Errno, Result, SessionId};
use amphi_wire::{Answer, Call, Cover, Reply, Request, RequestId, Tokens};
use std::rc::Rc;

/// How often an operation over several targets is planned again when the state for which it was planned has changed
/// meanwhile. Each time another operation made progress; 64 failures in a row were never seen.
const PLAN_TRIES: usize = 64;

/// Returns whether a request leaves no recorded state, so that it may simply be executed again.
fn is_repeatable(op: &Request) -> bool {
    matches!(
        op,
        Request::Lookup { .. }
            | Request::Parent { .. }
            | Request::Shards { .. }
            | Request::GetAttr { .. }
            | Request::GetAttrNow { .. }
            | Request::ReadLink { .. }
            | Request::ReadDir { .. }
            | Request::GetXattr { .. }
            | Request::ListXattr { .. }
            | Request::StatFs
            | Request::Read { .. }
            | Request::DataMap { .. }
            | Request::Extents { .. }
            | Request::PagesRead { .. }
            | Request::Sync { .. }
            | Request::Spread { .. }
            | Request::GroupWanted { .. }
            | Request::LockCancel { .. }
            | Request::LockKept { .. }
            | Request::PagesTaken { .. }
            | Request::GlimpseReply { .. }
            | Request::Revoked { .. }
            | Request::FileLockTest { .. }
            | Request::FileLockClosed { .. }
            | Request::DirectoryShown { .. }
            | Request::WriteFailedKnown { .. }
            | Request::Charged { .. }
            | Request::Account { .. }
            | Request::Accounts { .. }
            | Request::NewProject
    )
}

/// Gives a slot up if its request's task is dropped.
struct Running<E: Env> {
    target: Rc<Target<E>>,
    session: SessionId,
    id: RequestId,
    done: bool,
}

impl<E: Env> Drop for Running<E> {
    fn drop(&mut self) {
        if !self.done {
            self.target.sessions.slots.borrow_mut().give_up(self.session, self.id);
        }
    }
}

fn failed(errno: Errno) -> Answer {
    Answer::of(Err(errno))
}

/// Executes a client's request on one of this worker's targets. If a request has not begun when its client has stopped
/// waiting (`Terms::until_ns`), it is refused with `TimedOut`, even when it is sent again.
pub async fn execute<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    session: SessionId,
    id: RequestId,
    call: Call,
    payload: Option<Buf>,
    terms: Terms,
) -> (Answer, Option<Buf>) {
    let answer = match hold_named(target, &call, &terms).await {
        Ok(mut held) => {
            let mut cx = RequestCx::new((worker, target), session, id, call.cred, terms.tree);
            cx.unread = held.take_unread();
            execute_held(&cx, call.op, payload, terms.until_ns).await
        }
        Err(e) => (failed(e), None),
    };
    target.let_inodes_go();
    answer
}

/// Holds the inodes that a request names.
///
/// Errors: `Io` if an inode cannot be read, and the request does not concern other files as well.
async fn hold_named<E: Env>(target: &Target<E>, call: &Call, terms: &Terms) -> Result<HeldInodes> {
    let named = named_by(&call.op, terms.tree.is_some() || call.cred.uid != 0);
    match call.op {
        // A lock may be waited for as long as its holder likes.
        Request::GroupLock { .. } => target.hold_apart(named).await,
        Request::WriteBatch { .. }
        | Request::ReadBatch { .. }
        | Request::Close { .. }
        | Request::CloseBatch { .. }
        | Request::Represent { .. }
        | Request::RepresentFor { .. }
        | Request::RepresentFileLocks { .. } => Ok(target.hold_readable(named).await),
        _ => target.hold(named).await,
    }
}

/// As `execute`; the inodes that the request names are in memory, except those that could not be read.
async fn execute_held<E: Env>(
    cx: &RequestCx<E>,
    mut op: Request,
    payload: Option<Buf>,
    until_ns: Option<u64>,
) -> (Answer, Option<Buf>) {
    let (worker, target, session, id) = (&cx.worker, &cx.target, cx.session, cx.id);
    let expired = || until_ns.is_some_and(|end| worker.now_ns() >= end);
    tracing::trace!(?session, ?id, ?op, "a request");
    if matches!(op, Request::StatFs) {
        return (Answer::of(Ok(Reply::StatFs(target.space()))), None);
    }
    if !target.has_session(session) {
        // The session was evicted or never began: what its client still sends must not count.
        return (failed(Errno::Io), None);
    }
    if let Err(e) = cx.stay_within(&mut op).await {
        return (failed(e), None);
    }
    let tokens = |cx: &RequestCx<E>, result: &Result<Reply>| {
        let mut tokens = cx.tokens.get();
        if result.is_err() {
            // The answer shows no inode.
            tokens.attributes = None;
        }
        (tokens != Tokens::default()).then(|| Box::new(tokens))
    };
    let objects = contended::Objects::of(&op);
    let told = grant::teller(target, session, &op);
    let charged = if target.counts.quota.was_on.get() { quota::charged_by(&op) } else { quota::Charged::Nothing };
    if is_repeatable(&op) {
        if expired() {
            return (failed(Errno::TimedOut), None);
        }
        let (result, payload) = match dispatch(cx, op, payload).await {
            Ok((reply, payload)) => (Ok(reply), payload),
            Err(e) => (Err(e), None),
        };
        tracing::trace!(?session, ?id, ?result, "the answer");
        let tokens = tokens(cx, &result);
        let mut answer = Answer { tokens, ..Answer::of(result) };
        objects.tell(worker, target, &mut answer);
        cx.tell_nearness(&charged, &mut answer);
        return (answer, payload);
    }
    let begin = target.sessions.slots.borrow_mut().begin(session, id);
    match begin {
        Begin::New(kept) => {
            if let Some((ino, access)) = kept {
                target.files.open.borrow_mut().close(session, ino, access);
                after_close(worker, target, ino);
            }
        }
        Begin::Answered(answer, ended) => {
            add(&worker.counters.resends, 1);
            if let Some((ino, access)) = ended
                && let Err(e) = open::open_again(worker, target, session, ino, access).await
            {
                return (failed(e), None);
            }
            if worker.routes.is_shared() {
                crate::tx::two_phase::until_told(worker, target).await;
            }
            if let Request::SetAttr { ino, .. } = op {
                // A client that sees the reduced size may write behind it, although objects on other targets may not be
                // cut yet after a restart.
                target.settle(vec![crate::zone_target::NameKey::Inode(ino)]).await;
            }
            return (told(answer), None);
        }
        Begin::Running(receiver) => {
            add(&worker.counters.resends, 1);
            return (told(receiver.await.unwrap_or(failed(Errno::Io))), None);
        }
        Begin::Old => return (failed(Errno::Proto), None),
    }
    let mut running = Running { target: target.clone(), session, id, done: false };
    let result = match expired() {
        true => Err(Errno::TimedOut),
        false => dispatch(cx, op, payload).await,
    };
    // A slot remembers no payload: a resend gets the answer without.
    let (result, payload) = match result {
        Ok((reply, payload)) => (Ok(reply), payload),
        Err(e) => (Err(e), None),
    };
    tracing::trace!(?session, ?id, ?result, "the answer");
    let tokens = tokens(cx, &result);
    let directory = cx.directory.take().filter(|_| result.is_ok()).map(Box::new);
    let mut answer = Answer { tokens, directory, ..Answer::of(result) };
    objects.tell(worker, target, &mut answer);
    let mut answer = told(answer);
    cx.tell_nearness(&charged, &mut answer);
    running.done = true;
    target.sessions.slots.borrow_mut().finish(session, id, &answer);
    (answer, payload)
}

async fn dispatch<E: Env>(cx: &RequestCx<E>, op: Request, payload: Option<Buf>) -> Result<(Reply, Option<Buf>)> {
    shards::check(&op)?;
    let reply = match op {
        Request::Lookup { dir, name } => cx.lookup(dir, &name).await,
        Request::Parent { dir } => cx.parent(dir).await,
        Request::Shards { dir } => cx.shards(dir).await,
        Request::SetShards { ino, count } => Box::pin(cx.set_shards(ino, count)).await,
        Request::GetAttr { ino } => cx.getattr(ino, cx.session).await,
        Request::GetAttrNow { ino } => cx.getattr(ino, attr::NOBODY).await,
        Request::SetAttr { ino, set } => Box::pin(cx.setattr(ino, set)).await,
        Request::Make { dir, name, make, perm, umask } => Box::pin(cx.make(dir, name, make, perm, umask)).await,
        Request::MakeTmp { dir, perm, umask, open } => Box::pin(cx.make_tmp(dir, perm, umask, open)).await,
        Request::Link { ino, dir, name } => Box::pin(cx.link(ino, dir, name)).await,
        Request::Unlink { dir, name } => Box::pin(cx.unlink(dir, name)).await,
        Request::RmDir { dir, name } => Box::pin(cx.rmdir(dir, name)).await,
        Request::Rename { from, from_name, to, to_name, mode } => {
            Box::pin(cx.rename((from, from_name), (to, to_name), mode)).await
        }
        Request::ReadLink { ino } => cx.readlink(ino),
        Request::ReadDir { dir, cookie, max, plus } => cx.readdir(dir, cookie, max, plus).await,
        Request::Open { ino, access, exec } => cx.open(ino, access, exec).await,
        Request::Close { ino, access, atime } => cx.close(ino, access, atime),
        Request::CloseBatch { closes } => cx.close_batch(closes),
        Request::Discard { ino, opens } => cx.discard(ino, opens),
        Request::GetXattr { ino, name } => cx.getxattr(ino, &name).await,
        Request::ListXattr { ino } => cx.listxattr(ino),
        Request::SetXattr { ino, name, value, mode } => Box::pin(cx.setxattr(ino, &name, &value, mode)).await,
        Request::RemoveXattr { ino, name } => Box::pin(cx.removexattr(ino, &name)).await,
        Request::SetLayout { ino, layout, advice } => Box::pin(cx.set_layout(ino, layout, advice)).await,
        Request::Read { object, range, server_lock, advice } => {
            return Box::pin(cx.read(object, range, server_lock, advice)).await;
        }
        Request::Write { object, offset, generation, mtime, server_lock, kill_suidgid, checksums, cover } => {
            let kind = data::WriteKind { server_lock, mtime, kill_suidgid, checksums, cover };
            Box::pin(cx.write(object, offset, generation, kind, payload)).await
        }
        Request::ReadBatch { dir, parts, bytes_max, ask_back, tokens } => {
            return Box::pin(cx.read_batch(dir, &parts, bytes_max, ask_back, tokens)).await;
        }
        Request::WriteBatch { parts } => Box::pin(cx.write_batch(parts, payload)).await,
        Request::PagesLeft { ino } => cx.pages_left(ino),
        Request::PagesTaken { ino, left } => cx.pages_taken(ino, left),
        Request::PagesRead { object, range, left } => return Box::pin(cx.pages_read(object, range, left)).await,
        Request::PagesWrite { object, offset, generation, mtime, left, checksums } => {
            let cover = Cover::None;
            let kind = data::WriteKind { server_lock: true, mtime, kill_suidgid: false, checksums, cover };
            Box::pin(cx.pages_write(object, offset, generation, left, kind, payload)).await
        }
        Request::Punch { object, range, generation, mtime, server_lock } => {
            Box::pin(cx.punch(object, range, generation, mtime, server_lock)).await
        }
        Request::Allocate { object, range, generation, mtime, server_lock } => {
            Box::pin(cx.allocate(object, range, generation, mtime, server_lock)).await
        }
        Request::DataMap { object, offset, runs_max } => cx.data_map(object, offset, runs_max).await,
        Request::Extents { object, offset, extents_max } => cx.extents(object, offset, extents_max).await,
        Request::Sync { file } => cx.sync(file).await,
        Request::Spread { ino } => cx.spread(ino).await,
        Request::LockEnqueue { object, mode, range, extent } => cx.lock_enqueue(object, mode, range, extent).await,
        Request::GroupLock { object, group, wait, asked } => cx.group_lock(object, group, wait, asked).await,
        Request::GroupWanted { object } => cx.group_wanted(object),
        Request::LockCancel { locks } => cx.lock_cancel(&locks),
        Request::LockKept { locks } => cx.lock_kept(&locks),
        Request::GlimpseReply { id, size, mtime } => {
            cx.target.coherence.glimpses.answer(cx.session, id, size, mtime);
            Ok(Reply::Done)
        }
        Request::Represent { opens, locks } => cx.represent(opens, locks, None).await,
        Request::RepresentFor { opens, locks, users } => cx.represent(opens, locks, Some(&users)).await,
        Request::StatFs => Ok(Reply::StatFs(cx.target.space())),
        Request::Revoked { ids } => cx.revoked(&ids),
        Request::FileLockSet { lock, number, wait } => cx.file_lock_set(&lock, number, wait).await,
        Request::FileLockCancel { lock, number } => cx.file_lock_cancel(&lock, number),
        Request::FileLockUnlock { ino, owner, range } => cx.file_lock_unlock(ino, owner, range),
        Request::FileLockTest { lock, number } => cx.file_lock_test(&lock, number).await,
        Request::FileLockClosed { ino, id } => cx.file_lock_closed(ino, id),
        Request::DirectoryShown { id } => cx.directory_shown(id),
        Request::WriteFailedKnown { id } => cx.write_failed_known(id),
        Request::Grant { give_back } => cx.grant(give_back).await,
        Request::RepresentFileLocks { locks, converted } => cx.represent_file_locks(&locks, &converted),
        Request::Charged { ino } => cx.charged(ino),
        Request::Account { account } => Box::pin(cx.account(account)).await,
        Request::Accounts { after } => Box::pin(cx.accounts(after)).await,
        Request::SetLimits { account, limits } => Box::pin(cx.set_limits(account, limits)).await,
        Request::NewProject => Box::pin(cx.new_project()).await,
        Request::Goodbye
        | Request::Status
        | Request::Tunables { .. }
        | Request::Counters { .. }
        | Request::Keys { .. }
        | Request::Evict { .. }
        | Request::CompanyKnown { .. }
        | Request::CompanyKept { .. }
        | Request::Map
        | Request::Join { .. }
        | Request::Ask { .. } => Err(Errno::Proto),
    };
    reply.map(|reply| (reply, None))
}

impl<E: Env> RequestCx<E> {
    /// `Request::WriteFailedKnown`.
    fn write_failed_known(&self, id: u64) -> Result<Reply> {
        self.target.storage.write_back.writers.acknowledged(self.session, id);
        Ok(Reply::Done)
    }
}
