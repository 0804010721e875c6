//! Names that the kernel caches in shared mode: the record of them, and the threads that look them up.
//!
//! Owns: how often each name is looked up (`asked`), the mount's own threads (`lender`), their system calls (`system`),
//! and which program threads have just looked up a name that is cached as absent. Does not own: the answers to the
//! mount's own threads (`client_fs/names`), the tokens and the table of cached names (the client).

mod asked;
pub(crate) mod lender;
pub(crate) mod system;

use crate::clock::monotonic_ns;
use crate::mount;
use crate::node::Top;
use amphi_client::Client;
use amphi_types::Ino;
use asked::Asked;
use lender::{Lender, Surroundings, Threads};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Most threads that are remembered as having looked up an absent name. When there are more, all are forgotten, and
/// absent names are invalidated by invalidation threads.
const LOOKS_MAX: usize = 256;

thread_local! {
    /// This thread writes an answer with an entry timeout for a name.
    static LENDS: Cell<bool> = const { Cell::new(false) };
    /// The timeout of a negative entry, if the present answer is one.
    static ABSENT: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// The names of a mount; see the head of the module.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) lender: Arc<Lender>,
    pub(crate) asked: Asked,
    looks: Mutex<BTreeMap<u32, Look>>,
    threads: Mutex<Option<Threads>>,
}

/// A thread has looked up a name that is cached as absent. So for this thread, the negative entry of that time has no
/// running timeout any more.
struct Look {
    dir: Ino,
    name: Box<[u8]>,
    loan: u64,
}

impl Names {
    /// The state for a mount with this root.
    pub(crate) fn below(top: Top) -> Names {
        Names { lender: Arc::new(Lender::below(top)), ..Names::default() }
    }

    /// Called when the mount is served: tries whether names can be cached.
    pub(crate) fn start(&self, client: &Client, at: &Path, device: u64) {
        let client = client.clone();
        let surroundings = Surroundings {
            at: at.to_path_buf(),
            is_mounted: Box::new(move || mount::is_mounted(device)),
            lent: Box::new(move || client.lent_names()),
            now_ns: monotonic_ns,
            trial: lender::trial,
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

    /// Called when the mount has ended.
    pub(crate) fn stop(&self) {
        if let Some(threads) = self.threads.lock().take() {
            threads.stop(&self.lender);
        }
    }

    /// Returns whether requests of a thread are answered by `client_fs/names`.
    #[inline]
    pub(crate) fn is_own(&self, tid: u32) -> bool {
        self.lender.is_own(tid)
    }

    /// Returns whether the trial of the kernel is under way. Requests of the mount's own threads are then treated like
    /// those of programs.
    pub(crate) fn is_starting(&self) -> bool {
        self.lender.is_starting()
    }

    /// It has to be called when the answer to the present request was written.
    #[inline]
    pub(crate) fn answered(&self) {
        if LENDS.replace(false) {
            self.lender.has_written();
        }
    }

    /// The timeout of a negative entry in the answer to the present request, if the name is cached by the lookup
    /// thread.
    #[inline]
    pub(crate) fn negative_ttl(&self) -> Option<Duration> {
        ABSENT.take()
    }

    /// Notes that a thread was answered ENOENT for a name that the kernel caches as absent, under the loan of this
    /// number.
    pub(crate) fn has_asked(&self, tid: u32, dir: Ino, name: &[u8], loan: u64) {
        let mut looks = self.looks.lock();
        if looks.len() >= LOOKS_MAX {
            looks.clear();
        }
        looks.insert(tid, Look { dir, name: name.into(), loan });
    }

    /// Returns whether `name`, under this loan, was the last name for which the thread got such an answer. The result
    /// is true only once.
    pub(crate) fn has_just_asked(&self, tid: u32, dir: Ino, name: &[u8], loan: u64) -> bool {
        let look = self.looks.lock().remove(&tid);
        look.is_some_and(|look| look.dir == dir && *look.name == *name && look.loan == loan)
    }
}

/// The answer to the present request carries an entry timeout.
pub(crate) fn lends_name() {
    LENDS.set(true);
}

/// The answer to the present request is a negative entry with this timeout.
pub(crate) fn lends_absence(life: Duration) {
    ABSENT.set(Some(life));
}
