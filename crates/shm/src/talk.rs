//! Messages between programs and a mount before memory is shared.
//!
//! Owns: the answer to the question which open file a descriptor is (an `ioctl`), and the message by which a program
//! requests memory. Does not own: how they travel (`attach`, `fuse`). Integers have the byte order of the machine: both
//! sides run on it.

/// The `ioctl` that identifies a descriptor: `_IOR('A', 10, Identity)`.
pub const IDENTIFY: u32 = 2 << 30 | (size_of::<Identity>() as u32) << 16 | (b'A' as u32) << 8 | 10;
/// The `ioctl` that identifies a descriptor whose writes are to be posted: `_IOR('A', 11, Identity)`.
pub const IDENTIFY_WRITER: u32 = 2 << 30 | (size_of::<Identity>() as u32) << 16 | (b'A' as u32) << 8 | 11;
/// The `ioctl` of a program that is about to map a descriptor which it may write to: `_IO('A', 12)`. Writes that are
/// posted to this open file from now on do not move its end, which the kernel uses for mappings.
pub const MAPPED: u32 = (b'A' as u32) << 8 | 12;
/// The prefix of abstract names of sockets; 16 random bytes follow.
pub const SOCKET_PREFIX: &[u8; 6] = b"amphi-";
/// The start of a request.
pub const REQUEST_MAGIC: u64 = u64::from_le_bytes(*b"amphireq");
/// Bit of `Request::wanted`: the board of the mount.
pub const WANT_BOARD: u64 = 1;
/// Bit of `Request::wanted`: the export of the file.
pub const WANT_EXPORT: u64 = 2;

/// Bit of `Request::wanted`: the ring for writes to the file. Not together with `WANT_EXPORT`.
pub const WANT_RING: u64 = 4;

/// What a descriptor is.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// `layout::VERSION`.
    pub version: u32,
    /// 1 if there is an export that reads of this descriptor may be served from, or a ring for its writes; else the
    /// rest is 0.
    pub is_shared: u32,
    /// The handle of the open file.
    pub handle: u32,
    /// The generation of the handle.
    pub generation: u32,
    /// The number of the export or the ring.
    pub export: u64,
    /// The secret in exchange for which the mount gives the memory of the export or the ring.
    pub secret: [u8; 16],
    /// The rest of the name of the socket at which the mount gives that memory.
    pub socket: [u8; 16],
    /// Number of slots.
    pub slots: u64,
}

impl Identity {
    /// The identity as bytes.
    pub fn to_bytes(&self) -> [u8; size_of::<Identity>()] {
        let mut bytes = [0; size_of::<Identity>()];
        bytes[0..4].copy_from_slice(&self.version.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.is_shared.to_ne_bytes());
        bytes[8..12].copy_from_slice(&self.handle.to_ne_bytes());
        bytes[12..16].copy_from_slice(&self.generation.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.export.to_ne_bytes());
        bytes[24..40].copy_from_slice(&self.secret);
        bytes[40..56].copy_from_slice(&self.socket);
        bytes[56..64].copy_from_slice(&self.slots.to_ne_bytes());
        bytes
    }
}

/// A request of a program.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// `REQUEST_MAGIC`.
    pub magic: u64,
    /// `WANT_BOARD`, and `WANT_EXPORT` or `WANT_RING`: the descriptors come in this order.
    pub wanted: u64,
    /// From an `Identity`.
    pub secret: [u8; 16],
}

impl Request {
    /// From received bytes, which may be arbitrary.
    pub fn from_bytes(bytes: &[u8]) -> Option<Request> {
        let bytes: &[u8; size_of::<Request>()] = bytes.try_into().ok()?;
        let word = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let request = Request { magic: word(0)?, wanted: word(8)?, secret: bytes.get(16..32)?.try_into().ok()? };
        let is_known = request.magic == REQUEST_MAGIC && matches!(request.wanted, 1..=5);
        is_known.then_some(request)
    }

    /// The request as bytes.
    pub fn to_bytes(&self) -> [u8; size_of::<Request>()] {
        let mut bytes = [0; size_of::<Request>()];
        bytes[..8].copy_from_slice(&self.magic.to_ne_bytes());
        bytes[8..16].copy_from_slice(&self.wanted.to_ne_bytes());
        bytes[16..].copy_from_slice(&self.secret);
        bytes
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Goal: a received message is either refused or exactly the one that was sent. Method: arbitrary bytes, and
        /// real requests with one byte changed.
        #[test]
        fn requests_are_whole(bytes in proptest::collection::vec(any::<u8>(), 0..64), at in 0usize..32, to in any::<u8>()) {
            if let Some(request) = Request::from_bytes(&bytes) {
                prop_assert_eq!(&request.to_bytes()[..], &bytes[..]);
            }
            let request = Request { magic: REQUEST_MAGIC, wanted: WANT_BOARD | WANT_EXPORT, secret: [7; 16] };
            prop_assert_eq!(Request::from_bytes(&request.to_bytes()), Some(request));
            let mut forged = request.to_bytes();
            forged[at] = to;
            if let Some(read) = Request::from_bytes(&forged) {
                prop_assert_eq!(read.to_bytes(), forged);
            }
        }
    }
}
