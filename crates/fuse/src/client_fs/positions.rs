//! The moments at which the mount makes the kernel update the end of a file, so that positions after an append are
//! right (`front/appended`).

use super::ClientFs;
use crate::calls::WriteHow;
use crate::front::appended::TELL_WAIT;
use crate::request::Caller;
use amphi_client::OpenFile;
use amphi_types::Ino;
use std::cmp::Ordering::{Equal, Greater, Less};
use std::sync::Arc;

impl ClientFs {
    /// Returns whether the mount has to make the kernel update the end of the file before a program is granted a file
    /// lock on it.
    fn owes_end(&self, ino: Ino) -> bool {
        !self.client.has_always_been_alone() && self.kernel_view.appended.is(ino)
    }

    /// It has to be called before a program is answered that it holds a lock on the file.
    pub(super) fn tells_end(&self, caller: &Caller<'_>, ino: Ino) {
        if self.owes_end(ino) {
            caller.will_block();
            self.names.lender.sizes.tell_now(ino, TELL_WAIT);
        }
    }

    /// It has to be called before an append of `len` bytes is answered.
    pub(super) fn tells_end_behind(&self, caller: &Caller<'_>, file: &OpenFile, how: &WriteHow, len: usize) {
        let sizes = &self.names.lender.sizes;
        match file.appended_at().cmp(&how.offset) {
            Equal => {}
            Greater => {
                caller.will_block();
                sizes.tell_now(file.ino(), TELL_WAIT);
            }
            Less => sizes.tell_behind(file.ino(), how.offset + len as u64),
        }
    }

    /// Works as `tells_end_behind`, for an append that `answer` answers on a thread that must not wait.
    pub(super) fn end_behind(
        &self,
        file: &Arc<OpenFile>,
        how: &WriteHow,
    ) -> impl FnOnce(usize, Box<dyn FnOnce() + Send>) + Send + 'static {
        let (view, lender) = (self.kernel_view.clone(), self.names.lender.clone());
        let (file, offset) = (file.clone(), how.offset);
        move |len, answer| match file.appended_at().cmp(&offset) {
            Greater => view.appended.answer_behind(&lender, file.ino(), answer),
            Less => {
                lender.sizes.tell_behind(file.ino(), offset + len as u64);
                answer();
            }
            Equal => answer(),
        }
    }

    /// Works as `tells_end`, for a lock that `answer` reports on a thread that must not wait.
    pub(super) fn end_with_lock(&self, ino: Ino) -> impl FnOnce(Box<dyn FnOnce() + Send>) + Send + 'static {
        let owes = self.owes_end(ino);
        let (view, lender) = (self.kernel_view.clone(), self.names.lender.clone());
        move |answer| match owes {
            true => view.appended.answer_behind(&lender, ino, answer),
            false => answer(),
        }
    }
}
