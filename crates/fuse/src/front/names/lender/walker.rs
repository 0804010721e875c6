//! The lookup thread (`walker`): makes the kernel cache names, one component of a path with each call.
//!
//! Owns: the loop of this thread, and its call under way. Does not own: the answers to its lookups (`client_fs/names`).

use super::super::system;
use super::taker::Take;
use super::{LATE_NS, LOOK, LOOKS, Lender, Phase, is_directory};
use amphi_client::{LentName, NameShows};
use parking_lot::MutexGuard;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::SeqCst;

/// The lookup thread's call under way.
pub(super) struct Walking {
    pub(super) step: LentName,
    /// When the call was answered with a timeout.
    pub(super) lent_ns: Option<u64>,
    /// The answer with the timeout was written.
    pub(super) written: bool,
}

impl Lender {
    pub(super) fn run_walker(&self, root: &OwnedFd, now_ns: fn() -> u64) {
        let mut state = self.state.lock();
        // The lookup thread may be started before the trial has ended.
        while state.phase != Phase::Ended {
            match state.walks.pop_front().filter(|_| state.phase == Phase::On) {
                Some(path) => {
                    drop(state);
                    self.walk_path(root, path, now_ns);
                    state = self.state.lock();
                }
                None => self.to_walk.wait(&mut state),
            }
        }
    }

    fn walk_path(&self, root: &OwnedFd, path: Vec<LentName>, now_ns: fn() -> u64) {
        let mut at: Option<OwnedFd> = None;
        for step in path {
            let (name, shows, is_directory) = (step.name.clone(), step.shows, is_directory(&step));
            self.state.lock().walking = Some(Walking { step, lent_ns: None, written: false });
            let dir = at.as_ref().unwrap_or(root);
            let opened = if is_directory { system::step(dir, &name) } else { system::look(dir, &name) };
            self.walked(now_ns());
            match (opened, shows) {
                (Ok(dir), NameShows::Directory(ino)) if system::inode(&dir) == Some(ino) => at = Some(dir),
                _ => return,
            }
        }
    }

    /// Called when the lookup thread's call has ended at `now_ns`.
    pub(super) fn walked(&self, now_ns: u64) {
        let mut state = self.state.lock();
        if let Some(Walking { step, lent_ns: Some(lent_ns), .. }) = state.walking.take()
            && now_ns > lent_ns + LATE_NS
        {
            // The call returned late, so the timeout began late.
            state.takes.push_back(Take { names: [step].into(), done: None });
            self.to_take.notify_one();
        }
        self.changed.notify_all();
    }

    /// Waits until the answer that the lookup thread got for a name is in force, or was dropped.
    pub(super) fn wait_for_walker(&self, lent: &LentName) {
        let (mut seen, mut looks) = (None, 0);
        let mut state = self.state.lock();
        while let Some(Walking { step, lent_ns: Some(_), written }) = &state.walking
            && step.dir == lent.dir
            && step.name == lent.name
        {
            let is_written = *written;
            if self.changed.wait_for(&mut state, LOOK).timed_out() && is_written {
                let walker = self.walker.load(SeqCst);
                let waits = MutexGuard::unlocked(&mut state, || system::waits_for_directory(walker));
                looks = if waits.is_some() && waits == seen { looks + 1 } else { 0 };
                if looks >= LOOKS {
                    return;
                }
                seen = waits;
            }
        }
    }
}
