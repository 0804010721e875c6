//! `Asked`: how often the kernel asks for each name.
//!
//! Owns: counters by a hash of directory and name. Two names of one slot count anew when they take turns, so none of
//! them is taken for one that is asked for often; one that meets another's hash is walked to too early, which costs the
//! walk. Bound: `SLOTS` words.

use amphi_types::Ino;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const SLOTS: usize = 32_768;
/// Questions after which a name is lent. Who removes a tree asks three times for each directory and twice for each
/// file, and then it would have to be taken back.
const OFTEN: u64 = 4;
/// The lowest bits of a slot count, the others tell the name.
const COUNT: u64 = 0xff;

pub(super) struct Asked(Box<[AtomicU64]>);

impl Default for Asked {
    fn default() -> Asked {
        Asked((0..SLOTS).map(|_| AtomicU64::new(0)).collect())
    }
}

impl Asked {
    fn slot(&self, dir: Ino, name: &[u8]) -> (&AtomicU64, u64) {
        let mut hasher = DefaultHasher::new();
        (dir, name).hash(&mut hasher);
        let hash = hasher.finish();
        (&self.0[hash as usize % SLOTS], hash & !COUNT)
    }

    /// The kernel has asked for a name. Whether it should be lent: when it has asked often, and should that fail now
    /// and then.
    pub(super) fn asked(&self, dir: Ino, name: &[u8]) -> bool {
        let (slot, tag) = self.slot(dir, name);
        let before = slot.load(Relaxed);
        let count = if before & !COUNT == tag { (before & COUNT) + 1 } else { 1 };
        slot.store(tag | if count > COUNT { 128 } else { count }, Relaxed);
        count >= OFTEN && (count.is_power_of_two() || count.is_multiple_of(64))
    }

    /// It is lent, or changed: when the kernel asks again, that begins anew.
    pub(super) fn begins_anew(&self, dir: Ino, name: &[u8]) {
        let (slot, tag) = self.slot(dir, name);
        if slot.load(Relaxed) & !COUNT == tag {
            slot.store(tag, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a name is wanted at its fourth question, then less and less often, and anew when it was lent. Method: by
    /// hand.
    #[test]
    fn names_are_wanted_when_they_were_asked_for_often() {
        let asked = Asked::default();
        let wanted: Vec<u32> = (1..=300).filter(|_| asked.asked(Ino(1), b"a")).collect();
        assert_eq!(wanted, [4, 8, 16, 32, 64, 128, 192, 256]);
        asked.begins_anew(Ino(1), b"a");
        let wanted: Vec<u32> = (1..=5).filter(|_| asked.asked(Ino(1), b"a")).collect();
        assert_eq!(wanted, [4]);
        assert!(!asked.asked(Ino(2), b"a") && !asked.asked(Ino(1), b"b"));
    }
}
