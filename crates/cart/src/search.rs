//! Searching a byte among the keys of a node: 16 at a time where the processor can.
//!
//! Owns: the search, in one form for x86-64 and in a portable form. Does not own: what the keys mean (`node`).
//!
//! Every x86-64 processor has SSE2, so nothing has to be detected. The portable form compares eight keys in a `u64`.
//! Tests compare both, and Miri runs the portable one.

/// Keys that one step compares.
const STEP: usize = 16;

/// The place of `key` among the first `count` of `keys`, which are different. `keys` must be followed by 16 more
/// readable bytes.
#[inline]
pub(crate) fn position(keys: &[u8], count: usize, key: u8) -> Option<usize> {
    let mut at = 0;
    while at < count {
        let step = keys[at..].first_chunk::<STEP>()?;
        let found = equal(step, key);
        if found != 0 {
            let place = at + found.trailing_zeros() as usize;
            return (place < count).then_some(place);
        }
        at += STEP;
    }
    None
}

/// A bit for each of 16 bytes that equals `key`, the first byte's lowest.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
#[expect(unsafe_code, reason = "instructions that every processor of this kind has")]
fn equal(bytes: &[u8; STEP], key: u8) -> u32 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
    let [low, high] = halves(bytes);
    // SAFETY: these instructions belong to SSE2, which is a part of x86-64, and take values in registers alone.
    unsafe {
        let bytes = _mm_set_epi64x(high as i64, low as i64);
        _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(key as i8))) as u32
    }
}

/// A bit for each of 16 bytes that equals `key`, the first byte's lowest.
#[cfg(any(not(target_arch = "x86_64"), miri))]
#[inline]
fn equal(bytes: &[u8; STEP], key: u8) -> u32 {
    equal_portable(bytes, key)
}

/// Works as `equal`, without vector instructions.
#[cfg(any(not(target_arch = "x86_64"), miri, test))]
#[inline]
fn equal_portable(bytes: &[u8; STEP], key: u8) -> u32 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    let [low, high] = halves(bytes).map(|half| {
        // The top bit of a byte of `differs` is 0 exactly where the byte equals the key.
        let x = half ^ (0x0101_0101_0101_0101 * u64::from(key));
        let differs = ((x & LOW) + LOW) | x;
        // Gathers the top bits of the eight bytes in the top byte, the first byte's lowest.
        let equal = (!differs & !LOW) >> 7;
        (equal.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u32
    });
    low | high << 8
}

/// The bytes as two numbers, whose lowest byte is the first.
#[inline]
fn halves(bytes: &[u8; STEP]) -> [u64; 2] {
    let all = u128::from_le_bytes(*bytes);
    [all as u64, (all >> 64) as u64]
}

/// The place of the smallest key greater than `after` among `keys`.
pub(crate) fn next(keys: &[u8], after: Option<u8>) -> Option<(usize, u8)> {
    let from = match after {
        None => 0,
        Some(after) => after.checked_add(1)?,
    };
    // Distances from `from` wrap around for the keys that are smaller, so theirs are beyond `u8::MAX - from`.
    let nearest = keys.iter().map(|key| key.wrapping_sub(from)).min()?;
    if nearest > u8::MAX - from {
        return None;
    }
    let key = nearest + from;
    keys.iter().position(|k| *k == key).map(|place| (place, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: both forms find the same. Method: every key in every place, among bytes that differ from it little.
    #[test]
    fn forms_agree() {
        for key in 0..=255u8 {
            for place in 0..STEP {
                let mut bytes = [key ^ 1, key ^ 0x80, !key, key.wrapping_add(1)].repeat(4);
                bytes[place] = key;
                let bytes: &[u8; STEP] = bytes.first_chunk().unwrap();
                assert_eq!(equal(bytes, key), 1 << place);
                assert_eq!(equal_portable(bytes, key), 1 << place);
            }
            assert_eq!(equal(&[key; STEP], key), 0xffff);
            assert_eq!(equal_portable(&[key; STEP], key), 0xffff);
        }
    }

    /// Goal: positions and successors within any number of keys. Method: all counts of a fixed permutation.
    #[test]
    fn positions() {
        let mut keys: Vec<u8> = (0..=255u8).map(|n| n.wrapping_mul(37).wrapping_add(11)).collect();
        keys.resize(256 + STEP, 0);
        for count in [0, 1, 2, 15, 16, 17, 31, 32, 33, 100, 255, 256] {
            for key in 0..=255u8 {
                let wanted = keys[..count].iter().position(|k| *k == key);
                assert_eq!(position(&keys, count, key), wanted, "{key} among {count}");
                let wanted = keys[..count].iter().copied().filter(|k| *k > key).min();
                assert_eq!(next(&keys[..count], Some(key)).map(|(_, k)| k), wanted);
            }
            let wanted = keys[..count].iter().copied().min();
            assert_eq!(next(&keys[..count], None).map(|(place, key)| (keys[place], key)), wanted.map(|k| (k, k)));
        }
    }
}
