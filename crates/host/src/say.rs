//! What a program says to people and to those who wait for it.

use std::io::Write;

/// A line for people on standard error. Nobody has to be there to read it.
pub fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Says what ends the program.
pub fn say_error(text: &str) {
    say(&format!("amphi: {text}"));
}

/// Says that everything is up, and what there is to use, to whoever waits for it: also to the service manager.
pub fn say_ready(what: impl std::fmt::Display) {
    crate::notify::ready(&what.to_string());
    let mut out = std::io::stdout();
    let _ = writeln!(out, "ready {what}").and_then(|()| out.flush());
}
