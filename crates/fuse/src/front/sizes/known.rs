//! `Known`: the size of one file that the kernel uses, and the answers on their way that may change it.
//!
//! Linux gives an inode's attributes a version. An answer is cached only if the version has not changed since the
//! request. Every kept answer moves it, and so does every write, truncate and invalidation. The program that sent the
//! request gets the answer in any case. The mount sees neither moment: a request may have waited before the mount read
//! it, and a thread takes its answer when it next runs. But a thread takes its answer before it sends another request.
//!
//! Owns: the rule by which an answer may be given at once. Does not own: the requests to the kernel and the checks
//! (`sizes`), which answers get a timeout (the client).
//!
//! Invariant: while `size` is known, either the kernel has it, or a thread was given it and takes it. All other answers
//! on their way show this size, or are listed in `other`. So an answer with this size may be given whether the kernel
//! keeps it or not. An answer with another size may be given only if no other thread was given an answer lately.

use super::{ASKED_NS, FIXED_NS, ORDER_NS, TAKEN_NS, UNTAKEN_NS};
use amphi_types::{Attr, Ino, Timespec};

/// When threads were given answers last.
#[derive(Clone, Copy, Debug, Default)]
struct Given {
    /// The last two threads, the latest first, with the time.
    last: [(u32, u64); 2],
    /// When any other thread was last given an answer.
    rest_ns: u64,
}

impl Given {
    fn note(&mut self, tid: u32, now_ns: u64) {
        let [first, second] = self.last;
        // It is not known which threads have thread id 0.
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

    /// The times without those of thread `tid`.
    fn without(mut self, tid: u32) -> Given {
        self.last.iter_mut().filter(|last| last.0 == tid).for_each(|last| last.1 = 0);
        self
    }

    /// When `tid` was given an answer last.
    fn to(&self, tid: u32) -> u64 {
        self.last.iter().find(|last| last.0 == tid).map_or(0, |last| last.1)
    }

    /// When a thread other than `tid` was given an answer last. Thread `tid` has taken all answers that it was given,
    /// because it sends another request.
    fn to_others(self, tid: u32) -> u64 {
        let Given { last: [first, second], rest_ns } = self.without(tid);
        first.1.max(second.1).max(rest_ns)
    }
}

/// An answer with attributes: the thread that gets it, and when its question was read.
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

    /// Every answer that was given before this moment had been taken when this request was sent.
    fn counts_from_ns(self) -> u64 {
        self.asked_ns.saturating_sub(ASKED_NS + TAKEN_NS)
    }
}

/// The knowledge of one file; see the head of the module.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    pub(super) ino: Ino,
    /// The size that the kernel uses, or will use when all answers on their way have arrived.
    pub(super) size: Option<u64>,
    /// Time of change in the answer that showed this size.
    pub(super) ctime: Timespec,
    /// When this size was given, the thread that got it, and when that thread was given another answer.
    since_ns: u64,
    by: u32,
    by_before_ns: u64,
    /// The kernel keeps the answer with this size only if no other event crosses it; the kernel was not seen to have
    /// this size yet.
    may_be_lost: bool,
    /// When answers were given that move the version of the attributes.
    given: Given,
    /// As `given`, only for answers with another size than `size` whose threads have not sent a request since.
    other: Given,
    /// The same as `given`, but only for answers that the kernel caches whatever happened in between.
    fixed: Given,
    /// When truncates were answered, and writes that made the file longer. Until the thread has taken the answer to
    /// such a change, the kernel keeps no other answer.
    cut: Given,
    /// When attributes or pages were invalidated last, if ever.
    taken_back_ns: Option<u64>,
    /// Counts the changes of `size`.
    pub(super) moves: u64,
}

impl Known {
    pub(super) fn new(ino: Ino) -> Known {
        Known { ino, ..Known::default() }
    }

    /// When this entry was used last.
    pub(super) fn used_ns(&self) -> u64 {
        self.given.to_others(0).max(self.taken_back_ns.unwrap_or(0))
    }

    /// Notes that a thread has taken its answers, because it sends another request.
    pub(super) fn asks_again(&mut self, tid: u32) {
        (self.fixed, self.cut) = (self.fixed.without(tid), self.cut.without(tid));
    }

    fn note(&mut self, tid: u32, now_ns: u64) {
        self.asks_again(tid);
        self.given.note(tid, now_ns);
    }

    /// From now on, or when the answer arrives, the kernel uses this size.
    fn becomes(&mut self, tid: u32, size: Option<u64>, now_ns: u64) {
        if self.size != size {
            (self.other, self.by_before_ns) = (self.given.without(tid), self.given.to(tid));
            (self.size, self.since_ns, self.by, self.may_be_lost) = (size, now_ns, tid, false);
            self.moves += 1;
        }
    }

    /// It has to be called before an answer that the kernel keeps if no other event crosses it. Returns false if the
    /// kernel may end up with another size; then nothing is noted. `is_changing`: whether a change of the file by this
    /// mount is under way.
    pub(super) fn shows(&mut self, answer: Answer, now_ns: u64, is_changing: impl FnOnce() -> bool) -> bool {
        let Answer { tid, size, ctime, .. } = answer;
        let from_ns = answer.counts_from_ns();
        let is_safe = self.taken_back_ns.is_none_or(|at_ns| at_ns + ASKED_NS < answer.asked_ns)
            && !self.is_cut(tid, now_ns)
            && match self.size == Some(size) {
                true => self.other.to_others(tid) <= from_ns && self.is_behind(answer),
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

    /// Works as `shows`, for an answer that shows no size to a program. If the result is false, the answer has to be
    /// left out, because it may be older than what was shown meanwhile.
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

    /// Returns whether the request was read after the one whose answer brought `size`. If so, that thread had taken all
    /// earlier answers when the request was sent, because the kernel passes requests on in order.
    fn is_behind(&self, answer: Answer) -> bool {
        self.by == answer.tid
            || self.by_before_ns <= answer.counts_from_ns()
            || self.since_ns + ORDER_NS < answer.asked_ns
    }

    /// Returns whether another thread was shown another size since the request was sent.
    fn is_older(&self, Answer { tid, size, asked_ns, .. }: Answer) -> bool {
        self.size.is_some_and(|known| known != size) && self.since_ns >= asked_ns && self.by != tid
    }

    /// Notes an answer to a thread of the mount, which then checks whether the kernel has taken it.
    pub(super) fn shows_own(&mut self, answer: Answer, now_ns: u64) {
        if self.size != Some(answer.size) {
            self.other.note(answer.tid, now_ns);
        }
        self.note(answer.tid, now_ns);
    }

    /// Notes an answer that is given although the kernel may end up with another size.
    pub(super) fn shows_in_doubt(&mut self, answer: Answer, now_ns: u64) {
        self.becomes(answer.tid, None, now_ns);
        self.note(answer.tid, now_ns);
    }

    /// It has to be called before an answer that the kernel caches whatever came in between. The result is false if the
    /// answer may be older than what a program was shown meanwhile.
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

    /// It has to be called before the answer to a truncate, or to an operation that the kernel treats as one.
    pub(super) fn cuts(&mut self, tid: u32, now_ns: u64) {
        self.cut.note(tid, now_ns);
    }

    /// Returns whether another thread may not have taken the answer to a change of the size yet. The thread has taken
    /// it if it sends another request about the file, or if the kernel was seen to have kept a later answer.
    pub(super) fn is_cut(&self, tid: u32, now_ns: u64) -> bool {
        match self.cut.to_others(tid) {
            0 => false,
            at_ns => now_ns < at_ns + UNTAKEN_NS,
        }
    }

    /// When the kernel has taken those answers to threads other than `tid` that it keeps in any case.
    pub(super) fn fixed_ns(&self, tid: u32) -> u64 {
        match self.fixed.to_others(tid) {
            0 => 0,
            at_ns => at_ns + FIXED_NS,
        }
    }

    /// It has to be called before the answer to a write: the file ends at `end` or later.
    pub(super) fn wrote(&mut self, tid: u32, end: u64, now_ns: u64) {
        let is_longer = self.size.is_none_or(|size| size < end);
        if is_longer && self.size.is_some() {
            self.becomes(tid, Some(end), now_ns);
        }
        self.note(tid, now_ns);
        if is_longer {
            self.cuts(tid, now_ns);
        }
    }

    /// Notes that the answer to a read of pages ends at `end`, before the end of the request. The kernel may take that
    /// for the end of the file.
    pub(super) fn read_short(&mut self, end: u64, now_ns: u64) {
        if self.size.is_some_and(|size| size != end) {
            self.becomes(0, None, now_ns);
            self.note(0, now_ns);
        }
    }

    /// Attributes or pages are invalidated.
    pub(super) fn takes_back(&mut self, now_ns: u64) {
        self.taken_back_ns = Some(now_ns);
    }

    /// Returns whether an answer with this size may still be on its way to a thread other than `tid`. The kernel loses
    /// the size if something crosses that answer.
    pub(super) fn is_on_its_way(&self, tid: u32, now_ns: u64) -> bool {
        self.may_be_lost && (self.by != tid || tid == 0) && now_ns < self.since_ns + TAKEN_NS
    }

    /// Notes that the kernel was seen to use `size`, which it got in an answer when `moves` had this value. All answers
    /// that were given before show this size. Returns false if another event came in between.
    pub(super) fn is_seen(&mut self, moves: u64, (size, ctime): (u64, Timespec), now_ns: u64) -> bool {
        if self.moves != moves {
            return false;
        }
        self.becomes(0, Some(size), now_ns);
        (self.other, self.cut) = (Given::default(), Given::default());
        (self.ctime, self.by_before_ns, self.may_be_lost) = (self.ctime.max(ctime), 0, false);
        true
    }

    /// Notes that the kernel was seen to use the size that it got in an answer.
    pub(super) fn has_arrived(&mut self, moves: u64) {
        self.may_be_lost &= self.moves != moves;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A time long after all times near zero.
    const NOW: u64 = 1_000_000_000_000;
    const LATER: u64 = ASKED_NS + TAKEN_NS + 1;

    fn answer(tid: u32, size: u64, asked_ns: u64) -> Answer {
        Answer { tid, size, ctime: Timespec::default(), asked_ns }
    }

    fn shows(known: &mut Known, tid: u32, size: u64, at_ns: u64) -> bool {
        known.shows(answer(tid, size, at_ns), at_ns, || false)
    }

    /// Goal: a single thread is answered at once, whatever happens to the file. So are other threads while the size
    /// stays the same. Method: a sequence of answers that the test chooses.
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

    /// Goal: programs that change the file and request its size in turn are answered at once if the writer is known to
    /// have taken the answers to its writes. Until then the kernel keeps no other answer, so no answer is given at
    /// once. Method: a writer and a thread that requests the size, and then a third thread; a writer that sends nothing
    /// more.
    #[test]
    fn turns_of_a_writer_that_goes_on_cost_nothing() {
        let (mut known, turn) = (Known::new(Ino(7)), |n: u64| NOW + 2 * n * ORDER_NS);
        assert!(shows(&mut known, 1, 0, NOW));
        for n in 1..9 {
            known.wrote(1, n, turn(2 * n));
            assert!(!shows(&mut known, 2, n, turn(2 * n + 1)), "turn {n}: the writer may not have run yet");
            known.asks_again(1);
            assert!(shows(&mut known, 2, n, turn(2 * n + 1)), "turn {n}");
        }
        known.wrote(1, 9, turn(20));
        known.asks_again(1);
        assert!(!shows(&mut known, 3, 9, turn(21)), "the size before may be on its way to the second");
        known.wrote(1, 10, turn(30));
        assert!(known.is_cut(2, turn(31)) && !known.is_cut(1, turn(31)) && !known.is_cut(2, turn(30) + UNTAKEN_NS));
        let moves = known.moves;
        assert!(known.is_seen(moves, (10, Timespec::default()), turn(31)) && !known.is_cut(2, turn(31)));
        known.wrote(1, 4, turn(40));
        assert!(!known.is_cut(2, turn(40)), "a write before the end changes no size");
    }

    /// Goal: an answer that others have overtaken is not given at once, nor one whose request waited. Method: two
    /// threads, and pages that are dropped.
    #[test]
    fn crossing_answers_are_found() {
        let mut known = Known::new(Ino(7));
        assert!(shows(&mut known, 1, 5, NOW));
        assert!(!known.shows(answer(2, 4, NOW - 1), NOW + 1, || false), "an older one that was slower");
        known.takes_back(NOW + LATER);
        assert!(!shows(&mut known, 1, 5, NOW + LATER + ASKED_NS), "it may have waited to be read");
        assert!(shows(&mut known, 1, 5, NOW + LATER + ASKED_NS + 1));
    }

    /// Goal: an answer that shows its size to no program is left out only if it is older than what was shown. If the
    /// kernel may or may not cache it, the size is not known afterwards. Method: the possible orders of two threads.
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

    /// Goal: after the kernel was seen to have a size, answers with this size are given, unless another event happened
    /// in between. Method: one check that overlaps an answer, and one that does not.
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

    /// Goal: a write increases the known size and never decreases it. A write that changes the version while a size is
    /// on its way to another thread is detected. Method: writes before the end of the file and behind it.
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

    /// Goal: an answer that the kernel caches in any case is not given if a newer size was shown meanwhile. Other
    /// answers wait for it until its thread has sent another request. Method: the possible orders of two threads.
    #[test]
    fn answers_that_are_taken_in_any_case() {
        let mut known = Known::new(Ino(7));
        assert!(shows(&mut known, 1, 5, NOW));
        assert!(!known.fixes(answer(2, 4, NOW - 1), NOW + 1), "older than what was shown");
        assert!(known.fixes(answer(2, 4, NOW + 1), NOW + 2));
        assert_eq!((known.size, known.fixed_ns(2)), (Some(4), 0));
        assert_eq!(known.fixed_ns(1), NOW + 2 + FIXED_NS);
        assert!(shows(&mut known, 2, 4, NOW + 3 + LATER));
        assert_eq!(known.fixed_ns(1), 0, "its thread has taken it");
    }

    /// Goal: until the kernel has taken the answer to a truncate, no other answer counts, not even one with the same
    /// size. Method: a truncate, and requests of other threads after it, until its thread has sent another request.
    #[test]
    fn nothing_counts_beside_a_cut() {
        let mut known = Known::new(Ino(7));
        assert!(shows(&mut known, 1, 5, NOW - LATER));
        assert!(known.fixes(answer(1, 6, NOW), NOW));
        known.cuts(1, NOW);
        assert!(!shows(&mut known, 2, 6, NOW + LATER) && shows(&mut known, 2, 6, NOW + UNTAKEN_NS));
        known.cuts(1, NOW + UNTAKEN_NS);
        assert!(!shows(&mut known, 2, 6, NOW + UNTAKEN_NS + LATER));
        known.asks_again(1);
        assert!(shows(&mut known, 2, 6, NOW + UNTAKEN_NS + LATER));
    }
}
