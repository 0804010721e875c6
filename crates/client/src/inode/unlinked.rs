//! Directories, pipes, sockets and devices that were removed while programs of this mount have them open, or work in
//! them.
//!
//! A file that lost its last name stays at its server until it is closed. A removed directory can no longer change. The
//! kernel handles the I/O of pipes and devices and does not report that one is open. So the server forgets such an
//! inode at once. Programs that still use it may nevertheless request its attributes (`fstat`, a shell whose directory
//! was removed) and change its permissions. Such programs get the last attributes, with a link count of 0. A removed
//! directory also gets other times. It was emptied before it was removed, and a kernel that caches its listing would
//! use that listing as long as the modification time stays the same.
//!
//! Owns: the attributes of such inodes that were last shown. Does not own: whether the inode exists. The client looks
//! here only if its server no longer knows the inode (`Stale`); inode numbers are never used again.
//!
//! Invariants: the table is bounded. The inode that was shown longest ago is dropped first, and calls on an inode that
//! is not in the table get ESTALE.

use amphi_types::{Attr, Errno, Ino, Kind, Result, SetAttr, TimeSet, Timespec, limits};
use amphi_wire::XattrMode;
use parking_lot::Mutex;
use std::collections::BTreeMap;

/// Most inodes of each of two generations, about 200 bytes each.
const GENERATION_MAX: usize = 2048;

/// Extended attributes of a removed inode that were set since its removal, by name.
type Xattrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Most removed inodes whose new extended attributes are kept; if there are more, those of all are dropped. Each of
/// them may have as many attributes as an existing inode.
const XATTRS_MAX: usize = 64;

#[derive(Default)]
struct Shown {
    young: BTreeMap<Ino, Attr>,
    old: BTreeMap<Ino, Attr>,
    xattrs: BTreeMap<Ino, Xattrs>,
}

impl Shown {
    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.young.get(&ino).or_else(|| self.old.get(&ino)).copied().ok_or(Errno::Stale)
    }

    fn keep(&mut self, attr: Attr) {
        if self.young.len() >= GENERATION_MAX && !self.young.contains_key(&attr.ino) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(attr.ino, attr);
        assert!(self.young.len() <= GENERATION_MAX, "{} inodes of one generation", self.young.len());
    }
}

/// Directories and special files as they were last shown.
#[derive(Default)]
pub(crate) struct Unlinked(Mutex<Shown>);

impl Unlinked {
    /// An answer shows an inode.
    pub(crate) fn shown(&self, attr: &Attr) {
        if !matches!(attr.kind, Kind::File | Kind::Symlink) {
            self.0.lock().keep(*attr);
        }
    }

    /// The kind of an inode that its server does not know any more, or `Stale` if no answer showed it.
    pub(crate) fn kind(&self, ino: Ino) -> Result<Kind> {
        self.0.lock().attr(ino).map(|attr| attr.kind)
    }

    /// The attributes of such an inode at the time `now`, or `Stale` if no answer showed it. At the first call, the
    /// times of a directory become later than any that it had.
    pub(crate) fn attr(&self, ino: Ino, now: Timespec) -> Result<Attr> {
        let mut shown = self.0.lock();
        let last = shown.attr(ino)?;
        let removed = Attr { nlink: 0, size: 0, ..last };
        if last.kind != Kind::Dir || last.nlink == 0 {
            return Ok(removed);
        }
        let changed = now.max(after(last.mtime)).max(after(last.ctime));
        let removed = Attr { mtime: changed, ctime: changed, ..removed };
        shown.keep(removed);
        Ok(removed)
    }

    /// Changes these attributes.
    pub(crate) fn change(&self, ino: Ino, set: &SetAttr, now: Timespec) -> Result<Attr> {
        let old = self.attr(ino, now)?;
        let time = |set: Option<TimeSet>, old| match set {
            Some(TimeSet::Now) => now,
            Some(TimeSet::At(time)) => time,
            None => old,
        };
        let new = Attr {
            perm: set.perm.unwrap_or(old.perm),
            uid: set.uid.unwrap_or(old.uid),
            gid: set.gid.unwrap_or(old.gid),
            atime: time(set.atime, old.atime),
            mtime: time(set.mtime, old.mtime),
            ctime: now,
            ..old
        };
        self.0.lock().keep(new);
        Ok(new)
    }

    /// Value of an extended attribute that was set after the removal; earlier attributes are gone.
    pub(crate) fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.kind(ino)?;
        self.0.lock().xattrs.get(&ino).and_then(|all| all.get(name)).cloned().ok_or(Errno::NoData)
    }

    /// Names of these attributes, each followed by NUL.
    pub(crate) fn xattr_names(&self, ino: Ino) -> Result<Vec<u8>> {
        self.kind(ino)?;
        let shown = self.0.lock();
        let names = shown.xattrs.get(&ino).into_iter().flat_map(Xattrs::keys);
        Ok(names.flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    /// Sets an extended attribute of a removed inode.
    pub(crate) fn set_xattr(&self, ino: Ino, name: Vec<u8>, value: Vec<u8>, mode: XattrMode) -> Result<()> {
        self.kind(ino)?;
        let mut shown = self.0.lock();
        if shown.xattrs.len() >= XATTRS_MAX && !shown.xattrs.contains_key(&ino) {
            shown.xattrs.clear();
        }
        let all = shown.xattrs.entry(ino).or_default();
        match (mode, all.contains_key(&name)) {
            (XattrMode::Create, true) => return Err(Errno::Exist),
            (XattrMode::Replace, false) => return Err(Errno::NoData),
            _ => {}
        }
        let cost = |name: &[u8], value: &[u8]| name.len() + value.len() + limits::XATTR_COST;
        let others: usize = all.iter().filter(|(n, _)| **n != name).map(|(n, value)| cost(n, value)).sum();
        if others + cost(&name, &value) > limits::XATTR_TOTAL_MAX {
            return Err(Errno::NoSpace);
        }
        all.insert(name, value);
        Ok(())
    }

    /// Removes an extended attribute of a removed inode.
    pub(crate) fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.kind(ino)?;
        let mut shown = self.0.lock();
        shown.xattrs.get_mut(&ino).and_then(|all| all.remove(name)).map(drop).ok_or(Errno::NoData)
    }
}

/// The next moment.
fn after(time: Timespec) -> Timespec {
    match time.nsec {
        999_999_999 => Timespec { sec: time.sec + 1, nsec: 0 },
        nsec => Timespec { nsec: nsec + 1, ..time },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(ino: u64) -> Attr {
        let time = Timespec::default();
        Attr {
            ino: Ino(ino),
            kind: Kind::Dir,
            perm: 0o755,
            nlink: 2,
            uid: 7,
            gid: 8,
            rdev: 0,
            size: 3,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            btime: time,
        }
    }

    /// Goal: a kernel that compares modification times does not use its cached listing of a removed directory, and the
    /// times of such a directory do not change after that. Method: clocks of servers that are ahead, and a directory
    /// whose time was set explicitly. (Promise S6)
    #[test]
    fn times_of_a_removed_directory_are_later() {
        let time = |sec, nsec| Timespec { sec, nsec };
        let removed = Unlinked::default();
        for (ino, (mtime, ctime, now, told)) in [
            (time(5, 3), time(5, 3), time(5, 9), time(5, 9)),
            (time(5, 3), time(7, 999_999_999), time(6, 0), time(8, 0)),
            (time(5, 3), time(5, 3), time(5, 3), time(5, 4)),
            (time(9, 3), time(5, 3), time(6, 0), time(9, 4)),
        ]
        .into_iter()
        .enumerate()
        {
            removed.shown(&Attr { mtime, ctime, ..dir(ino as u64) });
            let is = Ok(Attr { nlink: 0, size: 0, mtime: told, ctime: told, ..dir(ino as u64) });
            assert_eq!(removed.attr(Ino(ino as u64), now), is);
            assert_eq!(removed.attr(Ino(ino as u64), time(100, 0)), is, "once");
        }
    }

    /// Goal: for removed directories and pipes the last shown attributes are returned, without links, even if they were
    /// changed since. Files are not kept. The memory is bounded, and the inode that was shown longest ago is dropped.
    /// Method: a sequence of calls that the test chooses.
    #[test]
    fn what_was_shown_is_told() {
        let removed = Unlinked::default();
        let early = Timespec { sec: 4, nsec: 0 };
        assert_eq!(removed.attr(Ino(1), early), Err(Errno::Stale));
        removed.shown(&dir(1));
        removed.shown(&Attr { perm: 0o700, ..dir(1) });
        removed.shown(&Attr { kind: Kind::File, ..dir(2) });
        let pipe = Attr { kind: Kind::Fifo, nlink: 1, ..dir(3) };
        removed.shown(&pipe);
        assert_eq!(removed.attr(Ino(3), early), Ok(Attr { nlink: 0, size: 0, ..pipe }));
        let told = Attr { perm: 0o700, nlink: 0, size: 0, mtime: early, ctime: early, ..dir(1) };
        assert_eq!(removed.attr(Ino(1), early), Ok(told));
        assert_eq!(removed.attr(Ino(2), early), Err(Errno::Stale));
        let now = Timespec { sec: 9, nsec: 0 };
        let set = SetAttr { perm: Some(0o500), mtime: Some(TimeSet::Now), ..SetAttr::default() };
        let changed = Attr { perm: 0o500, mtime: now, ctime: now, ..told };
        assert_eq!(removed.change(Ino(1), &set, now), Ok(changed));
        assert_eq!(removed.attr(Ino(1), now), Ok(changed));
        assert_eq!(removed.change(Ino(2), &set, now), Err(Errno::Stale));
        let put = |ino, mode| removed.set_xattr(Ino(ino), b"user.x".to_vec(), b"1".to_vec(), mode);
        assert_eq!((put(1, XattrMode::Replace), put(2, XattrMode::Set)), (Err(Errno::NoData), Err(Errno::Stale)));
        assert_eq!((put(1, XattrMode::Set), put(1, XattrMode::Create)), (Ok(()), Err(Errno::Exist)));
        assert_eq!(
            (removed.xattr(Ino(1), b"user.x"), removed.xattr(Ino(3), b"user.x")),
            (Ok(b"1".to_vec()), Err(Errno::NoData))
        );
        assert_eq!(removed.xattr_names(Ino(1)), Ok(b"user.x\0".to_vec()));
        assert_eq!(
            (removed.remove_xattr(Ino(1), b"user.x"), removed.remove_xattr(Ino(1), b"user.x")),
            (Ok(()), Err(Errno::NoData))
        );
        (10..10 + 2 * GENERATION_MAX as u64).for_each(|ino| removed.shown(&dir(ino)));
        assert_eq!(removed.attr(Ino(1), now), Err(Errno::Stale));
        assert!(removed.attr(Ino(9 + 2 * GENERATION_MAX as u64), now).is_ok());
        let shown = removed.0.lock();
        assert!(shown.young.len() + shown.old.len() <= 2 * GENERATION_MAX);
    }
}
