//! `Pieces`: the locks of one owner on one file.
//!
//! Owns: the ranges with their modes. Does not own: locks of others (the server).
//!
//! Invariant: ranges are sorted by start and disjoint, and two adjacent ones differ in mode.

use amphi_types::{ByteRange, Ino};
use amphi_wire::{FileLockFamily, FileLockOwner, FileLockSpec, LockMode};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Piece {
    range: ByteRange,
    mode: LockMode,
    pid: u32,
}

/// Ranges with their modes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pieces(Vec<Piece>);

impl Pieces {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether any byte of `range` is held.
    pub(crate) fn overlap(&self, range: ByteRange) -> bool {
        self.0.iter().any(|p| p.range.overlaps(&range))
    }

    /// Sets `range` to a mode, or to not held.
    pub(crate) fn set(&mut self, range: ByteRange, to: Option<(LockMode, u32)>) {
        let mut all = Vec::with_capacity(self.0.len() + 2);
        for p in &self.0 {
            for left in [
                ByteRange::new(p.range.start, p.range.end.min(range.start)),
                ByteRange::new(p.range.start.max(range.end), p.range.end),
            ] {
                if left.start < left.end {
                    all.push(Piece { range: left, ..*p });
                }
            }
        }
        if let Some((mode, pid)) = to {
            all.push(Piece { range, mode, pid });
        }
        all.sort_by_key(|p| p.range.start);
        self.0.clear();
        for p in all {
            match self.0.last_mut() {
                Some(last) if last.range.end == p.range.start && last.mode == p.mode => last.range.end = p.range.end,
                _ => self.0.push(p),
            }
        }
    }

    /// Removes the locks that the server may release before it answers a request for `lock`. Returns the pieces that
    /// were held before.
    pub(crate) fn give_up_for(&mut self, lock: &FileLockSpec) -> Pieces {
        let before = self.clone();
        for p in &before.0 {
            let part = p.range.intersect(&lock.range);
            if part.is_empty() || p.mode == lock.mode {
                continue;
            }
            if lock.owner.family == FileLockFamily::Flock {
                self.set(part, None);
            } else if lock.mode == LockMode::Read {
                self.set(part, Some((LockMode::Read, p.pid)));
            }
        }
        before
    }

    /// The parts that are exclusive here and shared in `now`.
    pub(crate) fn converted_in(&self, now: &Pieces) -> Pieces {
        let mut all = Pieces::default();
        for p in self.0.iter().filter(|p| p.mode == LockMode::Write) {
            for (part, _) in now.shared(p.range) {
                all.set(part, Some((LockMode::Write, p.pid)));
            }
        }
        all
    }

    /// The parts of `range` that are not held.
    pub(crate) fn gaps(&self, range: ByteRange) -> Vec<ByteRange> {
        let (mut gaps, mut at) = (Vec::new(), range.start);
        for p in self.0.iter().filter(|p| p.range.overlaps(&range)) {
            if at < p.range.start {
                gaps.push(ByteRange::new(at, p.range.start));
            }
            at = p.range.end;
        }
        if at < range.end {
            gaps.push(ByteRange::new(at, range.end));
        }
        gaps
    }

    /// The parts of `range` that are held as shared, with the processes that took them.
    pub(crate) fn shared(&self, range: ByteRange) -> Vec<(ByteRange, u32)> {
        let shared = self.0.iter().filter(|p| p.mode == LockMode::Read && p.range.overlaps(&range));
        shared.map(|p| (p.range.intersect(&range), p.pid)).collect()
    }

    /// The pieces as locks of an owner on a file.
    pub(crate) fn specs(&self, ino: Ino, owner: FileLockOwner) -> Vec<FileLockSpec> {
        let spec = |p: &Piece| FileLockSpec { ino, owner, pid: p.pid, mode: p.mode, range: p.range };
        self.0.iter().map(spec).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn r(start: u64, end: u64) -> ByteRange {
        ByteRange { start, end }
    }

    fn model(pieces: &Pieces) -> Vec<Option<LockMode>> {
        (0..40).map(|b| pieces.0.iter().find(|p| p.range.start <= b && b < p.range.end).map(|p| p.mode)).collect()
    }

    /// Goal: pieces behave as an array of bytes, and stay sorted, disjoint and joined. Method: random changes are
    /// applied to pieces and to an array.
    #[test]
    fn pieces_are_bytes() {
        let (mut pieces, mut bytes) = (Pieces::default(), vec![None; 40]);
        let mut seed = 7u64;
        let mut rand = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..5000 {
            let start = rand(39);
            let range = r(start, start + 1 + rand(39 - start));
            let to = [None, Some(LockMode::Read), Some(LockMode::Write)][rand(3) as usize];
            let gaps: u64 = pieces.gaps(range).iter().map(|g| g.end - g.start).sum();
            let free = bytes[range.start as usize..range.end as usize].iter().filter(|b| b.is_none()).count();
            assert_eq!(gaps, free as u64);
            assert_eq!(pieces.overlap(range), free as u64 != range.end - range.start);
            pieces.set(range, to.map(|mode| (mode, 1)));
            bytes[range.start as usize..range.end as usize].fill(to);
            assert_eq!(model(&pieces), bytes);
            let apart = |w: &[Piece]| {
                w[0].range.end < w[1].range.start || (w[0].range.end == w[1].range.start && w[0].mode != w[1].mode)
            };
            assert!(pieces.0.windows(2).all(apart), "{pieces:?}");
        }
    }

    /// Goal: before a request is sent, the pieces contain only what the server keeps in any case. Method: downgrade,
    /// upgrade and conversion of a flock.
    #[test]
    fn what_is_given_up_early() {
        let spec = |family, mode| FileLockSpec {
            ino: Ino(5),
            owner: FileLockOwner { family, id: 1 },
            pid: 1,
            mode,
            range: r(5, 15),
        };
        let mut held = Pieces::default();
        held.set(r(0, 10), Some((LockMode::Write, 1)));
        let mut now = held.clone();
        assert_eq!(now.give_up_for(&spec(FileLockFamily::Posix, LockMode::Read)), held);
        assert_eq!(now.shared(r(0, 20)), [(r(5, 10), 1)]);
        assert_eq!(now.gaps(r(0, 20)), [r(10, 20)]);
        now.give_up_for(&spec(FileLockFamily::Posix, LockMode::Write));
        assert_eq!(now.shared(r(0, 20)), [(r(5, 10), 1)], "an upgrade may be refused");
        now.give_up_for(&spec(FileLockFamily::Flock, LockMode::Write));
        assert_eq!(now.gaps(r(0, 20)), [r(5, 20)]);
    }
}
