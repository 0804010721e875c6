//! Names of directories that the kernel keeps in company of other mounts (docs/design/kernel_names.md).
//!
//! The kernel's answers to programs carry no life there: nobody could take it back without waiting for a lock of a
//! directory. A thread of the mount walks over names that are asked for often instead, and the answers to its own
//! look-ups carry what is left of the tokens' lives; another one ends them by opening the directory by its handle.
//!
//! Owns: the answers to these threads, which names they walk to, whether the kernel lets them. Does not own: the
//! threads (`lender`), the tokens and what is lent (the client).
//!
//! Invariants: a request of these threads is answered at once by what is known under tokens, or with EINTR, which
//! leaves the kernel's entry as it is. None of them is ever told that a name is not there, but in the trial at the
//! beginning.

mod asked;
mod lender;
mod system;

use super::{ClientFs, lent};
use crate::Caller;
use crate::file_system::{AttrReply, Entry, Handle, OpenReply};
use crate::mount;
use crate::session::monotonic_ns;
use amphi_client::Client;
use amphi_types::{Attr, Errno, Ino, Kind, Result, Timespec};
use asked::Asked;
use lender::{Surroundings, Threads};
use parking_lot::Mutex;
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

pub(super) use lender::{Lender, Step};

/// The name of the trial, which no program has a reason to ask for.
const PROBE_NAME: &[u8] = b".amphi probes whether the kernel gives names back";
/// The directory that it shows: no target has this number.
const PROBE_NODE: Ino = Ino(0x7fff << 48 | 1);
/// The open root of the clone, which nobody lists.
const ROOT: Handle = Handle(u64::MAX);

thread_local! {
    /// This thread writes an answer with which a name is lent.
    static LENDS: Cell<bool> = const { Cell::new(false) };
}

/// See the module's head.
#[derive(Default)]
pub(super) struct Names {
    pub(super) lender: Arc<Lender>,
    asked: Asked,
    threads: Mutex<Option<Threads>>,
}

impl Names {
    /// The mount is there: tries whether names can be lent.
    pub(super) fn start(&self, client: &Client, at: &Path, device: u64) {
        let client = client.clone();
        let surroundings = Surroundings {
            at: at.to_path_buf(),
            is_mounted: Box::new(move || mount::is_mounted(device)),
            lent: Box::new(move || client.lent_names()),
            now_ns: monotonic_ns,
            probe: |lender, root| lender::probe(lender, root, PROBE_NAME, PROBE_NODE),
        };
        let started = match device {
            0 => Err("the mount is not in the mount table".to_string()),
            _ => Threads::start(&self.lender, surroundings),
        };
        let refused = match started {
            Ok((threads, refused)) => {
                *self.threads.lock() = Some(threads);
                refused
            }
            Err(why) => Some(why),
        };
        if let Some(why) = refused {
            tracing::info!("the kernel keeps no names among several mounts: {why}");
        }
    }

    /// The mount has ended.
    pub(super) fn stop(&self) {
        if let Some(threads) = self.threads.lock().take() {
            threads.stop(&self.lender);
        }
    }

    /// Whether requests of a thread are answered here.
    #[inline]
    pub(super) fn is_own(&self, tid: u32) -> bool {
        self.lender.is_own(tid)
    }

    /// Whether the kernel is being tried: then requests of these threads are as others.
    pub(super) fn is_starting(&self) -> bool {
        self.lender.is_starting()
    }

    /// The answer to the present request has been written.
    #[inline]
    pub(super) fn answered(&self) {
        if LENDS.replace(false) {
            self.lender.has_written();
        }
    }
}

impl ClientFs {
    /// The kernel was shown a directory for a program. If it asks for that name again and again, it is lent.
    pub(super) fn shown(&self, parent: Ino, name: &[u8], entry: &Entry) {
        if entry.attr.kind == Kind::Dir
            && entry.node == entry.attr.ino
            && self.client.lends_names()
            && self.names.asked.asked(parent, name)
            && self.names.lender.is_on()
            && let Some(path) = self.moved.path(parent, name, entry.node)
        {
            self.names.lender.walk(path);
        }
    }

    /// Whether the kernel has been lent this name, so that it need not be shown it in a listing.
    pub(super) fn is_lent(&self, parent: Ino, name: &[u8], attr: &Attr) -> bool {
        attr.kind == Kind::Dir && self.client.lends_names() && self.client.is_name_lent(parent, name, attr.ino)
    }

    /// A look-up of the mount's own threads.
    pub(super) fn own_lookup(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        let lender = &self.names.lender;
        if self.names.is_starting() && name == PROBE_NAME {
            let entry_ttl = lender.probed().ok_or(Errno::NoEnt)?;
            let attr = probe_attr();
            return Ok(Entry { attr, node: attr.ino, generation: 0, entry_ttl, attr_ttl: Duration::ZERO });
        }
        if name == b"." || name == b".." {
            return Err(Errno::Stale);
        }
        let expected = lender.asks(parent, name).ok_or(Errno::Intr)?;
        // Where the kernel has it under another id it would drop what it has, with what is mounted below.
        if !self.moved.is_shown(parent, name, expected) {
            return Err(Errno::Intr);
        }
        let known = self.client.known_directory(parent, name).filter(|attr| attr.ino == expected);
        let attr = known.ok_or(Errno::Intr)?;
        // First, so that whoever finds the loan waits for the call.
        let lends = lender.lends(monotonic_ns());
        let entry_ttl = if lends { self.client.lend_name(parent, name, attr.ino) } else { Duration::ZERO };
        if entry_ttl.is_zero() {
            lender.lends_not();
        } else {
            self.names.asked.lent(parent, name);
            LENDS.set(true);
        }
        let attr_ttl = self.attr_ttl(&attr, lent::since());
        Ok(Entry { attr, node: attr.ino, generation: 0, entry_ttl, attr_ttl })
    }

    /// Attributes for the mount's own threads: the kernel looks whether they may search a directory.
    pub(super) fn own_getattr(&self, caller: &Caller<'_>, ino: Ino) -> Result<AttrReply> {
        let attr = if self.names.is_starting() {
            self.wait(caller, self.client.getattr(&Self::stream(caller), ino))?
        } else {
            self.client.known_attributes(ino).ok_or(Errno::Intr)?
        };
        Ok(self.attributes(attr, lent::since()))
    }

    /// The root of the clone is opened.
    pub(super) fn own_opendir(&self) -> OpenReply {
        OpenReply { handle: ROOT, ..OpenReply::default() }
    }
}

fn probe_attr() -> Attr {
    let zero = Timespec::default();
    Attr {
        ino: PROBE_NODE,
        kind: Kind::Dir,
        perm: 0o700,
        nlink: 2,
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
