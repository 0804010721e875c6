//! The kernel's FUSE protocol, version 7.45: numbers, flags and structures, nothing else.
//!
//! Owns: the binary interface of `/dev/fuse` as Linux documents it (`structs`), operation codes (`opcode`) and flag
//! bits (`flags`). Does not own: parsing of whole requests (`request`) or anything that does I/O.
//!
//! Invariants: every structure is plain bytes (`zerocopy`), has the size that the kernel documents (asserted at compile
//! time in `structs`), and has no padding without a name. The protocol is defined here because published crates stop at
//! version 7.31. They lack statx, tmpfile, syncfs, request extensions, and flags beyond bit 31.

pub mod flags;
pub mod opcode;
pub mod structs;

/// Major version of the protocol.
pub const MAJOR: u32 = 7;
/// Minor version of this implementation. With an older kernel, the kernel's minor version is in force.
pub const MINOR: u32 = 45;
/// Oldest minor version that is served. 7.36 brought the extended INIT, without which shared mappings are not possible.
pub const MINOR_MIN: u32 = 36;
/// Bytes before the payload of a WRITE: the header of the request, and the arguments.
pub const WRITE_HEAD_BYTES: usize = 80;
/// `ioctl` number that binds another open `/dev/fuse` to the same mount: `_IOR(229, 0, u32)`.
pub const DEV_IOC_CLONE: u64 = 0x8004_e500;
