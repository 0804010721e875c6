//! Glimpses to the writers of a file, for the bytes that they have not written back yet.
//!
//! Owns: in which order holders of an object's locks get a glimpse, and how their answers are combined. Does not own:
//! unanswered glimpses (`coherence::glimpse`), holders of locks (`coherence::locks`), the state of the objects
//! (`amphi_data`).
//!
//! No task waits here while it holds a name or a byte range. A mount that leaves a glimpse unanswered is evicted.

use crate::coherence::glimpse::Open;
use crate::counters::add;
use crate::worker::Worker;
use crate::zone_target::Target;
use amphi_dlm::LockId;
use amphi_env::{Env, timeout};
use amphi_meta::Gathered;
use amphi_types::{Ino, ObjectId, SessionId, Timespec};
use amphi_wire::Push;
use futures_util::future::join_all;
use std::rc::Rc;
use std::time::Duration;

/// The state of the objects of a file on this target, including what sessions other than `asker` have not written back
/// yet.
pub async fn gathered_with_writers<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    ino: Ino,
    asker: SessionId,
) -> Gathered {
    let objects = target.coherence.locks.objects(ino);
    // Bytes of an object without a lock have all landed: its present length is final.
    let free = |object: &ObjectId| objects.binary_search(object).is_err();
    let ends = target.data.borrow().objects_of(ino).filter(|(object, _)| free(object)).map(|(_, o)| o.end).max();
    let mut sum = Gathered { size: ends.unwrap_or(0), ..Gathered::default() };
    for one in join_all(objects.iter().map(|&object| glimpse(worker, target, object, asker))).await {
        sum.join(&one);
    }
    // The sum leaves out the sizes that this target has now: they may contain a part of the bytes that were written
    // since.
    sum.join(&Gathered { size: 0, ..target.gathered(ino) });
    sum
}

/// How often an object is checked again because its end moved meanwhile.
const TRIES: usize = 8;

/// The end of one object, according to the object and its writers.
///
/// The answer of a holder includes all that it has written under its locks, whether it has reached the target or not.
/// Bytes that reach the target later may be part of a call whose other bytes have not arrived. So if the end has moved
/// beyond all answers, it is not used, and all holders are asked again, a few times.
async fn glimpse<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    object: ObjectId,
    asker: SessionId,
) -> Gathered {
    let end = || target.data.borrow().object(object).map_or(0, |o| o.end);
    for _ in 1..TRIES {
        let mut sum = Gathered { size: end(), ..Gathered::default() };
        if ask_all(worker, target, object, asker, &mut sum).await && end() <= sum.size {
            return sum;
        }
    }
    let mut sum = Gathered::default();
    ask_all(worker, target, object, asker, &mut sum).await;
    sum.join(&Gathered { size: end(), ..Gathered::default() });
    sum
}

/// Adds the sizes that writers of one object report. It begins at the highest lock and continues down to a holder that
/// reports a byte at or above its lock's start. Returns whether all answers describe one moment: when that holder
/// answered, no holder above it had written anything.
async fn ask_all<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    object: ObjectId,
    asker: SessionId,
    sum: &mut Gathered,
) -> bool {
    let add_to = |sum: &mut Gathered, size, mtime| sum.join(&Gathered { size, mtime, blocks: 0 });
    // Each member of a group may have written the last byte.
    let members = target.coherence.locks.members(object).into_iter().filter(|(_, session)| *session != asker);
    let asked = members.map(|(lock, session)| ask(worker, target, object, lock, session));
    for (size, mtime) in join_all(asked).await.into_iter().flatten() {
        add_to(sum, size, mtime);
    }
    let mut silent: Vec<(u64, LockId, SessionId)> = Vec::new();
    let mut at = target.coherence.locks.glimpse(object, None);
    let found = loop {
        let Some((lock, session, range)) = at else { return true };
        if session != asker {
            let answer = ask(worker, target, object, lock, session).await;
            answer.into_iter().for_each(|(size, mtime)| add_to(sum, size, mtime));
            if answer.is_some_and(|(size, _)| size > range.start) {
                break (range.start, lock);
            }
            silent.push((range.start, lock, session));
        }
        at = target.coherence.locks.glimpse(object, Some((range.start, lock)));
    };
    if silent.is_empty() {
        return true;
    }
    let mut at = target.coherence.locks.glimpse(object, None);
    while let Some((lock, session, range)) = at.filter(|(lock, _, range)| (range.start, *lock) > found) {
        if session != asker && !silent.iter().any(|(_, known, _)| *known == lock) {
            return false;
        }
        at = target.coherence.locks.glimpse(object, Some((range.start, lock)));
    }
    let again = silent.iter().map(|&(start, lock, session)| async move {
        let answer = ask(worker, target, object, lock, session).await;
        answer.is_none_or(|(size, _)| size <= start)
    });
    join_all(again).await.into_iter().all(|still| still)
}

/// Sends a glimpse to one holder. Returns `None` if its lock or session ended before it answered.
async fn ask<E: Env>(
    worker: &Rc<Worker<E>>,
    target: &Rc<Target<E>>,
    object: ObjectId,
    lock: LockId,
    session: SessionId,
) -> Option<(u64, Timespec)> {
    let (id, mut receiver) = target.coherence.glimpses.ask(worker.now_ns(), session, object, lock);
    let _open = Open::new(&target.coherence.glimpses, id);
    add(&worker.counters.glimpses, 1);
    worker.push(session, Push::Glimpse { id, object });
    let mut left_ns = worker.tunables.callback_deadline_ns();
    while left_ns > 0 {
        let wait_ns = left_ns.min(worker.tunables.callback_again_ns());
        if let Some(answer) = timeout(&worker.env, Duration::from_nanos(wait_ns), &mut receiver).await {
            return answer.ok();
        }
        left_ns -= wait_ns;
        if left_ns > 0 {
            add(&worker.counters.again, 1);
            worker.push(session, Push::Glimpse { id, object });
        }
    }
    worker.overdue(session);
    receiver.await.ok()
}
