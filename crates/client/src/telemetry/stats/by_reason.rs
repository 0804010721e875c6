//! Requests and bytes by way and reason in one structure: of an open file, a file or a job.

use super::{REASONS, Way};
use crate::policy::decision::Reason;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Default)]
struct Cell {
    requests: AtomicU64,
    bytes: AtomicU64,
}

/// Requests and bytes by way and reason.
#[derive(Default)]
pub(crate) struct ByReason([[Cell; REASONS]; 2]);

/// The counters that are not zero: name, requests, bytes.
pub(crate) type Rows = Vec<(String, u64, u64)>;

impl ByReason {
    pub(crate) fn add(&self, way: Way, reason: Reason, requests: u64, bytes: u64) {
        let cell = &self.0[way as usize][reason as usize];
        cell.requests.fetch_add(requests, Relaxed);
        cell.bytes.fetch_add(bytes, Relaxed);
    }

    /// The sum of all requests and bytes of one way.
    pub(super) fn sum(&self, way: Way) -> (u64, u64) {
        let cells = self.0[way as usize].iter().map(|cell| (cell.requests.load(Relaxed), cell.bytes.load(Relaxed)));
        cells.fold((0, 0), |sum, cell| (sum.0 + cell.0, sum.1 + cell.1))
    }

    /// Moves everything to each of `to`.
    pub(super) fn move_to(&self, to: [&ByReason; 2]) {
        for (way, reason) in all() {
            let cell = &self.0[way as usize][reason as usize];
            // A request may be half counted.
            if cell.requests.load(Relaxed) > 0 || cell.bytes.load(Relaxed) > 0 {
                let (requests, bytes) = (cell.requests.swap(0, Relaxed), cell.bytes.swap(0, Relaxed));
                to.iter().for_each(|t| t.add(way, reason, requests, bytes));
            }
        }
    }

    pub(crate) fn reset(&self) {
        for cell in self.0.iter().flatten() {
            cell.requests.store(0, Relaxed);
            cell.bytes.store(0, Relaxed);
        }
    }

    /// Returns whether nothing was counted.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().flatten().all(|cell| cell.requests.load(Relaxed) == 0)
    }

    pub(crate) fn rows(&self) -> Rows {
        let mut rows = Vec::new();
        for (way, reason) in all() {
            let cell = &self.0[way as usize][reason as usize];
            let (requests, bytes) = (cell.requests.load(Relaxed), cell.bytes.load(Relaxed));
            if requests > 0 {
                let word = if way == Way::Read { "read" } else { "write" };
                rows.push((format!("{word}_{}", reason.name()), requests, bytes));
            }
        }
        rows
    }
}

fn all() -> impl Iterator<Item = (Way, Reason)> {
    [Way::Read, Way::Write].into_iter().flat_map(|way| Reason::ALL.iter().map(move |reason| (way, *reason)))
}
