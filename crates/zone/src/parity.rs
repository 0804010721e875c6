//! Parity: a log group or a segment page survives the loss of any one of its blocks.
//!
//! Owns: the parity block, and how a damaged block is found and rebuilt. Does not own: the places of structures, and
//! when rebuilt blocks are written again (`recover`, `segment`, `zone`).
//!
//! Behind the blocks of a structure, in the same write, is their exclusive or. Nothing says which block is damaged: the
//! structure's checksum is tried with each block rebuilt, which costs no more than computing it twice, because a
//! checksum is linear. Invariant: rebuilt bytes are used only if the whole structure verifies with them.
//!
//! The number that drove the design: a page is one write of 64 KiB; a single group is one write of 4 KiB and takes 60
//! us. A second copy elsewhere would be a second write; one more block in the same write is none, and 1/16 of the
//! space.

use crate::layout::block_crc;
use crate::planted::{self, Mistake};
use amphi_types::limits::BLOCK;
use std::collections::BTreeMap;

const BLOCK_BYTES: usize = BLOCK as usize;

/// A block that was rebuilt and has to be written again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mended {
    /// The structure to which the block belongs, for users.
    pub place: String,
    /// The 4096 bytes of the block.
    pub block: Vec<u8>,
    /// The block belongs to the last group of the log, which a crash may have torn.
    pub torn: bool,
}

/// Rebuilt blocks by their address on the disk: at most one for each structure.
pub type MendedBlocks = BTreeMap<u64, Mended>;

/// Adds `block` to a sum.
pub fn add(sum: &mut [u8], block: &[u8]) {
    for (a, b) in sum.as_chunks_mut().0.iter_mut().zip(block.as_chunks().0) {
        *a = (u128::from_ne_bytes(*a) ^ u128::from_ne_bytes(*b)).to_ne_bytes();
    }
}

/// The sum of whole blocks.
pub fn sum(blocks: &[u8]) -> Vec<u8> {
    let mut sum = vec![0; BLOCK_BYTES];
    blocks.chunks_exact(BLOCK_BYTES).for_each(|block| add(&mut sum, block));
    sum
}

/// Fills in the last block: the parity of those before it.
pub fn seal(blocks: &mut [u8]) {
    let at = blocks.len() - BLOCK_BYTES;
    let parity = sum(&blocks[..at]);
    blocks[at..].copy_from_slice(&parity);
}

/// Returns whether the last block is the parity of those before it.
pub fn agrees(blocks: &[u8]) -> bool {
    sum(blocks).iter().all(|&b| b == 0)
}

/// Returns whether blocks without their parity verify.
pub fn verifies(zone_id: u64, data: &[u8]) -> bool {
    data[4..8] == block_crc(zone_id, data).to_le_bytes()
}

/// Mends a structure: its blocks, whose number is known to be right or does not verify, and their parity. The block
/// that was damaged, if one was; an error if more than one is, which leaves the bytes as they were.
pub fn mend(zone_id: u64, blocks: &mut [u8]) -> Result<Option<usize>, ()> {
    let data = blocks.len() - BLOCK_BYTES;
    let wrong = sum(blocks);
    let is_whole = wrong.iter().all(|&b| b == 0);
    if verifies(zone_id, &blocks[..data]) {
        if is_whole {
            return Ok(None);
        }
        add(&mut blocks[data..], &wrong);
        return Ok(Some(data / BLOCK_BYTES));
    }
    if is_whole {
        return Err(());
    }
    for index in candidates(zone_id, &blocks[..data], &wrong) {
        let at = index * BLOCK_BYTES;
        add(&mut blocks[at..at + BLOCK_BYTES], &wrong);
        if verifies(zone_id, &blocks[..data]) || planted::is(Mistake::RebuiltUnverified) {
            return Ok(Some(index));
        }
        add(&mut blocks[at..at + BLOCK_BYTES], &wrong);
    }
    Err(())
}

/// The blocks of `data` with which the checksum may verify when `wrong` is added to one of them. The first block, which
/// has the checksum in it, is always among them.
fn candidates(zone_id: u64, data: &[u8], wrong: &[u8]) -> Vec<usize> {
    let stored = u32::from_le_bytes([data[4], data[5], data[6], data[7]]);
    let difference = stored ^ block_crc(zone_id, data);
    // How adding it to the last block changes the checksum; then to the block before it, and so on.
    let mut change = extend(0, wrong);
    let mut found = vec![0];
    for index in (1..data.len() / BLOCK_BYTES).rev() {
        if change == difference {
            found.push(index);
        }
        change = extend(change, &[0; BLOCK_BYTES]);
    }
    found
}

/// The checksum's register, without the inversions at both ends.
fn extend(register: u32, bytes: &[u8]) -> u32 {
    !crc32c::crc32c_append(!register, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZONE: u64 = 77;

    fn structure(blocks: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..(blocks + 1) * BLOCK_BYTES).map(|i| (i * i / 7 + i) as u8).collect();
        let data = blocks * BLOCK_BYTES;
        let crc = block_crc(ZONE, &bytes[..data]);
        bytes[4..8].copy_from_slice(&crc.to_le_bytes());
        seal(&mut bytes);
        bytes
    }

    /// Goal: any one block is rebuilt, the parity too, whatever was damaged in it, and two are refused unchanged.
    /// Method: structures of some lengths, a byte, a sector and a whole block of each block.
    #[test]
    fn one_block_is_rebuilt_and_two_are_refused() {
        for blocks in [1, 2, 5, 15] {
            let whole = structure(blocks);
            assert_eq!(mend(ZONE, &mut whole.clone()), Ok(None));
            for index in 0..=blocks {
                for (at, len) in [(5, 1), (70, 1), (512, 512), (0, BLOCK_BYTES)] {
                    let mut damaged = whole.clone();
                    damaged[index * BLOCK_BYTES + at..][..len].iter_mut().for_each(|b| *b ^= 0x5a);
                    assert_eq!(mend(ZONE, &mut damaged), Ok(Some(index)), "{blocks} blocks, {len} bytes at {at}");
                    assert!(damaged == whole);
                }
                let mut damaged = whole.clone();
                damaged[index * BLOCK_BYTES + 9] ^= 1;
                damaged[(index + 1) % (blocks + 1) * BLOCK_BYTES + 900] ^= 1;
                let before = damaged.clone();
                assert_eq!(mend(ZONE, &mut damaged), Err(()));
                assert!(damaged == before);
            }
        }
    }
}
