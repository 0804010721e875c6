//! Replies to requests, and messages that a server sends unasked.

use crate::cluster::ClusterMap;
use crate::file_lock::FileLockSpec;
use crate::keys::KeyRegistry;
use crate::view::{
    DirEntry, DirectoryAfter, ExtentView, FileAhead, InodeView, ServerStatus, SessionStatus, TargetSpace, TargetStatus,
    Tokens,
};
use amphi_types::{AccountView, ByteRange, Errno, Ino, Name, Nearness, ObjectId, Owner, TargetId, TokenKey};
use serde::{Deserialize, Serialize};

/// Replies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// The request was executed, and its reply has no content.
    Done,
    /// An inode.
    Inode(InodeView),
    /// An inode that was made, or found by a non-exclusive create.
    Made {
        /// The inode.
        inode: InodeView,
        /// Whether the inode is new.
        created: bool,
        /// A write lock on all of stripe 0, for a client that creates a file to write it. This is missing in an answer
        /// that is repeated after a restart of the server.
        lock: Option<u64>,
    },
    /// A name was removed, or now stands for another inode.
    Removed {
        /// The inode, if there was one and this was its last name (a directory has only one): open files of it stay
        /// usable, and no other program will see its data.
        last_name_of: Option<Ino>,
    },
    /// An inode number.
    Ino(Ino),
    /// The shards of a directory, in their order.
    Shards(Vec<Ino>),
    /// Bytes.
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Entries of a directory.
    Entries {
        /// The parent directory, if the listing starts here.
        parent: Option<Ino>,
        /// The entries in the order of their cookies.
        entries: Vec<DirEntry>,
        /// Whether this is the end of the directory.
        end: bool,
    },
    /// Space of a target.
    StatFs(TargetSpace),
    /// Payload follows.
    Data,
    /// All bytes are on the disk.
    Written {
        /// The target has so much space that later writes may return before they are on the target: they will not find
        /// it full.
        roomy: bool,
    },
    /// An offset, if one was found.
    Offset(Option<u64>),
    /// The ranges in which an object has data, and its holes.
    DataMap {
        /// Runs of blocks with data, ascending, none touching the next; the first may begin before the offset that was
        /// requested.
        runs: Vec<ByteRange>,
        /// The map is complete up to here; `None`: to the end of the object.
        known_to: Option<u64>,
    },
    /// The places of an object on the disk.
    Extents {
        /// Extents of the whole object.
        total: u64,
        /// Bytes of storage that these extents hold.
        bytes: u64,
        /// The extents from the offset on, in ascending order; the first may begin before the offset.
        extents: Vec<ExtentView>,
        /// Whether more follow.
        more: bool,
        /// Bytes that the target has accepted into memory and neither written nor logged.
        accepted: u64,
        /// Bytes that were written, or logged, and not synced. The number may be too high, but not too low.
        unsynced: u64,
    },
    /// The name of a target's note about pages that were left behind; a name is never used again.
    PagesLeft(u64),
    /// A granted lock.
    Locked {
        /// The id of the lock.
        lock: u64,
        /// Granted bytes.
        range: ByteRange,
    },
    /// The request for a group lock waits under this id.
    LockWaits {
        /// The id that the lock will have when it is granted.
        lock: u64,
    },
    /// Ids of re-presented locks.
    Locks(Vec<u64>),
    /// State of the server.
    Status {
        /// Seconds since start.
        uptime_s: u64,
        /// Cluster id.
        cluster: u64,
        /// The targets of the server.
        targets: Vec<TargetStatus>,
        /// The sessions of the server.
        sessions: Vec<SessionStatus>,
        /// Epoch of the server's cluster map.
        map_epoch: u64,
        /// The master's data about the servers, itself first; empty from other servers.
        servers: Vec<ServerStatus>,
    },
    /// Tunables: name, value, help.
    Tunables(Vec<(String, String, String)>),
    /// Counters: name, value.
    Counters(Vec<(String, u64)>),
    /// The cluster map.
    Map(ClusterMap),
    /// A server was registered.
    Joined {
        /// The present map.
        map: ClusterMap,
        /// Numbers for the new targets.
        new_targets: Vec<TargetId>,
    },
    /// Encoded answer to a question between servers.
    Told(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Whether the application holds the lock.
    FileLock(bool),
    /// A conflicting lock, if there is one; its process is 0 if it belongs to another session.
    FileLockFound(Option<FileLockSpec>),
    /// Places of the presented locks that are lost, because they conflict with others.
    FileLocksLost(Vec<u32>),
    /// The cluster does not take the server in, for this reason.
    Refused(String),
    /// The result of each part of a batch, in order: written to the disk, or an error. `Again` means that the part has
    /// to be sent by itself.
    WrittenBatch(Vec<Result<(), Errno>>),
    /// The result of each part of `ReadBatch`, in order. `Again` means that the part could not be executed without
    /// waiting for other sessions.
    FilesAhead(Vec<Result<FileAhead, Errno>>),
    /// Whether a request waits for the end of a group.
    GroupWanted(bool),
    /// The account to which an inode is charged.
    Owner(Owner),
    /// Accounts, ascending.
    Accounts {
        /// The accounts.
        accounts: Vec<AccountView>,
        /// Whether more follow.
        more: bool,
    },
    /// A number for a project.
    Project(u32),
    /// The registry of keys.
    Keys(Box<KeyRegistry>),
    /// The number of sessions that are being ended.
    Evicted(u32),
}

/// Which parts of a batch concern contended objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ContendedParts {
    /// Places of the parts whose objects are contended, ascending.
    pub places: Vec<u16>,
}

/// Body of a reply frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Outcome.
    pub result: Result<Reply, Errno>,
    /// The object of the request is contended.
    pub contended: bool,
    /// For a batch, the parts whose objects are contended, if there are any; a separate field, so that all other
    /// answers stay small. This list is not logged.
    pub contended_parts: Option<Box<ContendedParts>>,
    /// The tokens that the reply grants, if there are any. Never logged: an answer repeated after a restart has none.
    pub tokens: Option<Box<Tokens>>,
    /// The directory in which the request changed a name, if its target was called and may tell. Logged as little as
    /// tokens.
    pub directory: Option<Box<DirectoryAfter>>,
    /// The session's grant of space on the target, if the request concerns grants. It is not logged: a repeated answer
    /// reports the grant at that time.
    pub grant: Option<Box<Grant>>,
}

/// A session's grant of space on a target when an answer is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Blocks that no other session can take. `None`: the request concerns only limits.
    pub blocks: Option<u64>,
    /// For inodes that the request has opened or written: how near their owners are to a limit on this target. If an
    /// owner is near the limit, the next writes to such a file have to be written through, so that the program gets
    /// EDQUOT if they are too much.
    pub limits: Vec<(Ino, Nearness)>,
    /// The last record of the target's log that survives a kill of its server. Of two answers the one with the later
    /// record is right; of two with the same record, the one with fewer blocks is right.
    pub kept: u64,
}

impl Answer {
    /// Places of the parts of a batch whose objects are contended.
    pub fn contended_places(&self) -> impl Iterator<Item = usize> {
        self.contended_parts.iter().flat_map(|parts| &parts.places).map(|&at| usize::from(at))
    }

    /// An answer that says nothing about contention, tokens or a directory.
    pub fn of(result: Result<Reply, Errno>) -> Answer {
        Answer { result, contended: false, contended_parts: None, tokens: None, directory: None, grant: None }
    }

    /// The answer is too large for a message: only what it reports about contention is kept.
    pub fn overflow(&mut self) {
        *self = Answer {
            contended: self.contended,
            contended_parts: self.contended_parts.take(),
            grant: self.grant.take(),
            ..Answer::of(Err(Errno::Overflow))
        };
    }
}

/// Messages that a server sends unasked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Push {
    /// Give a lock back: flush the dirty bytes under it, then send `LockCancel` to `target`.
    Callback {
        /// The target that asks for the lock.
        target: TargetId,
        /// The object of the lock.
        object: ObjectId,
        /// The id of the lock.
        lock: u64,
    },
    /// Asks for the client's knowledge of an object's size and time, to be sent by `GlimpseReply`.
    Glimpse {
        /// Id of the question.
        id: u64,
        /// Object.
        object: ObjectId,
    },
    /// Drop what these keys show and answer with `Request::Revoked` to `target`. The push may arrive twice.
    Revoke {
        /// The target that sends this push.
        target: TargetId,
        /// Name of the revocation.
        id: u64,
        /// Grants up to this number are void; later ones are not meant.
        upto: u64,
        /// The keys whose cached values must be dropped.
        keys: Vec<TokenKey>,
    },
    /// The session became, or is no longer, the only mount; answered with `Request::CompanyKnown` when data cached
    /// under the old rule is no longer used. A larger change number counts. The push may arrive twice.
    Company {
        /// Number of the change.
        change: u64,
        /// Whether the session is now the only mount.
        alone: bool,
    },
    /// The cluster map has changed: the client should request it.
    Map {
        /// The epoch of the new map.
        epoch: u64,
    },
    /// A group lock that waited is granted, or its request was removed: the client sends its request again. The push
    /// may arrive twice or be lost.
    GroupLockNews {
        /// The object of the lock.
        object: ObjectId,
        /// The id under which the request waited.
        lock: u64,
    },
    /// A request for a file lock that was answered `FileLock(false)` may now be granted: send it again. The message may
    /// arrive twice, and is not repeated if it was lost with a connection.
    FileLockNews {
        /// Name of the request.
        number: u64,
    },
    /// A lock of this session on the file conflicts with a request: if a descriptor has just been closed, its locks
    /// have to be released at once. The client answers it with `FileLockClosed`. It may be lost; no session is evicted
    /// for leaving it unanswered.
    FileLockClosing {
        /// Number of the question.
        id: u64,
        /// The file.
        ino: Ino,
    },
    /// The target needs space: the session has to return granted blocks that it does not need. The client answers it
    /// with `Request::Grant`. The push may arrive twice or be lost; no session is evicted for leaving it unanswered.
    GrantWanted {
        /// The target that sends this push.
        target: TargetId,
    },
    /// Bytes of this file that the session wrote and the target accepted into memory cannot be written to the disk.
    /// They are in memory and are tried again, but their writers have to be informed. It is answered with
    /// `Request::WriteFailedKnown`; until then it is repeated on each new connection, and no further one is sent. The
    /// push may arrive twice.
    WriteFailed {
        /// The target that sends this push.
        target: TargetId,
        /// Number of this news. The target uses each number once.
        id: u64,
        /// The file.
        ino: Ino,
    },
    /// Another session has moved or removed a directory. The client answers this push with `DirectoryShown` when the
    /// front end has made its kernel look the directory up, or cannot do so at once. The message may be lost; no
    /// session is evicted for leaving it unanswered.
    DirectoryChanged {
        /// The target that sends this push.
        target: TargetId,
        /// Number of the question.
        id: u64,
        /// The directory.
        ino: Ino,
        /// The new parent and name of the directory, or those that it had, for clients that may see all names.
        place: Option<(Ino, Name)>,
    },
}
