//! Mistakes that tests plant, to see that the crash sweep can fail. Outside of tests no mistake is planted.

/// One planted mistake.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mistake {
    /// The root is written before its segment and log are stable.
    RootBeforeSync,
    /// Log space is returned before the root is stable.
    TrimBeforeRoot,
    /// A group may follow any other group, not only the one that it names.
    NoChain,
    /// After power loss, records whose data was never proven to be synced are replayed.
    FreshReplayed,
    /// Synced data counts as stable, whether or not that is proven on the medium.
    StableUnproven,
    /// The mistake: kept records of a killed process are ignored.
    KeptIgnored,
    /// An area is used again before its group is on the disk.
    AreaReused,
    /// The mistake: groups behind a cut are left unchanged.
    CutComesBack,
    /// The mistake: the parity of the part that was cut is left unchanged.
    CutKeepsParity,
    /// Rebuilt bytes are used whether they verify or not.
    RebuiltUnverified,
    /// The log is written however much of it is not synced.
    SyncsLate,
    /// A start looks for proof in an eighth of the log that may be unsynced.
    TailTooShort,
    /// A read of an item does not see records that are queued.
    QueueUnread,
    /// A read does not see the changes that a running checkpoint has taken.
    FrozenUnread,
    /// A scan continues in segments that a checkpoint has replaced, without the changes that it took.
    ScansOld,
    /// A read of an item does not check whether the item changed meanwhile, or whether the bytes that it read were
    /// overwritten.
    ReadsOld,
    /// The index of a segment lacks the last key of each page.
    IndexWrong,
    /// This is no mistake: groups and pages are written without parity, and segments without an index, as version 3
    /// did.
    Version3,
    /// This is no mistake: segments are written without an index, as version 5 did.
    Version5,
}

/// Returns whether `mistake` is planted.
#[cfg(not(test))]
pub const fn is(_mistake: Mistake) -> bool {
    false
}

#[cfg(test)]
pub use switch::{is, is_none, plant};

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

    pub fn is_none() -> bool {
        PLANTED.get().is_none()
    }

    pub fn is(mistake: Mistake) -> bool {
        PLANTED.get() == Some(mistake)
    }
}
