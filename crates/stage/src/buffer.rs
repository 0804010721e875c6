//! Memory for one request, aligned for direct I/O.
//!
//! Owns the alignment. Each worker has one buffer and uses it for everything it reads and writes.

/// Bytes of one request.
pub(crate) const REQUEST_BYTES: usize = 4 << 20;
/// Alignment of memory, offsets and lengths of direct I/O.
pub(crate) const ALIGN: u64 = 4096;

/// Aligned memory of `REQUEST_BYTES`.
pub(crate) struct Buffer {
    memory: Vec<u8>,
    start: usize,
}

impl Buffer {
    /// Zeroed memory.
    pub(crate) fn new() -> Buffer {
        let align = ALIGN as usize;
        let memory = vec![0; REQUEST_BYTES + align];
        let start = memory.as_ptr().align_offset(align);
        assert!(start < align, "bytes can be aligned");
        Buffer { memory, start }
    }

    /// The memory.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + REQUEST_BYTES]
    }
}
