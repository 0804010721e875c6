//! The objects that a session may access: those of files that it has open.
//!
//! Owns: the checks before a request on file data. Does not own: opens (`crate::session::opens`), a target's record of
//! sessions that access its stripes of other targets' files (`crate::session::rights`), locks.
//!
//! Stripe 0 is on the target of its inode, which checks its own opens. The target of another stripe asks the inode's
//! target when a session first accesses the file, and remembers the answer until the session ends or the objects of the
//! inode are destroyed: then a request costs one look-up in a table. A close removes no right, since a session that has
//! closed a file could as well have kept it open. An answer stays valid: the layout of a spread file is fixed, and an
//! answer that was under way while the objects were destroyed is not stored. A session that is still to reconnect to
//! the inode's target after a restart is waited for: a mount reaches the targets of a server by several connections,
//! and which of them is back first is chance. If its request were refused like one for a file that does not exist, a
//! write that goes to several targets would fail in the middle.
//!
//! Invariant: an object is created only while its inode exists (and is marked as spread, unless the object is stripe
//! 0), and only on the target that the layout names. So the destruction of the inode finds the object. Each change
//! checks twice: before it waits for anything, and in the step in which it has its span. A destruction waits for that
//! span (`destroy_objects`).

use crate::message::{TargetReply, TargetRequest};
use crate::session::rights::{Right, Touch};
use crate::worker::request::RequestCx;
use crate::zone_target::Target;
use amphi_env::Env;
use amphi_types::{Errno, Ino, Kind, ObjectId, Result, SessionId};
use std::time::Duration;

/// How often the request is repeated because the answer was outdated when it arrived.
const TRIES: usize = 3;
/// Pause before the inode's target is asked again whether a session has reconnected to it, at first and at most.
const ASK_AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(160));

/// The rights of a session on a file by this target's opens.
///
/// Errors: `Stale` if the file does not exist or is being removed; `Inval` if it is not a file; `BadFd` if the session
/// has not opened it; `Again` if the session has not reconnected after a restart of this target.
pub fn right_of<E: Env>(target: &Target<E>, ino: Ino, session: SessionId) -> Result<Right> {
    let meta = target.meta.borrow();
    let inode = meta.inode(ino)?;
    if inode.pending.destroy {
        return Err(Errno::Stale);
    }
    if inode.kind != Kind::File {
        return Err(Errno::Inval);
    }
    let access = target.files.access(session, ino);
    match access {
        Some(access) => Ok(Right { access, wide: inode.objects.wide, layout: inode.layout, owner: inode.charged() }),
        None if target.reclaim.is_pending(session) => Err(Errno::Again),
        None => Err(Errno::BadFd),
    }
}

impl<E: Env> RequestCx<E> {
    /// Returns whether the session may touch an object, before anything is waited for but the inode's target.
    ///
    /// Errors: `Inval` if the object does not belong to this target; `NoEnt` if the file would have to be spread first;
    /// otherwise as `right_of`.
    pub(super) async fn check_object(&self, object: ObjectId, touch: Touch) -> Result<()> {
        if object.ino.target() == self.target.id {
            return self.check_here(object, touch);
        }
        if object.stripe == 0 {
            return Err(Errno::Inval);
        }
        let allowed = |right: &Right| right.allows(object, self.target.id, touch);
        if self.target.files.rights.borrow().get(object.ino, self.session).is_some_and(allowed) {
            return Ok(());
        }
        // Meanwhile the file may have been opened again, opened for writing, or spread.
        for _ in 0..TRIES {
            self.target.files.rights.borrow_mut().asking(object.ino, self.session);
            let right = self.ask_right(object.ino).await?;
            if self.target.files.rights.borrow_mut().answered(object.ino, self.session, right) {
                return if allowed(&right) { Ok(()) } else { Err(right.refusal(object, self.target.id)) };
            }
        }
        Err(Errno::Stale)
    }

    /// The right of the session by the inode's target. A session that has reconnected to this target after a restart
    /// and not to that one yet is waited for until it has, or has ended: it still has the file open.
    async fn ask_right(&self, ino: Ino) -> Result<Right> {
        let (mut pause, longest) = ASK_AGAIN;
        loop {
            match self.worker.ask(ino.target(), TargetRequest::Right(self.session, ino)).await {
                Ok(TargetReply::Right(right)) => return Ok(right),
                Ok(_) => return Err(Errno::Proto),
                Err(Errno::Again) => {
                    self.alive()?;
                    self.worker.env.sleep(pause).await;
                    pause = (pause * 2).min(longest);
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn check_here(&self, object: ObjectId, touch: Touch) -> Result<()> {
        let access = self.target.files.access(self.session, object.ino);
        if object.stripe == 0 && access.is_some_and(|a| touch.is_allowed_by(a)) {
            return Ok(());
        }
        let right = right_of(&self.target, object.ino, self.session)?;
        match object.stripe {
            0 => Err(Errno::BadFd),
            _ if right.allows(object, self.target.id, touch) => Ok(()),
            _ => Err(right.refusal(object, self.target.id)),
        }
    }

    /// The last check before a change of an object, in the step in which it has its span: whether the inode still
    /// exists. Returns false if this target does not remember that the session may change it: its objects are about to
    /// go, or the table of rights was full. Then the caller has to release the span, and `check_object` says which
    /// right is missing.
    ///
    /// Errors: as `right_of`.
    pub(super) fn check_again(&self, object: ObjectId) -> Result<bool> {
        if object.ino.target() == self.target.id {
            self.target.check_file(object.ino)?;
            let goes = self.target.meta.borrow().inode(object.ino).is_ok_and(|i| i.pending.destroy);
            return if goes { Err(Errno::Stale) } else { Ok(true) };
        }
        let rights = self.target.files.rights.borrow();
        let allowed = |right: &Right| right.allows(object, self.target.id, Touch::Change);
        Ok(rights.get(object.ino, self.session).is_some_and(allowed))
    }
}
