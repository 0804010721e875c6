//! `Receive`: the memory in which a reader thread receives requests.
//!
//! Owns: the receive buffer and a spare unit of the page cache, and the prediction in which of the two the next payload
//! belongs, and where in a page. Does not own: when requests are read, and their further meaning.
//!
//! The receive buffer is one allocation. The header of a WRITE ends where its payload begins. So one `read` puts the
//! payload into memory that a disk or a peer can use directly. For that, the payload has to have the same offset within
//! its page as within its block of the file. The payload is placed at the page boundary (`PAYLOAD_AT`), or behind it by
//! as many bytes as the last WRITE extended into its block (`Ahead`). The second is for streams of odd lengths, and for
//! files with a head of a few bytes.
//!
//! After a WRITE of exactly one unit, the next `read` puts the first bytes after the header into the spare unit, whose
//! memory the cache can keep. If the request turns out to be another one, these bytes are copied to where they belong,
//! without a visible difference.
//!
//! Invariants: the window of the buffer is the request, without the payload if that lies in the unit. In that case the
//! payload is one whole unit.
//!
//! The numbers behind it: streams of writes of 16 MiB and 8 bytes are 1.25 times as fast over a socket if their payload
//! is placed in this way. Copying 64 KiB takes 3 us, or 8 us if the target memory is in no cache of the processor. A
//! write that does nothing takes 13 us.

use crate::data::{PAYLOAD_AT, TAKE_COPY_MAX_BYTES};
use crate::kernel::WRITE_HEAD_BYTES;
use crate::kernel::opcode::Opcode;
use crate::kernel::structs::{InHeader, WriteIn};
use amphi_client::Buf;
use amphi_client::UNIT_BYTES;
use rustix::io::{Errno as Raw, IoSliceMut, read, readv};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use zerocopy::FromBytes;

/// The offset at which a request begins in a receive buffer.
const HEAD_AT: usize = PAYLOAD_AT - WRITE_HEAD_BYTES;
const _: () = assert!((PAYLOAD_AT as u64).is_multiple_of(BLOCK), "the payload of a request begins a block");
const BLOCK: u64 = 4096;

/// The offset at which the next WRITE is expected to begin: at the end of the last large one, or of a write that
/// continued it. All readers of a mount share it, because any of them may get the calls of one program.
#[derive(Debug, Default)]
pub(super) struct Ahead(AtomicU64);

impl Ahead {
    /// Distance in bytes from the begin of its block.
    fn in_block(&self) -> usize {
        (self.0.load(Relaxed) % BLOCK) as usize
    }

    fn note(&self, write: &WriteIn) {
        let large = write.size as usize > TAKE_COPY_MAX_BYTES;
        if large || write.offset == self.0.load(Relaxed) {
            self.0.store(write.offset.wrapping_add(u64::from(write.size)), Relaxed);
        }
    }
}

/// The memory of one reader thread.
#[derive(Debug)]
pub(super) struct Receive {
    request: Buf,
    unit: Buf,
    ahead: Arc<Ahead>,
    /// Payload bytes of the largest request.
    payload_max_bytes: usize,
    /// Whether the last request with bytes after the header of a WRITE was a write of one unit. The next request may
    /// then be such a request too.
    expects_unit: bool,
    /// The payload of the present request is in `unit`.
    in_unit: bool,
}

impl Receive {
    /// Memory for payloads of up to `payload_max_bytes`, allocated when it is needed.
    pub(super) fn new(payload_max_bytes: usize, ahead: Arc<Ahead>) -> Receive {
        Receive {
            request: Buf::default(),
            unit: Buf::default(),
            ahead,
            payload_max_bytes,
            expects_unit: false,
            in_unit: false,
        }
    }

    /// Reads one request and returns its length. `keeps_units`: its handler may keep the memory of a unit.
    ///
    /// Errors: those of the device. After an error there is no request in the buffer.
    pub(super) fn read(&mut self, device: impl AsFd, keeps_units: bool) -> Result<usize, Raw> {
        self.prepare();
        self.in_unit = false;
        let scattered = keeps_units && self.expects_unit && self.payload_max_bytes >= UNIT_BYTES;
        let len = if scattered {
            if self.unit.room() != (0..UNIT_BYTES) {
                self.unit = Buf::scratch(UNIT_BYTES);
            }
            self.unit.set_window(0..UNIT_BYTES);
            let (head, payload) = self.request.split_at_mut(WRITE_HEAD_BYTES);
            let behind = &mut payload[UNIT_BYTES..];
            readv(device, &mut [IoSliceMut::new(head), IoSliceMut::new(&mut self.unit), IoSliceMut::new(behind)])?
        } else {
            read(device, &mut self.request[..])?
        };
        self.request.narrow(0..len);
        if len > WRITE_HEAD_BYTES {
            let write = write_of(&self.request);
            write.iter().for_each(|w| self.ahead.note(w));
            self.expects_unit = write.is_some_and(|w| w.size as usize == UNIT_BYTES);
            self.in_unit = scattered;
            if !self.expects_unit {
                self.gather();
            }
        }
        assert!(!self.in_unit || self.unit.len() == UNIT_BYTES, "a payload of {} bytes in a unit", self.unit.len());
        Ok(len)
    }

    /// Makes memory for any request ready, with all of it as the window.
    fn prepare(&mut self) {
        let bytes = PAYLOAD_AT + self.payload_max_bytes;
        if self.request.capacity() < bytes + BLOCK as usize {
            self.request = Buf::scratch(bytes + BLOCK as usize);
        }
        let behind = self.ahead.in_block();
        self.request.set_window(HEAD_AT + behind..bytes + behind);
    }

    /// Copies the received bytes into the unit, to their usual place in other requests.
    fn gather(&mut self) {
        if std::mem::take(&mut self.in_unit) {
            let payload = &mut self.request[WRITE_HEAD_BYTES..];
            let len = payload.len().min(UNIT_BYTES);
            payload[..len].copy_from_slice(&self.unit[..len]);
        }
    }

    /// The request. If its payload is in a unit, the bytes behind the head of a WRITE are arbitrary.
    pub(super) fn request(&self) -> &[u8] {
        &self.request
    }

    /// The request, and its payload if that is in a unit. Both now belong to the handler, so they must not be read here
    /// afterwards.
    pub(super) fn memory(&mut self) -> (&mut Buf, Option<&mut Buf>) {
        (&mut self.request, if self.in_unit { Some(&mut self.unit) } else { None })
    }

    /// The request in a buffer of its own. A small request is copied.
    pub(super) fn detach(&mut self) -> Buf {
        self.gather();
        if self.request.len() <= TAKE_COPY_MAX_BYTES {
            Buf::copy_of(&self.request)
        } else {
            std::mem::take(&mut self.request)
        }
    }

    /// Puts a detached request where requests are handled.
    pub(super) fn attach(&mut self, request: Buf) {
        self.in_unit = false;
        if request.len() > TAKE_COPY_MAX_BYTES {
            self.request = request;
            return;
        }
        self.prepare();
        self.request.narrow(0..request.len());
        self.request.copy_from_slice(&request);
    }
}

/// The arguments of the WRITE, if these bytes are exactly the header and payload of one.
fn write_of(request: &[u8]) -> Option<WriteIn> {
    let (header, rest) = InHeader::read_from_prefix(request).ok()?;
    let (write, payload) = WriteIn::read_from_prefix(rest).ok()?;
    let is_write = header.opcode == Opcode::Write as u32
        && header.len as usize == request.len()
        && header.total_extlen == 0
        && write.size as usize == payload.len();
    is_write.then_some(write)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;
    use zerocopy::IntoBytes;

    const MAX: usize = 256 << 10;

    /// A device that gives whole requests: a socket of datagrams.
    struct Device {
        kernel: UnixDatagram,
        here: UnixDatagram,
        receive: Receive,
        serial: u64,
    }

    impl Device {
        fn new() -> Device {
            let (kernel, here) = UnixDatagram::pair().expect("sockets");
            Device { kernel, here, receive: Receive::new(MAX, Arc::default()), serial: 0 }
        }

        /// A request with `payload` different bytes after the place of the header of a WRITE.
        fn request(&mut self, opcode: Opcode, payload: usize, said: usize, extensions: u16) -> Vec<u8> {
            self.serial += 1;
            let mut header = InHeader { opcode: opcode as u32, unique: self.serial, ..InHeader::default() };
            header.len = (WRITE_HEAD_BYTES + payload) as u32;
            header.total_extlen = extensions;
            let write = WriteIn { size: said as u32, ..WriteIn::default() };
            let mut bytes = [header.as_bytes(), write.as_bytes()].concat();
            assert_eq!(bytes.len(), WRITE_HEAD_BYTES);
            let mut x = self.serial.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            bytes.extend((0..payload).map(|_| {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (x >> 56) as u8
            }));
            bytes
        }

        fn send(&mut self, request: &[u8], keeps_units: bool) {
            self.kernel.send(request).expect("send");
            assert_eq!(self.receive.read(&self.here, keeps_units), Ok(request.len()));
        }

        /// The request as a handler gets it.
        fn seen(&mut self) -> (Vec<u8>, bool) {
            let (request, unit) = self.receive.memory();
            match unit {
                None => (request.to_vec(), false),
                Some(unit) => ([&request[..WRITE_HEAD_BYTES], &unit[..]].concat(), true),
            }
        }
    }

    /// Goal: the second of two writes of one unit is in separate memory, at a page boundary, whatever the first write
    /// left there. If no handler keeps such memory, no separate memory is used. Method: writes between which a handler
    /// leaves other memory, no memory, or memory of a wrong size.
    #[test]
    fn units_come_in_memory_of_their_own() {
        let mut d = Device::new();
        let write = |d: &mut Device| d.request(Opcode::Write, UNIT_BYTES, UNIT_BYTES, 0);
        let first = write(&mut d);
        d.send(&first, true);
        assert_eq!(d.seen(), (first, false));
        let mut narrow = Buf::scratch(UNIT_BYTES);
        narrow.narrow(5..9);
        let (good, small, large) = (Buf::scratch(UNIT_BYTES), Buf::scratch(4096), Buf::scratch(2 * UNIT_BYTES));
        for memory in [narrow, small, Buf::default(), large, good] {
            let next = write(&mut d);
            d.send(&next, true);
            assert_eq!(d.seen(), (next.clone(), true));
            let unit = d.receive.memory().1.expect("in the unit");
            assert_eq!((unit.window(), unit.room(), unit.as_ptr() as usize % 4096), (0..UNIT_BYTES, 0..UNIT_BYTES, 0));
            let taken = std::mem::replace(unit, memory);
            let small = d.request(Opcode::Getattr, 0, 0, 0);
            d.send(&small, true);
            assert_eq!(d.seen(), (small, false));
            assert!(taken[..] == next[WRITE_HEAD_BYTES..], "what was taken stays");
        }
        let last = write(&mut d);
        d.send(&last, false);
        assert_eq!(d.seen(), (last, false));
        let mut tight = Receive::new(UNIT_BYTES - 4096, Arc::default());
        tight.expects_unit = true;
        let small = d.request(Opcode::Write, 4096, 4096, 0);
        d.kernel.send(&small).expect("send");
        assert_eq!(tight.read(&d.here, true), Ok(small.len()));
        assert_eq!(tight.request(), small, "no room for a unit at all");
    }

    /// Goal: after a write of one unit, a request of another kind or length arrives complete and in one piece. Method:
    /// after two writes of a unit, the peer sends each kind of request, WRITEs of other lengths, other operations of
    /// the same length, and what a broken peer may send.
    #[test]
    fn other_requests_are_put_together() {
        let mut d = Device::new();
        let kinds = [
            (Opcode::Write, 1, 1, 0),
            (Opcode::Write, 4096, 4096, 0),
            (Opcode::Write, UNIT_BYTES - 1, UNIT_BYTES - 1, 0),
            (Opcode::Write, UNIT_BYTES + 1, UNIT_BYTES + 1, 0),
            (Opcode::Write, UNIT_BYTES + 4096, UNIT_BYTES + 4096, 0),
            (Opcode::Write, 150_000, 150_000, 0),
            (Opcode::Write, UNIT_BYTES, UNIT_BYTES - 8, 1),
            (Opcode::Write, UNIT_BYTES, UNIT_BYTES, 1),
            (Opcode::Write, UNIT_BYTES, UNIT_BYTES - 8, 0),
            (Opcode::Setxattr, UNIT_BYTES, UNIT_BYTES, 0),
            (Opcode::Lookup, 100, 0, 0),
        ];
        for kind in kinds {
            for _ in 0..2 {
                let write = d.request(Opcode::Write, UNIT_BYTES, UNIT_BYTES, 0);
                d.send(&write, true);
                assert_eq!(d.seen().0, write);
            }
            assert!(d.receive.expects_unit);
            let other = d.request(kind.0, kind.1, kind.2, kind.3);
            d.send(&other, true);
            assert_eq!(d.seen(), (other, false), "{kind:?}");
            assert!(!d.receive.expects_unit, "{kind:?}");
        }
        let short = d.request(Opcode::Getattr, 0, 0, 0)[..50].to_vec();
        d.send(&short, true);
        assert_eq!(d.seen(), (short, false));
    }

    /// Goal: a request that is put aside is unchanged when another thread takes it, and the memory that it left can be
    /// used again. Method: requests of random sizes, of which every second one goes through a second reader's memory.
    #[test]
    fn detached_requests_stay_whole() {
        let (mut d, mut other) = (Device::new(), Receive::new(MAX, Arc::default()));
        let sizes = [UNIT_BYTES, UNIT_BYTES, UNIT_BYTES, 4096, 0, 20_000, 40_000, UNIT_BYTES, UNIT_BYTES, 170_000];
        for round in 0..60 {
            let size = sizes[round * 7 % sizes.len()];
            let request = d.request(Opcode::Write, size, size, 0);
            d.send(&request, true);
            if round % 2 == 0 {
                other.attach(d.receive.detach());
                let (bytes, unit) = other.memory();
                assert!(bytes[..] == request[..] && unit.is_none(), "round {round}");
            } else {
                assert_eq!(d.seen().0, request, "round {round}");
            }
        }
    }

    /// Goal: a write may begin where the last large one ended, or where a small one ended that continued it. Its
    /// payload then has the same offset in its page as in its block, even in another reader's memory. Requests of all
    /// lengths arrive complete there. Method: a stream of odd lengths with small pieces in between, small writes
    /// elsewhere that must change nothing, other requests, and a request that is put aside.
    #[test]
    fn payloads_lie_in_their_pages_as_in_their_blocks() {
        const LARGEST: usize = 40 * 4096;
        let mut d = Device::new();
        d.receive = Receive::new(LARGEST, Arc::default());
        let mut other = Receive::new(LARGEST, d.receive.ahead.clone());
        let write = |d: &mut Device, offset: u64, len: usize| {
            let mut request = d.request(Opcode::Write, len, len, 0);
            request[size_of::<InHeader>() + 8..][..8].copy_from_slice(&offset.to_ne_bytes());
            request
        };
        let mut end = 0;
        for (round, len) in [100_008, 65_536, 65_544, LARGEST, 8, LARGEST, 2104, 40_000, UNIT_BYTES, UNIT_BYTES, 4096]
            .into_iter()
            .enumerate()
        {
            for (offset, len) in [(1 << 40, 999), (end, len)] {
                let request = write(&mut d, offset, len);
                d.send(&request, true);
                let (memory, unit) = d.receive.memory();
                let expected = unit.is_none() && offset == end;
                let payload = unit.map_or(&memory[WRITE_HEAD_BYTES..], |unit| &unit[..]);
                assert!(payload == &request[WRITE_HEAD_BYTES..], "round {round}");
                if expected {
                    assert_eq!(payload.as_ptr() as u64 % 4096, offset % 4096, "round {round}");
                    let whole = memory.window().end.next_multiple_of(4096);
                    assert!(memory.room().end >= whole, "round {round}: no room for the last block");
                }
            }
            end += len as u64;
            let lookup = d.request(Opcode::Lookup, 100, 0, 0);
            d.send(&lookup, true);
            assert_eq!(d.seen(), (lookup.clone(), false));
            other.attach(d.receive.detach());
            assert_eq!(other.request(), lookup);
        }
        let (first, second) = (write(&mut d, end, 50_001), write(&mut d, end + 50_001, 50_000));
        d.send(&first, true);
        d.kernel.send(&second).expect("send");
        assert_eq!(other.read(&d.here, true), Ok(second.len()));
        assert_eq!(other.request(), second);
        assert_eq!(other.request()[WRITE_HEAD_BYTES..].as_ptr() as u64 % 4096, (end + 50_001) % 4096);
    }
}
