//! What workers say to each other.
//!
//! Owns: the message types of the mesh. Does not own: the rings (`amphi_sched`), what is done about a message.
//!
//! A request of a client travels to the worker of its target and its answer back; questions between targets do the
//! same. Payloads change hands, nothing is encoded. Who asks keeps the token under which it waits.

use crate::error::ServerError;
use crate::records::{SessionRecord, TxId};
use amphi_env::Buf;
use amphi_meta::{Facts, Gathered, Part};
use amphi_types::{Cred, Ino, Kind, Layout, Name, Result, SessionId, TargetId, Timespec};
use amphi_wire::{Access, Answer, Call, InodeView, Push, RequestId, TargetStatus};

/// A message of the mesh.
pub enum Message {
    /// A client's request for a target of the receiver.
    Call {
        /// Under which the sender waits.
        token: u64,
        /// Whose.
        session: SessionId,
        /// Identity of the request.
        id: RequestId,
        /// What.
        call: Box<Call>,
        /// Payload.
        payload: Option<Buf>,
        /// When its client stops waiting, monotonic ns.
        until_ns: Option<u64>,
    },
    /// The answer to a `Call`.
    Called {
        /// The sender's token.
        token: u64,
        /// The answer.
        answer: Box<Answer>,
        /// Payload.
        payload: Option<Buf>,
    },
    /// A question to a target of the receiver.
    Ask {
        /// Under which the sender waits.
        token: u64,
        /// Which target.
        target: TargetId,
        /// What.
        question: Box<Question>,
    },
    /// The answer to an `Ask`.
    Told {
        /// The sender's token.
        token: u64,
        /// The answer.
        told: Box<Result<Told>>,
    },
    /// To the worker with the connections: send this to the session's client.
    Push {
        /// Whose client.
        session: SessionId,
        /// What.
        push: Push,
    },
    /// To the worker with the connections: the session did not answer a callback in time.
    Overdue {
        /// Which.
        session: SessionId,
    },
    /// Stop receiving: the worker ends.
    Stop,
}

/// A question between targets.
#[derive(Clone, Debug)]
pub enum Question {
    /// `View`: an inode as stat shows it.
    View {
        /// Which.
        ino: Ino,
        /// Wait until no operation over several targets is changing it.
        wait: bool,
    },
    /// `Facts`: an inode as plans see it.
    Facts(Ino),
    /// `Place`: a directory and where a name in it leads.
    Place(Ino, Name),
    /// `Ancestors`: whether `sought` is `from` or above it, as far as the target can say.
    Ancestors {
        /// Where to start.
        from: Ino,
        /// Which directory.
        sought: Ino,
    },
    /// `Ino`: a number for an inode that another target makes.
    NewIno,
    /// `View`: the session opens an inode, after a check of permissions.
    Open {
        /// Who.
        session: SessionId,
        /// On whose behalf.
        cred: Cred,
        /// What.
        ino: Ino,
        /// How.
        access: Access,
    },
    /// `Done` or `Conflict`: promise to make these changes.
    Prepare {
        /// The operation.
        tx: TxId,
        /// Its time stamp.
        now: Timespec,
        /// The changes.
        parts: Vec<Part>,
    },
    /// `Done`: make the promised changes.
    Commit(TxId),
    /// `Done`: forget the promise.
    Abort(TxId),
    /// `Outcome`: was the operation decided?
    Outcome(TxId),
    /// `Done`, when everything logged so far is stable.
    BecomeStable,
    /// `Done`: cut the objects of a file.
    Trim {
        /// The file.
        ino: Ino,
        /// Its layout.
        layout: Layout,
        /// Its new size.
        size: u64,
        /// Generation of the truncate.
        generation: u64,
        /// Its time.
        mtime: Timespec,
    },
    /// `Done`: remove the objects of an inode that is going.
    Destroy(Ino),
    /// `Objects`: what the objects of a file here say.
    Objects(Ino),
    /// `Done`: the session begins.
    SessionStart(SessionId, SessionRecord),
    /// `Done`: nothing more is taken from the session.
    SessionStop(SessionId),
    /// `Done`: opens, locks and slots of the stopped session go.
    SessionForget(SessionId),
    /// `Moving`: one operation at a time may move directories; asked of target 0 alone.
    MoveLock,
    /// `Done`: the next one may.
    MoveUnlock(u64),
    /// `Hail`: what the target was opened as.
    Hail,
    /// `Done`: the cluster is whole, the target may be written to.
    Begin,
    /// `Done`: finish what a crash left half done.
    Recover,
    /// `Status`.
    Status,
    /// `Counters`: of the target's zone, and of its worker if it is that worker's first target.
    Counters {
        /// Start again from zero.
        reset: bool,
    },
    /// `Outcome`: after a sync, whether no work is left that goes on without a request.
    Idle,
    /// `Done`: what the worker's tunables say counts from now on.
    Tune,
    /// `Done`: checkpoint, close the zone.
    Close,
    /// `Done`: close the zone as it is.
    Release,
}

/// What a target was opened as.
#[derive(Clone, Debug)]
pub struct Hail {
    /// Cluster of its zone.
    pub cluster: u64,
    /// Number of targets of that cluster.
    pub pool: u16,
    /// Sessions that it remembers.
    pub sessions: Vec<(SessionId, SessionRecord)>,
}

/// Answers to questions.
#[derive(Clone, Debug)]
pub enum Told {
    /// Done.
    Done,
    /// What was planned on has changed meanwhile.
    Conflict,
    /// An inode.
    View(Box<InodeView>),
    /// An inode.
    Facts(Box<Facts>),
    /// A directory and where a name in it leads.
    Place(Box<Place>),
    /// Whether the directory was found, or where to ask on.
    Ancestors {
        /// Found.
        found: bool,
        /// The first directory of another target.
        next: Option<Ino>,
    },
    /// A number.
    Ino(Ino),
    /// Whether the operation was decided.
    Outcome(bool),
    /// What objects say.
    Objects(Gathered),
    /// The move lock, under this number.
    Moving(u64),
    /// What the target was opened as, or why it could not be.
    Hail(Box<std::result::Result<Hail, ServerError>>),
    /// State of a target: itself, and opens and locks of each session.
    Status(Box<TargetStatus>, Vec<(SessionId, (u64, u64))>),
    /// Counters.
    Counters(Vec<(String, u64)>),
}

/// A directory and where a name in it leads.
#[derive(Clone, Debug)]
pub struct Place {
    /// The directory.
    pub dir: Facts,
    /// What the name leads to.
    pub child: Option<(Ino, Kind)>,
    /// Facts of that, if it lives on the directory's target.
    pub facts: Option<Facts>,
}
