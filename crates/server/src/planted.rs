//! Mistakes that tests plant, to see that the crash sweeps can fail. Outside of tests there are none.

/// One of the planted mistakes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mistake {
    /// The record of a batch does not say that it points at data that may not be synced.
    UnmarkedBatch,
    /// A batch is answered before its record is written.
    EarlyAnswer,
    /// The record of the accepted parts of a batch has the answer although others have not been written.
    HalfAnswer,
    /// A part of a batch is written into the place of the part before it.
    ShiftedPart,
    /// Files that are opened ahead are not checked for permission.
    UncheckedAhead,
    /// A write builds on the stored block although a write of adjacent bytes in the block is under way.
    ForgottenNeighbour,
    /// A write commits before the earlier write of adjacent bytes.
    CommitOutOfTurn,
    /// The record of a flush does not say that it points at data that may not be synced.
    UnmarkedFlush,
    /// A sync does not flush accepted bytes out of the memory.
    UnflushedSync,
    /// A sync counts bytes as logged but does not log them.
    ForgottenLog,
    /// The bytes from the disk are not compared with their checksum.
    Unverified,
    /// The record of a write does not say that it follows its bytes, also not of one that gives them checksums.
    UnorderedWrite,
    /// This is not a mistake: it makes the server keep no evictable value of an extended attribute in memory.
    NoValueKept,
    /// An inode that leaves memory may be one that a request holds.
    HeldInodeLeaves,
    /// Inodes that were read come into memory although others have left it meanwhile.
    OldInodeLoaded,
    /// A change of the attributes of a directory leaves out its last shard.
    ShardLeftOut,
    /// The removal of a directory does not hold the gate of its shards.
    ShardUnguarded,
    /// A target says what a file has there before it survives a loss of power.
    UnsecuredSize,
    /// Mounts are informed of shards while names of the directory itself may be cached.
    ShardsToldEarly,
    /// A restarted server answers `Shards` before all mounts have come back.
    ShardsToldAtStart,
}

/// Returns whether `mistake` is planted.
#[cfg(not(test))]
pub const fn is(_mistake: Mistake) -> bool {
    false
}

#[cfg(test)]
pub use switch::{is, plant};

#[cfg(test)]
mod switch {
    use super::Mistake;
    use std::cell::Cell;

    thread_local! {
        static PLANTED: Cell<Option<Mistake>> = const { Cell::new(None) };
    }

    pub fn plant(mistake: Option<Mistake>) {
        PLANTED.set(mistake);
    }

    pub fn is(mistake: Mistake) -> bool {
        PLANTED.get() == Some(mistake)
    }
}
