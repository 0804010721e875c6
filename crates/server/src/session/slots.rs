//! `Slots`: the last answer to each session in each of its slots, so that a request that is sent again is executed only
//! once.
//!
//! Owns: the last logged answer of every slot (items with tag `R`), the answers of this run that are not logged (opens,
//! locks, refusals), and which resent requests wait for one that still executes. Does not own: executing.
//!
//! The answer to a change is logged in the same record as the change itself, so either both survive or neither. The
//! answer to a request that changed only memory (open, lock) is kept in memory. A restart loses it together with the
//! change that the request made.
//!
//! An open that an earlier run logged is kept for a repeated request, because it is not known whether its answer
//! arrived. A client repeats requests right after it has presented its opens. So such opens end some minutes after that
//! (`end_kept`); most of these files were closed long before.
//!
//! Bound: one entry for each credit of each session, each with one answer.

use amphi_types::{Ino, SessionId};
use amphi_wire::{Access, Answer, Reply, RequestId};
use futures_channel::oneshot;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A logged answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SlotRecord {
    /// Sequence number of the request.
    pub seq: u64,
    /// The answer to the request; tokens are not logged.
    #[serde(with = "logged")]
    pub answer: Answer,
    /// The inode that the request opened, and how.
    pub open: Option<(Ino, Access)>,
}

/// An answer as it is logged.
mod logged {
    use super::Answer;
    use amphi_types::Errno;
    use amphi_wire::Reply;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub fn serialize<S: Serializer>(answer: &Answer, to: S) -> Result<S::Ok, S::Error> {
        (&answer.result, answer.contended).serialize(to)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Answer, D::Error> {
        let (result, contended): (Result<Reply, Errno>, bool) = Deserialize::deserialize(from)?;
        Ok(Answer { contended, ..Answer::of(result) })
    }
}

enum Live {
    Idle,
    Running { seq: u64, waiting: Vec<oneshot::Sender<Answer>> },
    Answered { seq: u64, answer: Answer },
}

struct Slot {
    /// Whether the target has an item for the slot.
    logged: bool,
    /// An open that a request of an earlier run made and whose answer may not have arrived: it keeps the inode.
    kept_open: Option<(Ino, Access)>,
    /// An open of an earlier run that was kept long enough.
    ended_open: Option<(Ino, Access)>,
    live: Live,
}

/// Slots of the sessions on one target.
#[derive(Default)]
pub struct Slots {
    slots: BTreeMap<(SessionId, u16), Slot>,
}

/// The next step for a request.
#[expect(clippy::large_enum_variant, reason = "made once for each request, and taken apart at once")]
pub enum Begin {
    /// The request is new: execute it, then call `finish`. The open that an earlier run kept for the slot ends.
    New(Option<(Ino, Access)>),
    /// The request was executed: this is its answer. The open that an earlier run kept for this request belongs to the
    /// session from now on. The second value is an open that was kept long enough and has ended.
    Answered(Answer, Option<(Ino, Access)>),
    /// The request is being executed: wait for its answer.
    Running(oneshot::Receiver<Answer>),
    /// A later request of the slot has arrived, so the client no longer waits for this one.
    Old,
}

/// Most resends of one request that wait for it at the same time.
const WAITING_MAX: usize = 4;

impl Slots {
    /// Called when a request arrives.
    pub fn begin(&mut self, session: SessionId, id: RequestId) -> Begin {
        let slot = self.slots.entry((session, id.slot)).or_insert(Slot {
            logged: false,
            kept_open: None,
            ended_open: None,
            live: Live::Idle,
        });
        match &mut slot.live {
            Live::Running { seq, waiting } if *seq == id.seq => {
                waiting.retain(|w| !w.is_canceled());
                if waiting.len() >= WAITING_MAX {
                    // Each repetition comes on a later connection, so nobody reads the oldest waiting answer any more.
                    waiting.remove(0);
                }
                let (sender, receiver) = oneshot::channel();
                waiting.push(sender);
                assert!(waiting.len() <= WAITING_MAX, "{} resends wait in slot {}", waiting.len(), id.slot);
                return Begin::Running(receiver);
            }
            Live::Running { seq, .. } | Live::Answered { seq, .. } if *seq > id.seq => return Begin::Old,
            Live::Answered { seq, answer } if *seq == id.seq => {
                slot.kept_open = None;
                return Begin::Answered(answer.clone(), slot.ended_open.take());
            }
            _ => {}
        }
        slot.live = Live::Running { seq: id.seq, waiting: Vec::new() };
        slot.ended_open = None;
        Begin::New(slot.kept_open.take())
    }

    /// Called when the request has been executed: the waiting connection gets its answer.
    pub fn finish(&mut self, session: SessionId, id: RequestId, answer: &Answer) {
        let Some(slot) = self.slots.get_mut(&(session, id.slot)) else { return };
        let answered = Live::Answered { seq: id.seq, answer: answer.clone() };
        match std::mem::replace(&mut slot.live, answered) {
            Live::Running { seq, waiting } if seq == id.seq => {
                for w in waiting {
                    drop(w.send(answer.clone()));
                }
            }
            other => slot.live = other,
        }
    }

    /// The request was given up without an answer (its task was dropped), so it is executed again if it is sent again.
    pub fn give_up(&mut self, session: SessionId, id: RequestId) {
        if let Some(slot) = self.slots.get_mut(&(session, id.slot))
            && matches!(slot.live, Live::Running { seq, .. } if seq == id.seq)
        {
            slot.live = Live::Idle;
        }
    }

    /// Called when the answer is about to be logged under the slot's key. Returns false if it must not be logged: a
    /// later request of the slot has arrived, and the record belongs to that one.
    pub fn log(&mut self, session: SessionId, id: RequestId) -> bool {
        let Some(slot) = self.slots.get_mut(&(session, id.slot)) else { return false };
        let last = matches!(slot.live, Live::Running { seq, .. } | Live::Answered { seq, .. } if seq == id.seq);
        let older = matches!(slot.live, Live::Running { seq, .. } | Live::Answered { seq, .. } if seq < id.seq);
        debug_assert!(!older, "a slot never goes back");
        slot.logged |= last;
        last
    }

    /// A logged answer found at recovery.
    pub fn load(&mut self, session: SessionId, slot: u16, record: SlotRecord) {
        let live = Live::Answered { seq: record.seq, answer: record.answer };
        let loaded = Slot { logged: true, kept_open: record.open, ended_open: None, live };
        let before = self.slots.insert((session, slot), loaded);
        debug_assert!(before.is_none(), "a slot has one item");
    }

    /// Opens that requests of an earlier run made.
    pub fn kept_opens(&self) -> impl Iterator<Item = (SessionId, Ino, Access)> + '_ {
        self.slots.iter().filter_map(|((session, _), slot)| slot.kept_open.map(|(ino, access)| (*session, ino, access)))
    }

    /// The opens that are still kept for the session end now, because it has had time to send its requests again.
    pub fn end_kept(&mut self, session: SessionId) -> Vec<(Ino, Access)> {
        let end = |slot: &mut Slot| {
            slot.ended_open = Some(slot.kept_open.take()?);
            slot.ended_open
        };
        self.slots.range_mut((session, 0)..=(session, u16::MAX)).filter_map(|(_, slot)| end(slot)).collect()
    }

    /// The session whose answer of an earlier run shows the inode with this generation: the one that truncated it last.
    pub fn truncated_by(&self, ino: Ino, generation: u64) -> Option<SessionId> {
        let shows = |answer: &Answer| matches!(&answer.result, Ok(Reply::Inode(view)) if view.attr.ino == ino && view.generation == generation);
        let of = |slot: &Slot| matches!(&slot.live, Live::Answered { answer, .. } if shows(answer));
        self.slots.iter().find(|(_, slot)| of(slot)).map(|((session, _), _)| *session)
    }

    /// Called when the session has ended. Forgets its slots, and returns which of them have an item.
    pub fn end_session(&mut self, session: SessionId) -> Vec<u16> {
        let keys: Vec<(SessionId, u16)> =
            self.slots.range((session, 0)..=(session, u16::MAX)).map(|(key, _)| *key).collect();
        keys.into_iter().filter_map(|key| self.slots.remove(&key).filter(|slot| slot.logged).map(|_| key.1)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt;

    const S: SessionId = SessionId(3);

    fn answer(reply: Reply) -> Answer {
        Answer::of(Ok(reply))
    }

    /// Goal: a request that is sent several times is executed once. If it is sent again, the copies wait for it and get
    /// its answer, and older requests are refused.
    #[test]
    fn a_request_runs_once() {
        let mut slots = Slots::default();
        let id = RequestId { slot: 1, seq: 5 };
        assert!(matches!(slots.begin(S, id), Begin::New(None)));
        let Begin::Running(receiver) = slots.begin(S, id) else { panic!("it runs") };
        slots.finish(S, id, &answer(Reply::Done));
        assert_eq!(receiver.now_or_never().unwrap().unwrap(), answer(Reply::Done));
        assert!(matches!(slots.begin(S, id), Begin::Answered(..)));
        assert!(matches!(slots.begin(S, RequestId { slot: 1, seq: 4 }), Begin::Old));
        let next = RequestId { slot: 1, seq: 6 };
        assert!(matches!(slots.begin(S, next), Begin::New(None)));
        slots.give_up(S, next);
        assert!(matches!(slots.begin(S, next), Begin::New(None)), "given up, so executed anew");
    }

    /// Goal: the latest repetition gets the answer, however many came before. Method: more resends than may wait.
    #[test]
    fn the_newest_resend_is_answered() {
        let mut slots = Slots::default();
        let id = RequestId { slot: 1, seq: 5 };
        assert!(matches!(slots.begin(S, id), Begin::New(None)));
        let mut receivers = Vec::new();
        for _ in 0..WAITING_MAX + 3 {
            let Begin::Running(receiver) = slots.begin(S, id) else { panic!("it runs") };
            receivers.push(receiver);
        }
        slots.finish(S, id, &answer(Reply::Done));
        let answered: Vec<bool> = receivers.into_iter().map(|r| matches!(r.now_or_never(), Some(Ok(_)))).collect();
        assert_eq!(answered, [false, false, false, true, true, true, true]);
    }

    /// Goal: the record of a slot never goes back to an earlier request. Method: a request that was given up ends after
    /// the next one of its slot, and then the record is loaded.
    #[test]
    fn a_record_does_not_go_back() {
        let mut slots = Slots::default();
        let [old, new] = [5, 6].map(|seq| RequestId { slot: 0, seq });
        assert!(matches!(slots.begin(S, old), Begin::New(None)));
        assert!(matches!(slots.begin(S, new), Begin::New(None)));
        let mut record = None;
        for id in [new, old] {
            if slots.log(S, id) {
                record = Some(SlotRecord { seq: id.seq, answer: answer(Reply::Done), open: None });
            }
            slots.finish(S, id, &answer(Reply::Done));
        }
        let mut after = Slots::default();
        after.load(S, 0, record.expect("the new one is logged"));
        assert!(matches!(after.begin(S, new), Begin::Answered(..)), "not executed again");
        assert!(matches!(after.begin(S, old), Begin::Old));
        assert!(!slots.log(SessionId(4), old), "nobody's slot");
    }

    /// Goal: a logged answer outlives the run, with the open it made. Method: through its encoded record.
    #[test]
    fn logged_answers_survive() {
        let mut slots = Slots::default();
        let id = RequestId { slot: 0, seq: 9 };
        let open = Some((Ino(8), Access { read: true, write: true }));
        let record = SlotRecord { seq: 9, answer: answer(Reply::Ino(Ino(8))), open };
        let value = postcard::to_stdvec(&record).unwrap();
        slots.load(S, id.slot, postcard::from_bytes(&value).unwrap());
        let mut after = slots;
        assert_eq!(after.kept_opens().count(), 1);
        let Begin::Answered(a, None) = after.begin(S, id) else { panic!("it was executed") };
        assert_eq!(a, record.answer);
        assert_eq!(after.kept_opens().count(), 0, "the session has it now");
        assert_eq!(after.end_session(S), vec![0]);
        assert!(after.slots.is_empty());
    }

    /// Goal: an open that was kept long enough ends once, and a client that repeats its request later learns that once,
    /// unless the slot was used again. Method: single calls for two slots.
    #[test]
    fn kept_opens_end() {
        let mut slots = Slots::default();
        let open = (Ino(8), Access { read: true, write: true });
        for slot in 0..2 {
            slots.load(S, slot, SlotRecord { seq: 9, answer: answer(Reply::Ino(Ino(8))), open: Some(open) });
        }
        assert_eq!(slots.end_kept(SessionId(4)), vec![]);
        assert_eq!(slots.end_kept(S), vec![open, open]);
        assert_eq!((slots.end_kept(S), slots.kept_opens().count()), (vec![], 0));
        assert!(matches!(slots.begin(S, RequestId { slot: 0, seq: 9 }), Begin::Answered(_, Some(o)) if o == open));
        assert!(matches!(slots.begin(S, RequestId { slot: 0, seq: 9 }), Begin::Answered(_, None)));
        assert!(matches!(slots.begin(S, RequestId { slot: 1, seq: 10 }), Begin::New(None)));
        assert_eq!(slots.slots[&(S, 1)].ended_open, None);
    }
}
