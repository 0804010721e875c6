//! The trial at the start of a mount: whether this kernel caches and invalidates names as the threads need.
//!
//! Owns: the names of the trial, which no program has a reason to look up, their answers during the trial, and its
//! steps. Does not own: the consequences of the result (`threads`).

use super::super::system;
use super::taker::{Take, Taking};
use super::{Done, Lender};
use amphi_client::{LentName, NameShows};
use amphi_types::{Ino, Kind};
use rustix::fs::{Mode, mkdirat};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Name of the trial's directory, in the root.
const DIR: &[u8] = b".amphi probes whether the kernel gives names back";
/// Inode numbers of the trial, which no target uses.
const DIR_NODE: Ino = Ino(0x7fff << 48 | 1);
const FILE_NODE: Ino = Ino(0x7fff << 48 | 2);
/// Names in that directory: a file; a name that does not exist; a name that is looked up while a directory is being
/// made; and the name of that directory, whose answer is delayed.
const FILE: &[u8] = b"file";
const NONE: &[u8] = b"none";
const WAITS: &[u8] = b"waits";
const KEPT_BACK: &[u8] = b"kept back";
/// An answer is delayed for at most this many checks.
const LOOKS_MAX: u32 = 1000;

/// The present answers to the names of the trial.
#[derive(Default)]
pub(crate) struct Trial {
    lookups: u32,
    life: Duration,
    is_there: bool,
    /// An answer is being delayed.
    keeps_back: bool,
    is_over: bool,
}

impl Lender {
    /// The answer to a lookup during the trial: what the name shows, and its timeout. `None`: the name does not belong
    /// to the trial. The function may wait.
    pub(crate) fn tried(&self, dir: Ino, name: &[u8]) -> Option<(NameShows, Duration)> {
        let mut state = self.state.lock();
        let shows = match (dir, name) {
            (dir, DIR) if dir == self.top.0 && state.trial.is_there => NameShows::Directory(DIR_NODE),
            (DIR_NODE, FILE) => NameShows::Other(FILE_NODE, Kind::File),
            (DIR_NODE, KEPT_BACK) => {
                state.trial.keeps_back = true;
                while !state.trial.is_over {
                    self.changed.wait(&mut state);
                }
                return None;
            }
            (DIR_NODE, NONE) => NameShows::Nothing,
            (dir, DIR) if dir == self.top.0 => NameShows::Nothing,
            _ => return None,
        };
        state.trial.lookups += 1;
        let life = if state.trial.is_there { state.trial.life } else { Duration::ZERO };
        Some((shows, life))
    }

    /// Returns whether this is the directory of the trial.
    pub(crate) fn is_of_trial(&self, ino: Ino) -> bool {
        ino == DIR_NODE
    }
}

/// Runs the trial.
///
/// Errors: how this kernel behaves differently.
pub(crate) fn trial(lender: &Arc<Lender>, root: &OwnedFd) -> Result<(), String> {
    let tried = names(lender, root);
    set(lender, false, Duration::ZERO);
    let left = system::step(root, DIR);
    tried?;
    if left.is_ok() { Err("a name that is gone is still there".into()) } else { Ok(()) }
}

fn set(lender: &Lender, is_there: bool, life: Duration) {
    let trial = &mut lender.state.lock().trial;
    (trial.is_there, trial.life) = (is_there, life);
}

/// Makes a call, and checks that it causes exactly `asked` lookups of its name.
fn asks<T>(lender: &Lender, what: &str, asked: u32, call: impl FnOnce() -> T) -> Result<T, String> {
    let lookups = || lender.state.lock().trial.lookups;
    let before = lookups();
    let result = call();
    let asks = lookups() - before;
    if asks == asked { Ok(result) } else { Err(format!("{what}: it was asked for {asks} times")) }
}

fn names(lender: &Arc<Lender>, root: &OwnedFd) -> Result<(), String> {
    let long = Duration::from_secs(1000);
    let look = |what: &str, asked: u32| {
        let found = asks(lender, what, asked, || system::step(root, DIR))?.map_err(|e| format!("{what}: {e}"))?;
        let is_it = system::inode(&found) == Some(DIR_NODE);
        is_it.then_some(found).ok_or_else(|| format!("{what}: it shows something else"))
    };
    set(lender, true, Duration::ZERO);
    look("a new name", 1)?;
    look("a name without life", 1)?;
    set(lender, true, long);
    look("a name that is being lent", 1)?;
    look("a name that was lent", 0)?;
    set(lender, true, Duration::ZERO);
    system::by_handle(root, DIR_NODE).map_err(|e| format!("a directory by its handle: {e}"))?;
    let dir = Arc::new(look("a name that was taken back", 1)?);

    let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    for (what, name, shows) in
        [("file", FILE, NameShows::Other(FILE_NODE, Kind::File)), ("absent name", NONE, NameShows::Nothing)]
    {
        let look = |when: &str, asked: u32| {
            let what = format!("{what} that {when}");
            let found = asks(lender, &what, asked, || system::look(&dir, name).is_ok())?;
            if found == (name == FILE) { Ok(()) } else { Err(format!("{what}: it shows something else")) }
        };
        set(lender, true, long);
        look("is being lent", 1)?;
        look("was lent", 0)?;
        set(lender, true, Duration::ZERO);
        take(lender, root, tid, LentName { dir: DIR_NODE, name: name.into(), shows });
        look("was taken back", 1)?;
    }
    waits(lender, &dir)
}

/// Invalidates a name as an invalidation thread does.
fn take(lender: &Lender, root: &OwnedFd, tid: u32, lent: LentName) {
    let take = Take { names: [lent.clone()].into(), done: None::<Done> };
    lender.state.lock().taking.insert(tid, Taking::new(take));
    lender.take_name(root, tid, &lent);
    lender.state.lock().taking.remove(&tid);
}

/// Checks that a thread which waits for the lock of a directory, in which another one is being made, is recognised as
/// waiting.
fn waits(lender: &Arc<Lender>, dir: &Arc<OwnedFd>) -> Result<(), String> {
    let own = |call: Box<dyn FnOnce() + Send>| {
        let own = lender.clone();
        let (sender, receiver) = std::sync::mpsc::channel();
        let thread = std::thread::Builder::new().name("fuse names try".into()).spawn(move || {
            let tid = own.own.enter();
            let _ = sender.send(tid);
            call();
            own.own.leave(tid);
        });
        let thread = thread.map_err(|e| e.to_string())?;
        let tid = receiver.recv().map_err(|e| e.to_string())?;
        Ok::<_, String>((thread, tid))
    };
    lender.state.lock().trial.is_over = false;
    let (at, at2) = (dir.clone(), dir.clone());
    let (maker, maker_tid) = own(Box::new(move || {
        let _ = mkdirat(&*at, KEPT_BACK, Mode::RWXU);
    }))?;
    let seen = |what: &dyn Fn() -> bool| {
        (0..LOOKS_MAX).any(|_| {
            let seen = what();
            if !seen {
                pause(lender);
            }
            seen
        })
    };
    // When its request has arrived, the thread holds the lock.
    let has_lock = seen(&|| lender.state.lock().trial.keeps_back);
    let looker = own(Box::new(move || drop(system::look(&at2, WAITS))));
    let waits = looker.as_ref().is_ok_and(|(_, tid)| seen(&|| system::waits_for_directory(*tid).is_some()));
    let maker_waits = system::waits_for_directory(maker_tid).is_some();
    lender.state.lock().trial.is_over = true;
    lender.changed.notify_all();
    let _ = maker.join();
    let _ = looker?.0.join();
    match (has_lock, waits, maker_waits) {
        (true, true, false) => Ok(()),
        (false, ..) => Err("a directory cannot be made in the trial".into()),
        _ => Err("who waits for a directory cannot be told".into()),
    }
}

fn pause(lender: &Lender) {
    let mut state = lender.state.lock();
    lender.changed.wait_for(&mut state, Duration::from_millis(1));
}
