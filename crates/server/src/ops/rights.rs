//! Which objects a session may access: those of files that it has open.
//!
//! Owns: the checks before a request on file data. Does not own: opens (`crate::session::opens`), what a target has
//! learnt about sessions that access its stripes of other targets' files (`crate::session::rights`), locks.
//!
//! Stripe 0 is on the target of its inode, which checks its own opens. The target of another stripe asks the inode's
//! target when a session first accesses the file, and remembers the answer until the session ends or the objects of the
//! inode are destroyed. After that a request costs one look-up in a table. A close removes no right, since a session
//! that has closed a file could as well have kept it open. An answer stays valid, because the layout of a spread file
//! is fixed. An answer that was under way while the objects were destroyed is not stored.
//!
//! Invariant: an object is created only while its inode exists (and is marked as spread, unless the object is stripe
//! 0), and only on the target that the layout names. So the destruction of the inode finds it. Each change checks
//! twice: before it waits for anything, and in the step in which it has its span. A destruction waits for that span
//! (`destroy_objects`).

use crate::message::{TargetReply, TargetRequest};
use crate::session::rights::{Right, Touch};
use crate::worker::request::RequestCx;
use crate::zone_target::Target;
use amphi_env::Env;
use amphi_types::{Errno, Ino, Kind, ObjectId, Result, SessionId};
use std::time::Duration;

/// How often the request is repeated because the answer was outdated when it came.
const TRIES: usize = 3;
/// Pause before the inode's target is asked again whether a session has reconnected to it.
const ASK_AGAIN: Duration = Duration::from_millis(20);

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
    let access = target.files.open.borrow().access(session, ino);
    match access {
        Some(access) => Ok(Right { access, wide: inode.objects.wide, layout: inode.layout, owner: inode.charged() }),
        None if target.reclaim.is_pending(session) => Err(Errno::Again),
        None => Err(Errno::BadFd),
    }
}

impl<E: Env> RequestCx<E> {
    /// Whether the session may touch an object, before anything is waited for but the inode's target.
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
        // The file may have been opened again, for writing, or spread since.
        for _ in 0..TRIES {
            self.target.files.rights.borrow_mut().asking(object.ino, self.session);
            let question = TargetRequest::Right(self.session, object.ino);
            let right = match self.worker.ask(object.ino.target(), question).await {
                Ok(TargetReply::Right(right)) => right,
                Ok(_) => return Err(Errno::Proto),
                Err(Errno::Again) => {
                    self.alive()?;
                    self.worker.env.sleep(ASK_AGAIN).await;
                    continue;
                }
                Err(e) => return Err(e),
            };
            if self.target.files.rights.borrow_mut().answered(object.ino, self.session, right) {
                return if allowed(&right) { Ok(()) } else { Err(right.refusal(object, self.target.id)) };
            }
        }
        Err(Errno::Stale)
    }

    fn check_here(&self, object: ObjectId, touch: Touch) -> Result<()> {
        let access = self.target.files.open.borrow().access(self.session, object.ino);
        if object.stripe == 0 && access.is_some_and(|a| a.write || touch == Touch::Look) {
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
    /// exists.
    ///
    /// Errors: as `right_of`.
    pub(super) fn check_again(&self, object: ObjectId) -> Result<()> {
        if object.ino.target() == self.target.id {
            self.target.check_file(object.ino)?;
            let goes = self.target.meta.borrow().inode(object.ino).is_ok_and(|i| i.pending.destroy);
            return if goes { Err(Errno::Stale) } else { Ok(()) };
        }
        let rights = self.target.files.rights.borrow();
        let allowed = |right: &Right| right.allows(object, self.target.id, Touch::Change);
        if rights.get(object.ino, self.session).is_some_and(allowed) { Ok(()) } else { Err(Errno::Stale) }
    }
}
