//! `Known`: what the kernel goes by of one file, and what is on its way there that may change that.
//!
//! Linux gives an inode's attributes a version. An answer is kept only if nothing has moved it since the question was
//! asked; every answer that is kept moves it, and so does every write, cut and invalidation. Who asked is shown the
//! answer in any case. The mount sees neither moment: a question may have waited before it was read, and a thread that
//! was given an answer takes it when it runs. But a thread takes its answer before it asks anything else.
//!
//! Owns: the rule by which an answer may be given at once. Does not own: how the kernel is asked and looked at
//! (`sizes`), what is lent (the client).
//!
//! Invariant: while `size` is known, either the kernel has it or a thread has been given it and takes it; whatever else
//! is on its way leaves it so, or is noted in `other`. So an answer with this size may be given whether the kernel
//! keeps it or not. One with another size may if nothing was given to other threads lately.

use super::{ASKED_NS, ORDER_NS, TAKEN_NS};
use amphi_types::{Attr, Ino, Timespec};

/// When threads were given something last.
#[derive(Clone, Copy, Debug, Default)]
struct Given {
    /// The last two threads, the last one first.
    last: [(u32, u64); 2],
    /// By any other thread.
    rest_ns: u64,
}

impl Given {
    fn note(&mut self, tid: u32, now_ns: u64) {
        let [first, second] = self.last;
        // Nobody knows which threads those without a number are.
        if tid == 0 {
            self.rest_ns = now_ns;
        } else if tid == first.0 {
            self.last[0].1 = now_ns;
        } else {
            if tid != second.0 {
                self.rest_ns = self.rest_ns.max(second.1);
            }
            self.last = [(tid, now_ns), first];
        }
    }

    /// What `tid` was given does not count any more.
    fn without(mut self, tid: u32) -> Given {
        self.last.iter_mut().filter(|last| last.0 == tid).for_each(|last| last.1 = 0);
        self
    }

    /// When `tid` was given something last.
    fn to(&self, tid: u32) -> u64 {
        self.last.iter().find(|last| last.0 == tid).map_or(0, |last| last.1)
    }

    /// The same of all others; `tid` has taken all that it was given before it asks again.
    fn to_others(self, tid: u32) -> u64 {
        let Given { last: [first, second], rest_ns } = self.without(tid);
        first.1.max(second.1).max(rest_ns)
    }
}

/// An answer with attributes: to which thread, to a question that was read when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) tid: u32,
    pub(super) size: u64,
    pub(super) ctime: Timespec,
    pub(super) asked_ns: u64,
}

impl Answer {
    pub(super) fn new(tid: u32, attr: &Attr, asked_ns: u64) -> Answer {
        Answer { tid, size: attr.size, ctime: attr.ctime, asked_ns }
    }

    /// What was given before this moment was taken before the question was asked.
    fn counts_from_ns(self) -> u64 {
        self.asked_ns.saturating_sub(ASKED_NS + TAKEN_NS)
    }
}

/// See the module's head.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    pub(super) ino: Ino,
    /// By which the kernel goes, or will when what is on its way has arrived.
    pub(super) size: Option<u64>,
    /// When the file changed last by the answer that showed it.
    pub(super) ctime: Timespec,
    /// Since when it is this size, the thread whose answer brought it, and when that thread was given another one.
    since_ns: u64,
    by: u32,
    by_before_ns: u64,
    /// The kernel keeps the answer that brought it only if nothing crosses it, and was not seen to have it.
    may_be_lost: bool,
    /// Whatever moves the version.
    given: Given,
    /// That of it which brought another size than the present one, and its thread has not asked since.
    other: Given,
    /// That of it which the kernel takes whatever came in between.
    fixed: Given,
    /// Answers to cuts: until its thread has taken one the kernel takes no other answer, with whichever size.
    cut: Given,
    /// When attributes or pages were taken back last, if ever.
    taken_back_ns: Option<u64>,
    /// Counts what changes `size`.
    pub(super) moves: u64,
}

impl Known {
    pub(super) fn new(ino: Ino) -> Known {
        Known { ino, ..Known::default() }
    }

    /// When it was used last.
    pub(super) fn used_ns(&self) -> u64 {
        self.given.to_others(0).max(self.taken_back_ns.unwrap_or(0))
    }

    /// A thread asks for something else: it has taken what it was given.
    pub(super) fn asks_again(&mut self, tid: u32) {
        (self.fixed, self.cut) = (self.fixed.without(tid), self.cut.without(tid));
    }

    fn note(&mut self, tid: u32, now_ns: u64) {
        self.asks_again(tid);
        self.given.note(tid, now_ns);
    }

    /// The kernel goes by this size from now on, or will.
    fn becomes(&mut self, tid: u32, size: Option<u64>, now_ns: u64) {
        if self.size != size {
            (self.other, self.by_before_ns) = (self.given.without(tid), self.given.to(tid));
            (self.size, self.since_ns, self.by, self.may_be_lost) = (size, now_ns, tid, false);
            self.moves += 1;
        }
    }

    /// An answer is about to be given that the kernel keeps if nothing crosses it. False if the kernel may have another
    /// size behind it: then nothing is noted. `is_changing`: whether a change of the file by this mount is under way.
    pub(super) fn shows(&mut self, answer: Answer, now_ns: u64, is_changing: impl FnOnce() -> bool) -> bool {
        let Answer { tid, size, ctime, .. } = answer;
        let from_ns = answer.counts_from_ns();
        let is_safe = self.taken_back_ns.is_none_or(|at_ns| at_ns + ASKED_NS < answer.asked_ns)
            && match self.size == Some(size) {
                true => self.other.to_others(tid).max(self.cut.to_others(tid)) <= from_ns && self.is_behind(answer),
                false => self.given.to_others(tid) <= from_ns && !is_changing(),
            };
        if is_safe {
            let may_be_lost = self.may_be_lost || self.size != Some(size);
            self.becomes(tid, Some(size), now_ns);
            self.may_be_lost = may_be_lost;
            self.ctime = self.ctime.max(ctime);
            self.note(tid, now_ns);
        }
        is_safe
    }

    /// As `shows`, of an answer that shows its size to nobody. False if it has to be left out: it may be older than
    /// what was shown meanwhile.
    pub(super) fn shows_aside(&mut self, answer: Answer, now_ns: u64, is_changing: impl FnOnce() -> bool) -> bool {
        if self.shows(answer, now_ns, is_changing) {
            return true;
        }
        if self.size == Some(answer.size) {
            self.note(answer.tid, now_ns);
        } else if self.is_older(answer) {
            return false;
        } else {
            self.shows_in_doubt(answer, now_ns);
        }
        true
    }

    /// Whether the question was read behind the one whose answer brought the size, and so asked when that thread had
    /// taken all that it was given before: the kernel hands out questions in order.
    fn is_behind(&self, answer: Answer) -> bool {
        self.by == answer.tid
            || self.by_before_ns <= answer.counts_from_ns()
            || self.since_ns + ORDER_NS < answer.asked_ns
    }

    /// Whether another size was shown to another thread since it was asked.
    fn is_older(&self, Answer { tid, size, asked_ns, .. }: Answer) -> bool {
        self.size.is_some_and(|known| known != size) && self.since_ns >= asked_ns && self.by != tid
    }

    /// An answer is given to a thread of the mount, which looks whether the kernel has taken it.
    pub(super) fn shows_own(&mut self, answer: Answer, now_ns: u64) {
        if self.size != Some(answer.size) {
            self.other.note(answer.tid, now_ns);
        }
        self.note(answer.tid, now_ns);
    }

    /// An answer is given although the kernel may have another size behind it.
    pub(super) fn shows_in_doubt(&mut self, answer: Answer, now_ns: u64) {
        self.becomes(answer.tid, None, now_ns);
        self.note(answer.tid, now_ns);
    }

    /// An answer is about to be given that the kernel takes whatever has come in between. False if it may be older than
    /// what was shown meanwhile.
    pub(super) fn fixes(&mut self, answer: Answer, now_ns: u64) -> bool {
        let Answer { tid, size, ctime, .. } = answer;
        if self.is_older(answer) {
            return false;
        }
        self.becomes(tid, Some(size), now_ns);
        self.ctime = self.ctime.max(ctime);
        self.note(tid, now_ns);
        self.fixed.note(tid, now_ns);
        true
    }

    /// The answer to a cut, or to what the kernel treats as one, is about to be given.
    pub(super) fn cuts(&mut self, tid: u32, now_ns: u64) {
        self.cut.note(tid, now_ns);
    }

    /// When the kernel has taken what it takes in any case and was given for other threads than `tid`.
    pub(super) fn fixed_ns(&self, tid: u32) -> u64 {
        match self.fixed.to_others(tid) {
            0 => 0,
            at_ns => at_ns + TAKEN_NS,
        }
    }

    /// The answer to a write is about to be given: the file ends at `end` at least.
    pub(super) fn wrote(&mut self, tid: u32, end: u64, now_ns: u64) {
        if self.size.is_some_and(|size| size < end) {
            self.becomes(tid, Some(end), now_ns);
        }
        self.note(tid, now_ns);
    }

    /// The answer to a read of pages ends at `end`, before that of the request: the kernel may take that for the end of
    /// the file.
    pub(super) fn read_short(&mut self, end: u64, now_ns: u64) {
        if self.size.is_some_and(|size| size != end) {
            self.becomes(0, None, now_ns);
            self.note(0, now_ns);
        }
    }

    /// Attributes or pages are taken back.
    pub(super) fn takes_back(&mut self, now_ns: u64) {
        self.taken_back_ns = Some(now_ns);
    }

    /// Whether another thread than `tid` may have yet to take the size, and lose it if something crosses.
    pub(super) fn is_on_its_way(&self, tid: u32, now_ns: u64) -> bool {
        self.may_be_lost && (self.by != tid || tid == 0) && now_ns < self.since_ns + TAKEN_NS
    }

    /// The kernel has been seen to go by `size`, which it was answered when `moves` was as it is here: whatever was
    /// given before leaves it so. False if something has come in between.
    pub(super) fn is_seen(&mut self, moves: u64, (size, ctime): (u64, Timespec), now_ns: u64) -> bool {
        if self.moves != moves {
            return false;
        }
        self.becomes(0, Some(size), now_ns);
        (self.other, self.cut) = (Given::default(), Given::default());
        (self.ctime, self.by_before_ns, self.may_be_lost) = (self.ctime.max(ctime), 0, false);
        true
    }

    /// The kernel has been seen to go by the size that it was told.
    pub(super) fn has_arrived(&mut self, moves: u64) {
        self.may_be_lost &= self.moves != moves;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Long after anything that has to do with zero.
    const NOW: u64 = 1_000_000_000_000;
    const LATER: u64 = ASKED_NS + TAKEN_NS + 1;

    fn answer(tid: u32, size: u64, asked_ns: u64) -> Answer {
        Answer { tid, size, ctime: Timespec::default(), asked_ns }
    }

    fn shows(known: &mut Known, tid: u32, size: u64, at_ns: u64) -> bool {
        known.shows(answer(tid, size, at_ns), at_ns, || false)
    }

    /// Goal: one thread is answered at once, whatever becomes of the file, and so are others while the size stays.
    /// Method: answers by hand.
    #[test]
    fn one_at_a_time_and_the_same_size_cost_nothing() {
        let mut known = Known::new(Ino(7));
        assert!((0..5).all(|n| shows(&mut known, 1, n, NOW + n)), "one thread");
        assert!(!shows(&mut known, 2, 4, NOW + 5), "it may have been asked before the first took an older size");
        assert!(shows(&mut known, 2, 4, NOW + 5 + ORDER_NS), "it was read behind the last question of the first");
        assert!((1..9).all(|tid| shows(&mut known, tid, 4, NOW + 6 + LATER)), "the same size");
        assert!(!shows(&mut known, 2, 5, NOW + 7 + LATER), "that one is on its way to others");
        assert!(!shows(&mut known, 8, 5, NOW + 7 + LATER));
        assert!(known.shows(answer(8, 4, NOW + 8 + LATER), NOW + 8 + LATER, || true));
        assert!(!known.shows(answer(2, 5, NOW + 8 + 2 * LATER), NOW + 8 + 2 * LATER, || true), "a change is under way");
    }

    /// Goal: programs that change and ask in turn are answered at once. Method: a writer and one who asks; a third one.
    #[test]
    fn turns_cost_nothing() {
        let (mut known, turn) = (Known::new(Ino(7)), |n: u64| NOW + 2 * n * ORDER_NS);
        assert!(shows(&mut known, 1, 0, NOW));
        for n in 1..9 {
            known.wrote(1, n, turn(2 * n));
            assert!(shows(&mut known, 2, n, turn(2 * n + 1)), "turn {n}");
        }
        known.wrote(1, 9, turn(20));
        assert!(!shows(&mut known, 3, 9, turn(21)), "the size before may be on its way to the second");
    }

    /// Goal: an answer that others have overtaken is not given, and one whose question waited is not either. Method:
    /// two threads; pages that are taken back.
    #[test]
    fn crossing_answers_are_found() {
        let mut known = Known::new(Ino(7));
        assert!(shows(&mut known, 1, 5, NOW));
        assert!(!known.shows(answer(2, 4, NOW - 1), NOW + 1, || false), "an older one that was slower");
        known.takes_back(NOW + LATER);
        assert!(!shows(&mut known, 1, 5, NOW + LATER + ASKED_NS), "it may have waited to be read");
        assert!(shows(&mut known, 1, 5, NOW + LATER + ASKED_NS + 1));
    }

    /// Goal: an answer that shows its size to nobody is left out only if it is older than what was shown; of one that
    /// the kernel may keep or not the size is not known. Method: the orders of two threads.
    #[test]
    fn answers_that_show_nothing() {
        let mut known = Known::new(Ino(7));
        assert!(shows(&mut known, 1, 5, NOW));
        known.takes_back(NOW);
        let mut aside = |size, at_ns| (known.shows_aside(answer(2, size, at_ns), NOW + 2, || false), known.size);
        assert_eq!(aside(4, NOW - 1), (false, Some(5)));
        assert_eq!(aside(5, NOW + 1), (true, Some(5)));
        assert_eq!(aside(6, NOW + 1), (true, None));
    }

    /// Goal: when the kernel was seen to have a size, answers with it are given; not if something came in between.
    /// Method: a look that is beside an answer, and one that is not.
    #[test]
    fn a_size_that_was_seen_is_known() {
        let mut known = Known::new(Ino(7));
        let seen = (6, Timespec::default());
        assert!(shows(&mut known, 1, 5, NOW) && !shows(&mut known, 2, 6, NOW));
        let moves = known.moves;
        known.wrote(3, 7, NOW);
        assert!(!known.is_seen(moves, seen, NOW), "a write in between");
        known.shows_own(answer(9, 6, NOW), NOW);
        assert!(!shows(&mut known, 2, 7, NOW), "it may arrive");
        let moves = known.moves;
        assert!(known.is_seen(moves, seen, NOW) && shows(&mut known, 2, 6, NOW));
        assert!(!known.is_on_its_way(1, NOW));
    }

    /// Goal: a write makes the known size larger and never smaller; one that moves the version while a size is on its
    /// way to another thread is found. Method: writes before and behind the end.
    #[test]
    fn writes() {
        let mut known = Known::new(Ino(7));
        known.wrote(1, 9, NOW);
        assert_eq!(known.size, None);
        assert!(shows(&mut known, 1, 5, NOW));
        assert!(known.is_on_its_way(2, NOW) && !known.is_on_its_way(1, NOW));
        assert!(!known.is_on_its_way(2, NOW + TAKEN_NS));
        known.wrote(1, 3, NOW);
        assert_eq!(known.size, Some(5));
        let mut arrived = known;
        arrived.has_arrived(known.moves);
        assert!(known.is_on_its_way(2, NOW) && !arrived.is_on_its_way(2, NOW));
        known.wrote(1, 8, NOW);
        assert_eq!(known.size, Some(8));
        assert!(!known.is_on_its_way(2, NOW), "the answer to a write always counts");
        known.read_short(8, NOW);
        assert_eq!(known.size, Some(8));
        known.read_short(7, NOW);
        assert_eq!(known.size, None);
    }

    /// Goal: an answer that the kernel takes in any case is not given if a newer size was shown meanwhile; others wait
    /// for it until its thread has asked again. Method: the orders of two threads.
    #[test]
    fn answers_that_are_taken_in_any_case() {
        let mut known = Known::new(Ino(7));
        assert!(shows(&mut known, 1, 5, NOW));
        assert!(!known.fixes(answer(2, 4, NOW - 1), NOW + 1), "older than what was shown");
        assert!(known.fixes(answer(2, 4, NOW + 1), NOW + 2));
        assert_eq!((known.size, known.fixed_ns(2)), (Some(4), 0));
        assert_eq!(known.fixed_ns(1), NOW + 2 + TAKEN_NS);
        assert!(shows(&mut known, 2, 4, NOW + 3 + LATER));
        assert_eq!(known.fixed_ns(1), 0, "its thread has taken it");
    }

    /// Goal: until the answer to a cut has been taken no other one counts, with the same size neither. Method: a cut,
    /// and others who ask behind it, until its thread has asked for anything again.
    #[test]
    fn nothing_counts_beside_a_cut() {
        let mut known = Known::new(Ino(7));
        assert!(shows(&mut known, 1, 5, NOW - LATER));
        assert!(known.fixes(answer(1, 6, NOW), NOW));
        known.cuts(1, NOW);
        assert!(!shows(&mut known, 2, 6, NOW + TAKEN_NS) && shows(&mut known, 2, 6, NOW + LATER));
        known.cuts(1, NOW + LATER);
        assert!(!shows(&mut known, 2, 6, NOW + LATER + TAKEN_NS));
        known.asks_again(1);
        assert!(shows(&mut known, 2, 6, NOW + LATER + TAKEN_NS));
    }
}
