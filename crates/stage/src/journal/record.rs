//! Records of the journal and their bytes.
//!
//! Owns the format: a length (u32), a CRC-32C (u32) of what follows, then a kind (u8) and its fields. Integers are
//! little-endian, byte strings have their length (u32) in front. Bytes from the disk never panic.

use crate::entries::Identity;

/// Version of the format.
pub(crate) const VERSION: u16 = 1;
/// Most bytes of a record; the longest has the path of a file in it.
const RECORD_MAX: usize = 64 << 20;
const HEAD: usize = 8;
/// The inode number of no tree.
pub(crate) const NO_TREE: u64 = 0;
/// First bytes of the first record's fields.
const MAGIC: &[u8; 8] = b"amphistg";

/// The subject of the stage and its options; the first record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Begin {
    pub(crate) version: u16,
    /// 0: into a new tree; 1: an update.
    pub(crate) mode: u8,
    pub(crate) piece_bytes: u64,
    /// Path of the source.
    pub(crate) source: Vec<u8>,
    /// Name of the target.
    pub(crate) target: Vec<u8>,
}

/// A record of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    Begin(Begin),
    /// From here on `number` names this file in its present state; earlier durable pieces of the path do not count.
    File {
        number: u32,
        identity: Identity,
        /// The path below the root.
        path: Vec<u8>,
    },
    /// A piece is durable.
    Piece {
        number: u32,
        /// The index of the piece, in units of `Begin::piece_bytes`.
        index: u64,
        crc: u32,
    },
    /// A piece was read back and compared.
    Compared {
        number: u32,
        index: u64,
    },
    /// The tree with this device and inode is whole and gets the target's name next; with the inode `NO_TREE`, the tree
    /// did not get it and is worked on again.
    Publish {
        dev: u64,
        ino: u64,
    },
}

impl Record {
    /// Appends the record's bytes.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let head = out.len();
        out.extend([0; HEAD]);
        let string = |out: &mut Vec<u8>, bytes: &[u8]| {
            out.extend((bytes.len() as u32).to_le_bytes());
            out.extend(bytes);
        };
        match self {
            Record::Begin(begin) => {
                out.push(1);
                out.extend(MAGIC);
                out.extend(begin.version.to_le_bytes());
                out.push(begin.mode);
                out.extend(begin.piece_bytes.to_le_bytes());
                string(out, &begin.source);
                string(out, &begin.target);
            }
            Record::File { number, identity, path } => {
                out.push(2);
                out.extend(number.to_le_bytes());
                out.extend(identity.ino.to_le_bytes());
                out.extend(identity.size.to_le_bytes());
                out.extend(identity.mtime_ns.to_le_bytes());
                out.extend(identity.ctime_ns.to_le_bytes());
                string(out, path);
            }
            Record::Piece { number, index, crc } => {
                out.push(3);
                out.extend(number.to_le_bytes());
                out.extend(index.to_le_bytes());
                out.extend(crc.to_le_bytes());
            }
            Record::Compared { number, index } => {
                out.push(4);
                out.extend(number.to_le_bytes());
                out.extend(index.to_le_bytes());
            }
            Record::Publish { dev, ino } => {
                out.push(5);
                out.extend(dev.to_le_bytes());
                out.extend(ino.to_le_bytes());
            }
        }
        let body = &out[head + HEAD..];
        let (len, crc) = (body.len() as u32, crc32c::crc32c(body));
        out[head..head + 4].copy_from_slice(&len.to_le_bytes());
        out[head + 4..head + HEAD].copy_from_slice(&crc.to_le_bytes());
    }

    /// The record at the beginning of `bytes` and its length; `None` if the record is incomplete.
    pub(crate) fn decode(bytes: &[u8]) -> Option<(Record, usize)> {
        let mut head = Fields(bytes);
        let (len, crc) = (head.u32()? as usize, head.u32()?);
        let body = head.0.get(..len).filter(|b| len <= RECORD_MAX && crc32c::crc32c(b) == crc)?;
        let mut fields = Fields(body);
        let record = match fields.array::<1>()?[0] {
            1 => {
                fields.array::<8>().filter(|magic| magic == MAGIC)?;
                Record::Begin(Begin {
                    version: u16::from_le_bytes(fields.array()?),
                    mode: fields.array::<1>()?[0],
                    piece_bytes: fields.u64()?,
                    source: fields.string()?,
                    target: fields.string()?,
                })
            }
            2 => Record::File {
                number: fields.u32()?,
                identity: Identity {
                    ino: fields.u64()?,
                    size: fields.u64()?,
                    mtime_ns: i128::from_le_bytes(fields.array()?),
                    ctime_ns: i128::from_le_bytes(fields.array()?),
                },
                path: fields.string()?,
            },
            3 => Record::Piece { number: fields.u32()?, index: fields.u64()?, crc: fields.u32()? },
            4 => Record::Compared { number: fields.u32()?, index: fields.u64()? },
            5 => Record::Publish { dev: fields.u64()?, ino: fields.u64()? },
            _ => return None,
        };
        fields.0.is_empty().then_some((record, HEAD + len))
    }
}

/// Returns true if these bytes may be a first record that is incomplete because of a crash: then nothing after it can
/// be lost.
pub(crate) fn is_cut_begin(bytes: &[u8]) -> bool {
    let begin = &bytes[bytes.len().min(HEAD)..];
    let known = begin.iter().zip([1].iter().chain(MAGIC)).all(|(a, b)| a == b);
    // A crash of the machine can leave zeros where the bytes were to come.
    known || bytes.iter().all(|b| *b == 0)
}

struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn string(&mut self) -> Option<Vec<u8>> {
        let len = self.u32()? as usize;
        let (string, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(string.to_vec())
    }
}
