//! Operations after which the kernel has to walk the path again, although the server's answer does not say so.
//!
//! The kernel walks a path again after ESTALE, once (`Client::walk_failed`).
//!
//! Owns: which answers become ESTALE, and with that the flow of every change of names. Does not own: the files that are
//! kept open during the second walk (the client).

use super::ClientFs;
use crate::calls::{Entry, OpenHow};
use crate::clock::monotonic_ns;
use crate::front::syscall::Syscall;
use crate::request::Caller;
use amphi_client::{Created, Ctx, OpenFlags, Pending};
use amphi_types::{Attr, Errno, Ino, Kind, Result};
use std::time::Duration;

/// How often a call is repeated in the second walk, because another mount has changed the name again.
const TRIES: usize = 100;

impl ClientFs {
    /// Makes the kernel walk the path again for an operation on `at` that failed with `e`. Returns ESTALE, or `e` if
    /// this is the second walk already.
    fn walk_again(&self, caller: &Caller<'_>, at: Ino, e: Errno) -> Errno {
        if self.client.repeats_walk_at(caller.tid, at) {
            self.client.walk_ended(caller.tid);
            return e;
        }
        self.client.walk_failed_at(caller.tid, at);
        Errno::Stale
    }

    /// Answers a LOOKUP of a program.
    pub(super) fn lookup_walked(&self, caller: &Caller<'_>, parent: Ino, name: &[u8]) -> Result<Entry> {
        self.client.count_lookup();
        self.listings.uses(parent);
        self.moved.walks(caller.tid, caller.node, name);
        let asked_ns = monotonic_ns();
        let found = match self.look_up(caller, parent, name) {
            Err(Errno::NoEnt) => {
                // A thread that asks although the kernel has a negative entry is about to make the name.
                if !self.looked(caller, parent, name) {
                    self.shown(caller, parent, name, None);
                }
                return Err(Errno::NoEnt);
            }
            found => found?,
        };
        let node = match found.kind {
            Kind::Dir if name != b"." && name != b".." => {
                let changes = || Syscall::of(caller.tid).is_some_and(|call| call.changes_names());
                let moves = || self.names.lender.is_mover(caller.tid);
                self.moved.looked_up(caller.tid, found.ino, (caller.node, name), moves, changes)
            }
            _ => found.ino,
        };
        self.tells_size(caller, &found, asked_ns);
        let entry = self.entry(found);
        let attr_ttl = if node == found.ino { entry.attr_ttl } else { Duration::ZERO };
        let entry = Entry { node: self.moved.top().node(node), attr_ttl, ..entry };
        self.shown(caller, parent, name, Some(&entry));
        Ok(entry)
    }

    /// Looks up a name. A removed directory contains no names. A thread that returns to it holds it open, or found it
    /// by its name at a moment when it was empty. Linux does not walk again after the lookup of what `mkdir`, `mknod`,
    /// `symlink` and `link` are about to make. If the directory was replaced, the change itself fails, and the kernel
    /// walks the path again.
    fn look_up(&self, caller: &Caller<'_>, dir: Ino, name: &[u8]) -> Result<Attr> {
        let again = self.client.repeats_walk(caller.tid);
        let found = self.asked(caller, |ctx| self.client.lookup(ctx, dir, name));
        let is_name = name != b"." && name != b"..";
        let is_stale = matches!(found, Err(Errno::Stale));
        let found = self.in_directories(&[dir], again || is_name, found);
        if is_stale && !again && matches!(found, Err(Errno::NoEnt)) {
            // The kernel does not walk again after this answer.
            self.client.walk_ended(caller.tid);
        }
        found
    }

    /// Links an inode. If it has lost the name by which it was found, the file that has the name now is linked.
    pub(super) fn link_walked(&self, caller: &Caller<'_>, ino: Ino, dir: Ino, name: &[u8]) -> Result<Entry> {
        let mut ino = ino;
        for _ in 0..TRIES {
            let (changing, asked_ns) = (self.change(caller, ino), monotonic_ns());
            match self.changed(caller, &[dir], |ctx| self.client.link(ctx, ino, dir, name)) {
                Ok(attr) => {
                    let attr = self.fixes_size(caller, attr, asked_ns)?;
                    let since = changing.ends();
                    self.client.walk_ended(caller.tid);
                    return Ok(Entry { attr_ttl: self.attr_ttl(&attr, since), ..self.entry(attr) });
                }
                Err(Errno::NoEnt) => {}
                Err(e) => return Err(e),
            }
            // The inode has no name any more, or the directory was removed.
            let Some((found_in, found_by)) = self.client.walked(caller.tid, ino) else {
                return Err(self.walk_again(caller, ino, Errno::NoEnt));
            };
            let now = self.asked(caller, |ctx| self.client.lookup(ctx, found_in, &found_by))?.ino;
            if now == ino {
                break;
            }
            ino = now;
        }
        Err(Errno::NoEnt)
    }

    /// Creates or opens a file. If another mount has made a symbolic link, a pipe or a socket of that name since the
    /// lookup, the kernel has to follow or open it, so the kernel has to walk the path again. In the second walk the
    /// client has waited for that inode to be removed. If the inode is still there, the answer is ESTALE once more,
    /// since this may be the first walk of a new call.
    pub(super) fn create_walked(
        &self,
        caller: &Caller<'_>,
        dir: Ino,
        name: &[u8],
        perm: u16,
        how: OpenHow,
    ) -> Result<Created> {
        let flags = OpenFlags::from_linux(how.flags);
        // Without `O_EXCL` the kernel trusts its negative entry, so it has to walk again. In the second walk the kernel
        // requests every name.
        if self.is_lent_as_absent(caller, dir, name) && !self.client.repeats_walk(caller.tid) {
            self.client.walk_failed(caller.tid);
            return Err(Errno::Stale);
        }
        let opener = self.opener(caller);
        self.moved.ended(caller.tid);
        let again = self.client.repeats_walk(caller.tid);
        let made = self.asked_as(caller, opener, |ctx| self.client.create(ctx, dir, name, perm, flags));
        match self.in_directories(&[dir], again, made) {
            Ok(made) if made.attr.kind == Kind::File => {
                self.client.walk_ended(caller.tid);
                Ok(made)
            }
            Ok(_) | Err(Errno::Loop) => {
                self.client.walk_failed(caller.tid);
                Err(Errno::Stale)
            }
            Err(e) => Err(e),
        }
    }

    /// Works as `asked`, for names in `dirs`.
    pub(super) fn asked_in<T: Send + 'static>(
        &self,
        caller: &Caller<'_>,
        dirs: &[Ino],
        ask: impl Fn(&Ctx) -> Pending<T>,
    ) -> Result<T> {
        let again = self.client.repeats_walk(caller.tid);
        let result = self.asked(caller, ask);
        self.in_directories(dirs, again, result)
    }

    /// Turns the result for names in a removed directory into ENOENT, if the caller came back to it after a walk. Such
    /// a caller holds the directory open, and has not found it by a name.
    pub(super) fn in_directories<T>(&self, dirs: &[Ino], again: bool, result: Result<T>) -> Result<T> {
        match result {
            Err(Errno::Stale) if again && dirs.iter().any(|dir| self.client.has_shown_directory(*dir)) => {
                Err(Errno::NoEnt)
            }
            result => result,
        }
    }

    /// Works as `asked_in`, for a change of names, which ends the walk.
    pub(super) fn changed<T: Send + 'static>(
        &self,
        caller: &Caller<'_>,
        dirs: &[Ino],
        ask: impl Fn(&Ctx) -> Pending<T>,
    ) -> Result<T> {
        self.moved.ended(caller.tid);
        self.asked_in(caller, dirs, ask)
    }

    pub(super) fn changed_entry(
        &self,
        caller: &Caller<'_>,
        (dir, name): (Ino, &[u8]),
        ask: impl Fn(&Ctx) -> Pending<Attr>,
    ) -> Result<Entry> {
        self.changes_name(caller, dir, name);
        let made = self.changed(caller, &[dir], ask)?;
        // The inode is new, so no other size was shown.
        self.makes_size(caller, &made);
        Ok(self.entry(made))
    }
}
