//! Levels of protection of a connection.
//!
//! Owns: the levels and their names. Does not own: their implementation (`transport::secure`).

use serde::{Deserialize, Serialize};
use std::fmt;

/// How the bytes of a connection are protected after its first frame; each level protects more than the previous one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Secure {
    /// Connections are not protected: checksums detect accidents, not attacks.
    #[default]
    Off,
    /// Each frame is signed with keys of the connection: an attacker cannot change, repeat, drop or reorder a frame
    /// unnoticed.
    Mac,
    /// All of it is inside TLS 1.3: an attacker cannot read it either.
    Tls,
}

impl Secure {
    /// Every level, the least first.
    pub const ALL: [Secure; 3] = [Secure::Off, Secure::Mac, Secure::Tls];

    /// Reads what `Display` writes.
    pub fn parse(text: &str) -> Option<Secure> {
        Secure::ALL.into_iter().find(|level| level.to_string() == text)
    }
}

impl fmt::Display for Secure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Secure::Off => "off",
            Secure::Mac => "mac",
            Secure::Tls => "tls",
        })
    }
}
