//! The parts of messages. Bodies are encoded with postcard; payload bytes travel beside the body.

use crate::request::Request;
use amphi_types::{ByteRange, Cred, Ino, Kind, ObjectId, SessionId, TargetId, Timespec};
use serde::{Deserialize, Serialize};

/// Protocol version; peers of another version are refused in the handshake.
pub const VERSION: u32 = 25;

/// Which credits a message uses. Flush and cancel never wait behind ordinary requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Lane {
    /// Ordinary requests.
    Normal,
    /// Write-back of dirty data, sync, session messages.
    Urgent,
    /// Answers to messages of the server: lock cancels, revocations, glimpses. They are sent as `Urgent`; the client
    /// reserves some of the urgent credits for them, because the requests that use this lane may wait for these
    /// answers.
    Answer,
    /// Requests that may wait for byte-range locks of other mounts. They are sent as `Normal`; the client reserves some
    /// of the normal credits for requests that wait for no lock, so that I/O under a lock for which others wait is not
    /// delayed.
    Locking,
}

/// Identity of a request within a session: a slot has one request at a time, numbered upwards. A target keeps the last
/// reply of each slot, so that a request that is sent again is executed only once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct RequestId {
    /// Slot number, below the credits of the session.
    pub slot: u16,
    /// Sequence number within the slot, from 1.
    pub seq: u64,
}

/// The kind of program that connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// A mount: holds opens and locks.
    Mount,
    /// `amphi status` and the like: asks, holds nothing.
    Admin,
    /// Another server of the cluster, which sends requests to the targets of this one.
    Server,
}

/// First body from a client, after the server's challenge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// `VERSION` of the sender.
    pub version: u32,
    /// Session to start or to resume.
    pub session: SessionId,
    /// The kind of program that connects.
    pub role: Role,
    /// The client that connects, for users: `host:pid`.
    pub name: String,
    /// Boot id of the server this session spoke to last, 0 at first.
    pub last_boot: u64,
    /// The time of the client's clock.
    pub clock: Timespec,
    /// Which of the session's connections to this server this is, from 0; below `LINKS_MAX`. All but connection 0 join
    /// a session that connection 0 began.
    pub link: u16,
    /// Connections that the client has to this server, or at its first one would open, at least 1. A client that is not
    /// a mount has only one.
    pub links: u16,
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
    /// Whether the session was known. The client ignores a positive answer if `begun` is not the value that it got
    /// last: then the session has ended, and the answer that said so was lost.
    pub resumed: bool,
    /// Random number of this start of a mount's session, the same on all servers; 0 for others.
    pub begun: u64,
    /// Slots for `Lane::Normal`; slots `0..normal`.
    pub normal_credits: u16,
    /// Slots for `Lane::Urgent`; slots `normal..normal + urgent`.
    pub urgent_credits: u16,
    /// Number of targets of the cluster; targets are `0..pool`.
    pub pool: u16,
    /// How long a mount in sole mode may let its kernel cache entries and attributes, in milliseconds; 0 means not at
    /// all.
    pub token_ms: u32,
    /// Whether the session is the only mount at the moment; `Push::Company` reports changes. A mount in sole mode
    /// caches without tokens; in shared mode the mount and its kernel cache only what tokens permit.
    pub alone: bool,
    /// Epoch of the server's cluster map.
    pub map_epoch: u64,
    /// Number of mount sessions that have been started since the server was, this one included. A mount whose session
    /// has ended and starts again learns from it whether there were other mounts in between; a loss of answered changes
    /// by another server counts as one.
    pub mounts: u64,
    /// The number of connections over which the client should spread this server's targets; it is at least 1 and at
    /// most `Hello::links`. The target at place `p` of the server's targets in ascending order is reached over
    /// connection `p` modulo this number. Any connection reaches any target, with a detour within the server.
    pub links: u16,
    /// Targets of this server on rotating storage, at most `ROTATING_MAX`; mounts do not learn of further ones.
    pub rotating: Vec<TargetId>,
    /// The directory that is the root of the mount: that of the file system, or the top of the tree to which its key is
    /// bound.
    pub root: Ino,
}

/// The most targets in a `Welcome`, which has to fit into `HANDSHAKE_BODY_MAX`.
pub const ROTATING_MAX: usize = 1000;

/// A request with its address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// The target that executes the request.
    pub target: TargetId,
    /// The user who makes the request.
    pub cred: Cred,
    /// The operation that is requested.
    pub op: Request,
}

/// The kind of a new inode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Make {
    /// A regular file, opened for the caller with the given access.
    File {
        /// How the caller opens the file.
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
        /// The kind of the node.
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

/// The effect of rename on an existing destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replace the destination.
    Replace,
    /// `RENAME_NOREPLACE`: fail with `Exist`.
    NoReplace,
    /// `RENAME_EXCHANGE`: the two names are exchanged.
    Exchange,
    /// `RENAME_WHITEOUT`: as `Replace`, and the old name becomes a character device 0:0.
    Whiteout,
    /// `RENAME_WHITEOUT` and `RENAME_NOREPLACE`.
    NewWhiteout,
}

/// Lock modes on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockMode {
    /// Shared.
    Read,
    /// Exclusive.
    Write,
}

/// Which range of a lock a request accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockExtent {
    /// Granted as wide as nothing conflicts.
    Grown,
    /// Granted exactly as requested, for callers that know their pattern.
    Exact,
    /// Lock-ahead: granted exactly as requested, or refused with `Again` if anything conflicts. No other lock is called
    /// back for it.
    Ahead,
}

/// A lock as a client re-presents it after a restart of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLock {
    /// The object of the lock.
    pub object: ObjectId,
    /// The mode of the lock.
    pub mode: LockMode,
    /// The bytes that the lock covers.
    pub range: ByteRange,
    /// The group of a group lock, which covers all bytes.
    pub group: Option<u64>,
}

/// The effect of setxattr on an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// `XATTR_CREATE`.
    Create,
    /// `XATTR_REPLACE`.
    Replace,
}
