//! Random numbers of production: the system's generator, some hundred bytes at a time.
//!
//! Owns: the fetched bytes that were not used yet. Does not own: the use of the numbers (nonces, numbers of sessions
//! and of runs). Strangers must not be able to predict them, so we have no generator of our own.

/// Bytes that one system call fetches: 32 numbers.
const FETCHED_BYTES: usize = 256;

/// Bytes of the system's generator that were not used yet.
pub(super) struct Pool {
    bytes: [u8; FETCHED_BYTES],
    used: usize,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool { bytes: [0; FETCHED_BYTES], used: FETCHED_BYTES }
    }
}

impl Pool {
    /// The next 64 bits; no bits are returned twice.
    ///
    /// Panics if the system has no generator, because a predictable number would let strangers in.
    pub(super) fn next(&mut self) -> u64 {
        if self.used == FETCHED_BYTES {
            self.fill();
        }
        let mut word = [0; 8];
        word.copy_from_slice(&self.bytes[self.used..self.used + 8]);
        self.bytes[self.used..self.used + 8].fill(0);
        self.used += 8;
        u64::from_ne_bytes(word)
    }

    fn fill(&mut self) {
        let mut filled = 0;
        while filled < FETCHED_BYTES {
            match rustix::rand::getrandom(&mut self.bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
                Ok(n) => filled += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => panic!("the system gives no random numbers: {e}"),
            }
        }
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Goal: numbers do not repeat, even over refills. Method: a thousand of two pools.
    #[test]
    fn numbers_differ() {
        let (mut a, mut b) = (Pool::default(), Pool::default());
        let all: BTreeSet<u64> = (0..500).flat_map(|_| [a.next(), b.next()]).collect();
        assert_eq!(all.len(), 1000);
    }
}
