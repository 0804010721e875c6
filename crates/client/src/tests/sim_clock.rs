//! The client's clock in the simulated environment, for tests with real servers.

use crate::api::Clock;
use amphi_env::{Env, SimEnv};
use amphi_types::Timespec;
use std::cell::RefCell;

/// Secret of the simulated cluster.
pub(super) const KEY: &[u8] = b"the secret of the simulated cluster";

thread_local! {
    static TIME: RefCell<Option<SimEnv>> = const { RefCell::new(None) };
}

/// The time of the environment of `with_clock`.
pub(super) struct SimClock;

impl Clock for SimClock {
    fn now_ns(&self) -> u64 {
        TIME.with(|t| t.borrow().as_ref().map_or(0, |env| env.now().0))
    }
    fn wall(&self) -> Timespec {
        TIME.with(|t| t.borrow().as_ref().map_or(Timespec::default(), |env| env.wall()))
    }
}

/// Runs `f` with the time of `env`.
pub(super) fn with_clock<T>(env: &SimEnv, f: impl FnOnce() -> T) -> T {
    TIME.with(|t| *t.borrow_mut() = Some(env.clone()));
    let value = f();
    TIME.with(|t| t.borrow_mut().take());
    value
}
