//! Plans: from the facts of the inodes concerned to the parts of an operation, or its errno.
//!
//! Owns: permissions, rules of kinds, and their order. The order is that of Linux, so a call that breaks two rules
//! fails as it does on a local file system. Does not own: looking names up, and directory loops, which the caller
//! excludes before (`rename`).
//!
//! Plans are pure functions, and the facts may come from several targets.

use crate::part::NewInode;
use crate::perm::{self, GROUP_EXEC, SETGID, Want};
use crate::{Facts, Part, SharedAttrs};
use amphi_types::{Acls, Caps, Cred, Errno, Ino, Kind, Name, Result, limits};
use serde::{Deserialize, Serialize};

/// The effect of rename on an existing destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameMode {
    /// Replace the destination.
    Replace,
    /// Fail with `Exist`.
    NoReplace,
    /// Exchange the two inodes.
    Exchange,
}

/// The kind and attributes of a new inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Kind.
    pub kind: Kind,
    /// Permission bits that the caller requested.
    pub perm: u16,
    /// Bits that the inode does not get, unless its directory has a default access control list.
    pub umask: u16,
    /// Device number of device nodes, otherwise 0.
    pub rdev: u32,
    /// Target of a symbolic link, otherwise empty.
    pub symlink: Vec<u8>,
}

impl NodeSpec {
    /// A regular file.
    pub fn file(perm: u16) -> NodeSpec {
        NodeSpec::node(Kind::File, perm, 0)
    }

    /// A directory.
    pub fn dir(perm: u16) -> NodeSpec {
        NodeSpec::node(Kind::Dir, perm, 0)
    }

    /// A symbolic link to `target`.
    pub fn symlink(target: impl Into<Vec<u8>>) -> NodeSpec {
        NodeSpec { symlink: target.into(), ..NodeSpec::node(Kind::Symlink, 0o777, 0) }
    }

    /// A fifo, socket or device node.
    pub fn node(kind: Kind, perm: u16, rdev: u32) -> NodeSpec {
        NodeSpec { kind, perm, umask: 0, rdev, symlink: Vec::new() }
    }

    /// The same inode, made with this umask.
    #[must_use]
    pub fn with_umask(self, umask: u16) -> NodeSpec {
        NodeSpec { umask, ..self }
    }
}

/// The parts that make the new inode that `cred` makes in `dir`. It inherits group and setgid bit from a setgid
/// directory; project, layout and settings for mounts from any directory; and access control lists from a directory
/// with a default list, which then counts instead of the umask.
fn new_inode(cred: &Cred, dir: &Facts, spec: &NodeSpec, ino: Ino, linked: bool) -> impl Iterator<Item = Part> + use<> {
    let inherit = dir.perm & SETGID != 0;
    let gid = if inherit { dir.gid } else { cred.gid };
    let (mut perm, acls) = match dir.acls.as_ref().and_then(|acls| acls.default.as_ref()) {
        Some(list) if spec.kind != Kind::Symlink => {
            let (perm, access) = list.inherit(spec.perm & 0o7777);
            (perm, Acls { access, default: (spec.kind == Kind::Dir).then(|| list.clone()) })
        }
        _ => (spec.perm & 0o7777 & !(spec.umask & 0o777), Acls::default()),
    };
    match spec.kind {
        Kind::Dir => perm = (perm & 0o1777) | if inherit { SETGID } else { 0 },
        Kind::Symlink => perm = 0o777,
        _ => {
            // A user may not make a program that runs as a group of which he is not a member.
            let both = SETGID | GROUP_EXEC;
            if inherit && perm & both == both && !cred.may(Caps::FSETID) && !cred.in_group(gid) {
                perm &= !SETGID;
            }
        }
    }
    let new = NewInode {
        ino,
        kind: spec.kind,
        perm,
        uid: cred.uid,
        gid,
        rdev: if matches!(spec.kind, Kind::CharDev | Kind::BlockDev) { spec.rdev } else { 0 },
        symlink: if spec.kind == Kind::Symlink { spec.symlink.clone() } else { Vec::new() },
        parent: dir.ino,
        layout: dir.layout,
        advice: dir.advice,
        linked,
    };
    let lists = (acls != Acls::default()).then_some(Part::SetAcls { ino, acls });
    let project = (dir.project != 0).then_some(Part::SetProject { ino, project: dir.project });
    std::iter::once(Part::MakeInode(new)).chain(lists).chain(project)
}

/// Makes inode `ino` with a name. `exists`: the name is taken.
///
/// Errors: `NotDir`, `Access`, `Exist`, `NoEnt` for a removed directory or an empty link target, `NameTooLong` for a
/// long link target, `Perm` for device nodes other than 0:0 without `MKNOD`.
pub fn make(cred: &Cred, dir: &Facts, name: &Name, exists: bool, spec: &NodeSpec, ino: Ino) -> Result<Vec<Part>> {
    if spec.kind == Kind::Symlink {
        match spec.symlink.len() {
            0 => return Err(Errno::NoEnt),
            len if len > limits::SYMLINK_MAX => return Err(Errno::NameTooLong),
            _ if spec.symlink.contains(&0) => return Err(Errno::Inval),
            _ => {}
        }
    }
    perm::search(cred, dir)?;
    if exists {
        return Err(Errno::Exist);
    }
    perm::insert(cred, dir)?;
    // A character device 0:0 is not a device: overlay file systems mark removed names with it, and Linux lets anybody
    // make one.
    let is_whiteout = spec.kind == Kind::CharDev && spec.rdev == 0;
    if matches!(spec.kind, Kind::CharDev | Kind::BlockDev) && !is_whiteout && !cred.may(Caps::MKNOD) {
        return Err(Errno::Perm);
    }
    let mut parts = Vec::with_capacity(4);
    parts.extend(new_inode(cred, dir, spec, ino, true));
    parts.push(Part::InsertDentry { dir: dir.ino, name: name.clone(), child: ino, kind: spec.kind });
    parts.push(Part::TouchDir { dir: dir.ino, links: i32::from(spec.kind == Kind::Dir) });
    Ok(parts)
}

/// Makes file `ino` without a name. Errors: `NotDir`, `NoEnt`, `Access`.
pub fn tmpfile(cred: &Cred, dir: &Facts, spec: &NodeSpec, ino: Ino) -> Result<Vec<Part>> {
    perm::insert(cred, dir)?;
    Ok(new_inode(cred, dir, spec, ino, false).collect())
}

/// Adds a further name for `file`. `exists`: the name is taken.
///
/// Errors: `NotDir`, `Access`, `Exist`, `NoEnt` (removed directory or file), `Perm` for a directory and for a file that
/// `chattr` has fixed, `TooManyLinks`, `CrossDevice` if the file lies in another project than the directory.
pub fn link(cred: &Cred, dir: &Facts, name: &Name, exists: bool, file: &Facts) -> Result<Vec<Part>> {
    perm::search(cred, dir)?;
    if exists {
        return Err(Errno::Exist);
    }
    perm::insert(cred, dir)?;
    if file.kind == Kind::Dir {
        return Err(Errno::Perm);
    }
    perm::changeable(file)?;
    if file.project != dir.project {
        return Err(Errno::CrossDevice);
    }
    if file.nlink == 0 && !file.linkable {
        return Err(Errno::NoEnt);
    }
    if file.nlink >= limits::LINK_MAX {
        return Err(Errno::TooManyLinks);
    }
    Ok(vec![
        Part::Link { ino: file.ino },
        Part::InsertDentry { dir: dir.ino, name: name.clone(), child: file.ino, kind: file.kind },
        Part::TouchDir { dir: dir.ino, links: 0 },
    ])
}

/// Removes the name of `child`, which must not be a directory. Errors: `NotDir`, `Access`, `Perm` (sticky), `IsDir`.
pub fn unlink(cred: &Cred, dir: &Facts, name: &Name, child: &Facts) -> Result<Vec<Part>> {
    perm::delete(cred, dir, child)?;
    if child.kind == Kind::Dir {
        return Err(Errno::IsDir);
    }
    Ok(removal(dir, name, child))
}

/// Removes directory `child`. Errors: `NotDir`, `Access`, `Perm` (sticky), `NotEmpty`.
pub fn rmdir(cred: &Cred, dir: &Facts, name: &Name, child: &Facts) -> Result<Vec<Part>> {
    perm::delete(cred, dir, child)?;
    if child.kind != Kind::Dir {
        return Err(Errno::NotDir);
    }
    if !child.empty {
        return Err(Errno::NotEmpty);
    }
    Ok(removal(dir, name, child))
}

fn removal(dir: &Facts, name: &Name, child: &Facts) -> Vec<Part> {
    let remove = Part::RemoveDentry { dir: dir.ino, name: name.clone(), expect: child.ino };
    let touch = Part::TouchDir { dir: dir.ino, links: -i32::from(child.kind == Kind::Dir) };
    std::iter::once(remove).chain(unlinks(child)).chain([touch]).collect()
}

/// An inode loses a name. A directory is removed together with its shards, each of which must be empty as well.
fn unlinks(child: &Facts) -> impl Iterator<Item = Part> {
    let shards = child.shards.iter().map(|shard| Part::Unlink { ino: *shard, kind: Kind::Dir });
    std::iter::once(Part::Unlink { ino: child.ino, kind: child.kind }).chain(shards)
}

/// Gives the empty directory `dir` these shards. They are directories without a name that have its attributes, and
/// whose parent it is. `was`: these attributes, read together with the facts (`MetaStore::shared_attrs`).
///
/// Errors: `NotDir`, `NoEnt` for a removed directory, `Perm` for whoever does not own it and for what `chattr` has
/// fixed, `Exist` if it has shards.
pub fn shards(cred: &Cred, dir: &Facts, was: &SharedAttrs, shards: &[Ino]) -> Result<Vec<Part>> {
    if dir.kind != Kind::Dir {
        return Err(Errno::NotDir);
    }
    if dir.nlink == 0 {
        return Err(Errno::NoEnt);
    }
    perm::owner(cred, dir)?;
    perm::changeable(dir)?;
    if !dir.shards.is_empty() {
        return Err(Errno::Exist);
    }
    if !dir.empty {
        return Err(Errno::NotEmpty);
    }
    let mut parts = vec![Part::SetShards { ino: dir.ino, shards: shards.to_vec(), was: Box::new(was.clone()) }];
    for &ino in shards {
        let new = NewInode {
            ino,
            kind: Kind::Dir,
            perm: was.perm,
            uid: was.owner.uid,
            gid: was.owner.gid,
            rdev: 0,
            symlink: Vec::new(),
            parent: dir.ino,
            layout: was.layout,
            advice: was.advice,
            linked: true,
        };
        parts.push(Part::MakeInode(new));
        parts.extend((was.acls != Acls::default()).then(|| Part::SetAcls { ino, acls: was.acls.clone() }));
        parts.extend((was.owner.project != 0).then_some(Part::SetProject { ino, project: was.owner.project }));
    }
    Ok(parts)
}

/// Facts of a rename: a name in a directory and, if it exists, the inode it names.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Directory.
    pub dir: &'a Facts,
    /// Name.
    pub name: &'a Name,
}

/// Renames `source` at `from` to `to`, where `target` is if that name exists. An empty plan means that nothing has to
/// be done: both names are links to the same inode.
///
/// Before this the caller has checked search permission of both directories and that `source` exists, and has excluded
/// loops: `Inval` if `source` is `to.dir` or above it. If `target` is `from.dir` or above it, the error is `NotEmpty`,
/// or `Inval` for an exchange.
///
/// `whiteout`: afterwards the old name names a new inode of this number, a character device 0:0. Such a device marks a
/// removed name for an overlay file system (`RENAME_WHITEOUT`; not with an exchange). Linux permits this to every user
/// who may rename.
///
/// Errors: `NotDir`, `Access`, `Exist` (no replace), `NoEnt` (exchange without target, removed directory), `Perm`
/// (sticky), `IsDir`, `NotEmpty`, `CrossDevice` if it would lead into the tree of another project or out of it.
pub fn rename(
    cred: &Cred,
    mode: RenameMode,
    from: Place<'_>,
    source: &Facts,
    to: Place<'_>,
    target: Option<&Facts>,
    whiteout: Option<Ino>,
) -> Result<Vec<Part>> {
    match (mode, target) {
        (RenameMode::NoReplace, Some(_)) => return Err(Errno::Exist),
        (RenameMode::Exchange, None) => return Err(Errno::NoEnt),
        (_, Some(target)) if target.ino == source.ino => return Ok(Vec::new()),
        _ => {}
    }
    let is_dir = |facts: &Facts| facts.kind == Kind::Dir;
    let exchange = mode == RenameMode::Exchange;
    perm::delete(cred, from.dir, source)?;
    match target {
        None => perm::insert(cred, to.dir)?,
        Some(target) => {
            perm::delete(cred, to.dir, target)?;
            if !exchange && is_dir(source) && !is_dir(target) {
                return Err(Errno::NotDir);
            }
            if !exchange && !is_dir(source) && is_dir(target) {
                return Err(Errno::IsDir);
            }
        }
    }
    let moves = from.dir.directory() != to.dir.directory();
    // A tree has to be copied into another one, not moved, so that it is charged there.
    let crosses = |moved: &Facts, into: &Facts| into.project != moved.project;
    if from.dir.project != to.dir.project
        && (crosses(source, to.dir) || target.is_some_and(|target| exchange && crosses(target, from.dir)))
    {
        return Err(Errno::CrossDevice);
    }
    if moves && is_dir(source) {
        // The directory's `..` changes.
        perm::access(cred, source, Want::WRITE)?;
    }
    match target {
        Some(target) if exchange && moves && is_dir(target) => perm::access(cred, target, Want::WRITE)?,
        Some(target) if !exchange && !target.empty => return Err(Errno::NotEmpty),
        _ => {}
    }
    let whiteout =
        whiteout.map(|ino| (ino, new_inode(cred, from.dir, &NodeSpec::node(Kind::CharDev, 0, 0), ino, true)));
    Ok(rename_parts(exchange, from, source, to, target, whiteout))
}

fn rename_parts(
    exchange: bool,
    from: Place<'_>,
    source: &Facts,
    to: Place<'_>,
    target: Option<&Facts>,
    whiteout: Option<(Ino, impl Iterator<Item = Part>)>,
) -> Vec<Part> {
    let dirs = |facts: Option<&Facts>| i32::from(facts.is_some_and(|f| f.kind == Kind::Dir));
    let (source_dirs, target_dirs) = (dirs(Some(source)), dirs(target));
    let replace = |at: Place<'_>, old: &Facts, new: &Facts| Part::ReplaceDentry {
        dir: at.dir.ino,
        name: at.name.clone(),
        expect: old.ino,
        child: new.ino,
        kind: new.kind,
    };
    let moves = from.dir.ino != to.dir.ino;
    let mut parts = Vec::with_capacity(9);
    let (from_links, to_links) = match target {
        Some(target) if exchange => {
            parts.push(replace(from, source, target));
            parts.push(replace(to, target, source));
            parts.push(Part::TouchCtime { ino: target.ino });
            if moves && target_dirs == 1 {
                parts.push(Part::SetParent { ino: target.ino, parent: from.dir.ino });
            }
            (target_dirs - source_dirs, source_dirs - target_dirs)
        }
        _ => {
            let (dir, name, expect) = (from.dir.ino, from.name.clone(), source.ino);
            match whiteout {
                Some((child, new)) => {
                    parts.extend(new);
                    parts.push(Part::ReplaceDentry { dir, name, expect, child, kind: Kind::CharDev });
                }
                None => parts.push(Part::RemoveDentry { dir, name, expect }),
            }
            match target {
                Some(target) => {
                    parts.push(replace(to, target, source));
                    parts.extend(unlinks(target));
                }
                None => parts.push(Part::InsertDentry {
                    dir: to.dir.ino,
                    name: to.name.clone(),
                    child: source.ino,
                    kind: source.kind,
                }),
            }
            (-source_dirs, source_dirs - target_dirs)
        }
    };
    parts.push(Part::TouchCtime { ino: source.ino });
    if moves {
        parts.push(Part::TouchDir { dir: from.dir.ino, links: from_links });
        parts.push(Part::TouchDir { dir: to.dir.ino, links: to_links });
        if source_dirs == 1 {
            parts.push(Part::SetParent { ino: source.ino, parent: to.dir.ino });
        }
    } else {
        parts.push(Part::TouchDir { dir: from.dir.ino, links: from_links + to_links });
    }
    parts
}
