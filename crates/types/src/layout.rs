//! Data layouts: which object and target hold a byte of a file.
//!
//! Objects are addressed by file offset (an object is sparse outside its stripes), so the arithmetic is a
//! single function from offset to stripe index, size is the maximum over objects, and truncate and punch
//! need no translation. The price is one extent per stripe unit at worst; units are 1 MiB by default.
//!
//! The default grows with the file. Up to `GROW_FIRST` it has one stripe, so a small file lives wholly on its inode's
//! target. The inodes of a directory's files are on one target, so everything behind that is elsewhere: up to
//! `GROW_SECOND` on one other target, which the file's number chooses, then on up to 4 others, and from `GROW_THIRD` on
//! all targets (docs/design/objects.md).
//!
//! Targets of one server have neighbouring numbers, so the stripes of a file are on targets with distant numbers. The
//! other targets are divided into `PARTS` parts of neighbours, and consecutive stripes alternate between the parts. The
//! first target of a file in each part depends on the file's number, as does where the parts of a growing file begin.
//! So four stripes of one file reach several servers, and files of one directory do not all use the same ones. Files of
//! earlier versions keep their layouts: stripes on neighbours (`GrowingNear`, `StripedNear`), and more bytes beside the
//! inode (`GrowingLate`).

use crate::{ByteRange, Errno, Ino, ObjectId, Result, TargetId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// End of the part of a growing file that is beside its inode, bytes.
pub const GROW_FIRST: u64 = 1 << 20;
/// End of the part of a growing file in stripe 1, bytes. In files of earlier versions the part before it is in stripe
/// 0.
pub const GROW_SECOND: u64 = 4 << 20;
/// End of the part of a growing file in few stripes, bytes.
pub const GROW_THIRD: u64 = 256 << 20;
/// The most stripes of a growing file before that end.
const GROWN_STRIPES: u16 = 4;
/// Into how many parts the targets beside the inode's are dealt: `GROWN_STRIPES` without the first.
const PARTS: u32 = 3;

/// How stripes are laid over targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pattern {
    /// As `GrowingLate`, but stripe `s` lives on target `(owner + s) mod pool`.
    GrowingNear,
    /// As `Striped`, but stripe `s` lives on target `(owner + s) mod pool`.
    StripedNear,
    /// The whole file in stripe 0.
    Whole,
    /// Grows with the file: stripe 0 up to `GROW_SECOND`, then the first 4 stripes, then `stripe_count` stripes.
    GrowingLate,
    /// Round robin over `stripe_count` stripes.
    Striped,
    /// Grows with the file: stripe 0, then stripe 1, then 4 stripes, then `stripe_count` stripes. The 4 stripes are
    /// those behind stripe 0 if there are as many.
    Growing,
}

impl Pattern {
    /// The pattern made today for this request.
    fn of_today(self) -> Pattern {
        match self {
            Pattern::GrowingNear | Pattern::GrowingLate => Pattern::Growing,
            Pattern::StripedNear => Pattern::Striped,
            other => other,
        }
    }

    fn is_near(self) -> bool {
        matches!(self, Pattern::GrowingNear | Pattern::StripedNear)
    }
}

/// The owner's setting of a file for the hybrid decision; inherited by new files in a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum IoMode {
    /// Decide per request.
    #[default]
    Auto,
    /// Always through the cache.
    Buffered,
    /// Always direct.
    Direct,
}

/// The owner's setting of a file for the rule by which the kernel of a mount serves reads; inherited likewise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum KernelCache {
    /// Decide at each open.
    #[default]
    Auto,
    /// The kernel serves reads from its page cache, wherever that can be coherent.
    On,
    /// The mount serves all reads.
    Off,
}

/// The owner's setting of a file for the servers: whether blocks of the file that are written get checksums; inherited
/// likewise. Mounts send it along with their writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataChecksums {
    /// The servers' setting decides.
    #[default]
    Auto,
    /// New files get checksums.
    On,
    /// New files get no checksums.
    Off,
}

impl DataChecksums {
    /// Returns whether blocks get checksums on a server that is set to `default`.
    pub fn are_made(self, default: bool) -> bool {
        match self {
            DataChecksums::Auto => default,
            DataChecksums::On => true,
            DataChecksums::Off => false,
        }
    }
}

/// The time when other mounts see the bytes that a mount has written to a file (docs/SEMANTICS.md, "Commit
/// consistency").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Consistency {
    /// Writes are visible to other mounts from the return of each write on.
    #[default]
    Posix = 0,
    /// From the next `fsync`, `close` or release of a file lock by the writer on, at the latest.
    Commit = 1,
}

/// How new sub-directories of a directory keep their names; they inherit the setting. Files have it without effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subdirectories {
    /// The names lie on one target, until the directory is given shards.
    #[default]
    Plain = 0,
    /// The names lie in one shard on each target, from the beginning.
    Sharded = 1,
}

/// The behaviour that a file's owner requests of mounts and servers; new entries of a directory inherit it. One byte,
/// also in a message and on the disk: the I/O mode, three times the kernel cache, nine times the checksums, 27 times
/// the consistency, and 54 times how sub-directories keep their names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Advice(u8);

impl Advice {
    /// The number of settings.
    const ALL: u8 = 2 * Advice::SUBDIRECTORIES;
    /// Weight of how sub-directories keep their names.
    const SUBDIRECTORIES: u8 = 54;

    /// Returns these settings, with plain sub-directories.
    pub fn new(mode: IoMode, kernel_cache: KernelCache, checksums: DataChecksums, consistency: Consistency) -> Advice {
        Advice(mode as u8 + 3 * kernel_cache as u8 + 9 * checksums as u8 + 27 * consistency as u8)
    }

    /// The setting for the hybrid decision.
    pub fn mode(self) -> IoMode {
        match self.0 % 3 {
            0 => IoMode::Auto,
            1 => IoMode::Buffered,
            _ => IoMode::Direct,
        }
    }

    /// The setting for the rule by which the kernel serves reads.
    pub fn kernel_cache(self) -> KernelCache {
        match self.0 / 3 % 3 {
            0 => KernelCache::Auto,
            1 => KernelCache::On,
            _ => KernelCache::Off,
        }
    }

    /// Returns whether what is written gets checksums.
    pub fn checksums(self) -> DataChecksums {
        match self.0 / 9 % 3 {
            0 => DataChecksums::Auto,
            1 => DataChecksums::On,
            _ => DataChecksums::Off,
        }
    }

    /// The time when other mounts see written bytes.
    pub fn consistency(self) -> Consistency {
        if (self.0 / 27).is_multiple_of(2) { Consistency::Posix } else { Consistency::Commit }
    }

    /// How new sub-directories keep their names.
    pub fn subdirectories(self) -> Subdirectories {
        if self.0 / Advice::SUBDIRECTORIES == 0 { Subdirectories::Plain } else { Subdirectories::Sharded }
    }

    /// The advice after the changes in `asked`.
    pub fn with(self, asked: AskedAdvice) -> Advice {
        let (mut mode, mut kernel_cache) = (self.mode(), self.kernel_cache());
        let (mut checksums, mut consistency) = (self.checksums(), self.consistency());
        let mut subdirectories = self.subdirectories();
        match asked {
            AskedAdvice::Mode(asked) => mode = asked,
            AskedAdvice::KernelCache(asked) => kernel_cache = asked,
            AskedAdvice::Checksums(asked) => checksums = asked,
            AskedAdvice::Consistency(asked) => consistency = asked,
            AskedAdvice::Subdirectories(asked) => subdirectories = asked,
        }
        let Advice(others) = Advice::new(mode, kernel_cache, checksums, consistency);
        Advice(others + Advice::SUBDIRECTORIES * subdirectories as u8)
    }
}

impl From<IoMode> for Advice {
    fn from(mode: IoMode) -> Advice {
        Advice::new(mode, KernelCache::Auto, DataChecksums::Auto, Consistency::Posix)
    }
}

impl From<Advice> for u8 {
    fn from(advice: Advice) -> u8 {
        advice.0
    }
}

impl TryFrom<u8> for Advice {
    type Error = &'static str;

    fn try_from(byte: u8) -> std::result::Result<Advice, &'static str> {
        if byte < Advice::ALL { Ok(Advice(byte)) } else { Err("advice beyond 107") }
    }
}

/// A request to change one setting of an `Advice`: the other settings stay unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AskedAdvice {
    /// The I/O mode.
    Mode(IoMode),
    /// The kernel cache.
    KernelCache(KernelCache),
    /// The checksums.
    Checksums(DataChecksums),
    /// The consistency.
    Consistency(Consistency),
    /// How sub-directories keep their names.
    Subdirectories(Subdirectories),
}

/// A file's layout; fixed once the file has data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Pattern.
    pub pattern: Pattern,
    /// Bytes per stripe unit: a power of two, 64 KiB to 1 GiB.
    pub stripe_size: u32,
    /// Number of stripes, at least 1. A number above `pool` means over-striping.
    pub stripe_count: u16,
    /// The number of targets that the cluster had when the file was made; its stripes live on these.
    pub pool: u16,
}

impl Layout {
    /// Default stripe size, bytes.
    pub const STRIPE: u32 = 1 << 20;
    /// Most stripes of a file on one target: a truncate visits each, also those without data, which have to record it.
    pub const STRIPES_A_TARGET: u32 = 1024;

    /// The growing default on a cluster of `pool` targets.
    pub fn growing(pool: u16) -> Layout {
        Layout { pattern: Pattern::Growing, stripe_size: Self::STRIPE, stripe_count: pool.max(1), pool: pool.max(1) }
    }

    /// Returns the layout for new files, derived from this layout of their directory, in a cluster that has grown to
    /// `pool` targets since the layout was chosen: a layout over all targets is extended to all of them again. 0: it
    /// has not grown.
    pub fn in_pool(&self, pool: u16) -> Layout {
        let today = Layout { pattern: self.pattern.of_today(), ..*self };
        if pool <= self.pool {
            return today;
        }
        let all = today.pattern == Pattern::Growing && self.stripe_count == self.pool;
        Layout { pool, stripe_count: if all { pool } else { self.stripe_count }, ..today }
    }

    /// Checks the request of a user. Files may have more stripes whose layout was set before there was a bound.
    ///
    /// Errors: as `check`; `Inval` for more than `STRIPES_A_TARGET` stripes for each target.
    pub fn check_asked(&self) -> Result<()> {
        self.check()?;
        if self.stripes() <= Self::STRIPES_A_TARGET * u32::from(self.pool) { Ok(()) } else { Err(Errno::Inval) }
    }

    /// Checks what is stored.
    ///
    /// Errors: `Inval` for a stripe size that is no power of two between 64 KiB and 1 GiB or a zero count.
    pub fn check(&self) -> Result<()> {
        let size_ok = self.stripe_size.is_power_of_two() && (64 << 10..=1 << 30).contains(&self.stripe_size);
        if size_ok && self.stripe_count > 0 && self.pool > 0 { Ok(()) } else { Err(Errno::Inval) }
    }

    /// Number of stripes that files of this layout can have.
    pub fn stripes(&self) -> u32 {
        match self.pattern {
            Pattern::Whole => 1,
            _ => u32::from(self.stripe_count),
        }
    }

    /// Number of stripes that hold bytes below `size`.
    pub fn stripes_below(&self, size: u64) -> u32 {
        match self.pattern {
            Pattern::Whole => 1,
            Pattern::Striped | Pattern::StripedNear => {
                let units = size.div_ceil(u64::from(self.stripe_size)).max(1);
                (units.min(u64::from(self.stripe_count))) as u32
            }
            Pattern::Growing if size <= GROW_FIRST => 1,
            Pattern::GrowingLate | Pattern::GrowingNear if size <= GROW_SECOND => 1,
            Pattern::Growing if size <= GROW_SECOND => u32::from(self.stripe_count.min(2)),
            Pattern::Growing | Pattern::GrowingLate | Pattern::GrowingNear if size <= GROW_THIRD => {
                let (first, count) = self.grown();
                u32::from(first + count)
            }
            Pattern::Growing | Pattern::GrowingLate | Pattern::GrowingNear => u32::from(self.stripe_count),
        }
    }

    /// The stripes of a growing file before `GROW_THIRD`: the first of them, and their number.
    fn grown(&self) -> (u16, u16) {
        let apart = self.pattern == Pattern::Growing && self.stripe_count > GROWN_STRIPES;
        (u16::from(apart), self.stripe_count.min(GROWN_STRIPES))
    }

    /// Stripe index of the byte at `offset`, and the end of the run of bytes around it that lie in the same
    /// stripe without a gap.
    pub fn stripe_at(&self, offset: u64) -> (u32, u64) {
        let unit = u64::from(self.stripe_size);
        let unit_end = (offset / unit + 1).saturating_mul(unit);
        let round_robin = |count: u16| {
            let count = u64::from(count.max(1));
            if count == 1 { (0, u64::MAX) } else { (((offset / unit) % count) as u32, unit_end) }
        };
        match self.pattern {
            // A single stripe has no parts.
            Pattern::Growing | Pattern::GrowingLate | Pattern::GrowingNear if self.stripe_count <= 1 => (0, u64::MAX),
            Pattern::Growing if offset < GROW_FIRST => (0, GROW_FIRST),
            Pattern::Growing if offset < GROW_SECOND => (1, GROW_SECOND),
            Pattern::GrowingLate | Pattern::GrowingNear if offset < GROW_SECOND => (0, GROW_SECOND),
            Pattern::Growing | Pattern::GrowingLate | Pattern::GrowingNear if offset < GROW_THIRD => {
                let (first, count) = self.grown();
                let (stripe, end) = round_robin(count);
                (u32::from(first) + stripe, end.min(GROW_THIRD))
            }
            Pattern::Growing | Pattern::GrowingLate | Pattern::GrowingNear => round_robin(self.stripe_count),
            Pattern::Whole => (0, u64::MAX),
            Pattern::Striped | Pattern::StripedNear => round_robin(self.stripe_count),
        }
    }

    /// Number of stripes that can hold bytes of `range`, which is not empty.
    fn stripes_within(&self, range: ByteRange) -> u32 {
        let all = self.stripes_below(range.end);
        let (first, _) = self.grown();
        let grown = range.start >= GROW_SECOND && range.end <= GROW_THIRD;
        if grown && self.pattern == Pattern::Growing { all - u32::from(first) } else { all }
    }

    /// Returns the offset at which the bytes begin that lie, without a gap up to `offset`, in the same stripe as the
    /// byte at `offset`.
    fn run_start(&self, offset: u64) -> u64 {
        let unit = u64::from(self.stripe_size);
        let parts = match self.pattern {
            Pattern::Growing => &[GROW_THIRD, GROW_SECOND, GROW_FIRST][..],
            Pattern::GrowingLate | Pattern::GrowingNear => &[GROW_THIRD, GROW_SECOND],
            Pattern::Striped | Pattern::StripedNear | Pattern::Whole => &[],
        };
        let part = parts.iter().copied().find(|start| *start <= offset).unwrap_or(0);
        part.max(offset / unit * unit)
    }

    /// The target of stripe `stripe` of a file owned by `ino`'s target. Stripe 0 is with its inode, and each further
    /// one of a round over the pool is on another target.
    pub fn target(&self, ino: Ino, stripe: u32) -> TargetId {
        let pool = u32::from(self.pool);
        let place = match stripe % pool {
            0 => 0,
            near if self.pattern.is_near() => near,
            other => {
                let place = Part::of(other, pool).place(other, ino);
                1 + (place - 1 + self.turn(ino)) % (pool - 1)
            }
        };
        TargetId(((u32::from(ino.target().0) + place) % pool) as u16)
    }

    /// Returns the number of places by which all stripes but the first of a growing file are shifted, so that stripe 1
    /// of a directory's files is on each other target equally often.
    fn turn(&self, ino: Ino) -> u32 {
        if self.pattern != Pattern::Growing {
            return 0;
        }
        let mixed = ino.local().wrapping_mul(0xd6e8_feb8_6659_fd93);
        (mixed >> 32) as u32 % (u32::from(self.pool) - 1)
    }

    /// The stripes of a file owned by `ino`'s target that live on `target`, ascending.
    pub fn stripes_on(&self, ino: Ino, target: TargetId) -> impl Iterator<Item = u32> + use<> {
        let pool = u32::from(self.pool);
        let first = match (u32::from(target.0) + pool - u32::from(ino.target().0) % pool) % pool {
            0 => 0,
            near if self.pattern.is_near() => near,
            place => {
                let place = 1 + (place - 1 + (pool - 1) - self.turn(ino)) % (pool - 1);
                Part::at(place, pool).stripe(place, ino)
            }
        };
        let end = if u32::from(target.0) < pool { self.stripes() } else { 0 };
        (first..end).step_by(pool as usize)
    }

    /// The part of each object that holds bytes of `range`, from its first byte to its last. Walks a round of stripes
    /// at either end, so it takes no longer for a range that is very long.
    pub fn spans(&self, ino: Ino, range: ByteRange) -> BTreeMap<ObjectId, ByteRange> {
        let mut spans: BTreeMap<ObjectId, ByteRange> = BTreeMap::new();
        if range.is_empty() {
            return spans;
        }
        let all = self.stripes_within(range) as usize;
        let mut ends = BTreeMap::new();
        let mut end = range.end;
        while end > range.start && ends.len() < all {
            let at = end - 1;
            let (stripe, run_end) = self.stripe_at(at);
            ends.entry(ObjectId { ino, stripe }).or_insert(end);
            end = if run_end == u64::MAX && all == 1 { range.start } else { self.run_start(at) };
        }
        for (object, piece) in self.pieces(ino, range) {
            if let Some(&end) = ends.get(&object) {
                spans.entry(object).or_insert(ByteRange::new(piece.start, end));
            }
            if spans.len() == ends.len() {
                break;
            }
        }
        spans
    }

    /// Cuts `range` of the file into pieces that each lie in one object, ascending by offset.
    pub fn pieces(&self, ino: Ino, range: ByteRange) -> impl Iterator<Item = (ObjectId, ByteRange)> + use<> {
        let layout = *self;
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let (stripe, end) = layout.stripe_at(at);
            let piece = ByteRange::new(at, end.min(range.end));
            at = piece.end;
            Some((ObjectId { ino, stripe }, piece))
        })
    }
}

/// A part of the targets beside that of the inode. Places count from the inode's target: 1 is the next one.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// The number of the part.
    number: u32,
    /// Place of its first target.
    start: u32,
    /// Number of its targets.
    len: u32,
}

impl Part {
    /// Part `number` of the `pool - 1` other targets: the first parts are larger by one where the parts cannot all be
    /// equal.
    fn new(number: u32, pool: u32) -> Part {
        let (least, larger) = ((pool - 1) / PARTS, (pool - 1) % PARTS);
        let start = 1 + number * least + number.min(larger);
        Part { number, start, len: least + u32::from(number < larger) }
    }

    /// Returns the part to which stripe `stripe` of a round belongs; parts are counted from 1.
    fn of(stripe: u32, pool: u32) -> Part {
        Part::new((stripe - 1) % PARTS, pool)
    }

    /// Returns the part in which a place lies; parts are counted from 1.
    fn at(place: u32, pool: u32) -> Part {
        let mut parts = (0..PARTS).rev().map(|number| Part::new(number, pool));
        parts.find(|part| place >= part.start && part.len > 0).unwrap_or(Part::new(0, pool))
    }

    /// The start of a file in the part: neighbouring numbers begin at different places.
    fn begin(self, ino: Ino) -> u32 {
        let mixed = ino.local().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 32) as u32 % self.len
    }

    fn place(self, stripe: u32, ino: Ino) -> u32 {
        self.start + ((stripe - 1) / PARTS + self.begin(ino)) % self.len
    }

    fn stripe(self, place: u32, ino: Ino) -> u32 {
        let turn = (place - self.start + self.len - self.begin(ino)) % self.len;
        1 + self.number + turn * PARTS
    }
}

/// Target for the inode of a new sub-directory: by hash, so that directories spread.
pub fn directory_target(parent: Ino, name: &[u8], pool: u16) -> TargetId {
    use siphasher::sip::SipHasher13;
    use std::hash::Hasher;
    let mut h = SipHasher13::new_with_keys(0x616d_7068, parent.0);
    h.write(name);
    TargetId((h.finish() % u64::from(pool.max(1))) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: the byte of an advice is the I/O mode as long as nothing else is requested, and no other byte is taken.
    /// Method: all bytes.
    #[test]
    fn bytes_of_an_advice() {
        assert_eq!(
            [IoMode::Auto, IoMode::Buffered, IoMode::Direct].map(|mode| u8::from(Advice::from(mode))),
            [0, 1, 2]
        );
        for byte in 0..=u8::MAX {
            let read = Advice::try_from(byte).map(|a| {
                let others = Advice::new(a.mode(), a.kernel_cache(), a.checksums(), a.consistency());
                others.with(AskedAdvice::Subdirectories(a.subdirectories()))
            });
            assert_eq!(read.map(u8::from).ok(), Some(byte).filter(|byte| *byte < 108));
        }
        let off = AskedAdvice::KernelCache(KernelCache::Off);
        let both = Advice::from(IoMode::Direct).with(off);
        assert_eq!(u8::from(both), 8);
        assert_eq!(both.with(AskedAdvice::Mode(IoMode::Auto)), Advice::default().with(off));
        let all = both.with(AskedAdvice::Checksums(DataChecksums::On));
        assert_eq!((u8::from(all), all.mode(), all.kernel_cache()), (17, IoMode::Direct, KernelCache::Off));
        assert_eq!(all.with(AskedAdvice::Checksums(DataChecksums::Auto)), both);
        let commit = all.with(AskedAdvice::Consistency(Consistency::Commit));
        assert_eq!((u8::from(commit), commit.checksums()), (44, DataChecksums::On));
        assert_eq!(commit.with(AskedAdvice::Consistency(Consistency::Posix)), all);
        let sharded = commit.with(AskedAdvice::Subdirectories(Subdirectories::Sharded));
        assert_eq!((u8::from(sharded), sharded.consistency()), (98, Consistency::Commit));
        assert_eq!(sharded.with(AskedAdvice::Mode(IoMode::Direct)), sharded, "direct already");
        assert_eq!(sharded.with(AskedAdvice::Subdirectories(Subdirectories::Plain)), commit);
    }

    /// Goal: pieces cover a range exactly once and agree with `stripe_at` for every byte sampled.
    #[test]
    fn pieces_cover_exactly() {
        let ino = Ino::new(TargetId(2), 9);
        for layout in [
            Layout::growing(5),
            Layout { pattern: Pattern::Whole, ..Layout::growing(4) },
            Layout { pattern: Pattern::Striped, stripe_size: 65536, stripe_count: 3, pool: 4 },
            Layout { pattern: Pattern::GrowingNear, ..Layout::growing(6) },
            Layout { pattern: Pattern::GrowingLate, ..Layout::growing(6) },
            Layout { stripe_size: 8 << 20, ..Layout::growing(9) },
            Layout::growing(1),
            Layout::growing(2),
        ] {
            for (a, b) in [
                (0, 1),
                (0, 10 << 20),
                (3 << 20, 300 << 20),
                (65535, 65537),
                ((1 << 20) - 1, (1 << 20) + 1),
                ((256 << 20) - 5, (256 << 20) + 5),
            ] {
                let mut at = a;
                for (o, r) in layout.pieces(ino, ByteRange::new(a, b)) {
                    assert_eq!(r.start, at);
                    assert!(!r.is_empty());
                    assert_eq!(layout.stripe_at(r.start).0, o.stripe);
                    assert_eq!(layout.stripe_at(r.end - 1).0, o.stripe);
                    assert!(o.stripe < layout.stripes_below(b));
                    at = r.end;
                }
                assert_eq!(at, b);
            }
        }
        assert_eq!(Layout::growing(4).target(ino, 0), ino.target(), "stripe 0 lives with the inode");
    }

    /// Goal: spans are the first and the last byte of each object in a range, quickly also to the end of the largest
    /// file. Method: compared with a walk over all pieces, for ranges near the offsets where layouts grow, and for
    /// ranges of 8 EiB.
    #[test]
    fn spans_reach_from_first_to_last_byte() {
        let ino = Ino::new(TargetId(1), 4);
        let striped = Layout { pattern: Pattern::Striped, stripe_size: 65536, stripe_count: 3, pool: 4 };
        let layouts = [Layout::growing(8), Layout::growing(4), Layout::growing(3), Layout::growing(1), striped];
        let others = [Pattern::Whole, Pattern::GrowingLate].map(|pattern| Layout { pattern, ..striped });
        let wide = Layout { stripe_size: 8 << 20, ..Layout::growing(8) };
        for layout in layouts.into_iter().chain(others).chain([wide]) {
            let edges = [
                0,
                1,
                65536,
                GROW_FIRST - 1,
                GROW_FIRST,
                GROW_FIRST + 3,
                6 << 20,
                GROW_SECOND,
                GROW_SECOND + 77,
                GROW_THIRD,
                GROW_THIRD + 77,
                300 << 20,
            ];
            for (from, to) in edges.iter().flat_map(|a| edges.iter().map(move |b| (*a, *b))).filter(|(a, b)| a <= b) {
                let mut want: BTreeMap<ObjectId, ByteRange> = BTreeMap::new();
                for (object, piece) in layout.pieces(ino, ByteRange::new(from, to)) {
                    want.entry(object).and_modify(|r| r.end = piece.end).or_insert(piece);
                }
                assert_eq!(layout.spans(ino, ByteRange::new(from, to)), want, "{layout:?} {from}-{to}");
            }
            let whole = layout.spans(ino, ByteRange::new(5, i64::MAX as u64));
            assert_eq!((whole.len() as u32, whole[&ObjectId { ino, stripe: 0 }].start), (layout.stripes(), 5));
        }
    }

    /// Goal: every stripe is on one target, and no request exceeds the number that can be visited. Method: compared
    /// with `target`, for pools of all sizes to 6, with owners and targets beyond them; counts on both sides of the
    /// bound.
    #[test]
    fn stripes_of_a_target() {
        let patterns = [Pattern::Striped, Pattern::StripedNear, Pattern::Growing, Pattern::GrowingLate];
        let pools = (1..=14).flat_map(|pool| [1, 2, 5, 6, 7, 40].map(|count| (pool, count)));
        for ((pool, count), pattern) in pools.flat_map(|asked| patterns.map(|pattern| (asked, pattern))) {
            let layout = Layout { pattern, stripe_size: 65536, stripe_count: count, pool };
            for (owner, target) in (0..16).flat_map(|owner| (0..16).map(move |target| (owner, TargetId(target)))) {
                let ino = Ino::new(TargetId(owner), 3 + 7 * u64::from(owner));
                let want: Vec<u32> = (0..u32::from(count)).filter(|s| layout.target(ino, *s) == target).collect();
                assert_eq!(layout.stripes_on(ino, target).collect::<Vec<_>>(), want, "{layout:?} {owner} {target:?}");
            }
        }
        let asked = |pattern, stripe_count, pool| Layout { pattern, stripe_size: 65536, stripe_count, pool };
        assert_eq!(asked(Pattern::Striped, 2048, 2).check_asked(), Ok(()));
        assert_eq!(asked(Pattern::Striped, 2049, 2).check_asked(), Err(Errno::Inval));
        assert_eq!(asked(Pattern::Striped, 2049, 2).check(), Ok(()), "what is stored opens");
        assert_eq!(asked(Pattern::Striped, u16::MAX, 64).check_asked(), Ok(()));
        assert_eq!(asked(Pattern::Whole, 5000, 1).check_asked(), Ok(()));
    }

    /// Goal: small files need one target, files up to 4 MiB two, and larger ones up to 256 MiB those and few others.
    /// Method: the growing default at its bounds, in clusters of several sizes.
    #[test]
    fn small_files_have_one_stripe() {
        for (pool, grown) in [(8, 5), (5, 5), (4, 4), (2, 2), (1, 1)] {
            let layout = Layout::growing(pool);
            assert_eq!(layout.stripes_below(GROW_FIRST), 1);
            assert_eq!(layout.stripes_below(GROW_FIRST + 1), u32::from(pool.min(2)));
            assert_eq!(layout.stripes_below(GROW_SECOND), u32::from(pool.min(2)));
            assert_eq!(layout.stripes_below(GROW_SECOND + 1), grown);
            assert_eq!(layout.stripes_below(GROW_THIRD + 1), u32::from(pool));
        }
    }

    /// Goal: the bytes of many files of one directory are on all targets alike, but for the first part of each file.
    /// Method: 3,000 files of some sizes, in clusters of several sizes; the bytes of each target.
    #[test]
    fn files_of_a_directory_use_all_targets() {
        const FILES: u64 = 3000;
        for pool in [3, 4, 5, 12, 16] {
            for size in [2 << 20, 4 << 20, 24 << 20, 200 << 20] {
                let layout = Layout::growing(pool);
                let mut bytes = vec![0u64; usize::from(pool)];
                for ino in (5000..5000 + FILES).map(|local| Ino::new(TargetId(1), local)) {
                    for (object, piece) in layout.pieces(ino, ByteRange::new(0, size)) {
                        bytes[usize::from(layout.target(ino, object.stripe).0)] += piece.end - piece.start;
                    }
                }
                assert_eq!(bytes.iter().sum::<u64>(), FILES * size);
                let own = bytes.remove(1);
                let mean = FILES * size / u64::from(pool);
                assert!(own <= (mean * 11 / 10).max(FILES * GROW_FIRST), "{pool} targets, {size}: {own} of {mean}");
                let mean = bytes.iter().sum::<u64>() / (u64::from(pool) - 1);
                let alike = bytes.iter().all(|bytes| (mean * 4 / 5..=mean * 6 / 5).contains(bytes));
                assert!(alike, "{pool} targets, {size}: {bytes:?} of {mean}");
            }
        }
    }

    /// Goal: four stripes of a file reach several servers, the files of a directory use all targets equally, and one
    /// round of stripes uses each target once. Method: pools of servers with four targets each; counts.
    #[test]
    fn stripes_are_scattered() {
        for servers in 2..=8u16 {
            let layout = Layout::growing(servers * 4);
            let mut files = vec![0u32; usize::from(layout.pool)];
            for local in 1000..2000 {
                let ino = Ino::new(TargetId(1), local);
                let mut targets: Vec<u16> = (0..5).map(|stripe| layout.target(ino, stripe).0).collect();
                assert_eq!(targets.remove(0), 1, "stripe 0 is with its inode");
                let reached: std::collections::BTreeSet<u16> = targets.iter().map(|target| target / 4).collect();
                assert!(reached.len() >= usize::from(servers.min(3)) - usize::from(servers > 2), "{targets:?}");
                targets.iter().for_each(|target| files[usize::from(*target)] += 1);
                let mut all: Vec<u16> = (0..u32::from(layout.pool)).map(|s| layout.target(ino, s).0).collect();
                all.sort_unstable();
                assert_eq!(all, (0..layout.pool).collect::<Vec<_>>());
            }
            let mean = 4000 / (u32::from(layout.pool) - 1);
            let others = files.iter().enumerate().filter(|(target, _)| *target != 1);
            for (target, count) in others {
                assert!(
                    (mean * 3 / 5..=mean * 8 / 5).contains(count),
                    "{servers} servers, {target}: {count} of {mean}"
                );
            }
        }
    }

    /// Goal: files of older versions keep their places, and what is made in their directories is of today. Method:
    /// layouts with given numbers.
    #[test]
    fn near_layouts_stay() {
        let ino = Ino::new(TargetId(10), 7);
        for pattern in [Pattern::GrowingNear, Pattern::StripedNear] {
            let near = Layout { pattern, ..Layout::growing(12) };
            assert_eq!((0..4).map(|s| near.target(ino, s).0).collect::<Vec<_>>(), [10, 11, 0, 1]);
            assert_eq!(near.stripes_on(ino, TargetId(1)).collect::<Vec<_>>(), [3]);
        }
        for pattern in [Pattern::GrowingNear, Pattern::GrowingLate] {
            let old = Layout { pattern, ..Layout::growing(12) };
            assert_eq!((old.stripes_below(GROW_SECOND), old.stripes_below(GROW_SECOND + 1)), (1, 4));
            assert_eq!((old.stripe_at(GROW_FIRST), old.stripe_at(5 << 20).0), ((0, GROW_SECOND), 1));
            assert_eq!((old.in_pool(12), old.in_pool(16)), (Layout::growing(12), Layout::growing(16)));
        }
    }
}
