//! `Index`: which page of a segment has a key, if any has.
//!
//! Owns: for each page the first key that begins in it, a filter of all keys that begin in it, and their bytes on the
//! disk. Does not own: the pages (`page`), or where the index lies (`writer`, `reader`).
//!
//! A filter is a Bloom filter of 10 bits for each key, of which 7 are set. So one key in 120 that a page has not is
//! taken for one that it has, and costs a read. Each page has a filter of its own, because the number of keys of a page
//! is known when the page is written, while the number of all keys of a merge is not; and because a search then reads
//! only one filter.
//!
//! The number that drove the design: a search for a key in 16 segments without filters would read 16 pages of 64 KiB,
//! each at least 60 us. The index takes 1.3 bytes of memory for each item, and as many on the disk.

use crate::planted::{self, Mistake};

/// Bits of a filter for each key.
const BITS_PER_KEY: usize = 10;
/// Bits that each key sets.
const BITS_SET: u32 = 7;
/// Bytes of the smallest filter.
const FILTER_BYTES_MIN: usize = 8;
/// "No change begins in the page".
const NO_FIRST: u32 = u32::MAX;

/// The index entry of a page in which the encoding of at least one change of an item begins.
#[derive(Clone, Debug, PartialEq, Eq)]
struct First {
    page: u32,
    /// Offset in the payload of the page at which the first change begins.
    at: u32,
    /// The key of the first change.
    key: Box<[u8]>,
    /// The filter of all keys that begin in the page.
    filter: Box<[u8]>,
}

/// The index of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Index {
    firsts: Vec<First>,
}

impl Index {
    /// Page and offset from which `key` can be found, if the segment may have it.
    pub fn find(&self, key: &[u8]) -> Option<(usize, usize)> {
        let first = &self.firsts[self.firsts.partition_point(|first| *first.key <= *key).checked_sub(1)?];
        has(&first.filter, hash_of(key)).then_some((first.page as usize, first.at as usize))
    }

    /// Page and offset of a change in front of which there is none with a key of `from` or greater. Returns `None` if
    /// the segment is empty.
    pub fn seek(&self, from: &[u8]) -> Option<(usize, usize)> {
        let behind = self.firsts.partition_point(|first| *first.key <= *from);
        self.firsts.get(behind.saturating_sub(1)).map(|first| (first.page as usize, first.at as usize))
    }

    /// Appends the bytes on the disk, for a segment with these slots of pages with changes.
    pub fn encode(&self, slots: &[u32], out: &mut Vec<u8>) {
        let mut firsts = self.firsts.iter().peekable();
        for (page, slot) in slots.iter().enumerate() {
            out.extend_from_slice(&slot.to_le_bytes());
            match firsts.next_if(|first| first.page as usize == page) {
                Some(First { at, key, filter, .. }) => {
                    out.extend_from_slice(&at.to_le_bytes());
                    out.extend_from_slice(&(key.len() as u16).to_le_bytes());
                    out.extend_from_slice(&(filter.len() as u16).to_le_bytes());
                    out.extend_from_slice(key);
                    out.extend_from_slice(filter);
                }
                None => out.extend_from_slice(&NO_FIRST.to_le_bytes()),
            }
        }
    }

    /// The index in `bytes`, and the slots of the pages with changes. Returns `None` if they are not an index.
    pub fn decode(bytes: &[u8]) -> Option<(Index, Vec<u32>)> {
        let (mut index, mut slots, mut rest) = (Index::default(), Vec::new(), bytes);
        while !rest.is_empty() {
            let slot = u32::from_le_bytes(*take(&mut rest)?);
            let at = u32::from_le_bytes(*take(&mut rest)?);
            let page = slots.len() as u32;
            slots.push(slot);
            if at == NO_FIRST {
                continue;
            }
            let [key_len, filter_len] =
                [take(&mut rest)?, take(&mut rest)?].map(|n| usize::from(u16::from_le_bytes(*n)));
            let (key, behind) = rest.split_at_checked(key_len)?;
            let (filter, behind) = behind.split_at_checked(filter_len)?;
            rest = behind;
            let ascends = index.firsts.last().is_none_or(|last| *last.key < *key);
            if !ascends || filter_len < FILTER_BYTES_MIN {
                return None;
            }
            index.firsts.push(First { page, at, key: key.into(), filter: filter.into() });
        }
        Some((index, slots))
    }
}

fn take<'a, const N: usize>(bytes: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(head)
}

/// Makes the index of a segment while its changes pass.
#[derive(Debug, Default)]
pub struct IndexBuilder {
    index: Index,
    /// Hashes of the keys that begin in the last page.
    hashes: Vec<u32>,
}

impl IndexBuilder {
    /// A change with `key` begins in a page, at this offset of its payload. Keys ascend.
    pub fn add(&mut self, page: usize, at: usize, key: &[u8]) {
        if self.index.firsts.last().is_none_or(|last| last.page as usize != page) {
            self.end_page();
            let first = First { page: page as u32, at: at as u32, key: key.into(), filter: Box::default() };
            self.index.firsts.push(first);
        }
        self.hashes.push(hash_of(key));
    }

    fn end_page(&mut self) {
        if planted::is(Mistake::IndexWrong) {
            self.hashes.pop();
        }
        if let Some(last) = self.index.firsts.last_mut() {
            last.filter = filter_of(&self.hashes);
            self.hashes.clear();
        }
    }

    /// The index.
    pub fn finish(mut self) -> Index {
        self.end_page();
        self.index
    }
}

fn filter_of(hashes: &[u32]) -> Box<[u8]> {
    let mut filter = vec![0; (hashes.len() * BITS_PER_KEY).div_ceil(8).max(FILTER_BYTES_MIN)];
    for &hash in hashes {
        for bit in bits(hash, filter.len()) {
            filter[bit / 8] |= 1 << (bit % 8);
        }
    }
    filter.into()
}

fn has(filter: &[u8], hash: u32) -> bool {
    bits(hash, filter.len()).all(|bit| filter[bit / 8] & (1 << (bit % 8)) != 0)
}

/// The bits of a key in a filter.
fn bits(hash: u32, filter_bytes: usize) -> impl Iterator<Item = usize> {
    let mixed = mix(u64::from(hash));
    let (first, step) = (mixed as u32, (mixed >> 32) as u32 | 1);
    (0..BITS_SET).map(move |n| first.wrapping_add(n.wrapping_mul(step)) as usize % (filter_bytes * 8))
}

fn hash_of(key: &[u8]) -> u32 {
    crc32c::crc32c(key)
}

/// Spreads a checksum, in which similar keys differ in few bits, over 64 bits: the finalizer of MurmurHash3.
fn mix(mut n: u64) -> u64 {
    n = (n ^ (n >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    n = (n ^ (n >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    n ^ (n >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> [u8; 9] {
        let mut key = *b"I\0\0\0\0\0\0\0\0";
        key[5..].copy_from_slice(&n.to_be_bytes());
        key
    }

    /// Every second number, a thousand in a page, and a page in the middle of a large change.
    fn index() -> Index {
        let mut builder = IndexBuilder::default();
        for n in 0..10_000 {
            let page = n / 1000 + usize::from(n >= 5000);
            builder.add(page, 7 + n % 1000 * 60, &key(n as u32 * 2));
        }
        builder.finish()
    }

    /// Goal: every key is found in its page, and few others in any. Method: numbers as keys, of which every second one
    /// exists.
    #[test]
    fn filters_know_their_keys() {
        let index = index();
        let mut wrong = 0;
        for n in 0..20_000 {
            let found = index.find(&key(n));
            let page = n as usize / 2000 + usize::from(n >= 10_000);
            if n % 2 == 0 {
                assert_eq!(found, Some((page, 7)), "{n}");
            } else {
                wrong += u32::from(found.is_some());
            }
            assert_eq!(index.seek(&key(n)), Some((page, 7)), "{n}");
        }
        assert!(wrong < 200, "{wrong} of 10,000 keys are taken for others");
        assert_eq!((index.find(b"A"), index.seek(b"A")), (None, Some((0, 7))));
        assert_eq!((Index::default().find(b"A"), Index::default().seek(b"A")), (None, None));
    }

    /// Goal: an index is read as it was written, takes the bytes that the head says, and its format does not change
    /// unnoticed; cut bytes are refused. Method: a round trip, the checksum of the bytes, and all truncated forms of a
    /// small index.
    #[test]
    fn the_bytes_are_what_they_were() {
        let (index, slots) = (index(), (40..51).collect::<Vec<u32>>());
        let mut bytes = Vec::new();
        index.encode(&slots, &mut bytes);
        assert!(bytes.len() < 13_000, "{} bytes for 10,000 keys", bytes.len());
        assert_eq!(crc32c::crc32c(&bytes), 0x7a0e_1bb1, "{:#010x}", crc32c::crc32c(&bytes));
        assert_eq!(Index::decode(&bytes), Some((index, slots)));
        let mut builder = IndexBuilder::default();
        builder.add(0, 0, b"key");
        let mut bytes = Vec::new();
        builder.finish().encode(&[7], &mut bytes);
        for cut in 1..bytes.len() {
            assert_eq!(Index::decode(&bytes[..cut]), None, "{cut}");
        }
    }
}
