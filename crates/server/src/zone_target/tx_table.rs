//! `TxTable`: operations over several targets that are under way on one target.
//!
//! Owns: unfinished promises and decisions, as tables. Does not own: how they are completed (`tx::two_phase`), their
//! form in the log (`records`).

use crate::coherence::tokens::Changing;
use crate::records::{Intent, TxId};
use crate::zone_target::gate::{Gate, Guard};
use crate::zone_target::predicted::Predicted;
use crate::zone_target::queues::NameKey;
use crate::zone_target::residency::HeldInodes;
use amphi_meta::Part;
use amphi_types::{Amount, Owner, TargetId, Timespec};
use std::collections::{BTreeMap, BTreeSet};

/// How a promise is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Promise {
    /// The promise is a record of the participant in the log.
    Logged,
    /// The promise is in memory only: the coordinator's decision will contain the changes, and this server has both
    /// targets.
    Held,
}

/// A promise that was given.
pub struct Prepared {
    /// Time stamp of the changes.
    pub now: Timespec,
    /// The changes.
    pub parts: Vec<Part>,
    /// How the promise is kept.
    pub promise: Promise,
    /// Held until the outcome is known.
    pub guard: Guard<NameKey>,
    /// The change of names and attributes for which clients cache nothing until it ends. A promise of an earlier run
    /// has none: no tokens are granted before that promise is finished.
    pub changing: Option<Changing>,
    /// Part of a limit that the new inodes hold until they are counted. A promise of an earlier run holds none.
    pub held: Option<(Owner, Amount)>,
    /// The inodes of the changes, so that nothing has to be read when the decision comes. A promise of an earlier run
    /// holds none.
    pub inodes: Option<HeldInodes>,
}

/// Operations over several targets that are under way on one target.
pub struct TxTable {
    id: TargetId,
    next: u64,
    /// Promises that were given.
    pub prepared: BTreeMap<TxId, Prepared>,
    /// Decisions that participants may not know yet.
    pub committed: BTreeMap<TxId, Vec<TargetId>>,
    /// Operations that this target coordinates and that are not decided yet.
    pub undecided: BTreeSet<TxId>,
    /// Decisions of an earlier run that were not sent to the other servers yet.
    pub untold: BTreeSet<TxId>,
    /// Decisions that are logged together with their changes.
    pub local_commits: LocalCommits,
    /// Whether directories that become empty will be removed.
    pub predicted: Predicted,
    /// Whether a task asks about old promises.
    pub watched: bool,
    /// On target 0, the gate of operations that may move directories.
    pub move_gate: Gate<()>,
    /// The operations that may move directories, by number of the move.
    pub moving: BTreeMap<u64, Guard<()>>,
    /// The last number of a move.
    pub next_move: u64,
}

impl TxTable {
    /// The table with the intents that were found at recovery. Their names are locked by `hold_recovered`.
    pub fn new(id: TargetId, starts: u64, recovered: Vec<Intent>) -> TxTable {
        let mut txs = TxTable {
            id,
            next: starts << 40,
            prepared: BTreeMap::new(),
            committed: BTreeMap::new(),
            undecided: BTreeSet::new(),
            untold: BTreeSet::new(),
            local_commits: LocalCommits::default(),
            predicted: Predicted::default(),
            watched: false,
            move_gate: Gate::default(),
            moving: BTreeMap::new(),
            next_move: starts << 40,
        };
        for intent in recovered {
            match intent {
                Intent::Prepared { tx, now, parts } => {
                    let promise = Promise::Logged;
                    let guard = Guard::none();
                    let prepared = Prepared { now, parts, promise, guard, changing: None, held: None, inodes: None };
                    txs.prepared.insert(tx, prepared);
                }
                Intent::Committed { tx, participants } => drop(txs.committed.insert(tx, participants)),
                Intent::Decided { tx, now, parts } => txs.local_commits.found(tx, now, parts),
                Intent::Applied { tx } => txs.local_commits.found_mark(tx),
            }
        }
        txs
    }

    /// The identity of a new operation that this target coordinates.
    pub fn new_tx(&mut self) -> TxId {
        self.next += 1;
        let tx = TxId { coordinator: self.id, number: self.next };
        debug_assert!(!self.undecided.contains(&tx) && !self.committed.contains_key(&tx), "a number is used once");
        tx
    }

    /// Returns whether every promise and every decision is finished, except those that wait for other servers, which
    /// are finished after the next start.
    pub fn is_idle(&self, is_local: impl Fn(TargetId) -> bool) -> bool {
        self.local_commits.is_idle()
            && self.prepared.keys().all(|tx| !is_local(tx.coordinator))
            && self.committed.values().all(|all| all.iter().any(|t| !is_local(*t)))
    }
}

/// The changes of a decision: time stamp, and the changes of each participant.
pub type Changes = (Timespec, Vec<(TargetId, Vec<Part>)>);

/// The decisions of one target together with their changes, and its marks.
#[derive(Default)]
pub struct LocalCommits {
    /// Decisions whose items are in the log, with their participants.
    pub known: BTreeMap<TxId, Vec<TargetId>>,
    /// The decisions among them whose participants have made the changes.
    pub over: Vec<TxId>,
    /// Whether a task deletes decisions that are finished.
    pub forgetting: bool,
    /// Changes of decisions of an earlier run, until they are made again.
    pub found: BTreeMap<TxId, Changes>,
    /// Marks of an earlier run.
    pub marks: BTreeSet<TxId>,
}

impl LocalCommits {
    /// A decision of an earlier run.
    pub fn found(&mut self, tx: TxId, now: Timespec, parts: Vec<(TargetId, Vec<Part>)>) {
        self.known.insert(tx, parts.iter().map(|(t, _)| *t).collect());
        self.found.insert(tx, (now, parts));
    }

    /// A mark of an earlier run.
    pub fn found_mark(&mut self, tx: TxId) {
        self.marks.insert(tx);
    }

    /// Notes a decision that is logged with its changes.
    pub fn decide(&mut self, tx: TxId, participants: Vec<TargetId>) {
        assert!(!participants.is_empty(), "operation {} is decided for nobody", tx.number);
        let before = self.known.insert(tx, participants);
        debug_assert!(before.is_none(), "an operation is decided once");
    }

    /// Returns whether the operation was decided and is not forgotten yet.
    pub fn knows(&self, tx: TxId) -> bool {
        self.known.contains_key(&tx)
    }

    /// Returns whether nothing is left to be deleted.
    pub fn is_idle(&self) -> bool {
        self.known.is_empty() && !self.forgetting
    }
}
