//! Which answers show attributes, and what has to be true of the kernel before they are given.
//!
//! Owns: for each kind of answer, what is waited for. Does not own: what the kernel goes by of a file (`front/sizes`)
//! and of a directory (`front/kept_listings`).

use super::ClientFs;
use crate::clock::monotonic_ns;
use crate::front::sizes::Sizes;
use crate::request::Caller;
use amphi_types::{Attr, Ino, Kind, Result};

/// Answers that are asked for anew since others were overtaken by them.
const NEWER: usize = 3;

impl ClientFs {
    pub(super) fn sizes(&self) -> &Sizes {
        &self.names.lender.sizes
    }

    /// A question for attributes, or for a name, is about to be answered; it was read at `asked_ns`. Waits until the
    /// kernel goes by the size of the file, or has no older listing of the directory, if it might not take the answer.
    pub(super) fn tells_size(&self, caller: &Caller<'_>, attr: &Attr, asked_ns: u64) {
        if attr.kind != Kind::File {
            return self.tells_directory(caller, attr);
        }
        let (sizes, is_changing) = (self.sizes(), || self.kernel_view.is_changing(attr.ino));
        if !sizes.tells(caller.tid, attr, asked_ns, is_changing) {
            caller.will_block();
            if !sizes.sees_to(caller.tid, attr.ino, is_changing) {
                sizes.tells_in_doubt(caller.tid, attr, asked_ns);
            }
        }
    }

    /// The same, of an answer that shows its size to no program, and can be left out: false if it has to be.
    pub(super) fn shows_aside(&self, tid: u32, attr: &Attr, asked_ns: u64) -> bool {
        let is_changing = || self.kernel_view.is_changing(attr.ino);
        attr.kind != Kind::File || self.sizes().tells_aside(tid, attr, asked_ns, is_changing)
    }

    /// What `shows_aside` was asked for is not shown after all.
    pub(super) fn shows_nothing(&self, tid: u32, attr: &Attr) {
        self.sizes().tells_in_doubt(tid, attr, 0);
    }

    /// The kernel is about to be told something by which it takes none of the answers that are on their way: waits
    /// until the size that another thread was told has arrived.
    pub(super) fn size_arrives(&self, caller: &Caller<'_>, ino: Ino) {
        if self.sizes().is_on_its_way(caller.tid, ino) {
            caller.will_block();
            self.sizes().arrives(ino);
        }
    }

    /// An answer is about to be given that the kernel takes whatever has come in between; it was asked for at
    /// `asked_ns`. The attributes that it shows: newer ones if a size was told meanwhile.
    pub(super) fn fixes_size(&self, caller: &Caller<'_>, mut attr: Attr, mut asked_ns: u64) -> Result<Attr> {
        self.tells_directory(caller, &attr);
        for _ in 0..NEWER {
            if self.fixes(caller, &attr, asked_ns) {
                return Ok(attr);
            }
            asked_ns = monotonic_ns();
            attr = self.wait(caller, self.client.getattr(&Self::stream(caller), attr.ino))?;
        }
        self.fixes(caller, &attr, u64::MAX);
        Ok(attr)
    }

    /// As `fixes_size`, of an inode that nobody knew before.
    pub(super) fn makes_size(&self, caller: &Caller<'_>, attr: &Attr) {
        self.fixes(caller, attr, u64::MAX);
    }

    fn fixes(&self, caller: &Caller<'_>, attr: &Attr, asked_ns: u64) -> bool {
        attr.kind != Kind::File || self.sizes().fixes(caller.tid, attr, asked_ns)
    }
}
