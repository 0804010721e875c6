//! Mistakes of a kernel or a mount that the games must find: the proof that they look.
//!
//! Owns: their names, and which games find them. Does not own: what becomes of them (`Kernel`).

/// A mistake in the giving back of what was lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// One page in three stays when pages are taken back.
    PagesStay,
    /// Pages that are being read when they are taken back come to be kept.
    ReadsStay,
    /// Attributes stay when they are taken back, one time in three.
    AttributesStay,
    /// An answer to a question from before an invalidation is kept.
    LateAnswers,
    /// Names are kept for four seconds longer than they were lent.
    NamesStay,
    /// Names stay when they are taken back, one time in three.
    TakenNamesStay,
    /// The mount does not see to it that the kernel takes the sizes that it is told.
    DroppedSizes,
    /// One changed page in three is dropped without being written back.
    LostStores,
    /// It sees to that only where something is taken back, not where answers, writes and cuts cross.
    CrossingAnswers,
    /// The mount drops no listing before an answer that shows a change.
    ListingsOfBefore,
    /// The kernel goes on as if it had not changed a name itself.
    OwnChangesStay,
    /// The mount shows a directory that was removed with the times that it had.
    RemovedTimesStay,
    /// The attributes of a directory stay when they are taken back, one time in three.
    DirectoriesStay,
}

impl Mistake {
    /// Those that games of files find.
    pub const FILES: [Mistake; 9] = [
        Mistake::PagesStay,
        Mistake::ReadsStay,
        Mistake::AttributesStay,
        Mistake::LateAnswers,
        Mistake::NamesStay,
        Mistake::TakenNamesStay,
        Mistake::DroppedSizes,
        Mistake::LostStores,
        Mistake::CrossingAnswers,
    ];

    /// Those that games of directories find.
    pub const DIRECTORIES: [Mistake; 4] =
        [Mistake::ListingsOfBefore, Mistake::OwnChangesStay, Mistake::RemovedTimesStay, Mistake::DirectoriesStay];
}
