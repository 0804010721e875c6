//! Bytes of files: incompressible, and another function of the place in each file.

/// Bytes of a word.
const WORD: u64 = 8;

/// The word of `file` at word `at` (splitmix64 of Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", OOPSLA 2014, figure 17).
fn word(file: u64, at: u64) -> [u8; 8] {
    let mut z = (file << 40).wrapping_add(at).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()
}

/// Calls `each` with the pieces of `bytes`, which lie at `offset`, and with their expected content.
fn pieces(file: u64, offset: u64, len: usize, mut each: impl FnMut(std::ops::Range<usize>, &[u8])) {
    let mut done = 0;
    while done < len {
        let place = offset + done as u64;
        let inside = (place % WORD) as usize;
        let count = (WORD as usize - inside).min(len - done);
        each(done..done + count, &word(file, place / WORD)[inside..inside + count]);
        done += count;
    }
}

/// Fills `bytes`, which lie at `offset` of `file`.
pub(crate) fn fill(file: u64, offset: u64, bytes: &mut [u8]) {
    pieces(file, offset, bytes.len(), |at, stamp| bytes[at].copy_from_slice(stamp));
}

/// The place of the first byte that differs from the byte that was written there. With `holes`, zeros count as bytes
/// that were never written.
pub(crate) fn first_wrong(file: u64, offset: u64, bytes: &[u8], holes: bool) -> Option<u64> {
    let mut wrong = None;
    pieces(file, offset, bytes.len(), |at, stamp| {
        let place = offset + at.start as u64;
        let there = &bytes[at];
        if wrong.is_none() && there != stamp && !(holes && there.iter().all(|b| *b == 0)) {
            wrong = Some(place);
        }
    });
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: bytes depend only on file and place, and a wrong byte is found. Method: pieces at odd places, in which one
    /// bit is changed.
    #[test]
    fn bytes_are_of_their_place() {
        let mut whole = vec![0; 4096];
        fill(7, 100, &mut whole);
        let mut part = vec![0; 77];
        fill(7, 113, &mut part);
        assert_eq!(part, whole[13..90]);
        assert_eq!(first_wrong(7, 113, &part, false), None);
        assert!(first_wrong(8, 113, &part, false).is_some());
        part[50] ^= 1;
        assert_eq!(first_wrong(7, 113, &part, false).map(|at| at / 8), Some((113 + 50) / 8));
        assert_eq!(first_wrong(7, 0, &[0; 16], true), None);
        assert!(first_wrong(7, 0, &[0; 16], false).is_some());
    }
}
