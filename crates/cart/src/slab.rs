//! `Slabs`: the memory of nodes, blocks of bytes in a few dozen sizes, addressed by 32 bits.
//!
//! Owns: which blocks are in use, and the memory. Does not own: what is in a block (`node`).
//!
//! A slab is one piece of memory of at most 16 KiB with blocks of one size. An address consists of the number of the
//! slab and the place of the block in it, in units of 4 bytes. The slab may be moved while it grows, because addresses
//! are no pointers. The free blocks of a slab are a list within these blocks, and the slabs of one size that have a
//! free block are a list as well, so that allocating and freeing take constant time. A slab whose last block is freed
//! is returned.
//!
//! Invariants: each slab that is not full is in the list of its size. Each slab ends with `READ_PAST` additional bytes,
//! so that a reader may load a whole vector at any byte of a block.
//!
//! The number that drove the design: a general allocator adds 8 to 16 bytes to each of its pieces, and a node of ten
//! names has about 60.

/// Bytes that are readable behind any byte of a block.
pub(crate) const READ_PAST: usize = 32;
/// Most bytes of the blocks of one slab.
const SLAB_BYTES: usize = 1 << (UNIT_BITS + OFFSET_BITS);
/// Bytes of the blocks of a new slab, from which it doubles.
const SLAB_START: usize = 512;
/// An offset counts units of 4 bytes.
const UNIT_BITS: u32 = 2;
/// Bits of an address that say where in its slab a block lies.
const OFFSET_BITS: u32 = 12;
/// Most slabs, so that no address is `NONE`.
const SLABS_MAX: usize = (1 << (32 - OFFSET_BITS)) - 1;
/// Slabs that one change of a tree can need: it allocates at most three blocks.
const SLABS_FOR_A_CHANGE: usize = 4;
/// Smallest block.
const BLOCK_MIN: usize = 12;
/// Largest block: a node with 255 values of 8 bytes and the longest prefix fits.
pub(crate) const BLOCK_MAX: usize = 2560;
/// Up to this size, sizes of blocks are 4 bytes apart. Larger sizes grow by an eighth.
const FINE_BYTES: usize = 128;
/// Number of sizes.
const CLASSES: usize = 55;
/// No block, no slab.
pub(crate) const NONE: u32 = u32::MAX;

/// The sizes of blocks, ascending, multiples of 4.
const SIZES: [u16; CLASSES] = {
    let mut sizes = [0; CLASSES];
    let (mut at, mut size) = (0, BLOCK_MIN);
    while at < CLASSES {
        sizes[at] = size as u16;
        size = if size < FINE_BYTES { size + 4 } else { (size + size / 8).next_multiple_of(8) };
        if size > BLOCK_MAX {
            size = BLOCK_MAX;
        }
        at += 1;
    }
    assert!(sizes[CLASSES - 1] as usize == BLOCK_MAX && sizes[CLASSES - 2] < sizes[CLASSES - 1]);
    sizes
};

/// The smallest size that a number of bytes fits, by its count of started quads.
const CLASS_OF: [u8; BLOCK_MAX / 4 + 1] = {
    let mut classes = [0; BLOCK_MAX / 4 + 1];
    let (mut quads, mut class) = (0, 0);
    while quads <= BLOCK_MAX / 4 {
        while (SIZES[class] as usize) < quads * 4 {
            class += 1;
        }
        classes[quads] = class as u8;
        quads += 1;
    }
    classes
};

/// The size of the block that `bytes` bytes get, of at most `BLOCK_MAX`.
pub(crate) fn block_size(bytes: usize) -> usize {
    usize::from(SIZES[class_of(bytes)])
}

fn class_of(bytes: usize) -> usize {
    usize::from(CLASS_OF[bytes.div_ceil(4)])
}

/// Blocks of one size.
#[derive(Clone, Debug)]
struct Slab {
    /// All blocks that were ever in use and `READ_PAST` bytes more; empty if the slab does not exist.
    bytes: Vec<u8>,
    /// Size of a block.
    size: u16,
    /// Blocks in use.
    used: u16,
    /// First free block plus one; 0 if no block is free. A free block begins with the next one in the same form.
    free: u16,
    /// Neighbours in the list of slabs with free blocks, or the next number of a slab that does not exist.
    next: u32,
    prev: u32,
}

impl Slab {
    const ABSENT: Slab = Slab { bytes: Vec::new(), size: 0, used: 0, free: 0, next: NONE, prev: NONE };

    /// Number of blocks for which there is memory.
    fn blocks(&self) -> usize {
        self.bytes.len().saturating_sub(READ_PAST) / usize::from(self.size)
    }

    fn is_full(&self) -> bool {
        self.free == 0 && (self.blocks() + 1) * usize::from(self.size) > SLAB_BYTES
    }

    /// Doubles the memory, and puts the new blocks into the list of free ones.
    fn grow(&mut self) {
        let (size, had) = (usize::from(self.size), self.blocks());
        let bytes = (had * size * 2).clamp(SLAB_START.max(size), SLAB_BYTES);
        let blocks = bytes / size;
        let len = blocks * size + READ_PAST;
        self.bytes.reserve_exact(len - self.bytes.len());
        self.bytes.resize(len, 0);
        for block in (had..blocks).rev() {
            self.give(block);
        }
    }

    fn give(&mut self, block: usize) {
        let at = block * usize::from(self.size);
        self.bytes[at..at + 2].copy_from_slice(&self.free.to_le_bytes());
        self.free = block as u16 + 1;
    }
}

/// All blocks of an index.
#[derive(Clone, Debug)]
pub(crate) struct Slabs {
    slabs: Vec<Slab>,
    /// For each size the first slab with a free block.
    partial: [u32; CLASSES],
    /// First number of a slab that does not exist.
    absent: u32,
    /// Slabs that exist.
    count: usize,
    /// Bytes of memory of all slabs.
    bytes: usize,
}

impl Slabs {
    pub(crate) fn new() -> Slabs {
        Slabs { slabs: Vec::new(), partial: [NONE; CLASSES], absent: NONE, count: 0, bytes: 0 }
    }

    /// Bytes of memory from the allocator.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.slabs.capacity() * size_of::<Slab>()
    }

    /// Returns whether there are addresses for any one change of a tree.
    pub(crate) fn has_room(&self) -> bool {
        self.count + SLABS_FOR_A_CHANGE <= SLABS_MAX
    }

    /// A block and the readable bytes behind it.
    #[inline]
    pub(crate) fn block(&self, address: u32) -> &[u8] {
        &self.slabs[(address >> OFFSET_BITS) as usize].bytes[offset(address)..]
    }

    /// Size of a block.
    #[inline]
    pub(crate) fn size(&self, address: u32) -> usize {
        self.slabs[(address >> OFFSET_BITS) as usize].size.into()
    }

    /// A block to be written, exactly.
    pub(crate) fn block_mut(&mut self, address: u32) -> &mut [u8] {
        let slab = &mut self.slabs[(address >> OFFSET_BITS) as usize];
        let at = offset(address);
        &mut slab.bytes[at..at + usize::from(slab.size)]
    }

    /// Two different blocks: one to be read, one to be written.
    pub(crate) fn two(&mut self, from: u32, to: u32) -> (&[u8], &mut [u8]) {
        let (from_slab, to_slab) = ((from >> OFFSET_BITS) as usize, (to >> OFFSET_BITS) as usize);
        let (from, to) = (offset(from), offset(to));
        if from_slab == to_slab {
            let slab = &mut self.slabs[from_slab];
            let size = usize::from(slab.size);
            if from < to {
                let (low, high) = slab.bytes.split_at_mut(to);
                (&low[from..from + size], &mut high[..size])
            } else {
                let (low, high) = slab.bytes.split_at_mut(from);
                (&high[..size], &mut low[to..to + size])
            }
        } else if from_slab < to_slab {
            let (low, high) = self.slabs.split_at_mut(to_slab);
            (part(&low[from_slab].bytes, from, low[from_slab].size), part_mut(&mut high[0], to))
        } else {
            let (low, high) = self.slabs.split_at_mut(from_slab);
            (part(&high[0].bytes, from, high[0].size), part_mut(&mut low[to_slab], to))
        }
    }

    #[cfg(test)]
    pub(crate) fn blocks_in_use(&self) -> usize {
        self.slabs.iter().map(|slab| usize::from(slab.used)).sum()
    }

    /// Allocates a block for `bytes` bytes, of at most `BLOCK_MAX`, whose content is arbitrary. Panics if all addresses
    /// are in use: see `has_room`.
    pub(crate) fn allocate(&mut self, bytes: usize) -> u32 {
        let class = class_of(bytes);
        if self.partial[class] == NONE {
            self.open(class);
        }
        let number = self.partial[class];
        let slab = &mut self.slabs[number as usize];
        if slab.free == 0 {
            let before = slab.bytes.capacity();
            slab.grow();
            self.bytes += slab.bytes.capacity() - before;
        }
        let at = usize::from(slab.free - 1) * usize::from(slab.size);
        slab.free = u16::from_le_bytes([slab.bytes[at], slab.bytes[at + 1]]);
        slab.used += 1;
        if slab.is_full() {
            self.unlink(number, class);
        }
        number << OFFSET_BITS | (at >> UNIT_BITS) as u32
    }

    /// Frees a block.
    pub(crate) fn free(&mut self, address: u32) {
        let number = address >> OFFSET_BITS;
        let slab = &mut self.slabs[number as usize];
        let class = class_of(usize::from(slab.size));
        let was_full = slab.is_full();
        slab.give(offset(address) / usize::from(slab.size));
        slab.used -= 1;
        let is_empty = slab.used == 0;
        if was_full {
            self.link(number, class);
        }
        if is_empty {
            self.close(number, class);
        }
    }

    /// Makes a slab for blocks of a size that has none with a free block.
    fn open(&mut self, class: usize) {
        let number = self.absent;
        let number = if number == NONE {
            assert!(self.slabs.len() < SLABS_MAX, "the index of names has used all its addresses");
            self.slabs.push(Slab::ABSENT);
            self.slabs.len() as u32 - 1
        } else {
            self.absent = self.slabs[number as usize].next;
            number
        };
        let slab = &mut self.slabs[number as usize];
        *slab = Slab { size: SIZES[class], ..Slab::ABSENT };
        self.count += 1;
        self.link(number, class);
    }

    /// Gives the memory of an empty slab back.
    fn close(&mut self, number: u32, class: usize) {
        self.unlink(number, class);
        let slab = &mut self.slabs[number as usize];
        self.bytes -= slab.bytes.capacity();
        *slab = Slab { next: self.absent, ..Slab::ABSENT };
        self.absent = number;
        self.count -= 1;
        if self.count == 0 {
            *self = Slabs::new();
        }
    }

    fn link(&mut self, number: u32, class: usize) {
        let first = self.partial[class];
        if let Some(next) = self.slabs.get_mut(first as usize) {
            next.prev = number;
        }
        let slab = &mut self.slabs[number as usize];
        (slab.prev, slab.next) = (NONE, first);
        self.partial[class] = number;
    }

    fn unlink(&mut self, number: u32, class: usize) {
        let Slab { prev, next, .. } = self.slabs[number as usize];
        match self.slabs.get_mut(prev as usize) {
            Some(slab) => slab.next = next,
            None => self.partial[class] = next,
        }
        if let Some(slab) = self.slabs.get_mut(next as usize) {
            slab.prev = prev;
        }
    }
}

#[inline]
fn offset(address: u32) -> usize {
    ((address & ((1 << OFFSET_BITS) - 1)) << UNIT_BITS) as usize
}

fn part(bytes: &[u8], at: usize, size: u16) -> &[u8] {
    &bytes[at..at + usize::from(size)]
}

fn part_mut(slab: &mut Slab, at: usize) -> &mut [u8] {
    &mut slab.bytes[at..at + usize::from(slab.size)]
}
