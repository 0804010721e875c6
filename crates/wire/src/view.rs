//! The parts of replies: inodes, entries, tokens, the state of targets, sessions and servers.
//!
//! Owns: only the types; `message` has the replies that contain them.

use crate::cluster::ServerInfo;
use crate::secure::Secure;
use amphi_types::{Advice, Attr, ByteRange, Cred, FileFlags, Ino, Kind, Layout, Name, SessionId, TargetId};
use serde::{Deserialize, Serialize};

/// The attributes of an inode that a client gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InodeView {
    /// Attributes.
    pub attr: Attr,
    /// Data layout.
    pub layout: Layout,
    /// The settings that the owner has made for mounts.
    pub advice: Advice,
    /// Truncation generation to send with writes.
    pub generation: u64,
    /// The inode's owner knows that other targets may hold data (`Request::Spread` was sent).
    pub spread: bool,
    /// The inode has extended attributes; without any, a client need not request them.
    pub xattrs: bool,
    /// One of the attributes gives capabilities to programs that execute the file (`security.capability`): a write
    /// removes this attribute.
    pub capability: bool,
    /// The inode has an access control list, so its permission bits alone do not determine the rights.
    pub acl: bool,
    /// The flags that `chattr` has set.
    pub flags: FileFlags,
    /// A directory whose names lie in shards (`Request::Shards`): link count and times of changes are the shards'.
    pub sharded: bool,
}

impl InodeView {
    /// Returns whether `cred` certainly has all of `want` (4 read, 2 write, 1 execute or search). With an access
    /// control list only the server can decide it.
    pub fn surely_allows(&self, cred: &Cred, want: u16) -> bool {
        let fixed = want & 2 != 0 && self.flags != FileFlags::NONE;
        let attr = &self.attr;
        !self.acl && !fixed && cred.has_access(attr.kind, attr.perm, (attr.uid, attr.gid), want)
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirEntry {
    /// Name.
    pub name: Name,
    /// Cookie to continue after this entry.
    pub cookie: u64,
    /// Inode.
    pub ino: Ino,
    /// Kind.
    pub kind: Kind,
    /// Attributes, if requested and at hand.
    pub inode: Option<InodeView>,
    /// Tokens for the name and, if the attributes are there, for them.
    pub tokens: Tokens,
}

/// The right to cache something, with a reply that shows it (docs/locking/tokens.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenGrant {
    /// Number of the grant at the target that made it.
    pub number: u64,
    /// How long the grant is valid from when the request was sent, milliseconds.
    pub life_ms: u32,
}

/// The part of a reply about tokens. All fields are absent in sole mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tokens {
    /// The request changed keys that it named: grants up to this number, of the target that was called, are void.
    pub changed: Option<u64>,
    /// For the name that was looked up, present or absent, at the directory's target.
    pub name: Option<TokenGrant>,
    /// For the attributes of the inode that the reply shows, at the inode's target.
    pub attributes: Option<TokenGrant>,
}

/// A directory right after a request has changed a name in it, at its own target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectoryAfter {
    /// The inode of the directory.
    pub inode: InodeView,
    /// Place of the change in the target's log: of several changes the one with the highest place was the last.
    pub place: u64,
    /// In shared mode, a token for the attributes.
    pub token: Option<TokenGrant>,
    /// In shared mode: a token for the knowledge of which names the directory has.
    pub listing: Option<ListingGrant>,
}

/// A token for the names of a directory, at its own target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListingGrant {
    /// The token.
    pub grant: TokenGrant,
    /// The request has made the only name of the directory. Otherwise the session has held the token without a break.
    pub is_first: bool,
}

/// A file that was opened for reading ahead of its reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAhead {
    /// The inode of the file.
    pub inode: InodeView,
    /// Tokens for the file's name and attributes.
    pub tokens: Tokens,
    /// A read lock on stripe 0: its id and its range, at least all bytes that the file has.
    pub lock: Option<(u64, ByteRange)>,
    /// Bytes of the payload that are this file's, from its start; zeros follow to its end. `None`: its bytes did not
    /// come. An answer that is given again has no payload.
    pub bytes: Option<u32>,
}

/// Space of a target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetSpace {
    /// Data blocks of 4096 bytes.
    pub blocks: u64,
    /// The number of free inodes.
    pub free: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Inodes that still fit.
    pub inodes_free: u64,
}

/// Most findings that a target tells.
pub const FINDINGS_MAX: usize = 4;

/// The part of `Status` about one target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetStatus {
    /// The target.
    pub target: TargetId,
    /// Worker that owns the target.
    pub worker: u16,
    /// Space.
    pub space: TargetSpace,
    /// The bytes of the log that are in use, and the size of the log.
    pub log: (u64, u64),
    /// Checkpoints since start.
    pub checkpoints: u64,
    /// Whether the zone of the target lies on rotating storage.
    pub rotating: bool,
    /// The number of blocks of file data that were found damaged since the start and still are.
    pub damaged: u64,
    /// The last findings, newest first, at most `FINDINGS_MAX`. Empty for clients that may not know all names.
    pub findings: Vec<String>,
    /// The number of blocks of metadata that were damaged and have been rebuilt, during the start and since.
    pub rebuilt: u64,
}

/// The part of `Status` about one session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionStatus {
    /// Id.
    pub session: SessionId,
    /// `host:pid`.
    pub name: String,
    /// Whether a connection is up.
    pub connected: bool,
    /// Open inodes.
    pub opens: u64,
    /// Locks held.
    pub locks: u64,
    /// Name of the key with which the session connected; empty if it has no key of its own.
    pub key: String,
    /// The tree to which the key of the session is bound, under the name that the administrator of the tree gave it;
    /// empty if the key is bound to no tree.
    pub subtree: String,
    /// How the connection of the session is protected. It is `None` if the session is not connected, or if the
    /// connection does not leave the machine.
    pub secure: Option<Secure>,
    /// The client has passed memory to the server, in which large payloads lie.
    pub memory: bool,
}

/// The part of `Status` about one server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// The description of the server in the cluster map.
    pub info: ServerInfo,
    /// Whether the master has received a message from the server lately.
    pub up: bool,
    /// Epoch of the map that the server knows.
    pub epoch: u64,
    /// For how long the master has not heard of the server, milliseconds.
    pub silent_ms: u64,
    /// The targets of the server in its last report; empty for a server that has not reported since the master started.
    pub targets: Vec<TargetStatus>,
}

/// Neighbouring bytes of a file that lie in neighbouring blocks of its target's storage. All in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExtentView {
    /// The first byte in the file.
    pub offset: u64,
    /// Length.
    pub len: u64,
    /// The first byte in the zone.
    pub address: u64,
    /// Whether the extent holds data; otherwise it is preallocated and reads as zeros.
    pub written: bool,
}
