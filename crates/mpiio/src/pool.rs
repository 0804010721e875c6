//! The frames of one rank: which are free, and in what order the others were last used by this rank.
//!
//! Owns only the order; it is a doubly linked list in two arrays, so every step costs the same. Does not own the
//! content of frames. References of other ranks to our frames do not count, as in the paper (section 3.4).

/// Free and used frames of one rank; numbers count from the rank's first frame.
#[derive(Debug)]
pub struct Pool {
    free: Vec<u32>,
    /// Successor and predecessor of each frame; the last element is the ring's head. A free frame points to itself.
    links: Vec<(u32, u32)>,
}

impl Pool {
    /// All of `frames` are free.
    pub fn new(frames: u32) -> Pool {
        Pool { free: (0..frames).rev().collect(), links: (0..=frames).map(|f| (f, f)).collect() }
    }

    fn head(&self) -> u32 {
        self.links.len() as u32 - 1
    }

    fn unlink(&mut self, frame: u32) {
        let (next, previous) = self.links[frame as usize];
        self.links[previous as usize].0 = next;
        self.links[next as usize].1 = previous;
        self.links[frame as usize] = (frame, frame);
    }

    fn link_last(&mut self, frame: u32) {
        let head = self.head();
        let previous = self.links[head as usize].1;
        self.links[frame as usize] = (head, previous);
        self.links[previous as usize].0 = frame;
        self.links[head as usize].1 = frame;
    }

    /// Takes a free frame, which then counts as just used.
    pub fn take_free(&mut self) -> Option<u32> {
        let frame = self.free.pop()?;
        self.link_last(frame);
        Some(frame)
    }

    /// Called when the frame was used.
    pub fn touch(&mut self, frame: u32) {
        self.unlink(frame);
        self.link_last(frame);
    }

    /// Marks the frame as free.
    pub fn release(&mut self, frame: u32) {
        self.unlink(frame);
        self.free.push(frame);
    }

    /// Orders the free frames by their numbers, so that pages that are read together lie together.
    pub fn sort_free(&mut self) {
        self.free.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// Used frames, the one not used for longest first.
    pub fn oldest_first(&self) -> impl Iterator<Item = u32> {
        let head = self.head();
        std::iter::successors(Some(self.links[head as usize].0), |f| Some(self.links[*f as usize].0))
            .take_while(move |f| *f != head)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the frame that has not been used for the longest time is evicted first, whatever was released in between.
    /// Method: a short story with four frames.
    #[test]
    fn oldest_comes_first() {
        let mut pool = Pool::new(4);
        let taken: Vec<u32> = std::iter::from_fn(|| pool.take_free()).collect();
        assert_eq!(taken, [0, 1, 2, 3]);
        pool.touch(0);
        pool.touch(2);
        assert_eq!(pool.oldest_first().collect::<Vec<_>>(), [1, 3, 0, 2]);
        pool.release(3);
        assert_eq!(pool.oldest_first().collect::<Vec<_>>(), [1, 0, 2]);
        assert_eq!(pool.take_free(), Some(3));
        assert_eq!(pool.take_free(), None);
        assert_eq!(pool.oldest_first().collect::<Vec<_>>(), [1, 0, 2, 3]);
        [1, 2, 0, 3].into_iter().for_each(|frame| pool.release(frame));
        pool.sort_free();
        assert_eq!(std::iter::from_fn(|| pool.take_free()).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }
}
