//! Operations: one file for each, or for a few that belong together.
//!
//! Owns: answering each request once, and finding the operation for it. Does not own: what a slot remembers (`slots`).
//!
//! Reads are executed again when they are sent again. Everything else goes through its slot: executed once, answered
//! from the slot afterwards; a resend that finds the original still executing waits for it.

mod attr;
mod data;
mod link;
mod lock;
mod make;
mod names;
mod objects;
mod open;
mod payload;
mod remove;
mod rename;
mod xattr;

pub use attr::view;
pub use objects::{Orphans, destroy_objects, orphaned, reap_orphans, resume_pending, trim_objects};
pub use open::{after_close, open_here, present};

use crate::counters::add;
use crate::cx::Cx;
use crate::slots::Begin;
use crate::target::Target;
use crate::worker::Worker;
use amphi_env::{Buf, Env};
use amphi_types::{Cred, Errno, Result, SessionId};
use amphi_wire::{Answer, Call, Reply, Request, RequestId};
use std::rc::Rc;

/// Whether a request changes nothing that is remembered, so that it may simply be executed again.
fn is_repeatable(op: &Request) -> bool {
    matches!(
        op,
        Request::Lookup { .. }
            | Request::Parent { .. }
            | Request::GetAttr { .. }
            | Request::ReadLink { .. }
            | Request::ReadDir { .. }
            | Request::GetXattr { .. }
            | Request::ListXattr { .. }
            | Request::StatFs
            | Request::Read { .. }
            | Request::Seek { .. }
            | Request::Sync
            | Request::Spread { .. }
            | Request::LockCancel { .. }
            | Request::GlimpseReply { .. }
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
            self.target.slots.borrow_mut().give_up(self.session, self.id);
        }
    }
}

fn failed(errno: Errno) -> Answer {
    Answer { result: Err(errno), contended: false }
}

/// Executes a client's request on one of this worker's targets. One that has not begun when its client has stopped
/// waiting (`until_ns`) is refused: `TimedOut`, also when it is sent again.
pub async fn execute<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    session: SessionId,
    id: RequestId,
    call: Call,
    payload: Option<Buf>,
    until_ns: Option<u64>,
) -> (Answer, Option<Buf>) {
    let expired = || until_ns.is_some_and(|end| worker.now_ns() >= end);
    if matches!(call.op, Request::StatFs) {
        return (Answer { result: Ok(Reply::StatFs(target.space())), contended: false }, None);
    }
    if !target.has_session(session) {
        // The session was evicted or never began: what its client still sends must not count.
        return (failed(Errno::Io), None);
    }
    let cx =
        |cred: Cred| Cx { worker: worker.clone(), target: target.clone(), session, id, cred, now: worker.env.wall() };
    let object = contended_object(&call.op);
    let contended = |target: &Target<E>| object.is_some_and(|o| target.locks.contended(worker.now_ns(), o));
    if is_repeatable(&call.op) {
        if expired() {
            return (failed(Errno::TimedOut), None);
        }
        let (result, payload) = match dispatch(&cx(call.cred), call.op, payload).await {
            Ok((reply, payload)) => (Ok(reply), payload),
            Err(e) => (Err(e), None),
        };
        return (Answer { result, contended: contended(target) }, payload);
    }
    let begin = target.slots.borrow_mut().begin(session, id);
    match begin {
        Begin::New(kept) => {
            if let Some((ino, access)) = kept {
                target.opens.borrow_mut().close(session, ino, access);
                after_close(worker, target, ino);
            }
        }
        Begin::Answered(answer) => {
            add(&worker.counters.resends, 1);
            return (answer, None);
        }
        Begin::Running(receiver) => {
            add(&worker.counters.resends, 1);
            return (receiver.await.unwrap_or(failed(Errno::Io)), None);
        }
        Begin::Old => return (failed(Errno::Proto), None),
    }
    let mut running = Running { target: target.clone(), session, id, done: false };
    let result = match expired() {
        true => Err(Errno::TimedOut),
        false => dispatch(&cx(call.cred), call.op, payload).await.map(|(reply, _)| reply),
    };
    let answer = Answer { result, contended: contended(target) };
    running.done = true;
    target.slots.borrow_mut().finish(session, id, &answer);
    (answer, None)
}

fn contended_object(op: &Request) -> Option<amphi_types::ObjectId> {
    match op {
        Request::Read { object, .. }
        | Request::Write { object, .. }
        | Request::Punch { object, .. }
        | Request::Allocate { object, .. }
        | Request::LockEnqueue { object, .. } => Some(*object),
        _ => None,
    }
}

async fn dispatch<E: Env>(cx: &Cx<E>, op: Request, payload: Option<Buf>) -> Result<(Reply, Option<Buf>)> {
    let reply = match op {
        Request::Lookup { dir, name } => cx.lookup(dir, &name).await,
        Request::Parent { dir } => cx.parent(dir).await,
        Request::GetAttr { ino } => cx.getattr(ino).await,
        Request::SetAttr { ino, set } => cx.setattr(ino, set).await,
        Request::Make { dir, name, make, perm } => cx.make(dir, name, make, perm).await,
        Request::MakeTmp { dir, perm, open } => cx.make_tmp(dir, perm, open).await,
        Request::Link { ino, dir, name } => cx.link(ino, dir, name).await,
        Request::Unlink { dir, name } => cx.unlink(dir, name).await,
        Request::RmDir { dir, name } => cx.rmdir(dir, name).await,
        Request::Rename { from, from_name, to, to_name, mode } => {
            cx.rename((from, from_name), (to, to_name), mode).await
        }
        Request::ReadLink { ino } => cx.readlink(ino),
        Request::ReadDir { dir, cookie, max, plus } => cx.readdir(dir, cookie, max, plus).await,
        Request::Open { ino, access, exec } => cx.open(ino, access, exec).await,
        Request::Close { ino, access, atime } => cx.close(ino, access, atime),
        Request::Discard { ino, opens } => cx.discard(ino, opens),
        Request::GetXattr { ino, name } => cx.getxattr(ino, &name),
        Request::ListXattr { ino } => cx.listxattr(ino),
        Request::SetXattr { ino, name, value, mode } => cx.setxattr(ino, &name, &value, mode).await,
        Request::RemoveXattr { ino, name } => cx.removexattr(ino, &name).await,
        Request::SetLayout { ino, layout, mode } => cx.set_layout(ino, layout, mode).await,
        Request::Read { object, range, server_lock } => return cx.read(object, range, server_lock).await,
        Request::Write { object, offset, generation, mtime, server_lock, kill_suidgid } => {
            cx.write(object, offset, generation, mtime, server_lock, kill_suidgid, payload).await
        }
        Request::Punch { object, range, generation, mtime } => cx.punch(object, range, generation, mtime).await,
        Request::Allocate { object, range, generation } => cx.allocate(object, range, generation).await,
        Request::Seek { object, offset, hole } => cx.seek(object, offset, hole).await,
        Request::Sync => cx.sync().await,
        Request::Spread { ino } => cx.spread(ino).await,
        Request::LockEnqueue { object, mode, range, expand } => cx.lock_enqueue(object, mode, range, expand).await,
        Request::LockCancel { locks } => cx.lock_cancel(&locks),
        Request::GlimpseReply { .. } => Ok(Reply::Done),
        Request::Represent { opens, locks } => cx.represent(opens, locks).await,
        Request::StatFs => Ok(Reply::StatFs(cx.target.space())),
        Request::Goodbye | Request::Status | Request::Tunables { .. } | Request::Counters { .. } => Err(Errno::Proto),
    };
    reply.map(|reply| (reply, None))
}
