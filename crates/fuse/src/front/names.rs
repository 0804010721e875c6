//! Names that the kernel keeps in company of other mounts: what is noted of them, and the threads that walk to them.
//!
//! Owns: which names are asked for often (`asked`), the threads (`lender`), their system calls (`system`), which
//! threads of programs have asked for a name that was lent as not there. Does not own: the answers to the mount's own
//! threads (`client_fs/names`), the tokens and what is lent (the client).

mod asked;
pub(crate) mod lender;
pub(crate) mod system;

use crate::clock::monotonic_ns;
use crate::mount;
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

/// Threads that have asked for a name which was lent as not there; beyond, all are forgotten, and takers have to go.
const LOOKS_MAX: usize = 256;

thread_local! {
    /// This thread writes an answer with which a name is lent.
    static LENDS: Cell<bool> = const { Cell::new(false) };
    /// For how long the kernel keeps that the name is not there, where that is the answer.
    static ABSENT: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// See the module's head.
#[derive(Default)]
pub(crate) struct Names {
    pub(crate) lender: Arc<Lender>,
    pub(crate) asked: Asked,
    looks: Mutex<BTreeMap<u32, Look>>,
    threads: Mutex<Option<Threads>>,
}

/// A thread has asked for a name that was lent as not there: so it has nothing of this loan in force any more.
struct Look {
    dir: Ino,
    name: Box<[u8]>,
    loan: u64,
}

impl Names {
    /// The mount is there: tries whether names can be lent.
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

    /// The mount has ended.
    pub(crate) fn stop(&self) {
        if let Some(threads) = self.threads.lock().take() {
            threads.stop(&self.lender);
        }
    }

    /// Whether requests of a thread are answered here.
    #[inline]
    pub(crate) fn is_own(&self, tid: u32) -> bool {
        self.lender.is_own(tid)
    }

    /// Whether the kernel is being tried: then requests of these threads are as others.
    pub(crate) fn is_starting(&self) -> bool {
        self.lender.is_starting()
    }

    /// The answer to the present request has been written.
    #[inline]
    pub(crate) fn answered(&self) {
        if LENDS.replace(false) {
            self.lender.has_written();
        }
    }

    /// For how long the kernel keeps the answer to the present request that a name is not there, if the names say so.
    #[inline]
    pub(crate) fn negative_ttl(&self) -> Option<Duration> {
        ABSENT.take()
    }

    /// A thread was told that a name is not there, which the kernel has by this loan.
    pub(crate) fn has_asked(&self, tid: u32, dir: Ino, name: &[u8], loan: u64) {
        let mut looks = self.looks.lock();
        if looks.len() >= LOOKS_MAX {
            looks.clear();
        }
        looks.insert(tid, Look { dir, name: name.into(), loan });
    }

    /// Whether this was the last name that the thread was told of so; counts once.
    pub(crate) fn has_just_asked(&self, tid: u32, dir: Ino, name: &[u8], loan: u64) -> bool {
        let look = self.looks.lock().remove(&tid);
        look.is_some_and(|look| look.dir == dir && *look.name == *name && look.loan == loan)
    }
}

/// The answer to the present request lends a name.
pub(crate) fn lends_name() {
    LENDS.set(true);
}

/// The answer to the present request says that a name is not there, and the kernel keeps that for so long.
pub(crate) fn lends_absence(life: Duration) {
    ABSENT.set(Some(life));
}
