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
    /// Answered with `Inode`: the inode of a name.
    Lookup {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Name,
    },
    /// Answered with `Ino`: parent of a directory (for `..`).
    Parent {
        /// Directory.
        dir: Ino,
    },
    /// Answered with `Shards`, the shards of a directory; the list is empty if the names of the directory lie in its
    /// own object. Requests that name a name in a directory with shards are answered `Remote`, and go to the name's
    /// shard instead.
    Shards {
        /// Directory.
        dir: Ino,
    },
    /// Answered with `Inode`: gives an empty directory shards.
    SetShards {
        /// Directory.
        ino: Ino,
        /// How many, at most `Ino::SHARDS_MAX`; 0: as many as there are targets.
        count: u16,
    },
    /// Answered with `Inode`.
    GetAttr {
        /// Inode.
        ino: Ino,
    },
    /// Answered with `Inode`, as `GetAttr` is, but including changes that the requesting mount has not written back,
    /// and without tokens: this is the present state of the file. It is for a mount whose own changes keep coming
    /// between request and answer.
    GetAttrNow {
        /// Inode.
        ino: Ino,
    },
    /// Answered with `Inode`: changes attributes; a size is truncated on all objects before the reply.
    SetAttr {
        /// Inode.
        ino: Ino,
        /// The attributes that change.
        set: SetAttr,
    },
    /// Answered with `Made`: makes an inode and a name for it.
    Make {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Name,
        /// The kind of inode that is made.
        make: Make,
        /// Permission bits that the caller requests.
        perm: u16,
        /// Bits that the inode does not get, unless the directory has a default access control list.
        umask: u16,
    },
    /// Answered with `Made`: `O_TMPFILE`: a file without a name, opened.
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
    /// Answered with `Inode`: a further name for `ino`; sent to the directory's target.
    Link {
        /// Inode.
        ino: Ino,
        /// Directory.
        dir: Ino,
        /// Name.
        name: Name,
    },
    /// Answered with `Removed`.
    Unlink {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Name,
    },
    /// Answered with `Removed`.
    RmDir {
        /// Directory.
        dir: Ino,
        /// Name.
        name: Name,
    },
    /// Answered with `Removed`, for the inode that had the new name; it is sent to the target of `from`.
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
    /// Answered with `Bytes`: target of a symbolic link.
    ReadLink {
        /// Inode.
        ino: Ino,
    },
    /// Answered with `Entries`: entries with cookies greater than `cookie`, without `.` and `..`.
    ReadDir {
        /// Directory.
        dir: Ino,
        /// The cookie at which the listing continues; 0 starts at the beginning.
        cookie: u64,
        /// Most entries to return.
        max: u32,
        /// Return attributes of inodes that live on the same target, too.
        plus: bool,
    },
    /// Answered with `Inode`: registers an open. Permission is checked.
    Open {
        /// Inode.
        ino: Ino,
        /// The access for which the inode is opened.
        access: Access,
        /// Opened to be executed (`FMODE_EXEC`): needs the permission to execute in place of that to read.
        exec: bool,
    },
    /// Answered with `Done`: the session's open ends. The last close of an unlinked inode frees the inode.
    Close {
        /// Inode.
        ino: Ino,
        /// The access for which the inode was opened.
        access: Access,
        /// Time of the last read, if the access time is to be brought forward to it: lazily, it may be lost in a crash.
        atime: Option<Timespec>,
    },
    /// Answered with `Done`: an inode without a name, of which the session has only these `opens` left, is freed
    /// together with data that was never written; this replaces their closes. The reply is `Busy` if the inode has a
    /// name, may be about to get one, or is opened otherwise: in that case nothing has changed.
    Discard {
        /// Inode.
        ino: Ino,
        /// Opens of the session, all of which end.
        opens: u32,
    },
    /// Answered with `Bytes`.
    GetXattr {
        /// Inode.
        ino: Ino,
        /// Full name with its namespace.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Answered with `Bytes`: the names, each followed by NUL.
    ListXattr {
        /// Inode.
        ino: Ino,
    },
    /// Answered with `Done`, or with `Inode` for an access control list, which changes the permissions.
    SetXattr {
        /// Inode.
        ino: Ino,
        /// Full name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        /// Value.
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
        /// The request concerns an existing inode.
        mode: XattrMode,
    },
    /// The reply is the same as that of `SetXattr`.
    RemoveXattr {
        /// Inode.
        ino: Ino,
        /// Full name.
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Answered with `Inode`: sets layout or one of the settings for mounts. A file with data, or that another session
    /// has open, keeps its layout: `Busy`.
    SetLayout {
        /// File or directory.
        ino: Ino,
        /// New layout; `pool` is set by the server.
        layout: Option<Layout>,
        /// New I/O mode, or who serves reads.
        advice: Option<AskedAdvice>,
    },
    /// Answered with the `StatFs` of one target.
    StatFs,
    /// Answered with `Data` and a payload: the bytes of an object. The payload starts `range.start % 4096` bytes after
    /// an aligned address and may be shorter than the range: the rest is zeros.
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
    /// Answered with `Written`; the payload has the bytes. Answered when they are on the disk.
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
        /// The same as in `Read`.
        server_lock: bool,
        /// Clear setuid and setgid.
        kill_suidgid: bool,
        /// Whether the blocks get checksums, as the file is set.
        checksums: DataChecksums,
        /// The mount's grant of space on the target for these bytes.
        cover: Cover,
    },
    /// Answered with `Done`: punches a hole into one object.
    Punch {
        /// Object.
        object: ObjectId,
        /// Bytes.
        range: ByteRange,
        /// The same as in `Write`.
        generation: u64,
        /// Time of the change.
        mtime: Timespec,
        /// The same as in `Read`.
        server_lock: bool,
    },
    /// Answered with `Done`: reserves storage that reads as zeros; the size of the file does not change.
    Allocate {
        /// Object.
        object: ObjectId,
        /// Bytes.
        range: ByteRange,
        /// The same as in `Write`.
        generation: u64,
        /// Time of the change.
        mtime: Timespec,
        /// The same as in `Read`.
        server_lock: bool,
    },
    /// Answered with `DataMap`: the ranges in which an object has data, from `offset` on.
    DataMap {
        /// Object.
        object: ObjectId,
        /// The offset at which the reply starts.
        offset: u64,
        /// The most runs that the reply may have; the server gives no more than `DATA_RUNS_MAX`.
        runs_max: u32,
    },
    /// Answered with `Extents`: where an object lies on its target's storage, from `offset` on.
    Extents {
        /// Object.
        object: ObjectId,
        /// The offset at which the reply starts, in bytes of the file.
        offset: u64,
        /// The most extents that the reply may have; the server gives no more than `EXTENTS_MAX`. 0: only their number.
        extents_max: u32,
    },
    /// Answered with `Done`: everything that this target answered before is on stable storage; with `file`, all changes
    /// of names and attributes are, and of data only that of this file.
    Sync {
        /// The file whose data is meant. `None` means the data of all files.
        file: Option<Ino>,
    },
    /// Answered with `Inode`: the file will soon have data beyond stripe 0; until the last writer's close the owner
    /// asks the objects for the size.
    Spread {
        /// Inode.
        ino: Ino,
    },
    /// Answered with `Locked`: a byte-range lock. Errors: `Again` for a lock-ahead that meets a conflict.
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
    /// Answered with `Locked` or `LockWaits`: a group lock of an object, which excludes all locks and requests but
    /// those of the same group. After the reply `LockWaits` the request is in the queue: `Push::GroupLockNews` says
    /// when the client should send it again, and `LockCancel` withdraws it. Errors: `Again` if the request is not to
    /// wait and another lock conflicts.
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
    /// Answered with `Done`: the client no longer uses these locks; all data that was dirty under them is written.
    LockCancel {
        /// Lock ids.
        locks: Vec<u64>,
    },
    /// Answered with `Done`: locks that were called back are still in use: calls under them wait for other servers.
    LockKept {
        /// Lock ids.
        locks: Vec<u64>,
    },
    /// Answered with `Done`; it answers a glimpse.
    GlimpseReply {
        /// Id of the question.
        id: u64,
        /// The end of the object as far as the client knows it.
        size: u64,
        /// The time of the last write that the client knows of.
        mtime: Timespec,
    },
    /// Answered with `Locks`: after a restart of the server, the opens and locks of the session on this target.
    Represent {
        /// Open inodes of this target.
        opens: Vec<(Ino, Access)>,
        /// Locks on objects of this target, answered with their new ids in order.
        locks: Vec<HeldLock>,
    },
    /// Answered with `Done`: the session ends in order; opens are closed, locks dropped, its slots forgotten.
    Goodbye,
    /// Answered with `Status`.
    Status,
    /// Answered with `Tunables`: reads the server's tunables that match a pattern; with a value it sets them first.
    Tunables {
        /// Name or pattern: `*` matches any text, `?` one character.
        pattern: String,
        /// New value.
        value: Option<String>,
    },
    /// Answered with `Counters`: the server's counters; with `reset` they start again from zero after being read.
    Counters {
        /// Whether the counters start again.
        reset: bool,
    },
    /// Answered with `Done`; it answers revocations by this target; none of the named objects is used any more.
    Revoked {
        /// Names of the revocations.
        ids: Vec<u64>,
    },
    /// Answered with `Done`: the mode that `Push::Company` named is in force on this mount. It is sent to the master.
    CompanyKnown {
        /// Number of the change.
        change: u64,
    },
    /// Answered with `Map`: which server has which targets. Answered with `Map`, which says on which server each target
    /// is. It may be sent to any server.
    Map,
    /// Answered with `Joined`: a server registers its targets; it is sent to the master.
    Join {
        /// The server, with its addresses and targets.
        server: ServerInfo,
        /// Cluster of the server's zones; 0: the server has none yet.
        cluster: u64,
        /// Numbers of new targets that the server wants to make.
        new_targets: u16,
        /// The epoch of the map that the sender has; 0 if it has none yet.
        epoch: u64,
    },
    /// Answered with `Told`: a question by a server to a target of another server.
    Ask {
        /// Encoded question, private to servers of one version.
        #[serde(with = "serde_bytes")]
        question: Vec<u8>,
    },
    /// Answered with `FileLock`: an application takes a lock on a file, or changes the lock that it holds to this
    /// range. `false` means that the client does not hold the lock yet; `Push::FileLockNews` says when the client
    /// should send the request again under the same number. Errors: `Again` (not to wait), `Deadlk`, `NoLck`.
    FileLockSet {
        /// The lock.
        lock: FileLockSpec,
        /// Name of the request, unique within the session.
        number: u64,
        /// Wait in the queue for conflicting locks.
        wait: bool,
    },
    /// Answered with `FileLock`: the caller no longer waits for the lock. `true` means that the lock was granted
    /// before, and stays granted.
    FileLockCancel {
        /// The lock, exactly as it was requested.
        lock: FileLockSpec,
        /// Name of the request.
        number: u64,
    },
    /// Answered with `Done`: releases the locks that the owner has on a range.
    FileLockUnlock {
        /// The file.
        ino: Ino,
        /// The owner that gives up locks.
        owner: FileLockOwner,
        /// Bytes.
        range: ByteRange,
    },
    /// Answered with `FileLockFound`, the lock that conflicts, or with `FileLock(false)`, as for `FileLockSet`.
    FileLockTest {
        /// The lock.
        lock: FileLockSpec,
        /// Name of the request.
        number: u64,
    },
    /// Answered with `FileLocksLost`: after a restart of the server, before `Represent`: file locks that the session
    /// holds on this target. The client sends as many messages as it needs.
    RepresentFileLocks {
        /// The locks.
        locks: Vec<FileLockSpec>,
        /// Exclusive locks that an unanswered request converts to shared, and that `locks` contains as shared. They
        /// become exclusive again if no session has presented a lock that conflicts with that.
        converted: Vec<FileLockSpec>,
    },
    /// Answered with `WrittenBatch`; the payload has the bytes of all parts in sequence, at most `BATCH_BYTES_MAX`.
    /// Write-back of many small files of one target under locks of the client. Each part is executed independently of
    /// the others. Errors: `Inval` for parts out of order or that do not fit the payload.
    WriteBatch {
        /// Ascending in (object, offset), at most `BATCH_PARTS_MAX`; parts of one object share no block of 4096 bytes.
        parts: Vec<BatchPart>,
    },
    /// Answered with `Done`: several closes of one target, each as `Close`; at most `BATCH_PARTS_MAX`.
    CloseBatch {
        /// The inode, the way in which it was opened, and the access time to which the inode's access time is to be
        /// advanced.
        closes: Vec<(Ino, Access, Option<Timespec>)>,
    },
    /// Answered with `FilesAhead` and a payload: small files of a directory that the caller is about to open for
    /// reading one after the other. Each file is opened, and the reply contains its lock, attributes and bytes, if all
    /// of these are available without waiting. Each part is executed independently of the others. Errors: `Inval` for
    /// too many parts.
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
    /// Answered with `PagesLeft`: locks of the file are about to be returned although the front end of the client has
    /// pages under them that it cannot drop at the moment. From now on the target notes which parts of its objects of
    /// the file other sessions change. Errors: `NoMem` for too many files.
    PagesLeft {
        /// The file.
        ino: Ino,
    },
    /// Answered with `Done`: the client has taken back all pages that were left behind.
    PagesTaken {
        /// The file.
        ino: Ino,
        /// The name that `PagesLeft` gave.
        left: u64,
    },
    /// Answered with `Data` and a payload, as a `Read` under a lock of the client: the bytes are read into pages while
    /// other pages are left behind. Earlier changes do not count as changes below these pages.
    PagesRead {
        /// Object.
        object: ObjectId,
        /// Bytes, in file offsets.
        range: ByteRange,
        /// The name that `PagesLeft` gave.
        left: u64,
    },
    /// Answered with `Written`; the payload has the bytes of pages that were left behind. The target locks the range
    /// for the request, and leaves out the bytes that other sessions have changed since the pages were read. Errors:
    /// `Stale` if that is not known any more.
    PagesWrite {
        /// Object.
        object: ObjectId,
        /// File offset of the first byte.
        offset: u64,
        /// The same as in `Write`.
        generation: u64,
        /// Time of the write.
        mtime: Timespec,
        /// The name that `PagesLeft` gave.
        left: u64,
        /// The same as in `Write`.
        checksums: DataChecksums,
    },
    /// Answered with `Done`: the mount has read `Push::Company`, and entries that it cached in the old mode are still
    /// in use. It is sent to the master.
    CompanyKept {
        /// Number of the change.
        change: u64,
    },
    /// Answered with `Done`; it answers `Push::FileLockClosing`: the locks of descriptors that were closed before the
    /// push arrived have been released, or their release takes too long. It is sent to the target of the file.
    FileLockClosed {
        /// The file.
        ino: Ino,
        /// Number of the question.
        id: u64,
    },
    /// Answered with `Done`; it answers `Push::WriteFailed`: programs that have the file open will get the failure. It
    /// is sent to the target that reported the failure.
    WriteFailedKnown {
        /// Number of the news.
        id: u64,
    },
    /// Answered with `Done`: requests a grant of space on the target, or returns a part of it. The answer contains the
    /// session's present grant.
    Grant {
        /// Blocks that the session does not need: the answer to `Push::GrantWanted`. Nothing: it asks.
        give_back: Option<u64>,
    },
    /// Answered with `GroupWanted`: whether a request waits for the end of the group that has the object.
    GroupWanted {
        /// Object.
        object: ObjectId,
    },
    /// Answered with `Locks`, as `Represent` is, but sent by a client whose users are counted as other users. A server
    /// makes it of that one, and accepts it from no client.
    RepresentFor {
        /// Open inodes of this target.
        opens: Vec<(Ino, Access)>,
        /// Locks on objects of this target.
        locks: Vec<HeldLock>,
        /// The users as whom the client's users count.
        users: Box<Squash>,
    },
    /// Answered with `Keys`: the registry of keys, after `change` if there is one; `Refused` if the change is not
    /// possible. It is sent to the master: other servers answer with `Map`.
    Keys {
        /// The change of the registry, if there is one.
        change: Option<KeyChange>,
    },
    /// Answered with `Evicted`: ends sessions of mounts as if they did not answer; `Refused` if there are none. It is
    /// sent to the master: other servers answer with `Map`.
    Evict {
        /// The number of a session, 16 hexadecimal digits as `amphi status` shows it, or the name or fingerprint of a
        /// key, whose sessions all end.
        who: String,
    },
    /// Answered with `Done`; it answers `Push::DirectoryChanged`: the front end has made its kernel look the directory
    /// up, or cannot do so at once. It is sent to the target that reported the change.
    DirectoryShown {
        /// Number of the question.
        id: u64,
    },
    /// Answered with `Owner`: the accounts to which an inode is charged. It is sent to the target of the inode.
    Charged {
        /// Inode.
        ino: Ino,
    },
    /// Answered with `Accounts`: an account. A user sees the accounts of the user, of the user's groups and of trees;
    /// the super-user sees all. It is sent to target 0.
    Account {
        /// The account.
        account: Account,
    },
    /// Answered with `Accounts`: the accounts after this one that use something or have limits, as many as fit. Only
    /// root may send it. It is sent to target 0.
    Accounts {
        /// The account behind which the list continues; `None` at the start.
        after: Option<Account>,
    },
    /// Answered with `Done`: limits an account from now on; without limits it is free again. Only root may send it. It
    /// is sent to target 0.
    SetLimits {
        /// The account. User 0 has no limits: `Inval`.
        account: Account,
        /// The limits of the account.
        limits: Limits,
    },
    /// Answered with `Project`: a project number that no tree has. Only root may send it. It is sent to target 0.
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

    /// Returns whether the answer to the request may create something that the session has from then on, until the
    /// session returns it: an open, a lock of an object.
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

/// The part of `Request::ReadBatch` that reads one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadPart {
    /// Name.
    pub name: Name,
    /// The inode that the client expects; if another inode is found, the part is left out.
    pub ino: Ino,
    /// Read the file's bytes too, under a lock; otherwise the file is just opened.
    pub data: bool,
}

/// The part of `Request::WriteBatch` that makes one write.
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
    /// The same as in `Write`.
    pub cover: Cover,
}

/// A mount's grant of space on a target for the bytes of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Cover {
    /// There is no grant, and the mount requests none: the bytes come directly from a program, which gets the error if
    /// there is no space.
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
