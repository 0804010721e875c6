//! Names that the kernel keeps in company of other mounts (docs/design/kernel_names.md).
//!
//! The kernel's answers to programs carry no life there: nobody could take it back without waiting for a lock of a
//! directory. A thread of the mount walks over names that are asked for often instead, and the answers to its own
//! look-ups carry what is left of the tokens' lives; others end them.
//!
//! Owns: the answers to these threads, and which names they walk to. Does not own: the threads and what is noted of
//! names (`front/names`), the tokens and what is lent (the client).
//!
//! Invariants: a request of these threads is answered at once: the walker's by what is known under tokens, a taker's by
//! what it takes back, any other with EINTR, which leaves the kernel's entry as it is. The walker is told that a name
//! is not there only where programs have been told so before, under the same token; a taker never.

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

/// The open root of the clone, which nobody lists.
const ROOT: Handle = Handle(u64::MAX);

impl ClientFs {
    /// This mount is about to change a name: whether it is asked for often is seen anew.
    pub(super) fn changes_name(&self, caller: &Caller<'_>, dir: Ino, name: &[u8]) {
        self.names.asked.begins_anew(dir, name);
        self.is_lent_as_absent(caller, dir, name);
    }

    /// The kernel was shown what a name shows, for a program. If it asks for that again and again, it is lent.
    pub(super) fn shown(&self, caller: &Caller<'_>, dir: Ino, name: &[u8], entry: Option<&Entry>) {
        if self.client.lends_names()
            && !caller.by_other_id()
            // What a device is a new inode of the kernel has from the answer that makes it, also from a taker's.
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

    /// A program was told that a name is not there. Whether the kernel has been lent that.
    pub(super) fn looked(&self, caller: &Caller<'_>, dir: Ino, name: &[u8]) -> bool {
        let Some(loan) = self.client.absent_loan(dir, name) else { return false };
        self.names.has_asked(caller.tid, dir, name, loan);
        true
    }

    /// Whether the kernel may have it that a name, which a thread is about to make, is not there. It has not where it
    /// has just asked: then the loan is over without a taker, which would have to wait for the lock of the directory
    /// under which the name is made, and drop the very entry that is about to show it.
    pub(super) fn is_lent_as_absent(&self, caller: &Caller<'_>, dir: Ino, name: &[u8]) -> bool {
        let Some(loan) = self.client.absent_loan(dir, name) else { return false };
        let is_over = self.names.has_just_asked(caller.tid, dir, name, loan);
        if is_over {
            self.client.absent_loan_is_over(dir, name, loan);
        }
        !is_over
    }

    /// Whether the kernel has been lent this name, so that it need not be shown it in a listing.
    pub(super) fn is_lent(&self, dir: Ino, name: &[u8], attr: &Attr) -> bool {
        self.client.lends_names() && self.client.is_name_lent(dir, name, NameShows::of(Some(attr)))
    }

    /// A look-up of the mount's own threads.
    pub(super) fn own_lookup(&self, caller: &Caller<'_>, dir: Ino, name: &[u8]) -> Result<Entry> {
        let lender = &self.names.lender;
        if name == b"." || name == b".." {
            // The way upward from a directory whose entry has gone.
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
            // Where the kernel has it under another id it would drop what it has, with what is mounted below.
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
        // First, so that whoever finds the loan waits for the call.
        let lends = lender.lends(monotonic_ns());
        let entry_ttl = if lends { self.client.lend_name(&lent) } else { Duration::ZERO };
        if entry_ttl.is_zero() {
            lender.lends_not();
        } else {
            match lent.shows {
                // The next who asks may be the one who makes it.
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

    /// What a taker is told of the name that it takes back.
    fn answer_to_taker(&self, tid: u32, answer: Answer) -> Result<Entry> {
        let Answer::Same(shows) = answer else { return Err(Errno::Intr) };
        let entry = match shows {
            // What the kernel does not know it has no name of.
            NameShows::Other(ino, kind) if self.kernel_view.forgets(ino)? => Ok(unknown(ino, kind, Duration::ZERO)),
            _ => Err(Errno::Intr),
        };
        self.names.lender.taker_was_answered(tid);
        entry
    }

    /// Attributes for the mount's own threads: the kernel looks whether they may search a directory.
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

    /// The root of the clone is opened.
    pub(super) fn own_opendir(&self) -> OpenReply {
        OpenReply { handle: ROOT, ..OpenReply::default() }
    }
}

/// An inode of which nothing is said but what it is.
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
