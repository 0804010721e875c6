//! The frame: a fixed 48-byte header, a postcard body, then payload bytes.
//!
//! Owns: the header's layout and all checks of the header. Does not own: reading and writing of streams (`transport`).
//! Invariants: a header that `Head::parse` returns is within all bounds, so lengths in it may be allocated; the
//! checksum covers header and body. The payload has a checksum of its own where the connection can damage it. A sealed
//! frame has neither: the channel that it travels in protects it (`transport::secure`).
//!
//! 48 bytes: the smallest multiple of 16 that holds the fields with room for a payload checksum.

use crate::handshake::HANDSHAKE_BODY_MAX;
use crate::{Lane, RequestId, VERSION};
use amphi_types::{TargetId, limits};
use serde::{Serialize, de::DeserializeOwned};
use std::fmt;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Value of `deadline_ms` that means that the caller waits no more: the server answers only if the answer exists
/// already.
pub const DEADLINE_PASSED_MS: u32 = 1;

/// Bytes of a header.
pub const HEAD_BYTES: usize = 48;
/// First four bytes of every frame: `AMPH`.
pub const MAGIC: [u8; 4] = *b"AMPH";
/// The number of bytes between an aligned address and a payload is below this; `pad` is that number.
pub const PAD_LIMIT: u16 = limits::BLOCK as u16;
/// Offset of the checksum in the header; it covers the bytes before it and the body.
const CRC_AT: usize = 44;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHead {
    magic: [u8; 4],
    version: U16,
    kind: u8,
    lane: u8,
    slot: U16,
    target: U16,
    pad: U16,
    reserved: U16,
    seq: U64,
    deadline_ms: U32,
    body_len: U32,
    payload_len: U32,
    payload_crc: U32,
    sums: u8,
    reserved_end: [u8; 3],
    crc: U32,
}

const _: () = assert!(size_of::<RawHead>() == HEAD_BYTES);

macro_rules! kinds {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        /// The kind of a frame.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum FrameKind { $(#[doc = $text] $name = $code,)* }
        impl FrameKind {
            /// Every kind.
            pub const ALL: &'static [FrameKind] = &[$(FrameKind::$name,)*];
            fn from_code(code: u8) -> Option<FrameKind> { match code { $($code => Some(FrameKind::$name),)* _ => None } }
        }
    };
}

kinds! {
    Challenge = 1, "First frame of the server: its nonce.";
    Hello = 2, "First frame of the client.";
    Welcome = 3, "The server accepts.";
    Refuse = 4, "The server does not accept; it closes after this frame.";
    Request = 5, "A request, with its payload.";
    Reply = 6, "The answer to the request of the same slot and sequence number, with its payload.";
    Push = 7, "The server asks unasked.";
    Bye = 8, "The sender ends the connection in order.";
    Ping = 9, "Asks for a `Pong`.";
    Pong = 10, "Answers a `Ping`.";
}

impl FrameKind {
    /// Returns whether the frame belongs to the handshake.
    pub fn is_handshake(self) -> bool {
        matches!(self, FrameKind::Challenge | FrameKind::Hello | FrameKind::Welcome | FrameKind::Refuse)
    }

    /// Most bytes of the body of a frame of this kind.
    pub fn body_max(self) -> usize {
        match self {
            FrameKind::Request | FrameKind::Reply | FrameKind::Push => limits::BODY_MAX,
            FrameKind::Bye | FrameKind::Ping | FrameKind::Pong => 0,
            _ => HANDSHAKE_BODY_MAX,
        }
    }

    /// Most bytes of the payload of a frame of this kind.
    pub fn payload_max(self) -> usize {
        match self {
            FrameKind::Request | FrameKind::Reply => limits::PAYLOAD_MAX,
            _ => 0,
        }
    }
}

/// The place of a payload that is not in the stream: it is in memory that the client has passed to the server
/// (docs/design/shared_memory.md). Pages are counted from its start; `Head::pad` is the place within the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The `payload_len` bytes of the payload begin on this page of the passed memory.
    At(u32),
    /// The frame is a request without a payload, and that of its reply may be put there: `payload_len` bytes at most.
    ForReply(u32),
}

/// A header as values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The kind of the frame.
    pub kind: FrameKind,
    /// The lane whose credits the frame uses.
    pub lane: Lane,
    /// The request to which the frame belongs; zeros for kinds other than request and reply.
    pub id: RequestId,
    /// Which target executes the request; repeats the body's, so that a router need not decode it.
    pub target: TargetId,
    /// The payload belongs this many bytes after an aligned address: its file offset modulo 4096.
    pub pad: u16,
    /// Milliseconds the sender still waits, 0 = without bound.
    pub deadline_ms: u32,
    /// Bytes of the body.
    pub body_len: u32,
    /// Bytes of the payload, or of the place that there is for that of the reply.
    pub payload_len: u32,
    /// The place of these bytes, if they are not in the stream.
    pub place: Option<Place>,
    /// CRC-32C of the payload, where the connection is one that can damage it.
    pub payload_crc: Option<u32>,
    /// The frame has no checksums: the channel protects all of it.
    pub sealed: bool,
}

/// The reason why bytes are not a frame. Every one ends the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameError {
    /// The peer does not speak this protocol.
    Magic {
        /// The bytes that came instead of `AMPH`.
        found: [u8; 4],
    },
    /// The peer speaks another version.
    Version {
        /// The version that the peer speaks.
        found: u16,
    },
    /// No such kind of frame.
    Kind {
        /// The code that was found.
        found: u8,
    },
    /// No such lane.
    Lane {
        /// The code that was found.
        found: u8,
    },
    /// `pad` is not below 4096.
    Pad {
        /// The value that came.
        found: u16,
    },
    /// Bytes that must be zero are not.
    Reserved,
    /// The body is longer than its kind allows.
    BodyTooLong {
        /// Kind of the frame.
        kind: FrameKind,
        /// Bytes announced.
        len: u32,
    },
    /// The payload is longer than its kind allows.
    PayloadTooLong {
        /// Kind of the frame.
        kind: FrameKind,
        /// Bytes announced.
        len: u32,
    },
    /// The checksum of header and body does not fit.
    Checksum {
        /// The checksum in the header.
        found: u32,
        /// The checksum of the bytes that arrived.
        computed: u32,
    },
    /// The payload is not what was sent.
    PayloadDamaged {
        /// The checksum in the header.
        found: u32,
        /// The checksum of the bytes that arrived.
        computed: u32,
    },
    /// The body is not a message of its kind.
    Undecodable {
        /// Kind of the frame.
        kind: FrameKind,
        /// The message of the decoder.
        why: postcard::Error,
    },
    /// The body continues after its message.
    Trailing {
        /// Kind of the frame.
        kind: FrameKind,
        /// The number of bytes behind the end of the message.
        bytes: usize,
    },
    /// Header and body name different targets.
    Target,
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::Magic { found } => write!(f, "foreign bytes: a frame starts with {found:02x?}"),
            FrameError::Version { found } => {
                write!(f, "the peer speaks protocol version {found}, this program speaks {VERSION}")
            }
            FrameError::Kind { found } => write!(f, "unknown kind of frame {found}"),
            FrameError::Lane { found } => write!(f, "unknown lane {found}"),
            FrameError::Pad { found } => write!(f, "payload pad {found} is not below {PAD_LIMIT}"),
            FrameError::Reserved => f.write_str("reserved bytes of the header are not zero"),
            FrameError::BodyTooLong { kind, len } => {
                write!(f, "{kind:?} body of {len} bytes, at most {} are allowed", kind.body_max())
            }
            FrameError::PayloadTooLong { kind, len } => {
                write!(f, "{kind:?} payload of {len} bytes, at most {} are allowed", kind.payload_max())
            }
            FrameError::Checksum { found, computed } => {
                write!(f, "checksum {found:#010x} in the header, {computed:#010x} computed")
            }
            FrameError::PayloadDamaged { found, computed } => write!(
                f,
                "a payload was damaged on its way, and is sent again: checksum {found:#010x} when it was sent, \
                 {computed:#010x} when it came"
            ),
            FrameError::Undecodable { kind, why } => write!(f, "{kind:?} body cannot be decoded: {why}"),
            FrameError::Trailing { kind, bytes } => write!(f, "{bytes} bytes after the message of a {kind:?}"),
            FrameError::Target => f.write_str("header and body name different targets"),
        }
    }
}

impl std::error::Error for FrameError {}

/// The reason why a frame cannot be encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncodeError {
    /// The frame does not fit into the given memory.
    Full,
    /// Body or payload are beyond the bounds of its kind.
    TooLarge,
}

fn lane_code(lane: Lane) -> u8 {
    match lane {
        Lane::Normal | Lane::Locking => 0,
        Lane::Urgent | Lane::Answer => 1,
    }
}

/// The checksum of a payload: CRC-32C, which the processor computes at some 20 GB/s.
pub fn payload_sum(payload: &[u8]) -> u32 {
    crc32c::crc32c(payload)
}

impl Head {
    /// A header without request, body and payload.
    pub fn new(kind: FrameKind) -> Head {
        let id = RequestId { slot: 0, seq: 0 };
        let target = TargetId(0);
        Head {
            kind,
            lane: Lane::Normal,
            id,
            target,
            pad: 0,
            deadline_ms: 0,
            body_len: 0,
            payload_len: 0,
            place: None,
            payload_crc: None,
            sealed: false,
        }
    }

    /// Bytes of the payload that follow in the stream.
    pub fn inline_len(&self) -> usize {
        if self.place.is_some() { 0 } else { self.payload_len as usize }
    }

    /// Checks the header's bytes; the checksum waits for the body (`check`).
    pub fn parse(bytes: &[u8; HEAD_BYTES]) -> Result<Head, FrameError> {
        let raw = RawHead::ref_from_bytes(bytes).expect("the array has the size of the struct");
        if raw.magic != MAGIC {
            return Err(FrameError::Magic { found: raw.magic });
        }
        if u32::from(raw.version.get()) != VERSION {
            return Err(FrameError::Version { found: raw.version.get() });
        }
        let kind = FrameKind::from_code(raw.kind).ok_or(FrameError::Kind { found: raw.kind })?;
        let lane = match raw.lane {
            0 => Lane::Normal,
            1 => Lane::Urgent,
            found => return Err(FrameError::Lane { found }),
        };
        let pad = raw.pad.get();
        if pad >= PAD_LIMIT {
            return Err(FrameError::Pad { found: pad });
        }
        let (payload_crc, sealed, place) = match (raw.sums, raw.payload_crc.get()) {
            (0, 0) => (None, false, None),
            (1, crc) => (Some(crc), false, None),
            (2, 0) if raw.crc.get() == 0 => (None, true, None),
            (3, page) if matches!(kind, FrameKind::Request | FrameKind::Reply) => (None, false, Some(Place::At(page))),
            (4, page) if kind == FrameKind::Request => (None, false, Some(Place::ForReply(page))),
            _ => return Err(FrameError::Reserved),
        };
        if raw.reserved.get() != 0 || raw.reserved_end != [0; 3] {
            return Err(FrameError::Reserved);
        }
        let (body_len, payload_len) = (raw.body_len.get(), raw.payload_len.get());
        if body_len as usize > kind.body_max() {
            return Err(FrameError::BodyTooLong { kind, len: body_len });
        }
        if payload_len as usize > kind.payload_max() {
            return Err(FrameError::PayloadTooLong { kind, len: payload_len });
        }
        Ok(Head {
            kind,
            lane,
            id: RequestId { slot: raw.slot.get(), seq: raw.seq.get() },
            target: TargetId(raw.target.get()),
            pad,
            deadline_ms: raw.deadline_ms.get(),
            body_len,
            payload_len,
            place,
            payload_crc,
            sealed,
        })
    }

    /// Compares the checksum in `head`, the bytes given to `parse`, with them and `body`. A sealed frame has none, and
    /// is refused.
    pub fn check(head: &[u8; HEAD_BYTES], body: &[u8]) -> Result<(), FrameError> {
        let raw = RawHead::ref_from_bytes(head).expect("the array has the size of the struct");
        if raw.sums == 2 {
            return Err(FrameError::Reserved);
        }
        let found = raw.crc.get();
        let computed = crc32c::crc32c_append(crc32c::crc32c(&head[..CRC_AT]), body);
        if computed == found { Ok(()) } else { Err(FrameError::Checksum { found, computed }) }
    }

    /// Compares the payload with its checksum, if the frame has one.
    pub fn check_payload(&self, payload: &[u8]) -> Result<(), FrameError> {
        let Some(found) = self.payload_crc else { return Ok(()) };
        let computed = payload_sum(payload);
        if computed == found { Ok(()) } else { Err(FrameError::PayloadDamaged { found, computed }) }
    }

    /// Decodes the message of `body`, which must use all of its bytes.
    pub fn decode<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, FrameError> {
        match postcard::take_from_bytes(body) {
            Ok((message, [])) => Ok(message),
            Ok((_, rest)) => Err(FrameError::Trailing { kind: self.kind, bytes: rest.len() }),
            Err(why) => Err(FrameError::Undecodable { kind: self.kind, why }),
        }
    }

    fn seal(&self, out: &mut [u8], body_len: usize) {
        debug_assert!(self.place.is_none() || !self.sealed, "a channel protects what is in the stream");
        let (sums, extra) = match (self.place, self.payload_crc) {
            _ if self.sealed => (2, 0),
            (Some(Place::At(page)), _) => (3, page),
            (Some(Place::ForReply(page)), _) => (4, page),
            (None, Some(crc)) => (1, crc),
            (None, None) => (0, 0),
        };
        let raw = RawHead {
            magic: MAGIC,
            version: U16::new(VERSION as u16),
            kind: self.kind as u8,
            lane: lane_code(self.lane),
            slot: U16::new(self.id.slot),
            target: U16::new(self.target.0),
            pad: U16::new(self.pad),
            reserved: U16::ZERO,
            seq: U64::new(self.id.seq),
            deadline_ms: U32::new(self.deadline_ms),
            body_len: U32::new(body_len as u32),
            payload_len: U32::new(self.payload_len),
            payload_crc: U32::new(extra),
            sums,
            reserved_end: [0; 3],
            crc: U32::ZERO,
        };
        out[..HEAD_BYTES].copy_from_slice(raw.as_bytes());
        if self.sealed {
            return;
        }
        let (head, body) = out[..HEAD_BYTES + body_len].split_at_mut(HEAD_BYTES);
        let crc = crc32c::crc32c_append(crc32c::crc32c(&head[..CRC_AT]), body);
        head[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    }

    /// Writes header and body to the front of `out` and returns their length. `body_len` of the header is ignored, the
    /// other fields are taken unchanged.
    pub fn encode<T: Serialize + ?Sized>(&self, body: &T, out: &mut [u8]) -> Result<usize, EncodeError> {
        if self.payload_len as usize > self.kind.payload_max() {
            return Err(EncodeError::TooLarge);
        }
        let room = out.get_mut(HEAD_BYTES..).ok_or(EncodeError::Full)?;
        let body_max = self.kind.body_max();
        let bounded = room.len() >= body_max;
        let limit = room.len().min(body_max);
        let body_len = match postcard::to_slice(body, &mut room[..limit]) {
            Ok(written) => written.len(),
            Err(_) if bounded => return Err(EncodeError::TooLarge),
            Err(_) => return Err(EncodeError::Full),
        };
        self.seal(out, body_len);
        Ok(HEAD_BYTES + body_len)
    }

    /// Writes a frame without a body to the front of `out` and returns its length.
    pub fn encode_bare(&self, out: &mut [u8]) -> Result<usize, EncodeError> {
        if out.len() < HEAD_BYTES {
            return Err(EncodeError::Full);
        }
        self.seal(out, 0);
        Ok(HEAD_BYTES)
    }
}
