//! `Gate`: the single place that every request of a client passes before anything is done for it.
//!
//! Owns: the class of each request (`class_of`, for which the compiler checks that the list is complete), what the
//! holder of a key may request, as which users its users count, and which users and groups the client sees in answers.
//! Does not own: the holders of keys (`membership::keys`), the rights of this machine's users on a Unix socket
//! (`trust`), and permissions of files.
//!
//! The rights of a session are determined when its connection is made, and again when the registry changes. A request
//! costs one look-up in a table of connections with keys, and nothing if that table is empty. Credentials are replaced
//! before any other code sees them. So every permission check, every owner of a new inode and every inherited group
//! uses the replaced ones. Numbers of users in requests (`chown`, access control lists) and in answers are translated
//! here as well.
//!
//! A session that is bound to a tree uses a second table in addition to `class_of`: what each request names
//! (`session::reach`). Requests that concern more than a tree are refused here. Inodes are checked on their targets,
//! before the request is executed.
//!
//! Invariant: a request is refused unless its class is named for the role of its connection.

use amphi_transport::Incoming;
use amphi_types::{AccountKind, AccountView, Caps, Cred, Errno, Result};
use amphi_wire::keys::{Fingerprint, IdRange, KeyEntry, NOBODY, Squash, SquashTo};
use amphi_wire::{Answer, Call, InodeView, LockMode, Reply, Request, Role};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use crate::membership::keys::{to_client, to_server};
use crate::session::reach::{Tree, may_reach};

/// The class of a request, as far as it decides which clients may send it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// A mount reads names, attributes or data, or does something that changes none of them.
    Look,
    /// A mount changes names, attributes or data, or acquires the right to do so.
    Change,
    /// A mount answers a message of the server, or returns something; or it begins or ends its session.
    Session,
    /// Every role may read the state of the cluster: its map, its space, its tunables.
    Cluster,
    /// An administrator changes servers, or reads the activity of others on them.
    Administration,
    /// A message from one server to another.
    Peer,
    /// A message from a server to itself.
    Internal,
}

/// The class of a request. A new request has to be added here before the code compiles.
pub(super) fn class_of(op: &Request) -> Class {
    match op {
        Request::Lookup { .. }
        | Request::Parent { .. }
        | Request::Shards { .. }
        | Request::GetAttr { .. }
        | Request::GetAttrNow { .. }
        | Request::ReadLink { .. }
        | Request::ReadDir { .. }
        | Request::GetXattr { .. }
        | Request::ListXattr { .. }
        | Request::Read { .. }
        | Request::DataMap { .. }
        | Request::Extents { .. }
        | Request::ReadBatch { .. }
        | Request::PagesRead { .. }
        | Request::Sync { .. }
        | Request::FileLockSet { .. }
        | Request::FileLockTest { .. }
        | Request::Charged { .. }
        | Request::Account { .. }
        | Request::Accounts { .. }
        | Request::GroupWanted { .. } => Class::Look,
        Request::Open { access, .. } => change_if(access.write),
        Request::LockEnqueue { mode, .. } => change_if(*mode == LockMode::Write),
        Request::Grant { give_back } => change_if(give_back.is_none()),
        Request::Represent { opens, locks } => {
            let writes = opens.iter().any(|(_, access)| access.write)
                || locks.iter().any(|lock| lock.mode == LockMode::Write || lock.group.is_some());
            if writes { Class::Change } else { Class::Session }
        }
        Request::SetAttr { .. }
        | Request::Make { .. }
        | Request::MakeTmp { .. }
        | Request::Link { .. }
        | Request::Unlink { .. }
        | Request::RmDir { .. }
        | Request::Rename { .. }
        | Request::SetXattr { .. }
        | Request::RemoveXattr { .. }
        | Request::SetLayout { .. }
        | Request::SetShards { .. }
        | Request::Write { .. }
        | Request::WriteBatch { .. }
        | Request::Punch { .. }
        | Request::Allocate { .. }
        | Request::Spread { .. }
        | Request::GroupLock { .. }
        // Limits concern the whole file system, so only its super-user may set them, as only he may change owners of
        // files.
        | Request::SetLimits { .. }
        | Request::NewProject
        | Request::PagesWrite { .. } => Class::Change,
        Request::Close { .. }
        | Request::CloseBatch { .. }
        | Request::Discard { .. }
        | Request::LockCancel { .. }
        | Request::LockKept { .. }
        | Request::GlimpseReply { .. }
        | Request::Goodbye
        | Request::Revoked { .. }
        | Request::CompanyKnown { .. }
        | Request::CompanyKept { .. }
        | Request::FileLockCancel { .. }
        | Request::FileLockUnlock { .. }
        | Request::FileLockClosed { .. }
        | Request::RepresentFileLocks { .. }
        | Request::PagesLeft { .. }
        | Request::PagesTaken { .. }
        | Request::WriteFailedKnown { .. }
        | Request::DirectoryShown { .. } => Class::Session,
        Request::StatFs | Request::Status | Request::Map | Request::Tunables { value: None, .. } => Class::Cluster,
        Request::Tunables { value: Some(_), .. }
        | Request::Counters { .. }
        | Request::Keys { .. }
        | Request::Evict { .. } => Class::Administration,
        Request::Join { .. } | Request::Ask { .. } => Class::Peer,
        Request::RepresentFor { .. } => Class::Internal,
    }
}

fn change_if(changes: bool) -> Class {
    if changes { Class::Change } else { Class::Look }
}

/// Returns whether a request changes a server. If the client has no key of its own, it may send the request only if it
/// is trusted.
pub(super) fn changes_servers(op: &Request) -> bool {
    match op {
        // Every admitted client may read the sums.
        Request::Counters { reset } => *reset,
        op => class_of(op) == Class::Administration,
    }
}

/// The rights of the holder of a key on one connection. The worker with the connection checks this flag, and the worker
/// with the sessions sets it.
#[derive(Debug)]
pub(super) struct Gate {
    /// The key with which the connection was made.
    pub(super) key: Fingerprint,
    /// The entry of the key in the registry.
    pub(super) entry: KeyEntry,
    pub(super) role: Role,
    /// No request is executed any more, because the key has been removed.
    closed: AtomicBool,
    /// Requests whose users or groups were replaced.
    squashed: AtomicU64,
    /// The gate that replaces this one, after the registry has a changed entry for the key.
    next: OnceLock<Arc<Gate>>,
}

impl Gate {
    /// The gate of a connection that was admitted in this role.
    pub(super) fn new(key: Fingerprint, entry: KeyEntry, role: Role) -> Gate {
        let (closed, squashed, next) = (AtomicBool::new(false), AtomicU64::new(0), OnceLock::new());
        Gate { key, entry, role, closed, squashed, next }
    }

    /// The gate of the same connection with another entry. It replaces this gate from now on, at every worker.
    pub(super) fn replaced(&self, entry: KeyEntry) -> Arc<Gate> {
        self.next.get_or_init(|| Arc::new(Gate::new(self.key, entry, self.role))).clone()
    }

    /// The gate that has replaced this one, if there is one.
    pub(super) fn latest(&self) -> Option<Arc<Gate>> {
        let mut latest = self.next.get()?;
        while let Some(next) = latest.next.get() {
            latest = next;
        }
        Some(latest.clone())
    }

    /// From now on no request of this connection is executed.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
    }

    /// Returns whether the gate was closed.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Number of requests whose users or groups were replaced, or that were refused because of them.
    pub(super) fn squashed(&self) -> u64 {
        self.squashed.load(Ordering::Relaxed)
    }

    /// Returns whether the last refusal has to be recorded. The first one is, and then each one that makes the number
    /// ten times as large.
    pub(super) fn is_noteworthy(&self) -> bool {
        let count = self.squashed();
        count > 0 && count == 10u64.pow(count.ilog10())
    }

    /// Returns whether the client is shown other numbers of users and groups than the servers have.
    pub(super) fn translates(&self) -> bool {
        let Squash { uids, gids, .. } = &self.entry.squash;
        !uids.is_empty() || !gids.is_empty()
    }

    /// The tree beyond which nothing is reached.
    pub(super) fn tree(&self) -> Option<Tree> {
        self.entry.subtree.as_ref().map(Tree::of)
    }

    /// Returns whether the holder may send this request. If so, the call gets the credentials with which it is
    /// executed.
    ///
    /// Errors: `Perm`, `ReadOnly`, or `Io` if its key has been removed.
    pub(super) fn pass(&self, incoming: &mut Incoming) -> Result<()> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(Errno::Io);
        }
        let class = class_of(&incoming.call.op);
        let allowed: &[Class] = match self.role {
            Role::Mount => &[Class::Look, Class::Change, Class::Session, Class::Cluster],
            Role::Admin if self.entry.role == amphi_wire::keys::KeyRole::Admin => {
                &[Class::Cluster, Class::Session, Class::Administration]
            }
            Role::Admin => &[Class::Cluster, Class::Session],
            Role::Server => &[Class::Peer, Class::Cluster],
        };
        if !allowed.contains(&class) {
            return Err(Errno::Perm);
        }
        if self.entry.read_only {
            if class == Class::Change {
                return Err(Errno::ReadOnly);
            }
            forget_access_times(&mut incoming.call.op);
        }
        if let Some(tree) = self.tree() {
            may_reach(&incoming.call.op, &tree)?;
        }
        if self.role == Role::Mount {
            self.act_as(&mut incoming.call)?;
            if incoming.bound.is_none() {
                self.present_for_users(&mut incoming.call);
            }
        }
        Ok(())
    }

    /// The state that a mount presents after a restart names no users. So the server accepts files that some user of
    /// the client could have opened.
    fn present_for_users(&self, call: &mut Call) {
        if call.cred.uid == 0 {
            return;
        }
        if let Request::Represent { opens, locks } = &mut call.op {
            let (opens, locks) = (std::mem::take(opens), std::mem::take(locks));
            call.op = Request::RepresentFor { opens, locks, users: Box::new(self.entry.squash.clone()) };
        }
    }

    /// Replaces the credentials of the call, and the user numbers in it, by those that they stand for on the servers.
    fn act_as(&self, call: &mut Call) -> Result<()> {
        let squash = &self.entry.squash;
        let (counts, replaced) = match squashed(squash, &call.cred) {
            Some(cred) => {
                let replaced = cred != call.cred;
                (cred, replaced)
            }
            None => {
                self.count();
                return Err(Errno::Perm);
            }
        };
        if replaced {
            if is_of_a_program(&call.op) {
                self.count();
            }
            call.cred = counts;
        }
        if !self.translates() {
            return Ok(());
        }
        let id = |ranges: &[IdRange], id: u32| to_server(ranges, id).ok_or(Errno::Perm);
        match &mut call.op {
            Request::SetAttr { set, .. } => {
                set.uid = set.uid.map(|uid| id(&squash.uids, uid)).transpose()?;
                set.gid = set.gid.map(|gid| id(&squash.gids, gid)).transpose()?;
            }
            Request::Account { account } | Request::SetLimits { account, .. } => match account.kind {
                AccountKind::User => account.id = id(&squash.uids, account.id)?,
                AccountKind::Group => account.id = id(&squash.gids, account.id)?,
                AccountKind::Project => {}
            },
            // A position in the list is one of the servers' numbers, which this mount does not have.
            Request::Accounts { .. } => return Err(Errno::NotSupported),
            Request::SetXattr { name, value, .. } if is_acl(name) => {
                translate_acl(value, |is_user, n| id(if is_user { &squash.uids } else { &squash.gids }, n))?;
            }
            _ => {}
        }
        Ok(())
    }

    fn count(&self) {
        self.squashed.fetch_add(1, Ordering::Relaxed);
    }

    /// Translates the numbers of users and groups in an answer. `acl`: the value is an access control list. A user
    /// without a number at the client is shown as nobody.
    pub(super) fn show(&self, answer: &mut Answer, acl: bool) {
        let Squash { uids, gids, .. } = &self.entry.squash;
        let show = |view: &mut InodeView| {
            view.attr.uid = to_client(uids, view.attr.uid).unwrap_or(NOBODY);
            view.attr.gid = to_client(gids, view.attr.gid).unwrap_or(NOBODY);
        };
        if let Some(directory) = &mut answer.directory {
            show(&mut directory.inode);
        }
        let Ok(reply) = &mut answer.result else { return };
        match reply {
            Reply::Inode(view) | Reply::Made { inode: view, .. } => show(view),
            Reply::Entries { entries, .. } => entries.iter_mut().filter_map(|e| e.inode.as_mut()).for_each(show),
            Reply::FilesAhead(files) => {
                files.iter_mut().filter_map(|file| file.as_mut().ok()).for_each(|file| show(&mut file.inode));
            }
            Reply::Owner(owner) => {
                owner.uid = to_client(uids, owner.uid).unwrap_or(NOBODY);
                owner.gid = to_client(gids, owner.gid).unwrap_or(NOBODY);
            }
            Reply::Accounts { accounts, .. } => {
                for AccountView { account, .. } in accounts {
                    let ids = match account.kind {
                        AccountKind::User => uids,
                        AccountKind::Group => gids,
                        AccountKind::Project => continue,
                    };
                    account.id = to_client(ids, account.id).unwrap_or(NOBODY);
                }
            }
            Reply::Bytes(value) if acl => {
                let shown = |is_user, n| Ok(to_client(if is_user { uids } else { gids }, n).unwrap_or(NOBODY));
                // A value that is not a list is not changed.
                let _ = translate_acl(value, shown);
            }
            Reply::Done
            | Reply::Removed { .. }
            | Reply::Ino(_)
            | Reply::Shards(_)
            | Reply::Bytes(_)
            | Reply::StatFs(_)
            | Reply::Data
            | Reply::Written { .. }
            | Reply::Offset(_)
            | Reply::DataMap { .. }
            | Reply::Extents { .. }
            | Reply::PagesLeft(_)
            | Reply::Locked { .. }
            | Reply::LockWaits { .. }
            | Reply::Locks(_)
            | Reply::Status { .. }
            | Reply::Tunables(_)
            | Reply::Counters(_)
            | Reply::Map(_)
            | Reply::Joined { .. }
            | Reply::Told(_)
            | Reply::FileLock(_)
            | Reply::FileLockFound(_)
            | Reply::FileLocksLost(_)
            | Reply::Refused(_)
            | Reply::WrittenBatch(_)
            | Reply::GroupWanted(_)
            | Reply::Project(_)
            | Reply::Keys(_)
            | Reply::Evicted(_) => {}
        }
    }

    /// Returns whether the answer to a request is the value of an access control list.
    pub(super) fn asks_for_acl(op: &Request) -> bool {
        matches!(op, Request::GetXattr { name, .. } if is_acl(name))
    }
}

/// Returns whether a request is made on behalf of a program, whose rights then decide about it. A mount makes all other
/// requests for itself, in the name of root.
fn is_of_a_program(op: &Request) -> bool {
    matches!(
        op,
        Request::Lookup { .. }
            | Request::ReadDir { .. }
            | Request::SetAttr { .. }
            | Request::Make { .. }
            | Request::MakeTmp { .. }
            | Request::Link { .. }
            | Request::Unlink { .. }
            | Request::RmDir { .. }
            | Request::Rename { .. }
            | Request::Open { .. }
            | Request::SetXattr { .. }
            | Request::RemoveXattr { .. }
            | Request::SetLayout { .. }
            | Request::SetShards { .. }
            | Request::SetLimits { .. }
            | Request::NewProject
    )
}

/// A mount that may not change anything brings no access times forward.
fn forget_access_times(op: &mut Request) {
    match op {
        Request::Close { atime, .. } => *atime = None,
        Request::CloseBatch { closes } => closes.iter_mut().for_each(|(_, _, atime)| *atime = None),
        _ => {}
    }
}

/// The user as whom a caller is treated, or `None` if the key may not act for him.
///
/// The rights of the super-user are his capabilities and his group as much as his number. So if root is squashed or
/// mapped to another user, no user of that client has capabilities, and group 0 is squashed in the same way.
fn squashed(squash: &Squash, said: &Cred) -> Option<Cred> {
    let alone = |to: SquashTo| Cred { uid: to.uid, gid: to.gid, groups: Vec::new(), caps: Caps::NONE };
    if let Some(to) = squash.all {
        return Some(alone(to));
    }
    if said.uid == 0
        && let Some(to) = squash.root
    {
        return Some(alone(to));
    }
    let is_root_kept = squash.root.is_none() && to_server(&squash.uids, 0) == Some(0);
    let uid = match to_server(&squash.uids, said.uid) {
        Some(uid) => uid,
        // Requests of the mount itself are sent on behalf of root. If root has no number here, root counts as the user
        // `nobody`.
        None if said.uid == 0 => return Some(alone(SquashTo { uid: NOBODY, gid: NOBODY })),
        None => return None,
    };
    let group = |gid: u32| match squash.root {
        Some(to) if gid == 0 => Some(to.gid),
        _ => to_server(&squash.gids, gid),
    };
    let gid = group(said.gid).unwrap_or(NOBODY);
    let mut groups: Vec<u32> = said.groups.iter().filter(|g| squash.root.is_none() || **g != 0).copied().collect();
    groups = groups.into_iter().filter_map(group).collect();
    let caps = if is_root_kept { said.caps } else { Caps::NONE };
    Some(Cred { uid, gid, groups, caps })
}

fn is_acl(name: &[u8]) -> bool {
    name.starts_with(b"system.posix_acl_")
}

/// Bytes before the entries of an access control list, and of each entry: a tag, permissions, a number. They are
/// little-endian, as in Linux.
const ACL_HEAD: usize = 4;
const ACL_ENTRY: usize = 8;
/// Tags of entries that name a user and a group.
const ACL_USER: u16 = 0x02;
const ACL_GROUP: u16 = 0x08;

/// Replaces the numbers in the value of an access control list. `id` is called with a word that says whether the number
/// is a user's, and with the number.
fn translate_acl(value: &mut [u8], id: impl Fn(bool, u32) -> Result<u32>) -> Result<()> {
    let Some(entries) = value.get_mut(ACL_HEAD..) else { return Ok(()) };
    for entry in entries.chunks_exact_mut(ACL_ENTRY) {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        if tag == ACL_USER || tag == ACL_GROUP {
            let number = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
            entry[4..].copy_from_slice(&id(tag == ACL_USER, number)?.to_le_bytes());
        }
    }
    Ok(())
}
