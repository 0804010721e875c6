//! `Asked`: how often the kernel requests each name.
//!
//! Owns: counters by a hash of directory and name, several in a group. When a group is full, the name with the fewest
//! lookups is replaced. A name that has the hash of another one may be cached too early, which costs one walk of the
//! lookup thread. Does not own: whether a name may be cached (the client, by tokens).
//!
//! Bound: `GROUPS * WAYS` words, twice as many as names can be cached.

use amphi_types::Ino;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

const GROUPS: usize = 32_768;
const WAYS: usize = 4;
/// Lookups after which a name is cached. If a tree is removed, each directory is looked up three times and each file
/// twice; if their names were cached, they would have to be invalidated again.
const OFTEN: u64 = 4;
/// The lowest bits of a word are the counter, the others identify the name.
const COUNT: u64 = 0xff;
const _: () = assert!(OFTEN < COUNT, "the lookups after which a name is cached can be counted");

pub(crate) struct Asked(Box<[[AtomicU64; WAYS]]>);

impl Default for Asked {
    fn default() -> Asked {
        Asked((0..GROUPS).map(|_| Default::default()).collect())
    }
}

impl Asked {
    fn group(&self, dir: Ino, name: &[u8]) -> (&[AtomicU64; WAYS], u64) {
        let mut hasher = DefaultHasher::new();
        (dir, name).hash(&mut hasher);
        let hash = hasher.finish();
        (&self.0[(hash >> 32) as usize % GROUPS], hash & !COUNT)
    }

    fn set(&self, dir: Ino, name: &[u8], count: u64) {
        assert!(count <= COUNT, "a count of {count} lookups");
        let (group, tag) = self.group(dir, name);
        if let Some(word) = group.iter().find(|word| word.load(Relaxed) & !COUNT == tag) {
            word.store(tag | count, Relaxed);
        }
    }

    /// Counts a lookup. Returns whether the name should be cached. This is so after `OFTEN` lookups and, if caching
    /// failed, again from time to time.
    pub(crate) fn asked(&self, dir: Ino, name: &[u8]) -> bool {
        let (group, tag) = self.group(dir, name);
        let count_of = |word: &AtomicU64| word.load(Relaxed) & COUNT;
        let known = group.iter().find(|word| word.load(Relaxed) & !COUNT == tag);
        let word = known.or_else(|| group.iter().min_by_key(|word| count_of(word)));
        let Some(word) = word else { return false };
        let count = if known.is_some() { count_of(word) + 1 } else { 1 };
        word.store(tag | if count > COUNT { 128 } else { count }, Relaxed);
        count >= OFTEN && (count.is_power_of_two() || count.is_multiple_of(64))
    }

    /// The name was cached, or should have been cached but there was no room. The name was cached, or should have been
    /// cached: its next lookup requests that it is cached again.
    pub(crate) fn wants_again(&self, dir: Ino, name: &[u8]) {
        self.set(dir, name, OFTEN - 1);
    }

    /// The name is changed, so counting begins anew.
    pub(crate) fn begins_anew(&self, dir: Ino, name: &[u8]) {
        self.set(dir, name, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a name should be cached at its fourth lookup, then less and less often. If it was cached before, it should
    /// be cached at once, and if it was changed, the count begins anew. Method: a sequence of lookups that the test
    /// chooses.
    #[test]
    fn names_are_wanted_when_they_were_asked_for_often() {
        let asked = Asked::default();
        let wanted = |n| (1..=n).filter(|_| asked.asked(Ino(1), b"a")).collect::<Vec<u32>>();
        assert_eq!(wanted(300), [4, 8, 16, 32, 64, 128, 192, 256]);
        asked.wants_again(Ino(1), b"a");
        assert_eq!(wanted(5), [1, 5]);
        asked.begins_anew(Ino(1), b"a");
        assert_eq!(wanted(5), [4]);
        assert!(!asked.asked(Ino(2), b"a") && !asked.asked(Ino(1), b"b"));
    }

    /// Goal: nearly as many names can be counted at a time as can be cached. A name that is looked up often stays in
    /// the table when many others are looked up once. Method: many names in turn.
    #[test]
    fn many_names_are_counted() {
        let asked = Asked::default();
        const MANY: u64 = 65_536;
        let ask = |n: u64| asked.asked(Ino(n % 100), &n.to_le_bytes());
        for _ in 1..OFTEN {
            (0..MANY).for_each(|n| assert!(!ask(n)));
        }
        let wanted = (0..MANY).filter(|n| ask(*n)).count() as u64;
        assert!(wanted > MANY * 9 / 10, "{wanted}");
        let asked = Asked::default();
        (1..OFTEN).for_each(|_| assert!(!asked.asked(Ino(1), b"a")));
        (0..4 * MANY).for_each(|n| assert!(!asked.asked(Ino(2), &n.to_le_bytes())));
        assert!(asked.asked(Ino(1), b"a"), "others were asked for once");
    }
}
