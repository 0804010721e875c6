//! Extended attributes: name spaces, limits, permissions; among them the access control lists.
//!
//! Owns: these rules. Does not own: sizes of buffers (the client).
//!
//! `user.` exists on files and directories only and follows the permission bits; in a sticky directory only the owner
//! changes the directory's own attributes. `trusted.` belongs to callers with `SYS_ADMIN` and is invisible to others.
//! `security.` can be read by all, and changed by callers with `SYS_ADMIN`. Of the attributes `system.*`, the two
//! access control lists exist (`types::acl`): everybody may read them, and only the owner of the inode may change them.
//! All others are not supported.
//!
//! Invariants: an inode with a list has `InodeFlags::LISTS`, others have not. The permission bits are those of the list
//! that decides about access. A list that says no more than the bits is not stored.

use crate::codec::ItemKey;
use crate::inode::InodeFlags;
use crate::perm::{self, SETGID, STICKY, Want};
use crate::setattr::CAPABILITY;
use crate::shared_attrs::LIST;
use crate::store::Dirty;
use crate::{Facts, MetaStore};
use amphi_types::item::{Key, Txn};
use amphi_types::{Acl, Acls, Caps, Cred, Errno, Ino, Kind, Result, Timespec, acl, limits};
use serde::{Deserialize, Serialize};

/// The effect of setxattr on an existing attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    /// Create or replace.
    Set,
    /// `XATTR_CREATE`: `Exist` if there is already such an attribute.
    Create,
    /// `XATTR_REPLACE`: `NoData` if there is no such attribute.
    Replace,
}

/// The end of a step that can also fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<T> {
    /// The change was made.
    Done(T),
    /// The step needs the item with this key, which is not in memory, and has changed nothing: the caller reads the
    /// item (`MetaStore::load_absent`) and repeats the step.
    Absent(Key),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Namespace {
    User,
    Trusted,
    Security,
    AccessList,
    DefaultList,
}

fn namespace(name: &[u8]) -> Result<Namespace> {
    if name.is_empty() || name.len() > limits::XATTR_NAME_MAX {
        return Err(Errno::Range);
    }
    match name {
        acl::ACCESS => return Ok(Namespace::AccessList),
        acl::DEFAULT => return Ok(Namespace::DefaultList),
        _ => {}
    }
    let all: [(&[u8], Namespace); 3] =
        [(b"user.", Namespace::User), (b"trusted.", Namespace::Trusted), (b"security.", Namespace::Security)];
    for (prefix, namespace) in all {
        if let Some(rest) = name.strip_prefix(prefix) {
            return if rest.is_empty() || rest.contains(&0) { Err(Errno::Inval) } else { Ok(namespace) };
        }
    }
    Err(Errno::NotSupported)
}

/// Returns whether an attribute of this name is an access control list.
pub fn is_list(name: &[u8]) -> bool {
    name == acl::ACCESS || name == acl::DEFAULT
}

fn check_read(cred: &Cred, facts: &Facts, name: &[u8]) -> Result<()> {
    match namespace(name)? {
        Namespace::User if !matches!(facts.kind, Kind::File | Kind::Dir) => Err(Errno::NoData),
        Namespace::User => perm::access(cred, facts, Want::READ),
        Namespace::Trusted if !cred.may(Caps::SYS_ADMIN) => Err(Errno::NoData),
        Namespace::AccessList | Namespace::DefaultList if facts.kind == Kind::Symlink => Err(Errno::NotSupported),
        Namespace::Trusted | Namespace::Security | Namespace::AccessList | Namespace::DefaultList => Ok(()),
    }
}

fn check_write(cred: &Cred, facts: &Facts, name: &[u8]) -> Result<()> {
    let namespace = namespace(name)?;
    perm::changeable(facts)?;
    match namespace {
        Namespace::AccessList | Namespace::DefaultList if facts.kind == Kind::Symlink => Err(Errno::NotSupported),
        Namespace::DefaultList if facts.kind != Kind::Dir => Err(Errno::Access),
        Namespace::AccessList | Namespace::DefaultList => perm::owner(cred, facts),
        Namespace::User => {
            let sticky_dir = facts.kind == Kind::Dir && facts.perm & STICKY != 0;
            if !matches!(facts.kind, Kind::File | Kind::Dir) || (sticky_dir && !perm::is_owner(cred, facts)) {
                return Err(Errno::Perm);
            }
            perm::access(cred, facts, Want::WRITE)
        }
        Namespace::Security if name == CAPABILITY && cred.may(Caps::SETFCAP) => Ok(()),
        Namespace::Trusted | Namespace::Security if !cred.may(Caps::SYS_ADMIN) => Err(Errno::Perm),
        Namespace::Trusted | Namespace::Security => Ok(()),
    }
}

impl MetaStore {
    /// Returns whether an inode has attributes.
    pub fn has_xattrs(&self, ino: Ino) -> bool {
        self.xattrs.of(ino.local()).next().is_some()
    }

    /// Value of an attribute.
    ///
    /// Errors: `Stale`, `Range` and `Inval` (name), `NotSupported` (namespace), `Access`, `NoData`.
    pub fn getxattr(&self, cred: &Cred, ino: Ino, name: &[u8]) -> Result<Outcome<&[u8]>> {
        check_read(cred, &self.facts(ino)?, name)?;
        let value = self.xattrs.get(ino.local(), name).ok_or(Errno::NoData)?;
        let absent = || Outcome::Absent(ItemKey::Xattr { local: ino.local(), name: name.into() }.encode());
        Ok(value.bytes().map_or_else(absent, Outcome::Done))
    }

    /// Names of the attributes that the caller may see, each followed by NUL. Errors: `Stale`.
    pub fn listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<u8>> {
        self.inode(ino)?;
        let mut list = Vec::new();
        for (name, _) in self.xattrs.of(ino.local()).filter(|(name, _)| *name != LIST) {
            if cred.may(Caps::SYS_ADMIN) || !name.starts_with(b"trusted.") {
                list.extend_from_slice(name);
                list.push(0);
            }
        }
        Ok(list)
    }

    /// Returns whether `setxattr` will succeed. Errors: as `setxattr`.
    pub fn check_setxattr(&self, cred: &Cred, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        let facts = self.facts(ino)?;
        if value.len() > limits::XATTR_VALUE_MAX {
            return Err(Errno::TooBig);
        }
        check_write(cred, &facts, name)?;
        if is_list(name) {
            return if value.is_empty() || value.len() == acl::EMPTY_BYTES || Acl::from_xattr(value).is_some() {
                Ok(())
            } else {
                Err(Errno::Inval)
            };
        }
        let old = self.xattrs.get(ino.local(), name);
        match (mode, old) {
            (XattrMode::Create, Some(_)) => return Err(Errno::Exist),
            (XattrMode::Replace, None) => return Err(Errno::NoData),
            _ => {}
        }
        let cost = |name: &[u8], value_bytes: usize| name.len() + value_bytes + limits::XATTR_COST;
        let others = self.xattrs.of(ino.local()).filter(|(n, _)| *n != name);
        let others: usize = others.map(|(n, value)| cost(n, value.len())).sum();
        if others + cost(name, value.len()) > limits::XATTR_TOTAL_MAX { Err(Errno::NoSpace) } else { Ok(()) }
    }

    /// Sets an attribute.
    ///
    /// Errors: `Stale`, `Range` and `Inval` (name), `TooBig` (value), `NotSupported` (namespace), `Perm`,
    /// `Access`, `Exist`, `NoData`, `NoSpace` (all together too large).
    #[expect(clippy::too_many_arguments, reason = "setxattr has five arguments of its own, a time and a log")]
    pub fn setxattr(
        &mut self,
        cred: &Cred,
        ino: Ino,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        now: Timespec,
        txn: &mut Txn,
    ) -> Result<()> {
        self.check_setxattr(cred, ino, name, value, mode)?;
        if is_list(name) {
            self.set_acl(cred, ino, name, Acl::from_xattr(value), now, txn);
        } else {
            self.change_xattr(ino, name, Some(value), now, txn);
        }
        Ok(())
    }

    /// Removes an attribute. Without a list the inode keeps its permission bits, and it is no error if there is none.
    ///
    /// Errors: `Stale`, `Range` and `Inval` (name), `NotSupported`, `Perm`, `Access`, `NoData`.
    pub fn removexattr(&mut self, cred: &Cred, ino: Ino, name: &[u8], now: Timespec, txn: &mut Txn) -> Result<()> {
        check_write(cred, &self.facts(ino)?, name)?;
        if is_list(name) {
            self.set_acl(cred, ino, name, None, now, txn);
            return Ok(());
        }
        if !self.xattrs.has(ino.local(), name) {
            return Err(Errno::NoData);
        }
        self.change_xattr(ino, name, None, now, txn);
        Ok(())
    }

    /// Access control lists of an inode.
    pub(crate) fn acls(&self, ino: Ino) -> Acls {
        let get = |name: &[u8]| self.xattrs.list(ino.local(), name).and_then(Acl::from_xattr);
        Acls { access: get(acl::ACCESS), default: get(acl::DEFAULT) }
    }

    /// Returns whether a list decides about access to the inode, so that permission bits alone do not.
    pub fn has_access_list(&self, ino: Ino) -> bool {
        let listed = self.inode(ino).is_ok_and(|inode| inode.flags.has(InodeFlags::LISTS));
        listed && self.xattrs.has(ino.local(), acl::ACCESS)
    }

    /// Sets or removes a list (Linux, `posix_acl_update_mode`). The permission bits follow an access list; if the
    /// caller is not in the group, the setgid bit is removed.
    fn set_acl(&mut self, cred: &Cred, ino: Ino, name: &[u8], list: Option<Acl>, now: Timespec, txn: &mut Txn) {
        let mut acls = self.acls(ino);
        let mut dirty = Dirty::default();
        let perm = list.as_ref().filter(|_| name == acl::ACCESS).map(Acl::perm);
        match name == acl::ACCESS {
            true => acls.access = list.filter(|list| !list.is_minimal()),
            false => acls.default = list,
        }
        self.put_acls(ino, &acls, &mut dirty);
        self.edit(ino, &mut dirty, |inode| {
            inode.times.ctime = now;
            if let Some(perm) = perm {
                inode.perm = inode.perm & !0o777 | perm;
                if !cred.may(Caps::FSETID) && !cred.in_group(inode.owner.gid) {
                    inode.perm &= !SETGID;
                }
            }
        });
        self.emit(dirty, txn);
    }

    /// The list that decides about access follows new permission bits.
    pub(crate) fn chmod_list(&mut self, ino: Ino, perm: u16, dirty: &mut Dirty) {
        if !self.has_access_list(ino) {
            return;
        }
        let mut acls = self.acls(ino);
        if let Some(access) = &mut acls.access {
            access.chmod(perm & 0o777);
        }
        self.put_acls(ino, &acls, dirty);
    }

    /// Makes these the lists of an inode.
    pub(crate) fn put_acls(&mut self, ino: Ino, acls: &Acls, dirty: &mut Dirty) {
        let local = ino.local();
        for (name, list) in [(acl::ACCESS, &acls.access), (acl::DEFAULT, &acls.default)] {
            let value = list.as_ref().map(Acl::to_xattr);
            let changed = self.xattrs.list(local, name) != value.as_deref();
            match value {
                Some(value) => self.xattrs.insert(local, name, value.into()),
                None => _ = self.xattrs.remove(local, name),
            };
            if changed {
                dirty.mark(ItemKey::Xattr { local, name: name.into() });
            }
        }
        let any = *acls != Acls::default();
        self.edit(ino, dirty, |inode| inode.flags.set(InodeFlags::LISTS, any));
    }

    fn change_xattr(&mut self, ino: Ino, name: &[u8], value: Option<&[u8]>, now: Timespec, txn: &mut Txn) {
        match value {
            Some(value) => self.xattrs.insert(ino.local(), name, value.into()),
            None => _ = self.xattrs.remove(ino.local(), name),
        };
        let mut dirty = Dirty::default();
        dirty.mark(ItemKey::Xattr { local: ino.local(), name: name.into() });
        self.edit(ino, &mut dirty, |inode| inode.times.ctime = now);
        self.emit(dirty, txn);
        self.xattrs.trim();
    }
}
