//! `Grants`: the free blocks that targets keep for dirty bytes of this mount (docs/design/grants.md).
//!
//! Owns: how many blocks each target has granted, and how many of them dirty bytes or bytes under way use. Does not
//! own: which blocks these are (`amphi_pagecache::Room`), requesting and returning grants (`writeback::grants`).
//!
//! Invariants:
//!
//! * A block is counted from before its first byte becomes dirty until it is neither dirty nor under way.
//! * When blocks are counted, they are no more than the target keeps for this session. The answers to writes say how
//!   many blocks these writes have used up, and are applied before the writes count as done. So there is always space
//!   on the target for dirty bytes.
//! * Answers may overtake each other. Reports of a target are ordered by the record of its log that they name
//!   (`Grant::kept`).
//!
//! A target counts 2^32 blocks at most, 16 TiB. The number behind the layout: covering a block costs one atomic
//! operation and no lock.

use crate::inode::Inode;
use crate::tables::writeback::limited_files::LimitedFiles;
use amphi_pagecache::Room;
use amphi_types::limits::BLOCK;
use amphi_types::{ByteRange, Errno, Ino, Nearness, Result, TargetId};
use amphi_wire::Answer;
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Targets whose counts are allocated together.
const PAGE: usize = 256;
const _: () = assert!(PAGE * PAGE > u16::MAX as usize, "each target has a count");

/// The contents of the last report of a target.
#[derive(Default)]
struct Told {
    blocks: u64,
    kept: u64,
    /// Blocks that are being returned.
    leaving: u64,
}

/// The grant of one target.
#[derive(Default)]
struct TargetGrant {
    /// Two numbers of 32 bits each: how many blocks may be dirty, and how many are.
    room: AtomicU64,
    told: Mutex<Told>,
    asked: AtomicBool,
}

fn split(room: u64) -> (u64, u64) {
    (room >> 32, room & u64::from(u32::MAX))
}

fn join(limit: u64, used: u64) -> u64 {
    limit.min(u64::from(u32::MAX)) << 32 | used.min(u64::from(u32::MAX))
}

impl TargetGrant {
    fn update(&self, change: impl Fn(u64, u64) -> Option<(u64, u64)>) -> bool {
        let next = |room| {
            let (limit, used) = split(room);
            change(limit, used).map(|(limit, used)| join(limit, used))
        };
        self.room.fetch_update(SeqCst, SeqCst, next).is_ok()
    }

    fn set_limit(&self, told: &Told) {
        let limit = told.blocks.saturating_sub(told.leaving);
        self.update(|_, used| Some((limit, used)));
    }
}

/// The grants of all targets, and the files whose owners have a limit, for which less of a grant is used.
pub(crate) struct Grants {
    targets: [OnceLock<Box<[TargetGrant; PAGE]>>; PAGE],
    pub(crate) limits: LimitedFiles,
}

impl Default for Grants {
    fn default() -> Grants {
        Grants { targets: [const { OnceLock::new() }; PAGE], limits: LimitedFiles::default() }
    }
}

impl Grants {
    fn of(&self, target: TargetId) -> &TargetGrant {
        let at = usize::from(target.0);
        let page = self.targets[at / PAGE].get_or_init(|| Box::new(std::array::from_fn(|_| TargetGrant::default())));
        &page[at % PAGE]
    }

    /// Counts this many more blocks of a file against the grant, if the grant has as many left and the limits of the
    /// file's owner permit it.
    #[inline]
    pub(crate) fn cover(&self, ino: Ino, target: TargetId, blocks: u64) -> bool {
        let most = match self.limits.nearness(ino) {
            Nearness::Unlimited => u64::MAX,
            Nearness::Far => Nearness::FAR_BLOCKS,
            Nearness::Near => return false,
        };
        self.of(target).update(|limit, used| (used + blocks <= limit.min(most)).then_some((limit, used + blocks)))
    }

    /// This many blocks are not dirty any more.
    #[inline]
    pub(crate) fn uncover(&self, target: TargetId, blocks: u64) {
        let counted = self.of(target).update(|limit, used| used.checked_sub(blocks).map(|used| (limit, used)));
        // Room that was set aside is given up in `drop` as well.
        assert!(counted || std::thread::panicking(), "{target}: {blocks} blocks end that were never counted");
    }

    /// Bytes of the target's blocks that are dirty or under way.
    pub(crate) fn used_bytes(&self, target: TargetId) -> u64 {
        split(self.of(target).room.load(SeqCst)).1 * BLOCK
    }

    /// Returns whether the target got a request for a grant.
    pub(crate) fn is_known(&self, target: TargetId) -> bool {
        self.of(target).asked.load(SeqCst)
    }

    /// Called when an answer says how many blocks the session has been granted.
    fn told(&self, target: TargetId, blocks: u64, kept: u64) {
        let of = self.of(target);
        let mut told = of.told.lock();
        of.asked.store(true, SeqCst);
        if kept < told.kept {
            return;
        }
        told.blocks = if kept == told.kept { blocks.min(told.blocks) } else { blocks };
        told.kept = kept;
        of.set_limit(&told);
    }

    /// Applies the answer to a request of write-back, before the written bytes count as being on the target. If there
    /// was no answer, the request may or may not have been executed.
    pub(crate) fn answered<T>(&self, target: TargetId, answer: &Result<(Answer, T)>) {
        match answer {
            Ok((answer, _)) => self.told_by(target, answer),
            // The request was not sent.
            Err(Errno::Again) => {}
            Err(_) => self.unknown(target),
        }
    }

    /// Applies what an answer says of the grant, if anything.
    pub(crate) fn told_by(&self, target: TargetId, answer: &Answer) {
        if let Some(grant) = &answer.grant
            && let Some(blocks) = grant.blocks
        {
            self.told(target, blocks, grant.kept);
        }
    }

    /// It is not known which writes the target has executed. The target counts as having granted nothing until it
    /// reports its grant again.
    pub(crate) fn unknown(&self, target: TargetId) {
        let of = self.of(target);
        let mut told = of.told.lock();
        told.blocks = 0;
        of.set_limit(&told);
    }

    /// Called when the session has begun anew, without grants.
    pub(crate) fn begin_anew(&self, target: TargetId) {
        let of = self.of(target);
        let mut told = of.told.lock();
        (told.blocks, told.leaving) = (0, 0);
        of.asked.store(false, SeqCst);
        of.set_limit(&told);
    }

    /// Takes blocks out of the grant that nothing dirty needs, to be returned. `has_left` follows.
    pub(crate) fn leave(&self, target: TargetId) -> u64 {
        let of = self.of(target);
        let mut told = of.told.lock();
        let (limit, used) = split(of.room.load(SeqCst));
        let mut unused = limit.saturating_sub(used);
        // Other threads cover blocks at the same time.
        while !of.update(|limit, used| (used + unused <= limit).then(|| (limit - unused, used))) {
            let (limit, used) = split(of.room.load(SeqCst));
            unused = limit.saturating_sub(used);
        }
        told.leaving += unused;
        unused
    }

    /// Called when the target has confirmed the return of this many blocks and has reported the rest.
    pub(crate) fn has_left(&self, target: TargetId, blocks: u64) {
        let of = self.of(target);
        let mut told = of.told.lock();
        told.leaving = told.leaving.saturating_sub(blocks);
        of.set_limit(&told);
    }
}

impl Room<Inode> for Grants {
    fn cover(&self, file: &Inode, offset: u64, blocks: u32) -> bool {
        Grants::cover(self, file.ino, target_at(file, offset), u64::from(blocks))
    }

    fn uncover(&self, file: &Inode, offset: u64, blocks: u32) {
        Grants::uncover(self, target_at(file, offset), u64::from(blocks));
    }
}

/// The target of a unit of a file. No stripe unit is smaller than a unit.
fn target_at(file: &Inode, offset: u64) -> TargetId {
    let layout = file.layout();
    let object = layout.pieces(file.ino, ByteRange::at(offset, 1)).next();
    object.map_or(file.ino.target(), |(object, _)| layout.target(file.ino, object.stripe))
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: TargetId = TargetId(700);

    /// Goal: dirty bytes never use more blocks than the target reserves, whatever the order of the answers, and blocks
    /// that are being returned are not used. Method: answers out of order, a lost answer, and blocks that are returned
    /// while an older answer arrives.
    #[test]
    fn no_more_is_covered_than_is_kept() {
        let grants = Grants::default();
        let told = |kept, blocks| grants.told(T, blocks, kept);
        assert!(!grants.is_known(T) && !grants.cover(Ino(1), T, 1));
        told(5, 10);
        assert!(grants.is_known(T) && grants.cover(Ino(1), T, 10) && !grants.cover(Ino(1), T, 1));
        told(7, 4);
        told(6, 9);
        grants.uncover(T, 7);
        assert!(grants.cover(Ino(1), T, 1) && !grants.cover(Ino(1), T, 1), "the latest record counts");
        told(7, 9);
        assert!(!grants.cover(Ino(1), T, 1), "of one record the least");
        told(8, 20);
        assert_eq!(grants.leave(T), 16);
        told(9, 18);
        assert!(!grants.cover(Ino(1), T, 1), "what leaves is not used");
        told(10, 4);
        grants.has_left(T, 16);
        grants.uncover(T, 4);
        assert!(grants.cover(Ino(1), T, 4) && !grants.cover(Ino(1), T, 1));
        grants.unknown(T);
        told(10, 4);
        grants.uncover(T, 4);
        assert!(!grants.cover(Ino(1), T, 1), "it has not said more since");
        told(11, 4);
        assert!(grants.cover(Ino(1), T, 4));
        grants.begin_anew(T);
        assert!(!grants.is_known(T) && !grants.cover(Ino(1), T, 1));
    }
}
