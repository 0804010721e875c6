//! What the kernel may keep of an answer, while this mount is alone.
//!
//! Owns: noting, for the request that a thread handles, the rule under which it asks and the loan that its answer
//! carries. Invariant: a loan is held from before the time-out is chosen until the answer has been written, so that the
//! client knows of every answer with a time-out that the kernel has yet to read.

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
    /// The request that this thread handles.
    static PRESENT: RefCell<Present> = RefCell::default();
}

/// A request begins on this thread, at `since`.
pub(crate) fn begins(client: &Client, since: Since) {
    PRESENT.with_borrow_mut(|present| *present = Present { rule: client.rule(), since, lending: None });
}

/// When the present request began.
pub(crate) fn since() -> Since {
    PRESENT.with_borrow(|present| present.since)
}

/// How long the kernel may keep what the answer to the present request shows.
pub(crate) fn ttl(client: &Client) -> Duration {
    PRESENT.with_borrow_mut(|present| {
        if present.lending.is_none() {
            present.lending = client.lend(present.rule);
        }
        present.lending.as_ref().map_or(Duration::ZERO, Lending::life)
    })
}

/// Whether no directory was changed since the present request began.
pub(crate) fn knows_directories(client: &Client) -> bool {
    PRESENT.with_borrow(|present| client.lends_directories(present.rule))
}

/// The answer has been written.
pub(crate) fn answered() {
    drop(PRESENT.take());
}
