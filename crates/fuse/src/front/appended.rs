//! `Appended`: files that are open to append, and the positions of descriptors after an append.
//!
//! Before Linux sends an append, it computes the offset of the append and the resulting position of the descriptor from
//! the size that it knows. The answer cannot carry another position. So if another mount has moved the end, the bytes
//! are written at the right place, but the descriptor's position is wrong. To avoid this, the mount makes the kernel
//! take the present end at two moments:
//!
//! * Before a program is granted a file lock on a file that is open to append here. Programs that write in turn under
//!   such locks find their records by position.
//! * Before an append is answered that went elsewhere than the kernel expected. Then the position after the next append
//!   is right. If the file has become shorter, the kernel uses its own computed position after it has got the answer.
//!   So the mount makes it update the end right after the answer.
//!
//! Owns: which files are open to append. Does not own: making the kernel update a size (`sizes`), when that happens
//! (`client_fs/positions`), where an append is written (`client_fs/writes`).

use super::names::lender::Lender;
use amphi_client::OpenFile;
use amphi_types::Ino;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

/// How long an answer waits at most for the kernel to take the end.
pub(crate) const TELL_WAIT: Duration = Duration::from_secs(1);

/// Files that are open to append.
#[derive(Default)]
pub(crate) struct Appended {
    /// Number of open files that append, by inode.
    files: Mutex<BTreeMap<Ino, usize>>,
    teller: OnceLock<Option<mpsc::Sender<Owed>>>,
}

/// Answers that wait until the kernel has taken the end of a file, and the threads that make the kernel take it.
struct Owed {
    lender: Arc<Lender>,
    ino: Ino,
    answer: Box<dyn FnOnce() + Send>,
}

impl Appended {
    pub(crate) fn is(&self, ino: Ino) -> bool {
        self.files.lock().contains_key(&ino)
    }

    /// Calls `answer` on another thread when the kernel has taken the end, for a caller that must not wait. The thread
    /// ends with the last sender.
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
                assert!(*open > 0, "{}: no open file appends", file.ino());
                *open -= 1;
                if *open == 0 {
                    files.remove(&file.ino());
                }
            }
        }
    }
}
