//! The failure of a command: one clear line for people, and an exit code.
//!
//! Code 2: the request or its surroundings are wrong (bad value, missing mount point, wrong version, locked folder),
//! and nothing was changed. Code 1: something failed while working.

use std::fmt;

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    /// Exit code.
    pub code: u8,
    /// The event, its subject, and advice.
    pub text: String,
}

impl Failure {
    /// The request or its surroundings are wrong.
    pub fn refused(text: impl Into<String>) -> Failure {
        Failure { code: 2, text: text.into() }
    }

    /// The failure after steps that succeeded, so it is no longer true that nothing was changed.
    pub fn behind(self, done: usize) -> Failure {
        if done == 0 { self } else { Failure { code: 1, text: self.text } }
    }

    /// Something failed while working.
    pub fn broken(text: impl Into<String>) -> Failure {
        Failure { code: 1, text: text.into() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Outcome of a command.
pub type Outcome<T = ()> = Result<T, Failure>;

/// Adds the action during which an I/O error occurred, and exit code 1.
pub trait During<T> {
    /// `what` is a phrase such as `read /x/y`.
    fn during(self, what: impl FnOnce() -> String) -> Outcome<T>;
}

impl<T, E: fmt::Display> During<T> for Result<T, E> {
    fn during(self, what: impl FnOnce() -> String) -> Outcome<T> {
        self.map_err(|e| Failure::broken(format!("cannot {}: {e}", what())))
    }
}
