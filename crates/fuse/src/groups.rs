//! `GroupCache`: supplementary groups and capabilities of callers, which FUSE requests do not carry.
//!
//! Owns: a bounded cache of the data in `/proc/<tid>/status`. Does not own: the effect of a right (client and server).
//!
//! Invariants: an entry is valid only for its thread with that user and group, and for `LIFE` at most. When a request
//! is refused, the rights are read anew (`GroupCache::again`). So rights that a process has just gained count at once,
//! and rights that it gave up stop counting within `LIFE`. Capabilities count only in the user namespace of the mount,
//! because the capabilities of a container are for its own files.
//!
//! The number behind the cache: reading the file costs about 12 us, as much as a whole request.

use amphi_types::{Caps, limits};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// How long the rights of a thread stay valid in the cache.
pub const LIFE: Duration = Duration::from_secs(1);
/// Most threads remembered; the table is emptied when it is full.
const ENTRIES_MAX: usize = 4096;

/// Rights of a thread beyond its user and group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Capabilities that the mount can vouch for.
    pub caps: Caps,
}

/// A thread as a request names it: its id, user and group.
type Who = (u32, u32, u32);

/// Rights by thread, user and group.
#[derive(Default)]
pub struct GroupCache {
    entries: Mutex<BTreeMap<Who, (u64, Rights)>>,
}

impl GroupCache {
    /// The rights of thread `tid`, which acts as user `uid` and group `gid`.
    pub fn rights(&self, tid: u32, uid: u32, gid: u32) -> Rights {
        let who = (tid, uid, gid);
        let now_ns = crate::clock::monotonic_ns();
        if let Some((read_ns, rights)) = self.entries.lock().get(&who)
            && now_ns.saturating_sub(*read_ns) < LIFE.as_nanos() as u64
        {
            return rights.clone();
        }
        self.read(who, now_ns)
    }

    /// The present rights of a thread whose request was refused with the cached ones.
    pub fn again(&self, tid: u32, uid: u32, gid: u32) -> Rights {
        self.read((tid, uid, gid), crate::clock::monotonic_ns())
    }

    fn read(&self, who: Who, now_ns: u64) -> Rights {
        let (tid, uid, _) = who;
        let rights = look(tid, uid);
        if tid != 0 {
            let mut entries = self.entries.lock();
            if entries.len() >= ENTRIES_MAX {
                entries.clear();
            }
            entries.insert(who, (now_ns, rights.clone()));
            assert!(entries.len() <= ENTRIES_MAX, "the rights of {} threads are kept", entries.len());
        }
        rights
    }
}

/// The rights of a thread that cannot be read, because it has gone or is in another process name space. Root counts as
/// privileged. Other users have no further rights.
fn unseen(uid: u32) -> Rights {
    Rights { groups: Vec::new(), caps: if uid == 0 { Caps::ALL } else { Caps::NONE } }
}

fn look(tid: u32, uid: u32) -> Rights {
    if tid == 0 {
        return unseen(uid);
    }
    let Ok(status) = std::fs::read(format!("/proc/{tid}/status")) else { return unseen(uid) };
    let mut rights = parse_status(&status);
    if rights.caps != Caps::NONE && !is_in_own_user_space(tid) {
        rights.caps = Caps::NONE;
    }
    rights
}

/// Returns whether a thread is in the user name space of this process.
fn is_in_own_user_space(tid: u32) -> bool {
    static OWN: OnceLock<Option<PathBuf>> = OnceLock::new();
    let own = OWN.get_or_init(|| std::fs::read_link("/proc/self/ns/user").ok());
    // Without user name spaces, no thread is in another one.
    own.as_ref().is_none_or(|own| std::fs::read_link(format!("/proc/{tid}/ns/user")).is_ok_and(|other| other == *own))
}

fn parse_status(status: &[u8]) -> Rights {
    let text = String::from_utf8_lossy(status);
    let line = |name: &str| text.lines().find_map(|l| l.strip_prefix(name)).unwrap_or("");
    let groups = line("Groups:").split_ascii_whitespace().filter_map(|g| g.parse().ok()).take(limits::GROUPS_MAX);
    let caps = u64::from_str_radix(line("CapEff:").trim(), 16).map_or(Caps::NONE, Caps::from_linux);
    Rights { groups: groups.collect(), caps }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(status: &[u8]) -> Vec<u32> {
        parse_status(status).groups
    }

    /// Goal: the lines are found and odd content harms nothing. Method: examples.
    #[test]
    fn status_lines() {
        assert_eq!(groups(b"Name:\tx\nGroups:\t4 24 1000 \nNSpid: 1\n"), vec![4, 24, 1000]);
        assert_eq!(groups(b"Groups:\tx 1\n"), vec![1]);
        assert_eq!(groups(b"\xff\xfe"), Vec::<u32>::new());
        let caps = |text: &str| parse_status(format!("CapEff:\t{text}\n").as_bytes()).caps;
        assert_eq!(caps("000001ffffffffff"), Caps::ALL);
        assert_eq!(caps("0000000000000004"), Caps::DAC_READ_SEARCH);
        assert_eq!(caps("0000000000000009"), Caps::CHOWN.and(Caps::FOWNER));
        assert_eq!((caps("0000000000000000"), caps("zz"), caps("")), (Caps::NONE, Caps::NONE, Caps::NONE));
    }

    /// Goal: this thread's own rights are read, and remembered only for the user and group of its requests. If a thread
    /// cannot be inspected, it has rights only if it belongs to the super-user. Method: this process, and a thread id
    /// that does not exist.
    #[test]
    fn rights_of_threads() {
        let cache = GroupCache::default();
        let tid = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        let own = cache.again(tid, 1, 1);
        assert_eq!(cache.rights(tid, 1, 1), own);
        assert_eq!(own, parse_status(&std::fs::read("/proc/thread-self/status").expect("status")));
        assert_eq!(cache.entries.lock().keys().copied().collect::<Vec<_>>(), [(tid, 1, 1)]);
        assert_eq!(cache.rights(0, 7, 7), Rights::default());
        assert_eq!(cache.rights(u32::MAX, 7, 7), Rights::default());
        assert_eq!(cache.rights(0, 0, 0).caps, Caps::ALL);
    }
}
