//! The timeouts that answers carry in sole mode.
//!
//! Owns: for the request that each thread handles, the caching mode when it began, and a note (*loan*) if its answer
//! carries a timeout. Does not own: which mode is in force (the client).
//!
//! Invariant: a loan begins before the timeout is chosen and lasts until the answer is written. So the client knows
//! every answer with a timeout that is on its way to the kernel.

use super::kernel_view::Since;
use amphi_client::{Client, Lending, Rule};
use std::cell::RefCell;
use std::time::Duration;

#[derive(Default)]
struct Present {
    rule: Rule,
    since: Since,
    lending: Option<Lending>,
}

thread_local! {
    /// The request that this thread handles at present.
    static PRESENT: RefCell<Present> = RefCell::default();
}

/// It has to be called before this thread begins to handle a request, at `since`.
pub(crate) fn begins(client: &Client, since: Since) {
    PRESENT.with_borrow_mut(|present| *present = Present { rule: client.rule(), since, lending: None });
}

/// When the present request began.
pub(crate) fn since() -> Since {
    PRESENT.with_borrow(|present| present.since)
}

/// The timeout that the answer to the present request may carry.
pub(crate) fn ttl(client: &Client) -> Duration {
    PRESENT.with_borrow_mut(|present| {
        if present.lending.is_none() {
            present.lending = client.lend(present.rule);
        }
        present.lending.as_ref().map_or(Duration::ZERO, Lending::life)
    })
}

/// Returns whether no directory was changed by this mount since the present request began.
pub(crate) fn knows_directories(client: &Client) -> bool {
    PRESENT.with_borrow(|present| client.lends_directories(present.rule))
}

/// It has to be called when the answer was written.
pub(crate) fn answered() {
    drop(PRESENT.take());
}
