//! Start and end of the lender's threads, of the threads that update sizes and use the same clone of the mount, and of
//! the notifying thread (`teller`).
//!
//! Owns: these threads and their order of start and end. Does not own: the work of these threads (`walker`, `taker`,
//! `mover`, `sizes`).

use super::super::system;
use super::{Lender, Phase};
use crate::front::sizes;
use amphi_client::LentName;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno as Raw;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest wait for the threads at the start.
const START: Duration = Duration::from_secs(5);
/// Least time between two looks at the mount table, which may be long and change often. It is also the pause between
/// two checks whether the invalidation threads have ended.
const PAUSE: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
/// How often the mount table is read if the kernel does not report a change.
const TABLE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// The threads of a mount.
pub(crate) struct Threads {
    taker: JoinHandle<()>,
    teller: JoinHandle<()>,
    wake: Arc<OwnedFd>,
}

/// The parts of the file system that the threads need.
pub(crate) struct Surroundings {
    /// Mount point.
    pub(crate) at: PathBuf,
    /// Whether the file system is still mounted somewhere.
    pub(crate) is_mounted: Box<dyn Fn() -> bool + Send>,
    /// Names that are cached in the kernel.
    pub(crate) lent: Box<dyn Fn() -> Vec<LentName> + Send>,
    /// A clock that continues during suspend.
    pub(crate) now_ns: fn() -> u64,
    /// Tries on the root of the clone whether this kernel behaves as the threads need.
    pub(crate) trial: fn(&Arc<Lender>, &OwnedFd) -> Result<(), String>,
}

impl Threads {
    /// Starts the threads and waits until names can be cached. Returns the threads, and the reason if names cannot be
    /// cached.
    ///
    /// Errors: the reason why there are no such threads.
    pub(crate) fn start(lender: &Arc<Lender>, surroundings: Surroundings) -> Result<(Threads, Option<String>), String> {
        let Surroundings { at, is_mounted, lent, now_ns, trial } = surroundings;
        let say = |what: &'static str| move |e: Raw| format!("{what}: {e}");
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let table = rustix::fs::open(c"/proc/self/mountinfo", flags, Mode::empty()).map_err(say("mount table"))?;
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(say("eventfd"))?);
        let builder = |name: &str| std::thread::Builder::new().name(name.into());
        let (own, own_wake) = (lender.clone(), wake.clone());
        let taker = builder("fuse names take").spawn(move || {
            own.run(&at, &own_wake, now_ns, trial);
            // The descriptor is not in this thread's table.
            drop(own);
        });
        let taker = taker.map_err(|e| e.to_string())?;
        let (own, own_wake) = (lender.clone(), wake.clone());
        let tell = move || own.tell(&own_wake, &table, &*is_mounted, &*lent);
        let teller = match builder("fuse names").spawn(tell) {
            Ok(teller) => teller,
            Err(e) => {
                lender.end();
                let _ = taker.join();
                return Err(e.to_string());
            }
        };
        let threads = Threads { taker, teller, wake };
        let mut state = lender.state.lock();
        while state.phase == Phase::Starting {
            if lender.changed.wait_for(&mut state, START).timed_out() {
                // The thread ends when its call returns.
                state.refused = Some("the kernel does not answer".into());
                lender.set_phase(&mut state, Phase::Ended);
            }
        }
        let refused = state.refused.take();
        drop(state);
        if refused.is_some() {
            let _ = rustix::io::write(&*threads.wake, &1u64.to_ne_bytes());
        }
        Ok((threads, refused))
    }

    /// Ends the threads and waits for them, after the end of the connection.
    pub(crate) fn stop(self, lender: &Lender) {
        lender.end();
        let _ = rustix::io::write(&*self.wake, &1u64.to_ne_bytes());
        let _ = self.taker.join();
        let _ = self.teller.join();
    }
}

impl Lender {
    /// The first invalidation thread, which starts the lookup thread.
    fn run(
        self: &Arc<Self>,
        at: &Path,
        wake: &OwnedFd,
        now_ns: fn() -> u64,
        trial: fn(&Arc<Lender>, &OwnedFd) -> Result<(), String>,
    ) {
        let tid = self.own.enter();
        match self.prepare(at, wake, trial) {
            Ok((root, wake)) => self.serve(root, wake, tid, now_ns),
            Err(why) => {
                let mut state = self.state.lock();
                state.refused.get_or_insert(why);
                self.set_phase(&mut state, Phase::Ended);
            }
        }
        self.takers_end();
        self.own.leave_all();
    }

    fn prepare(
        self: &Arc<Self>,
        at: &Path,
        wake: &OwnedFd,
        trial: fn(&Arc<Lender>, &OwnedFd) -> Result<(), String>,
    ) -> Result<(OwnedFd, OwnedFd), String> {
        system::leave_signals().map_err(|e| format!("signals left to others: {e}"))?;
        let wake = system::leave_descriptors(wake).map_err(|e| format!("descriptors of its own: {e}"))?;
        let root = system::root_of_clone(at).map_err(|e| format!("a clone of the mount: {e}"))?;
        trial(self, &root)?;
        Ok((root, wake))
    }

    fn serve(self: &Arc<Self>, root: OwnedFd, wake: OwnedFd, tid: u32, now_ns: fn() -> u64) {
        let (root, wake) = (Arc::new(root), Arc::new(wake));
        let (own, own_root) = (self.clone(), root.clone());
        let walker = std::thread::Builder::new().name("fuse names lend".into()).spawn(move || {
            let tid = own.own.enter();
            own.walker.store(tid, SeqCst);
            own.run_walker(&own_root, now_ns);
            own.own.leave(tid);
        });
        let sizes: Vec<_> = (0..sizes::THREADS)
            .filter_map(|_| {
                let (own, own_root) = (self.clone(), root.clone());
                let run = move || own.sizes.run(&own_root);
                std::thread::Builder::new().name("fuse sizes".into()).spawn(run).ok()
            })
            .collect();
        let (own, own_root, own_wake) = (self.clone(), root.clone(), wake.clone());
        self.begins_mover();
        let run = move || own.run_mover(&own_root, &own_wake, true);
        if std::thread::Builder::new().name("fuse names move".into()).spawn(run).is_err() {
            self.end_movers();
        }
        let mut state = self.state.lock();
        state.takers = 1;
        if state.phase == Phase::Starting {
            match &walker {
                Ok(_) => self.set_phase(&mut state, Phase::On),
                Err(e) => {
                    state.refused = Some(e.to_string());
                    self.set_phase(&mut state, Phase::Ended);
                }
            }
        }
        drop(state);
        self.run_taker(&root, &wake, tid, true);
        let mut state = self.state.lock();
        while state.takers > 0 || self.has_movers(&state) {
            self.changed.wait(&mut state);
        }
        drop(state);
        self.takers_end();
        // Requests at the end of the file system are not those of the mount's own threads.
        self.own.leave_all();
        drop(root);
        self.sizes.end();
        sizes.into_iter().for_each(|thread| drop(thread.join()));
        if let Ok(walker) = walker {
            let _ = walker.join();
        }
    }

    /// The notifying thread: reports finished invalidations, and ends all threads when the file system is mounted
    /// nowhere any more.
    fn tell(
        self: &Arc<Self>,
        wake: &OwnedFd,
        table: &OwnedFd,
        is_mounted: &dyn Fn() -> bool,
        lent: &dyn Fn() -> Vec<LentName>,
    ) {
        let mut looked = false;
        loop {
            let mut fds = [PollFd::new(wake, PollFlags::IN), PollFd::new(table, PollFlags::PRI)];
            let (watched, most) = match self.in_phase(Phase::Ended) || looked {
                true => (1, &PAUSE),
                false => (2, &TABLE),
            };
            let polled = poll(&mut fds[..watched], Some(most));
            let woken = polled.is_ok() && fds[0].revents().contains(PollFlags::IN);
            if woken {
                let _ = rustix::io::read(wake, &mut [0u8; 8]);
            }
            let paused = std::mem::replace(&mut looked, false) && !woken;
            let only_woken = paused || (woken && fds[1].revents().is_empty());
            let (taken, is_over) = {
                let state = &mut *self.state.lock();
                (std::mem::take(&mut state.taken), state.phase == Phase::Ended && state.are_takers_over)
            };
            taken.into_iter().for_each(|done| done());
            if is_over {
                return;
            }
            looked = !only_woken;
            if looked && self.is_on() && !is_mounted() {
                let last = self.begin_to_end();
                let names = lent().into_iter().chain(last).collect();
                let own = self.clone();
                self.take(names, Box::new(move || own.end()));
            }
        }
    }
}
