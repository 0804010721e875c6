//! Open directories: opening, listing and closing them.
//!
//! Owns: how a listing is put together from the client's answers, and how a directory is opened. Does not own: who
//! opened it and where its listing ends (`listings`), what the kernel keeps of it (`kept_listings`).

use super::ClientFs;
use crate::calls::OpenFlags;
use crate::calls::{Handle, OpenReply};
use crate::clock::monotonic_ns;
use crate::directory::DirSink;
use crate::front::kept_listings::Mark;
use crate::request::Caller;
use amphi_client::Ctx;
use amphi_types::{Attr, Caps, Cred, Ino, Kind, Result};
use std::time::Duration;

/// Least bytes of a directory entry in a reply: bounds how many are asked for.
const ENTRY_MIN_BYTES: usize = 32;
/// The same with attributes.
const ENTRY_PLUS_MIN_BYTES: usize = 160;
/// How long attributes wait for the pages of a listing to be dropped.
const DROP_WAIT: Duration = Duration::from_millis(50);

impl ClientFs {
    /// Opens a directory for its listing.
    pub(super) fn open_directory(&self, caller: &Caller<'_>, ino: Ino) -> OpenReply {
        self.moved.used(caller.tid, caller.node);
        // The kernel has just checked that the directory may be read (`default_permissions`). From here on it may,
        // whatever becomes of its permissions and of the caller.
        let opener = caller.cred(&self.groups);
        let opener = Cred { caps: opener.caps.and(Caps::DAC_READ_SEARCH), ..opener };
        let mark = match caller.by_other_id() {
            true => Mark::No,
            false => self.kept_listings.opens(ino, monotonic_ns(), |attr| self.client.lend_listing(attr)),
        };
        let flags = match mark {
            Mark::No => OpenFlags::default(),
            Mark::Anew => OpenFlags::CACHE_DIR,
            Mark::Keep => OpenFlags::CACHE_DIR | OpenFlags::KEEP_CACHE,
        };
        OpenReply { handle: self.listings.open(opener, mark != Mark::No), flags }
    }

    /// A question is about to be answered with the attributes of a directory: what the kernel has of it from before
    /// goes, if they show a change. While a mount is alone its kernel knows of all changes.
    pub(super) fn tells_directory(&self, caller: &Caller<'_>, attr: &Attr) {
        if self.keeps_older_listing(attr) && !caller.by_other_id() {
            caller.will_block();
            self.kept_listings.names_arrive(attr.ino, caller.tid);
            self.pages.drop_listing(attr.ino, DROP_WAIT);
        }
    }

    /// Whether the kernel may have a listing from before what these attributes show.
    pub(super) fn keeps_older_listing(&self, attr: &Attr) -> bool {
        attr.kind == Kind::Dir && !self.client.is_alone() && self.kept_listings.shows_change(attr)
    }

    /// Closes it.
    pub(super) fn close_directory(&self, ino: Ino, handle: Handle) {
        if self.listings.close(handle) {
            self.kept_listings.closes(ino);
        }
    }

    /// The next entries.
    pub(super) fn list_directory(
        &self,
        caller: &Caller<'_>,
        ino: Ino,
        handle: Handle,
        offset: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<()> {
        if offset == 0 {
            self.listings.begins(handle);
        } else if self.listings.take_end(handle, offset) {
            return Ok(());
        }
        let ctx = Ctx { cred: self.listings.opener(handle)?, ..Self::thread(caller) };
        let plus = sink.wants_entries();
        let marked = self.listings.is_marked(handle);
        if !plus && marked {
            self.kept_listings.reads_plain(ino);
        }
        let _asking = marked.then(|| self.kept_listings.asks(ino, caller.tid));
        let least = if plus { ENTRY_PLUS_MIN_BYTES } else { ENTRY_MIN_BYTES };
        let mut cookie = offset;
        loop {
            let max = (sink.room_bytes() / least).max(1) as u32;
            let asked_ns = monotonic_ns();
            let listing = self.wait(caller, self.client.readdir(&ctx, ino, cookie, max, plus))?;
            let end = listing.end || listing.entries.is_empty();
            for e in listing.entries {
                let shown = |attr: &Attr| {
                    // An answer for a program would end the life of a name that is lent.
                    (attr.kind != Kind::Dir || self.moved.listed(attr.ino, caller.node, &e.name))
                        && !self.keeps_older_listing(attr)
                        && !self.is_lent(ino, &e.name, attr)
                        // The kernel would have an older size behind it.
                        && self.shows_aside(caller.tid, attr, asked_ns)
                };
                let added = match e.attr.filter(shown) {
                    Some(attr) => {
                        let added = sink.add_entry(&self.entry(attr), &e.name, e.cookie);
                        if !added {
                            self.shows_nothing(caller.tid, &attr);
                        }
                        added
                    }
                    None => sink.add(e.ino, e.kind, &e.name, e.cookie),
                };
                if !added {
                    return Ok(());
                }
                cookie = e.cookie;
            }
            if end && cookie > offset {
                self.listings.ended(handle, cookie);
            }
            if end || sink.room_bytes() < least {
                return Ok(());
            }
        }
    }
}
