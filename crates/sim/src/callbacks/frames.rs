//! `Frames`: one direction of a connection, cut into frames.
//!
//! Owns: finding the starts of frames, keeping those to be delivered later, inserting them between others. Does not
//! own: the choice of frames (`callbacks`).
//!
//! Bytes that are no frames pass as they are.

use super::Fate;
use amphi_env::Time;
use amphi_env::sim::Carried;
use amphi_wire::frame::{HEAD_BYTES, Head};
use std::collections::BTreeMap;

/// The result of `Frames::next`.
pub(super) enum Took {
    /// No more to inspect now.
    All,
    /// A whole frame; `Frames::settle` decides its fate.
    Frame(Head, Vec<u8>),
}

/// A frame that is kept back.
struct Kept {
    frame: Vec<u8>,
    copy: bool,
}

/// State of one direction.
#[derive(Default)]
pub(super) struct Frames {
    /// Bytes that have not been examined.
    fed: Vec<u8>,
    /// Bytes of the frame under way that pass without inspection.
    passing: usize,
    kept: BTreeMap<(Time, u64), Kept>,
    count: u64,
    /// Nothing arrives any more.
    deaf: bool,
}

/// Header and body of a frame.
pub(super) fn split(frame: &[u8]) -> Option<(Head, &[u8])> {
    let (head, body) = frame.split_first_chunk::<HEAD_BYTES>()?;
    Some((Head::parse(head).ok()?, body))
}

impl Frames {
    /// Takes bytes in.
    pub(super) fn feed(&mut self, bytes: &[u8]) {
        self.fed.extend_from_slice(bytes);
    }

    /// Passes bytes that are not inspected; stops at a frame that is.
    pub(super) fn next(&mut self, looks_at: impl Fn(&Head) -> bool, out: &mut Vec<u8>) -> Took {
        loop {
            if self.passing > 0 {
                let n = self.passing.min(self.fed.len());
                self.passing -= n;
                self.pass(n, out);
                if self.passing > 0 {
                    return Took::All;
                }
            }
            let Some(head) = self.fed.first_chunk::<HEAD_BYTES>() else { return Took::All };
            let Ok(head) = Head::parse(head) else {
                self.passing = usize::MAX;
                continue;
            };
            let whole = HEAD_BYTES + head.body_len as usize;
            if !looks_at(&head) {
                self.passing = whole + head.inline_len();
                continue;
            }
            if self.fed.len() < whole {
                return Took::All;
            }
            let rest = self.fed.split_off(whole);
            let frame = std::mem::replace(&mut self.fed, rest);
            return Took::Frame(head, frame);
        }
    }

    fn pass(&mut self, n: usize, out: &mut Vec<u8>) {
        if self.deaf {
            self.fed.drain(..n);
        } else {
            out.extend(self.fed.drain(..n));
        }
    }

    /// Does with a frame as was decided.
    pub(super) fn settle(&mut self, now: Time, fate: Fate, frame: Vec<u8>, carried: &mut Carried) {
        if self.deaf {
            return;
        }
        match fate {
            Fate::Passes => carried.bytes.extend(frame),
            Fate::Lost => {}
            Fate::Late(at) => self.keep(at, Kept { frame, copy: false }, carried),
            Fate::Again(at) => {
                carried.bytes.extend(&frame);
                for at in at {
                    self.keep(at, Kept { frame: frame.clone(), copy: true }, carried);
                }
            }
            Fate::Deaf(at) => {
                self.deaf = true;
                carried.break_at = Some(carried.break_at.map_or(at, |other| other.min(at)).max(now));
            }
            Fate::Breaks(at) => {
                carried.bytes.extend(frame);
                carried.break_at = Some(carried.break_at.map_or(at, |other| other.min(at)).max(now));
            }
        }
    }

    fn keep(&mut self, at: Time, kept: Kept, carried: &mut Carried) {
        self.count += 1;
        self.kept.insert((at, self.count), kept);
        carried.due_at = self.due_at();
    }

    /// The time of the next delivery of a kept frame.
    pub(super) fn due_at(&self) -> Option<Time> {
        self.kept.first_key_value().map(|((at, _), _)| *at)
    }

    /// Delivers frames that are due, if no frame is half-way. Returns the copies among it.
    pub(super) fn release(&mut self, now: Time, out: &mut Vec<u8>) -> Vec<Vec<u8>> {
        let mut copies = Vec::new();
        while self.passing == 0
            && !self.deaf
            && let Some(first) = self.kept.first_entry().filter(|first| first.key().0 <= now)
        {
            let kept = first.remove();
            out.extend(&kept.frame);
            if kept.copy {
                copies.push(kept.frame);
            }
        }
        copies
    }
}
