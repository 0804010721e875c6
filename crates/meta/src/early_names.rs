//! `EarlyNames`: entries of directories that are loaded before the key of the hash by which the index orders them.
//!
//! Items arrive in the order of their keys, entries (`D`) before the one of the store (`M`), which has the key. So the
//! entries wait here as bytes, about 40 for a short name, and no caller has to care about that order.
//!
//! Owns: these bytes. Does not own: their meaning (`codec`).

use std::mem::take;

const HEAD_BYTES: usize = 18;

/// Entries that wait, one behind the other: directory, cookie and length, little-endian, then the value of the item.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EarlyNames(Vec<u8>);

impl EarlyNames {
    /// Adds an entry. A later one with the same place counts.
    pub(crate) fn push(&mut self, dir: u64, cookie: u64, value: &[u8]) {
        self.0.extend(dir.to_le_bytes());
        self.0.extend(cookie.to_le_bytes());
        // A name has at most 255 bytes.
        self.0.extend((value.len() as u16).to_le_bytes());
        self.0.extend(value);
    }

    /// The entries, in the order in which they were read.
    fn iter(&self) -> impl Iterator<Item = (u64, u64, &[u8])> {
        let mut rest = self.0.as_slice();
        std::iter::from_fn(move || {
            let (head, body) = rest.split_first_chunk::<HEAD_BYTES>()?;
            let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|k| head[at + k]));
            let len = usize::from(u16::from_le_bytes([head[16], head[17]]));
            let (value, behind) = body.split_at_checked(len)?;
            rest = behind;
            Some((number(0), number(8), value))
        })
    }

    /// Removes an entry that was deleted later. Searches all entries.
    pub(crate) fn remove(&mut self, dir: u64, cookie: u64) {
        let mut left = EarlyNames::default();
        self.iter().filter(|(d, c, _)| (*d, *c) != (dir, cookie)).for_each(|(d, c, value)| left.push(d, c, value));
        *self = left;
    }

    /// Hands all entries over.
    pub(crate) fn drain(&mut self, mut each: impl FnMut(u64, u64, &[u8])) {
        let all = take(self);
        all.iter().for_each(|(dir, cookie, value)| each(dir, cookie, value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: entries are returned unchanged, except those that were deleted. Method: a few of each length.
    #[test]
    fn in_and_out() {
        let mut early = EarlyNames::default();
        let value = |n: usize| vec![n as u8; n];
        (0..300).for_each(|n| early.push(n as u64, u64::MAX - n as u64, &value(n)));
        early.remove(7, u64::MAX - 7);
        early.remove(8, 0);
        let mut seen = Vec::new();
        early.drain(|dir, cookie, value| seen.push((dir, cookie, value.to_vec())));
        let wanted: Vec<_> = (0..300).filter(|n| *n != 7).map(|n| (n as u64, u64::MAX - n as u64, value(n))).collect();
        assert_eq!((seen, early), (wanted, EarlyNames::default()));
    }
}
