//! `Appended`: files that are open to append, and positions of descriptors behind an append.
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
//! Owns: which files are open to append. Does not own: telling the kernel (`sizes`), when it is told
//! (`client_fs/positions`), where an append goes (`client_fs/writes`).

use super::names::lender::Lender;
use amphi_client::OpenFile;
use amphi_types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// How long an answer waits at most until the kernel goes by the end.
pub(crate) const TELL_WAIT: Duration = Duration::from_secs(1);

/// Files that are open to append.
#[derive(Default)]
pub(crate) struct Appended {
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
    pub(crate) fn is(&self, ino: Ino) -> bool {
        self.files.lock().contains_key(&ino)
    }

    /// Has a thread answer when the kernel goes by the end, for who may not wait. The thread ends with the last sender.
    pub(crate) fn answer_behind(&self, lender: &Arc<Lender>, ino: Ino, answer: Box<dyn FnOnce() + Send>) {
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

    pub(crate) fn opened(&self, file: &OpenFile) {
        if file.flags().append {
            *self.files.lock().entry(file.ino()).or_default() += 1;
        }
    }

    pub(crate) fn closed(&self, file: &OpenFile) {
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
