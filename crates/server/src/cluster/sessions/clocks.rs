//! Clocks must not differ too much, because times of files come from the clocks of mounts and of servers.

use amphi_types::Timespec;
use amphi_wire::{Hello, Role};

/// How far the clock of a new mount or server may be away from this server's, s.
const APART_S: i64 = 300;

/// Checks the clock of a client that connects for the first time. A client that was connected before is not checked
/// again, because its clock may have been set since.
///
/// Errors: a line of text for the operator.
pub(super) fn agree(hello: &Hello, here: Timespec) -> Result<(), String> {
    let ahead = hello.clock.sec - here.sec;
    if hello.role == Role::Admin || hello.last_boot != 0 || ahead.abs() <= APART_S {
        return Ok(());
    }
    let (by, way) = (shown(ahead.abs()), if ahead > 0 { "ahead of" } else { "behind" });
    Err(format!(
        "the clock of {} is {by} {way} this server's; times of files would be wrong: set the clocks (for instance by NTP) and try again",
        hello.name
    ))
}

/// A span of time for output.
fn shown(seconds: i64) -> String {
    match seconds {
        s if s >= 2 * 86_400 => format!("{} days", s / 86_400),
        s if s >= 2 * 3_600 => format!("{} hours", s / 3_600),
        s => format!("{} minutes", s / 60),
    }
}
