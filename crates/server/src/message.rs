//! Messages between workers.
//!
//! Owns: the message types of the mesh. Does not own: the rings (`amphi_sched`), what is done about a message.
//!
//! A request of a client is sent to the worker of its target, and the answer is sent back. Requests between targets are
//! sent in the same way. Payloads are passed by reference, and nothing is encoded. The sender keeps the token under
//! which it waits.

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
        /// The token under which the sender waits for the answer.
        token: u64,
        /// The session of the client.
        session: SessionId,
        /// Identity of the request.
        id: RequestId,
        /// The request, with its target and its user.
        call: Box<Call>,
        /// Payload.
        payload: Option<Buf>,
        /// The terms on which the call is executed.
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
        /// The token under which the sender waits for the answer.
        token: u64,
        /// The target that is asked.
        target: TargetId,
        /// The request to the target.
        question: Box<TargetRequest>,
    },
    /// The answer to an `Ask`.
    TargetReply {
        /// The sender's token.
        token: u64,
        /// The answer.
        told: Box<Result<TargetReply>>,
    },
    /// To the worker with the sessions: send this push to the session's client.
    Push {
        /// The session to whose client the push is sent.
        session: SessionId,
        /// The message.
        push: Push,
    },
    /// To the worker with the sessions: the session did not answer a callback in time.
    Overdue {
        /// The session.
        session: SessionId,
    },
    /// Between the workers with connections and the one with the sessions, in their own message types
    /// (`cluster::sessions::front`).
    Sessions(Box<dyn std::any::Any + Send>),
    /// Stop receiving: the worker ends.
    Stop,
}

/// A request between targets, of one server or of several. A request to another server may be executed twice, if that
/// server restarts before it has answered. So the description of each request says what a repetition does, if anything.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum TargetRequest {
    /// `View`: the attributes of an inode for stat.
    View {
        /// The inode.
        ino: Ino,
        /// The session for which the view is requested. The request then waits until no operation over several targets
        /// is changing the inode, sends glimpses to its writers, and grants a token. Without a session, the requesting
        /// operation itself has locked the inode.
        asker: Option<SessionId>,
    },
    /// `Facts`: the facts about an inode that plans need.
    Facts(Ino),
    /// `Project`: to which project an inode belongs, when no operation is about to make it.
    Project(Ino),
    /// `Outcome`: whether a key is bound to the tree of this project. This is sent only to target 0, which keeps the
    /// registry.
    IsBound(u32),
    /// `Outcome`: whether this user of the session was allowed to list the directory of this target.
    Listed {
        /// The session.
        session: SessionId,
        /// The directory, not one of its shards.
        dir: Ino,
        /// The user.
        uid: u32,
    },
    /// `Place`: a directory and where a name in it leads.
    Place(Ino, Name),
    /// `Ancestors`: whether `sought` is `from` or above it, as far as the target can say.
    Ancestors {
        /// The directory from which the search goes upwards.
        from: Ino,
        /// The directory that is searched for.
        sought: Ino,
    },
    /// `Ino`: a number for an inode that another target makes. A repetition wastes one number.
    NewIno,
    /// `View`: the session opens an inode, after a check of permissions. Counted once for each request.
    Open {
        /// The session that opens the inode.
        session: SessionId,
        /// The user on whose behalf the inode is opened.
        cred: Cred,
        /// The inode.
        ino: Ino,
        /// The access for which the inode is opened.
        access: Access,
        /// The request of the session that opens the inode, and the target to which it was sent.
        by: (TargetId, RequestId),
    },
    /// `Done` or `Conflict`: promise to make these changes.
    Prepare {
        /// The operation.
        tx: TxId,
        /// The session that requested the operation.
        session: SessionId,
        /// The time stamp of the operation.
        now: Timespec,
        /// The changes.
        parts: Vec<Part>,
    },
    /// `Done`: make the promised changes.
    Commit(TxId),
    /// `Done`: forget the promise.
    Abort(TxId),
    /// `Decision`: whether the operation was decided.
    Outcome(TxId),
    /// `DoneAt`, when the result cannot be lost any more: cut the objects of a file. `Refused` if the session has ended
    /// here, or if the target cannot cut the objects. A repetition finds the generation and does nothing.
    Trim(Cut),
    /// `DoneAt`: remove the objects of an inode that is going.
    Destroy(Ino),
    /// `Objects`: the joined state of the objects of a file on this target. For a session, the answer includes bytes
    /// that other mounts have not written back yet.
    Objects(Ino, Option<SessionId>),
    /// `Objects`: the joined state of the objects of a file on this target, once it survives a loss of power.
    Secured(Ino),
    /// `Done`: the session begins.
    SessionStart(SessionId, SessionRecord),
    /// `Done`: no request of the session is executed any more, but operations that it requested earlier on other
    /// targets continue.
    SessionStop(SessionId),
    /// `Done`: all changes of the stopped session that were under way on this target have ended.
    SessionLanded(SessionId),
    /// `Done`: opens, locks and slots of the stopped session go. Whether its client is known to use nothing any more.
    SessionForget(SessionId, bool),
    /// `Done`: the tokens of a forgotten session are released, since its client is now known to use nothing any more.
    SessionUsesNothing(SessionId),
    /// `Done`: from its own server to a target. Tokens are granted from now on, or are not granted any more. The
    /// request with the largest number is valid.
    Company(bool, u64),
    /// `Sessions`: sessions of an earlier run that have not presented their state.
    Absent,
    /// `Done`: the session has a new connection, so messages that it has not answered are sent to it again.
    PushAgain(SessionId),
    /// `Moving`: only one operation at a time may move directories. It is sent only to target 0. A restart of target 0
    /// voids the lock: before the decision, the coordinator sends `MoveCheck`.
    MoveLock,
    /// `Done`: the next operation may move directories.
    MoveUnlock(u64),
    /// `OpenReport`: the facts that the target found when it was opened.
    OpenReport,
    /// Sessions whose answered changes may be lost have ended everywhere.
    LossesTold,
    /// `Done`: the server's zones are complete and belong to it, so the target may be written to.
    Begin(HomeRecord),
    /// `Done`: finish what a crash interrupted.
    Recover,
    /// `Status`.
    Status,
    /// `Counters`: of the target's zone, and of its worker if it is that worker's first target.
    Counters {
        /// Whether the counters start again from zero.
        reset: bool,
    },
    /// `Outcome`: after a sync, whether no work is left that continues without a request.
    Idle,
    /// `Done`: the target uses the values of the worker's tunables from now on.
    Tune,
    /// `Done`: checkpoint, close the zone.
    Close,
    /// `Done`: close the zone as it is.
    Release,
    /// `Done`: the operation was decided. The changes that it made on this target are stable, even if a restart had
    /// undone them.
    Settle(TxId),
    /// `Outcome`: whether the lock on moving directories is still held under this number.
    MoveCheck(u64),
    /// `Done`: keep the cluster map, stable.
    PutMap(Box<ClusterMap>),
    /// `Done`: keep the registry of keys, stable.
    PutKeys(Box<KeyRegistry>),
    /// `Done`: the session of an earlier run has not reconnected to this server, so it has no open files here.
    SessionAbsent(SessionId),
    /// `Done`, when everything logged so far is stable, unless the target was opened again since its start number was
    /// this: `Stale`.
    StableSince(u64),
    /// `Done` or `Conflict`: as `Prepare`, from a target of the same server. The coordinator's decision will contain
    /// the changes, and nothing is logged before that.
    Hold {
        /// The operation.
        tx: TxId,
        /// The session that requested the operation.
        session: SessionId,
        /// The time stamp of the operation.
        now: Timespec,
        /// The changes.
        parts: Vec<Part>,
    },
    /// `Done`: make the changes of a decision of an earlier run, unless they were made.
    Redo {
        /// The operation.
        tx: TxId,
        /// The time stamp of the decision.
        now: Timespec,
        /// The changes.
        parts: Vec<Part>,
    },
    /// `Done`: the decisions are forgotten, so the marks that their changes were made are of no use any more.
    Unmark(Vec<TxId>),
    /// `Directories`: the views of these directories as a listing of their parent shows them, in the order of the
    /// request.
    Directories(Vec<Ino>),
    /// `Outcome`: whether the session has left a message unanswered, without a sign of progress, since this time
    /// (monotonic ns).
    Unanswered(SessionId, u64),
    /// `Right`: the session's rights on the stripes of a file of the target.
    Right(SessionId, Ino),
    /// About quotas.
    Quota(QuotaRequest),
    /// `Outcome`: whether any account has a limit. It is sent only to target 0.
    QuotaIsOn,
    /// `Owners`: to whom these inodes of the target are charged.
    Owners(Vec<Ino>),
    /// `Done`: from now on, the objects of a file belong to this owner.
    SetOwner(Ino, Owner),
    /// `Done`: free the inodes that no session can have open any more. It is sent when all targets of the server have
    /// completed what a crash interrupted, because one of these operations may have given such an inode a name.
    Reap,
}

/// A question about quotas between targets.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum QuotaRequest {
    /// `Share`: a target needs a larger share of a limit. It is sent only to target 0.
    Share {
        /// The account that has the limit.
        account: Account,
        /// The target that needs a larger share.
        from: TargetId,
        /// The usage of the account on that target, including the reservations of requests under way.
        used: Amount,
        /// The additional amount that is wanted.
        wanted: Amount,
        /// No request waits for the share yet; it is requested ahead of need.
        ahead: bool,
    },
    /// `Share` if the account is not limited, otherwise `Outcome(true)`. It is sent only to target 0.
    IsLimited(Account),
    /// `Collected`: the part of the target's share that the account does not use is returned. `Outcome(false)`: the
    /// target does not know yet how much the account uses.
    Collect {
        /// The account.
        account: Account,
        /// Number of the call.
        number: u64,
    },
    /// `Done`: what was known before this number of an account, or of all accounts, is outdated. The target asks
    /// whether anything is limited.
    Changed(Option<Account>, u64),
    /// `Used`: what an account uses.
    Used(Account),
    /// `Accounts`: accounts after this one that use something.
    Accounts(Option<Account>),
    /// `Done` if the owner may use that much more, for new inodes of which this is the first. It is held until they are
    /// promised.
    Admit(Owner, Amount, Ino),
    /// `Done`: what is still held for the operation of which this is the first new inode is free again.
    Unreserve(Ino),
}

/// Whether a target is about to have more free space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Freeing {
    /// The target knows of no such session.
    #[default]
    No,
    /// Files without a name are open. Their last close may be on its way, because no program waits for it.
    Perhaps,
    /// Their last close may be on its way, because no program waits for it.
    Yes,
}

/// A cut of the objects of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    /// The session of the request, and the number of that session's begin.
    pub by: (SessionId, u64),
    /// The file.
    pub ino: Ino,
    /// The layout of the file.
    pub layout: Layout,
    /// The new size of the file.
    pub size: u64,
    /// Generation of the truncate.
    pub generation: u64,
    /// The time of the cut.
    pub mtime: Timespec,
}

impl TargetRequest {
    /// Returns whether another server may send this request.
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

/// The answer of a coordinator about an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// The operation happens.
    Committed,
    /// The operation does not happen: it was given up, or the coordinator has no record of it.
    Aborted,
    /// The operation still runs.
    Undecided,
}

/// The state in which a target was opened.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OpenReport {
    /// Cluster to which the target's zone belongs.
    pub cluster: u64,
    /// Number of targets of that cluster.
    pub pool: u16,
    /// Sessions that the target remembers.
    pub sessions: Vec<(SessionId, SessionRecord)>,
    /// Whether answered changes that were not stable may be lost (`Recovered::lost`).
    pub lost: bool,
    /// Whether sessions were cut off a short time ago and may still use the rights that were granted to them.
    pub cut_off: bool,
    /// The server to which the target belongs; `None` if the target was never used.
    pub home: Option<HomeRecord>,
    /// The cluster map, if the target keeps one.
    pub map: Option<ClusterMap>,
    /// The registry of keys, if the target keeps one.
    pub keys: Option<KeyRegistry>,
}

/// Answers to questions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum TargetReply {
    /// Done.
    Done,
    /// The state on which the plan was based has changed meanwhile.
    Conflict,
    /// An inode, and the right to cache its attributes.
    View(Box<InodeView>, Option<TokenGrant>),
    /// An inode.
    Facts(Box<Facts>),
    /// The project of an inode; 0 means none.
    Project(u32),
    /// A directory and where a name in it leads.
    Place(Box<Place>),
    /// Whether the directory was found, or at which target the walk has to continue.
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
    /// The sum over the objects of a file.
    Objects(Gathered),
    /// The move lock, under this number.
    Moving(u64),
    /// The state in which the target was opened, or why it could not be opened.
    OpenReport(Box<std::result::Result<OpenReport, ServerError>>),
    /// State of a target: itself, and opens and locks of each session.
    Status(Box<TargetStatus>, Vec<(SessionId, (u64, u64))>),
    /// Counters.
    Counters(Vec<(String, u64)>),
    /// Sessions.
    Sessions(Vec<SessionId>),
    /// The outcome of an operation.
    Decision(Decision),
    /// Done, by a target with this number of starts.
    DoneAt(u64),
    /// Views of directories, in the order of the request. It is `None` for those that do not exist any more.
    Directories(Vec<Option<InodeView>>),
    /// The request is not executed, and repeating it would not help.
    Refused(Errno),
    /// The rights of a session on a file.
    Right(Right),
    /// The share of a target in a limit.
    Share {
        /// Number of the answer.
        number: u64,
        /// The share.
        share: Share,
        /// Nothing is left to share.
        refused: bool,
    },
    /// The usage of an account.
    Used(Amount),
    /// The usage of an account, and the share that the target keeps.
    Collected {
        /// The use, including the amounts that requests under way hold.
        used: Amount,
        /// Whether the usage may be lower in a moment.
        freeing: Freeing,
    },
    /// Accounts and what each of them uses, ascending.
    Accounts(Vec<(Account, Amount)>),
    /// Owners, in the order of the request. It is `None` for inodes that do not exist any more.
    Owners(Vec<Option<Owner>>),
}

/// A directory and where a name in it leads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Place {
    /// The directory.
    pub dir: Facts,
    /// The inode to which the name leads.
    pub child: Option<(Ino, Kind)>,
    /// Facts of the inode to which the name leads, if the inode lives on the directory's target.
    pub facts: Option<Facts>,
}
