//! The checksum of a piece of a file: CRC-32C of its bytes as a reader sees them, holes as zeros.
//!
//! Owns the arithmetic by which a hole costs only a few operations, whatever its length. So the checksum does not
//! depend on where source and target have holes, and both are compared by their content.

/// A checksum that grows along a piece.
#[derive(Clone, Copy, Default)]
pub(crate) struct Content {
    crc: u32,
}

impl Content {
    /// The next bytes.
    pub(crate) fn data(&mut self, bytes: &[u8]) {
        self.crc = crc32c::crc32c_append(self.crc, bytes);
    }

    /// The next `len` bytes are zeros.
    pub(crate) fn hole(&mut self, len: u64) {
        if len > 0 {
            self.crc = crc32c::crc32c_combine(self.crc, zeros(len), len as usize);
        }
    }

    /// The checksum of everything so far.
    pub(crate) fn crc(self) -> u32 {
        self.crc
    }
}

/// The checksum of `len` zeros, by doubling.
pub(crate) fn zeros(len: u64) -> u32 {
    let (mut all, mut run, mut run_len, mut left) = (0, crc32c::crc32c(&[0]), 1usize, len);
    while left > 0 {
        if left & 1 == 1 {
            all = crc32c::crc32c_combine(all, run, run_len);
        }
        left >>= 1;
        if left > 0 {
            run = crc32c::crc32c_combine(run, run, run_len);
            run_len *= 2;
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: holes and zeros have the same checksum. Method: lengths around powers of two, and a piece of all parts.
    #[test]
    fn holes_are_zeros() {
        for len in [0u64, 1, 2, 3, 4095, 4096, 70_001] {
            assert_eq!(zeros(len), crc32c::crc32c(&vec![0; len as usize]), "{len}");
        }
        let mut piece = Content::default();
        piece.hole(5);
        piece.data(b"abc");
        piece.hole(4096);
        let plain = [&[0; 5][..], b"abc", &[0; 4096]].concat();
        assert_eq!(piece.crc(), crc32c::crc32c(&plain));
    }
}
