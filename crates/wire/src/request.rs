//! Requests: what a client, another server or the command line asks of a target.
//!
//! Each is sent to one target (`Call::target`): for operations on names the owner of the directory, for operations on
//! inodes the owner of the inode, and for data the object's target.

use crate::cluster::ServerInfo;
use crate::file_lock::{FileLockOwner, FileLockSpec};
use crate::keys::{KeyChange, Squash};
use crate::message::{Access, HeldLock, LockExtent, LockMode, Make, RenameMode, XattrMode};
use amphi_types::{
    Account, AskedAdvice, ByteRange, DataChecksums, Ino, Layout, Limits, Name, ObjectId, SetAttr, Timespec,
};
use serde::{Deserialize, Serialize};

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
    /// `Shards`: the shards of a directory; none if its names lie in itself. Requests that name a name in a directory
    /// with shards are answered `Remote`, and go to the name's shard instead.
    Shards {
        /// Directory.
        dir: Ino,
    },
    /// `Inode`: gives an empty directory shards.
    SetShards {
        /// Directory.
        ino: Ino,
        /// How many, at most `Ino::SHARDS_MAX`; 0: as many as there are targets.
        count: u16,
    },
    /// `Inode`.
    GetAttr {
        /// Inode.
        ino: Ino,
    },
    /// `Inode`: as `GetAttr`, including what the asking mount itself has not written back, and without tokens: the
    /// state of the file now. It is for a mount whose own changes keep coming between request and answer.
    GetAttrNow {
        /// Inode.
        ino: Ino,
    },
    /// `Inode`: changes attributes; a size is truncated on all objects before the reply.
    SetAttr {
        /// Inode.
        ino: Ino,
        /// The attributes that change.
        set: SetAttr,
    },
    /// `Made`: makes an inode and a name for it.
    Make {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Name,
        /// What is made.
        make: Make,
        /// Permission bits that the caller requests.
        perm: u16,
        /// Bits that the inode does not get, unless the directory has a default access control list.
        umask: u16,
    },
    /// `Made`: `O_TMPFILE`: a file without a name, opened.
    MakeTmp {
        /// Directory that decides target, group and layout.
        dir: Ino,
        /// Permission bits that the caller requests.
        perm: u16,
        /// The caller's umask, as in `Make`.
        umask: u16,
        /// How the new file is opened.
        open: Access,
    },
    /// `Inode`: a further name for `ino`; sent to the directory's target.
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
    /// `Removed`, for the inode that had the new name; it is sent to the target of `from`.
    Rename {
        /// Old directory.
        from: Ino,
        /// Old name.
        from_name: Name,
        /// New directory.
        to: Ino,
        /// New name.
        to_name: Name,
        /// The handling of an existing destination.
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
        /// Where to continue; 0 starts.
        cookie: u64,
        /// Most entries to return.
        max: u32,
        /// Return attributes of inodes that live on the same target, too.
        plus: bool,
    },
    /// `Inode`: registers an open. Permission is checked.
    Open {
        /// Inode.
        ino: Ino,
        /// The access for which the inode is opened.
        access: Access,
        /// Opened to be executed (`FMODE_EXEC`): needs the permission to execute in place of that to read.
        exec: bool,
    },
    /// `Done`: the session's open ends. The last close of an unlinked inode frees it.
    Close {
        /// Inode.
        ino: Ino,
        /// The access for which the inode was opened.
        access: Access,
        /// Time of the last read, if the access time is to be brought forward to it: lazily, it may be lost in a crash.
        atime: Option<Timespec>,
    },
    /// `Done`: a nameless inode, of which the session has only these `opens` left, ends together with data that was
    /// never written; replaces their closes. `Busy` if it has a name, may be about to get one, or is open otherwise:
    /// nothing has changed.
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
    /// `Done`, or `Inode` for an access control list, which changes the permissions.
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
    /// As `SetXattr`.
    RemoveXattr {
        /// Inode.
        ino: Ino,
        /// Full name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// `Inode`: sets layout or one of the settings for mounts. A file with data, or that another session has open,
    /// keeps its layout: `Busy`.
    SetLayout {
        /// File or directory.
        ino: Ino,
        /// New layout; `pool` is set by the server.
        layout: Option<Layout>,
        /// New I/O mode, or who serves reads.
        advice: Option<AskedAdvice>,
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
        /// The program's advice about its reads.
        advice: ReadAdvice,
    },
    /// `Written`; payload: the bytes. Answered when they are on the disk.
    Write {
        /// Object.
        object: ObjectId,
        /// File offset of the first byte.
        offset: u64,
        /// Truncation generation of the file that the client knows; one older than the object's is answered with
        /// `Stale`.
        generation: u64,
        /// Time of the write.
        mtime: Timespec,
        /// As for `Read`.
        server_lock: bool,
        /// Clear setuid and setgid.
        kill_suidgid: bool,
        /// Whether the blocks get checksums, as the file is set.
        checksums: DataChecksums,
        /// The mount's grant of space on the target for these bytes.
        cover: Cover,
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
        /// Time of the change.
        mtime: Timespec,
        /// As for `Read`.
        server_lock: bool,
    },
    /// `DataMap`: where an object has data, from `offset` on.
    DataMap {
        /// Object.
        object: ObjectId,
        /// Where to start.
        offset: u64,
        /// This many runs at most; the server gives no more than `DATA_RUNS_MAX`.
        runs_max: u32,
    },
    /// `Extents`: where an object lies on its target's storage, from `offset` on.
    Extents {
        /// Object.
        object: ObjectId,
        /// Where to start, in bytes of the file.
        offset: u64,
        /// This many extents at most; the server gives no more than `EXTENTS_MAX`. 0: only their number.
        extents_max: u32,
    },
    /// `Done`: everything that this target answered before is on stable storage; with `file`, all changes of names and
    /// attributes are, and of data only that of this file.
    Sync {
        /// The file whose data is meant. `None`: that of all files.
        file: Option<Ino>,
    },
    /// `Inode`: the file will soon have data beyond stripe 0; until the last writer's close the owner asks the objects
    /// for the size.
    Spread {
        /// Inode.
        ino: Ino,
    },
    /// `Locked`: a byte-range lock. Errors: `Again` for a lock-ahead that meets a conflict.
    LockEnqueue {
        /// Object.
        object: ObjectId,
        /// Mode.
        mode: LockMode,
        /// Bytes needed.
        range: ByteRange,
        /// How much larger than the needed bytes the granted range may be.
        extent: LockExtent,
    },
    /// `Locked`, or `LockWaits`: a group lock of an object, which excludes all but locks and requests of the same
    /// group. With `LockWaits` it is in the queue: `Push::GroupLockNews` says when to ask again; `LockCancel` withdraws
    /// it. Errors: `Again` if the request is not to wait and another lock conflicts.
    GroupLock {
        /// Object.
        object: ObjectId,
        /// Number of the group.
        group: u64,
        /// Wait in the queue for conflicting locks.
        wait: bool,
        /// The id that an earlier `LockWaits` gave to this request; `None` if there was none.
        asked: Option<u64>,
    },
    /// `Done`: the client no longer uses these locks; all data that was dirty under them has been written.
    LockCancel {
        /// Lock ids.
        locks: Vec<u64>,
    },
    /// `Done`: locks that were called back and are still in use, because calls under them wait for other servers.
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
        /// Name or pattern: `*` matches any text, `?` one character.
        pattern: String,
        /// New value.
        value: Option<String>,
    },
    /// `Counters`: the server's counters; with `reset` they start again from zero after being read.
    Counters {
        /// Start again.
        reset: bool,
    },
    /// `Done`: answer to revocations by this target; none of the named objects is used any more.
    Revoked {
        /// Names of the revocations.
        ids: Vec<u64>,
    },
    /// `Done`: answer to `Push::Company`: the mode in it is in force on this mount. It is sent to the master.
    CompanyKnown {
        /// Number of the change.
        change: u64,
    },
    /// `Map`: which server has which targets. To any server.
    Map,
    /// `Joined`: a server registers its targets; to the master.
    Join {
        /// The server, with its addresses and targets.
        server: ServerInfo,
        /// Cluster of the server's zones; 0: the server has none yet.
        cluster: u64,
        /// Numbers of new targets that the server wants to make.
        new_targets: u16,
        /// Epoch of the map that it knows; 0 = it has none yet.
        epoch: u64,
    },
    /// `Told`: a question by a server to a target of another server.
    Ask {
        /// Encoded question, private to servers of one version.
        #[serde(with = "serde_bytes")]
        question: Vec<u8>,
    },
    /// `FileLock`: an application takes a lock on a file, or changes what it holds of the range to it. `false`: the
    /// client does not hold it yet; `Push::FileLockNews` says when to ask again under the same number. Errors: `Again`
    /// (not to wait), `Deadlk`, `NoLck`.
    FileLockSet {
        /// The lock.
        lock: FileLockSpec,
        /// Name of the request, unique within the session.
        number: u64,
        /// Wait in the queue for conflicting locks.
        wait: bool,
    },
    /// `FileLock`: the caller no longer waits for it. `true`: it was granted before, and stands.
    FileLockCancel {
        /// The lock, exactly as it was requested.
        lock: FileLockSpec,
        /// Name of the request.
        number: u64,
    },
    /// `Done`: gives up what the owner holds of a range.
    FileLockUnlock {
        /// The file.
        ino: Ino,
        /// The owner that gives up locks.
        owner: FileLockOwner,
        /// Bytes.
        range: ByteRange,
    },
    /// `FileLockFound`: the lock that conflicts; or `FileLock(false)`, as for `FileLockSet`.
    FileLockTest {
        /// The lock.
        lock: FileLockSpec,
        /// Name of the request.
        number: u64,
    },
    /// `FileLocksLost`: after a restart of the server, before `Represent`: file locks that the session holds on this
    /// target. In as many messages as it takes.
    RepresentFileLocks {
        /// The locks.
        locks: Vec<FileLockSpec>,
        /// Exclusive locks that an unanswered request converts to shared, and that `locks` contains as shared. They
        /// become exclusive again if no session has presented a lock that conflicts with that.
        converted: Vec<FileLockSpec>,
    },
    /// `WrittenBatch`; payload: the bytes of all parts in sequence, at most `BATCH_BYTES_MAX`. Write-back of many small
    /// files of one target under locks of the client. Each part is executed independently of the others. Errors:
    /// `Inval` for parts out of order or that do not fit the payload.
    WriteBatch {
        /// Ascending in (object, offset), at most `BATCH_PARTS_MAX`; parts of one object share no block of 4096 bytes.
        parts: Vec<BatchPart>,
    },
    /// `Done`: several closes of one target, each as `Close`; at most `BATCH_PARTS_MAX`.
    CloseBatch {
        /// Inode, as opened, and the access time to be brought forward to.
        closes: Vec<(Ino, Access, Option<Timespec>)>,
    },
    /// `FilesAhead`, with payload: small files of a directory that the caller is about to open for reading one after
    /// the other. Each is opened, and its lock, attributes and bytes come with the answer, if all of that is available
    /// without waiting. Each part is executed independently of the others. Errors: `Inval` for too many parts.
    ReadBatch {
        /// Directory.
        dir: Ino,
        /// The parts, in the order in which their answers are expected; at most `BATCH_PARTS_MAX`.
        parts: Vec<ReadPart>,
        /// Files with more bytes are left out.
        bytes_max: u32,
        /// Request the return of conflicting locks from mounts that do not have the files open for writing, and wait a
        /// moment for it; otherwise no return of a lock is requested.
        ask_back: bool,
        /// The client caches under tokens, so it needs them; a mount that is alone does not.
        tokens: bool,
    },
    /// `PagesLeft`: locks of the file are about to be returned although the front end of the client has pages under
    /// them that it cannot drop at the moment. From now on the target notes what other sessions change in its objects
    /// of the file. Errors: `NoMem` for too many files.
    PagesLeft {
        /// The file.
        ino: Ino,
    },
    /// `Done`: all pages that were left behind are taken back.
    PagesTaken {
        /// The file.
        ino: Ino,
        /// As `PagesLeft` named it.
        left: u64,
    },
    /// `Data` with payload, as for `Read` under a lock of the client: bytes that are read into pages while other pages
    /// are left behind. Earlier changes do not count as changes below these pages.
    PagesRead {
        /// Object.
        object: ObjectId,
        /// Bytes, in file offsets.
        range: ByteRange,
        /// As `PagesLeft` named it.
        left: u64,
    },
    /// `Written`; payload: bytes of pages that were left behind. The target locks the range for the request, and leaves
    /// out what other sessions have changed since the pages were read. Errors: `Stale` if that is not known any more.
    PagesWrite {
        /// Object.
        object: ObjectId,
        /// File offset of the first byte.
        offset: u64,
        /// As for `Write`.
        generation: u64,
        /// Time of the write.
        mtime: Timespec,
        /// As `PagesLeft` named it.
        left: u64,
        /// As for `Write`.
        checksums: DataChecksums,
    },
    /// `Done`: the mount has read `Push::Company`, and what it cached in the old mode is still in use. It is sent to
    /// the master.
    CompanyKept {
        /// Number of the change.
        change: u64,
    },
    /// `Done`: answer to `Push::FileLockClosing`: the locks of descriptors that were closed before the push arrived
    /// have been released, or their release takes longer than it should. It is sent to the target of the file.
    FileLockClosed {
        /// The file.
        ino: Ino,
        /// Number of the question.
        id: u64,
    },
    /// `Done`: answer to `Push::WriteFailed`: programs that have the file open will get the failure. It is sent to the
    /// target that reported the failure.
    WriteFailedKnown {
        /// Number of the news.
        id: u64,
    },
    /// `Done`: requests a grant of space on the target, or returns a part of it. The answer contains the session's
    /// present grant.
    Grant {
        /// Blocks that the session does not need: the answer to `Push::GrantWanted`. Nothing: it asks.
        give_back: Option<u64>,
    },
    /// `GroupWanted`: whether a request waits for the end of the group that has the object.
    GroupWanted {
        /// Object.
        object: ObjectId,
    },
    /// `Locks`: as `Represent`, of a client whose users count as others. A server makes it of that one, and accepts it
    /// from no client.
    RepresentFor {
        /// Open inodes of this target.
        opens: Vec<(Ino, Access)>,
        /// Locks on objects of this target.
        locks: Vec<HeldLock>,
        /// The users as whom the client's users count.
        users: Box<Squash>,
    },
    /// `Keys`: the registry of keys, after `change` if there is one; `Refused` if the change is not possible. To the
    /// master: other servers answer `Map`.
    Keys {
        /// The change, if there is one.
        change: Option<KeyChange>,
    },
    /// `Evicted`: ends sessions of mounts as if they did not answer; `Refused` if there are none. To the master: other
    /// servers answer `Map`.
    Evict {
        /// The number of a session, 16 hexadecimal digits as `amphi status` shows it, or the name or fingerprint of a
        /// key, whose sessions all end.
        who: String,
    },
    /// `Done`: answer to `Push::DirectoryChanged`: the front end has made its kernel look the directory up, or cannot
    /// do so at once. It is sent to the target that reported the change.
    DirectoryShown {
        /// Number of the question.
        id: u64,
    },
    /// `Owner`: the accounts to which an inode is charged. Sent to the target of the inode.
    Charged {
        /// Inode.
        ino: Ino,
    },
    /// `Accounts`: an account. A user sees the accounts of the user, of the user's groups and of trees; the super-user
    /// sees all. To target 0.
    Account {
        /// The account.
        account: Account,
    },
    /// `Accounts`: the accounts after this one that use something or have limits, as many as fit. Only root may request
    /// them. It is sent to target 0.
    Accounts {
        /// Where to continue; `None` at the start.
        after: Option<Account>,
    },
    /// `Done`: limits an account from now on; without limits it is free again. For the super-user alone. To target 0.
    SetLimits {
        /// The account. User 0 has no limits: `Inval`.
        account: Account,
        /// The limits of the account.
        limits: Limits,
    },
    /// `Project`: a number that no tree has. For the super-user alone. To target 0.
    NewProject,
}

impl Request {
    /// Most bytes of the payload of its reply, if that is known in advance; 0 if it has none, or if it is not known.
    pub fn reply_payload_max(&self) -> usize {
        match self {
            Request::Read { range, .. } => usize::try_from(range.len()).unwrap_or(usize::MAX),
            _ => 0,
        }
    }

    /// Whether the answer to the request may create something that the session has from then on, until the session
    /// returns it: an open, a lock of an object.
    pub fn may_bring(&self) -> bool {
        matches!(
            self,
            Request::Open { .. }
                | Request::Make { make: Make::File { open: Some(_), .. }, .. }
                | Request::MakeTmp { .. }
                | Request::ReadBatch { .. }
                | Request::LockEnqueue { .. }
                | Request::GroupLock { .. }
        )
    }
}

/// Most payload bytes of a batch of small writes.
pub const BATCH_BYTES_MAX: usize = 1 << 20;
/// Most parts of a batch: more files than that with more than 2 KiB each do not fit its bytes.
pub const BATCH_PARTS_MAX: usize = 512;

/// Runs of one object in an answer to `DataMap`: 64 KiB of it.
pub const DATA_RUNS_MAX: u32 = 4096;

/// Extents in an answer to `Extents`: 60 KiB of it.
pub const EXTENTS_MAX: u32 = 2048;

/// A program's advice about how it reads a file, for the read cache of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReadAdvice {
    /// No advice: the target uses the pattern of reads.
    #[default]
    Normal,
    /// Random: the surroundings of a read are not needed.
    Random,
    /// Sequential: the surroundings of a read are needed soon.
    Sequential,
    /// Once: the bytes are not read again and need not be kept.
    Once,
}

/// One of the files of `Request::ReadBatch`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadPart {
    /// Name.
    pub name: Name,
    /// The inode that the client expects; if another inode is found, the part is left out.
    pub ino: Ino,
    /// Read the file's bytes too, under a lock; otherwise the file is just opened.
    pub data: bool,
}

/// One of the writes of `Request::WriteBatch`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchPart {
    /// Object.
    pub object: ObjectId,
    /// File offset of the first byte.
    pub offset: u64,
    /// Bytes of the payload that belong to this part.
    pub len: u32,
    /// Truncation generation of the file the client knows, as for `Write`.
    pub generation: u64,
    /// Time of the write.
    pub mtime: Timespec,
    /// Whether the blocks get checksums, as for `Write`.
    pub checksums: DataChecksums,
    /// As for `Write`.
    pub cover: Cover,
}

/// A mount's grant of space on a target for the bytes of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cover {
    /// None, and the mount requests none: the bytes come directly from a program, which gets the error if there is no
    /// space.
    #[default]
    None,
    /// No grant, but the mount has a cache for which it needs one.
    Wanted,
    /// Each block of the bytes was granted to the session, so there must be space.
    Granted,
}

impl BatchPart {
    /// Bytes, in file offsets.
    pub fn range(&self) -> ByteRange {
        ByteRange::at(self.offset, u64::from(self.len))
    }
}
