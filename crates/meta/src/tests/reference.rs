//! A naive reference file system: nodes with maps of children; everything derived is computed by scanning.

use amphi_types::{Cred, Errno, Kind, Result, SetAttr, TimeSet, Timespec};
use std::collections::BTreeMap;

use crate::RenameMode;

pub(super) type Id = usize;

#[derive(Clone, Debug)]
pub(super) struct Node {
    pub kind: Kind,
    pub perm: u16,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub symlink: Vec<u8>,
    pub children: BTreeMap<Vec<u8>, Id>,
    pub parent: Id,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub atime: Timespec,
    pub mtime: Timespec,
    pub ctime: Timespec,
    /// Was ever named; a nameless one may be linked only before.
    pub named: bool,
    /// Freed.
    pub gone: bool,
}

pub(super) struct Reference {
    pub nodes: Vec<Node>,
}

const R: u16 = 4;
const W: u16 = 2;
const X: u16 = 1;

impl Reference {
    pub fn new(now: Timespec) -> Reference {
        let root = Node {
            kind: Kind::Dir,
            perm: 0o755,
            uid: 0,
            gid: 0,
            size: 0,
            symlink: vec![],
            children: BTreeMap::new(),
            parent: 0,
            xattrs: BTreeMap::new(),
            atime: now,
            mtime: now,
            ctime: now,
            named: true,
            gone: false,
        };
        Reference { nodes: vec![root] }
    }

    /// Links by counting.
    pub fn nlink(&self, id: Id) -> u32 {
        let names: usize = self.nodes.iter().map(|n| n.children.values().filter(|&&c| c == id).count()).sum();
        let subdirs = self.nodes[id].children.values().filter(|&&c| self.nodes[c].kind == Kind::Dir).count();
        match self.nodes[id].kind {
            Kind::Dir if id == 0 || names > 0 => 2 + subdirs as u32,
            _ => names as u32,
        }
    }

    fn may(&self, cred: &Cred, id: Id, want: u16) -> Result<()> {
        let n = &self.nodes[id];
        if cred.uid == 0 {
            let no_exec = want & X != 0 && n.kind != Kind::Dir && n.perm & 0o111 == 0;
            return if no_exec { Err(Errno::Access) } else { Ok(()) };
        }
        let class = if n.uid == cred.uid {
            6
        } else if n.gid == cred.gid || cred.groups.contains(&n.gid) {
            3
        } else {
            0
        };
        if (n.perm >> class) & want == want { Ok(()) } else { Err(Errno::Access) }
    }

    fn search(&self, cred: &Cred, dir: Id) -> Result<()> {
        if self.nodes[dir].kind != Kind::Dir {
            return Err(Errno::NotDir);
        }
        self.may(cred, dir, X)
    }

    pub fn lookup(&self, cred: &Cred, dir: Id, name: &[u8]) -> Result<Id> {
        self.search(cred, dir)?;
        self.nodes[dir].children.get(name).copied().ok_or(Errno::NoEnt)
    }

    fn may_insert(&self, cred: &Cred, dir: Id) -> Result<()> {
        if self.nlink(dir) == 0 {
            return Err(Errno::NoEnt);
        }
        self.may(cred, dir, W | X)
    }

    fn may_delete(&self, cred: &Cred, dir: Id, child: Id) -> Result<()> {
        self.may(cred, dir, W | X)?;
        let (d, c) = (&self.nodes[dir], &self.nodes[child]);
        if d.perm & 0o1000 != 0 && cred.uid != 0 && cred.uid != d.uid && cred.uid != c.uid {
            return Err(Errno::Perm);
        }
        Ok(())
    }

    fn touch(&mut self, dir: Id, now: Timespec) {
        self.nodes[dir].mtime = now;
        self.nodes[dir].ctime = now;
    }

    fn add(&mut self, cred: &Cred, dir: Id, kind: Kind, perm: u16, symlink: &[u8], now: Timespec) -> Id {
        let d = &self.nodes[dir];
        let setgid = d.perm & 0o2000 != 0;
        let gid = if setgid { d.gid } else { cred.gid };
        let outsider = cred.uid != 0 && cred.gid != gid && !cred.groups.contains(&gid);
        let perm = match kind {
            Kind::Dir if setgid => perm & 0o1777 | 0o2000,
            Kind::Dir => perm & 0o1777,
            Kind::Symlink => 0o777,
            _ if setgid && perm & 0o2010 == 0o2010 && outsider => perm & !0o2000,
            _ => perm,
        };
        self.nodes.push(Node {
            kind,
            perm,
            uid: cred.uid,
            gid,
            size: symlink.len() as u64,
            symlink: symlink.to_vec(),
            children: BTreeMap::new(),
            parent: dir,
            xattrs: BTreeMap::new(),
            atime: now,
            mtime: now,
            ctime: now,
            named: false,
            gone: false,
        });
        self.nodes.len() - 1
    }

    #[expect(clippy::too_many_arguments, reason = "mirrors the operation")]
    pub fn make(
        &mut self,
        cred: &Cred,
        dir: Id,
        name: &[u8],
        kind: Kind,
        perm: u16,
        symlink: &[u8],
        now: Timespec,
    ) -> Result<Id> {
        match self.lookup(cred, dir, name) {
            Ok(_) => return Err(Errno::Exist),
            Err(Errno::NoEnt) => {}
            Err(e) => return Err(e),
        }
        self.may_insert(cred, dir)?;
        if matches!(kind, Kind::CharDev | Kind::BlockDev) && cred.uid != 0 {
            return Err(Errno::Perm);
        }
        let id = self.add(cred, dir, kind, perm, symlink, now);
        self.nodes[id].named = true;
        self.nodes[dir].children.insert(name.to_vec(), id);
        self.touch(dir, now);
        Ok(id)
    }

    pub fn tmpfile(&mut self, cred: &Cred, dir: Id, perm: u16, now: Timespec) -> Result<Id> {
        if self.nodes[dir].kind != Kind::Dir {
            return Err(Errno::NotDir);
        }
        self.may_insert(cred, dir)?;
        Ok(self.add(cred, dir, Kind::File, perm, b"", now))
    }

    pub fn link(&mut self, cred: &Cred, id: Id, dir: Id, name: &[u8], now: Timespec) -> Result<()> {
        match self.lookup(cred, dir, name) {
            Ok(_) => return Err(Errno::Exist),
            Err(Errno::NoEnt) => {}
            Err(e) => return Err(e),
        }
        self.may_insert(cred, dir)?;
        if self.nodes[id].kind == Kind::Dir {
            return Err(Errno::Perm);
        }
        if self.nlink(id) == 0 && self.nodes[id].named {
            return Err(Errno::NoEnt);
        }
        self.nodes[dir].children.insert(name.to_vec(), id);
        self.nodes[id].named = true;
        self.nodes[id].ctime = now;
        self.touch(dir, now);
        Ok(())
    }

    pub fn unlink(&mut self, cred: &Cred, dir: Id, name: &[u8], rmdir: bool, now: Timespec) -> Result<()> {
        let id = self.lookup(cred, dir, name)?;
        self.may_delete(cred, dir, id)?;
        match (rmdir, self.nodes[id].kind == Kind::Dir) {
            (false, true) => return Err(Errno::IsDir),
            (true, false) => return Err(Errno::NotDir),
            (true, true) if !self.nodes[id].children.is_empty() => return Err(Errno::NotEmpty),
            _ => {}
        }
        self.nodes[dir].children.remove(name);
        self.nodes[id].ctime = now;
        self.touch(dir, now);
        Ok(())
    }

    fn within(&self, mut at: Id, above: Id) -> bool {
        loop {
            if at == above {
                return true;
            }
            if at == 0 {
                return false;
            }
            at = self.nodes[at].parent;
        }
    }

    #[expect(clippy::too_many_arguments, reason = "mirrors the operation")]
    pub fn rename(
        &mut self,
        cred: &Cred,
        from: Id,
        from_name: &[u8],
        to: Id,
        to_name: &[u8],
        mode: RenameMode,
        leaves_whiteout: bool,
        now: Timespec,
    ) -> Result<Option<Id>> {
        self.search(cred, from)?;
        self.search(cred, to)?;
        let exchange = mode == RenameMode::Exchange;
        let source = *self.nodes[from].children.get(from_name).ok_or(Errno::NoEnt)?;
        if self.nlink(to) == 0 {
            return Err(Errno::NoEnt);
        }
        let target = self.nodes[to].children.get(to_name).copied();
        if mode == RenameMode::NoReplace && target.is_some() {
            return Err(Errno::Exist);
        }
        if exchange && target.is_none() {
            return Err(Errno::NoEnt);
        }
        if self.within(to, source) {
            return Err(Errno::Inval);
        }
        if target.is_some_and(|t| self.within(from, t)) {
            return Err(if exchange { Errno::Inval } else { Errno::NotEmpty });
        }
        if target == Some(source) {
            return Ok(None);
        }
        let is_dir = |fs: &Reference, id: Id| fs.nodes[id].kind == Kind::Dir;
        self.may_delete(cred, from, source)?;
        match target {
            None => self.may_insert(cred, to)?,
            Some(t) => {
                self.may_delete(cred, to, t)?;
                if !exchange && is_dir(self, source) != is_dir(self, t) {
                    return Err(if is_dir(self, t) { Errno::IsDir } else { Errno::NotDir });
                }
            }
        }
        if from != to && is_dir(self, source) {
            self.may(cred, source, W)?;
        }
        if let (true, true, Some(t)) = (exchange, from != to, target)
            && is_dir(self, t)
        {
            self.may(cred, t, W)?;
        }
        if !exchange && target.is_some_and(|t| !self.nodes[t].children.is_empty()) {
            return Err(Errno::NotEmpty);
        }
        self.nodes[from].children.remove(from_name);
        self.nodes[to].children.insert(to_name.to_vec(), source);
        self.nodes[source].ctime = now;
        if let Some(t) = target {
            self.nodes[t].ctime = now;
        }
        if is_dir(self, source) {
            self.nodes[source].parent = to;
        }
        if let (true, Some(t)) = (exchange, target) {
            self.nodes[from].children.insert(from_name.to_vec(), t);
            if is_dir(self, t) {
                self.nodes[t].parent = from;
            }
        }
        self.touch(from, now);
        self.touch(to, now);
        Ok(leaves_whiteout.then(|| {
            let id = self.add(cred, from, Kind::CharDev, 0, b"", now);
            self.nodes[id].named = true;
            self.nodes[from].children.insert(from_name.to_vec(), id);
            id
        }))
    }

    pub fn setattr(&mut self, cred: &Cred, id: Id, set: &SetAttr, now: Timespec) -> Result<()> {
        let old = self.nodes[id].clone();
        let root = cred.uid == 0;
        let owner = root || cred.uid == old.uid;
        let member = |gid: u32| root || cred.gid == gid || cred.groups.contains(&gid);
        if let Some(size) = set.size {
            match old.kind {
                Kind::Dir => return Err(Errno::IsDir),
                Kind::File => {}
                _ => return Err(Errno::Inval),
            }
            if !set.open_for_write {
                self.may(cred, id, W)?;
            }
            if size > i64::MAX as u64 {
                return Err(Errno::FileTooBig);
            }
        }
        if set.uid.is_some_and(|uid| !(root || owner && uid == old.uid)) {
            return Err(Errno::Perm);
        }
        if set.gid.is_some_and(|gid| !root && !(owner && (member(gid) || gid == old.gid))) {
            return Err(Errno::Perm);
        }
        if set.perm.is_some() && !owner {
            return Err(Errno::Perm);
        }
        if set.perm.is_some() && old.kind == Kind::Symlink {
            return Err(Errno::NotSupported);
        }
        let alone = set.size.is_none() && set.uid.is_none() && set.gid.is_none() && set.perm.is_none();
        if set.kill_suidgid && alone && !set.open_for_write && !owner {
            self.may(cred, id, W)?;
        }
        for t in [set.atime, set.mtime].into_iter().flatten() {
            if owner {
                continue;
            }
            match t {
                TimeSet::At(_) => return Err(Errno::Perm),
                TimeSet::Now => {
                    if !(set.size.is_some() && set.open_for_write) {
                        self.may(cred, id, W)?;
                    }
                }
            }
        }
        let n = &mut self.nodes[id];
        n.uid = set.uid.unwrap_or(n.uid);
        n.gid = set.gid.unwrap_or(n.gid);
        let chown = set.uid.is_some() || set.gid.is_some();
        if let Some(perm) = set.perm {
            n.perm = perm;
            if !member(n.gid) {
                n.perm &= !0o2000;
            }
        }
        if n.kind != Kind::Dir && (set.kill_suidgid || (chown && set.perm.is_none())) {
            n.perm &= !0o4000;
            if n.perm & 0o010 != 0 || !member(old.gid) {
                n.perm &= !0o2000;
            }
        }
        let at = |t: TimeSet| if let TimeSet::At(t) = t { t } else { now };
        if let Some(size) = set.size {
            n.size = size;
            n.mtime = now;
        }
        n.atime = set.atime.map_or(n.atime, at);
        n.mtime = set.mtime.map_or(n.mtime, at);
        let any = set.size.is_some() || chown || set.perm.is_some() || set.atime.is_some() || set.mtime.is_some();
        if any || n.perm != old.perm {
            n.ctime = now;
        }
        Ok(())
    }

    pub fn setxattr(&mut self, cred: &Cred, id: Id, name: &[u8], value: Option<&[u8]>, now: Timespec) -> Result<()> {
        let n = &self.nodes[id];
        if name.starts_with(b"user.") {
            let plain = matches!(n.kind, Kind::File | Kind::Dir);
            let sticky = n.kind == Kind::Dir && n.perm & 0o1000 != 0 && cred.uid != 0 && cred.uid != n.uid;
            if !plain || sticky {
                return Err(Errno::Perm);
            }
            self.may(cred, id, W)?;
        } else if name.starts_with(b"trusted.") {
            if cred.uid != 0 {
                return Err(Errno::Perm);
            }
        } else {
            return Err(Errno::NotSupported);
        }
        let n = &mut self.nodes[id];
        match value {
            Some(value) => {
                n.xattrs.insert(name.to_vec(), value.to_vec());
            }
            None => {
                n.xattrs.remove(name).ok_or(Errno::NoData)?;
            }
        }
        n.ctime = now;
        Ok(())
    }

    pub fn may_read(&self, cred: &Cred, id: Id) -> Result<()> {
        match self.nodes[id].kind {
            Kind::Symlink => Err(Errno::Loop),
            _ => self.may(cred, id, R),
        }
    }
}
