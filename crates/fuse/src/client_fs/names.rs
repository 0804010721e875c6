//! Answers about names that the kernel caches in shared mode (docs/design/kernel_names.md).
//!
//! In shared mode the answers to programs carry no entry timeout, because nobody could invalidate a name without
//! waiting for the lock of its directory. Instead the mount's own *lookup thread* (`walker`) looks up the names that
//! programs request often. The answers to this thread carry an entry timeout, which is the remaining life of the token.
//! *Invalidation threads* (`takers`) end such timeouts.
//!
//! Owns: the answers to these threads, and which names the lookup thread visits. Does not own: the threads and the
//! record of names (`front/names`), the tokens and the table of cached names (the client).
//!
//! Invariants:
//!
//! * A request of these threads is answered at once. Requests of the lookup thread are answered from what is cached
//!   under tokens. Requests of an invalidation thread are answered from the name that it invalidates. Requests of any
//!   other of these threads are answered with EINTR, which leaves the kernel's entry as it is.
//! * The lookup thread is answered ENOENT only for a name for which programs got ENOENT before, under the same token.
//!   An invalidation thread never gets ENOENT.

use super::ClientFs;
use crate::calls::{AttrReply, Entry, Handle, OpenReply};
use crate::clock::monotonic_ns;
use crate::front::lent;
use crate::front::names::lender::Answer;
use crate::front::names::{lends_absence, lends_name};
use crate::request::Caller;
use amphi_client::{LentName, NameShows};
use amphi_types::{Attr, Errno, Ino, Kind, Result, Timespec};
use std::time::Duration;

/// The handle of the clone's root directory, which nobody lists.
const ROOT: Handle = Handle(u64::MAX);

impl ClientFs {
    /// It has to be called before this mount changes a name. The count of its lookups begins again at zero.
    pub(super) fn changes_name(&self, caller: &Caller<'_>, dir: Ino, name: &[u8]) {
        self.names.asked.begins_anew(dir, name);
        self.is_lent_as_absent(caller, dir, name);
    }

    /// It has to be called after a program got the answer to a lookup of the name. If programs request the name again
    /// and again, the lookup thread has the kernel cache it.
    pub(super) fn shown(&self, caller: &Caller<'_>, dir: Ino, name: &[u8], entry: Option<&Entry>) {
        if self.client.lends_names()
            && !caller.by_other_id()
            // The kernel makes a new inode with the device number of the answer, and the answer to an invalidation
            // thread has none. So names of devices are not cached.
            && entry.is_none_or(|entry| {
                entry.node == entry.attr.ino && !matches!(entry.attr.kind, Kind::CharDev | Kind::BlockDev)
            })
            && self.names.asked.asked(dir, name)
            && self.names.lender.is_on()
        {
            let shows = NameShows::of(entry.map(|entry| &entry.attr));
            if let Some(path) = self.moved.path(LentName { dir, name: name.into(), shows })
                && !self.names.lender.walk(path)
            {
                self.names.asked.wants_again(dir, name);
            }
        }
    }

    /// It has to be called after a program was answered ENOENT. Returns whether the kernel caches this absence.
    pub(super) fn looked(&self, caller: &Caller<'_>, dir: Ino, name: &[u8]) -> bool {
        let Some(loan) = self.client.absent_loan(dir, name) else { return false };
        self.names.has_asked(caller.tid, dir, name, loan);
        true
    }

    /// Returns whether the kernel may have a negative entry with a running timeout for a name that this thread is about
    /// to make. If this thread has just looked the name up, the timeout of the negative entry is over, and nothing has
    /// to be invalidated. An invalidation thread would even have to wait for the directory's lock, which the caller
    /// holds, and it would drop the dentry that is about to show the new file.
    pub(super) fn is_lent_as_absent(&self, caller: &Caller<'_>, dir: Ino, name: &[u8]) -> bool {
        let Some(loan) = self.client.absent_loan(dir, name) else { return false };
        let is_over = self.names.has_just_asked(caller.tid, dir, name, loan);
        if is_over {
            self.client.absent_loan_is_over(dir, name, loan);
        }
        !is_over
    }

    /// Returns whether the kernel caches this name, so that a listing need not show its attributes.
    pub(super) fn is_lent(&self, dir: Ino, name: &[u8], attr: &Attr) -> bool {
        self.client.lends_names() && self.client.is_name_lent(dir, name, NameShows::of(Some(attr)))
    }

    /// Answers a LOOKUP of one of the mount's own threads.
    pub(super) fn own_lookup(&self, caller: &Caller<'_>, dir: Ino, name: &[u8]) -> Result<Entry> {
        let lender = &self.names.lender;
        if name == b"." || name == b".." {
            // Lookups of `.` and `..` lead upward from a directory whose dentry has gone.
            return Err(Errno::Stale);
        }
        if let Some(answer) = lender.taker_asks(caller.tid, dir, name) {
            return self.answer_to_taker(caller.tid, answer);
        }
        if self.names.is_starting() {
            return match lender.tried(dir, name).ok_or(Errno::Intr)? {
                (NameShows::Nothing, life) => {
                    lends_absence(life);
                    Err(Errno::NoEnt)
                }
                (NameShows::Directory(ino), entry_ttl) => Ok(unknown(ino, Kind::Dir, entry_ttl)),
                (NameShows::Other(ino, kind), entry_ttl) => Ok(unknown(ino, kind, entry_ttl)),
            };
        }
        let lent = lender.asks(caller.tid, dir, name).filter(|_| !caller.by_other_id()).ok_or(Errno::Intr)?;
        if let NameShows::Directory(ino) = lent.shows
            // If the kernel has the directory under another node id, this answer would make it drop that one with all
            // that is mounted below.
            && !self.moved.is_shown(dir, name, ino)
        {
            return Err(Errno::Intr);
        }
        let asked_ns = monotonic_ns();
        let known = self.client.known_name(dir, name).ok_or(Errno::Intr)?;
        if NameShows::of(known.as_ref().ok()) != lent.shows {
            return Err(Errno::Intr);
        }
        let may_be_shown =
            |attr: &Attr| !self.keeps_older_listing(attr) && self.shows_aside(caller.tid, attr, asked_ns);
        if known.as_ref().is_ok_and(|attr| !may_be_shown(attr)) {
            return Err(Errno::Intr);
        }
        // Noted first, so that a thread which finds the name in the table of cached names waits for this call.
        let lends = lender.lends(monotonic_ns());
        let entry_ttl = if lends { self.client.lend_name(&lent) } else { Duration::ZERO };
        if entry_ttl.is_zero() {
            lender.lends_not();
        } else {
            match lent.shows {
                // The program that sends the next request may be the one that makes the name.
                NameShows::Nothing => self.names.asked.begins_anew(dir, name),
                _ => self.names.asked.wants_again(dir, name),
            }
            lends_name();
        }
        match known {
            Ok(attr) => {
                let attr_ttl = self.attr_ttl(&attr, lent::since());
                Ok(Entry { attr, node: attr.ino, generation: 0, entry_ttl, attr_ttl })
            }
            Err(_) if entry_ttl.is_zero() => Err(Errno::Intr),
            Err(e) => {
                lends_absence(entry_ttl);
                Err(e)
            }
        }
    }

    /// The answer to an invalidation thread about the name that it invalidates.
    fn answer_to_taker(&self, tid: u32, answer: Answer) -> Result<Entry> {
        let Answer::Same(shows) = answer else { return Err(Errno::Intr) };
        let entry = match shows {
            // If the kernel does not know the inode, it has no dentry for it either.
            NameShows::Other(ino, kind) if self.kernel_view.forgets(ino)? => Ok(unknown(ino, kind, Duration::ZERO)),
            _ => Err(Errno::Intr),
        };
        self.names.lender.taker_was_answered(tid);
        entry
    }

    /// Answers a GETATTR of one of the mount's own threads. The kernel sends it to check whether the thread may search
    /// a directory.
    pub(super) fn own_getattr(&self, caller: &Caller<'_>, ino: Ino) -> Result<AttrReply> {
        let any = || AttrReply { attr: unknown_attr(ino, Kind::Dir), ttl: Duration::ZERO };
        match self.names.lender.taker_asks_attributes(caller.tid, ino) {
            Some(Answer::Refused) => return Err(Errno::Stale),
            Some(Answer::Any) => {
                self.kernel_view.forgets(ino)?;
                return Ok(any());
            }
            Some(_) => return Err(Errno::Intr),
            None => {}
        }
        let attr = if !self.names.is_starting() {
            self.client.known_attributes(ino).filter(|attr| !self.keeps_older_listing(attr)).ok_or(Errno::Intr)?
        } else if self.names.lender.is_of_trial(ino) {
            return Ok(any());
        } else {
            self.wait(caller, self.client.getattr(&Self::stream(caller), ino))?
        };
        Ok(self.attributes(attr, lent::since()))
    }

    /// Answers the OPENDIR with which the clone's root is opened.
    pub(super) fn own_opendir(&self) -> OpenReply {
        OpenReply { handle: ROOT, ..OpenReply::default() }
    }
}

/// An entry that says nothing of an inode but its number and kind.
fn unknown(ino: Ino, kind: Kind, entry_ttl: Duration) -> Entry {
    Entry { attr: unknown_attr(ino, kind), node: ino, generation: 0, entry_ttl, attr_ttl: Duration::ZERO }
}

fn unknown_attr(ino: Ino, kind: Kind) -> Attr {
    let zero = Timespec::default();
    Attr {
        ino,
        kind,
        perm: 0o700,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: zero,
        mtime: zero,
        ctime: zero,
        btime: zero,
    }
}
