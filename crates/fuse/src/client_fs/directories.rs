//! Open directories: opening, listing and closing them.
//!
//! Owns: how a directory is opened, and how a listing is composed of the client's answers. Does not own: which program
//! opened a directory and where its listing ends (`front/listings`), which listings the kernel caches
//! (`front/kept_listings`).

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

/// Least bytes of a directory entry in a reply, which bounds how many entries are requested.
const ENTRY_MIN_BYTES: usize = 32;
/// Least bytes of an entry with attributes.
const ENTRY_PLUS_MIN_BYTES: usize = 160;
/// How long attributes wait for the pages of a listing to be dropped.
const DROP_WAIT: Duration = Duration::from_millis(50);

impl ClientFs {
    /// Opens a directory.
    pub(super) fn open_directory(&self, caller: &Caller<'_>, ino: Ino) -> OpenReply {
        self.moved.used(caller.tid, caller.node);
        // The kernel has just checked that the caller may read the directory (`default_permissions`). From now on the
        // open directory may be read, even if its permissions or those of the caller change.
        let opener = caller.cred(&self.groups);
        let opener = Cred { caps: opener.caps.and(Caps::DAC_READ_SEARCH), ..opener };
        // The mtime of a directory with shards is that of several clocks, so it may stay although a name has changed.
        let mark = match caller.by_other_id() || self.client.has_shards(ino) {
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

    /// It has to be called before the attributes of a directory are answered. If they show a change, the kernel first
    /// drops its older listing. In sole mode this is not needed, because all changes pass through this kernel.
    pub(super) fn tells_directory(&self, caller: &Caller<'_>, attr: &Attr) {
        if self.keeps_older_listing(attr) && !caller.by_other_id() {
            caller.will_block();
            self.kept_listings.names_arrive(attr.ino, caller.tid);
            self.pages.drop_listing(attr.ino, DROP_WAIT);
        }
    }

    /// Returns whether the kernel may have a listing that is older than these attributes.
    pub(super) fn keeps_older_listing(&self, attr: &Attr) -> bool {
        attr.kind == Kind::Dir && !self.client.is_alone() && self.kept_listings.shows_change(attr)
    }

    /// Closes an open directory.
    pub(super) fn close_directory(&self, ino: Ino, handle: Handle) {
        if self.listings.close(handle) {
            self.kept_listings.closes(ino);
        }
    }

    /// Adds the next entries to `sink`.
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
        let has_room = sink.wants_entries();
        let plus = has_room && self.listings.wants_attributes(handle, ino, offset, self.client.is_alone());
        let marked = self.listings.is_marked(handle);
        if !plus && marked {
            self.kept_listings.reads_plain(ino);
        }
        let _asking = marked.then(|| self.kept_listings.asks(ino, caller.tid));
        let least = if has_room { ENTRY_PLUS_MIN_BYTES } else { ENTRY_MIN_BYTES };
        let (mut cookie, mut shown_entries) = (offset, 0);
        loop {
            let max = (sink.room_bytes() / least).max(1) as u32;
            let asked_ns = monotonic_ns();
            let listing = self.wait(caller, self.client.readdir(&ctx, ino, cookie, max, plus))?;
            let end = listing.end || listing.entries.is_empty();
            for e in listing.entries {
                let shown = |attr: &Attr| {
                    // If the kernel caches this name, attributes in a listing would end its timeout.
                    (attr.kind != Kind::Dir || self.moved.listed(attr.ino, caller.node, &e.name))
                        && !self.keeps_older_listing(attr)
                        && !self.is_lent(ino, &e.name, attr)
                        // The attributes are left out where the kernel could end up with an older size than they show.
                        && self.shows_aside(caller.tid, attr, asked_ns)
                };
                let added = match e.attr.filter(shown) {
                    Some(attr) => {
                        let added = sink.add_entry(&self.entry(attr), &e.name, e.cookie);
                        if !added {
                            self.shows_nothing(caller.tid, &attr);
                        }
                        shown_entries += usize::from(added);
                        added
                    }
                    None => sink.add(e.ino, e.kind, &e.name, e.cookie),
                };
                if !added {
                    self.listings.shows(handle, shown_entries);
                    return Ok(());
                }
                cookie = e.cookie;
            }
            if end && cookie > offset {
                self.listings.ended(handle, cookie);
            }
            if end || sink.room_bytes() < least {
                self.listings.shows(handle, shown_entries);
                return Ok(());
            }
        }
    }
}
