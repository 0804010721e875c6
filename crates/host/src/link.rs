//! Links to servers as a process of this machine makes them.
//!
//! Owns: by which name its session is known, random session ids, what a failed link means to people. Does not own: the
//! connection (`amphi_transport`).

use crate::failure::{During, Failure, Outcome};
use amphi_transport::{ClusterKey, LinkConfig, Timeouts};
use amphi_types::SessionId;
use amphi_wire::Role;

/// Name of this machine.
pub fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// `host:pid`, by which people and other processes of this host know a session's holder.
pub fn holder_name() -> String {
    format!("{}:{}", host_name(), std::process::id())
}

/// A random session id.
fn session_id() -> Outcome<SessionId> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).during(|| "get random bytes".into())?;
    Ok(SessionId(u64::from_ne_bytes(bytes)))
}

/// A link to a server, as a mount or as an asker.
pub fn link_config(addrs: Vec<String>, role: Role, key: Option<ClusterKey>) -> Outcome<LinkConfig> {
    Ok(LinkConfig { addrs, session: session_id()?, role, name: holder_name(), key, timeouts: Timeouts::default() })
}

/// A server that could not be talked to; the error names its address.
pub fn link_failure(e: &std::io::Error) -> Failure {
    use std::io::ErrorKind::{ConnectionRefused, NotFound, TimedOut};
    let advice = match e.kind() {
        NotFound | ConnectionRefused => "; is `amphi server` running there?",
        TimedOut => "; is the address right and the machine up?",
        _ => "",
    };
    match e.kind() {
        amphi_client::NOT_STABLE => Failure::broken(e.to_string()),
        _ => Failure::refused(format!("{e}{advice}")),
    }
}

/// Errors of several addresses as one, which names each.
pub fn all_errors(mut errors: Vec<std::io::Error>) -> std::io::Error {
    if errors.len() == 1 {
        return errors.remove(0);
    }
    let kind = errors.first().map_or(std::io::ErrorKind::InvalidInput, std::io::Error::kind);
    let kind = if errors.iter().all(|e| e.kind() == kind) { kind } else { std::io::ErrorKind::Other };
    let lines: Vec<String> = errors.iter().map(std::io::Error::to_string).collect();
    std::io::Error::new(kind, lines.join("; "))
}
