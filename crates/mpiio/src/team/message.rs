//! Messages between a rank and the leaders of other nodes.
//!
//! Owns their form. A message is a head of 40 bytes, ranges (16 bytes each) and data; all numbers are little-endian and
//! 64 bits wide but the first two. A rank sends a request and waits for its reply, if its kind has one
//! (`Kind::has_reply`).
//!
//! | bytes | content |
//! |---|---|
//! | 0..4 | magic and version |
//! | 4..8 | kind |
//! | 8..16 | number: rank, length, pointer, errno value of a reply |
//! | 16..24 | second number: nonce; in a step how much the rank's node does for others; in its reply the bytes done |
//! | 24..32 | number of ranges; in the reply of a step first `Stop`, if it ended early, then `handover` |
//! | 32..40 | bytes of data |

use crate::error::{Error, Outcome};
use crate::file::Extent;
use std::io::{Read, Write};

const MAGIC: u32 = u32::from_le_bytes(*b"amq5");
const HEAD_BYTES: usize = 40;

/// Most ranges of one message.
pub const MAX_EXTENTS: usize = 1 << 16;

/// Most bytes of one message: a run of the largest flush size and a page of the largest size.
pub const MAX_DATA: usize = 2 << 30;

/// The number of a step that is the whole call: its locks are released before the reply, and no `Release` follows.
pub const WHOLE_CALL: u64 = 1;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// First message of a connection: proxy rank and nonce; the offset of its range is the rank's node number.
    Hello = 1,
    /// A step of a write, or all of it (`WHOLE_CALL`).
    Write,
    /// A step of a read, or all of it; the reply has the data.
    Read,
    /// The call is over: its locks go. It has no reply.
    Release,
    /// Drops the clean pages of the proxy.
    DropClean,
    /// Drops all of its pages.
    Discard,
    /// The length of the file.
    Size,
    /// The file is at least this long.
    Grow,
    /// Adds to the shared pointer.
    PointerAdd,
    /// Sets the shared pointer.
    PointerSet,
    /// Reads the shared pointer.
    Pointer,
    /// The counters of the proxy, as data.
    Stats,
    /// The rank closes the file. It has no reply.
    Bye,
    /// The answer to a request.
    Reply,
    /// Writes all dirty bytes of the node; with number 1 it also makes them stable and drops clean pages.
    Settle,
    /// From now on the file has this length.
    AgreeSize,
    /// The rank has taken over these pages of a reply, given as offsets. It has no reply. Follows such a reply.
    Taken,
    /// 1: no page moves from this node any more; 0: that ends.
    Still,
    /// Asks whether this rank of the node is alive; the second number is the tag of the answer (`passing`).
    Alive,
    /// Drops the copy that this node has of a page of another one: the number.
    DropCopy,
    /// No node has a copy any more of this page, which the call has locked exclusively. It has no reply.
    Recalled,
}

impl Kind {
    /// Returns whether a reply follows.
    pub fn has_reply(self) -> bool {
        !matches!(self, Kind::Release | Kind::Taken | Kind::Recalled | Kind::Bye)
    }
}

const KINDS: [Kind; 21] = [
    Kind::Hello,
    Kind::Write,
    Kind::Read,
    Kind::Release,
    Kind::DropClean,
    Kind::Discard,
    Kind::Size,
    Kind::Grow,
    Kind::PointerAdd,
    Kind::PointerSet,
    Kind::Pointer,
    Kind::Stats,
    Kind::Bye,
    Kind::Reply,
    Kind::Settle,
    Kind::AgreeSize,
    Kind::Taken,
    Kind::Still,
    Kind::Alive,
    Kind::DropCopy,
    Kind::Recalled,
];

/// A message in the form in which it was received.
#[derive(Debug)]
pub struct Message {
    /// The kind of the message.
    pub kind: Kind,
    /// First number.
    pub number: u64,
    /// Second number.
    pub second: u64,
    /// Ranges.
    pub extents: Vec<Extent>,
    /// Data.
    pub data: Vec<u8>,
}

fn lost(error: std::io::Error) -> Error {
    Error::Os { doing: "talk to another node", errno: error.raw_os_error().unwrap_or(libc::ECONNRESET) }
}

/// The part of a message before its data.
pub fn head(kind: Kind, numbers: (u64, u64), extents: &[Extent], data: &[u8]) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD_BYTES + extents.len() * 16);
    head.extend_from_slice(&MAGIC.to_le_bytes());
    head.extend_from_slice(&(kind as u32).to_le_bytes());
    for number in [numbers.0, numbers.1, extents.len() as u64, data.len() as u64] {
        head.extend_from_slice(&number.to_le_bytes());
    }
    for e in extents {
        head.extend_from_slice(&e.offset.to_le_bytes());
        head.extend_from_slice(&e.length.to_le_bytes());
    }
    head
}

/// Sends a message.
pub fn send(to: &mut impl Write, kind: Kind, numbers: (u64, u64), extents: &[Extent], data: &[u8]) -> Outcome {
    let head = head(kind, numbers, extents, data);
    to.write_all(&head).map_err(lost)?;
    to.write_all(data).map_err(lost)
}

/// The contents of a head.
struct Head {
    kind: Kind,
    numbers: (u64, u64),
    extents: usize,
    bytes: usize,
}

/// Reads a head; what is none, or announces too much, is an error.
fn read_head(head: &[u8; HEAD_BYTES]) -> Outcome<Head> {
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap_or_default());
    let long = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().unwrap_or_default());
    let kind = KINDS.iter().find(|k| **k as u32 == word(4)).copied();
    let (count, bytes) = (long(24), long(32));
    match kind {
        Some(kind) if word(0) == MAGIC && count <= MAX_EXTENTS as u64 && bytes <= MAX_DATA as u64 => {
            Ok(Head { kind, numbers: (long(8), long(16)), extents: count as usize, bytes: bytes as usize })
        }
        _ => Err(Error::Os { doing: "understand another node", errno: libc::EPROTO }),
    }
}

/// Returns how long the message is that begins with these bytes, which have all of its head.
pub fn length(bytes: &[u8]) -> Outcome<usize> {
    let whole = bytes.first_chunk().ok_or(Error::Os { doing: "understand another node", errno: libc::EPROTO })?;
    let head = read_head(whole)?;
    Ok(HEAD_BYTES + head.extents * 16 + head.bytes)
}

/// Receives a message; what is none, or too large, is an error.
pub fn receive(from: &mut impl Read) -> Outcome<Message> {
    receive_within(from, MAX_EXTENTS, MAX_DATA)
}

/// Receives the first message of a connection. The peer is unknown and may announce any length, so no more is accepted
/// than a greeting needs.
pub fn receive_hello(from: &mut impl Read) -> Outcome<Message> {
    receive_within(from, 1, 0)
}

fn receive_within(from: &mut impl Read, most_extents: usize, most_bytes: usize) -> Outcome<Message> {
    let mut head = [0u8; HEAD_BYTES];
    from.read_exact(&mut head).map_err(lost)?;
    let Head { kind, numbers, extents: count, bytes } = read_head(&head)?;
    if count > most_extents || bytes > most_bytes {
        return Err(Error::Os { doing: "understand another node", errno: libc::EPROTO });
    }
    let mut extents = vec![0u8; count * 16];
    from.read_exact(&mut extents).map_err(lost)?;
    let extents = extents
        .chunks_exact(16)
        .map(|c| Extent {
            offset: u64::from_le_bytes(c[..8].try_into().unwrap_or_default()),
            length: u64::from_le_bytes(c[8..].try_into().unwrap_or_default()),
        })
        .collect();
    let mut data = Vec::new();
    from.take(bytes as u64).read_to_end(&mut data).map_err(lost)?;
    if data.len() != bytes {
        return Err(Error::Os { doing: "talk to another node", errno: libc::ECONNRESET });
    }
    Ok(Message { kind, number: numbers.0, second: numbers.1, extents, data })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: messages arrive as they were sent, and foreign bytes are refused without a panic or a huge allocation.
    /// Method: a round trip; then every byte of the message is changed, and every length is tried.
    #[test]
    fn messages_survive_and_others_are_refused() {
        let extents = [Extent { offset: 5, length: 3 }, Extent { offset: u64::MAX, length: 0 }];
        let mut bytes = Vec::new();
        send(&mut bytes, Kind::Write, (7, 9), &extents, b"abc").unwrap();
        let back = receive(&mut bytes.as_slice()).unwrap();
        assert_eq!((back.kind, back.number, back.second), (Kind::Write, 7, 9));
        assert_eq!((back.extents.as_slice(), back.data.as_slice()), (extents.as_slice(), b"abc".as_slice()));
        for (extents, data) in [(&extents[..1], b"".as_slice()), (&extents, b""), (&[], b"a")] {
            let mut bytes = Vec::new();
            send(&mut bytes, Kind::Hello, (7, 9), extents, data).unwrap();
            assert_eq!(receive_hello(&mut bytes.as_slice()).is_ok(), extents.len() == 1, "no more than a greeting");
        }
        for at in 0..bytes.len() {
            assert!(receive(&mut &bytes[..at]).is_err());
            for bit in 0..8 {
                let mut other = bytes.clone();
                other[at] ^= 1 << bit;
                let _ = receive(&mut other.as_slice());
            }
        }
    }
}
