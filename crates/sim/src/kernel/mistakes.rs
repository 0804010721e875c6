//! Mistakes of a kernel or a mount that the games must find: the proof that they look.
//!
//! Owns: their names, and which games find them. Does not own: what happens to the answers afterwards (`Kernel`).

/// A planted bug in the invalidation of cached data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// By a planted mistake, one in three of the pages to be invalidated stays.
    PagesStay,
    /// Pages that are being read when they are invalidated stay cached.
    ReadsStay,
    /// When attributes are to be invalidated, they stay one time in three, by a planted mistake.
    AttributesStay,
    /// An answer to a question from before an invalidation is kept.
    LateAnswers,
    /// Names stay cached for four seconds longer than their timeout.
    NamesStay,
    /// When names are to be invalidated, they stay one time in three, by a planted mistake.
    TakenNamesStay,
    /// By a planted mistake, the mount does not make sure that the kernel uses the sizes that it gets.
    DroppedSizes,
    /// One changed page in three is dropped without being written back.
    LostStores,
    /// The kernel handles only invalidations, not the crossing of answers, writes and truncates.
    CrossingAnswers,
    /// The mount drops no listing before an answer that shows a change.
    ListingsOfBefore,
    /// The kernel continues as if it had not changed a name itself.
    OwnChangesStay,
    /// The mount shows a directory that was removed with the times from before its removal.
    RemovedTimesStay,
    /// When the attributes of a directory are to be invalidated, they stay one time in three, by a planted mistake.
    DirectoriesStay,
    /// The mount grants a file lock without making the kernel take the end of the file.
    UntoldLocks,
    /// The mount answers an append that was made elsewhere without making the kernel take the end of the file.
    UntoldAppends,
}

impl Mistake {
    /// Bugs that games of files find.
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

    /// Bugs that games of directories find.
    pub const DIRECTORIES: [Mistake; 4] =
        [Mistake::ListingsOfBefore, Mistake::OwnChangesStay, Mistake::RemovedTimesStay, Mistake::DirectoriesStay];

    /// Bugs that games of appends find.
    pub const APPENDS: [Mistake; 2] = [Mistake::UntoldLocks, Mistake::UntoldAppends];
}
