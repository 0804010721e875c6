//! `Dice`: the random choices of the simulation's own layer, and the bytes that writes carry.
//!
//! Owns: a small generator whose whole state is a seed, so that a choice made here never moves those that the
//! environment makes. Does not own: the environment's randomness (`amphi_env::sim`).

use std::ops::Range;

/// A deterministic source of choices.
#[derive(Clone, Debug)]
pub struct Dice {
    state: u64,
}

fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Dice {
    /// Choices of `seed` for the purpose `stream`.
    pub fn new(seed: u64, stream: u64) -> Dice {
        Dice { state: mix(seed ^ mix(stream.wrapping_add(0x9e37_79b9_7f4a_7c15))) }
    }

    /// 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// A number below `n`; 0 for `n == 0`.
    pub fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.bits() % n }
    }

    /// A number of the range.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    /// Returns true once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// An element, if there is one.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() { None } else { of.get(self.below(of.len() as u64) as usize) }
    }

    /// An index into `weights`, each with a probability proportional to its weight.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let total: u64 = weights.iter().map(|&w| u64::from(w)).sum();
        let mut at = self.below(total);
        for (i, &w) in weights.iter().enumerate() {
            if at < u64::from(w) {
                return i;
            }
            at -= u64::from(w);
        }
        0
    }
}

/// The bytes of the write numbered `tag`: no two writes have much in common, so bytes in a wrong place show.
pub fn bytes_of(tag: u64, len: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 8);
    let mut word = mix(tag ^ 0x5851_f42d_4c95_7f2d);
    while out.len() < len {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        out.extend_from_slice(&(word ^ (word >> 29)).to_le_bytes());
    }
    out.truncate(len);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: choices depend on the seed and the stream alone and stay within bounds. Method: two equal dice and two
    /// unequal ones; bounds over many throws.
    #[test]
    fn choices_are_reproducible() {
        let (mut a, mut b, mut c) = (Dice::new(1, 2), Dice::new(1, 2), Dice::new(1, 3));
        let of = |d: &mut Dice| (0..100).map(|_| d.bits()).collect::<Vec<_>>();
        let first = of(&mut a);
        assert_eq!(first, of(&mut b));
        assert_ne!(first, of(&mut c));
        for _ in 0..1000 {
            assert!(a.below(7) < 7 && (3..9).contains(&a.within(3..9)));
            assert!(a.weighted(&[0, 5, 0]) == 1);
        }
        assert_eq!((a.below(0), a.pick::<u8>(&[])), (0, None));
    }

    /// Goal: the bytes of different writes differ. Method: equal bytes at equal places of two tags are as rare as
    /// chance.
    #[test]
    fn bytes_tell_writes_apart() {
        let (x, y) = (bytes_of(1, 5003), bytes_of(2, 5003));
        assert_eq!((x.len(), &x), (5003, &bytes_of(1, 5003)));
        assert!(x.iter().zip(&y).filter(|(a, b)| a == b).count() < 100);
    }
}
