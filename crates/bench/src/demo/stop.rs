//! The wish to end a demo before its time.
//!
//! Owns: the signals for it. Does not own: the cleanup then: every step ends with an error, and processes and files are
//! removed as after any other one.

use amphi_host::failure::{During, Failure, Outcome};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Whether the demo has been requested to end.
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// From now on signals that would end a program are only recorded. One more of them changes nothing.
    pub fn on_signals() -> Outcome<Stop> {
        let stop = Stop::default();
        for signal in amphi_host::signals::ending_signals() {
            signal_hook::flag::register(signal, stop.0.clone()).during(|| "catch signals".into())?;
        }
        Ok(stop)
    }

    /// Whether it is to end.
    pub fn is_wanted(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Errors: it is to end.
    pub fn check(&self) -> Outcome {
        if self.is_wanted() { Err(Failure::broken("stopped by a signal")) } else { Ok(()) }
    }
}
