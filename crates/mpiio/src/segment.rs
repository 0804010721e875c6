//! The shared memory of one open file: where everything lies in it, and access to its parts.
//!
//! Owns the layout, creation and mapping of the memory and the proof that a rank lives. Does not own any rule about
//! access to its parts: that is `locks` (page metadata, frames) and `file` (the rest).
//!
//! The memory is a memfd of rank 0. The other ranks of the node open it through `/proc/PID/fd`, so it has no name and
//! is freed with its last user, however that ends. It is sparse: a table costs only its touched pages.
//!
//! | part | size | content |
//! |---|---|---|
//! | header | 4096 | magic, nonce, geometry, file size, shared pointer, first late error, ended rank, which file |
//! | ranks | 64 each | word that the rank sleeps on, mode and successor of its queued request, whether it left in order |
//! | stripes | 64 each, one for each rank | mutex of the metadata of pages `p` with `p mod ranks` = stripe |
//! | counters | 256 each | the rank's counters as of its last call, for whoever looks from outside |
//! | directory | 8 x slots | key + 1 of the chunk that lies in this slot, 0: free; found by hashing, never moved |
//! | chunks | slots x entries x 56 | metadata of consecutive pages: readers, writer, queue, frame, node, copies |
//! | frames | 64 + 2 x spans x 8 each | page, number of valid and dirty ranges, count of writes, the ranges |
//! | arena | `page_bytes` each | the bytes of the frames; frames of one rank lie together |
//!
//! The arena begins at a multiple of a huge page, so that huge pages can back it (`mapping`).
//!
//! Each rank holds a lock of its open file description on byte `rank` of the memfd. The kernel releases the lock when
//! the process ends, in whatever way, so a waiting rank can distinguish a slow rank from one that has ended.

use crate::error::{Error, Outcome};
use crate::intervals::{Intervals, Span};
use crate::stats::NAMES;
use mapping::{HUGE_BYTES, Mapping};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

mod common;
mod mapping;
mod snapshot;

pub use common::{JobNodes, MeetingCell};
pub use snapshot::Snapshot;

const MAGIC: u64 = u64::from_le_bytes(*b"amphmpi9");
/// Bytes of the header.
pub const HEADER_BYTES: u64 = 4096;
const CELL_BYTES: u64 = 64;
/// Pages from this size on have longer lists of ranges.
const LONG_LISTS: u32 = 64 << 10;
const META_BYTES: u64 = 56;
/// The value of a frame whose page moved to another node.
pub const NO_PAGE: u64 = u64::MAX;
/// Counters of a rank that others can see.
const COUNTERS: usize = 32;
const COUNTERS_BYTES: u64 = COUNTERS as u64 * 8;

/// The sizes from which the layout follows; equal on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Geometry {
    /// Ranks that share the memory.
    pub ranks: u32,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// Pages that each rank keeps at most.
    pub frames_per_rank: u32,
    /// Ranges in each of the two lists of a frame.
    pub spans: u32,
    /// Chunks of page metadata; a power of two.
    pub dir_slots: u32,
    /// Pages of one chunk; a power of two.
    pub chunk_entries: u32,
}

impl Geometry {
    /// The usual tables for pages of this size and this many bytes of cache in each rank.
    pub fn new(ranks: u32, page_bytes: u32, limit_bytes: u64) -> Geometry {
        let frames = (limit_bytes / u64::from(page_bytes.max(1))).clamp(1, 1 << 20) as u32;
        // Columns of 4-byte pieces fit, in whatever order their ranks write: at most every second piece is missing.
        // Lists of small pages would take as much memory as the pages, since the first ranges of each are used.
        let bytes_for_each = if page_bytes < LONG_LISTS { 128 } else { 8 };
        let spans = (page_bytes / bytes_for_each).clamp(16, 1 << 17);
        Geometry { ranks, page_bytes, frames_per_rank: frames, spans, dir_slots: 1 << 16, chunk_entries: 512 }
    }

    fn check(&self) -> Outcome {
        let powers = self.dir_slots.is_power_of_two() && self.chunk_entries.is_power_of_two();
        let pages = (1..=1 << 30).contains(&self.page_bytes) && (1..=1 << 20).contains(&self.frames_per_rank);
        let rest = (1..=1 << 20).contains(&self.ranks) && (1..=1 << 17).contains(&self.spans);
        let bounded = self.dir_slots <= 1 << 24 && self.chunk_entries <= 1 << 16;
        let frames = u64::from(self.ranks) * u64::from(self.frames_per_rank);
        if powers && pages && rest && bounded && frames < 1 << 31 {
            Ok(())
        } else {
            Err(Error::Refused("impossible sizes of the cache"))
        }
    }

    /// All frames of all ranks.
    pub fn frames(&self) -> u32 {
        self.ranks * self.frames_per_rank
    }

    fn ranks_at(&self) -> u64 {
        HEADER_BYTES
    }

    fn stripes_at(&self) -> u64 {
        self.ranks_at() + u64::from(self.ranks) * CELL_BYTES
    }

    fn counters_at(&self) -> u64 {
        self.stripes_at() + u64::from(self.ranks) * CELL_BYTES
    }

    fn directory_at(&self) -> u64 {
        self.counters_at() + u64::from(self.ranks) * COUNTERS_BYTES
    }

    fn chunks_at(&self) -> u64 {
        self.directory_at() + u64::from(self.dir_slots) * 8
    }

    fn frames_at(&self) -> u64 {
        let entries = u64::from(self.dir_slots) * u64::from(self.chunk_entries);
        (self.chunks_at() + entries * META_BYTES).next_multiple_of(CELL_BYTES)
    }

    fn frame_bytes(&self) -> u64 {
        64 + 2 * u64::from(self.spans) * 8
    }

    fn arena_at(&self) -> u64 {
        (self.frames_at() + u64::from(self.frames()) * self.frame_bytes()).next_multiple_of(HUGE_BYTES)
    }

    fn total(&self) -> u64 {
        self.arena_at() + u64::from(self.frames()) * u64::from(self.page_bytes)
    }
}

/// The numbers by which the other ranks find the memory; they are plain numbers, so that a broadcast can carry them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Token {
    /// Process of rank 0.
    pub pid: i32,
    /// The descriptor of the memory in the process that made it.
    pub fd: i32,
    /// Proof that the memory at this descriptor is the intended one.
    pub nonce: u64,
}

/// Counts what the file system has to make stable.
#[repr(C)]
pub struct Changes {
    /// Number of times that the file system was given something.
    pub given: AtomicU64,
    /// So many of them are stable.
    pub stable: AtomicU64,
}

/// The first page of the memory.
#[repr(C)]
pub struct Header {
    origin: Origin,
    /// Length of the file as the ranks see it: the bytes on the file system and the cached ones beyond.
    pub size: AtomicU64,
    /// The shared file pointer, in units of the caller.
    pub pointer: AtomicU64,
    /// First errno value of a write without a waiting rank.
    pub late_error: AtomicI32,
    /// What the file system was given, and how much of that is stable.
    pub changes: Changes,
    /// errno value of the first sync that failed.
    pub sync_error: AtomicI32,
    /// Rank + 1 of a rank that ended without closing.
    pub ended: AtomicU32,
    /// Whether the node is a member of the job's group lock (`file/group.rs`), and the number of the group.
    pub group_state: AtomicU32,
    /// 1: calls release each page as soon as they no longer need it.
    pub relaxed: AtomicU32,
    /// The number of that group.
    pub group: AtomicU64,
    /// Descriptors of rank 0 that all ranks of the node use. -1 means that each uses its own.
    pub descriptors: [AtomicI32; 2],
    /// Device and inode of the file, and the process of rank 0.
    file: [AtomicU64; 3],
    /// Ranks of the node; the others are proxies of other nodes.
    own_ranks: AtomicU32,
    /// The nodes of the job.
    pub job: JobNodes,
    /// The state of the ranks' meetings.
    pub meeting: MeetingCell,
}

/// The identity of this memory, set by the rank that made it.
#[repr(C)]
struct Origin {
    magic: AtomicU64,
    nonce: AtomicU64,
    geometry: [AtomicU32; 6],
}

/// The state of one rank.
#[repr(C)]
pub struct RankCell {
    /// 1 when the queued request is granted; the rank sleeps on it.
    pub granted: AtomicU32,
    /// Whether the queued request is exclusive.
    pub exclusive: AtomicU32,
    /// Rank + 1 of the next request in the queue of the page.
    pub next: AtomicU32,
    /// 1: has the memory mapped; 2: closed in order.
    pub presence: AtomicU32,
    /// Frames of the rank from this one on were never used, so they need not be searched.
    pub frames_used: AtomicU32,
    /// How many of its frames have lost their pages to other nodes since the rank last checked.
    pub vacated: AtomicU32,
    /// The number that it brought to a meeting.
    pub brought: AtomicU64,
}

/// Metadata of a page. The first four fields are read and written only under the mutex of the page's stripe.
#[repr(C)]
pub struct PageMeta {
    /// Ranks that hold the page shared.
    pub readers: AtomicU32,
    /// Rank + 1 that holds it exclusively.
    pub writer: AtomicU32,
    /// Rank + 1 of the first waiting request.
    pub head: AtomicU32,
    /// Rank + 1 of the last one in the queue.
    pub tail: AtomicU32,
    /// Frame + 1 that has the page; changed under the exclusive lock of the page.
    pub frame: AtomicU32,
    /// Node + 1 that referred to the page last, if that is another node, and how often in a row; 16 bits each.
    pub streak: AtomicU32,
    /// The place of the page (`placement`). Our own node is written under the exclusive lock of the page here, others
    /// at any time, if they are newer.
    pub place: AtomicU64,
    /// If the page is here: the nodes that may have a copy of it, one bit each (`file/copies.rs`). Bits are set under
    /// the shared lock of the page, and cleared under the exclusive one.
    pub copies: AtomicU64,
    /// The nodes that have read the page since it was written last.
    pub seen: AtomicU64,
    /// 1: the page was read past the cache as a part of a long range, so it is worth a frame the next time.
    pub streamed: AtomicU32,
}

/// The head of a frame; followed by its valid and its dirty ranges.
#[repr(C)]
struct FrameHead {
    page: AtomicU64,
    valid: u32,
    dirty: u32,
    /// Counts the writes into the frame, so that a page which is no longer written can be detected.
    changes: AtomicU32,
}

const _: () = {
    assert!(size_of::<Header>() <= HEADER_BYTES as usize);
    assert!(size_of::<RankCell>() <= CELL_BYTES as usize);
    assert!(size_of::<PageMeta>() == META_BYTES as usize);
    assert!(size_of::<FrameHead>() <= 64);
    assert!(NAMES.len() <= COUNTERS);
};

/// The shared memory of one open file, mapped.
#[derive(Debug)]
pub struct Segment {
    mapping: Arc<Mapping>,
    geometry: Geometry,
    rank: u32,
    /// Our own open file description, which holds the lock on byte `rank`.
    fd: Arc<OwnedFd>,
    nonce: u64,
}

impl Segment {
    /// Makes the memory, as rank 0. The memory lives while any rank has it mapped.
    pub fn create(geometry: Geometry, size: u64) -> Outcome<Segment> {
        geometry.check()?;
        if geometry.total() > largest_file() {
            return Err(Error::Os { doing: "size of the shared memory", errno: libc::EFBIG });
        }
        let mut nonce = [0u8; 8];
        // SAFETY: the name ends with a zero byte; the descriptor is ours; the buffer has the length that is given.
        let fd = unsafe {
            let fd = libc::memfd_create(c"amphi-mpiio".as_ptr(), libc::MFD_CLOEXEC);
            if fd < 0 {
                return Err(Error::last_os("memfd_create"));
            }
            let fd = OwnedFd::from_raw_fd(fd);
            if libc::ftruncate(fd.as_raw_fd(), geometry.total() as libc::off_t) != 0 {
                return Err(Error::last_os("size of the shared memory"));
            }
            if libc::getrandom(nonce.as_mut_ptr().cast(), nonce.len(), 0) != nonce.len() as isize {
                return Err(Error::last_os("getrandom"));
            }
            fd
        };
        let nonce = u64::from_le_bytes(nonce);
        let segment = Segment::map(own_description(fd.as_raw_fd())?, geometry, 0, nonce)?;
        let header = segment.header();
        for (cell, value) in header.origin.geometry.iter().zip(numbers(&geometry)) {
            cell.store(value, Ordering::Relaxed);
        }
        header.size.store(size, Ordering::Relaxed);
        header.descriptors.iter().for_each(|fd| fd.store(-1, Ordering::Relaxed));
        header.origin.nonce.store(nonce, Ordering::Relaxed);
        header.origin.magic.store(MAGIC, Ordering::Release);
        segment.appear()?;
        Ok(segment)
    }

    /// Maps the memory of rank 0, as another rank.
    pub fn attach(token: Token, geometry: Geometry, rank: u32) -> Outcome<Segment> {
        geometry.check()?;
        let path = format!("/proc/{}/fd/{}\0", token.pid, token.fd);
        let fd = open_rw(&path)?;
        let segment = Segment::map(fd, geometry, rank, token.nonce)?;
        let header = segment.header();
        let same = header.origin.magic.load(Ordering::Acquire) == MAGIC
            && header.origin.nonce.load(Ordering::Relaxed) == token.nonce
            && header.origin.geometry.iter().zip(numbers(&geometry)).all(|(c, v)| c.load(Ordering::Relaxed) == v);
        if !same || rank >= geometry.ranks {
            return Err(Error::Refused("what rank 0 shows is not the memory of this file"));
        }
        segment.appear()?;
        Ok(segment)
    }

    fn map(fd: OwnedFd, geometry: Geometry, rank: u32, nonce: u64) -> Outcome<Segment> {
        let mapping = Arc::new(Mapping::new(&fd, geometry.total() as usize)?);
        Ok(Segment { mapping, geometry, rank, fd: Arc::new(fd), nonce })
    }

    /// The same mapping and rank for another part of the process; the rank counts as alive as long as either value
    /// exists.
    pub fn share(&self) -> Segment {
        let (mapping, fd) = (self.mapping.clone(), self.fd.clone());
        Segment { mapping, fd, geometry: self.geometry, rank: self.rank, nonce: self.nonce }
    }

    /// The memory mapped once more, for a thread that acts as this rank. This value does not keep the rank alive.
    pub fn again(&self) -> Outcome<Segment> {
        Segment::map(own_description(self.fd.as_raw_fd())?, self.geometry, self.rank, self.nonce)
    }

    fn appear(&self) -> Outcome {
        let mut lock = byte_lock(libc::F_WRLCK, self.rank);
        // SAFETY: the structure lives through the call.
        if unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_OFD_SETLK, &mut lock) } != 0 {
            return Err(Error::last_os("lock of the rank"));
        }
        self.rank_cell(self.rank).presence.store(1, Ordering::Release);
        Ok(())
    }

    /// Says which file this is the cache of, and how many of the ranks are of this node; rank 0 calls.
    pub fn identify(&self, (device, inode): (u64, u64), own_ranks: u32) {
        let header = self.header();
        for (cell, value) in header.file.iter().zip([device, inode, u64::from(std::process::id())]) {
            cell.store(value, Ordering::Relaxed);
        }
        header.own_ranks.store(own_ranks, Ordering::Relaxed);
    }

    /// Shows the counters of this rank to observers outside the job.
    pub fn publish(&self, counters: &[u64; NAMES.len()]) {
        let at = self.geometry.counters_at() + u64::from(self.rank) * COUNTERS_BYTES;
        // SAFETY: the cell of this rank lies in the mapping; it is made of atomics.
        let cells: &[AtomicU64; COUNTERS] = unsafe { &*self.at(at) };
        for (cell, value) in cells.iter().zip(counters) {
            cell.store(*value, Ordering::Relaxed);
        }
    }

    /// The data with which the other ranks attach.
    pub fn token(&self) -> Token {
        Token { pid: std::process::id() as i32, fd: self.fd.as_raw_fd(), nonce: self.nonce }
    }

    /// The sizes.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Our rank.
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// A rank that had the memory mapped and ended without leaving in order.
    pub fn find_ended(&self) -> Option<u32> {
        let ended = self.header().ended.load(Ordering::Acquire);
        if ended != 0 {
            return Some(ended - 1);
        }
        let found = (0..self.geometry.ranks).find(|&rank| rank != self.rank && self.has_ended(rank))?;
        self.header().ended.store(found + 1, Ordering::Release);
        Some(found)
    }

    /// Finds a rank that ended or left in order.
    pub fn find_gone(&self) -> Option<u32> {
        let left = |rank: &u32| self.rank_cell(*rank).presence.load(Ordering::SeqCst) == 2;
        (0..self.geometry.ranks).find(left).or_else(|| self.find_ended())
    }

    /// The counters of all ranks as of the last call of each, added up.
    pub fn counters_of_all(&self) -> [u64; NAMES.len()] {
        let mut sums = [0u64; NAMES.len()];
        for rank in 0..self.geometry.ranks {
            let at = self.geometry.counters_at() + u64::from(rank) * COUNTERS_BYTES;
            // SAFETY: the cell of each rank lies in the mapping; it is made of atomics.
            let cells: &[AtomicU64; COUNTERS] = unsafe { &*self.at(at) };
            for (sum, cell) in sums.iter_mut().zip(cells) {
                *sum = sum.wrapping_add(cell.load(Ordering::Relaxed));
            }
        }
        sums
    }

    /// Returns whether this other rank has ended or left.
    pub fn has_ended(&self, rank: u32) -> bool {
        let is_here = || self.rank_cell(rank).presence.load(Ordering::Acquire) == 1;
        let mut lock = byte_lock(libc::F_WRLCK, rank);
        if rank >= self.geometry.ranks || !is_here() {
            return false;
        }
        // SAFETY: the structure lives through the call.
        let result = unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
        result == 0 && i32::from(lock.l_type) == libc::F_UNLCK && is_here()
    }

    /// Leaves in order; after that the value may be dropped.
    pub fn leave(&self) {
        self.rank_cell(self.rank).presence.store(2, Ordering::Release);
    }

    /// The part at this offset.
    fn at<T>(&self, offset: u64) -> *mut T {
        debug_assert!(offset + size_of::<T>() as u64 <= self.geometry.total());
        // SAFETY: the offset lies in the mapping.
        unsafe { self.mapping.base().add(offset as usize).cast() }
    }

    /// The header.
    pub fn header(&self) -> &Header {
        // SAFETY: the mapping begins with it; it is made of atomics and all-zero bytes are valid.
        unsafe { &*self.at(0) }
    }

    /// The state of a rank.
    pub fn rank_cell(&self, rank: u32) -> &RankCell {
        assert!(rank < self.geometry.ranks, "rank {rank} of {}", self.geometry.ranks);
        // SAFETY: the index was checked; the cell is made of atomics.
        unsafe { &*self.at(self.geometry.ranks_at() + u64::from(rank) * CELL_BYTES) }
    }

    /// The word of the mutex that guards the metadata of a page.
    pub fn stripe_word(&self, page: u64) -> &AtomicU32 {
        let stripe = page % u64::from(self.geometry.ranks);
        // SAFETY: there is a stripe for each rank; the cell is an atomic.
        unsafe { &*self.at(self.geometry.stripes_at() + stripe * CELL_BYTES) }
    }

    /// The metadata of a page; the first page of a chunk makes the chunk.
    pub fn meta(&self, page: u64) -> Outcome<&PageMeta> {
        let chunk = page / u64::from(self.geometry.chunk_entries);
        loop {
            let (slot, found) = self.slot_of(chunk).ok_or(Error::TableFull)?;
            if !found && self.key(slot).compare_exchange(0, chunk + 1, Ordering::AcqRel, Ordering::Acquire).is_err() {
                continue;
            }
            return Ok(self.entry(slot, page));
        }
    }

    /// Finds the slot of a chunk or the free slot for it, and says which of both it is.
    fn slot_of(&self, chunk: u64) -> Option<(u64, bool)> {
        let slots = u64::from(self.geometry.dir_slots);
        let first = (chunk.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) & (slots - 1);
        let mut tried = (0..slots).map(|step| (first + step) & (slots - 1));
        tried.find_map(|slot| match self.key(slot).load(Ordering::Acquire) {
            0 => Some((slot, false)),
            found => (found == chunk + 1).then_some((slot, true)),
        })
    }

    fn key(&self, slot: u64) -> &AtomicU64 {
        // SAFETY: the slot lies in the directory; it is an atomic.
        unsafe { &*self.at(self.geometry.directory_at() + slot * 8) }
    }

    fn entry(&self, slot: u64, page: u64) -> &PageMeta {
        let entries = u64::from(self.geometry.chunk_entries);
        // SAFETY: the entry lies in the chunk of the slot; it is made of atomics, zero at first.
        unsafe { &*self.at(self.geometry.chunks_at() + (slot * entries + page % entries) * META_BYTES) }
    }

    /// The metadata of a page, if there is any for its chunk.
    pub fn find_meta(&self, page: u64) -> Option<&PageMeta> {
        let (slot, found) = self.slot_of(page / u64::from(self.geometry.chunk_entries))?;
        if found { Some(self.entry(slot, page)) } else { None }
    }

    fn frame_head(&self, frame: u32) -> *mut FrameHead {
        assert!(frame < self.geometry.frames(), "frame {frame} of {}", self.geometry.frames());
        self.at(self.geometry.frames_at() + u64::from(frame) * self.geometry.frame_bytes())
    }

    /// The frames of all ranks that were ever used.
    pub fn used_frames(&self) -> impl Iterator<Item = u32> {
        let each = self.geometry.frames_per_rank;
        (0..self.geometry.ranks).flat_map(move |rank| {
            let used = self.rank_cell(rank).frames_used.load(Ordering::Acquire).min(each);
            rank * each..rank * each + used
        })
    }

    /// The page that a frame has now; a hint unless the page is locked.
    pub fn page_of(&self, frame: u32) -> u64 {
        // SAFETY: the frame was checked; the field is an atomic.
        unsafe { (*self.frame_head(frame)).page.load(Ordering::Acquire) }
    }

    /// The count of writes into a frame.
    pub fn changes(&self, frame: u32) -> &AtomicU32 {
        // SAFETY: the frame was checked; the field is an atomic.
        unsafe { &(*self.frame_head(frame)).changes }
    }

    /// Returns whether a frame has dirty bytes; a hint unless the page is locked.
    pub fn looks_dirty(&self, frame: u32) -> bool {
        self.dirty_parts(frame) != 0
    }

    /// Returns how many dirty ranges a frame has; a hint unless the page is locked.
    pub fn dirty_parts(&self, frame: u32) -> u32 {
        // SAFETY: the frame was checked; the count is read as an atomic, since its holder may change it meanwhile.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.frame_head(frame)).dirty).load(Ordering::Acquire) }
    }

    /// Gives a frame to a page: nothing of it is valid.
    pub fn assign(&self, frame: u32, page: u64) {
        // SAFETY: the frame was checked; it belongs to no page now, so nobody else looks at more than the atomic.
        unsafe {
            let head = self.frame_head(frame);
            (*head).page.store(page, Ordering::Release);
            (*head).valid = 0;
            (*head).dirty = 0;
        }
    }

    /// Takes a frame away from its page, which moved to another node. The rank of the frame reuses it when it needs a
    /// frame. The caller holds the exclusive lock of the page, which has no frame any more.
    pub fn vacate(&self, frame: u32) {
        self.assign(frame, NO_PAGE);
        self.rank_cell(frame / self.geometry.frames_per_rank).vacated.fetch_add(1, Ordering::SeqCst);
    }

    fn list(&self, frame: u32, dirty: bool) -> Intervals<'_> {
        let head = self.frame_head(frame);
        let spans = self.geometry.spans as usize;
        let list = self.geometry.frames_at() + u64::from(frame) * self.geometry.frame_bytes() + 64;
        let list: *mut Span = self.at(list + if dirty { spans as u64 * 8 } else { 0 });
        // SAFETY: both lie in the mapping; the lock of the page, which the caller holds, keeps others away. Any bytes
        // are valid values.
        unsafe {
            let count = if dirty { &mut (*head).dirty } else { &mut (*head).valid };
            Intervals::new(count, std::slice::from_raw_parts_mut(list, spans))
        }
    }

    /// The valid ranges of a frame. The caller holds the lock of the frame's page, exclusively if it changes the
    /// ranges.
    pub fn valid(&self, frame: u32) -> Intervals<'_> {
        self.list(frame, false)
    }

    /// The valid ranges of a frame for a rank that holds the page shared: nothing is written, not even a cut count.
    pub fn valid_shared(&self, frame: u32) -> &[Span] {
        let head = self.frame_head(frame);
        let list = self.geometry.frames_at() + u64::from(frame) * self.geometry.frame_bytes() + 64;
        // SAFETY: as for `list`; under a shared lock nobody writes.
        unsafe {
            let count = (*head).valid.min(self.geometry.spans);
            std::slice::from_raw_parts(self.at(list), count as usize)
        }
    }

    /// The dirty ranges of a frame; as `valid`.
    pub fn dirty(&self, frame: u32) -> Intervals<'_> {
        self.list(frame, true)
    }

    /// The bytes of a frame, to be read. The caller holds the lock of its page.
    pub fn bytes(&self, frame: u32) -> &[u8] {
        // SAFETY: as for `bytes_mut`; holders of shared locks only read.
        unsafe { std::slice::from_raw_parts(self.bytes_at(frame), self.geometry.page_bytes as usize) }
    }

    /// The bytes of a frame, to be written. The caller holds the exclusive lock of its page.
    #[expect(clippy::mut_from_ref, reason = "the page lock, not the borrow of the mapping, makes the access exclusive")]
    pub fn bytes_mut(&self, frame: u32) -> &mut [u8] {
        // SAFETY: the frame lies in the arena, and the exclusive lock of its page keeps everybody else away.
        unsafe { std::slice::from_raw_parts_mut(self.bytes_at(frame), self.geometry.page_bytes as usize) }
    }

    /// The bytes of `count` frames of one rank that follow each other, to be written. The caller holds the exclusive
    /// locks of all of their pages.
    #[expect(clippy::mut_from_ref, reason = "the page locks, not the borrow of the mapping, make the access exclusive")]
    pub fn bytes_of_run_mut(&self, frame: u32, count: u32) -> &mut [u8] {
        assert!(count > 0 && frame + (count - 1) < self.geometry.frames(), "{count} frames from {frame} on");
        let bytes = count as usize * self.geometry.page_bytes as usize;
        // SAFETY: the frames lie in the arena one behind the other, and the locks keep everybody else away.
        unsafe { std::slice::from_raw_parts_mut(self.bytes_at(frame), bytes) }
    }

    /// Lets the system back a frame that is used for the first time with huge pages, together with the frames in the
    /// same huge page. `prepared` is the part of the arena with huge pages; frames of a rank are first used in
    /// ascending order. If the system has no free huge page, the frame gets pages as they are touched.
    pub fn prepare(&self, frame: u32, prepared: &mut u64) {
        let page = u64::from(self.geometry.page_bytes);
        let large = page * u64::from(self.geometry.frames_per_rank) >= HUGE_BYTES;
        let (start, end) = (u64::from(frame) * page, (u64::from(frame) + 1) * page);
        let from = (start / HUGE_BYTES * HUGE_BYTES).max(*prepared);
        let to =
            end.next_multiple_of(HUGE_BYTES).min((u64::from(self.geometry.frames()) * page) / HUGE_BYTES * HUGE_BYTES);
        if !large || from >= to {
            return;
        }
        *prepared = to;
        let arena = self.geometry.arena_at();
        for huge in (from..to).step_by(HUGE_BYTES as usize) {
            // The frame, which is not in use yet, begins here or before.
            if !self.mapping.make_huge(arena + huge, arena + huge.max(start)) {
                *prepared = u64::MAX;
                return;
            }
        }
    }

    fn bytes_at(&self, frame: u32) -> *mut u8 {
        assert!(frame < self.geometry.frames(), "frame {frame} of {}", self.geometry.frames());
        self.at(self.geometry.arena_at() + u64::from(frame) * u64::from(self.geometry.page_bytes))
    }
}

fn numbers(g: &Geometry) -> [u32; 6] {
    [g.ranks, g.page_bytes, g.frames_per_rank, g.spans, g.dir_slots, g.chunk_entries]
}

fn byte_lock(kind: libc::c_int, rank: u32) -> libc::flock {
    // SAFETY: all-zero bytes are a valid value of the plain structure.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = libc::off_t::from(rank);
    lock.l_len = 1;
    lock
}

/// The limit of this process for the length of a file, memory files included; a process that exceeds it gets a signal.
fn largest_file() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives through the call.
    let told = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } == 0;
    if told { limit.rlim_cur } else { u64::MAX }
}

/// An open file description of our own: locks of a description that `fork` shares would outlive us.
fn own_description(fd: RawFd) -> Outcome<OwnedFd> {
    open_rw(&format!("/proc/self/fd/{fd}\0"))
}

/// Opens a path that ends with a zero byte.
fn open_rw(path: &str) -> Outcome<OwnedFd> {
    // SAFETY: the path ends with a zero byte; the descriptor is ours.
    unsafe {
        let fd = libc::open(path.as_ptr().cast(), libc::O_RDWR | libc::O_CLOEXEC);
        if fd < 0 { Err(Error::last_os("open the shared memory of rank 0")) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}
