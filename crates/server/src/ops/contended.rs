//! The objects that the contention report in an answer concerns.
//!
//! Owns: which objects of a request its answer reports about (in every reply to a lock, a read and a write). Does not
//! own: when an object is contended (`amphi_dlm`), how the client reacts.
//!
//! Invariant: an answer reports on the objects of the request, whatever its result was, even on objects that it could
//! not lock.

use crate::worker::Worker;
use crate::zone_target::Target;
use amphi_env::Env;
use amphi_types::ObjectId;
use amphi_wire::{Access, Answer, ContendedParts, Make, Reply, Request};
use std::rc::Rc;

/// The objects to which an answer refers.
pub(super) enum Objects {
    None,
    One(ObjectId),
    /// The objects of the parts of a batch.
    Parts(Vec<ObjectId>),
    /// The first one of a file that is to be made and locked.
    New,
}

impl Objects {
    pub(super) fn of(op: &Request) -> Objects {
        match op {
            Request::Read { object, .. }
            | Request::Write { object, .. }
            | Request::PagesRead { object, .. }
            | Request::PagesWrite { object, .. }
            | Request::Punch { object, .. }
            | Request::Allocate { object, .. }
            | Request::LockEnqueue { object, .. }
            | Request::GroupLock { object, .. } => Objects::One(*object),
            Request::WriteBatch { parts } => Objects::Parts(parts.iter().map(|p| p.object).collect()),
            Request::ReadBatch { parts, .. } => {
                Objects::Parts(parts.iter().map(|p| ObjectId { ino: p.ino, stripe: 0 }).collect())
            }
            Request::Make { make: Make::File { open: Some(Access { write: true, .. }), .. }, .. } => Objects::New,
            _ => Objects::None,
        }
    }

    /// Adds to the answer which objects are contended now.
    pub(super) fn tell<E: Env>(self, worker: &Rc<Worker<E>>, target: &Target<E>, answer: &mut Answer) {
        if matches!(self, Objects::None) {
            return;
        }
        // The end of a direct request may have granted a lock that another request is now calling back.
        worker.send_callbacks(target);
        let now_ns = worker.now_ns();
        match self {
            Objects::None => {}
            Objects::One(object) => answer.contended = target.coherence.locks.contended(now_ns, object),
            Objects::Parts(objects) => {
                let told = objects
                    .into_iter()
                    .zip(0..)
                    .filter(|(object, _)| target.coherence.locks.contended(now_ns, *object));
                let places: Vec<u16> = told.map(|(_, at)| at).collect();
                answer.contended_parts = (!places.is_empty()).then(|| Box::new(ContendedParts { places }));
            }
            Objects::New => {
                if let Ok(Reply::Made { inode, created: true, .. }) = &answer.result {
                    answer.contended =
                        target.coherence.locks.contended(now_ns, ObjectId { ino: inode.attr.ino, stripe: 0 });
                }
            }
        }
    }
}
