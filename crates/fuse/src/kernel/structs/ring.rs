//! Structures of FUSE over io_uring.

use std::mem::size_of;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

wire! {
    /// What the heads of a ring entry end with.
    RingInOut, 32 {
        /// None are defined.
        flags: u64,
        /// What a reply names the request by.
        commit_id: u64,
        /// Bytes of payload that came with the request, or go with the reply.
        payload_bytes: u32,
        /// Zero.
        padding: u32,
        /// Zero.
        reserved: u64,
    }
}

wire! {
    /// What a command says beside its memory.
    RingCommand, 24 {
        /// None are defined.
        flags: u64,
        /// The request that a reply is to; 0 when an entry is registered.
        commit_id: u64,
        /// The queue.
        queue: u16,
        /// Zero.
        padding: [u8; 6],
    }
}
