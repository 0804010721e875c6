//! `Callbacks`: faults of the servers' questions to mounts and of the answers, one message at a time: late, repeated,
//! lost.
//!
//! Owns: reading the frames of every simulated connection, which of them meet a fault, when they arrive. Does not own:
//! the connections (`amphi_env::sim`), cuts and kills (`run`), the detection of their effects (the checks).
//!
//! Validity of these faults. A connection keeps the order of its bytes, but the protocol promises none between pushes
//! and replies, nor between requests: pushes of one server come from several workers and are queued as they reach the
//! one with the connections, a client's handler may be scheduled late, and requests are executed in any order. So whole
//! frames are delayed here while other frames of the connection pass; to both sides this looks like a late handler at
//! the other end.
//! * **Late**: a push, or the request that answers one, is delayed, for a microsecond up to more than half of the time
//!   in which it has to be answered. Repetitions of it meanwhile wait with it.
//! * **Repeated**: a push arrives once or twice more, at once or up to twice that time later, on the same connection.
//! * **Lost**: a callback, a revocation or a question for a size vanishes while its connection continues: the server
//!   has to send it again. Or a push or an answer is lost as on a stream: together with everything that follows it, and
//!   the connection breaks. Or an answer arrives, and the connection breaks before its reply.
//!
//! A mount that sends nothing for the whole time may be ended, so of each `CALLBACK_DEADLINE` a pair of nodes has
//! `WHOLE` of it without long faults, cuts and stops included (`Callbacks::room`).
//!
//! Planted bugs (`plant`) that only these faults reveal are made here too: their bytes are those of a wrong client or
//! server.

mod frames;

use crate::cluster::CALLBACK_DEADLINE;
use crate::dice::Dice;
use crate::plant::{self, Plant};
use amphi_env::Time;
use amphi_env::sim::{Carried, Courier, Leg};
use amphi_types::ObjectId;
use amphi_wire::frame::{FrameKind, Head};
use amphi_wire::{Answer, Call, Push, Reply, Request, RequestId};
use frames::{Frames, Took};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

/// The part of each `CALLBACK_DEADLINE` that has no long faults.
const WHOLE: Duration = Duration::from_secs(4);
/// Shorter faults do not count as long ones: other mounts need not wait because of them.
const SHORT: Duration = Duration::from_millis(100);
/// A server sends a lost message again within this time.
const SENT_AGAIN_WITHIN: Duration = Duration::from_nanos(CALLBACK_DEADLINE.as_nanos() as u64 / 3);
/// Longest time for which a connection lives that has lost a message.
const DEAF: Duration = Duration::from_secs(2);

/// The events of the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Pushes that were held back.
    pub late: u64,
    /// Pushes that were held back for more than half of the time in which they have to be answered.
    pub very_late: u64,
    /// Copies of pushes that came.
    pub repeated: u64,
    /// Copies that were callbacks of locks that had been returned.
    pub after_return: u64,
    /// Copies of that kind that came to mounts with a newer lock on the same object.
    pub with_newer: u64,
    /// Pushes that were lost without other messages.
    pub lost: u64,
    /// Pushes that were lost with their connections.
    pub lost_with_connection: u64,
    /// Answers that were held back.
    pub answers_late: u64,
    /// Answers that were lost with their connections, or whose replies were.
    pub answers_lost: u64,
}

impl Counts {
    /// Adds the counts of another run.
    pub fn add(&mut self, of: &Counts) {
        self.late += of.late;
        self.very_late += of.very_late;
        self.repeated += of.repeated;
        self.after_return += of.after_return;
        self.with_newer += of.with_newer;
        self.lost += of.lost;
        self.lost_with_connection += of.lost_with_connection;
        self.answers_late += of.answers_late;
        self.answers_lost += of.answers_lost;
    }
}

/// A push to a node: equal bytes have the same meaning.
type Key = (String, Vec<u8>);

/// The state of locks derived from the messages: for counting, and for planted bugs.
#[derive(Default)]
struct Seen {
    /// Requests for locks that were not answered: node, connection, request.
    asked: BTreeMap<(String, u64, RequestId), ObjectId>,
    /// The lock that a node got last of an object.
    newest: BTreeMap<(String, ObjectId), u64>,
    /// Locks that nodes gave back.
    returned: BTreeSet<(String, u64)>,
}

/// Faults of callbacks; see the module.
pub struct Callbacks {
    dice: Dice,
    /// One message in this many suffers a fault.
    one_in: u64,
    pipes: BTreeMap<(u64, bool), Frames>,
    /// When the present stretch of long faults between two nodes began.
    stretches: BTreeMap<(String, String), Time>,
    /// The time until which pushes are held back.
    late: BTreeMap<Key, Time>,
    /// Pushes that never arrive, if that is planted.
    forgotten: BTreeSet<Key>,
    /// Locks that a node returns with the next ones, though it uses them, if that bug is planted.
    mistaken: BTreeMap<String, u64>,
    seen: Seen,
    /// The events so far.
    pub counts: Counts,
    /// Faults since they were noted last, with their times.
    pub told: Vec<(Time, String)>,
}

/// The faults as the run and the connections share them.
#[derive(Clone)]
pub struct SharedCallbacks(pub Rc<RefCell<Callbacks>>);

impl Courier for SharedCallbacks {
    fn take(&mut self, leg: &Leg<'_>, bytes: &[u8]) -> Carried {
        self.0.borrow_mut().take(leg, bytes)
    }

    fn due(&mut self, leg: &Leg<'_>) -> Carried {
        self.0.borrow_mut().due(leg)
    }
}

/// The fate of one frame.
enum Fate {
    Passes,
    /// Comes then instead.
    Late(Time),
    /// Comes now, and then too.
    Again(Vec<Time>),
    /// Does not come.
    Lost,
    /// Neither this message nor anything after it arrives, and then the connection breaks.
    Deaf(Time),
    /// Comes, and the connection breaks then.
    Breaks(Time),
}

impl Callbacks {
    /// Faults of a seed.
    pub fn drawn(seed: u64) -> SharedCallbacks {
        let mut dice = Dice::new(seed, 18);
        let one_in = [4, 15, 60][dice.below(3) as usize];
        let callbacks = Callbacks {
            dice,
            one_in,
            pipes: BTreeMap::new(),
            stretches: BTreeMap::new(),
            late: BTreeMap::new(),
            forgotten: BTreeSet::new(),
            mistaken: BTreeMap::new(),
            seen: Seen::default(),
            counts: Counts::default(),
            told: Vec::new(),
        };
        SharedCallbacks(Rc::new(RefCell::new(callbacks)))
    }

    /// Returns how often a fault meets a message, for people.
    pub fn describe(&self) -> String {
        format!("one callback in {} meets a fault", self.one_in)
    }

    /// For how long two nodes may be kept from each other now.
    pub fn room(&self, now: Time, a: &str, b: &str) -> Duration {
        let most = CALLBACK_DEADLINE - WHOLE;
        match self.stretches.get(&pair(a, b)) {
            Some(begin) if now.since(*begin) < CALLBACK_DEADLINE => most.saturating_sub(now.since(*begin)),
            _ => most,
        }
    }

    /// For this long from now on, two nodes are kept from each other, or a message between them is kept back.
    pub fn keeps_apart(&mut self, now: Time, a: &str, b: &str, long: Duration) {
        if long < SHORT {
            return;
        }
        let begin = self.stretches.entry(pair(a, b)).or_insert(now);
        if now.since(*begin) >= CALLBACK_DEADLINE {
            *begin = now;
        }
    }

    fn take(&mut self, leg: &Leg<'_>, bytes: &[u8]) -> Carried {
        let mut frames = self.pipes.remove(&(leg.conn, leg.dialled)).unwrap_or_default();
        let mut carried = Carried::default();
        frames.feed(bytes);
        loop {
            let looks = |head: &Head| self.looks_at(leg, head);
            match frames.next(looks, &mut carried.bytes) {
                Took::All => break,
                Took::Frame(head, frame) => {
                    let (fate, frame) = self.judge(leg, &head, frame);
                    frames.settle(leg.now, fate, frame, &mut carried);
                }
            }
        }
        self.release(leg, &mut frames, &mut carried);
        self.pipes.insert((leg.conn, leg.dialled), frames);
        carried
    }

    fn due(&mut self, leg: &Leg<'_>) -> Carried {
        let mut carried = Carried::default();
        let Some(mut frames) = self.pipes.remove(&(leg.conn, leg.dialled)) else { return carried };
        self.release(leg, &mut frames, &mut carried);
        carried.due_at = frames.due_at().filter(|at| *at > leg.now);
        self.pipes.insert((leg.conn, leg.dialled), frames);
        carried
    }

    fn release(&mut self, leg: &Leg<'_>, frames: &mut Frames, carried: &mut Carried) {
        for copy in frames.release(leg.now, &mut carried.bytes) {
            self.came_again(leg, &copy);
        }
    }

    /// Returns whether a frame is inspected whole: those without a payload that may be callbacks, answers, or concern
    /// locks.
    fn looks_at(&self, leg: &Leg<'_>, head: &Head) -> bool {
        head.payload_len == 0
            && match head.kind {
                FrameKind::Push | FrameKind::Request => true,
                FrameKind::Reply => self.seen.asked.contains_key(&(leg.to.to_string(), leg.conn, head.id)),
                _ => false,
            }
    }

    fn judge(&mut self, leg: &Leg<'_>, head: &Head, frame: Vec<u8>) -> (Fate, Vec<u8>) {
        let body = &frame[amphi_wire::frame::HEAD_BYTES..];
        match head.kind {
            FrameKind::Push => {
                let Ok(push) = head.decode::<Push>(body) else { return (Fate::Passes, frame) };
                let fate = self.judge_push(leg, &push, body);
                (fate, frame)
            }
            FrameKind::Request => {
                let Ok(call) = head.decode::<Call>(body) else { return (Fate::Passes, frame) };
                self.judge_request(leg, head, call, frame)
            }
            _ => {
                let asked = self.seen.asked.remove(&(leg.to.to_string(), leg.conn, head.id));
                if let Some(object) = asked
                    && let Ok(Answer { result: Ok(Reply::Locked { lock, .. }), .. }) = head.decode::<Answer>(body)
                {
                    self.seen.newest.insert((leg.to.to_string(), object), lock);
                }
                (Fate::Passes, frame)
            }
        }
    }

    fn judge_push(&mut self, leg: &Leg<'_>, push: &Push, body: &[u8]) -> Fate {
        let key: Key = (leg.to.to_string(), body.to_vec());
        if self.forgotten.contains(&key) {
            return Fate::Lost;
        }
        if let Some(until) = self.late.get(&key).copied() {
            if until > leg.now {
                return Fate::Late(until);
            }
            self.late.remove(&key);
        }
        if !self.dice.one_in(self.one_in) {
            return Fate::Passes;
        }
        let room = self.room(leg.now, leg.from, leg.to);
        let sent_again = matches!(push, Push::Callback { .. } | Push::Glimpse { .. } | Push::Revoke { .. });
        let may_be_lost = sent_again && room > SENT_AGAIN_WITHIN;
        let may_be_late = u32::from(room > SHORT);
        match self.dice.weighted(&[4 * may_be_late, 4, if may_be_lost { 2 } else { 0 }, may_be_late]) {
            0 => {
                let long = self.draw_delay(room);
                self.counts.late += 1;
                self.counts.very_late += u64::from(long > CALLBACK_DEADLINE / 2);
                self.late.insert(key, leg.now + long);
                self.tell(leg, long, format!("{push:?} is late by {long:?}"));
                Fate::Late(leg.now + long)
            }
            1 => {
                let copies = 1 + self.dice.below(2);
                let at: Vec<Time> = (0..copies).map(|_| leg.now + self.draw_delay(CALLBACK_DEADLINE * 2)).collect();
                let after: Vec<Duration> = at.iter().map(|at| at.since(leg.now)).collect();
                self.tell(leg, Duration::ZERO, format!("{push:?} comes again after {after:?}"));
                Fate::Again(at)
            }
            2 => {
                self.counts.lost += 1;
                self.tell(leg, SENT_AGAIN_WITHIN, format!("{push:?} is lost"));
                if plant::active() == Some(Plant::ForgottenCallbacks) {
                    self.forgotten.insert(key);
                }
                Fate::Lost
            }
            _ => {
                let long = self.draw_delay(room.min(DEAF));
                self.counts.lost_with_connection += 1;
                self.tell(leg, long.max(SHORT), format!("{push:?} is lost, and its connection breaks after {long:?}"));
                Fate::Deaf(leg.now + long)
            }
        }
    }

    fn judge_request(&mut self, leg: &Leg<'_>, head: &Head, mut call: Call, mut frame: Vec<u8>) -> (Fate, Vec<u8>) {
        let node = leg.from.to_string();
        match &mut call.op {
            Request::LockEnqueue { object, .. } => {
                self.seen.asked.insert((node, leg.conn, head.id), *object);
                return (Fate::Passes, frame);
            }
            Request::LockCancel { locks } => {
                self.seen.returned.extend(locks.iter().map(|lock| (node.clone(), *lock)));
                if let Some(lock) = self.mistaken.remove(&node) {
                    locks.push(lock);
                    let mut room = vec![0; frame.len() + 16];
                    let len = head.encode(&call, &mut room).expect("one number more fits");
                    room.truncate(len);
                    frame = room;
                }
            }
            Request::Revoked { .. } | Request::GlimpseReply { .. } | Request::CompanyKnown { .. } => {}
            _ => return (Fate::Passes, frame),
        }
        if !self.dice.one_in(self.one_in * 2) {
            return (Fate::Passes, frame);
        }
        let room = self.room(leg.now, leg.from, leg.to);
        if room <= SHORT {
            return (Fate::Passes, frame);
        }
        let fate = match self.dice.weighted(&[4, 1, 1]) {
            0 => {
                let long = self.draw_delay(room);
                self.counts.answers_late += 1;
                self.tell(leg, long, format!("{:?} is late by {long:?}", call.op));
                Fate::Late(leg.now + long)
            }
            1 => {
                let long = self.draw_delay(room.min(DEAF));
                self.counts.answers_lost += 1;
                self.tell(
                    leg,
                    long.max(SHORT),
                    format!("{:?} is lost, and its connection breaks after {long:?}", call.op),
                );
                Fate::Deaf(leg.now + long)
            }
            _ => {
                let long = self.draw_delay(SHORT / 10);
                self.counts.answers_lost += 1;
                self.tell(leg, SHORT, format!("after {:?} the connection breaks within {long:?}", call.op));
                Fate::Breaks(leg.now + long)
            }
        };
        (fate, frame)
    }

    /// A copy of a push has been sent.
    fn came_again(&mut self, leg: &Leg<'_>, frame: &[u8]) {
        self.counts.repeated += 1;
        let Some((head, body)) = frames::split(frame) else { return };
        let Ok(Push::Callback { object, lock, .. }) = head.decode::<Push>(body) else { return };
        let node = leg.to.to_string();
        let returned = |lock: u64| self.seen.returned.contains(&(node.clone(), lock));
        self.counts.after_return += u64::from(returned(lock));
        let newest = self.seen.newest.get(&(node.clone(), object)).copied();
        if let Some(newest) = newest.filter(|newest| *newest != lock && !returned(*newest)) {
            self.counts.with_newer += 1;
            if plant::active() == Some(Plant::MistakenCallbacks) {
                self.mistaken.insert(node, newest);
            }
        }
    }

    /// From a microsecond to `most`, all orders of magnitude equally likely; sometimes nearly `most`.
    fn draw_delay(&mut self, most: Duration) -> Duration {
        let most = most.as_nanos() as u64;
        if self.dice.one_in(8) {
            return Duration::from_nanos(self.dice.within(most / 4 * 3..most + 1));
        }
        let bits = u64::BITS - most.max(1).leading_zeros();
        let scale = 1u64 << self.dice.within(10..u64::from(bits).max(11));
        Duration::from_nanos((scale + self.dice.below(scale)).min(most))
    }

    fn tell(&mut self, leg: &Leg<'_>, long: Duration, what: String) {
        self.keeps_apart(leg.now, leg.from, leg.to, long);
        self.told.push((leg.now, format!("from {} to {}: {what}", leg.from, leg.to)));
    }
}

fn pair(a: &str, b: &str) -> (String, String) {
    (a.min(b).to_string(), a.max(b).to_string())
}
