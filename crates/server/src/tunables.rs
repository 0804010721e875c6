//! `Tunables`: numbers that can be read and set while the server runs.
//!
//! Owns: names, present values, bounds. Does not own: what they steer; each reader loads a value when it uses it, so
//! a change counts from the next use.

use amphi_types::{Errno, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One tunable.
pub struct Tunable {
    name: &'static str,
    help: &'static str,
    least: u64,
    most: u64,
    value: AtomicU64,
}

impl Tunable {
    fn new(name: &'static str, value: u64, least: u64, most: u64, help: &'static str) -> Tunable {
        Tunable { name, help, least, most, value: AtomicU64::new(value) }
    }

    /// The present value.
    pub fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }
}

/// All tunables of a server, shared by its workers.
pub struct Tunables {
    /// How long a session that has gone is kept, ms.
    pub session_grace_ms: Tunable,
    /// How long a client may use attributes without asking, ms.
    pub token_ms: Tunable,
    /// How often an operation over several targets is planned again after a conflict.
    pub plan_tries: Tunable,
}

/// The tunables as workers share them.
pub type SharedTunables = Arc<Tunables>;

impl Tunables {
    /// The defaults, with the grace time of the configuration.
    pub fn new(session_grace_ms: u64) -> Tunables {
        Tunables {
            session_grace_ms: Tunable::new(
                "server.session_grace_ms",
                session_grace_ms,
                0,
                3_600_000,
                "how long the session of a mount that has gone is kept",
            ),
            token_ms: Tunable::new(
                "server.token_ms",
                // PeakFS' life of cached entries is 30 s; the one mount that is let in cannot be surprised.
                30_000,
                0,
                60_000,
                "how long a new session may use attributes without asking",
            ),
            plan_tries: Tunable::new(
                "server.plan_tries",
                64,
                1,
                10_000,
                "how often an operation over several targets is planned again after a conflict",
            ),
        }
    }

    fn all(&self) -> [&Tunable; 3] {
        [&self.session_grace_ms, &self.token_ms, &self.plan_tries]
    }

    /// Reads what matches the shell pattern as (name, value, help), after setting all of it if there is a value.
    ///
    /// Errors: `NoEnt` when nothing matches, `Inval` when the value is no number or beyond the bounds of one of
    /// them; then none is changed.
    pub fn apply(&self, pattern: &str, value: Option<&str>) -> Result<Vec<(String, String, String)>> {
        let matching: Vec<&Tunable> = self.all().into_iter().filter(|t| matches(pattern, t.name)).collect();
        if matching.is_empty() {
            return Err(Errno::NoEnt);
        }
        if let Some(text) = value {
            let number: u64 = text.trim().parse().map_err(|_| Errno::Inval)?;
            if matching.iter().any(|t| !(t.least..=t.most).contains(&number)) {
                return Err(Errno::Inval);
            }
            for t in &matching {
                t.value.store(number, Ordering::Relaxed);
            }
        }
        Ok(matching
            .into_iter()
            .map(|t| (t.name.to_string(), t.get().to_string(), format!("{} [{}..{}]", t.help, t.least, t.most)))
            .collect())
    }
}

/// Whether `text` matches the shell pattern: `*` any run, `?` any one character.
fn matches(pattern: &str, text: &str) -> bool {
    let (p, t) = (pattern.as_bytes(), text.as_bytes());
    let (mut i, mut j) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while j < t.len() {
        if i < p.len() && (p[i] == b'?' || (p[i] == t[j] && p[i] != b'*')) {
            i += 1;
            j += 1;
        } else if i < p.len() && p[i] == b'*' {
            star = Some((i, j));
            i += 1;
        } else if let Some((at, from)) = star {
            i = at + 1;
            j = from + 1;
            star = Some((at, from + 1));
        } else {
            return false;
        }
    }
    p[i..].iter().all(|&b| b == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: patterns select, values are checked before any is set.
    #[test]
    fn patterns_and_bounds() {
        let t = Tunables::new(30_000);
        assert_eq!(t.apply("*", None).unwrap().len(), 3);
        assert_eq!(t.apply("server.*_ms", None).unwrap().len(), 2);
        assert_eq!(t.apply("*plan_trie?", Some("7")).unwrap()[0].1, "7");
        assert_eq!(t.plan_tries.get(), 7);
        assert_eq!(t.apply("nothing*", None), Err(Errno::NoEnt));
        assert_eq!(t.apply("server.*", Some("0")), Err(Errno::Inval));
        assert_eq!(t.apply("server.plan_tries", Some("much")), Err(Errno::Inval));
        assert_eq!(t.session_grace_ms.get(), 30_000, "a refused value changes nothing");
    }
}
