//! Text that is built without allocating memory.

/// Puts bytes at a place of `into`; the place behind them. What does not fit is left out.
pub fn put(into: &mut [u8], mut at: usize, bytes: &[u8]) -> usize {
    for byte in bytes {
        if let Some(place) = into.get_mut(at) {
            *place = *byte;
            at += 1;
        }
    }
    at
}

/// As `put`, a number in decimal digits.
pub fn put_number(into: &mut [u8], mut at: usize, number: u64) -> usize {
    let mut divisor = 1;
    while number / divisor >= 10 {
        divisor *= 10;
    }
    while divisor > 0 {
        at = put(into, at, &[b'0' + (number / divisor % 10) as u8]);
        divisor /= 10;
    }
    at
}
