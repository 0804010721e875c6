//! Blocks: pieces of a trace, each of which is read completely or not at all.
//!
//! A block has a head of 20 bytes and what follows it, little endian:
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | `AmTb` |
//! | 4 | version of the format |
//! | 5 | kind: 1 header, 2 records, 3 end |
//! | 6..8 | 0 |
//! | 8..12 | bytes of the content |
//! | 12..16 | bytes that follow; as many as the content has: it is not compressed; fewer: LZ4 |
//! | 16..20 | CRC-32C of bytes 0..16 and of what follows |

use std::fmt;

/// Version of the format.
pub const VERSION: u8 = 1;
/// Bytes of a head.
pub const HEAD_BYTES: usize = 20;
/// Most bytes of a block's content.
pub const CONTENT_MAX: usize = 1 << 20;
const MAGIC: &[u8; 4] = b"AmTb";

/// The content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// [`Header`](crate::Header) as JSON.
    Header,
    /// Records.
    Records,
    /// [`End`](crate::End) as JSON.
    End,
}

impl Kind {
    fn number(self) -> u8 {
        match self {
            Kind::Header => 1,
            Kind::Records => 2,
            Kind::End => 3,
        }
    }
}

/// An error in a trace, and its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Byte of the file.
    pub at: u64,
    /// The error at that place.
    pub what: String,
    /// The file ends in the middle of a record or block: what was written last is missing, and the rest is valid.
    pub is_cut: bool,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {}: {}", self.at, self.what)
    }
}

impl Fault {
    pub(crate) fn new(at: u64, what: impl Into<String>) -> Fault {
        Fault { at, what: what.into(), is_cut: false }
    }

    pub(crate) fn cut(at: u64, what: impl Into<String>) -> Fault {
        Fault { at, what: what.into(), is_cut: true }
    }
}

/// A block of this content, at most [`CONTENT_MAX`] bytes.
///
/// # Panics
/// If there are more.
pub fn seal(kind: Kind, content: &[u8]) -> Vec<u8> {
    assert!(content.len() <= CONTENT_MAX, "a block has at most {CONTENT_MAX} bytes");
    let packed = lz4_flex::block::compress(content);
    let stored = if packed.len() < content.len() { &packed[..] } else { content };
    let mut block = Vec::with_capacity(HEAD_BYTES + stored.len());
    block.extend_from_slice(MAGIC);
    block.extend_from_slice(&[VERSION, kind.number(), 0, 0]);
    block.extend_from_slice(&(content.len() as u32).to_le_bytes());
    block.extend_from_slice(&(stored.len() as u32).to_le_bytes());
    let sum = crc32c::crc32c_append(crc32c::crc32c(&block), stored);
    block.extend_from_slice(&sum.to_le_bytes());
    block.extend_from_slice(stored);
    block
}

/// The contents of a block's head.
pub(crate) struct Head {
    kind: Kind,
    content: usize,
    /// Bytes that follow the head.
    pub(crate) stored: usize,
    sum: u32,
}

fn number(bytes: &[u8], at: usize) -> usize {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four) as usize
}

impl Head {
    /// Errors: the bytes are no header, belong to another version, or have sizes that no block has.
    pub(crate) fn parse(bytes: &[u8; HEAD_BYTES], at: u64) -> Result<Head, Fault> {
        if &bytes[..4] != MAGIC {
            let what = if at == 0 { "this is no trace of amphi record" } else { "no block begins here" };
            return Err(Fault::new(at, what));
        }
        if bytes[4] != VERSION {
            return Err(Fault::new(
                at + 4,
                format!(
                    "the format has version {}, and this program reads version {VERSION}; use the amphi that recorded it",
                    bytes[4]
                ),
            ));
        }
        let kind = match bytes[5] {
            1 => Kind::Header,
            2 => Kind::Records,
            3 => Kind::End,
            other => return Err(Fault::new(at + 5, format!("{other} is no kind of block"))),
        };
        let (content, stored) = (number(bytes, 8), number(bytes, 12));
        if content > CONTENT_MAX || stored > content {
            let what =
                format!("a block of {content} bytes in {stored} cannot be (at most {CONTENT_MAX}, and no longer)");
            return Err(Fault::new(at + 8, what));
        }
        Ok(Head { kind, content, stored, sum: number(bytes, 16) as u32 })
    }

    /// The content of the block, whose head is `head` and whose further bytes are `stored`.
    pub(crate) fn open(&self, head: &[u8; HEAD_BYTES], stored: &[u8], at: u64) -> Result<(Kind, Vec<u8>), Fault> {
        let sum = crc32c::crc32c_append(crc32c::crc32c(&head[..16]), stored);
        if sum != self.sum {
            return Err(Fault::new(at, "the bytes of this block are not those that were written (wrong sum)"));
        }
        if stored.len() == self.content {
            return Ok((self.kind, stored.to_vec()));
        }
        match lz4_flex::block::decompress(stored, self.content) {
            Ok(content) if content.len() == self.content => Ok((self.kind, content)),
            _ => Err(Fault::new(at + HEAD_BYTES as u64, "this block cannot be unpacked")),
        }
    }
}
