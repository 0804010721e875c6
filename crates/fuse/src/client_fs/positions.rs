//! Positions of descriptors behind an append.
//!
//! Linux computes where an append begins, and from that the position of the descriptor behind it, by the size that it
//! goes by, before it sends the write. The answer has no place for another position. So where another mount has moved
//! the end since this kernel was told, the bytes lie at the end of the file all the same, and the position is not
//! there. Two moments come before an append, and the kernel is told the end then:
//!
//! * Somebody is given a lock of applications on a file that is open to append here. Who takes turns by such locks
//!   finds his records by their positions.
//! * An append went elsewhere than the kernel took it to go. It is answered when the kernel goes by the new end, so the
//!   position behind the next one is right. Where the file has become shorter the kernel goes by the position that it
//!   computed once it has the answer, so it is told right behind.
//!
//! Owns: which files are open to append. Does not own: telling the kernel (`sizes`), where an append goes (`writes`).

use super::ClientFs;
use super::names::Lender;
use crate::Caller;
use crate::file_system::WriteHow;
use amphi_client::OpenFile;
use amphi_types::Ino;
use parking_lot::Mutex;
use std::cmp::Ordering::{Equal, Greater, Less};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// How long an answer waits at most until the kernel goes by the end.
const TELL_WAIT: Duration = Duration::from_secs(1);

/// Files that are open to append.
#[derive(Default)]
pub(super) struct Appended {
    /// With how many open files.
    files: Mutex<BTreeMap<Ino, usize>>,
    teller: OnceLock<Option<mpsc::Sender<Owed>>>,
}

/// An answer that waits until the kernel goes by the end of a file, and the threads that tell it.
struct Owed {
    lender: Arc<Lender>,
    ino: Ino,
    answer: Box<dyn FnOnce() + Send>,
}

impl Appended {
    fn is(&self, ino: Ino) -> bool {
        self.files.lock().contains_key(&ino)
    }

    /// Has a thread answer when the kernel goes by the end, for who may not wait. The thread ends with the last sender.
    fn answer_behind(&self, lender: &Arc<Lender>, ino: Ino, answer: Box<dyn FnOnce() + Send>) {
        let tell = |owed: Owed| {
            owed.lender.sizes.tell_now(owed.ino, TELL_WAIT);
            (owed.answer)();
        };
        let start = || {
            let (sender, owed) = mpsc::channel::<Owed>();
            let run = move || owed.into_iter().for_each(tell);
            std::thread::Builder::new().name("fuse ends".into()).spawn(run).ok().map(|_| sender)
        };
        let owed = Owed { lender: lender.clone(), ino, answer };
        match self.teller.get_or_init(start) {
            Some(teller) => {
                if let Err(mpsc::SendError(owed)) = teller.send(owed) {
                    (owed.answer)();
                }
            }
            None => (owed.answer)(),
        }
    }

    pub(super) fn opened(&self, file: &OpenFile) {
        if file.flags().append {
            *self.files.lock().entry(file.ino()).or_default() += 1;
        }
    }

    pub(super) fn closed(&self, file: &OpenFile) {
        if file.flags().append {
            let mut files = self.files.lock();
            if let Some(open) = files.get_mut(&file.ino()) {
                *open -= 1;
                if *open == 0 {
                    files.remove(&file.ino());
                }
            }
        }
    }
}

impl ClientFs {
    /// Whether the kernel has to be told where a file ends before somebody is told that he has a lock on it.
    fn owes_end(&self, ino: Ino) -> bool {
        !self.client.has_always_been_alone() && self.kernel_view.appended.is(ino)
    }

    /// Somebody is about to be told that he has a lock on the file.
    pub(super) fn tells_end(&self, caller: &Caller<'_>, ino: Ino) {
        if self.owes_end(ino) {
            caller.will_block();
            self.names.lender.sizes.tell_now(ino, TELL_WAIT);
        }
    }

    /// An append of so many bytes is about to be answered.
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

    /// The same, of one that is answered by `answer` on a thread that may not wait.
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

    /// Somebody is told by `answer`, on a thread that may not wait, that he has a lock on the file.
    pub(super) fn end_with_lock(&self, ino: Ino) -> impl FnOnce(Box<dyn FnOnce() + Send>) + Send + 'static {
        let owes = self.owes_end(ino);
        let (view, lender) = (self.kernel_view.clone(), self.names.lender.clone());
        move |answer| match owes {
            true => view.appended.answer_behind(&lender, ino, answer),
            false => answer(),
        }
    }
}
