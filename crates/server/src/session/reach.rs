//! `Reach`: which inodes a request names, so that a session that is bound to a tree stays in it.
//!
//! Owns: the table (`reach_of`), whose completeness the compiler checks, and the tree to which a session is bound. Does
//! not own: which sessions are bound (`cluster::sessions::gate`), the comparison with the inodes (`ops::subtree`).
//!
//! A tree is a project. Every inode has a project, a new inode gets that of its directory, and only a copy can cross
//! the border of a tree. So whether an inode is in the tree depends only on the inode, however the request names it. It
//! does not matter how a session learnt the number of the inode.

use amphi_types::{Account, AccountKind, Errno, Ino, Result};
use amphi_wire::Request;
use amphi_wire::keys::Subtree;
use smallvec::SmallVec;

/// The tree beyond which a session reaches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tree {
    /// The top directory of the tree.
    pub root: Ino,
    /// The project of everything in the tree.
    pub project: u32,
}

impl Tree {
    /// The tree of an entry of the registry of keys.
    pub fn of(subtree: &Subtree) -> Tree {
        Tree { root: subtree.root, project: subtree.project }
    }

    /// Returns whether an inode of this project is in the tree.
    pub fn has(&self, project: u32) -> bool {
        project == self.project
    }
}

/// The conditions under which a request is executed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Terms {
    /// The request is refused if it has not begun by this time (monotonic ns), because its client has stopped waiting.
    pub until_ns: Option<u64>,
    /// The request may access only this tree. `None` means that it may access everything.
    pub tree: Option<Tree>,
}

/// The inodes that a request names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Only state of the session itself, by numbers that only this session got, or facts that every session may know.
    Own,
    /// These inodes, or objects of these inodes. If one is outside the tree, the answer is `Stale`, as for one that
    /// does not exist. The operation follows names in directories, and checks the inodes to which they lead
    /// (`RequestCx::leads_within`).
    Inodes(SmallVec<[Ino; 2]>),
    /// State that the session presents. State outside the tree is omitted.
    Presented,
    /// Something of the whole file system or cluster: `Perm`.
    Beyond,
}

/// The inodes that a request of a session bound to `tree` names. A new request is added here before it compiles.
pub fn reach_of(op: &Request, tree: &Tree) -> Reach {
    match op {
        Request::Lookup { dir, .. }
        | Request::Parent { dir }
        | Request::Shards { dir }
        | Request::ReadDir { dir, .. }
        | Request::Make { dir, .. }
        | Request::MakeTmp { dir, .. }
        | Request::Unlink { dir, .. }
        | Request::RmDir { dir, .. } => inodes([*dir]),
        // A session that could change the project of an inode could move the inode out of the tree, or others into it.
        Request::SetAttr { set, .. } if set.project.is_some() => Reach::Beyond,
        Request::GetAttr { ino }
        | Request::GetAttrNow { ino }
        | Request::SetAttr { ino, .. }
        | Request::ReadLink { ino }
        | Request::Open { ino, .. }
        | Request::Discard { ino, .. }
        | Request::GetXattr { ino, .. }
        | Request::ListXattr { ino }
        | Request::SetXattr { ino, .. }
        | Request::RemoveXattr { ino, .. }
        | Request::SetLayout { ino, .. }
        | Request::SetShards { ino, .. }
        | Request::Spread { ino }
        | Request::PagesLeft { ino }
        | Request::Charged { ino }
        | Request::Sync { file: Some(ino) } => inodes([*ino]),
        Request::FileLockSet { lock, .. } | Request::FileLockTest { lock, .. } => inodes([lock.ino]),
        Request::Link { ino, dir, .. } => inodes([*ino, *dir]),
        Request::Rename { from, to, .. } => inodes([*from, *to]),
        Request::Read { object, .. }
        | Request::Write { object, .. }
        | Request::Punch { object, .. }
        | Request::Allocate { object, .. }
        | Request::DataMap { object, .. }
        | Request::Extents { object, .. }
        | Request::LockEnqueue { object, .. }
        | Request::GroupLock { object, .. }
        | Request::GroupWanted { object }
        | Request::PagesRead { object, .. }
        | Request::PagesWrite { object, .. } => inodes([object.ino]),
        Request::WriteBatch { parts } => inodes(parts.iter().map(|part| part.object.ino)),
        // The files must be on the target of the directory; others are refused for that reason.
        Request::ReadBatch { dir, parts, .. } => {
            let here = parts.iter().map(|part| part.ino).filter(|ino| ino.target() == dir.target());
            inodes(std::iter::once(*dir).chain(here))
        }
        Request::Represent { .. } | Request::RepresentFor { .. } | Request::RepresentFileLocks { .. } => {
            Reach::Presented
        }
        // Opens and locks that the session gives back. They are its own wherever the files are; an access time that
        // comes with a close is ignored (`ops::subtree`).
        Request::Close { .. }
        | Request::CloseBatch { .. }
        | Request::FileLockCancel { .. }
        | Request::FileLockUnlock { .. }
        | Request::FileLockClosed { .. }
        | Request::PagesTaken { .. }
        | Request::LockCancel { .. }
        | Request::LockKept { .. }
        | Request::GlimpseReply { .. }
        | Request::Revoked { .. }
        | Request::Grant { .. }
        | Request::WriteFailedKnown { .. }
        | Request::DirectoryShown { .. }
        | Request::CompanyKnown { .. }
        | Request::CompanyKept { .. }
        | Request::Goodbye => Reach::Own,
        // Earlier answers, also to this session, but no file's name or state.
        Request::Sync { file: None } | Request::StatFs | Request::Status | Request::Map => Reach::Own,
        Request::Tunables { value: None, .. } => Reach::Own,
        Request::Account { account } if *account == (Account { kind: AccountKind::Project, id: tree.project }) => {
            Reach::Own
        }
        Request::Account { .. }
        | Request::Accounts { .. }
        | Request::SetLimits { .. }
        | Request::NewProject
        | Request::Tunables { value: Some(_), .. }
        | Request::Counters { .. }
        | Request::Keys { .. }
        | Request::Evict { .. }
        | Request::Join { .. }
        | Request::Ask { .. } => Reach::Beyond,
    }
}

/// The inodes whose attributes a request may need because it names them. `is_checked`: the session is bound to a tree,
/// or is not the superuser's, so that permissions are checked of what it presents.
///
/// Locks need no attributes, except those of groups, which only a session gets that has the right to the object.
pub fn named_by(op: &Request, is_checked: bool) -> SmallVec<[Ino; 2]> {
    match op {
        Request::SetAttr { ino, .. } | Request::Close { ino, .. } => SmallVec::from_slice(&[*ino]),
        Request::CloseBatch { closes } => closes.iter().map(|(ino, ..)| *ino).collect(),
        Request::RepresentFor { opens, .. } => opens.iter().map(|(ino, _)| *ino).collect(),
        // A file that is open for writing may have to be marked as spread again.
        Request::Represent { opens, .. } => {
            opens.iter().filter(|(_, access)| is_checked || access.write).map(|(ino, _)| *ino).collect()
        }
        Request::RepresentFileLocks { locks, converted } if is_checked => {
            locks.iter().map(|lock| lock.ino).chain(converted.iter().map(|lock| lock.ino)).collect()
        }
        Request::LockEnqueue { .. }
        | Request::GroupWanted { .. }
        | Request::FileLockSet { .. }
        | Request::FileLockTest { .. } => SmallVec::new(),
        op => match reach_of(op, &Tree { root: Ino::ROOT, project: 0 }) {
            Reach::Inodes(inos) => inos,
            Reach::Own | Reach::Presented | Reach::Beyond => SmallVec::new(),
        },
    }
}

fn inodes(named: impl IntoIterator<Item = Ino>) -> Reach {
    Reach::Inodes(named.into_iter().collect())
}

/// Returns whether a session that is bound to `tree` may send this request at all.
///
/// Errors: `Perm`.
pub fn may_reach(op: &Request, tree: &Tree) -> Result<()> {
    if reach_of(op, tree) == Reach::Beyond { Err(Errno::Perm) } else { Ok(()) }
}
