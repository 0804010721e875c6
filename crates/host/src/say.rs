//! Messages of a program to people and to waiting processes.

use std::io::Write;

/// A line for people on standard error. It is not required that anybody reads it.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Reports the error that ends the program.
pub fn say_error(text: &str) {
    say(&format!("amphi: {text}"));
}

/// Reports that everything is up, and its address or mount point, to waiting processes: also to the service manager.
pub fn say_ready(what: impl std::fmt::Display) {
    crate::notify::ready(&what.to_string());
    let mut out = std::io::stdout();
    let _ = writeln!(out, "ready {what}").and_then(|()| out.flush());
}
