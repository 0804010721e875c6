//! `JointStreams`: strided streams of several open files that together read one sequence.
//!
//! Owns: recognising such streams, and the window ahead of all of them. Does not own: the streams of one open file
//! (`readahead`), fetching, or which bytes are cached already.
//!
//! Processes that read a shared file in turn each read every n-th record. Taken by itself, each of them is a strided
//! stream. For such a stream single records are fetched ahead, each with its own request. Two processes that read
//! records of 47,008 bytes caused 5,590 such requests. Together the processes of a mount read most of the bytes in
//! between. So the file is read ahead in large pieces, as if one process read all of it.
//!
//! Streams belong together if they have the same stride and length and are near each other. The streams form a sequence
//! if they cover at least half of the bytes between two records of one of them. So at most as many fetched bytes are
//! unused as are used. If many more bytes are fetched without use (because the other processes have stopped), more
//! consecutive reads are required before anything is fetched again, twice as many each time.
//!
//! Near is meant in bytes, not in reads. Processes drift apart: they may start 50 ms after each other, or share a core
//! and read a hundred cached records in one time slice. Nothing brings processes that have drifted apart back together.
//! Bytes that are fetched for the foremost process are there when the others need them. Until the other processes reach
//! the start of the sequence, their own streams are read ahead.

use crate::policy::readahead::{Limits, Plan};
use amphi_types::{ByteRange, Ino};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::VecDeque;

/// Most files that are tracked.
const FILES_MAX: usize = 64;
/// Most open files of each that are tracked.
const MEMBERS_MAX: usize = 64;
/// Streams are near each other within this many strides, or within this many bytes if that is more and a window may be
/// as large.
const NEAR_STRIDES: u64 = 32;
const NEAR_BYTES: u64 = 32 << 20;
/// Least reads in a row that are required after the sequence was doubted.
const CAUTION_MIN: u64 = 32;
/// First window, in bytes.
const WINDOW_MIN: u64 = 1 << 20;
/// Before the sequence is given up, this multiple of the used bytes may be fetched without use. `WASTE_MIN` bytes are
/// ignored.
const WASTE_FACTOR: u64 = 4;
const WASTE_MIN: u64 = 16 << 20;
/// Most reads in a row that are required before anything is fetched again.
const CAUTION_MAX: u64 = 1024;

/// A strided read of an open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StridedRead {
    /// The number of the open file, which no other open file has at the same time.
    pub(crate) open: u64,
    pub(crate) range: ByteRange,
    /// Distance to the start of the next read.
    pub(crate) stride: u64,
}

#[derive(Default)]
struct Joint {
    /// The last read of each open file, the latest one last.
    members: SmallVec<[StridedRead; 4]>,
    /// The largest window that was ever allowed; members may be that far apart.
    reach: u64,
    window: u64,
    /// The byte range between these two offsets is being fetched as a whole.
    ahead_from: u64,
    ahead_to: u64,
    planned_bytes: u64,
    used_bytes: u64,
    /// Reads of the sequence since it was doubted, and how many are required.
    reads: u64,
    caution: u64,
}

/// The sequences of a mount's files.
#[derive(Default)]
pub(crate) struct JointStreams {
    /// Files in the order of their last read, the latest first.
    files: Mutex<VecDeque<(Ino, Joint)>>,
}

impl JointStreams {
    /// Notes a read that is certainly strided. If the stream belongs to a sequence of several open files, returns the
    /// bytes to fetch ahead of the sequence, which replace those ahead of this stream. `size` is the length of the
    /// file.
    pub(crate) fn on_read(&self, ino: Ino, read: StridedRead, size: u64, limits: Limits) -> Option<Plan> {
        let mut files = self.files.lock();
        let at = files.iter().position(|(known, _)| *known == ino);
        let (_, mut joint) = at.and_then(|at| files.remove(at)).unwrap_or((ino, Joint::default()));
        let plan = joint.on_read(read, size, limits);
        files.push_front((ino, joint));
        files.truncate(FILES_MAX);
        plan
    }
}

impl Joint {
    fn on_read(&mut self, read: StridedRead, size: u64, limits: Limits) -> Option<Plan> {
        self.members.retain(|m| m.open != read.open);
        if self.members.len() == MEMBERS_MAX {
            self.members.remove(0);
        }
        self.members.push(read);
        assert!(read.stride > 0, "a strided read of {:?} without a stride", read.range);
        assert!(self.members.len() <= MEMBERS_MAX, "{} open files of one sequence", self.members.len());
        self.reach = self.reach.max(limits.window_max.min(NEAR_BYTES));
        let (rear, front) = self.ends(&read)?;
        if read.range.start < self.ahead_to {
            self.used_bytes += read.range.len();
        }
        self.reads += 1;
        if self.reads <= self.caution {
            return None;
        }
        if read.range.end < front && read.range.start < self.ahead_from {
            // This stream has not reached the start of the sequence.
            return None;
        }
        let plan = self.ahead(&read, front, size, limits);
        self.planned_bytes += plan.iter().map(ByteRange::len).sum::<u64>();
        let outstanding = self.ahead_to.saturating_sub(rear.max(self.ahead_from));
        if self.planned_bytes > WASTE_MIN + WASTE_FACTOR * self.used_bytes + outstanding {
            let caution = (self.caution * 2).clamp(CAUTION_MIN, CAUTION_MAX);
            *self = Joint { caution, ..Joint::default() };
            return None;
        }
        Some(plan)
    }

    /// The start of the rearmost and the end of the foremost read of a sequence, if this read is part of one.
    fn ends(&self, read: &StridedRead) -> Option<(u64, u64)> {
        let (stride, len) = (read.stride, read.range.len());
        let reach = self.reach.max(NEAR_STRIDES * stride);
        let is_near = |m: &&StridedRead| {
            let is_alike = m.stride == stride && m.range.len() == len;
            is_alike && m.range.start.abs_diff(read.range.start) <= reach
        };
        let (mut places, mut rear, mut front): (SmallVec<[u64; 8]>, u64, u64) = (SmallVec::new(), u64::MAX, 0);
        for m in self.members.iter().filter(is_near) {
            places.push(m.range.start % stride);
            (rear, front) = (rear.min(m.range.start), front.max(m.range.end));
        }
        places.sort_unstable();
        // Streams that read the same records count once.
        places.dedup_by(|b, a| *b - *a < len);
        let covered = places.len() as u64 * len;
        (places.len() > 1 && covered * 2 >= stride).then_some((rear, front))
    }

    fn ahead(&mut self, read: &StridedRead, front: u64, size: u64, limits: Limits) -> Plan {
        let mut plan = Plan::new();
        if limits.window_max == 0 {
            return plan;
        }
        if self.ahead_to < front || self.ahead_to > front + self.window + NEAR_STRIDES * read.stride {
            // The sequence begins, it has read beyond the bytes that were fetched, or it has begun anew.
            (self.ahead_from, self.ahead_to, self.window) = (front, front, 0);
        }
        // Refill when half of the window is used, so that fetching continues while the programs read.
        assert!(self.ahead_to >= front, "everything up to {} is fetched, and {front} is read", self.ahead_to);
        if self.ahead_to - front > self.window / 2 {
            return plan;
        }
        let least = read.stride.saturating_mul(limits.requests).max(WINDOW_MIN);
        self.window = (self.window * 2).max(least).min(limits.window_max);
        let to = (front + self.window).min(size);
        if to > self.ahead_to {
            plan.push(ByteRange::new(self.ahead_to, to));
            self.ahead_to = to;
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { window_max: 64 << 20, requests: 10 };
    const RECORD: u64 = 47_008;
    const FILE: Ino = Ino(7);

    /// Reads records in turn for `ranks` processes, of which `own` are on this mount; the order drifts by a few
    /// records. Returns the number of bytes that were fetched ahead, and the number of reads that these did not cover,
    /// except the first ten of each process.
    fn read(joint: &JointStreams, ranks: u64, own: u64, records: u64) -> (Vec<ByteRange>, u64) {
        let (size, stride) = (records * ranks * RECORD, ranks * RECORD);
        let (mut fetched, mut missed): (Vec<ByteRange>, u64) = (Vec::new(), 0);
        for n in 0..records + 3 {
            for rank in 0..own {
                // Each rank is up to three records behind.
                let Some(n) = n.checked_sub(rank % 4).filter(|n| *n < records) else { continue };
                let range = ByteRange::at((n * ranks + rank) * RECORD, RECORD);
                let is_there = fetched.iter().any(|f| f.contains(&range));
                missed += u64::from(n > 10 && !is_there);
                let plan = joint.on_read(FILE, StridedRead { open: rank, range, stride }, size, LIMITS);
                for part in plan.into_iter().flatten() {
                    match fetched.last_mut() {
                        Some(last) if last.end == part.start => last.end = part.end,
                        _ => fetched.push(part),
                    }
                }
            }
        }
        (fetched, missed)
    }

    /// Goal: ranks of one mount that read alternate records form one sequence, without gaps. This holds even if other
    /// mounts read half of the records, and again when the ranks begin anew. If the ranks of the mount read less than
    /// half, each stream is read ahead by itself, and so are two streams that read the same records. Method: records of
    /// two, four and eight ranks.
    #[test]
    fn ranks_in_turn_are_one_sequence() {
        for (ranks, own) in [(2, 2), (4, 4), (4, 2), (8, 4)] {
            let joint = JointStreams::default();
            for _ in 0..2 {
                let (fetched, missed) = read(&joint, ranks, own, 1000);
                assert_eq!((fetched.len(), missed), (1, 0), "{own} of {ranks}: {fetched:?}");
                assert_eq!(fetched[0].end, 1000 * ranks * RECORD);
            }
        }
        for (ranks, own) in [(2, 1), (8, 2), (100, 4)] {
            assert!(read(&JointStreams::default(), ranks, own, 200).0.is_empty(), "{own} of {ranks}");
        }
        let joint = JointStreams::default();
        for n in 0..100 {
            for open in 0..3 {
                let range = ByteRange::at(n * 2 * RECORD, RECORD);
                let read = StridedRead { open, range, stride: 2 * RECORD };
                assert!(joint.on_read(FILE, read, 1 << 40, LIMITS).is_none());
            }
        }
    }

    /// Goal: ranks that drift apart remain one sequence. The sequence is fetched completely except for the start, and
    /// almost no read has to wait. Method: two ranks that begin a hundred records after each other and read in bursts
    /// of up to 80.
    #[test]
    fn ranks_that_drift_apart_are_one_sequence() {
        let (joint, records, stride) = (JointStreams::default(), 3000, 2 * RECORD);
        let (mut next, mut seed) = ([100, 0], 7u64);
        let (mut fetched, mut missed, mut alone): (Vec<ByteRange>, _, _) = (Vec::new(), 0, 0);
        while next.iter().any(|n| *n < records) {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let (rank, burst) = ((seed >> 33) as usize % 2, (seed >> 40) % 80);
            // The ranks are as far apart as a core's time slices can bring them.
            if next[rank] > next[1 - rank] + 200 {
                continue;
            }
            for _ in 0..burst.min(records - next[rank]) {
                let range = ByteRange::at(next[rank] * stride + rank as u64 * RECORD, RECORD);
                next[rank] += 1;
                missed += u64::from(!fetched.iter().any(|f| f.contains(&range)));
                let read = StridedRead { open: rank as u64, range, stride };
                let plan = joint.on_read(FILE, read, records * stride, LIMITS);
                alone += u64::from(plan.is_none());
                for part in plan.into_iter().flatten() {
                    match fetched.last_mut() {
                        Some(last) if last.end == part.start => last.end = part.end,
                        _ => fetched.push(part),
                    }
                }
            }
        }
        assert_eq!((fetched.len(), fetched[0].end), (1, records * stride), "{fetched:?}");
        assert!(missed <= 400 && alone <= 400, "{missed} records missed, {alone} by themselves, of {}", 2 * records);
    }

    /// Goal: if a rank stops and the others are far ahead of it, it no longer belongs to the sequence, and nothing is
    /// fetched for its records. The number of files is bounded. Method: two ranks, then one, and many files.
    #[test]
    fn a_rank_that_stops_ends_it() {
        let joint = JointStreams::default();
        let stride = 2 * RECORD;
        let read = |open, n| StridedRead { open, range: ByteRange::at(n * stride + open * RECORD, RECORD), stride };
        let both = (0..100).filter(|n| joint.on_read(FILE, read(n % 2, n / 2), 1 << 40, LIMITS).is_some());
        assert!(both.count() > 95);
        let alone = (50..2000).filter(|n| joint.on_read(FILE, read(0, *n), 1 << 40, LIMITS).is_some());
        assert!(alone.count() as u64 <= NEAR_BYTES / stride + 1);
        for ino in 0..1000 {
            joint.on_read(Ino(ino), read(0, 1), 1 << 40, LIMITS);
        }
        assert_eq!(joint.files.lock().len(), FILES_MAX);
    }
}
