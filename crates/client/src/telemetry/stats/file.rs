//! Counters of one file: requests and bytes by reason, and the messages between this mount and the servers about it.
//!
//! Owns: these counters, and the list of open files whose counts were not added yet. Does not own: which file a message
//! is about (`conn::messages`).

use super::{ByReason, Count, Ledger, NAMES, Portrait, Way};
use amphi_types::limits::BLOCK;
use parking_lot::Mutex;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

macro_rules! events {
    ($($name:ident = $text:literal, $help:literal;)*) => {
        /// Events that are counted for a file beside its requests; the names are those of the mount's counters.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum FileEvent { $(#[doc = $help] $name,)* }
        const EVENTS: &[&str] = &[$($text,)*];
    };
}

events! {
    Call = "server_calls", "A message was sent for it alone.";
    Batch = "batch_requests", "A message was sent for it together with other files, or for several short runs of it.";
    LockEnqueue = "lock_enqueue", "Of those for it alone: a lock was asked for, ahead or for a group too.";
    LockCallback = "lock_callback", "A server asked for one of its locks back.";
    Contended = "contended_told", "A server said that others want it too.";
}

/// Counters of a file.
pub(crate) struct FileStats {
    by_reason: ByReason,
    events: [AtomicU64; EVENTS.len()],
    portrait: Portrait,
    /// Time that calls have waited for locks of the file, ns.
    lock_wait_ns: AtomicU64,
    /// The cache that serves the reads of the open file that was opened last, and the reason: 1 plus the index of the
    /// mount's counter; 0 if there was none.
    reads_by: AtomicUsize,
    /// The ledgers of the file's open files.
    ledgers: Mutex<Vec<Arc<Ledger>>>,
    /// The last result of `heat`, and the work of the file at that time.
    heat: Mutex<(u64, u64)>,
}

/// The activity of a file so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FileSums {
    /// Requests and bytes of reads.
    pub(crate) reads: (u64, u64),
    /// Requests and bytes of writes.
    pub(crate) writes: (u64, u64),
    /// Time that calls have waited for locks of the file, ns.
    pub(crate) lock_wait_ns: u64,
    /// How often a server asked for one of the file's locks back.
    pub(crate) callbacks: u64,
    /// How often a server reported that other mounts want the file too.
    pub(crate) contended: u64,
}

impl FileSums {
    /// Bytes of effort: a request counts as a block, and so does each microsecond that was waited.
    fn effort(&self) -> u64 {
        let waits = self.lock_wait_ns / 1000 + self.reads.0 + self.writes.0;
        self.reads.1.saturating_add(self.writes.1).saturating_add(waits.saturating_mul(BLOCK))
    }
}

impl FileStats {
    pub(crate) fn new() -> FileStats {
        FileStats {
            by_reason: ByReason::default(),
            events: Default::default(),
            portrait: Portrait::default(),
            lock_wait_ns: AtomicU64::new(0),
            reads_by: AtomicUsize::new(0),
            ledgers: Mutex::default(),
            heat: Mutex::default(),
        }
    }

    /// The sums of all requests until now.
    pub(crate) fn sums(&self) -> FileSums {
        self.book();
        FileSums {
            reads: self.by_reason.sum(Way::Read),
            writes: self.by_reason.sum(Way::Write),
            lock_wait_ns: self.lock_wait_ns.load(Relaxed),
            callbacks: self.events[FileEvent::LockCallback as usize].load(Relaxed),
            contended: self.events[FileEvent::Contended as usize].load(Relaxed),
        }
    }

    /// The work of the file since the last call, and half of its heat before that; so the heat of files that are not
    /// used fades.
    pub(crate) fn heat(&self, sums: &FileSums) -> u64 {
        let mut heat = self.heat.lock();
        let effort = sums.effort();
        *heat = (heat.0 / 2 + effort.saturating_sub(heat.1), effort);
        heat.0
    }

    pub(crate) fn count(&self, event: FileEvent) {
        self.events[event as usize].fetch_add(1, Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn count_of(&self, event: FileEvent) -> u64 {
        self.events[event as usize].load(Relaxed)
    }

    /// Adds an open file whose requests count from now on.
    pub(crate) fn enter(&self, ledger: &Arc<Ledger>) {
        self.ledgers.lock().push(ledger.clone());
    }

    /// Called when the open file is closed.
    pub(crate) fn leave(&self, ledger: &Arc<Ledger>) {
        let mut ledgers = self.ledgers.lock();
        if let Some(at) = ledgers.iter().position(|l| Arc::ptr_eq(l, ledger)) {
            ledgers.swap_remove(at);
        }
        ledger.book(&self.by_reason, &self.portrait);
    }

    /// Adds the counts of the open files until now, here and to their jobs.
    pub(crate) fn book(&self) {
        self.ledgers.lock().iter().for_each(|ledger| ledger.book(&self.by_reason, &self.portrait));
    }

    /// Called when a call has waited for a lock for this long, ns.
    pub(crate) fn waited_for_lock(&self, ns: u64) {
        self.lock_wait_ns.fetch_add(ns, Relaxed);
    }

    /// Notes who serves the reads of an open file, and why, as the mount's counter of it.
    pub(crate) fn reads_served_by(&self, who: Count) {
        self.reads_by.store(who as usize + 1, Relaxed);
    }

    /// A summary of the file's requests, as JSON (`user.amphi.portrait`).
    pub(crate) fn portrait_json(&self) -> String {
        self.book();
        let (waited, reads_by) = (self.lock_wait_ns.load(Relaxed), self.reads_by.load(Relaxed));
        let reads_by = reads_by.checked_sub(1).map_or("", |at| NAMES[at].0);
        let portrait = self.portrait.json();
        format!("{{{portrait},\"lock_wait_ns\":{waited},\"reads_served_by\":\"{reads_by}\"}}")
    }

    /// Returns whether nothing was counted. Counts that open files have not added yet are not included.
    pub(crate) fn is_empty(&self) -> bool {
        self.events().next().is_none() && self.by_reason.is_empty()
    }

    fn events(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counted = EVENTS.iter().zip(&self.events).map(|(name, n)| (*name, n.load(Relaxed)));
        counted.filter(|(_, n)| *n > 0)
    }

    /// Lines `read_direct_large 3 requests 25165824 bytes` and `lock_callback 2 requests`, without what is zero.
    /// `servers`: bytes that servers have accepted and not synced, if the servers were asked.
    pub(crate) fn text(&self, dirty_bytes: u64, servers: Option<(u64, u64)>) -> String {
        self.book();
        let mut out = String::new();
        for (name, requests, bytes) in self.by_reason.rows() {
            let _ = writeln!(out, "{name} {requests} requests {bytes} bytes");
        }
        for (name, n) in self.events() {
            let _ = writeln!(out, "{name} {n} requests");
        }
        let (accepted, unsynced) = servers.unwrap_or_default();
        let unstable = [("dirty", dirty_bytes), ("accepted", accepted), ("unsynced", unsynced)];
        for (name, bytes) in unstable.into_iter().filter(|(_, bytes)| *bytes > 0) {
            let _ = writeln!(out, "{name} {bytes} bytes");
        }
        out
    }

    /// The counters of the file as JSON.
    pub(crate) fn json(&self, dirty_bytes: u64, servers: Option<(u64, u64)>) -> String {
        self.book();
        let mut rows: Vec<String> = self.by_reason.rows().iter().map(row_json).collect();
        rows.extend(self.events().map(|(name, n)| format!("\"{name}\":{{\"requests\":{n}}}")));
        let servers = servers.map_or(String::new(), |(accepted, unsynced)| {
            format!(",\"accepted_bytes\":{accepted},\"unsynced_bytes\":{unsynced}")
        });
        format!("{{\"counters\":{{{}}},\"dirty_bytes\":{dirty_bytes}{servers}}}", rows.join(","))
    }
}

/// `"read_direct_large":{"requests":3,"bytes":25165824}`.
pub(crate) fn row_json((name, requests, bytes): &(String, u64, u64)) -> String {
    format!("\"{name}\":{{\"requests\":{requests},\"bytes\":{bytes}}}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::decision::Reason;

    /// Goal: the heat of a file follows its present use, not its use in all the time before. Method: a burst of
    /// requests to one file, then looks while another file is used and while no file is used.
    #[test]
    fn heat_fades() {
        let (old, new) = (FileStats::new(), FileStats::new());
        let heat = |file: &FileStats| file.heat(&file.sums());
        old.by_reason.add(Way::Write, Reason::DirectLarge, 1, 8 << 20);
        assert_eq!((heat(&old), heat(&new)), ((8 << 20) + BLOCK, 0));
        for _ in 0..4 {
            new.by_reason.add(Way::Read, Reason::CacheHit, 1, 1 << 20);
            heat(&old);
            heat(&new);
        }
        assert!(heat(&new) > heat(&old), "{:?} {:?}", new.heat, old.heat);
        new.waited_for_lock(3_000_000);
        assert_eq!(new.sums().lock_wait_ns, 3_000_000);
        assert!(heat(&new) > 3000 * BLOCK, "waits count as well");
        for _ in 0..64 {
            heat(&new);
        }
        assert_eq!(heat(&new), 0);
    }
}
