//! The required state of the kernel before an answer with attributes is given.
//!
//! Owns: for each kind of answer, the event for which it waits. Does not own: which size the kernel uses
//! (`front/sizes`), which listing of a directory it has (`front/kept_listings`).

use super::ClientFs;
use crate::clock::monotonic_ns;
use crate::front::sizes::Sizes;
use crate::request::Caller;
use amphi_types::{Attr, Ino, Kind, Result};

/// How often attributes are requested again because newer ones were shown meanwhile.
const NEWER: usize = 3;

impl ClientFs {
    pub(super) fn sizes(&self) -> &Sizes {
        &self.names.lender.sizes
    }

    /// It has to be called before the answer to a GETATTR or LOOKUP that was read from the device at `asked_ns`. If the
    /// kernel might drop this answer, waits until the kernel uses the size of the file, or has no older listing of the
    /// directory.
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

    /// Works as `tells_size`, for an answer that shows no size to a program and may therefore be left out. False means
    /// that it has to be left out.
    pub(super) fn shows_aside(&self, tid: u32, attr: &Attr, asked_ns: u64) -> bool {
        let is_changing = || self.kernel_view.is_changing(attr.ino);
        attr.kind != Kind::File || self.sizes().tells_aside(tid, attr, asked_ns, is_changing)
    }

    /// Called when the answer that `shows_aside` allowed is left out after all.
    pub(super) fn shows_nothing(&self, tid: u32, attr: &Attr) {
        self.sizes().tells_in_doubt(tid, attr, 0);
    }

    /// It has to be called before an action that makes the kernel drop all answers on their way. Waits until the size
    /// that another thread was shown has arrived in the kernel.
    pub(super) fn size_arrives(&self, caller: &Caller<'_>, ino: Ino) {
        if self.sizes().is_on_its_way(caller.tid, ino) {
            caller.will_block();
            self.sizes().arrives(ino);
        }
    }

    /// It has to be called before an answer that the kernel caches in any case, whose attributes were requested at
    /// `asked_ns`. Returns the attributes to show. The result contains newer attributes if a program was shown another
    /// size meanwhile.
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

    /// Works as `fixes_size`, for an inode that has just been made.
    pub(super) fn makes_size(&self, caller: &Caller<'_>, attr: &Attr) {
        self.fixes(caller, attr, u64::MAX);
    }

    fn fixes(&self, caller: &Caller<'_>, attr: &Attr, asked_ns: u64) -> bool {
        attr.kind != Kind::File || self.sizes().fixes(caller.tid, attr, asked_ns)
    }
}
