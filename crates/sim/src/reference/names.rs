//! Names, attributes, extended attributes, opening and closing.

use super::{Body, Effect, Inode, Open, Reference};
use crate::op::{Handle, Name, Op, Outcome};
use amphi_client::OpenFlags;
use amphi_types::limits::{NAME_MAX, SYMLINK_MAX};
use amphi_types::{Cred, Errno, Ino, Kind, Result};
use amphi_wire::{RenameMode, XattrMode};
use std::collections::BTreeMap;

/// Number that an inode has in the reference while that of the file system is not known: the call is expected to fail
/// or was cut off by a crash.
pub const UNKNOWN: Ino = Ino(u64::MAX);

fn check_name(name: &[u8]) -> Result<()> {
    match name.len() {
        0 => Err(Errno::NoEnt),
        n if n > NAME_MAX => Err(Errno::NameTooLong),
        _ => Ok(()),
    }
}

fn check_xattr_name(name: &[u8]) -> Result<()> {
    if name.starts_with(b"user.") { Ok(()) } else { Err(Errno::NotSupported) }
}

impl Reference {
    pub(super) fn name_op(&mut self, cred: &Cred, op: &Op, made: Option<Ino>) -> Result<Outcome> {
        match op {
            Op::Lookup { dir, name } => {
                let ino = self.find(cred, *dir, name)?.ok_or(Errno::NoEnt)?;
                Ok(Outcome::Attr(self.seen(ino)?))
            }
            Op::GetAttr { ino } => Ok(Outcome::Attr(self.seen(*ino)?)),
            Op::Chmod { ino, perm } => self.chmod(cred, *ino, *perm),
            Op::Chown { ino, uid, gid } => self.chown(cred, *ino, *uid, *gid),
            Op::SetTimes { ino, mtime } => {
                if cred.uid != 0 && self.node(*ino)?.uid != cred.uid {
                    // A user who may write may set the present time; only the owner may set any other time.
                    match mtime {
                        Some(_) => return Err(Errno::Perm),
                        None => self.may(cred, *ino, 2)?,
                    }
                }
                self.stamp(*ino, mtime.is_none(), true);
                if let Some(at) = mtime {
                    self.node_mut(*ino)?.mtime = (*at, *at);
                }
                Ok(Outcome::Attr(self.seen(*ino)?))
            }
            Op::Mknod { dir, name, kind, perm } => self.make(cred, *dir, name, *kind, *perm, Body::Node, made),
            Op::Mkdir { dir, name, perm } => {
                // Linux takes setuid and setgid away from mkdir.
                self.make(cred, *dir, name, Kind::Dir, *perm & 0o1777, Body::Dir(BTreeMap::new(), *dir), made)
            }
            Op::Symlink { dir, name, to } => {
                if to.is_empty() {
                    return Err(Errno::NoEnt);
                }
                if to.len() > SYMLINK_MAX {
                    return Err(Errno::NameTooLong);
                }
                self.make(cred, *dir, name, Kind::Symlink, 0o777, Body::Symlink(to.clone()), made)
            }
            Op::Link { ino, dir, name } => self.link(cred, *ino, *dir, name),
            Op::Unlink { dir, name } => {
                let ino = self.find(cred, *dir, name)?.ok_or(Errno::NoEnt)?;
                self.may_delete(cred, *dir, ino, Some(false))?;
                self.unbind(*dir, name);
                self.drop_link(ino);
                Ok(Outcome::Done)
            }
            Op::Rmdir { dir, name } => {
                let ino = self.find(cred, *dir, name)?.ok_or(Errno::NoEnt)?;
                self.may_delete(cred, *dir, ino, Some(true))?;
                if !self.dir(ino)?.0.is_empty() {
                    return Err(Errno::NotEmpty);
                }
                self.unbind(*dir, name);
                self.drop_link(ino);
                Ok(Outcome::Done)
            }
            Op::Rename { from, from_name, to, to_name, mode } => {
                self.rename(cred, (*from, from_name), (*to, to_name), *mode)
            }
            Op::ReadLink { ino } => match &self.node(*ino)?.body {
                Body::Symlink(to) => Ok(Outcome::Bytes(to.clone())),
                _ => Err(Errno::Inval),
            },
            Op::List { dir, .. } => {
                let (entries, _) = self.dir(*dir)?;
                self.may(cred, *dir, 4)?;
                Ok(Outcome::Names(entries.iter().map(|(n, i)| (n.clone(), *i)).collect()))
            }
            Op::GetXattr { ino, name } => {
                check_xattr_name(name)?;
                self.may_xattr(cred, *ino, 4)?;
                self.node(*ino)?.xattrs.get(name).cloned().map(Outcome::Bytes).ok_or(Errno::NoData)
            }
            Op::ListXattr { ino } => {
                Ok(Outcome::Names(self.node(*ino)?.xattrs.keys().map(|n| (n.clone(), *ino)).collect()))
            }
            Op::SetXattr { ino, name, value, mode } => {
                check_xattr_name(name)?;
                self.may_xattr(cred, *ino, 2)?;
                match (mode, self.node(*ino)?.xattrs.contains_key(name)) {
                    (XattrMode::Create, true) => return Err(Errno::Exist),
                    (XattrMode::Replace, false) => return Err(Errno::NoData),
                    _ => {}
                }
                self.node_mut(*ino)?.xattrs.insert(name.clone(), value.clone());
                self.stamp(*ino, false, true);
                self.effects.push(Effect::Xattr(*ino, name.clone()));
                Ok(Outcome::Done)
            }
            Op::RemoveXattr { ino, name } => {
                check_xattr_name(name)?;
                self.may_xattr(cred, *ino, 2)?;
                self.node_mut(*ino)?.xattrs.remove(name).ok_or(Errno::NoData)?;
                self.stamp(*ino, false, true);
                self.effects.push(Effect::Xattr(*ino, name.clone()));
                Ok(Outcome::Done)
            }
            Op::Create { dir, name, perm, flags, handle } => match self.find(cred, *dir, name)? {
                Some(_) if flags.exclusive => Err(Errno::Exist),
                Some(ino) => {
                    self.open(cred, ino, *flags, *handle)?;
                    Ok(Outcome::Opened(self.seen(ino)?, false))
                }
                None => {
                    self.make(cred, *dir, name, Kind::File, *perm, Body::File(Vec::new()), made)?;
                    let ino = made.unwrap_or(UNKNOWN);
                    self.effects.push(Effect::Empty(ino));
                    self.opens.insert(*handle, Open { ino, flags: *flags });
                    Ok(Outcome::Opened(self.seen(ino)?, true))
                }
            },
            Op::Tmpfile { dir, perm, flags, handle } => {
                self.dir(*dir)?;
                self.may(cred, *dir, 3)?;
                let ino = made.unwrap_or(UNKNOWN);
                let node = self.fresh(cred, *dir, Kind::File, *perm, Body::File(Vec::new()));
                self.nodes.insert(ino, Inode { nlink: 0, linkable: !flags.exclusive, ..node });
                self.opens.insert(*handle, Open { ino, flags: *flags });
                self.effects.push(Effect::Empty(ino));
                Ok(Outcome::Opened(self.seen(ino)?, true))
            }
            Op::Open { ino, flags, handle } => {
                self.open(cred, *ino, *flags, *handle)?;
                Ok(Outcome::Done)
            }
            Op::Close { handle } => {
                let open = self.opens.remove(handle).ok_or(Errno::BadFd)?;
                self.reap(open.ino);
                Ok(Outcome::Done)
            }
            _ => Err(Errno::NoSys),
        }
    }

    /// Looks a name up: whether it is valid, search permission, then whether it exists. (Linux checks the permission
    /// first; a client that refuses a bad name by itself cannot, and POSIX permits both orders.)
    fn find(&self, cred: &Cred, dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        check_name(name)?;
        let (entries, _) = self.dir(dir)?;
        self.may(cred, dir, 1)?;
        Ok(entries.get(name).copied())
    }

    fn open(&mut self, cred: &Cred, ino: Ino, flags: OpenFlags, handle: Handle) -> Result<()> {
        match self.node(ino)?.kind {
            Kind::File => {}
            Kind::Dir => return Err(Errno::IsDir),
            Kind::Symlink => return Err(Errno::Loop),
            _ => return Err(Errno::NxIo),
        }
        let want = if flags.read { 4 } else { 0 } | if flags.write || flags.truncate { 2 } else { 0 };
        self.may(cred, ino, want)?;
        self.opens.insert(handle, Open { ino, flags });
        if flags.truncate { self.cut(ino, 0) } else { Ok(()) }
    }

    /// A new inode in the manner of `dir`.
    fn fresh(&self, cred: &Cred, dir: Ino, kind: Kind, perm: u16, body: Body) -> Inode {
        let parent = self.nodes.get(&dir);
        let (setgid, parent_gid) = parent.map_or((false, 0), |p| (p.perm & 0o2000 != 0, p.gid));
        let inherit = if setgid && kind == Kind::Dir { 0o2000 } else { 0 };
        Inode {
            kind,
            perm: perm | inherit,
            uid: cred.uid,
            gid: if setgid { parent_gid } else { cred.gid },
            nlink: if kind == Kind::Dir { 2 } else { 1 },
            body,
            xattrs: BTreeMap::new(),
            mtime: self.span,
            ctime: self.span,
            linkable: false,
        }
    }

    #[expect(clippy::too_many_arguments, reason = "an inode has that many properties")]
    fn make(
        &mut self,
        cred: &Cred,
        dir: Ino,
        name: &Name,
        kind: Kind,
        perm: u16,
        body: Body,
        made: Option<Ino>,
    ) -> Result<Outcome> {
        if self.find(cred, dir, name)?.is_some() {
            return Err(Errno::Exist);
        }
        self.may(cred, dir, 3)?;
        let ino = made.unwrap_or(UNKNOWN);
        let node = self.fresh(cred, dir, kind, perm, body);
        self.nodes.insert(ino, node);
        self.bind(dir, name, ino);
        self.effects.push(Effect::Links(ino, 1));
        self.effects.push(Effect::Attr(ino));
        Ok(Outcome::Attr(self.seen(ino)?))
    }

    fn link(&mut self, cred: &Cred, ino: Ino, dir: Ino, name: &Name) -> Result<Outcome> {
        let exists = self.find(cred, dir, name)?.is_some();
        let node = self.node(ino)?;
        let (kind, dead) = (node.kind, node.nlink == 0 && !node.linkable);
        if exists {
            return Err(Errno::Exist);
        }
        self.may(cred, dir, 3)?;
        if kind == Kind::Dir {
            return Err(Errno::Perm);
        }
        if dead {
            return Err(Errno::NoEnt);
        }
        let node = self.node_mut(ino)?;
        node.nlink += 1;
        let first = std::mem::take(&mut node.linkable);
        let nlink = node.nlink;
        self.stamp(ino, false, true);
        self.bind(dir, name, ino);
        self.effects.push(Effect::Links(ino, nlink));
        if first {
            // A file of O_TMPFILE gets a name.
            self.effects.push(Effect::Attr(ino));
        }
        Ok(Outcome::Attr(self.seen(ino)?))
    }

    /// Returns whether `cred` may remove `victim` from `dir`; `is_dir` is the kind that the call requires, if it does.
    fn may_delete(&self, cred: &Cred, dir: Ino, victim: Ino, is_dir: Option<bool>) -> Result<()> {
        self.may(cred, dir, 3)?;
        let (d, v) = (self.node(dir)?, self.node(victim)?);
        if d.perm & 0o1000 != 0 && cred.uid != 0 && cred.uid != v.uid && cred.uid != d.uid {
            return Err(Errno::Perm);
        }
        match (is_dir, v.kind == Kind::Dir) {
            (Some(true), false) => Err(Errno::NotDir),
            (Some(false), true) => Err(Errno::IsDir),
            _ => Ok(()),
        }
    }

    fn is_inside(&self, ino: Ino, top: Ino) -> bool {
        let mut at = ino;
        loop {
            if at == top {
                return true;
            }
            match self.dir(at) {
                Ok((_, parent)) if parent != at => at = parent,
                _ => return false,
            }
        }
    }

    fn rename(&mut self, cred: &Cred, from: (Ino, &Name), to: (Ino, &Name), mode: RenameMode) -> Result<Outcome> {
        check_name(from.1)?;
        check_name(to.1)?;
        self.dir(from.0)?;
        self.dir(to.0)?;
        let source = self.find(cred, from.0, from.1)?;
        let target = self.find(cred, to.0, to.1)?;
        let source = source.ok_or(Errno::NoEnt)?;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::Exist),
            (RenameMode::Exchange, None) => return Err(Errno::NoEnt),
            _ => {}
        }
        let is_dir = |r: &Reference, ino| r.nodes.get(&ino).is_some_and(|n| n.kind == Kind::Dir);
        let exchange = mode == RenameMode::Exchange;
        if is_dir(self, source) && self.is_inside(to.0, source) {
            return Err(Errno::Inval);
        }
        if let Some(target) = target
            && is_dir(self, target)
            && self.is_inside(from.0, target)
        {
            return Err(if exchange { Errno::Inval } else { Errno::NotEmpty });
        }
        if target == Some(source) {
            return Ok(Outcome::Done);
        }
        self.may_delete(cred, from.0, source, None)?;
        match target {
            None => self.may(cred, to.0, 3)?,
            Some(t) => self.may_delete(cred, to.0, t, (!exchange).then_some(is_dir(self, source)))?,
        }
        if from.0 != to.0 {
            let moved = [Some(source), target.filter(|_| exchange)];
            for ino in moved.into_iter().flatten().filter(|i| is_dir(self, *i)) {
                self.may(cred, ino, 2)?;
            }
        }
        if let Some(t) = target
            && !exchange
            && is_dir(self, t)
            && !self.dir(t)?.0.is_empty()
        {
            return Err(Errno::NotEmpty);
        }
        self.unbind(from.0, from.1);
        if let Some(t) = target {
            self.unbind(to.0, to.1);
            if exchange {
                self.bind(from.0, from.1, t);
                self.may_stamp(t, false);
                self.effects.push(Effect::Links(t, self.links(t)));
            } else {
                self.drop_link(t);
            }
        }
        self.bind(to.0, to.1, source);
        self.may_stamp(source, false);
        // A rename keeps the names it moves: repeated here, so that one or the other survives.
        self.effects.push(Effect::Links(source, self.links(source)));
        Ok(Outcome::Done)
    }

    fn links(&self, ino: Ino) -> u32 {
        self.nodes.get(&ino).map_or(0, |n| if n.kind == Kind::Dir { 1 } else { n.nlink })
    }

    /// Puts a name into a directory; a directory learns its parent.
    fn bind(&mut self, dir: Ino, name: &Name, ino: Ino) {
        let mut is_dir = false;
        if let Some(Body::Dir(_, parent)) = self.nodes.get_mut(&ino).map(|n| &mut n.body) {
            *parent = dir;
            is_dir = true;
        }
        if let Some(n) = self.nodes.get_mut(&dir) {
            n.nlink += u32::from(is_dir);
            if let Body::Dir(entries, _) = &mut n.body {
                entries.insert(name.clone(), ino);
            }
        }
        self.stamp(dir, true, true);
        self.effects.push(Effect::Bind(dir, name.clone(), Some(ino)));
    }

    fn unbind(&mut self, dir: Ino, name: &Name) {
        let mut gone = None;
        if let Some(Body::Dir(entries, _)) = self.nodes.get_mut(&dir).map(|n| &mut n.body) {
            gone = entries.remove(name);
        }
        if gone.and_then(|i| self.nodes.get(&i)).is_some_and(|n| n.kind == Kind::Dir)
            && let Some(n) = self.nodes.get_mut(&dir)
        {
            n.nlink -= 1;
        }
        self.stamp(dir, true, true);
        self.effects.push(Effect::Bind(dir, name.clone(), None));
    }

    /// An inode has lost a name.
    fn drop_link(&mut self, ino: Ino) {
        if let Some(n) = self.nodes.get_mut(&ino) {
            n.nlink = if n.kind == Kind::Dir { 0 } else { n.nlink - 1 };
            let left = n.nlink;
            self.effects.push(Effect::Links(ino, left));
        }
        self.stamp(ino, false, true);
        self.reap(ino);
    }

    fn chmod(&mut self, cred: &Cred, ino: Ino, perm: u16) -> Result<Outcome> {
        let n = self.node_mut(ino)?;
        if cred.uid != 0 && cred.uid != n.uid {
            return Err(Errno::Perm);
        }
        let loses_setgid = cred.uid != 0 && !cred.in_group(n.gid) && n.kind != Kind::Symlink;
        n.perm = if loses_setgid { perm & !0o2000 } else { perm };
        self.stamp(ino, false, true);
        self.effects.push(Effect::Attr(ino));
        Ok(Outcome::Attr(self.seen(ino)?))
    }

    fn chown(&mut self, cred: &Cred, ino: Ino, uid: Option<u32>, gid: Option<u32>) -> Result<Outcome> {
        let n = self.node_mut(ino)?;
        if cred.uid != 0 {
            let owner = cred.uid == n.uid;
            let uid_ok = uid.is_none_or(|u| owner && u == n.uid);
            let gid_ok = gid.is_none_or(|g| owner && (cred.in_group(g) || g == n.gid));
            if !uid_ok || !gid_ok {
                return Err(Errno::Perm);
            }
        }
        n.uid = uid.unwrap_or(n.uid);
        n.gid = gid.unwrap_or(n.gid);
        self.stamp(ino, false, true);
        self.effects.push(Effect::Attr(ino));
        Ok(Outcome::Attr(self.seen(ino)?))
    }

    /// Extended attributes of users live on files and directories alone; in sticky directories the owner sets them.
    fn may_xattr(&self, cred: &Cred, ino: Ino, want: u16) -> Result<()> {
        let n = self.node(ino)?;
        let writes = want & 2 != 0;
        if !matches!(n.kind, Kind::File | Kind::Dir) {
            return Err(if writes { Errno::Perm } else { Errno::NoData });
        }
        if writes && n.kind == Kind::Dir && n.perm & 0o1000 != 0 && cred.uid != 0 && cred.uid != n.uid {
            return Err(Errno::Perm);
        }
        self.may(cred, ino, want)
    }
}
