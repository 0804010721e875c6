//! `Entry`: memory that the kernel puts a request in and takes its reply from, and a ring of io_uring to hand it to and fro.
//!
//! Owns: the layout of that memory and the two commands, register, and commit and fetch. Does not own: what a request means.
//!
//! The heads lie at the begin of the memory, the payload from `PAYLOAD_AT` on. A request that has come is put together as one message, its header
//! and arguments right before its payload, as the device gives it: only these few bytes move.
//!
//! Invariant: between a command and its completion the memory is the kernel's, and nothing here looks at it. Memory is not given back to the
//! system's huge pages: most entries never see more than a few pages of payload.
#![expect(unsafe_code, reason = "a command names memory that the kernel writes to while it is under way")]

use super::{PAGE, raw};
use crate::Buf;
use crate::data::PAYLOAD_AT;
use crate::kernel::structs::{InHeader, OutHeader, RingCommand, RingInOut};
use crate::kernel::{RING_ARGUMENTS_AT, RING_COMMIT_AND_FETCH, RING_HEADS_BYTES, RING_IN_OUT_AT, RING_REGISTER};
use crate::reply::{Body, Staged};
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::io::Errno as Raw;
use rustix::mm::{Advice, madvise};
use std::io;
use std::mem::size_of;
use std::os::fd::OwnedFd;
use zerocopy::{FromBytes, IntoBytes};

/// Where the number of memory ranges lies in a command, bytes.
const COMMAND_LEN_AT: usize = 24;
const HEADER_BYTES: usize = size_of::<InHeader>();
const ARGUMENTS_MAX_BYTES: usize = RING_IN_OUT_AT - RING_ARGUMENTS_AT;
const _: () = assert!(RING_HEADS_BYTES + HEADER_BYTES + ARGUMENTS_MAX_BYTES <= PAYLOAD_AT);

/// What one thread exchanges requests and replies with.
pub(in crate::session) struct Entry {
    ring: IoUring<Entry128, cqueue::Entry>,
    memory: Buf,
    payload_bytes: usize,
    queue: usize,
    /// The heads and the payload, for the kernel to read when the entry is registered.
    ranges: Box<[libc::iovec; 2]>,
    /// The request that the memory holds.
    commit_id: u64,
    unique: u64,
}

// SAFETY: the addresses in `ranges` are those of `memory`, which goes with them.
unsafe impl Send for Entry {}

impl Entry {
    /// For requests of `queue` with up to `payload_bytes` bytes of payload, whole pages.
    pub(super) fn new(queue: usize, payload_bytes: usize) -> io::Result<Entry> {
        let ring = IoUring::builder().setup_coop_taskrun().build(2)?;
        let mut memory = Buf::zeroed(PAYLOAD_AT + payload_bytes.next_multiple_of(PAGE));
        let base = memory.as_mut_ptr();
        // SAFETY: all of it is this buffer's memory; the advice changes no content.
        let _ = unsafe { madvise(base.cast(), memory.len(), Advice::LinuxNoHugepage) };
        let range = |at: usize, len| libc::iovec { iov_base: base.wrapping_add(at).cast(), iov_len: len };
        let ranges = Box::new([range(0, RING_HEADS_BYTES), range(PAYLOAD_AT, payload_bytes)]);
        Ok(Entry { ring, memory, payload_bytes, queue, ranges, commit_id: 0, unique: 0 })
    }

    pub(super) fn queue(&self) -> usize {
        self.queue
    }

    pub(super) fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// Gives the entry to the kernel, for a first request.
    pub(super) fn register(&mut self, device: &OwnedFd) -> io::Result<()> {
        self.commit_id = 0;
        self.push(device, RING_REGISTER)
    }

    /// Replies to the request in the memory, and gives the entry back for another one.
    pub(super) fn commit(&mut self, device: &OwnedFd, reply: &Staged) -> io::Result<()> {
        self.memory.set_window(0..self.memory.capacity());
        let len = match reply.body {
            Body::InPlace(len) => len,
            Body::Apart => {
                let len = reply.bytes.len().min(self.payload_bytes);
                self.memory[PAYLOAD_AT..PAYLOAD_AT + len].copy_from_slice(&reply.bytes[..len]);
                len
            }
        };
        let head = OutHeader { len: (size_of::<OutHeader>() + len) as u32, error: reply.error, unique: self.unique };
        self.memory[..size_of::<OutHeader>()].copy_from_slice(head.as_bytes());
        let in_out = RingInOut { commit_id: self.commit_id, payload_bytes: len as u32, ..RingInOut::default() };
        self.memory[RING_IN_OUT_AT..RING_HEADS_BYTES].copy_from_slice(in_out.as_bytes());
        self.push(device, RING_COMMIT_AND_FETCH)
    }

    fn push(&mut self, device: &OwnedFd, command: u32) -> io::Result<()> {
        let said = RingCommand { commit_id: self.commit_id, queue: self.queue as u16, ..RingCommand::default() };
        let mut words = [0; 80];
        words[..size_of::<RingCommand>()].copy_from_slice(said.as_bytes());
        let mut entry = opcode::UringCmd80::new(types::Fd(raw(device)), command)
            .cmd(words)
            .addr(Some(self.ranges.as_ptr() as u64))
            .build();
        const { assert!(size_of::<Entry128>() == 128) };
        // SAFETY: a submission is 128 plain bytes in the kernel's layout; the number of ranges is a u32 at this place, which the crate has no word for.
        unsafe {
            (&raw mut entry).cast::<u8>().add(COMMAND_LEN_AT).cast::<u32>().write_unaligned(self.ranges.len() as u32)
        };
        // SAFETY: memory and ranges live as long as the ring, which waits for what is under way when it is dropped; until the completion
        // nobody touches the memory.
        unsafe { self.ring.submission().push(&entry) }.map_err(io::Error::other)
    }

    /// Hands over what was pushed without waiting for the next request.
    pub(super) fn submit(&mut self) -> io::Result<()> {
        retry(|| self.ring.submit().map(drop))
    }

    /// Whether a request has come.
    pub(super) fn has_come(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    /// Hands over what was pushed and waits for a request; its bytes are then `memory`'s.
    ///
    /// Errors: the kernel's; the entry is lost then.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        let done = loop {
            if let Some(done) = self.ring.completion().next() {
                break done.result();
            }
            retry(|| self.ring.submit_and_wait(1).map(drop))?;
        };
        if done < 0 { Err(io::Error::from_raw_os_error(-done)) } else { Ok(()) }
    }

    /// Puts the request that has come together as one message, which is then the window of `memory`. Its header, and whether it is one at all.
    pub(super) fn put_together(&mut self) -> (InHeader, bool) {
        self.memory.set_window(0..self.memory.capacity());
        let header =
            InHeader::read_from_prefix(&self.memory).map_or_else(|_| InHeader::default(), |(header, _)| header);
        let said = RingInOut::read_from_prefix(&self.memory[RING_IN_OUT_AT..]);
        let said = said.map_or_else(|_| RingInOut::default(), |(said, _)| said);
        (self.commit_id, self.unique) = (said.commit_id, header.unique);
        let payload = said.payload_bytes as usize;
        let arguments = (header.len as usize).checked_sub(HEADER_BYTES + payload);
        let Some(arguments) = arguments.filter(|&n| n <= ARGUMENTS_MAX_BYTES && payload <= self.payload_bytes) else {
            return (header, false);
        };
        let begin = PAYLOAD_AT - arguments - HEADER_BYTES;
        self.memory.copy_within(..HEADER_BYTES, begin);
        self.memory.copy_within(RING_ARGUMENTS_AT..RING_ARGUMENTS_AT + arguments, begin + HEADER_BYTES);
        self.memory.set_window(begin..PAYLOAD_AT + payload);
        (header, true)
    }

    /// The request, as memory for whoever handles it: read it no more afterwards.
    pub(super) fn memory(&mut self) -> &mut Buf {
        &mut self.memory
    }
}

fn retry(mut enter: impl FnMut() -> io::Result<()>) -> io::Result<()> {
    loop {
        match enter() {
            Err(e) if [Raw::INTR, Raw::AGAIN, Raw::BUSY].iter().any(|r| e.raw_os_error() == Some(r.raw_os_error())) => {
            }
            other => return other,
        }
    }
}
