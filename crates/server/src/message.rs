//! What workers say to each other.
//!
//! Owns: the message types of the mesh. Does not own: the rings (`amphi_sched`), what is done about a message.
//!
//! A request of a client travels to the worker of its target and its answer back; questions between targets do the
//! same. Payloads change hands, nothing is encoded. Who asks keeps the token under which it waits.

use crate::error::ServerError;
use crate::records::{HomeRecord, SessionRecord, TxId};
use crate::session::reach::Terms;
use crate::session::rights::Right;
use amphi_env::Buf;
use amphi_meta::{Facts, Gathered, Part};
use amphi_quota::Share;
use amphi_types::{
    Account, Amount, Cred, Errno, Ino, Kind, Layout, Name, Owner, Result, SessionId, TargetId, Timespec,
};
use amphi_wire::keys::KeyRegistry;
use amphi_wire::{Access, Answer, Call, ClusterMap, InodeView, Push, RequestId, TargetStatus, TokenGrant};
use serde::{Deserialize, Serialize};

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
        /// On what terms.
        terms: Terms,
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
        question: Box<TargetRequest>,
    },
    /// The answer to an `Ask`.
    TargetReply {
        /// The sender's token.
        token: u64,
        /// The answer.
        told: Box<Result<TargetReply>>,
    },
    /// To the worker with the sessions: send this to the session's client.
    Push {
        /// Whose client.
        session: SessionId,
        /// What.
        push: Push,
    },
    /// To the worker with the sessions: the session did not answer a callback in time.
    Overdue {
        /// Which.
        session: SessionId,
    },
    /// Between the workers with connections and the one with the sessions, in their own words
    /// (`cluster::sessions::front`).
    Sessions(Box<dyn std::any::Any + Send>),
    /// Stop receiving: the worker ends.
    Stop,
}

/// A question between targets, of one server or of several. One to another server may be executed twice, if that server
/// restarts before it has answered; so each one says what a repetition does if it is more than nothing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum TargetRequest {
    /// `View`: an inode as stat shows it.
    View {
        /// Which.
        ino: Ino,
        /// For whom: waits until no operation over several targets is changing it, asks those who write it, and grants
        /// a token. Without, the inode is held by the operation that asks.
        asker: Option<SessionId>,
    },
    /// `Facts`: an inode as plans see it.
    Facts(Ino),
    /// `Project`: to which project an inode belongs, when no operation is about to make it.
    Project(Ino),
    /// `Outcome`: whether a key is bound to the tree of this project. Asked of target 0 alone, which keeps the
    /// registry.
    IsBound(u32),
    /// `Place`: a directory and where a name in it leads.
    Place(Ino, Name),
    /// `Ancestors`: whether `sought` is `from` or above it, as far as the target can say.
    Ancestors {
        /// Where to start.
        from: Ino,
        /// Which directory.
        sought: Ino,
    },
    /// `Ino`: a number for an inode that another target makes. A repetition wastes one.
    NewIno,
    /// `View`: the session opens an inode, after a check of permissions. Counted once for each request.
    Open {
        /// Who.
        session: SessionId,
        /// On whose behalf.
        cred: Cred,
        /// What.
        ino: Ino,
        /// How.
        access: Access,
        /// Which request of the session, at which target.
        by: (TargetId, RequestId),
    },
    /// `Done` or `Conflict`: promise to make these changes.
    Prepare {
        /// The operation.
        tx: TxId,
        /// Whose it is.
        session: SessionId,
        /// Its time stamp.
        now: Timespec,
        /// The changes.
        parts: Vec<Part>,
    },
    /// `Done`: make the promised changes.
    Commit(TxId),
    /// `Done`: forget the promise.
    Abort(TxId),
    /// `Decision`: what became of the operation.
    Outcome(TxId),
    /// `DoneAt`, when it cannot be lost any more: cut the objects of a file; `Refused` if its session has ended here,
    /// or the target cannot. A repetition finds the generation and does nothing.
    Trim(Cut),
    /// `DoneAt`: remove the objects of an inode that is going.
    Destroy(Ino),
    /// `Objects`: what the objects of a file here say, and if a session asks, what others have not written back yet.
    Objects(Ino, Option<SessionId>),
    /// `Done`: the session begins.
    SessionStart(SessionId, SessionRecord),
    /// `Done`: nothing more is taken from the session, but what others here do for what it asked before.
    SessionStop(SessionId),
    /// `Done`: what the stopped session has under way here is over.
    SessionLanded(SessionId),
    /// `Done`: opens, locks and slots of the stopped session go. Whether its client is known to use nothing any more.
    SessionForget(SessionId, bool),
    /// `Done`: what a session held to cache that was forgotten goes, since its client is known to use nothing any more
    /// after all.
    SessionUsesNothing(SessionId),
    /// `Done`: tokens are granted from now on, or no more; asked by the target's own server. The one with the largest
    /// number counts.
    Company(bool, u64),
    /// `Sessions`: those of an earlier run that have not said yet what they hold.
    Absent,
    /// `Done`: the session has a new connection, what it has not answered is sent again.
    PushAgain(SessionId),
    /// `Moving`: one operation at a time may move directories; asked of target 0 alone. A restart of target 0 voids the
    /// lock: who decides asks `MoveCheck` first.
    MoveLock,
    /// `Done`: the next one may.
    MoveUnlock(u64),
    /// `OpenReport`: what the target was opened as.
    OpenReport,
    /// The sessions that had been answered what may be gone have ended everywhere.
    LossesTold,
    /// `Done`: the server is whole and this one, the target may be written to.
    Begin(HomeRecord),
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
    /// `Done`: the operation was decided; what it changed here is stable, whatever a restart has undone since.
    Settle(TxId),
    /// `Outcome`: whether the lock on moving directories is still held under this number.
    MoveCheck(u64),
    /// `Done`: keep the cluster map, stable.
    PutMap(Box<ClusterMap>),
    /// `Done`: keep the registry of keys, stable.
    PutKeys(Box<KeyRegistry>),
    /// `Done`: the session of an earlier run has not come back to this server, so it has nothing open here.
    SessionAbsent(SessionId),
    /// `Done`, when everything logged so far is stable, unless the target was opened again since its start number was
    /// this: `Stale`.
    StableSince(u64),
    /// `Done` or `Conflict`: as `Prepare`, of a target of the same server, whose decision will have the changes:
    /// nothing is logged before that.
    Hold {
        /// The operation.
        tx: TxId,
        /// Whose it is.
        session: SessionId,
        /// Its time stamp.
        now: Timespec,
        /// The changes.
        parts: Vec<Part>,
    },
    /// `Done`: make the changes of a decision of an earlier run, unless they were made.
    Redo {
        /// The operation.
        tx: TxId,
        /// Its time stamp.
        now: Timespec,
        /// The changes.
        parts: Vec<Part>,
    },
    /// `Done`: the decisions are forgotten, so the marks that their changes were made are of no use any more.
    Unmark(Vec<TxId>),
    /// `Directories`: these directories as a listing of the one above shows them, in the order asked.
    Directories(Vec<Ino>),
    /// `Outcome`: whether the session has left something that it was asked unanswered, without a sign of progress,
    /// since this time (monotonic ns).
    Unanswered(SessionId, u64),
    /// `Right`: what the session may do with the stripes of a file of the target.
    Right(SessionId, Ino),
    /// About quotas.
    Quota(QuotaRequest),
    /// `Outcome`: whether anything is limited. Asked of target 0 alone.
    QuotaIsOn,
    /// `Owners`: to whom these inodes of the target are charged.
    Owners(Vec<Ino>),
    /// `Done`: the objects of a file belong to this owner now.
    SetOwner(Ino, Owner),
    /// `Done`: free the inodes that nobody can have open any more, when all targets of the server have finished what a
    /// crash left: one of them may have decided to give such an inode a name.
    Reap,
}

/// A question about quotas between targets.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum QuotaRequest {
    /// `Share`: a target needs more of a limit. Asked of target 0 alone.
    Share {
        /// Whose limit.
        account: Account,
        /// Which target.
        from: TargetId,
        /// What the account uses there, with what requests under way hold.
        used: Amount,
        /// How much more.
        wanted: Amount,
        /// Nobody waits for it yet.
        ahead: bool,
    },
    /// `Collected`: what the account does not use at the target is taken back.
    Collect {
        /// Which.
        account: Account,
        /// Number of the call.
        number: u64,
    },
    /// `Done`: what is known of an account, or of all, is outdated. The target asks whether anything is limited.
    Changed(Option<Account>),
    /// `Used`: what an account uses.
    Used(Account),
    /// `Accounts`: accounts behind this one that use something.
    Accounts(Option<Account>),
    /// `Done` if the owner may use that much more.
    Admit(Owner, Amount),
}

/// Whether a target is about to have more free space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Freeing {
    /// Not that it knows of.
    #[default]
    No,
    /// Files without a name are open: their last close may be on its way, as no program waits for it.
    Perhaps,
    /// Files are being removed.
    Yes,
}

/// A cut of the objects of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// Whose it is, and the number of that session's begin.
    pub by: (SessionId, u64),
    /// The file.
    pub ino: Ino,
    /// Its layout.
    pub layout: Layout,
    /// Its new size.
    pub size: u64,
    /// Generation of the truncate.
    pub generation: u64,
    /// Its time.
    pub mtime: Timespec,
}

impl TargetRequest {
    /// Whether another server may ask it.
    pub fn is_for_peers(&self) -> bool {
        !matches!(
            self,
            TargetRequest::OpenReport
                | TargetRequest::Begin(_)
                | TargetRequest::LossesTold
                | TargetRequest::Recover
                | TargetRequest::Status
                | TargetRequest::Counters { .. }
                | TargetRequest::Idle
                | TargetRequest::Tune
                | TargetRequest::Close
                | TargetRequest::Release
                | TargetRequest::PutMap(_)
                | TargetRequest::PutKeys(_)
                | TargetRequest::SessionStart(..)
                | TargetRequest::SessionStop(_)
                | TargetRequest::SessionLanded(_)
                | TargetRequest::SessionForget(..)
                | TargetRequest::SessionUsesNothing(_)
                | TargetRequest::SessionAbsent(_)
                | TargetRequest::Company(..)
                | TargetRequest::Absent
                | TargetRequest::Hold { .. }
                | TargetRequest::Redo { .. }
                | TargetRequest::Unmark(_)
                | TargetRequest::Directories(_)
                | TargetRequest::Unanswered(..)
                | TargetRequest::Reap
        )
    }
}

/// What a coordinator says about an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// It happens.
    Committed,
    /// It does not: it was given up, or the coordinator does not know it.
    Aborted,
    /// It still runs.
    Undecided,
}

/// What a target was opened as.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpenReport {
    /// Cluster of its zone.
    pub cluster: u64,
    /// Number of targets of that cluster.
    pub pool: u16,
    /// Sessions that it remembers.
    pub sessions: Vec<(SessionId, SessionRecord)>,
    /// Whether what was answered and not made stable may be gone (`Recovered::lost`).
    pub lost: bool,
    /// Whether others were cut off a short time ago and may still use what they were granted.
    pub cut_off: bool,
    /// The server that it belongs to; none if it was never begun.
    pub home: Option<HomeRecord>,
    /// The cluster map, if it keeps one.
    pub map: Option<ClusterMap>,
    /// The registry of keys, if it keeps one.
    pub keys: Option<KeyRegistry>,
}

/// Answers to questions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum TargetReply {
    /// Done.
    Done,
    /// What was planned on has changed meanwhile.
    Conflict,
    /// An inode, and the right to cache its attributes.
    View(Box<InodeView>, Option<TokenGrant>),
    /// An inode.
    Facts(Box<Facts>),
    /// The project of an inode, 0: none.
    Project(u32),
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
    /// Yes or no.
    Outcome(bool),
    /// What objects say.
    Objects(Gathered),
    /// The move lock, under this number.
    Moving(u64),
    /// What the target was opened as, or why it could not be.
    OpenReport(Box<std::result::Result<OpenReport, ServerError>>),
    /// State of a target: itself, and opens and locks of each session.
    Status(Box<TargetStatus>, Vec<(SessionId, (u64, u64))>),
    /// Counters.
    Counters(Vec<(String, u64)>),
    /// Sessions.
    Sessions(Vec<SessionId>),
    /// What became of an operation.
    Decision(Decision),
    /// Done, by a target with this start number.
    DoneAt(u64),
    /// Directories, in the order asked; those that are gone are missing.
    Directories(Vec<Option<InodeView>>),
    /// It is not done, and to ask again would not help.
    Refused(Errno),
    /// What a session may do with a file.
    Right(Right),
    /// The share of a target in a limit.
    Share {
        /// Number of the answer.
        number: u64,
        /// The share.
        share: Share,
        /// There is no more.
        refused: bool,
    },
    /// What an account uses.
    Used(Amount),
    /// What an account uses and keeps.
    Collected {
        /// That, with what requests under way hold.
        used: Amount,
        /// Whether it may be less in a moment.
        freeing: Freeing,
    },
    /// Accounts with what they use, ascending.
    Accounts(Vec<(Account, Amount)>),
    /// Owners, in the order asked; nothing for inodes that have gone.
    Owners(Vec<Option<Owner>>),
}

/// A directory and where a name in it leads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The directory.
    pub dir: Facts,
    /// What the name leads to.
    pub child: Option<(Ino, Kind)>,
    /// Facts of that, if it lives on the directory's target.
    pub facts: Option<Facts>,
}
