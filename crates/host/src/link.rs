//! Links to servers as a process of this machine makes them.
//!
//! Owns: the name of its session, random session ids, its credentials, the meaning of a failed link for people. Does
//! not own: the connection (`amphi_transport`).

use crate::failure::{During, Failure, Outcome};
use crate::{cluster_key, identity_file};
use amphi_transport::{ClusterKey, Identity, LinkConfig, Secure, Timeouts};
use amphi_types::SessionId;
use amphi_wire::Role;
use std::path::Path;

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

/// The credentials that a process shows to servers.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The cluster key.
    pub key: Option<ClusterKey>,
    /// A key of its own.
    pub identity: Option<Identity>,
    /// The least protection over a network with which it proves anything.
    pub secure: Secure,
}

impl Credentials {
    /// Reads the credentials from the given files.
    ///
    /// Errors: as those of `cluster_key::read` and `identity_file::read`.
    pub fn read(key: Option<&Path>, identity: Option<&Path>) -> Outcome<Credentials> {
        let key = cluster_key::read(key)?.map(|(_, key)| key);
        Ok(Credentials { key, identity: identity.map(identity_file::read).transpose()?, secure: Secure::Off })
    }
}

impl From<Option<ClusterKey>> for Credentials {
    fn from(key: Option<ClusterKey>) -> Credentials {
        Credentials { key, identity: None, secure: Secure::Off }
    }
}

/// A link to a server, as a mount or as an asker.
pub fn link_config(addrs: Vec<String>, role: Role, proves: impl Into<Credentials>) -> Outcome<LinkConfig> {
    let (Credentials { key, identity, secure }, timeouts) = (proves.into(), Timeouts::default());
    Ok(LinkConfig { addrs, session: session_id()?, role, name: holder_name(), key, identity, secure, timeouts })
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

/// The errors of several addresses as one error, which names each address.
pub fn all_errors(mut errors: Vec<std::io::Error>) -> std::io::Error {
    if errors.len() == 1 {
        return errors.remove(0);
    }
    let kind = errors.first().map_or(std::io::ErrorKind::InvalidInput, std::io::Error::kind);
    let kind = if errors.iter().all(|e| e.kind() == kind) { kind } else { std::io::ErrorKind::Other };
    let lines: Vec<String> = errors.iter().map(std::io::Error::to_string).collect();
    std::io::Error::new(kind, lines.join("; "))
}
