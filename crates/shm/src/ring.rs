//! `Ring`: the mount's side of the memory into which programs post writes.
//!
//! Owns: the memory, and which positions were looked at. Does not own: when posts are taken, and what happens to them
//! (`fuse`).
//!
//! Every word may be forged. Whatever is there, a drain looks at each position once and at no more than there are
//! slots, copies from inside the slots only, and hands out lengths that it has checked.

use crate::layout::{POST_BYTES, RING_SLOTS};
use crate::memory::RingMemory;
use crate::posts::{self, Found, Post};
use core::sync::atomic::{AtomicBool, Ordering::SeqCst};
use rustix::io::Result;
use std::os::fd::BorrowedFd;

/// The memory into which programs post writes to a file.
pub struct Ring {
    memory: RingMemory,
    id: u64,
    /// Whether programs may post. The limit in the memory says the same, but programs can change that.
    may_post: AtomicBool,
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Programs may keep the memory mapped for long.
        self.set_limit(0);
        self.memory.empty();
    }
}

/// What was taken of a ring. All positions before `first` are over.
#[derive(Debug, Default)]
pub struct Reader {
    first: u64,
}

/// The receiver of what is posted.
pub trait Sink {
    /// Memory for the bytes of a write, as many as it has; `None`: the write does not count.
    fn place(&mut self, post: &Post) -> Option<&mut [u8]>;
}

impl Ring {
    /// A ring into which nothing may be posted yet.
    ///
    /// Errors: no memory or no descriptor is left.
    pub fn new(id: u64) -> Result<Ring> {
        let memory = RingMemory::new(id)?;
        posts::begin(memory.slots());
        Ok(Ring { memory, id, may_post: AtomicBool::new(false) })
    }

    /// The number of the ring.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        RING_SLOTS
    }

    /// The memory, for programs.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// Posted writes may end at `limit` at the latest; 0: nothing may be posted. What was posted before is found by a
    /// `drain` that follows.
    pub fn set_limit(&self, limit: u64) {
        self.may_post.store(limit > 0, SeqCst);
        posts::set_limit(self.memory.head(), limit);
    }

    /// Allows posts anew. What programs have posted while nothing might be posted does not count.
    pub fn reopen(&self, limit: u64) {
        posts::refuse_all(self.memory.slots());
        self.set_limit(limit);
    }

    /// Whether nothing may be posted.
    pub fn is_stopped(&self) -> bool {
        !self.may_post.load(SeqCst)
    }

    /// Whether there may be something to take.
    #[inline]
    pub fn has_posts(&self, reader: &Reader) -> bool {
        posts::span(self.memory.head(), self.memory.slots(), reader.first).1 != reader.first
    }

    /// Whether programs can post nothing more, even if everything is taken.
    pub fn is_stuck(&self) -> bool {
        posts::is_stuck(self.memory.head(), self.memory.slots())
    }

    /// Takes what is posted, in order, and gives it to `sink`.
    pub fn drain(&self, reader: &mut Reader, sink: &mut impl Sink) {
        let (head, slots) = (self.memory.head(), self.memory.slots());
        let (first, tail) = posts::span(head, slots, reader.first);
        reader.first = first;
        let mut are_over = true;
        for position in (0..tail.wrapping_sub(first)).map(|n| first.wrapping_add(n)) {
            match posts::take(slots, position) {
                Found::Post(post) => self.hand_over(position, post, sink),
                Found::Over => {}
                Found::Open => are_over = false,
            }
            if are_over {
                reader.first = position.wrapping_add(1);
            }
        }
    }

    fn hand_over(&self, position: u64, post: Post, sink: &mut impl Sink) {
        let len = post.len as usize;
        let is_whole = (1..=POST_BYTES).contains(&len) && post.offset <= i64::MAX as u64 - u64::from(post.len);
        let place = if is_whole { sink.place(&post) } else { None };
        match place {
            Some(into) => {
                assert_eq!(into.len(), len, "memory for all of the write");
                self.memory.get((position % RING_SLOTS as u64) as usize, into);
                posts::release(self.memory.slots(), position);
            }
            None => posts::refuse(self.memory.slots(), position),
        }
    }

    /// Posts as a program does. For tests.
    pub fn try_post(&self, post: Post, bytes: &[u8]) -> std::result::Result<bool, posts::Refusal> {
        let (head, slots) = (self.memory.head(), self.memory.slots());
        let claim = posts::claim(head, slots, post.offset.saturating_add(u64::from(post.len)))?;
        self.memory.put(claim.slot, bytes);
        Ok(posts::post(head, slots, claim, post, || true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::posts::Refusal;
    use proptest::prelude::*;

    #[derive(Default)]
    struct Taken {
        all: Vec<(Post, Vec<u8>)>,
        refused: u32,
    }

    impl Sink for Taken {
        fn place(&mut self, post: &Post) -> Option<&mut [u8]> {
            if post.handle == self.refused && self.refused != 0 {
                return None;
            }
            self.all.push((*post, vec![0; post.len as usize]));
            self.all.last_mut().map(|(_, bytes)| &mut bytes[..])
        }
    }

    fn post(offset: u64, len: u32) -> Post {
        Post { offset, len, handle: 7 }
    }

    /// Goal: each posted write is taken once, in order; nothing can be posted beyond the limit, without a limit, or
    /// into a full ring; a program knows if a write does not count. Method: a story.
    #[test]
    fn what_is_posted_is_taken_in_order() {
        let (ring, mut reader, mut taken) = (Ring::new(1).unwrap(), Reader::default(), Taken::default());
        assert_eq!(ring.try_post(post(0, 1), &[1]), Err(Refusal::Stopped));
        ring.set_limit(1000);
        assert_eq!(ring.try_post(post(999, 2), &[1; 2]), Err(Refusal::Beyond));
        for n in 0..RING_SLOTS as u64 {
            assert_eq!(ring.try_post(post(n, 3), &[n as u8; 3]), Ok(true));
        }
        assert_eq!(ring.try_post(post(0, 1), &[1]), Err(Refusal::Full));
        assert!(ring.has_posts(&reader) && !ring.is_stuck());
        ring.drain(&mut reader, &mut taken);
        let expected: Vec<_> = (0..RING_SLOTS as u64).map(|n| (post(n, 3), vec![n as u8; 3])).collect();
        assert!(taken.all == expected && !ring.has_posts(&reader));
        taken.refused = 7;
        assert_eq!(ring.try_post(post(5, 1), &[9]), Ok(true));
        ring.drain(&mut reader, &mut taken);
        assert_eq!(taken.all.len(), expected.len(), "its handle is not known");
    }

    /// Goal: a write that was posted behind many claims that were given up is taken. Method: more of these than there
    /// are slots.
    #[test]
    fn claims_that_are_given_up_hide_nothing() {
        let (ring, mut reader, mut taken) = (Ring::new(1).unwrap(), Reader::default(), Taken::default());
        ring.set_limit(1000);
        for round in 0..4 {
            for _ in 0..70 + round {
                let (head, slots) = (ring.memory.head(), ring.memory.slots());
                posts::give_up(slots, posts::claim(head, slots, 1).unwrap());
            }
            for n in 0..RING_SLOTS as u64 {
                assert_eq!(ring.try_post(post(n, 1), &[1]), Ok(true));
            }
            ring.drain(&mut reader, &mut taken);
        }
        let offsets: Vec<u64> = taken.all.iter().map(|(post, _)| post.offset).collect();
        assert_eq!(offsets, (0..4).flat_map(|_| 0..RING_SLOTS as u64).collect::<Vec<_>>());
    }

    /// Goal: a program that died between claim and post blocks nobody's posts but those behind a whole ring, and that
    /// is noticed. Method: a claim that is left.
    #[test]
    fn a_claim_that_is_left_makes_the_ring_stuck() {
        let (ring, mut reader, mut taken) = (Ring::new(1).unwrap(), Reader::default(), Taken::default());
        ring.set_limit(1000);
        posts::claim(ring.memory.head(), ring.memory.slots(), 1).unwrap();
        for n in 1..RING_SLOTS as u64 {
            assert_eq!(ring.try_post(post(n, 1), &[n as u8]), Ok(true));
            ring.drain(&mut reader, &mut taken);
        }
        assert_eq!(taken.all.len(), RING_SLOTS - 1);
        assert_eq!(ring.try_post(post(0, 1), &[1]), Err(Refusal::Full));
        assert!(ring.is_stuck());
    }

    proptest! {
        /// Goal: whatever programs store in the memory, a drain ends, copies from inside, and hands out checked
        /// lengths. Method: arbitrary words in head and slots, several drains.
        #[test]
        fn forged_rings_are_read_inside(
            words in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), RING_SLOTS),
            plain in proptest::collection::vec(any::<bool>(), RING_SLOTS),
            tails in proptest::collection::vec(prop_oneof![any::<u64>(), 0u64..200], 1..4),
        ) {
            let (ring, mut reader, mut taken) = (Ring::new(1).unwrap(), Reader::default(), Taken::default());
            for tail in tails {
                let before = taken.all.len();
                for (n, (slot, (state, offset, what))) in ring.memory.slots().iter().zip(&words).enumerate() {
                    slot.state.store(if plain[n] { (n as u64) << 2 | 1 } else { *state }, SeqCst);
                    slot.offset.store(*offset, SeqCst);
                    slot.what.store(if plain[n] { what & 0x0000_ffff_ffff_ffff } else { *what }, SeqCst);
                }
                ring.memory.head().tail.0.store(tail, SeqCst);
                ring.drain(&mut reader, &mut taken);
                prop_assert!(taken.all.len() - before <= RING_SLOTS);
                let is_checked = |post: &Post| post.len > 0 && post.len as usize <= POST_BYTES
                    && post.offset.checked_add(u64::from(post.len)).is_some_and(|end| end <= i64::MAX as u64);
                prop_assert!(taken.all.iter().all(|(post, _)| is_checked(post)));
            }
        }
    }
}
