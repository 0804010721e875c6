//! The message types. Bodies are encoded with postcard; payload bytes travel beside the body.
//!
//! Each request goes to one target (`Call::target`), which is the owner of the directory for operations on
//! names, the owner of the inode for operations on inodes, and the object's target for data.

use crate::cluster::{ClusterMap, ServerInfo};
use crate::file_lock::{FileLockOwner, FileLockSpec};
use crate::view::{DirEntry, InodeView, ServerStatus, SessionStatus, TargetSpace, TargetStatus, Tokens};
use amphi_types::{
    ByteRange, Cred, Errno, Ino, IoMode, Kind, Layout, Name, ObjectId, SessionId, SetAttr, TargetId, Timespec, TokenKey,
};
use serde::{Deserialize, Serialize};

/// Protocol version; peers of another version are refused in the handshake.
pub const VERSION: u32 = 4;

/// Which credits a message uses. Flush and cancel never wait behind ordinary requests (DESIGN.md §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Lane {
    /// Ordinary requests.
    Normal,
    /// Write-back of dirty data, sync, session messages.
    Urgent,
    /// Answers to what the server asks: lock cancels, revocations, glimpses. They go as `Urgent`, of whose credits the client
    /// keeps some back for them, as requests on that lane may wait for them.
    Answer,
}

/// Identity of a request within a session: a slot has one request at a time, numbered upwards. A target keeps
/// the last reply of each slot, so a resend is answered once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId {
    /// Slot number, below the credits of the session.
    pub slot: u16,
    /// Sequence number within the slot, from 1.
    pub seq: u64,
}

/// What connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A mount: holds opens and locks.
    Mount,
    /// `amphi status` and the like: asks, holds nothing.
    Admin,
    /// Another server of the cluster: asks for its targets.
    Server,
}

/// First body from a client, after the server's challenge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// `VERSION` of the sender.
    pub version: u32,
    /// Session to start or to resume.
    pub session: SessionId,
    /// What connects.
    pub role: Role,
    /// Who connects, for people: `host:pid`.
    pub name: String,
    /// Boot id of the server this session spoke to last, 0 at first.
    pub last_boot: u64,
    /// What its clock says.
    pub clock: Timespec,
}

/// The server's answer to `Hello`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// `VERSION` of the sender.
    pub version: u32,
    /// Random id of this run of the server: a change means it restarted and has forgotten opens and locks.
    pub boot: u64,
    /// Id of the cluster.
    pub cluster: u64,
    /// Whether the session was known.
    pub resumed: bool,
    /// Slots for `Lane::Normal`; slots `0..normal`.
    pub normal_credits: u16,
    /// Slots for `Lane::Urgent`; slots `normal..normal + urgent`.
    pub urgent_credits: u16,
    /// Number of targets of the cluster; targets are `0..pool`.
    pub pool: u16,
    /// How long a mount that is alone may let its kernel cache entries and attributes, milliseconds; 0 = not at all.
    pub token_ms: u32,
    /// Whether the session is the only mount at the moment; `Push::Company` tells of changes. A mount that is alone caches
    /// without tokens; with company it caches what tokens back, and its kernel nothing beyond a call.
    pub alone: bool,
    /// Epoch of the server's cluster map.
    pub map_epoch: u64,
    /// Mount sessions that have been started since the server was, this one included: a mount whose session has ended and
    /// starts anew learns whether there were others in between.
    pub mounts: u64,
}

/// A request with its address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Which target executes it.
    pub target: TargetId,
    /// Who asks.
    pub cred: Cred,
    /// What is asked.
    pub op: Request,
}

/// What a new inode shall be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Make {
    /// A regular file, opened for the caller with the given access.
    File {
        /// How the caller opens it.
        open: Option<Access>,
        /// Fail if the name exists (`O_EXCL`); otherwise the existing file is opened.
        exclusive: bool,
    },
    /// A directory.
    Dir,
    /// A symbolic link to these bytes.
    Symlink(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Fifo, socket or device node.
    Node {
        /// Which kind.
        kind: Kind,
        /// Device number.
        rdev: u32,
    },
}

/// How a file is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Open for reading.
    pub read: bool,
    /// Open for writing.
    pub write: bool,
}

/// What rename does with an existing destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replace it.
    Replace,
    /// `RENAME_NOREPLACE`: fail with `Exist`.
    NoReplace,
    /// `RENAME_EXCHANGE`: swap both.
    Exchange,
}

/// Lock modes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockMode {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
}

/// A lock as a client re-presents it after a restart of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLock {
    /// On which object.
    pub object: ObjectId,
    /// In which mode.
    pub mode: LockMode,
    /// On which bytes.
    pub range: ByteRange,
}

/// What setxattr does with an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// `XATTR_CREATE`.
    Create,
    /// `XATTR_REPLACE`.
    Replace,
}

/// Requests. The comment names the reply. Permissions of `Call::cred` are checked by the server for every
/// operation that names a directory or changes an inode; `Read` and `Write` rely on the open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// `Inode`: the inode of a name.
    Lookup {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Name,
    },
    /// `Ino`: parent of a directory (for `..`).
    Parent {
        /// Directory.
        dir: Ino,
    },
    /// `Inode`.
    GetAttr {
        /// Inode.
        ino: Ino,
    },
    /// `Inode`: changes attributes; a size is truncated on all objects before the reply.
    SetAttr {
        /// Inode.
        ino: Ino,
        /// What to change.
        set: SetAttr,
    },
    /// `Made`: makes an inode and its name.
    Make {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Name,
        /// What.
        make: Make,
        /// Permission bits, umask applied by the caller.
        perm: u16,
    },
    /// `Made`: `O_TMPFILE`: a file without a name, opened.
    MakeTmp {
        /// Directory that decides target, group and layout.
        dir: Ino,
        /// Permission bits.
        perm: u16,
        /// How it is opened.
        open: Access,
    },
    /// `Inode`: a further name for `ino`; goes to the directory's target.
    Link {
        /// Inode.
        ino: Ino,
        /// Directory.
        dir: Ino,
        /// Name.
        name: Name,
    },
    /// `Removed`.
    Unlink {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Name,
    },
    /// `Removed`.
    RmDir {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Name,
    },
    /// `Done`; goes to the target of `from`.
    Rename {
        /// Old directory.
        from: Ino,
        /// Old name.
        from_name: Name,
        /// New directory.
        to: Ino,
        /// New name.
        to_name: Name,
        /// What happens to an existing destination.
        mode: RenameMode,
    },
    /// `Bytes`: target of a symbolic link.
    ReadLink {
        /// Inode.
        ino: Ino,
    },
    /// `Entries`: entries with cookies greater than `cookie`, without `.` and `..`.
    ReadDir {
        /// Directory.
        dir: Ino,
        /// Where to go on; 0 starts.
        cookie: u64,
        /// Most entries to return.
        max: u32,
        /// With attributes where the inode lives on the same target.
        plus: bool,
    },
    /// `Inode`: registers an open. Permission is checked.
    Open {
        /// Inode.
        ino: Ino,
        /// How.
        access: Access,
        /// Opened to be executed (`FMODE_EXEC`): needs the permission to execute in place of that to read.
        exec: bool,
    },
    /// `Done`: the session's open ends. The last close of an unlinked inode frees it.
    Close {
        /// Inode.
        ino: Ino,
        /// As opened.
        access: Access,
        /// Time of the last read, if the access time is to be brought forward to it: lazily, it may be lost in a crash.
        atime: Option<Timespec>,
    },
    /// `Done`: an inode without a name, of which the session has just these `opens` left, ends with data that was never
    /// written: in place of their closes. `Busy` if it has a name or is open otherwise: nothing has changed.
    Discard {
        /// Inode.
        ino: Ino,
        /// Opens of the session, all of which end.
        opens: u32,
    },
    /// `Bytes`.
    GetXattr {
        /// Inode.
        ino: Ino,
        /// Full name with its namespace.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// `Bytes`: names, each followed by NUL.
    ListXattr {
        /// Inode.
        ino: Ino,
    },
    /// `Done`.
    SetXattr {
        /// Inode.
        ino: Ino,
        /// Full name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Value.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
        /// About an existing one.
        mode: XattrMode,
    },
    /// `Done`.
    RemoveXattr {
        /// Inode.
        ino: Ino,
        /// Full name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// `Inode`: sets layout or I/O mode. A file with data keeps its layout: `Busy`.
    SetLayout {
        /// File or directory.
        ino: Ino,
        /// New layout; `pool` is set by the server.
        layout: Option<Layout>,
        /// New I/O mode.
        mode: Option<IoMode>,
    },
    /// `StatFs` of one target.
    StatFs,
    /// `Data` with payload: bytes of an object. The payload starts `range.start % 4096` bytes after an aligned
    /// address and may be shorter than the range: the rest is zeros.
    Read {
        /// Object.
        object: ObjectId,
        /// Bytes, in file offsets.
        range: ByteRange,
        /// The target locks the range for the request (direct); false = the client holds a lock (buffered).
        server_lock: bool,
    },
    /// `Written`; payload: the bytes. Answered when they are on the disk.
    Write {
        /// Object.
        object: ObjectId,
        /// File offset of the first byte.
        offset: u64,
        /// Truncation generation of the file the client knows; an older one than the object's is `Stale`.
        generation: u64,
        /// Time of the write.
        mtime: Timespec,
        /// As for `Read`.
        server_lock: bool,
        /// Clear setuid and setgid.
        kill_suidgid: bool,
    },
    /// `Done`: punches a hole into one object.
    Punch {
        /// Object.
        object: ObjectId,
        /// Bytes.
        range: ByteRange,
        /// As for `Write`.
        generation: u64,
        /// Time of the change.
        mtime: Timespec,
        /// As for `Read`.
        server_lock: bool,
    },
    /// `Done`: reserves storage that reads as zeros; the size of the file does not change.
    Allocate {
        /// Object.
        object: ObjectId,
        /// Bytes.
        range: ByteRange,
        /// As for `Write`.
        generation: u64,
        /// As for `Read`.
        server_lock: bool,
    },
    /// `Offset`: next data or hole in one object at or after `offset`; `None` = none in this object.
    Seek {
        /// Object.
        object: ObjectId,
        /// Where to start.
        offset: u64,
        /// Look for a hole, otherwise for data.
        hole: bool,
    },
    /// `Done`: everything this target answered before is on stable storage.
    Sync,
    /// `Inode`: the file is about to have data beyond stripe 0; from now to the last writer's close the owner
    /// asks the objects for the size.
    Spread {
        /// Inode.
        ino: Ino,
    },
    /// `Locked`: a byte-range lock, granted as wide as possible.
    LockEnqueue {
        /// Object.
        object: ObjectId,
        /// Mode.
        mode: LockMode,
        /// Bytes needed.
        range: ByteRange,
        /// May be granted wider.
        expand: bool,
    },
    /// `Done`: the client no longer uses these locks; what was dirty under them has been written.
    LockCancel {
        /// Lock ids.
        locks: Vec<u64>,
    },
    /// `Done`: these were asked back and are still in use, because calls under them wait for other servers.
    LockKept {
        /// Lock ids.
        locks: Vec<u64>,
    },
    /// `Done`: answer to a glimpse.
    GlimpseReply {
        /// Id of the question.
        id: u64,
        /// End of what the client knows of the object.
        size: u64,
        /// Last write the client knows of.
        mtime: Timespec,
    },
    /// `Locks`: after a restart of the server: what the session has open and locked on this target.
    Represent {
        /// Open inodes of this target.
        opens: Vec<(Ino, Access)>,
        /// Locks on objects of this target, answered with their new ids in order.
        locks: Vec<HeldLock>,
    },
    /// `Done`: the session ends in order; opens are closed, locks dropped, its slots forgotten.
    Goodbye,
    /// `Status`.
    Status,
    /// `Tunables`: reads the server's tunables that match a pattern, after setting them if there is a value.
    Tunables {
        /// Shell pattern.
        pattern: String,
        /// New value.
        value: Option<String>,
    },
    /// `Counters`: the server's counters; with `reset` they start again from zero after being read.
    Counters {
        /// Start again.
        reset: bool,
    },
    /// `Done`: answer to revocations of this target; nothing that they name is used any more.
    Revoked {
        /// Names of the revocations.
        ids: Vec<u64>,
    },
    /// `Done`: answer to `Push::Company`: what it says is in force here. To the master.
    CompanyKnown {
        /// Number of the change.
        change: u64,
    },
    /// `Map`: which server has which targets. To any server.
    Map,
    /// `Joined`: a server registers its targets; to the master.
    Join {
        /// Who.
        server: ServerInfo,
        /// Cluster of its zones; 0 = it has none yet.
        cluster: u64,
        /// Numbers of new targets that it wants to make.
        new_targets: u16,
        /// Epoch of the map that it knows; 0 = it has none yet.
        epoch: u64,
    },
    /// `Told`: a question of a server to a target of another one.
    Ask {
        /// Encoded question, private to servers of one version.
        #[serde(with = "serde_bytes")]
        question: Vec<u8>,
    },
    /// `FileLock`: an application takes a lock on a file, or changes what it holds of the range to it. `false`: it does not
    /// hold it yet; `Push::FileLockNews` says when to ask again under the same number. Errors: `Again` (not to wait),
    /// `Deadlk`, `NoLck`.
    FileLockSet {
        /// The lock.
        lock: FileLockSpec,
        /// Name of the request, unique within the session.
        number: u64,
        /// Wait in the queue for what stands in the way.
        wait: bool,
    },
    /// `FileLock`: the caller no longer waits for it. `true`: it was granted before, and stands.
    FileLockCancel {
        /// As asked for.
        lock: FileLockSpec,
        /// Name of the request.
        number: u64,
    },
    /// `Done`: gives up what the owner holds of a range.
    FileLockUnlock {
        /// The file.
        ino: Ino,
        /// Whose.
        owner: FileLockOwner,
        /// Bytes.
        range: ByteRange,
    },
    /// `FileLockFound`: what stands in the way of a lock; or `FileLock(false)`, as for `FileLockSet`.
    FileLockTest {
        /// The lock.
        lock: FileLockSpec,
        /// Name of the request.
        number: u64,
    },
    /// `FileLocksLost`: after a restart of the server, before `Represent`: file locks that the session holds on this target.
    /// In as many messages as it takes.
    RepresentFileLocks {
        /// The locks.
        locks: Vec<FileLockSpec>,
    },
}

/// Replies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Done.
    Done,
    /// An inode.
    Inode(InodeView),
    /// An inode that was made, or found by a non-exclusive create.
    Made {
        /// It.
        inode: InodeView,
        /// Whether it is new.
        created: bool,
        /// A write lock on all of stripe 0, for whoever creates a file to write it. Not in an answer repeated after a
        /// restart of the server.
        lock: Option<u64>,
    },
    /// A name was removed.
    Removed {
        /// The inode, if that was its last name: what is open of it lives on, nobody else will see its data.
        last_name_of: Option<Ino>,
    },
    /// An inode number.
    Ino(Ino),
    /// Bytes.
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Entries of a directory.
    Entries {
        /// In cookie order.
        entries: Vec<DirEntry>,
        /// Whether the directory ends here.
        end: bool,
    },
    /// Space of a target.
    StatFs(TargetSpace),
    /// Payload follows.
    Data,
    /// All bytes are on the disk.
    Written,
    /// An offset, if there is one.
    Offset(Option<u64>),
    /// A granted lock.
    Locked {
        /// Its id.
        lock: u64,
        /// Granted bytes.
        range: ByteRange,
    },
    /// Ids of re-presented locks.
    Locks(Vec<u64>),
    /// State of the server.
    Status {
        /// Seconds since start.
        uptime_s: u64,
        /// Cluster id.
        cluster: u64,
        /// Its targets.
        targets: Vec<TargetStatus>,
        /// Its sessions.
        sessions: Vec<SessionStatus>,
        /// Epoch of its cluster map.
        map_epoch: u64,
        /// What the master knows of the servers, itself first; empty elsewhere.
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
        /// The map as it is now.
        map: ClusterMap,
        /// Numbers for the new targets.
        new_targets: Vec<TargetId>,
    },
    /// Encoded answer to a question between servers.
    Told(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Whether the application holds the lock.
    FileLock(bool),
    /// A lock that stands in the way, if one does; its process is 0 if it is not of this session.
    FileLockFound(Option<FileLockSpec>),
    /// Places of the presented locks that are lost, because they conflict with others.
    FileLocksLost(Vec<u32>),
    /// The cluster does not take the server in, for this reason.
    Refused(String),
}

/// Body of a reply frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Outcome.
    pub result: Result<Reply, Errno>,
    /// The object of the request is contended (FEATURES L3).
    pub contended: bool,
    /// Tokens that come with it, if any do. Never logged: an answer repeated after a restart has none.
    pub tokens: Option<Box<Tokens>>,
}

impl Answer {
    /// An answer that says nothing about contention or tokens.
    pub fn of(result: Result<Reply, Errno>) -> Answer {
        Answer { result, contended: false, tokens: None }
    }
}

/// Messages that a server sends unasked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Push {
    /// Give a lock back: flush what is dirty under it, then send `LockCancel`.
    Callback {
        /// On which object.
        object: ObjectId,
        /// Which lock.
        lock: u64,
    },
    /// Say what you know of an object's size and time: send `GlimpseReply`.
    Glimpse {
        /// Id of the question.
        id: u64,
        /// Object.
        object: ObjectId,
    },
    /// Drop what these keys show and answer with `Request::Revoked` to `target`. May come twice.
    Revoke {
        /// Which target says so.
        target: TargetId,
        /// Name of the revocation.
        id: u64,
        /// Grants up to this number are void; later ones are not meant.
        upto: u64,
        /// What is concerned.
        keys: Vec<TokenKey>,
    },
    /// Whether the session is the only mount has changed; answered with `Request::CompanyKnown` when what was cached under
    /// the old rule is no longer used. A larger change number counts. May come twice.
    Company {
        /// Number of the change.
        change: u64,
        /// Whether it is alone now.
        alone: bool,
    },
    /// The cluster map has changed: ask for it.
    Map {
        /// Its epoch.
        epoch: u64,
    },
    /// A request about a file lock that was answered `FileLock(false)` will find something new: ask again. May come twice,
    /// and does not come for what was lost with a connection.
    FileLockNews {
        /// Name of the request.
        number: u64,
    },
}
